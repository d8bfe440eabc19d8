"""What was recorded: each call once, as integers in flat columns.

`Recorder.add` is the hot path of the library: a quick one for calls of a form that was met before
(`multifold._compiled.plain`, or the same in C), and `Recorder._record` for all others. A call appends its
signature's number and one integer for each node operand; numbers and leaf arrays go to columns of
their own. Nothing is an object a call besides the `Node` that the caller keeps. A *reference* to a value
is one integer, the call and the part of its result: ``part << PART_BITS | call``, so that the whole
result of a call is the call's own number.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from time import perf_counter
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, NoneType
from typing import Any, NoReturn

import numpy as np
import optree

from multifold._compiled.native import GraphBase, NodeBase, RecorderBase
from multifold._compiled.plain import PART_BITS as PART_BITS
from multifold._compiled.plain import own, quick_key, values_of
from multifold._record.kinds import (
    ARRAY,
    LETTERS,
    NODE,
    NUMBERS,
    RAGGED,
    SHARED,
    SHARED_NODE,
    STATIC,
    number_type,
)
from multifold._record.signature import BOUND, Identity, Signature, Slot, freeze, snapshot
from multifold.errors import BackendError, RecordError
from multifold.operands import RaggedOperand, Shared, Static

CALL_MASK = (1 << PART_BITS) - 1


def users_frame() -> FrameType:
    """Return the innermost frame that is not of this package: the line of the user."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("multifold.") and frame.f_back is not None:
        frame = frame.f_back
    return frame


class Part:
    """A place inside a result: the keys that lead there, and the length that `split` promised."""

    __slots__ = ("length", "parent", "path")

    def __init__(self, path: tuple[Any, ...], parent: int, length: int | None) -> None:
        self.path = path
        self.parent = parent
        self.length = length


class Graph(GraphBase):
    """The calls of a fold or of a trace, as columns.

    Attributes
    ----------
    signatures : list of Signature
        The distinct signatures, by number.
    signature : column of int
        The signature's number of each call.
    refs, ints, floats, arrays, lengths : columns
        Operands of all calls one after the other; a signature says how many a call has of each.
    members : column of int
        The rows of ragged operands: references, or ``-1 - i`` for entry ``i`` of ``loose``.
    loose : list
        Numbers and leaf arrays inside ragged operands.
    codes : list of code
        Where each call was recorded: the code object and the instruction; `line` looks the line up.
        In a graph that was pickled, the file and the line.
    instructions : column of int
    copies : dict of Identity to array
        Large shared NumPy arrays, and the copy of each that was made when it was recorded.
    compared : int
        How many calls there were when arrays and copies were compared for the last time.
    began : float
        When the first call was recorded, in seconds of `time.perf_counter`.

    A column of numbers has the buffer protocol, so it becomes an array in one copy; ``arrays``, ``loose``
    and ``codes`` are lists.
    """

    __slots__ = ("began", "compared", "copies", "keys", "part_numbers", "parts", "signatures", "warned")

    def __init__(self) -> None:
        super().__init__(Node)
        self.signatures: list[Signature] = []
        self.keys: dict[Hashable, int] = {}
        self.parts: list[Part] = [Part((), 0, None)]
        self.part_numbers: dict[Hashable, int] = {}
        self.copies: dict[Identity, np.ndarray] = {}
        self.compared = 0
        self.warned = False
        self.began = perf_counter()

    def part(self, parent: int, key: Any, length: int | None = None) -> int:
        """Return the number of the part ``key`` of a part."""
        known = (parent, freeze(key), length)
        number = self.part_numbers.get(known)
        if number is None:
            number = self.part_numbers[known] = len(self.parts)
            self.parts.append(Part((*self.parts[parent].path, key), parent, length))
        return number

    def line(self, call: int) -> tuple[str, int]:
        """Return the file and the line where a call was recorded."""
        code = self.codes[call]
        if isinstance(code, tuple):
            return code
        return code.co_filename, line_of(code, self.instructions[call])

    def lines(self) -> list[tuple[str, int]]:
        """Return the file and the line of each call."""
        sites = list(zip(map(id, self.codes), self.instructions, strict=True))
        first = {site: call for call, site in reversed(list(enumerate(sites)))}
        known = {site: self.line(call) for site, call in first.items()}
        return [known[site] for site in sites]

    def site(self, call: int) -> str:
        """Return ``file:line`` where the call was recorded."""
        file, line = self.line(call)
        return f"{file}:{line}"

    def recorded_at(self, frame: FrameType, first: int) -> None:
        """Say that the calls from ``first`` on were recorded where a frame is."""
        for call in range(first, len(self.codes)):
            self.codes[call] = frame.f_code
            self.instructions[call] = frame.f_lasti

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what can be pickled: lines instead of code objects, and nothing of the quick path."""
        columns = {name: getattr(self, name) for name in LISTS}
        columns |= {name: np.array(getattr(self, name)) for name in NUMERIC}
        columns["codes"] = self.lines()
        return Graph, (), (columns, {name: getattr(self, name) for name in Graph.__slots__})

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        columns, others = state
        for name, values in columns.items():
            getattr(self, name).extend(values if name in LISTS else values.tolist())
        for name, value in others.items():
            setattr(self, name, value)


NUMERIC = ("signature", "refs", "ints", "floats", "lengths", "members", "instructions")
LISTS = ("arrays", "loose", "codes")


@lru_cache(maxsize=4096)
def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction: twice as cheap as asking the frame while recording."""
    for low, high, line in code.co_lines():
        if low <= instruction < high and line is not None:
            return line
    return code.co_firstlineno


class Node(NodeBase):
    """One recorded call, or a part of its result. Immutable and hashable.

    `split` and ``[...]`` name the parts of a tuple, list or dictionary; `no_batch` gives a view whose
    consumers get the whole result.
    """

    __slots__ = ()

    def _offsets(self, n: int) -> tuple[int, ...]:
        """Return what is added to the reference for each of ``n`` parts."""
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise RecordError(
                f"Expected split(n) with n of at least 1. Received n={n!r}.",
                "n is the number of entries of the tuple or list that the op returns.",
            )
        graph, part = self._graph, self._ref >> PART_BITS
        numbers = (graph.part(part, i, int(n)) for i in range(n))
        offsets = tuple((number - part) << PART_BITS for number in numbers)
        graph.splits[part, n] = offsets
        return offsets

    def __getitem__(self, key: int | str | slice) -> Node:
        """Return the part ``key`` of a result that is a tuple, list or dictionary."""
        if isinstance(key, bool) or not isinstance(key, (int, str, slice, np.integer)):
            raise RecordError(
                f"Expected an int, a str or a slice in node[...]. Received {key!r}.",
                "node[...] names a part of a tuple, list or dict result; index arrays inside an op.",
            )
        key = int(key) if isinstance(key, np.integer) else key
        part = self._graph.part(self._ref >> PART_BITS, key)
        return type(self)(self._graph, part << PART_BITS | self._ref & CALL_MASK)

    def no_batch(self) -> Node:
        """Return a view whose consumers get the whole result, once for the whole launch.

        The op behind it runs in a launch of its own, and its result may have any shape.

        Examples
        --------
        >>> import multifold, numpy as np
        >>> fold = multifold.Fold(backend="numpy")
        >>> table = fold.add(lambda *rows: np.concatenate(rows), 5, 6, 7).no_batch()
        >>> fold([[fold.add(lambda t, i: t[i], table, i) for i in (2, 0)]])
        [array([7, 5])]
        """
        return SharedNode(self._graph, self._ref)

    def __iter__(self) -> NoReturn:
        raise RecordError(
            f"A {self!r} can't be iterated: how many parts its result has is not known yet.",
            "use .split(n), as in `h, c = node.split(2)`.",
        )

    def __contains__(self, item: object) -> NoReturn:
        iter(self)

    def __bool__(self) -> NoReturn:
        raise RecordError(
            f"A {self!r} has no truth value: it stands for a result that was not computed yet.",
            "compare with None (`if node is not None`), or decide on the input.",
        )

    def __repr__(self) -> str:
        call = self._ref & CALL_MASK
        path = "".join(f"[{key!r}]" for key in self._graph.parts[self._ref >> PART_BITS].path)
        name = self._graph.signatures[self._graph.signature[call]].name
        return f"<node {call} of {name}{path}{self._flag}>"

    _flag = ""


class SharedNode(Node):
    """A view of a node whose consumers get the whole result; made by `Node.no_batch`."""

    __slots__ = ()
    _flag = ".no_batch()"


CONSTANT = frozenset({int, bool, str, bytes, NoneType, type, FunctionType, BuiltinFunctionType})
"""Types of keyword arguments that are the same for the signature where they are equal."""


def merges_by(x: Any) -> Hashable:
    """Return what two rows must have in common to be one: being one array that has not changed since."""
    if number_type(x) is not None:
        return freeze(x)
    return Identity(x), freeze(x) if isinstance(x, np.ndarray) else None


def refuse_awaitable(x: Any) -> None:
    """Refuse what has to be awaited before it is anything."""
    if inspect.isawaitable(x):
        raise RecordError(
            f"Expected a node, an array or a number. Received a {type(x).__qualname__}.",
            "`await` it first, inside of an `async def`.",
        )


def refuse_masked(x: np.ndarray) -> None:
    """Refuse an array with a mask, which its rows would lose where they are put together."""
    if type(x) is not np.ndarray and hasattr(x, "mask"):
        raise RecordError(
            f"Expected an array without a mask. Received a {type(x).__qualname__}.",
            "pass x.filled(0) and, as an operand of its own, ~x.mask.",
        )


def note_orders(operands: Iterable[Any], found: list[tuple[Any, ...]]) -> None:
    """Note the order of the keys of each mapping in nested operands."""
    for x in operands:
        if isinstance(x, dict):
            found.append(tuple(x))
            note_orders(x.values(), found)
        elif isinstance(x, (list, tuple)):
            note_orders(x, found)


def compares_by_identity(op: Any) -> bool:
    """Return whether an op is equal only to itself, or to the same method of the same object."""
    kind: Any = type(op)
    by_identity = kind.__eq__ is object.__eq__ and kind.__hash__ is not None
    return isinstance(op, str) or kind in BOUND or by_identity


class Recorder(RecorderBase):
    """The recording half of `multifold.Fold`: calls go in, nodes come out."""

    _graph: Graph
    _cse: dict[Hashable, int] | None = None

    def array_class(self, x: Any) -> Hashable | None:
        """Return what leaf arrays must have in common to share a launch; None if ``x`` is none.

        Raises
        ------
        RecordError
            If the array has other than one row.
        """
        raise NotImplementedError

    def shared_key(self, x: Any) -> Hashable:
        """Return what makes a shared value the same in two calls."""
        return Identity(x) if number_type(x) is None else freeze(x)

    def shared_value(self, x: Any) -> Any:
        """Return a shared value as it is kept: one that is compared by identity stays the same object."""
        return x

    def _kept(self, slot: Slot) -> Slot:
        """Return the slot of a shared value as a signature keeps it."""
        return Slot(slot.kind, slot.key, self.shared_value(slot.value))

    def __len__(self) -> int:
        """The number of recorded calls."""
        return len(self._graph.signature)

    def _value(self, x: Any) -> Hashable | None:
        """Return what `_Call.slot` finds as the key of an array, a shared or a static operand."""
        if type(x) is Shared:
            return self.shared_key(x.value)
        return freeze(x.value) if type(x) is Static else self.array_class(x)

    def _refuse_int(self, number: int) -> NoReturn:
        raise RecordError(
            f"Expected an int operand of at most 64 bits. Received {number}.",
            "multifold.static(x) passes it as it is.",
        )

    def _refuse(self, node: Node) -> NoReturn:
        raise RecordError(
            f"The operand {node!r} belongs to another fold, or to this one before its reset().",
            "record all calls of a minibatch with one fold.",
        )

    def _record(self, op: Any, operands: tuple[Any, ...], static: dict[str, Any], frame: Any) -> Node:
        """Record a call of any form; the first call of a plain form opens the quick path to it."""
        if not isinstance(op, str) and not callable(op):
            raise RecordError(
                f"Expected op to be a name or a callable. Received op={' '.join(repr(op).split())[:60]}.",
                "op is looked up on the model when applied: 'compose', 'encoder.cell', ...",
            )
        graph = self._graph
        call = _Call(self, graph)
        if not any(isinstance(x, (tuple, list, dict)) for x in operands):
            leaves, structure = list(operands), None
        else:
            leaves, structure = optree.tree_flatten(list(operands), none_is_leaf=True)
        slots = tuple([call.slot(x) for x in leaves])
        op_key = op if isinstance(op, str) else freeze(op)
        ordered = dict(sorted(static.items()))  # the order of keywords is none of an op's business
        orders: list[tuple[Any, ...]] = []
        if structure is not None:
            note_orders(operands, orders)  # which an op can see, and optree's structures leave out
        key = (op_key, structure, tuple(orders), slots, freeze(ordered) if static else None)
        number = graph.keys.get(key)
        if number is None:
            number = graph.keys[key] = len(graph.signatures)
            slots = tuple([self._kept(slot) if slot.kind is SHARED else slot for slot in slots])
            kept = {name: snapshot(value) for name, value in ordered.items()}
            graph.signatures.append(Signature(op, slots, structure, kept, key))
        if self._cse is not None:
            first = self._cse.setdefault((number, *call.identity()), len(graph.signature))
            if first < len(graph.signature):
                return Node(graph, first)
        elif compares_by_identity(op):
            self._open(op, operands, static, number)
        call.commit()
        graph.signature.append(number)
        graph.codes.append(frame.f_code)
        graph.instructions.append(frame.f_lasti)
        return Node(graph, len(graph.signature) - 1)

    def _open(self, op: Any, operands: tuple[Any, ...], static: dict[str, Any], number: int) -> None:
        """Let the quick path take calls of this form, if it can: their signature has this number."""
        known = list(map(self._letter, operands))
        if None in known or not all(type(x) in CONSTANT for x in static.values()):
            return
        letters = "".join(map(str, known))
        values = values_of(self, letters, operands)
        quick, key = self._graph.quick, quick_key(op, operands, static)
        if key not in quick:
            quick[key] = self._graph.route(letters), number, {} if values else None
        table = quick[key][2]
        if table is not None:
            table[values] = number

    def _letter(self, x: Any) -> str | None:
        """Return how the quick path handles operands of the type of ``x``; None if it does not."""
        kind = type(x)
        if kind in LETTERS:
            return LETTERS[kind]
        if isinstance(x, Node):
            return NODE.letter
        if issubclass(kind, (np.integer, np.floating)):
            return "i" if issubclass(kind, np.integer) else "f"
        if kind in (list, tuple):
            return "l" if all(isinstance(item, Node) or type(item) in NUMBERS for item in x) else None
        is_array = number_type(x) is None and not isinstance(x, dict) and self.array_class(x) is not None
        return ARRAY.letter if is_array else None


class _Call:
    """The operands of one call, sorted into columns; nothing is recorded before `commit`."""

    __slots__ = ("arrays", "floats", "graph", "ints", "lengths", "loose", "members", "recorder", "refs")

    def __init__(self, recorder: Recorder, graph: Graph) -> None:
        self.recorder = recorder
        self.graph = graph
        self.refs: list[int] = []
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.arrays: list[Any] = []
        self.lengths: list[int] = []
        self.members: list[int] = []
        self.loose: list[Any] = []

    def commit(self) -> None:
        """Append the operands to the graph's columns."""
        graph = self.graph
        if not graph.signature:
            graph.began = perf_counter()
        first = len(graph.loose)
        graph.refs.extend(self.refs)
        graph.ints.extend(self.ints)
        graph.floats.extend(self.floats)
        graph.arrays.extend(map(own, self.arrays))
        graph.lengths.extend(self.lengths)
        graph.members.extend([ref if ref >= 0 else ref - first for ref in self.members])
        graph.loose.extend(map(own, self.loose))

    def identity(self) -> Iterator[Hashable]:
        """Yield what two calls of one signature must have in common to be merged."""
        yield tuple(self.refs)
        yield tuple(self.ints)
        yield tuple([x.hex() for x in self.floats])
        yield tuple(map(merges_by, self.arrays))
        yield tuple(self.lengths)
        yield tuple(self.members)
        yield tuple(map(merges_by, self.loose))

    def reference(self, node: Node) -> int:
        """Return the node's reference; refuse a node of another graph."""
        if node._graph is not self.graph:
            self.recorder._refuse(node)
        return node._ref

    def number(self, x: Any) -> type | None:
        """Return the type of a number and check that it fits; None for anything else."""
        number = number_type(x)
        if number is int and not -(2**63) <= int(x) < 2**63:
            self.recorder._refuse_int(x)
        return number

    def slot(self, x: Any) -> Slot:
        """Sort one leaf operand into its column and return its slot in the signature."""
        if isinstance(x, Node):
            self.refs.append(self.reference(x))
            return Slot(SHARED_NODE if isinstance(x, SharedNode) else NODE)
        number = self.number(x)
        if number is not None:
            if number is float:
                self.floats.append(float(x))
            else:
                self.ints.append(int(x))
            return Slot(NUMBERS[number])
        if x is None or isinstance(x, str):
            return Slot(STATIC, freeze(x), x)
        if isinstance(x, Shared):
            return Slot(SHARED, self.recorder.shared_key(x.value), x.value)
        if isinstance(x, Static):
            return Slot(STATIC, freeze(x.value), snapshot(x.value))
        if isinstance(x, RaggedOperand):
            return self.ragged_slot(x)
        if isinstance(x, np.generic):
            raise RecordError(
                f"Expected an int, a float or a bool as a number. Received a {type(x).__qualname__}.",
                "`np.reshape(x, (1,))` is an array of one row, `multifold.static(x)` passes it as it is.",
            )
        array_class = self.recorder.array_class(x)
        if array_class is not None:
            self.arrays.append(x)
            return Slot(ARRAY, array_class, array_class)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            raise BackendError(
                f"The operand is an array of type {type(x).__module__}.{type(x).__qualname__}, which "
                "belongs to no backend that is installed here.",
                "install the adapter of its framework (`multifold backends` lists them).",
            )
        refuse_awaitable(x)
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                "Expected a node, an array, a number or a hashable value as an operand. "
                f"Received a {type(x).__qualname__}.",
                "multifold.static(x) passes it as it is.",
            ) from None
        return Slot(STATIC, freeze(x), x)

    def ragged_slot(self, operand: RaggedOperand) -> Slot:
        """Sort the rows of a ragged operand."""
        for x in operand.items:
            if isinstance(x, SharedNode):
                raise RecordError(
                    f"Expected nodes, numbers or arrays of one row in ragged(...). Received {x!r}.",
                    "leave .no_batch() out: each item of a ragged operand is one row.",
                )
            if isinstance(x, Node):
                self.members.append(self.reference(x))
            elif self.number(x) is not None or self.recorder.array_class(x) is not None:
                self.loose.append(x)
                self.members.append(-len(self.loose))
            else:
                raise RecordError(
                    "Expected nodes, numbers or arrays of one row in ragged(...). "
                    f"Received a {type(x).__qualname__}.",
                    "each item is one row; nest operands that have several parts around ragged(...).",
                )
        self.lengths.append(len(operand.items))
        return Slot(RAGGED, operand.row_shape, operand.row_shape)
