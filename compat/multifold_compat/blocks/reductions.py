"""From many tensors to one: side by side in a tuple, or a sum, a mean and the like over a sequence.

A sequence is handed to an op as one ragged operand, so sequences of all lengths share one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multifold.backend import Array, Ragged
from multifold.operands import ragged
from multifold_compat.blocks import functions
from multifold_compat.blocks.block import Block
from multifold_compat.blocks.code import Code, One, Value, joined
from multifold_compat.blocks.combining import Seen
from multifold_compat.blocks.inference import Flow, fitting
from multifold_compat.blocks.sequences import element_of
from multifold_compat.blocks.types import BlockError, Known, TensorType, TupleType


class Reduction(Block):
    """Base of the blocks that reduce a sequence of tensors to one by an op.

    An empty sequence gives zeros.
    """

    op: Callable[[Ragged], Array]
    hint = "it takes a sequence of tensors; Reduce(block) takes a sequence of anything."

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.seen = Seen()

    records = True

    def emit(self, code: Code, x: Value) -> Value:
        return One(
            code.let(f"add({code.constant(type(self).op)}, {code.constant(self.rows)}({joined(x)}))")
        )

    def rows(self, x: Any) -> Any:
        """Return the list ``x`` as one ragged operand.

        An empty one has the shape and dtype that were inferred. Raises `BlockError` if these are not known.
        """
        return ragged(x) if len(x) else ragged(x, *self.seen.row(self))

    def infer(self, given: Known, flow: Flow) -> Known:
        element = element_of(self, given)
        return fitting(f"in the sequence that {self!r} takes", TensorType(None, None), element, self.hint)

    def learn(self, given: Known) -> None:
        self.seen.element(element_of(self, given))


class Sum(Reduction):
    """Return the sum of a sequence of tensors, 0 for an empty one.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Map, Scalar
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], [], [3]], Map(Scalar()) >> Sum())
    array([3., 0., 3.])
    """

    op = staticmethod(functions.total)


class Mean(Reduction):
    """Return the mean of a sequence of tensors, 0 for an empty one."""

    op = staticmethod(functions.average)


class Max(Reduction):
    """Return the largest of a sequence of tensors, element by element, 0 for an empty one."""

    op = staticmethod(functions.largest)


class Min(Reduction):
    """Return the smallest of a sequence of tensors, element by element, 0 for an empty one."""

    op = staticmethod(functions.smallest)


class Concat(Block):
    """Return the tensors of a tuple joined along one axis of a row.

    Parameters
    ----------
    concat_dim : int
        The axis of a row that grows; where it is 0, a number counts as a row of one.
    flatten : bool
        Whether tuples inside of the tuple are taken apart as well.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Scalar, Vector
    >>> block = (Scalar("float32"), Vector(2)) >> Concat()
    >>> multifold.Fold(backend="numpy").run(None, [(1, [2, 3])], block)
    array([[1., 2., 3.]], dtype=float32)
    """

    hint = "it takes a tuple of tensors, whose shapes agree but for the axis that grows."

    def __init__(self, concat_dim: int = 0, flatten: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = concat_dim
        self.flatten = flatten

    records = True

    def emit(self, code: Code, x: Value) -> Value:
        operands = f"*{joined(x)}"
        if self.flatten:
            operands = f"*{code.constant(functions.flattened)}({joined(x)})"
        elif isinstance(x, tuple):
            operands = ", ".join(map(joined, x))
        return One(code.let(f"add({code.constant(functions.concat)}, {operands}, axis={self.axis!r})"))

    def infer(self, given: Known, flow: Flow) -> Known:
        if given is None:
            return None
        if not isinstance(given, TupleType) or not given.items:
            raise BlockError(
                f"Expected a tuple of tensors as the input of {self!r}. Received {given}.", self.hint
            )
        items = leaves(given) if self.flatten else list(given.items)
        size: int | None = 0
        rest: Known = None
        for item in items:
            item = fitting(f"in the tuple that {self!r} takes", TensorType(None, None), item, self.hint)
            shape = item.shape if isinstance(item, TensorType) else None
            if shape is None or not isinstance(item, TensorType):
                size = None
                continue
            # A number counts as a row of one.
            shape = shape or (1,) * (self.axis == 0)
            if len(shape) <= self.axis:
                raise BlockError(
                    f"Expected a tensor with axis {self.axis} in the tuple that {self!r} takes. "
                    f"Received {item}.",
                    self.hint,
                )
            grows = shape[self.axis]
            size = None if size is None or grows is None else size + grows
            other = TensorType((*shape[: self.axis], None, *shape[self.axis + 1 :]), item.dtype)
            rest = fitting(f"in the tuple that {self!r} takes", rest, other, self.hint)
        if not isinstance(rest, TensorType) or rest.shape is None:
            return TensorType(None, None)
        return TensorType((*rest.shape[: self.axis], size, *rest.shape[self.axis + 1 :]), rest.dtype)

    def label(self) -> str:
        return f"axis {self.axis}" if self.axis else ""


def leaves(kind: Known) -> list[Known]:
    """Return the types that stand in nested tuples of types, as a flat list."""
    if not isinstance(kind, TupleType):
        return [kind]
    return [leaf for item in kind.items for leaf in leaves(item)]
