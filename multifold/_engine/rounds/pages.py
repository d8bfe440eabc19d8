"""Pages: the rows of all rounds so far, in arrays that stay from round to round.

`multifold._engine.rounds.store` keeps the result of each launch by itself, so a launch of calls at
different steps reads from dozens of results and has to put them together. Here results that a later round
reads, or may read, are written into *pages* instead: one page for all results of a form, an array or a flat
tuple of arrays whose rows fit together. Then an operand is one gather, whatever launches its rows come
from, and the rows of a server's request are free when it ends.

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
from collections.abc import Sequence
from itertools import repeat
from typing import Any, final

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.values import CONTAINERS, Values, leaves_of
from multifold._engine.rounds.fetch import LEAF
from multifold.backend import Backend

ROWS = 256
"""How many rows a new page may have, however long they are."""

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
        The class of the rows of each leaf: rows of one class may be put together.
    structure : PyTreeSpec
        How the leaves nest in a result.
    hosts : list of arrays, or None
        NumPy's views of the leaves (`Backend.host_view`). None if a leaf of any page has no such view, or
        if launches are padded.
    rows : int
        For how many rows there is room.
    """

    def __init__(self, number: int, values: Values, value: Any, single: bool, rows: int) -> None:
        self.number = number
        self.single = single
        self._values = values
        self.hosts: list[Any] | None = None if values.backend.pads else []
        index = values.upload([np.zeros(rows, np.int64)], int)[0]
        self._keep([values.backend.gather(x, index) for x in ((value,) if single else value)])
        self.classes = tuple(map(values.backend.signature, self.leaves))
        self.structure = LEAF if single else optree.tree_structure((0,) * len(self.leaves))
        self.rows = rows
        # Where launches are padded, row SPARE is never taken: surplus rows are written there.
        self._kept = int(values.backend.pads)
        self.width = numbers_in(self.leaves) // rows  # numbers in a row
        self.calls = np.zeros(1, np.int64)  # as a `Stored` has: messages name its first call
        # The rows that were written last, and what each leaf got.
        self._written: tuple[Integers, Sequence[Any]] = self.calls[:0], ()
        self._left: int = rows - self._kept
        self._free: Integers = np.arange(rows, dtype=np.int64)[::-1].copy()

    def _keep(self, leaves: Sequence[Any]) -> None:
        """Keep ``leaves`` as the arrays of the page, and in ``hosts`` NumPy's view of each.

        ``hosts`` becomes None if an array has no view, or none that is contiguous.
        """
        self.leaves = [*leaves]
        if self.hosts is not None:
            hosts = list(map(self._values.backend.host_view, leaves))
            # To gather rows of an array that is not contiguous, NumPy's `take` would copy all of it.
            self.hosts = hosts if all(x is not None and x.flags.c_contiguous for x in hosts) else None

    def leave_host(self) -> None:
        """Set ``hosts`` to None: from now on the framework reads and writes the rows, not NumPy."""
        self.hosts = None

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

    def take(self, rows: Integers) -> None:
        """Fill ``rows``, an int64 array, with the numbers of free rows, which are then not free any more.

        A page with too few free rows is doubled until it has enough.
        """
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

    def read(self, leaf: int, rows: Any) -> Any:
        """Return a new array of the rows ``rows`` of a leaf, in the order of these numbers.

        ``leaf`` is a position in ``leaves``. The numbers are an array of the framework, or NumPy's if there
        are ``hosts``.
        """
        backend = self._values.backend
        if self.hosts is None:
            return backend.gather(self.leaves[leaf], rows)
        return backend.from_host(self.hosts[leaf].take(rows, 0))

    def write(self, index: Any, leaves: Sequence[Any], rows: Integers) -> None:
        """Write the leaves of a result, one array for each leaf of the page, to the rows ``rows``.

        NumPy writes if there are ``hosts``, else the framework. The framework gets the same row numbers as
        ``index``, an array of its own, which may be padded.
        """
        if self.hosts is None:
            self.leaves = [*map(self._values.backend.put, self.leaves, repeat(index), leaves)]
            self._written = rows, leaves
            return
        for host, leaf in zip(self.hosts, leaves, strict=True):
            view = self._values.backend.host_view(leaf)
            host[rows] = self._values.backend.to_numpy(leaf) if view is None else view

    def host(self, leaf: int, rows: Integers) -> np.ndarray:
        """Return the rows ``rows`` of a leaf as a NumPy array, in the order of these numbers.

        ``leaf`` is a position in ``leaves``. The array is a copy, or what `Backend.to_numpy` gives.
        """
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
