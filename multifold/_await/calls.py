"""The table of all calls of a run: columns that grow with the recording, and what a round cuts out of them.

A round must cost what it runs, not what was recorded before it. So nothing here is made anew for a round:
`CallTable.extend` appends what was recorded since, and `CallTable.select` follows the operands of the
awaited calls back to calls that earlier rounds computed, and no further. The calls that it meets become a
small graph of their own: first the *given* calls, which were computed and are read, then those that the
round runs, renumbered from 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from multifold import _compiled
from multifold._compiled.arrays import CALL_MASK, Integers, ranges
from multifold._record.graph import Graph
from multifold._record.kinds import COLUMNS
from multifold._record.signature import Signature
from multifold._schedule.columns import NO_INTEGERS, Columns, layouts_of
from multifold._schedule.outputs import Outputs

REFS, _, FLOATS, ARRAYS, _ = range(len(COLUMNS))
"""The positions of refs, floats and arrays in `COLUMNS`."""


class Growing:
    """An array that rows are appended to; its room doubles, so that the price of a row is constant.

    Attributes
    ----------
    values : array
        A view of what was appended.
    """

    __slots__ = ("_room", "values")

    def __init__(self, dtype: Any = np.int64, width: tuple[int, ...] = (), size: int = 0) -> None:
        self._room = np.zeros((64, *width), dtype)
        self.values = self._room[:size]

    @property
    def size(self) -> int:
        """How many rows were appended."""
        return len(self.values)

    def catch_up(self, column: Any) -> None:
        """Append the end of a graph's column, which has grown since the last time."""
        first = len(self.values)
        self.grow(len(column) - first)
        # Where recording is compiled, a column is a buffer, of which NumPy makes a view.
        self.values[first:] = (column if isinstance(column, list) else np.asarray(column))[first:]

    def grow(self, count: int) -> None:
        """Append zeros."""
        size = len(self.values) + count
        if size > len(self._room):
            room = np.zeros((max(size, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype)
            room[: len(self._room)] = self._room
            self._room = room
        self.values = self._room[:size]


class Selection(NamedTuple):
    """What a round runs and reads, as `multifold._compiled` finds it.

    Attributes
    ----------
    kept : int64 array
        All calls of the round by their numbers in the table; the position is the number in the round.
    first : int
        How many of them were computed and are read: they come first.
    signature : int64 array
        The signature's number of each call.
    operands : tuple of int64 arrays
        The references of the calls that are run and where those of each begin, the integers, the lengths of
        ragged operands and where those of each begin, and the members.
    """

    kept: Integers
    first: int
    signature: Integers
    operands: tuple[Integers, ...]

    @property
    def given(self) -> Integers:
        """The calls that were computed and are read, in the order of recording."""
        return self.kept[: self.first]

    @property
    def calls(self) -> Integers:
        """The calls to be run, in the order of recording."""
        return self.kept[self.first :]


class CallTable:
    """All calls of a run so far, and where the rows of those that were computed are.

    Attributes
    ----------
    result : column of int
        The number of the stored result that holds the row of each call; 0 where no round has run it.
    row : column of int
        Which row of its result each call has.
    whole : column of bool
        Whether the whole result of each call is read, through `Node.no_batch`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._signature = Growing()
        self._values = {
            "refs": Growing(), "ints": Growing(), "floats": Growing(np.float64),
            "lengths": Growing(), "members": Growing(),
        }  # fmt: skip
        self._widths = np.zeros((0, len(COLUMNS)), np.int64)  # of each signature
        # Where the entries of each call begin in the columns of `COLUMNS`, and where the last ones end.
        self._starts = Growing(width=(len(COLUMNS),), size=1)
        self._member_starts = Growing(size=1)  # likewise the rows of each ragged operand
        self.result = Growing()
        self.row = Growing()
        self.whole = Growing(bool)
        # A call is met in a selection when `_seen` holds the number of that selection. No round has to
        # clear the column: the next one uses the next number.
        self._seen = Growing()
        self._selections = 0
        self._number = Growing()  # in the last selection that has the call
        self._has_whole = False
        # The graph's signatures, then for each of them one without operands: that of a given call.
        self._signatures: tuple[Signature, ...] = ()
        self._layouts = layouts_of(())
        self._reads_whole: list[int] = []  # the signatures with shared nodes

    def __len__(self) -> int:
        return len(self._signature.values)

    def store(self, calls: Integers, result: int, row: Integers) -> None:
        """Note which result holds the rows of some calls, and which rows these are."""
        self.result.values[calls] = result
        self.row.values[calls] = row

    def read_whole(self, calls: Integers) -> None:
        """Note that the whole results of some calls are wanted."""
        if len(calls):
            self.whole.values[calls] = self._has_whole = True

    def alone(self, selection: Selection) -> Integers:
        """Return the calls that a selection runs and whose whole results are read, as it counts them."""
        if not self._has_whole:
            return NO_INTEGERS
        return selection.first + self.whole.values[selection.calls].nonzero()[0]

    # ---- growing -------------------------------------------------------------------------------

    def extend(self) -> None:
        """Append the calls that were recorded since the last time."""
        graph, first = self.graph, len(self)
        if first == len(graph.signature):
            return
        self._signature.catch_up(graph.signature)
        for name, column in self._values.items():
            found = getattr(graph, name)
            if len(found) > len(column.values):  # most graphs have two kinds of operands
                column.catch_up(found)
        numbers = self._signature.values[first:]
        if len(self._widths) < len(graph.signatures):
            widths = [[getattr(s, name) for name in COLUMNS] for s in graph.signatures]
            self._widths = np.array(widths, np.int64)
            self._signatures = (*graph.signatures, *map(without_operands, graph.signatures))
            self._layouts = layouts_of(self._signatures)
            self._reads_whole = [i for i, s in enumerate(graph.signatures) if len(s.shared_refs)]
        self._starts.grow(len(numbers))
        starts = self._starts.values[first:]
        np.cumsum(self._widths[numbers], axis=0, out=starts[1:])
        starts[1:] += starts[0]
        ends, lengths = self._member_starts, self._values["lengths"].values
        last = ends.size - 1
        if last < len(lengths):
            ends.grow(len(lengths) - last)
            ends.values[last + 1 :] = ends.values[last] + lengths[last:].cumsum()
        for column in (self.result, self.row, self._number, self.whole, self._seen):
            column.grow(len(numbers))
        for number in self._reads_whole:
            calls = first + np.flatnonzero(numbers == number)
            at = self._starts.values[calls, REFS][:, None] + graph.signatures[number].shared_refs
            self.read_whole(self._values["refs"].values[at] & CALL_MASK)

    # ---- the entries of some calls -------------------------------------------------------------

    def _at(self, column: int, calls: Integers) -> Integers:
        """Return where the entries of some calls are in a column, one of `COLUMNS`."""
        begin = self._starts.values[calls, column]
        return ranges(begin, self._starts.values[calls + 1, column] - begin)

    # ---- the calls of a round ------------------------------------------------------------------

    def select(self, read: Integers) -> Selection:
        """Return what has to be run for some calls, and what that reads; number these calls."""
        self._selections += 1
        values = self._values
        kept, first, signature, *operands = _compiled.window(
            np.ascontiguousarray(read),
            self._selections,
            self._signature.values,
            len(self.graph.signatures),
            self._starts.values,
            values["refs"].values,
            values["ints"].values,
            values["lengths"].values,
            values["members"].values,
            self._member_starts.values,
            self.result.values,
            self._seen.values,
            self._number.values,
        )
        return Selection(kept, first, signature, tuple(operands))

    def renumbered(self, refs: Integers) -> Integers:
        """Return references with the numbers that calls have in the last selection.

        Negative ones stay: they stand for numbers and arrays, as in ragged operands.
        """
        if refs.min(initial=0) >= 0:
            return refs & ~CALL_MASK | self._number.values[refs & CALL_MASK]
        found, nodes = refs.copy(), refs >= 0
        found[nodes] = self.renumbered(refs[nodes])
        return found

    def outputs(self, asked: Outputs) -> Outputs:
        """Return what is asked for, with the numbers that calls have in the last selection."""
        groups: list[Integers | int] = []
        for group in asked.groups:
            refs = self.renumbered(np.atleast_1d(group))
            groups.append(int(refs[0]) if isinstance(group, int) else refs)
        return Outputs(groups=groups, loose=asked.loose)

    def columns(self, selection: Selection) -> Columns:
        """Return the small graph of the last selection: its given calls without operands, then the others.

        References have the numbers of the round, which count the given calls first.
        """
        graph, floats, arrays = self.graph, self._values["floats"].values, list[Any]()
        if len(floats):
            floats = floats[self._at(FLOATS, selection.calls)]
        if graph.arrays:
            arrays = [graph.arrays[i] for i in self._at(ARRAYS, selection.calls).tolist()]
        refs, ref_starts, ints, lengths, ragged_starts, members = selection.operands
        kept = selection.signature, refs, ints, floats, arrays, lengths, members
        columns = Columns(self._signatures, tuple(graph.parts), *kept, graph.loose)
        columns.know(ref_starts, ragged_starts, self._reads_whole, self._layouts)
        return columns


def without_operands(signature: Signature) -> Signature:
    """Return what stands for a signature where a call is given: its name, and no operands."""
    return Signature(signature.op, (), None, {})
