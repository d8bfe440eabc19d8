"""The hot path of recording in plain Python, and the reference of the same classes in `_recording.pyx`.

A call is recorded in one of two ways. `Recorder._record` understands every call, and refuses those
that are wrong. When it meets a *form* of call for the first time (the op, the types of the operands, the
keyword arguments), it writes down how that form goes into the columns; the *quick path* here then takes
all later calls of that form. What the quick path does not fully understand, it undoes and leaves to
`_record`, so that there is one place where calls are refused.
"""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Callable, Hashable, Sequence
from types import CodeType, FrameType, FunctionType, SimpleNamespace
from typing import Any, TypeVar

from multifold._engine.compiled.arrays import CALL_MASK
from multifold._engine.compiled.arrays import PART_BITS as PART_BITS
from multifold._engine.compiled.forms import Form, merge_key, own, quick_key, values_of
from multifold.errors import MultifoldError

Method = TypeVar("Method", bound=Callable[..., Any])

ENTRIES = ("refs", "ints", "floats", "arrays", "lengths", "members", "loose")
"""The columns of what a call's operands are."""


class NodeBase:
    """A reference and the graph that it belongs to; immutable and hashable."""

    __slots__ = ("_counted", "_graph", "_ref")

    _offsets: Callable[[int], tuple[int, ...]]
    """Returns what is added to the reference for each of so many parts."""

    _lacks: Callable[..., Any]
    """Refuses an attribute that the node does not have."""

    def __getattr__(self, name: str) -> Any:
        return type(self)._lacks(self, name)

    def __init__(self, graph: Any, ref: int) -> None:
        self._graph = graph
        self._ref = ref
        self._counted = isinstance(graph, GraphBase) and graph.hold(ref & CALL_MASK)

    def __del__(self) -> None:
        if getattr(self, "_counted", False):
            self._graph.holders[self._ref & CALL_MASK] -= 1

    def split(self, n: int) -> tuple[Any, ...]:
        """Return the ``n`` parts of a result that is a tuple or list of ``n`` entries.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> low, high = fold.add(lambda x: (x - 1, x + 1), 5).split(2)
        >>> fold([[low, high]])
        [array([4, 6])]
        """
        graph = self._graph
        ref = self._ref
        kind = type(self)
        offsets = graph.splits.get((ref >> PART_BITS, n)) or self._offsets(n)
        return tuple([kind(graph, ref + offset) for offset in offsets])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self._graph, self._ref) == (other._graph, other._ref)

    def __hash__(self) -> int:
        return hash((id(self._graph), self._ref))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._graph, self._ref)


class GraphBase:
    """The columns of a graph, and the forms of calls that the quick path knows."""

    tear: Callable[[], Exception]
    """Returns the error of calls that several threads record at once; compiled, each takes one step."""

    __slots__ = (
        "arrays", "codes", "floats", "frame", "held", "holders", "instructions", "ints", "lengths", "loose",
        "members", "merged", "node_type", "quick", "refs", "seats", "signature", "splits",
    )  # fmt: skip

    def __init__(self, node_type: type[Any], merges: bool) -> None:
        self.node_type = node_type
        self.merged: dict[Hashable, int] | None = {} if merges else None
        self.signature: list[int] = []  # a list: `array.array.append` is three times slower
        self.refs: list[int] = []
        self.ints = array("q")  # its append refuses what does not fit into 64 bits
        self.floats: list[float] = []
        self.arrays: list[Any] = []
        self.lengths: list[int] = []
        self.members: list[int] = []
        self.loose: list[Any] = []
        self.codes: list[CodeType | tuple[str, int]] = []
        self.instructions: list[int] = []
        self.holders: list[int] = []  # how many nodes of each call are alive
        # Where calls are recorded just now, if not where `add` is called: `reduce` records for its caller.
        self.frame: FrameType | None = None
        # The id of a module -> its population and its number there; None where the calls have none.
        self.seats: dict[int, tuple[Any, int]] | None = None
        self.held: dict[int, Any] = {}  # such modules by their ids: they live until their calls run
        self.quick: dict[Hashable, Form] = {}
        self.splits: dict[tuple[int, int], tuple[int, ...]] = {}

    def route(self, letters: str) -> Any:
        """Return what the quick path needs of a form: its letters, and the column of each operand.

        ``forms.py`` lists the letters. In place of a column stands None for a node, or the letter itself
        where there is more to do; all columns together are None for nodes only. ``route("nis")`` is
        ``("nis", [None, "ints", "s"])``.
        """
        columns = {"n": None, "i": "ints", "f": "floats", "a": "arrays"}
        sinks = [columns.get(letter, letter) for letter in letters]
        return letters, sinks if any(sinks) else None

    def put(self, number: int, operands: Any, frame: FrameType) -> None:
        """Append a call of signature ``number``, recorded at ``frame``.

        ``operands`` has its entries of each column as attributes, as `since` returns them. Compiled, this
        is one step: no call of another thread comes in between.
        """
        loose = len(self.loose)
        self.refs.extend(operands.refs)
        self.ints.extend(operands.ints)
        self.floats.extend(operands.floats)
        self.arrays.extend(operands.arrays)
        self.lengths.extend(operands.lengths)
        self.members.extend([ref if ref >= 0 else ref - loose for ref in operands.members])
        self.loose.extend(operands.loose)
        self.codes.append(frame.f_code)
        self.instructions.append(frame.f_lasti)
        self.signature.append(number)

    def hold(self, call: int) -> bool:
        """Count one more node of a call; return False for what is none."""
        if not 0 <= call < len(self.signature):
            return False
        self.holders.extend([0] * (call + 1 - len(self.holders)))
        self.holders[call] += 1
        return True

    def marks(self) -> list[int]:
        """Return the present length of each column in `ENTRIES`, for `since`."""
        return [len(getattr(self, name)) for name in ENTRIES]

    def since(self, marks: list[int]) -> SimpleNamespace:
        """Return what a call has put into the columns since `marks`: an object with a list for each.

        Loose values are numbered from the call's own first one.
        """
        entries = {name: getattr(self, name)[first:] for name, first in zip(ENTRIES, marks, strict=True)}
        loose = marks[ENTRIES.index("loose")]
        entries["members"] = [ref if ref >= 0 else ref + loose for ref in entries["members"]]
        return SimpleNamespace(**entries)

    def rows(self, recorder: Any, items: tuple[Any, ...]) -> bool:
        """Append the rows of a ragged operand to ``members``, and their number to ``lengths``; return True.

        A node appends its reference. A number or an array is appended to ``loose``, and stands as
        ``-1 - i``, where ``i`` is its position there. If an item is anything else, or a node of another
        graph, all is taken back and False returned.
        """
        first = len(self.members)
        kept = len(self.loose)
        members = self.members
        loose = self.loose
        for x in items:
            if type(x) is self.node_type and x._graph is self:
                members.append(x._ref)
                continue
            try:
                strange = (
                    isinstance(x, NodeBase) or (recorder._number(x) or recorder.array_class(x)) is None
                )
            except MultifoldError:
                strange = True
            if strange:
                del members[first:], loose[kept:]
                return False
            loose.append(x)
            # Loose value i of the graph stands as the row -1 - i.
            members.append(-len(loose))
        self.lengths.append(len(items))
        return True

    def leaves(self, items: Sequence[Any]) -> bool:
        """Append the items of a list or tuple, nodes, ints and floats, to their columns, and return True.

        Returns False, and appends nothing, if one is a node of another graph or an int of more than 64
        bits.
        """
        for i, x in enumerate(items):
            try:
                if type(x) is float:
                    self.floats.append(x)
                elif not isinstance(x, NodeBase):
                    self.ints.append(x)
                elif x._graph is self:
                    self.refs.append(x._ref)
                else:
                    # As for an int of more than 64 bits: what was put is taken back below, and `_record`
                    # finds out what is wrong.
                    raise OverflowError
            except OverflowError:
                self.take_back_leaves(items[:i])
                return False
        return True

    def take_back_leaves(self, items: Sequence[Any]) -> None:
        """Remove the last entries of the columns, those of the items of a list or tuple."""
        for x in items:
            (self.floats if type(x) is float else self.refs if isinstance(x, NodeBase) else self.ints).pop()

    def take_back(self, letters: str, operands: tuple[Any, ...], refused: Any) -> None:
        """Remove what a call put into the columns for its operands before ``refused``, or for all of them.

        All are removed if ``refused`` is none of its operands.
        """
        columns: dict[str, Any] = {"n": self.refs, "i": self.ints, "f": self.floats, "a": self.arrays}
        for letter, x in zip(letters, operands, strict=True):
            if x is refused:
                break
            if letter == "l":
                self.take_back_leaves(x)
            elif letter == "r":
                for _ in range(self.lengths.pop()):
                    if self.members.pop() < 0:
                        self.loose.pop()
            elif letter in columns:
                columns[letter].pop()


class RecorderBase:
    """The quick path: calls of known forms go into the columns, all others to `Recorder._record`."""

    _graph: Any
    _record: Callable[..., Any]
    _value: Callable[[Any], Hashable]

    def add(self, op: str | Callable[..., Any], /, *operands: Any, **static: Any) -> Any:
        """Record one call of ``op`` and return its node, as `multifold.Fold.add` says."""
        graph = self._graph
        given = operands
        # The frame says the line of the call, in case an error names it later.
        frame = sys._getframe(1) if graph.frame is None else graph.frame
        try:
            key = quick_key(op, operands, static) if static else (op, *map(type, operands))
            form = None
            seat = None if graph.seats is None else graph.seats.get(id(op))
            if seat is not None:
                form = graph.quick.get((seat[0], *key[1:]))
            if form is None:  # no module, or one with operands that only itself takes
                form, seat = graph.quick.get(key), None
            if form is not None:
                (letters, sinks), number, table = form
                if table is not None:
                    number = table.get(values_of(self, letters, operands))
                if seat is not None:  # the number of the module follows its operands
                    letters += "i"
                    sinks = [*(sinks or [None] * len(operands)), "ints"]
                    operands = (*operands, seat[1])
                    graph.held[id(op)] = op
        except (TypeError, ValueError, MultifoldError):  # not hashed, or refused: `_record` says why
            form = None
        if form is None or number is None:
            return self._record(op, given, static, frame)
        refs = graph.refs
        column = graph.signature
        call = len(column)
        marks = None if graph.merged is None else graph.marks()
        kept = len(graph.loose)
        try:
            if sinks is None:  # nodes only
                for x in operands:
                    if x._graph is not graph:
                        raise OverflowError
                    refs.append(x._ref)
            else:
                for x, sink in zip(operands, sinks):  # noqa: B905 - of one length; the hot loop
                    if sink is None:
                        if x._graph is not graph:
                            raise OverflowError
                        refs.append(x._ref)
                    elif sink == "arrays":
                        graph.arrays.append(x)
                    elif len(sink) > 1:  # a number of NumPy is kept as one of Python
                        getattr(graph, sink).append(float(x) if sink == "floats" else operator.index(x))
                    elif (sink == "r" and not graph.rows(self, x.items)) or (
                        sink == "l" and not graph.leaves(x)
                    ):
                        raise OverflowError
        except (OverflowError, TypeError):
            graph.take_back(letters, operands, x)
            return self._record(op, given, static, frame)
        # Another thread has recorded a call in the meantime, and the operands of both lie mixed in the
        # columns.
        if len(column) > call:
            raise graph.tear()
        if marks is not None:
            # An equal call is only found by its entries in the columns, so they are put first and taken
            # back if there is one.
            first = graph.merged.setdefault(merge_key(self, number, graph.since(marks)), call)
            if first < call:
                graph.take_back(letters, operands, self)  # no operand is `self`, so all are taken back
                return graph.node_type(graph, first)
        if len(graph.loose) > kept:
            graph.loose[kept:] = map(own, graph.loose[kept:])
        if "a" in letters:  # the caller may change a NumPy array before the run
            count = letters.count("a")
            graph.arrays[-count:] = map(own, graph.arrays[-count:])
        column.append(number)
        graph.codes.append(frame.f_code)
        graph.instructions.append(frame.f_lasti)
        return graph.node_type(graph, call)


def recorded(method: Method) -> Method:
    """Return a function that does what `RecorderBase.add` does, with the documentation of ``method``.

    The body of the method never runs: a class that shows its readers what `add` takes has such a method. A
    call of the function costs what a call of `RecorderBase.add` costs: a function around that would take as
    long again.
    """
    same: Any = FunctionType(RecorderBase.add.__code__, globals(), "add")
    same.__doc__ = method.__doc__
    same.__qualname__ = method.__qualname__
    return same
