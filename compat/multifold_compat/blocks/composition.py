"""Blocks connected in any way that has no circle: each says what it reads.

Connections are kept by the composition, as numbers: value 0 is its input, value ``i + 1`` what its block
``i`` returns. What a block reads is a *source*, ``(value, keys)``, or a tuple of sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multifold_compat.blocks.block import SCOPE, Block, Function, Output, as_block
from multifold_compat.blocks.code import Code, Value
from multifold_compat.blocks.inference import Flow
from multifold_compat.blocks.sequences import GetItem
from multifold_compat.blocks.types import VOID, BlockError, Known, SequenceType, TupleType, shown


class Input:
    """Stands for what goes into a composition: ``composition.input``."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition

    def __getitem__(self, key: Any) -> Output:
        return Output(self, key)

    def __repr__(self) -> str:
        return f"<input of {self.composition!r}>"


class Result:
    """Stands for what comes out of a composition: ``composition.output``."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition

    def reads(self, *sources: Any) -> Result:
        """Connect ``sources`` to the output, several as a tuple; return this object.

        Raises as `Composition.connect`.
        """
        self.composition.connect(sources[0] if len(sources) == 1 else sources, self)
        return self

    def __repr__(self) -> str:
        return f"<output of {self.composition!r}>"


class Composition(Block):
    """Blocks that read each other's results, in any way without a circle.

    Parameters
    ----------
    children : list of blocks, optional
        Blocks that are connected without a scope.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, Vector
    >>> square = Composition()
    >>> with square.scope():
    ...     x = Vector(2).reads(square.input)
    ...     square.output.reads(Function("multiply").reads(x, x))
    <output of <Composition>>
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run({"multiply": lambda x, y: x * y}, [[1, 2], [3, 4]], square)
    array([[ 1.,  4.],
           [ 9., 16.]], dtype=float32)
    """

    def __init__(self, children: Any = (), name: str | None = None) -> None:
        super().__init__(name)
        self.input = Input(self)
        self.output = Result(self)
        self.blocks: list[Block] = []
        self.reads_of: dict[int, Any] = {}
        self.result: Any = None
        self.order: list[int] | None = None
        self.unread: list[int] = []
        self.written = False
        for child in children or ():
            self.place(as_block(child))

    @contextmanager
    def scope(self) -> Iterator[Composition]:
        """Return a context in which ``block.reads(...)`` connects blocks of this composition.

        Raises
        ------
        BlockError
            At the end, if a block or the output reads nothing, or types do not fit.
        """
        token = SCOPE.set(self)
        try:
            yield self
        finally:
            SCOPE.reset(token)
        self.arranged()

    def connect(self, source: Any, target: Any) -> None:
        """Let ``target``, a block or the output, read ``source``: a block, a part of one, or a tuple.

        All is connected before the first example is recorded: a model whose blocks changed between two
        minibatches would be another one, with traces that differ.

        Raises
        ------
        BlockError
            If the target reads something already, or is the input; or if an example was recorded.
        """
        if self.written:
            raise BlockError(
                f"Expected {self!r} to be connected before it has recorded an example. Received more.",
                "connect the blocks first.",
            )
        self.order = None
        if target is self.output:
            if self.result is not None:
                raise BlockError(
                    f"Expected {target!r} to be connected once. Received a second source.", ONCE
                )
            self.result = self.source_of(source)
            return
        if not isinstance(target, Block):
            raise BlockError(f"Expected a block to read in {self!r}. Received {target!r}.", READERS)
        read = self.source_of(source)
        place = self.place(target)
        if place in self.reads_of:
            raise BlockError(f"Expected {target!r} to be connected once. Received a second source.", ONCE)
        self.reads_of[place] = read

    def place(self, block: Block) -> int:
        """Return the number of a block, from 0; a block that is new is appended."""
        for place, known in enumerate(self.blocks):
            if known is block:
                return place
        self.blocks.append(block)
        return len(self.blocks) - 1

    def source_of(self, source: Any) -> Any:
        """Return a source as (value, keys), or a list of such for a tuple.

        Value 0 is the input, value ``i + 1`` the result of block ``i``; keys lead to a part of it. A block
        that is new is appended. Raises `BlockError` for what cannot be read.
        """
        if isinstance(source, (tuple, list)):
            if not source:
                raise BlockError(f"Expected a block of {self!r} to read from. Received none.", READERS)
            return [self.source_of(item) for item in source]
        keys: tuple[Any, ...] = ()
        while isinstance(source, Output):
            keys = (source.key, *keys)
            source = source.block
        if source is self.input:
            return (0, keys)
        if isinstance(source, (Input, Result)):
            raise BlockError(f"Expected a block of {self!r} to read from. Received {source!r}.", READERS)
        return (self.place(as_block(source)) + 1, keys)

    def arranged(self) -> list[int]:
        """Return the numbers of the blocks, each after those that it reads; check types the first time.

        Raises `BlockError` if a block or the output reads nothing, or types do not fit.
        """
        if self.order is None:
            if self.result is None:
                raise BlockError(
                    f"Expected the output of {self!r} to read a block. Received no connection.",
                    "composition.output.reads(block) says what comes out.",
                )
            self.order = self.sorted()
            self.infer(self.accepts, Flow())
        return self.order

    def sorted(self) -> list[int]:
        """Return the numbers of the blocks, each after those that it reads; set ``unread``.

        Raises `BlockError` if a block reads nothing, or for a circle.
        """
        order: list[int] = []
        left = dict.fromkeys(range(len(self.blocks)))
        for place in left:
            if place not in self.reads_of and not self.blocks[place].source:
                block = self.blocks[place]
                raise BlockError(
                    f"Expected {block!r} of {self!r} to read something. Received no connection.",
                    "block.reads(source) connects it; Zeros and FromTensor need nothing.",
                )
        read = {value for source in (self.result, *self.reads_of.values()) for value in values_of(source)}
        self.unread = [place for place in left if place + 1 not in read]
        while left:
            ready = [
                place
                for place in left
                if not any(value - 1 in left for value in values_of(self.reads_of.get(place, [])))
            ]
            if not ready:
                circle = ", ".join(repr(self.blocks[place]) for place in left)
                raise BlockError(
                    f"Expected no circle of blocks in {self!r}. Received one among {circle}.",
                    "ForwardDeclaration says recursion, RNN and Fold say loops.",
                )
            order += ready
            for place in ready:
                del left[place]
        return order

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        values: list[Value] = [None] * (len(self.blocks) + 1)
        values[0] = x
        for place in self.arranged():
            read = self.reads_of.get(place)
            given = "None" if read is None else fetched(code, values, read)
            values[place + 1] = code.of(self.blocks[place], given)
        self.written = True
        return fetched(code, values, self.result)

    def infer(self, given: Known, flow: Flow) -> Known:
        if self.result is None:
            return None
        types: list[Known] = [None] * (len(self.blocks) + 1)
        types[0] = given
        for place in self.sorted() if self.order is None else self.order:
            read = self.reads_of.get(place)
            block = self.blocks[place]
            types[place + 1] = flow.of(block, VOID if read is None else self.read_type(types, read))
        for place in self.unread:
            if not holds_nothing(types[place + 1], self.blocks[place]):
                raise BlockError(
                    f"Expected the output of {self.blocks[place]!r} of {self!r} to be read. Received no "
                    f"reader of its {shown(types[place + 1])}.",
                    "connect it, or leave the block out; only Void() and Metric(name) need no reader.",
                )
        return self.read_type(types, self.result)

    def read_type(self, types: list[Known], read: Any) -> Known:
        """Return the type of a source, as `source_of` returns it; ``types`` has those of all values."""
        if isinstance(read, list):
            return TupleType(*[self.read_type(types, item) for item in read])
        value, keys = read
        kind = types[value]
        for key in keys:
            # The same rule, and the same error, as of a block that takes the item out.
            kind = GetItem(key).infer(kind, Flow())
        return kind


def holds_nothing(kind: Known, block: Block) -> bool:
    """Return whether a type is void, or a tuple or sequence of nothing else.

    An open one counts as void, unless ``block`` is a `Function`.
    """
    if isinstance(kind, TupleType):
        return all(holds_nothing(item, block) for item in kind)
    if isinstance(kind, SequenceType):
        return holds_nothing(kind.element_type, block)
    return kind == VOID or (kind is None and not isinstance(block, Function))


ONCE = "a block has one input; a tuple of several sources is one."
READERS = "blocks of the composition, parts such as block[0], and its input are what can be read."


def values_of(read: Any) -> list[int]:
    """Return the numbers of the values that a source, as `Composition.source_of` returns it, reads."""
    return [v for item in read for v in values_of(item)] if isinstance(read, list) else [read[0]]


def fetched(code: Code, values: list[Value], read: Any) -> Value:
    """Return the expression of what a source stands for; ``values[value]`` is that of each value."""
    if type(read) is list:
        return tuple([fetched(code, values, item) for item in read])
    value = values[read[0]]
    for key in read[1]:
        value = code.item(value, key)
    return value
