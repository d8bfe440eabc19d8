"""Sequences of any length: mapped, taken together, and cut. What a sequence holds is a Python list."""

from __future__ import annotations

from typing import Any

from multifold_compat.blocks.block import Block, Pipe, as_block
from multifold_compat.blocks.code import Code, One, Value, joined
from multifold_compat.blocks.inference import Flow, fitting, item_of
from multifold_compat.blocks.inputs import Scalar
from multifold_compat.blocks.types import (
    OBJECT,
    VOID,
    BlockError,
    BroadcastSequenceType,
    Known,
    PyObjectType,
    SequenceType,
    TensorType,
    TupleType,
)

NO_SEQUENCE = "Map(block) makes a sequence of one, AllOf(a, b) a tuple."


class Endless:
    """A sequence without end, each element of which is ``value``: what `Broadcast` returns."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def element_of(block: Block, given: Known, endless: bool = False) -> Known:
    """Return the type of the elements of ``given``, a sequence, a tuple or a Python object; None if open.

    Raises `BlockError` for others, an endless sequence too unless ``endless``, and for a tuple of several
    types.
    """
    if given is None or isinstance(given, PyObjectType):
        return given
    if isinstance(given, SequenceType) or (endless and isinstance(given, BroadcastSequenceType)):
        return given.element_type
    if isinstance(given, TupleType):
        element: Known = None
        for item in given.items:
            element = fitting(f"in each item of the input of {block!r}", element, item, NO_SEQUENCE)
        return element
    raise BlockError(f"Expected a sequence as the input of {block!r}. Received {given}.", NO_SEQUENCE)


class Map(Block):
    """Run a block on each element of a sequence or tuple, and return a sequence.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Scalar
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], [3]], Map(Scalar()))
    array([1., 2., 3.])
    """

    def __init__(self, elem_block: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.element_block = as_block(elem_block)
        self.infer(None, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        made = One(code.new())
        item = code.new()
        sequence = joined(x)
        endless = code.constant(Endless)
        # The block runs once on the one value of an endless sequence, however often that is asked for.
        with code.under(f"if type({sequence}) is {endless}:"):
            code.write(f"{made} = {endless}({code.constant(self.element_block)}(fold, {sequence}.value))")
        with code.under("else:"):
            code.write(f"{made} = []")
            with code.under(f"for {item} in {sequence}:"):
                code.write(f"{made}.append({joined(code.of(self.element_block, item))})")
        return made

    def infer(self, given: Known, flow: Flow) -> Known:
        made = flow.of(self.element_block, element_of(self, given, endless=True))
        return (
            BroadcastSequenceType(made) if isinstance(given, BroadcastSequenceType) else SequenceType(made)
        )


class Broadcast(Block):
    """Return an endless sequence of what goes in, for `Zip`.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import AllOf, Function, Identity, Mean, Scalar
    >>> center = AllOf(Identity(), Mean() >> Broadcast()) >> ZipWith(Function("subtract"))
    >>> model = {"subtract": lambda x, y: x - y}
    >>> multifold.Fold(backend="numpy").run(model, [[1, 2, 3]], Map(Scalar()) >> center)
    array([-1.,  0.,  1.])
    """

    def __call__(self, fold: Any, x: Any) -> Any:
        return Endless(x)

    def infer(self, given: Known, flow: Flow) -> Known:
        return BroadcastSequenceType(given)


class Zip(Block):
    """Make a sequence of tuples of a tuple of sequences, as long as the shortest of them.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Concat, Scalar
    >>> block = {"x": Map(Scalar()), "y": Map(Scalar())} >> Zip() >> Map(Concat())
    >>> multifold.Fold(backend="numpy").run(None, [{"x": [1, 2], "y": [3, 4, 5]}], block)
    array([[1., 3.],
           [2., 4.]])
    """

    def __call__(self, fold: Any, x: Any) -> Any:
        lengths = [len(sequence) for sequence in x if type(sequence) is not Endless]
        # All are endless, and so is their sequence of tuples.
        if not lengths:
            return Endless(tuple([sequence.value for sequence in x]))
        n = min(lengths)
        columns = [[s.value] * n if type(s) is Endless else list(s)[:n] for s in x]
        return list(zip(*columns, strict=True))

    def infer(self, given: Known, flow: Flow) -> Known:
        if given is None or isinstance(given, PyObjectType):
            return SequenceType(given)
        if not isinstance(given, TupleType) or not given.items:
            raise BlockError(
                f"Expected a tuple of sequences as the input of {self!r}. Received {given}.",
                "AllOf(a, b) and Record make tuples.",
            )
        element = TupleType(*[element_of(self, item, endless=True) for item in given.items])
        endless = all(isinstance(item, BroadcastSequenceType) for item in given.items)
        return BroadcastSequenceType(element) if endless else SequenceType(element)


class NGrams(Block):
    """Make a sequence of the tuples of ``n`` neighbours.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Concat, Scalar
    >>> block = Map(Scalar()) >> NGrams(2) >> Map(Concat())
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2, 3]], block)
    array([[1., 2.],
           [2., 3.]])
    """

    def __init__(self, n: int, name: str | None = None) -> None:
        super().__init__(name)
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise BlockError(f"Expected n of at least 1 in NGrams. Received {n!r}.", "2 makes pairs.")
        self.n = n

    def __call__(self, fold: Any, x: Any) -> Any:
        if type(x) is Endless:
            return Endless((x.value,) * self.n)
        items = list(x)
        return list(zip(*[items[i:] for i in range(self.n)], strict=False))

    def infer(self, given: Known, flow: Flow) -> Known:
        kind = BroadcastSequenceType if isinstance(given, BroadcastSequenceType) else SequenceType
        return kind(TupleType(*[element_of(self, given, endless=True)] * self.n))

    def label(self) -> str:
        return str(self.n)


def ZipWith(elem_block: Any, name: str | None = None) -> Pipe:  # noqa: N802  (the predecessor's name)
    """Return a `Pipe` of `Zip` and of `Map` of the block."""
    return Pipe(Zip(), Map(elem_block), name=name)


class GetItem(Block):
    """Return ``x[key]`` of a Python object, a tuple or a sequence.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Scalar
    >>> multifold.Fold(backend="numpy").run(None, [{"x": 1}, {"x": 2}], GetItem("x") >> Scalar())
    array([1., 2.])
    """

    hint = "Python objects, tuples and sequences have items; an op takes items out of tensors."

    def __init__(self, key: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.key = key

    def emit(self, code: Code, x: Value) -> Value:
        return code.item(x, self.key)

    def infer(self, given: Known, flow: Flow) -> Known:
        return item_of(self, given, self.key)

    def label(self) -> str:
        return repr(self.key)


def Slice(  # noqa: N802  (the predecessor's name)
    *, start: int | None = None, stop: int | None = None, step: int | None = None, name: str | None = None
) -> GetItem:
    """Return a block that returns ``x[start:stop:step]`` of a Python object, a tuple or a sequence."""
    return GetItem(slice(start, stop, step), name)


class Nth(Block):
    """Return ``sequence[n]`` of a pair of a sequence and a Python integer ``n``.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Identity, Scalar
    >>> block = (Map(Scalar()), Identity()) >> Nth()
    >>> multifold.Fold(backend="numpy").run(None, [([5, 6, 7], 1), ([8], 0)], block)
    array([6., 8.])
    """

    accepts = TupleType(None, OBJECT)
    hint = "the second item is a Python integer, which Identity() passes on."

    def __call__(self, fold: Any, x: Any) -> Any:
        sequence, n = x
        return sequence[n]

    def infer(self, given: Known, flow: Flow) -> Known:
        first = given.items[0] if isinstance(given, TupleType) else given
        return element_of(self, first)


class Length(Block):
    """Return how many elements a sequence, a tuple or a Python object has.

    Parameters
    ----------
    dtype : str
        As for `Scalar`.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, ["a", "word"], Length())
    array([1., 4.])
    """

    def __init__(self, dtype: str = "float", name: str | None = None) -> None:
        super().__init__(name)
        self.number = Scalar(dtype)

    def __call__(self, fold: Any, x: Any) -> Any:
        return self.number(fold, len(x))

    def infer(self, given: Known, flow: Flow) -> Known:
        if isinstance(given, (TensorType, BroadcastSequenceType)) or given == VOID:
            fitting(f"as the input of {self!r}", SequenceType(None), given, NO_SEQUENCE)
        return self.number.kind
