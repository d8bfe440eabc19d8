"""Blocks that combine the elements of a sequence: from left to right, in balanced pairs, along a cell."""

from __future__ import annotations

from typing import Any

from multifold._engine.record.reduce import balanced
from multifold_compat.blocks.block import Block, Function, as_block
from multifold_compat.blocks.code import Code, One, Value, apart, joined
from multifold_compat.blocks.inference import Flow, fitting
from multifold_compat.blocks.inputs import Zeros, zeros
from multifold_compat.blocks.sequences import element_of
from multifold_compat.blocks.types import (
    VOID,
    BlockError,
    Disjoint,
    Known,
    SequenceType,
    TensorType,
    TupleType,
    meet,
)


class Fold(Block):
    """Combine a sequence from left to right, one element after the other.

    Parameters
    ----------
    combine_block : block
        Takes a pair of a state and an element, and returns the next state.
    start_block : block
        Returns the first state; it is given nothing.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import FromTensor, Function, Map, Scalar
    >>> digits = Map(Scalar()) >> Fold(Function("append"), FromTensor(0.0))
    >>> model = {"append": lambda state, x: 10 * state + x}
    >>> multifold.Fold(backend="numpy").run(model, [[1, 2, 3], [4]], digits)
    array([123.,   4.], dtype=float32)
    """

    def __init__(self, combine_block: Any, start_block: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.combine_block = as_block(combine_block)
        self.start_block = as_block(start_block)
        self.infer(None, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        # A variable, and not the expression of the first state, since each turn of the loop sets it.
        state = code.let(joined(code.of(self.start_block, "None")))
        item = code.new()
        with code.under(f"for {item} in {joined(x)}:"):
            made = code.of(self.combine_block, (state, item))
            code.write(f"{state} = {joined(code.taken_apart(made, self.output_type))}")
        return state

    def infer(self, given: Known, flow: Flow) -> Known:
        state = flow.of(self.start_block, VOID)
        made = flow.of(self.combine_block, TupleType(state, element_of(self, given)))
        return fitting(
            f"as the next state in {self!r}", state, made, "start_block and combine_block return one type."
        )


class Reduce(Block):
    """Combine neighbours until one value is left: ``n - 1`` calls in ``ceil(log2(n))`` levels.

    Parameters
    ----------
    combine_block : block
        Takes a pair of neighbours, the left one first, and returns what stands in their place.
    default_block : block, optional
        Returns the value of an empty sequence. Zeros, if None, where the type of the elements is known.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, Map, Scalar
    >>> block = Map(Scalar()) >> Reduce(Function("add"))
    >>> multifold.Fold(backend="numpy").run({"add": lambda x, y: x + y}, [[1, 2, 3], [], [4]], block)
    array([6., 0., 4.])
    """

    def __init__(self, combine_block: Any, default_block: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.combine_block = as_block(combine_block)
        self.default_block = None if default_block is None else as_block(default_block)
        self.seen = Seen()
        self.infer(None, Flow())

    nests = True

    def emit(self, code: Code, x: Value) -> Value:
        join, left, right, made, items = (code.new() for _ in range(5))
        code.write(f"{items} = list({joined(x)})")
        with code.under(f"if {items}:"):
            with code.under(f"def {join}({left}, {right}):"):
                both = code.of(self.combine_block, (left, right))
                code.write(f"return {joined(code.taken_apart(both, self.output_type))}")
            code.write(f"{made} = {code.constant(balanced)}({join}, {items})")
        with code.under("else:"):
            code.write(f"{made} = {code.constant(self.empty)}(fold)")
        return made

    def empty(self, fold: Any) -> Any:
        """Return what an empty sequence gives: what ``default_block`` records, or zeros.

        Raises `BlockError` if the type of the zeros is not known.
        """
        return self.seen.zeros(self) if self.default_block is None else self.default_block(fold, None)

    def infer(self, given: Known, flow: Flow) -> Known:
        element = element_of(self, given)
        made = flow.of(self.combine_block, TupleType(element, element))
        where = f"from the blocks of {self!r}"
        made = fitting(where, element, made, "combine_block returns the type of the elements.")
        if self.default_block is None:
            return made
        return fitting(
            where,
            made,
            flow.of(self.default_block, VOID),
            "default_block returns the type of the elements.",
        )

    def learn(self, given: Known) -> None:
        self.seen.element(element_of(self, given))


class Seen:
    """The type of the elements of the sequences that a block gets; an empty sequence gives zeros of it.

    A block that stands in several places keeps what their types have in common, and nothing where they
    have nothing in common.
    """

    def __init__(self) -> None:
        self.kind: Known = None
        self.several = False

    def element(self, kind: Known) -> None:
        """Keep what ``kind``, the type of the elements in one place of the block, shares with others."""
        try:
            self.kind = meet(self.kind, kind)
        except Disjoint:
            self.several = True

    def zeros(self, block: Block) -> Any:
        """Return zeros of the type of the elements; raise `BlockError` if it is not known.

        ``block`` is what the error names.
        """
        if self.several or self.kind is None:
            raise self.unknown(block, "give it a default_block")
        return zeros(self.kind)

    def row(self, block: Block) -> tuple[Any, str | None]:
        """Return shape and dtype of one element; raise `BlockError` if they are not known.

        ``block`` is what the error names.
        """
        kind = None if self.several else self.kind
        if not isinstance(kind, TensorType) or kind.shape is None or None in kind.shape:
            raise self.unknown(block, "leave out sequences without elements")
        return kind.shape, kind.dtype

    def unknown(self, block: Block, remedy: str) -> BlockError:
        """Return, but do not raise, the error for an empty sequence whose elements have no known type.

        ``remedy`` begins its hint.
        """
        return BlockError(
            f"Expected elements in the input of {block!r}, whose type is not known. Received none.",
            f"{remedy}, or declare the type of what is before it: Function(op, out=16).",
        )


class RNN(Block):
    """Run a recurrent cell along a sequence; return the pair of its outputs and its last state.

    Parameters
    ----------
    cell : block, str, or cell of a framework
        A block or the name of an op that takes a pair of an element and a state, and returns a pair of an
        output and a state. Or what `multifold.Fold.unroll` takes: a cell of a framework, or a
        `multifold.Cell`; such a cell cannot be recorded into a trace.
    initial_state : block, array or type, optional
        The state before the first element. By default zeros of the state that the cell returns, or what
        the cell of a framework begins with.
    initial_state_from_input : bool
        Whether the input is a pair of a sequence and a state.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, GetItem, Map, Scalar
    >>> running = Map(Scalar()) >> RNN(Function("step", out=([], "float"))) >> GetItem(0)
    >>> model = {"step": lambda x, state: (10 * x, state + x)}
    >>> multifold.Fold(backend="numpy").run(model, [[1, 2], [3]], running)
    array([10., 20., 30.])
    """

    def __init__(
        self,
        cell: Any,
        initial_state: Any = None,
        initial_state_from_input: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if initial_state_from_input and initial_state is not None:
            raise BlockError(
                f"Expected one initial state in {self!r}. Received one for all and one from the input.",
                "leave initial_state out, or initial_state_from_input.",
            )
        self.cell = Function(cell) if isinstance(cell, str) else cell
        self.from_input = initial_state_from_input
        self.start = None if initial_state is None else as_block(initial_state)
        if self.start is None and not self.from_input and isinstance(self.cell, Block):
            given = self.cell.output_type
            state = given.items[1] if isinstance(given, TupleType) and len(given.items) == 2 else None
            if state is None:
                raise BlockError(
                    f"Expected the type of the state in {self!r}, to begin with zeros. Received ?.",
                    "give it initial_state=Zeros(16), or declare Function(op, out=(16, 16)).",
                )
            self.start = Zeros(state)
        self.infer(None, Flow())

    nests = records = True

    def emit(self, code: Code, x: Value) -> Value:
        sequence, first = (code.item(x, 0), code.item(x, 1)) if self.from_input else (x, "None")
        if self.start is not None:
            first = code.of(self.start, "None")
        if not isinstance(self.cell, Block):
            outputs = One(code.new())
            state = code.new()
            unrolled = code.constant(self.unrolled)
            code.write(f"{outputs}, {state} = {unrolled}(fold, {joined(sequence)}, {joined(first)})")
            return outputs, state
        outputs = One(code.let("[]"))
        state = code.let(joined(first))
        item = code.new()
        output = code.new()
        with code.under(f"for {item} in {joined(sequence)}:"):
            made = code.of(self.cell, (item, state))
            pair = joined(made) if isinstance(made, tuple) else f"{code.constant(apart)}({made}, 2)"
            code.write(f"{output}, {state} = {pair}")
            code.write(f"{outputs}.append({output})")
        return outputs, state

    def unrolled(self, fold: Any, sequence: Any, state: Any) -> tuple[Any, Any]:
        """Return the list of outputs and the last state of a framework's cell; several states are a tuple.

        Without elements, ``[]`` and ``state``; raises `BlockError` if that is None.
        """
        if len(sequence):
            outputs, states = fold.unroll(self.cell, len(sequence), sequence, state)
            return outputs, states[0] if len(states) == 1 else tuple(states)
        if state is None:
            raise BlockError(
                f"Expected elements in the input of {self!r}, since only its cell knows the first state. "
                "Received none.",
                "give it initial_state=Zeros(16), which is the state behind an empty sequence as well.",
            )
        return [], state

    def infer(self, given: Known, flow: Flow) -> Known:
        state: Known = None
        if self.from_input:
            given = fitting(
                f"as the input of {self!r}", TupleType(None, None), given, "a sequence, a state."
            )
            given, state = given.items if isinstance(given, TupleType) else (given, given)
        elif self.start is not None:
            state = flow.of(self.start, VOID)
        element = element_of(self, given)
        if not isinstance(self.cell, Block):
            return TupleType(SequenceType(None), None)
        pair = flow.of(self.cell, TupleType(element, state))
        hint = "a cell returns a pair of an output and a state, which is like the state before it."
        pair = fitting(f"as the output of the cell of {self!r}", TupleType(None, state), pair, hint)
        output, state = pair.items if isinstance(pair, TupleType) else (None, state)
        return TupleType(SequenceType(output), state)
