"""Pages: the rows of all rounds so far, in arrays that stay from round to round.

`multifold._await.store` keeps the result of each launch by itself, so a launch of calls at different steps
reads from dozens of results and has to put them together. Here results that a later round reads, or may
read, are written into *pages* instead: one page for all results of a form, an array or a flat tuple of
arrays whose rows fit together. Then an operand is one gather, whatever launches its rows come from, and the
rows of a server's request are free when it ends.

A page of results ``(h, c)`` of width 2. Two launches of two and one rows were written, and then the request
with row 1 has ended, so that the next launch takes its row:

======  =========  =========  =============
row     ``h``      ``c``      of
======  =========  =========  =============
0       0.1  0.2   0.5  0.6   call 3
1       0.7  0.1   0.3  0.2   call 5, ended
2       0.4  0.9   0.8  0.7   call 8
======  =========  =========  =============

Only a framework that writes rows without a copy of the page has pages (`multifold.backend.Backend.puts`),
and only where no gradient is wanted: a write would cost the backward pass such a copy.

A framework that compiles for each number of rows (`Backend.pads`) reads and writes in padded sizes. What is
too much reads the last row again and writes to row 0 of the page, which no call has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any, final

import numpy as np
import optree

from multifold import _compiled
from multifold._await.calls import CallTable
from multifold._await.fetch import LEAF, HostRows
from multifold._await.store import Store, Stored, numbers_in
from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._run.values import Values, steps_to
from multifold.backend import Backend

ROWS = 256
"""So many rows a new page may have, however long they are."""

NUMBERS = 1 << 18
"""Numbers for which a new page may have room: 1 MB of float32."""

SPARE = 0
"""The row of a page that no call has where launches are padded: their surplus rows are written there."""


@final
class Page:
    """All rows of results of one form.

    Attributes
    ----------
    number : int
        What `CallTable.result` calls it.
    leaves : list of arrays
        Of shapes ``(rows, *s)``.
    single : bool
        Whether the results are arrays, rather than tuples of them.
    classes : tuple
        What rows of each leaf have in common with others that fit to them.
    structure : PyTreeSpec
        How the leaves nest in a result.
    hosts : list of arrays, or None
        NumPy's views of the leaves, where it has some of all pages: see `Backend.host_view`.
    rows : int
        For how many rows there is room.
    """

    def __init__(self, number: int, values: Values, value: Any, single: bool, rows: int) -> None:
        self.number = number
        self.single = single
        self._values = values
        self.hosts: list[Any] | None = []
        index = values.upload([np.zeros(rows, np.int64)], int)[0]
        self._keep([values.backend.gather(x, index) for x in ((value,) if single else value)])
        self.classes = tuple(map(values.backend.signature, self.leaves))
        self.structure = LEAF if single else optree.tree_structure((0,) * len(self.leaves))
        # row SPARE is never taken
        self.rows = rows
        self._kept = int(values.backend.pads)
        self.width = numbers_in(self.leaves) // rows  # numbers in a row
        self.calls = np.zeros(1, np.int64)  # of a stored result, where messages look for a name
        # The rows that were written last, and what each leaf got.
        self._written: tuple[Integers, Sequence[Any]] = self.calls[:0], ()
        self._left: int = rows - self._kept
        self._free: Integers = np.arange(rows, dtype=np.int64)[::-1].copy()

    def _keep(self, leaves: Sequence[Any]) -> None:
        """Keep arrays of all rows, and NumPy's view of each if it has one."""
        self.leaves = [*leaves]
        if self.hosts is not None:
            hosts = list(map(self._values.backend.host_view, leaves))
            # To gather rows of an array that is not contiguous, NumPy's `take` would copy all of it.
            self.hosts = hosts if all(x is not None and x.flags.c_contiguous for x in hosts) else None

    def leave_host(self) -> None:
        """Let the framework read and write the rows, not NumPy."""
        self.hosts = None

    @property
    def value(self) -> Any:
        """The page as a result, whose rows stay: a copy where `Backend.put` gives the array up."""
        values = self._values
        value = self.leaves[0] if self.single else tuple(self.leaves)
        if values.backend.writeable:
            return value
        return values.gather(value, values.upload([np.arange(self.rows)], int)[0])

    def take(self, rows: Integers) -> None:
        """Fill an array with rows that are free, which are not free any more."""
        count = len(rows)
        while self._left < count:
            self._keep([self._values.backend.concat([x, x]) for x in self.leaves])
            more = np.arange(2 * self.rows - 1, self.rows - 1, -1)
            self._free = np.append(more, self._free)
            self._left += self.rows
            self.rows *= 2
        self._left -= count
        rows[:] = self._free[self._left : self._left + count]

    def give_back(self, rows: Integers) -> None:
        """Note that nothing reads some rows any more."""
        self._free[self._left : self._left + len(rows)] = rows
        self._left += len(rows)

    def clear(self) -> None:
        """Let all rows be free."""
        self._written = self.calls[:0], ()
        self._free = np.arange(self.rows, dtype=np.int64)[::-1].copy()
        self._left = self.rows - self._kept

    def read(self, leaf: int, rows: Any) -> Any:
        """Return rows of a leaf; their numbers are on the device, or NumPy's where there are `hosts`."""
        backend = self._values.backend
        if self.hosts is None:
            return backend.gather(self.leaves[leaf], rows)
        return backend.from_host(self.hosts[leaf].take(rows, 0))

    def write(self, index: Any, leaves: Sequence[Any], rows: Integers) -> None:
        """Write the leaves of a result: NumPy, if it sees the page, to ``rows``, and else the framework.

        The framework is given ``index``, an array of its own of the same rows, which may be padded.
        """
        if self.hosts is None:
            self.leaves = [*map(self._values.backend.put, self.leaves, repeat(index), leaves)]
            self._written = rows, leaves
            return
        for host, leaf in zip(self.hosts, leaves, strict=True):
            view = self._values.backend.host_view(leaf)
            host[rows] = self._values.backend.to_numpy(leaf) if view is None else view

    def host(self, leaf: int, rows: Integers) -> np.ndarray:
        """Return rows of a leaf on the host."""
        values = self._values
        if self.hosts is not None:
            return np.take(self.hosts[leaf], rows, 0)
        written, leaves = self._written
        # The scores that all wait for are fresh from their launch, and in its order.
        if len(rows) == len(written) and (rows == written).all():
            return values.backend.to_numpy(leaves[leaf])[: len(rows)]
        index = values.upload([padded(values.backend, rows, rows[-1])], int)[0]
        return values.backend.to_numpy(values.backend.gather(self.leaves[leaf], index))[: len(rows)]

    @property
    def used(self) -> int:
        """How many rows hold something."""
        return self.rows - self._kept - self._left


@final
class Pages(Store):
    """A store that keeps what it can in pages.

    Parameters
    ----------
    table : CallTable
        Whose calls are kept.
    before : Pages, optional
        Of another table: its pages, of which no row is taken, are used again.
    """

    def __init__(self, table: CallTable, before: Pages | None = None) -> None:
        super().__init__(table)
        self.pages: dict[Hashable, Page] = {}
        self._leaf_of: dict[int, tuple[Page, int] | None] = {}
        if before is not None:
            self.pages = before.pages
            self._next = before._next
            self.results = {page.number: page for page in self.pages.values()}

    @property
    def used(self) -> int:
        """How many rows and results are kept."""
        return sum(x.used if type(x) is Page else 1 for x in self.results.values())

    @property
    def held(self) -> int:
        return self._held + sum(page.rows * page.width for page in self.pages.values())

    # ---- writing -------------------------------------------------------------------------------

    def move(self, number: int, values: Values) -> bool:
        """Move a stored result to the page of its form; return whether it was moved."""
        stored = self.results.get(number)
        if not isinstance(stored, Stored) or self._is_whole(stored.rows, stored.calls):
            return False
        page = self.page_of(values, stored.value, stored.rows)
        if page is None:
            return False
        table = self.table
        # Some of the calls may have been given up since they ran. And an op may have returned an operand,
        # which is a piece of a page: what is written is a copy.
        calls = stored.calls[table.result[stored.calls] == number]
        page.take(new := np.empty_like(calls))
        backend = values.backend
        rows = table.row[calls]
        own, index = values.upload([padded(backend, rows, rows[-1]), padded(backend, new, SPARE)], int)
        page.write(index, [backend.gather(x, own) for x in self.leaves_of(stored.value)], new)
        table.store(calls, page.number, new)
        del self.results[number]
        self._held -= numbers_in(stored.value)
        return True

    def leaves_of(self, value: Any) -> Sequence[Any]:
        """Return the arrays of a result that has a page."""
        return value if type(value) is tuple else (value,)

    def page_of(self, values: Values, value: Any, rows: int) -> Page | None:
        """Return the page for a result of so many rows; None if it can have none."""
        backend = values.backend
        leaves = self.leaves_of(value)
        if not leaves or not all(map(backend.owns, leaves)) or values.mismatch(value, rows) is not None:
            return None
        single = type(value) is not tuple
        key = single, *map(backend.signature, leaves)
        page = self.pages.get(key)
        if page is None:
            # Doubled when it is full: few rows of a matrix each may be all that a run ever has. Of short
            # rows there is room for a row of each call so far: most of a run's calls are of few forms.
            room = min(len(self.table), NUMBERS * rows // max(numbers_in(leaves), 1))
            room = max(room, min(ROWS, 4 * rows))
            page = Page(self._next, values, value, single, 1 << room.bit_length())
            self.pages[key] = self.results[self._next] = page
            if any(x.hosts is None for x in self.pages.values()):
                # One array has the row numbers of a round: all pages are read by NumPy, or none.
                for x in self.pages.values():
                    x.leave_host()
            self._next += 1
        return page

    def free(self, calls: Integers) -> None:
        """Let the rows of calls be taken by others; a call that is asked for again runs again."""
        table = self.table
        results = table.result[calls]
        for page in self.pages.values():
            mine = calls[results == page.number]
            if len(mine):
                page.give_back(table.row[mine])
                table.result[mine] = 0

    def keep_only(self, wanted: np.ndarray, first: int = 0) -> None:
        """Drop the results of which no call is wanted, and free such rows of pages."""
        self.free(first + np.flatnonzero(~wanted & (self.table.result[first:] > 0)))
        super().keep_only(wanted, first)

    def clear(self) -> None:
        """Drop all results; pages stay, without any."""
        super().clear()
        for page in self.pages.values():
            page.clear()

    # ---- reading -------------------------------------------------------------------------------

    def leaf(self, source: int) -> tuple[Page, int] | None:
        """Return the page and the leaf of a source, ``part << 40 | result``; None if it has none."""
        if source not in self._leaf_of:
            self._leaf_of[source] = self._find_leaf(source)
        return self._leaf_of[source]

    def _find_leaf(self, source: int) -> tuple[Page, int] | None:
        page = self.results.get(source & CALL_MASK)
        if type(page) is not Page:
            return None  # numbers are never used again, so this stays
        part = source >> PART_BITS
        if page.single:
            return None if part else (page, 0)
        steps = steps_to(self.table.graph.parts, part)
        if len(steps) != 1:
            return None
        key, length = steps[0]
        count = len(page.leaves)
        if type(key) is not int or not 0 <= key < count or length not in (None, count):
            return None
        return page, key

    def host_rows(self, sources: Integers, which: Integers, rows: Integers) -> HostRows | None:
        """Return rows that `CallTable.arrived` has found, on the host; None if some are not in a page."""
        found = list(map(self.place_of, sources.tolist()))
        if None in found:
            return None
        straight = len(found) == 1
        at = np.arange(len(rows)) if straight else np.empty_like(rows)
        hosts = []
        structures = []
        for number, place in enumerate(found):
            page, leaves, structure = place  # type: ignore[misc]  # none of them is None
            mine = slice(None) if straight else np.flatnonzero(which == number)
            own = rows[mine]
            hosts.append([page.host(leaf, own) for leaf in leaves])
            structures.append(structure)
            at[mine] = np.arange(len(own))
        return HostRows(hosts, structures, which, at, straight)

    def place_of(self, source: int) -> tuple[Page, Sequence[int], Any] | None:
        """Return the page of a source, which of its leaves it is, and how they nest; None if it has none."""
        leaf = self.leaf(source)
        if leaf is not None:
            return leaf[0], leaf[1:], LEAF
        page = self.results.get(source & CALL_MASK)
        if type(page) is not Page or source >> PART_BITS:
            return None
        return page, range(len(page.leaves)), page.structure

    def settle(self, numbers: Integers, counts: Integers, given: Integers, last: Values | None) -> bool:
        """Move what is in no page to one; return whether rows have moved. See `Store.settle`."""
        if last is None:
            return False
        moved = [number for number in numbers.tolist() if self.move(number, last)]
        if moved:
            numbers, _, counts = _compiled.distinct(self.table.result[given])
        return super().settle(numbers, counts, given, last) or bool(moved)

    def _divide_sparse(self, numbers: Integers, counts: Integers, given: Integers, last: Values) -> None:
        """Leave pages whole: their rows are read by any number of launches."""

    def _put_together(self, numbers: Sequence[int], last: Values) -> None:
        """Put together results that can have no page, as dictionaries."""
        super()._put_together([x for x in numbers if isinstance(self.results[x], Stored)], last)


def padded(backend: Backend, rows: Integers, surplus: int, size: int = 0) -> Integers:
    """Return numbers of rows, and a ``surplus`` one up to the size that the backend pads so many to.

    ``size`` is that of a launch which is padded already.
    """
    more = (size or backend.padded_rows(len(rows))) - len(rows) if backend.pads else 0
    return np.append(rows, np.full(more, surplus)) if more else rows
