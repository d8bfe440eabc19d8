"""The store of results: what the launches of earlier rounds returned, as long as a node can ask for it.

Each launch leaves a result with a row for each of its calls. Three things keep the store fast in runs of
many rounds:

- A result that is read sparsely is *divided*. The backward pass of a read fills the gradient of the whole
  result that is read. If 1,000 rounds read 5 rows each of a result of 5,000 rows, they would fill five
  million rows. Divided in 8 results, and each of these in 8 again where the reads are sparser still, a
  round touches a fixed multiple of the rows that it reads.
- Small results that are read together are *put together*. After 10 rounds, an example's states lie in 10
  results of a few rows; each of them would cost the reading launch a gather.
- Results that no node can ask for any more are *swept*, which needs to know the nodes that the user still
  holds (`multifold._await.held_nodes`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifold import _compiled
from multifold._await.calls import CallTable
from multifold._await.held_nodes import HeldNodes
from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._record.node import Node
from multifold._run.run import Run
from multifold._run.values import CONTAINERS, PARTS_HINT, Values, follow, leaves_of, opened, steps_to
from multifold.errors import LaunchError, RecordError

SPARSE = 8
"""A result is divided when a round reads less than one row in this many, in as many parts of its rows."""

SMALL = 4096
"""Rows of a result that is not divided: reading each of 8 short ones would take longer than the whole."""

PAGE = 1024
"""Rows up to which small results are put together."""

MANY = 10_000
"""Calls that are recorded between two sweeps; see `multifold._await.held_nodes` for the price of one."""

HEAVY = 1 << 24
"""Numbers that the results may hold before the next sweep: 64 MB of float32."""


@dataclass(slots=True)
class Stored:
    """The result of a launch, or some rows of one, or the rows of several.

    Attributes
    ----------
    value : object
        An array, or a container of arrays.
    rows : int
        How many rows it has. Not the number of calls: all calls of an op without batched operands have
        one row in common.
    calls : int64 array
        The calls of its rows, in the order of the rows; `CallTable.row` says which row each of them has.
    """

    value: Any
    rows: int
    calls: Integers
    _row_class: Hashable = None

    def row_class(self, values: Values) -> Hashable:
        """Return what results must have in common to be put together; found out once."""
        if self._row_class is None:
            self._row_class = values.class_of(self.value)
        return self._row_class


class Store:
    """The results that hold the rows of computed calls, by number; `CallTable.result` refers to them.

    Numbers begin at 1 and are never used again.
    """

    def __init__(self, table: CallTable) -> None:
        self.table = table
        self.results: dict[int, Any] = {}  # each a `Stored`, or a page of a server
        self._next = 1
        self._nodes = HeldNodes(table.graph)
        self._swept = 0  # calls that had been recorded at the last sweep
        self._held = self._held_before = 0  # numbers in all results now, and right after the last sweep

    # ---- keeping -------------------------------------------------------------------------------

    def keep(self, calls: Integers, first: int, run: Run) -> None:
        """Keep the results of a round that was run.

        Parameters
        ----------
        calls : int64 array
            The number in the table of each call of the round.
        first : int
            The number of the first launch; those before it are results that the round was given.
        run : Run
            The round.
        """
        place = run.place
        for number, members in enumerate(run.notes.calls, start=first):
            if number in run.results:
                value = run.results[number]
                rows = place.rows[number]
                own = calls[members]
                known = run.notes.classes.get((number, 0))  # where the round has read all of it
                if rows > 1 or not self._is_whole(rows, own):
                    value = opened(value)
                self.add(value, rows, own, place.row[members], known)

    def _is_whole(self, rows: int, calls: Integers) -> bool:
        """Return whether a result is read whole: `Node.no_batch` gives the object that the op returned."""
        return rows == 1 and self.table.is_whole(calls)

    def add(
        self, value: Any, rows: int, calls: Integers, row: Integers, row_class: Hashable = None
    ) -> None:
        """Store a result, which has ``row[i]`` for ``calls[i]``."""
        self.results[self._next] = Stored(value, rows, calls, row_class)
        self.table.store(calls, self._next, row)
        self._next += 1
        self._held += numbers_in(value)

    # ---- reading -------------------------------------------------------------------------------

    def settle(self, numbers: Integers, counts: Integers, given: Integers, last: Values | None) -> bool:
        """Divide results that a round reads, and put them together; return whether rows have moved.

        Parameters
        ----------
        numbers, counts : int64 arrays
            The results, and how many calls the round reads of each.
        given : int64 array
            These calls.
        last : Values or None
            How the last round divides results and puts them together; None before there was any round,
            and then there are no results either.
        """
        if last is None:
            return False
        before = self._next
        self._divide_sparse(numbers, counts, given, last)
        if self._next != before:
            numbers, *_ = _compiled.distinct(self.table.result[given])
        self._put_together(numbers.tolist(), last)
        return self._next != before

    def rows(self, numbers: Integers) -> list[int]:
        """Return how many rows some results have."""
        return [self.results[number].rows for number in numbers.tolist()]

    def values(self, numbers: Integers) -> dict[int, Any]:
        """Return what is stored under some numbers, by position."""
        return {i: self.results[number].value for i, number in enumerate(numbers.tolist())}

    def parts(self, refs: Integers) -> list[Any]:
        """Return the parts of results that hold the rows of some references, each of them once."""
        numbers = self.table.result[refs & CALL_MASK].tolist()
        parts = (refs >> PART_BITS).tolist()
        return [opened(self._part(*key)) for key in dict.fromkeys(zip(numbers, parts, strict=True))]

    def _part(self, number: int, part: int) -> Any:
        """Return a part of a result; refuse one that is not there, or holds nothing."""
        graph = self.table.graph
        call = int(self.results[number].calls[0])

        def refuse(what: str) -> LaunchError:
            result = f"The result of {Node(graph, call)!r}, recorded at {graph.site(call)}"
            return LaunchError(f"{result}, {what}.", PARTS_HINT)

        value = follow(self.results[number].value, steps_to(graph.parts, part), refuse)
        if value is None:
            raise refuse("holds nothing in a part that is read")
        return value

    def refuse_batched(self, calls: Integers) -> None:
        """Refuse to read whole what was computed in a launch with others."""
        graph = self.table.graph
        for call in calls.tolist():
            number = int(self.table.result[call])
            if number and self.results[number].rows > 1:
                raise RecordError(
                    f"The result of {Node(graph, call)!r}, recorded at {graph.site(call)}, is read "
                    "through no_batch(), but it was computed in a launch with others, for a value that was "
                    "awaited before.",
                    "call no_batch(), and pass it on, before anything that needs the node is awaited; with "
                    "cse=True an equal call is the same node.",
                )

    # ---- dividing, putting together, sweeping --------------------------------------------------

    def _divide_sparse(self, numbers: Integers, counts: Integers, given: Integers, last: Values) -> None:
        """Divide the results of which a round reads few rows, until none of them is too sparse."""
        while True:  # no walrus: AutoGraph would rewrite such a loop into one that fails
            sparse = [
                number
                for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
                if self.results[number].rows > max(SMALL, SPARSE * count)
            ]
            if not sparse:
                return
            for number in sparse:
                self._divide(number, last)
            numbers, _, counts = _compiled.distinct(self.table.result[given])

    def _divide(self, number: int, last: Values) -> None:
        """Store each of `SPARSE` stretches of rows as a result of its own."""
        stored = self.results.pop(number)
        row = self.table.row[stored.calls]  # ascending, as the calls are in the order of the rows
        bounds = np.linspace(0, stored.rows, SPARSE + 1).astype(np.int64)
        sizes = np.diff(bounds).tolist()
        begin = np.searchsorted(row, bounds).tolist()
        for i, value in enumerate(last.split(stored.value, sizes)):
            mine = slice(begin[i], begin[i + 1])
            self.add(value, sizes[i], stored.calls[mine], row[mine] - bounds[i])

    def _put_together(self, numbers: Sequence[int], last: Values) -> None:
        """Put small results that are read together, and whose rows fit together, into one."""
        if last.backend.pads:
            return  # it compiles for each number of rows, and these would be new in every round
        pages: dict[Hashable, list[int]] = {}
        heights: dict[Hashable, int] = {}
        for number in numbers:
            stored = self.results[number]
            if stored.rows > PAGE // 2 or self._is_whole(stored.rows, stored.calls):
                continue
            row_class = stored.row_class(last)
            height = heights.get(row_class, 0) + stored.rows
            if height <= PAGE:
                heights[row_class] = height
                pages.setdefault(row_class, []).append(number)
        for row_class, page in pages.items():
            if len(page) < 2:
                continue
            small = [self.results.pop(number) for number in page]
            end = 0
            row = []
            for stored in small:
                row.append(self.table.row[stored.calls] + end)
                end += stored.rows
            calls = np.concatenate([stored.calls for stored in small])
            value = last.concat([stored.value for stored in small])
            self.add(value, end, calls, np.concatenate(row), row_class)

    def keep_only(self, wanted: np.ndarray, first: int = 0) -> None:
        """Drop the results of which no call is wanted.

        A call of a dropped result counts as one that has not run: if anything asks for it, it runs again.

        Parameters
        ----------
        wanted : bool array
            Whether each call of the table is wanted, from the ``first`` one on.
        first : int
            No call before it is wanted.
        """
        stored = [(number, x.calls) for number, x in self.results.items() if isinstance(x, Stored)]
        for number, calls in stored:
            if not wanted[calls[calls >= first] - first].any():
                del self.results[number]
                self.table.store(calls, 0, np.zeros_like(calls))

    @property
    def used(self) -> int:
        """How many results are kept."""
        return len(self.results)

    @property
    def held(self) -> int:
        """How many numbers the results hold."""
        return self._held

    def clear(self) -> None:
        """Drop all results."""
        self.results = {}

    def sweep(self) -> None:
        """Drop the results that no node can ask for any more, now and then.

        A result is read again only through a node that the user still holds, or through a call that has
        not run yet and that such a node needs. Many calls lie between two sweeps, or results of twice as
        many numbers as were left after the last one.
        """
        heavy = self.held > max(HEAVY, 2 * self._held_before)
        if not heavy and len(self.table.graph.signature) - self._swept < MANY:
            return
        if not self._nodes.are_known:
            return
        self.table.extend()  # a call that was recorded since the last round may need a result
        self._swept = len(self.table)
        calls = np.unique(self._nodes.calls())
        calls = calls[calls < len(self.table)]
        wanted = np.zeros(len(self.table), bool)
        wanted[self.table.select(calls).given] = True
        self.keep_only(wanted)
        self._held = sum(numbers_in(x.value) for x in self.results.values() if isinstance(x, Stored))
        self._held_before = self.held


def numbers_in(value: Any) -> int:
    """Return how many numbers the arrays of a value hold; 0 where no shape is known."""
    try:
        if not isinstance(value, CONTAINERS):
            return math.prod(getattr(value, "shape", (0,)))
        return sum(math.prod(getattr(leaf, "shape", (0,))) for leaf in leaves_of(value))
    except (TypeError, ValueError):  # while TensorFlow draws a graph
        return 0
