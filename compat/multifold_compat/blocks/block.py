"""Blocks: a function of one example, made of smaller ones; and those that `>>` and conversions need.

A block is called as ``block(fold, x)`` and records. What runs is one function of Python that blocks write
(`code`); it compares no types, which were compared when the blocks were put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np

from multifold._engine.record.lines import users_frame
from multifold._engine.record.signature import op_name
from multifold_compat.blocks.calls import call_of
from multifold_compat.blocks.code import Code, One, Value
from multifold_compat.blocks.inference import Flow, fitting, item_of, tensors_only, use_of
from multifold_compat.blocks.learned import Learned
from multifold_compat.blocks.show import as_svg, as_text
from multifold_compat.blocks.types import (
    VOID,
    BlockError,
    BroadcastSequenceType,
    Known,
    SequenceType,
    TensorType,
    TupleType,
    as_type,
)

SCOPE: ContextVar[Any] = ContextVar("the composition whose scope was entered", default=None)
"""The composition that `Block.reads` connects in; each thread and each coroutine has its own."""


class Piped:
    """Base of blocks and layers: ``a >> b`` of any two is a `Pipe`."""

    __array_ufunc__ = None  # `array >> block` is then left to the block

    def __rshift__(self, other: Any) -> Pipe:
        return Pipe(self, other)

    def __rrshift__(self, other: Any) -> Pipe:
        return Pipe(other, self)


class Block(Piped):
    """Base of the blocks: functions of one example that are called as ``block(fold, x)`` and record.

    Parameters
    ----------
    name : str, optional
        What messages and drawings call the block.

    Attributes
    ----------
    accepts, returns : ResultType or None
        The declared types of what goes in and what comes out; None where they are open.
    """

    accepts: Known = None
    returns: Known = None
    hint = "put a block between the two that makes one type of the other."
    source = False
    """Whether the block takes no input; it may stand wherever one is given, and ignores it."""

    nests = False
    """Whether there are blocks inside of it."""
    recurs = False
    """Whether a `ForwardDeclaration` stands for it, so that it may call itself."""
    records = False
    """Whether it records calls of its own, which have the line that made the block."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        frame = users_frame()
        self.at = frame.f_code.co_filename, frame.f_lineno

    def __call__(self, fold: Any, x: Any) -> Any:
        """Record one example, and return nodes, numbers, arrays, or tuples and lists of those.

        A block that overrides this runs as it is; others write a function, once, and run that.
        """
        functions = vars(self).setdefault("_functions", {})
        dry = fold.knows_shapes
        if dry not in functions:
            functions[dry] = Code(dry).made(self)
        return functions[dry](fold, x)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickle and copy, but for the Python functions that `Code` has made."""
        return {name: value for name, value in vars(self).items() if name != "_functions"}

    def calls_itself(self) -> bool:
        """Return whether the class has a ``__call__`` of its own, so that no code is written for it."""
        return type(self).__call__ is not Block.__call__

    def emit(self, code: Code, x: Value) -> Value:
        """Append lines to ``code`` that do what the block does with ``x``.

        Return the expression of the result. ``x`` and the result are expressions of Python as text, or
        tuples of such.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither __call__ nor emit")

    def infer(self, given: Known, flow: Flow) -> Known:
        """Return the type that comes out if ``given`` goes in; None where it is open.

        Ask ``flow.of(inner, type)`` about each block inside. Raises `BlockError` for types that do not fit.
        """
        raise NotImplementedError

    def learn(self, given: Known) -> None:
        """Keep the type ``given`` of what goes in, if the block needs it later; most do nothing."""

    def may_recur(self) -> None:
        """Set ``recurs``: a `ForwardDeclaration` stands for the block."""
        self.recurs = True

    def stands_for(self) -> Block | None:
        """Return the block that a use of a `ForwardDeclaration` refers to, None before it is resolved.

        Other blocks return None.
        """
        return None

    def __getitem__(self, key: Any) -> Output:
        """Return an `Output`: it stands for item ``key`` of what the block returns, in a `Composition`."""
        return Output(self, key)

    def __iter__(self) -> NoReturn:
        raise BlockError(
            f"Expected {self!r} not to be iterated: it stands for a value that is not there yet.",
            "block[0] refers to a part of what it returns.",
        )

    def reads(self, *sources: Any) -> Block:
        """Connect ``sources`` to the input of the block, in the composition of the scope; return the block.

        Return it.

        Parameters
        ----------
        *sources : block, or part of one
            What goes in; several make a tuple.
        """
        composition = SCOPE.get()
        if composition is None or not sources:
            raise BlockError(
                f"Expected {self!r} to read something inside of the scope of a Composition. Received "
                f"{'no scope' if composition is None else 'no source'}.",
                "`with composition.scope():` begins one, and composition.connect(a, b) needs none.",
            )
        composition.connect(sources if len(sources) > 1 else sources[0], self)
        return self

    @property
    def input_type(self) -> Known:
        """The type that goes in, as far as the block itself says it; None where it is open."""
        return use_of(self, teaches=False).given

    @property
    def output_type(self) -> Known:
        """The type that comes out, as far as the block itself says it; None where it is open."""
        return use_of(self, teaches=False).returned

    def set_input_type(self, like: Any) -> Block:
        """Declare the type that goes in, written as for `as_type`; return the block.

        Raises `BlockError` if it does not fit.
        """
        self.accepts = fitting(f"as the input of {self!r}", self.accepts, as_type(like), self.hint)
        use_of(self)
        return self

    def set_output_type(self, like: Any) -> Block:
        """Declare the type that comes out, written as for `as_type`; return the block.

        Raises `BlockError` if it does not fit.
        """
        returned = use_of(self).returned
        self.returns = fitting(f"as the output of {self!r}", returned, as_type(like), self.hint)
        return self

    def label(self) -> str:
        """Return what messages write after the class of the block: its op or key, say; empty by default."""
        return ""

    def __str__(self) -> str:
        """Return the block and those inside of it as an indented tree of text, with their types."""
        return as_text(use_of(self, teaches=False))

    def svg(self) -> str:
        """Return the block and those inside of it as the text of an SVG drawing."""
        return as_svg(use_of(self, teaches=False))

    def __repr__(self) -> str:
        words = [type(self).__name__, self.label(), "" if self.name is None else repr(self.name)]
        return f"<{' '.join(filter(None, words))}>"


class Output:
    """Item ``key`` of what ``block`` returns: what ``block[key]`` stands for in a `Composition`."""

    def __init__(self, block: Any, key: Any) -> None:
        self.block = block
        self.key = key

    def __getitem__(self, key: Any) -> Output:
        return Output(self, key)

    def __repr__(self) -> str:
        return f"{self.block!r}[{self.key!r}]"


def as_block(like: Any) -> Block:
    """Return the block that ``like`` stands for.

    A block as it is, a new one for a dictionary, array or layer.

    Parameters
    ----------
    like : object
        A block; a dictionary, list or tuple of what stands for blocks, which is a `Record`; an array,
        which is a `FromTensor`; a layer (`FC`, `Embedding`), which is a `Function`.

    Raises
    ------
    BlockError
        For anything else.
    """
    if isinstance(like, Block):
        return like
    if isinstance(like, (dict, list, tuple)):
        return Record(like)
    if hasattr(like, "shape") and hasattr(like, "dtype") and not isinstance(like, TensorType):
        return FromTensor(like)
    if isinstance(like, Layer):
        return Function(like)
    raise BlockError(
        f"Expected a block, or a dict, list or tuple of blocks. Received {like!r}.",
        "Function(op) makes a block of an op, InputTransform(function) of a function of Python objects.",
    )


class Layer(Piped):
    """Base of `FC` and `Embedding`: ops with weights, by the name of a method of the model."""

    accepts: Known = None

    def call(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the op of the model that computes the layer, and its keyword arguments."""
        raise NotImplementedError

    def result(self, given: Known) -> Known:
        """Return the type that comes out if ``given`` goes in; None where it is open."""
        raise NotImplementedError

    @property
    def output_type(self) -> Known:
        """The type that comes out of any input that the layer accepts; None where it is open."""
        return self.result(self.accepts)


class Pipe(Block):
    """Run blocks one after the other: ``Pipe(a, b, c)`` is ``a >> b >> c``, where b gets what a returns.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, InputTransform, Scalar
    >>> block = InputTransform(len) >> Scalar() >> Function("double")
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run({"double": lambda x: 2 * x}, ["a", "word"], block)
    array([2., 8.])
    """

    nests = True

    def __init__(self, *blocks: Any, name: str | None = None) -> None:
        super().__init__(name)
        flat: list[Block] = []
        for block in map(as_block, blocks):
            # Pipes inside of a pipe are taken apart, unless they have a name or declared types.
            plain = type(block) is Pipe and block.name is None and block.accepts is block.returns is None
            flat += block.blocks if plain else [block]  # type: ignore[attr-defined]
        self.blocks = tuple(flat)
        use_of(self)

    def emit(self, code: Code, x: Value) -> Value:
        for block in self.blocks:
            x = code.of(block, x)
        return x

    def infer(self, given: Known, flow: Flow) -> Known:
        for place, block in enumerate(self.blocks):
            if place and block.source:
                fitting(f"as the input of {block!r}", VOID, given, "AllOf(a, b) runs both on one input.")
            given = flow.of(block, given)
        return given


class Record(Block):
    """Give each field of an example to a block of its own, and return the tuple of what they return.

    Parameters
    ----------
    named_children : dict, list of (key, block), or tuple of blocks
        In the order of the results; the keys of a tuple are 0, 1, 2, ...

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, Scalar
    >>> block = {"x": Scalar(), "y": Scalar()} >> Function("add")
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run({"add": lambda x, y: x + y}, [{"x": 1, "y": 2}, {"x": 3, "y": 4}], block)
    array([3., 7.])
    """

    hint = "a Record takes fields of a Python object, or the items of a tuple."
    nests = True

    def __init__(self, named_children: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.fields = pairs(named_children)

    def __getitem__(self, key: Any) -> Output:
        """Return an `Output` for one of the results: by the key of its field, or by its position."""
        keys = [name for name, _ in self.fields]
        return Output(self, keys.index(key) if key in keys else key)

    def emit(self, code: Code, x: Value) -> Value:
        return tuple([code.of(block, code.item(x, key)) for key, block in self.fields])

    def infer(self, given: Known, flow: Flow) -> Known:
        if isinstance(given, (SequenceType, BroadcastSequenceType)):
            raise BlockError(f"Expected object as the input of {self!r}. Received {given}.", self.hint)
        return TupleType(*[flow.of(block, item_of(self, given, key)) for key, block in self.fields])

    def label(self) -> str:
        return ", ".join(str(key) for key, _ in self.fields)


def pairs(fields: Any) -> tuple[tuple[Any, Block], ...]:
    """Return (key, block) for each entry of a dictionary, a list of pairs, or a list or tuple of blocks.

    In the last case keys count from 0. Raises `BlockError` for anything else.
    """
    if isinstance(fields, Mapping):
        found: Iterable[tuple[Any, Any]] = fields.items()
    elif isinstance(fields, list) and all(isinstance(x, tuple) and len(x) == 2 for x in fields):
        found = fields
    elif isinstance(fields, Sequence) and not isinstance(fields, str):
        found = enumerate(fields)
    else:
        raise BlockError(
            f"Expected a dict, a list of pairs or a tuple of blocks. Received {fields!r}.",
            "{'left': a, 'right': b} gives a field to each of two blocks.",
        )
    return tuple((key, as_block(like)) for key, like in found)


class FromTensor(Block):
    """Return an array, the same for each example; what goes in is ignored.

    Parameters
    ----------
    tensor : array
        Of NumPy or of a framework, without an axis of rows. An array of a framework cannot enter a
        trace; for weights, `Void() >> Function("start")` asks the model for one row.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run(None, ["a", "b"], FromTensor(np.array([1.0, 2.0])))
    array([[1., 2.],
           [1., 2.]])
    """

    source = True

    def __init__(self, tensor: Any, name: str | None = None) -> None:
        super().__init__(name)
        if isinstance(tensor, (int, float, np.generic)):
            tensor = np.asarray(tensor, None if isinstance(tensor, np.generic) else np.float32)
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise BlockError(
                f"Expected an array in FromTensor. Received {tensor!r}.", "np.zeros(16) is an array."
            )
        if isinstance(tensor, np.ndarray):
            tensor = tensor.copy()
        self.tensor = tensor

    def emit(self, code: Code, x: Value) -> Value:
        return One(code.let(f"{code.constant(self.tensor)}[None]"))

    def infer(self, given: Known, flow: Flow) -> Known:
        return TensorType(tuple(self.tensor.shape), self.tensor.dtype)


class Function(Block):
    """A block that calls an op of its input, and returns the result.

    Parameters
    ----------
    op : str, callable or layer
        As `multifold.Fold.add` takes it: a name that is looked up on the model, a function of batched
        arrays, a layer of a framework; or `FC` or `Embedding`. The items of a tuple are its operands.
    name : str, optional
        What messages call the block.
    out : optional
        The type of what it returns, as `as_type` reads it. A tuple is taken apart. If None, the type is
        open until `multifold.shapes` has run the block.
    static : dict, optional
        Keyword arguments of the op.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import AllOf, Scalar
    >>> block = Scalar() >> Function("both", out=([], [])) >> Function("add", out=[])
    >>> model = {"both": lambda x: (x, 10 * x), "add": lambda x, y: x + y}
    >>> multifold.Fold(backend="numpy").run(model, [1, 2], block)
    array([11., 22.])
    """

    hint = "an op receives arrays: Scalar() and Vector(n) make them, Reduce and Fold take sequences."

    def __init__(
        self,
        op: str | Callable[..., Any] | Layer,
        name: str | None = None,
        out: Any = None,
        static: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name)
        if not isinstance(op, (str, Layer)) and not callable(op):
            raise BlockError(
                f"Expected an op's name or a function in Function. Received {op!r}.",
                "Function('compose') is looked up on the model, Function(ops.tanh) is called.",
            )
        self.op = op
        self.static = dict(static or {})
        self.out = as_type(out)
        self.learned = Learned()
        self.is_layer = isinstance(op, Layer)  # of a model, which takes one operand
        if isinstance(op, Layer):
            self.accepts = op.accepts

    records = True
    emit = call_of

    def call(self) -> tuple[Any, dict[str, Any]]:
        """Return the op and its keyword arguments, a dictionary."""
        return self.op.call() if isinstance(self.op, Layer) else (self.op, self.static)

    def infer(self, given: Known, flow: Flow) -> Known:
        tensors_only(self, given)
        declared = self.declared(given)
        return self.learned.returned(given) if declared is None else declared

    def declared(self, given: Known) -> Known:
        """Return the type that a layer, or ``out``, says for the result; None where it is open."""
        return self.op.result(given) if isinstance(self.op, Layer) else self.out

    def label(self) -> str:
        return repr(self.op) if isinstance(self.op, Layer) else op_name(self.op)
