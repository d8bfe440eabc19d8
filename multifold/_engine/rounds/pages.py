"""Rows of earlier rounds: those of one result as it was returned, or of many results in one *page*.

A launch reads rows of results (`ResultRows`). Those that one operand reads often come from few results: a
chain of steps reads the rows of the step before, all of them and in their order, and gets that array as it
is. Where they come from many, as the subtrees that a parser has on its stack, they are moved to a page
first: one for all results of a form, an array or a flat tuple of arrays whose rows fit together. Then an
operand is one gather, whatever launches its rows come from, and the rows of a server's request are free
when it ends.

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

import math
from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Any, final

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.values import CONTAINERS, Values, leaves_of
from multifold._engine.rounds.fetch import LEAF
from multifold.backend import Backend

ROWS = 256
"""How many rows a new page may have, however long they are."""

NUMBERS = 1 << 19
"""Numbers for which a new page may have room: 2 MB of float32."""

PADDED = 8191
"""Rows of a new page where launches are padded, if they are not longer than `NUMBERS` allows."""

SPARE = 0
"""The row of a page that no call has where launches are padded: their surplus rows are written there."""


class ResultRows:
    """The arrays of a result, whose rows launches and examples read.

    Parameters
    ----------
    values : Values
        The helper of the backend.
    leaves : sequence of arrays
        Of shapes ``(rows, *s)``.
    single : bool
        Whether the result is an array, rather than a flat tuple of them.
    classes : tuple
        The class of the rows of each leaf (`Values.class_of`): rows of one class may be put together.
    rows : int
        How many rows there are.
    """

    def __init__(
        self, values: Values, leaves: Sequence[Any], single: bool, classes: tuple[Hashable, ...], rows: int
    ) -> None:
        self._values = values
        self.single = single
        self.classes = classes
        self.leaves = leaves
        self.rows = rows
        # NumPy's view of each array, False where there is none, and None before it is asked for. Padded
        # launches are gathered by the framework, which compiles.
        self._views: list[Any] = [False if values.backend.pads else None] * len(leaves)

    @property
    def structure(self) -> Any:
        """How the leaves nest in the result, as a structure of optree."""
        return LEAF if self.single else optree.tree_structure((0,) * len(self.leaves))

    def view(self, leaf: int) -> Any:
        """Return NumPy's view of a leaf, by its position; False if it has none that is contiguous.

        To gather rows of an array that is not contiguous, NumPy's `take` would copy all of it.
        """
        view = self._views[leaf]
        if view is None:
            found = self._values.backend.host_view(self.leaves[leaf])
            view = self._views[leaf] = found if found is not None and found.flags.c_contiguous else False
        return view

    def is_all(self, rows: Integers) -> bool:
        """Return whether ``rows`` are all rows of the result, in their order."""
        return len(rows) == self.rows and compiled.counts_up(rows)

    def at_once(self, leaf: int, rows: Integers) -> Any:
        """Return these rows of a leaf as an array of the framework, or None if it has to gather them.

        Without a copy if they are all rows, and if an op that writes to them would be found out.
        """
        values = self._values
        if self.is_all(rows):
            array = self.leaves[leaf]
            if not values.backend.counts_changes or values.backend.version(array) is not None:
                return values.protected(array)
        view = self._views[leaf]
        if view is None:
            view = self.view(leaf)
        return None if view is False else values.backend.from_host(view.take(rows, 0))

    def host(self, leaf: int, rows: Integers) -> np.ndarray:
        """Return the rows ``rows`` of a leaf as a new NumPy array, in the order of these numbers.

        ``leaf`` is a position in ``leaves``.
        """
        values = self._values
        if self.is_all(rows):
            return values.backend.to_numpy(self.leaves[leaf])
        view = self.view(leaf)
        if view is not False:
            found: np.ndarray = view.take(rows, 0)
            return found
        # Few rows are gathered before they are copied to the host.
        if 2 * len(rows) < self.rows:
            index = values.upload([padded(values.backend, rows, rows[-1])], int)[0]
            return values.backend.to_numpy(values.backend.gather(self.leaves[leaf], index))[: len(rows)]
        return values.backend.to_numpy(self.leaves[leaf])[rows]


@final
class Page(ResultRows):
    """All rows of results of one form.

    Parameters
    ----------
    number : int
        What `CallTable.result` calls it.
    values : Values
        The helper of the backend.
    value : array, or flat tuple of arrays
        A result of the form.
    single : bool
        Whether the results are arrays, rather than tuples of them.
    rows : int
        For how many rows there is room at first.
    """

    def __init__(self, number: int, values: Values, value: Any, single: bool, rows: int) -> None:
        self.number = number
        index = values.upload([np.zeros(rows, np.int64)], int)[0]
        leaves = [values.backend.gather(x, index) for x in ((value,) if single else value)]
        super().__init__(values, leaves, single, tuple(map(values.backend.signature, leaves)), rows)
        # Where launches are padded, row SPARE is never taken: surplus rows are written there.
        self._kept = int(values.backend.pads)
        self.width = numbers_in(self.leaves) // rows  # numbers in a row
        self.calls = np.zeros(1, np.int64)  # as a `Stored` has: messages name its first call
        # The rows that were written last, and what each leaf got.
        self._written: tuple[Integers, Sequence[Any]] = self.calls[:0], ()
        self._left: int = rows - self._kept
        self._free: Integers = np.arange(rows, dtype=np.int64)[::-1].copy()

    @property
    def value(self) -> Any:
        """All rows of the page, as an array or a tuple of arrays of shapes ``(rows, *s)``.

        Where `Backend.put` gives an array up, so that a later write would end it, these are copies.
        """
        values = self._values
        value = self.leaves[0] if self.single else tuple(self.leaves)
        if values.backend.writeable:
            return value
        return values.gather(value, values.upload([np.arange(self.rows)], int)[0])

    def is_all(self, rows: Integers) -> bool:
        """Return False: a page is never read as it is, since later launches write to it."""
        return False

    def take(self, rows: Integers) -> None:
        """Fill ``rows``, an int64 array, with the numbers of free rows, which are then not free any more.

        A page with too few free rows is doubled until it has enough.
        """
        count = len(rows)
        while self._left < count:
            room = self.rows
            backend = self._values.backend
            super().__init__(
                self._values,
                [backend.concat([x, x]) for x in self.leaves],
                self.single,
                self.classes,
                2 * room,
            )
            self._free = np.append(np.arange(2 * room - 1, room - 1, -1), self._free)
            self._left += room
        self._left -= count
        rows[:] = self._free[self._left : self._left + count]

    def give_back(self, rows: Integers) -> None:
        """Let the rows of these numbers, which `take` has filled in, be free: it may do so again."""
        self._free[self._left : self._left + len(rows)] = rows
        self._left += len(rows)

    def clear(self) -> None:
        """Let all rows be free; the arrays stay as they are.

        Where launches are padded, row `SPARE`, which is row 0, is never free: surplus rows are written
        there.
        """
        self._written = self.calls[:0], ()
        self._free = np.arange(self.rows, dtype=np.int64)[::-1].copy()
        self._left = self.rows - self._kept

    def write(self, rows: Integers, leaves: Sequence[Any]) -> None:
        """Write the leaves of a result, one array for each leaf of the page, to the rows ``rows``.

        NumPy writes where it sees all leaves, else the framework. Leaves of padded launches have more rows
        than there are in ``rows``; these go to row `SPARE`.
        """
        backend = self._values.backend
        hosts = list(map(self.view, range(len(self.leaves))))
        if any(host is False for host in hosts):
            size = backend.rows(leaves[0])
            index = self._values.upload([padded(backend, rows, SPARE, size)], int)[0]
            self._views = [False] * len(self.leaves)
            self.leaves = [*map(backend.put, self.leaves, repeat(index), leaves)]
            self._written = rows, leaves
            return
        for host, leaf in zip(hosts, leaves, strict=True):
            view = backend.host_view(leaf)
            host[rows] = backend.to_numpy(leaf) if view is None else view

    def host(self, leaf: int, rows: Integers) -> np.ndarray:
        """Return the rows ``rows`` of a leaf as a new NumPy array; see `ResultRows.host`."""
        written, leaves = self._written
        # The scores that all wait for are fresh from their launch, and in its order.
        if len(rows) == len(written) and (rows == written).all() and len(written):
            return self._values.backend.to_numpy(leaves[leaf])[: len(rows)]
        return super().host(leaf, rows)

    @property
    def used(self) -> int:
        """How many rows are taken: all but the free ones and, where launches are padded, row `SPARE`."""
        return self.rows - self._kept - self._left


def padded(backend: Backend, rows: Integers, surplus: int, size: int = 0) -> Integers:
    """Append ``surplus``, the number of a row, to ``rows`` until there are as many as the backend wants.

    That is ``size``, the size of a launch that is padded already, or else `Backend.padded_rows`. Backends
    that don't pad get ``rows`` as it is.
    """
    more = (size or backend.padded_rows(len(rows))) - len(rows) if backend.pads else 0
    return np.append(rows, np.full(more, surplus)) if more else rows


def numbers_in(value: Any) -> int:
    """Return how many numbers the arrays of a value hold: 6 for shape ``(3, 2)``.

    0 where no shape is known.
    """
    try:
        if not isinstance(value, CONTAINERS):
            return math.prod(getattr(value, "shape", (0,)))
        return sum(math.prod(getattr(leaf, "shape", (0,))) for leaf in leaves_of(value))
    except (TypeError, ValueError):  # while TensorFlow draws a graph
        return 0
