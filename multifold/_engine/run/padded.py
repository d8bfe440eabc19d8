"""Sections of a run whose launches are padded: an operand is gathered from whole results, in few sizes.

A framework that compiles for each size would compile every split and concatenation of a wiring anew, since
the next minibatch has other numbers of rows. Padded launches have results of few sizes: powers of two. So
here nothing is cut out of a result. A section is a result and numbers of its rows. An operand of ``n`` rows
(a power of two as well, since the schedule repeats the last call of each launch) takes one gather for each
size of the results that it reads, and one more where these are several:

===========================  ==========================================================================
reads                        sizes that are compiled
===========================  ==========================================================================
one result of 32 rows        gather of ``n`` rows out of 32
three results of 8 rows      concatenation of ``4 * 8`` rows, the last result twice; gather out of 32
both                         one of either: two arrays of ``n`` rows. Their concatenation; gather out of
                             ``2 * n``
===========================  ==========================================================================

Sizes and counts are powers of two, so after some minibatches all of them have been met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.wiring import Operand, Reading
from multifold._engine.run.run import Sections


class PaddedSections(Sections):
    """The sections of a run whose launches are padded.

    Those that are read from results wait as `RowsOf`; those of loose values are arrays, as in `Sections`.
    """

    def cut(self, values: Sequence[Any], readings: Sequence[Reading]) -> None:
        """Put the sections of ``values``, parts of a result, into ``waiting``, each as its reading says."""
        for value, reading in zip(values, readings, strict=True):
            every = RowsOf(value, np.arange(self.rows_in(value)))
            self.waiting.update(dict.fromkeys(reading.whole, every))
            self.waiting.update(stretches(value, every.rows, reading.sizes, reading.slices))
            # Stretches between the slices have the number None: they are gathered, or not read at all.
            self.waiting.pop(None, None)
            if reading.gather is not None:
                rows = self.wiring.indices[reading.gather]
                sizes = reading.gathered_sizes or (len(rows),)
                self.waiting.update(stretches(value, rows, sizes, reading.gathered))

    def assemble(self, operand: Operand) -> Any:
        """Return the rows of an operand, gathered from the results that its sections name."""
        found = map(self.section, operand.sections)
        parts = [x if type(x) is RowsOf else RowsOf(x, np.arange(self.rows_in(x))) for x in found]
        sources = list({id(part.value): part.value for part in parts}.values())
        number = {id(value): i for i, value in enumerate(sources)}
        which = np.repeat([number[id(part.value)] for part in parts], [len(part.rows) for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        if operand.permute is not None:
            order = self.wiring.indices[operand.permute]
            which, rows = which[order], rows[order]
        return self.gathered(sources, which, rows)

    def rows_in(self, value: Any) -> int:
        """Return how many rows a value has."""
        return self.backend.rows(optree.tree_leaves(value)[0])

    def gathered(self, sources: Sequence[Any], which: Integers, rows: Integers) -> Any:
        """Return row ``rows[i]`` of ``sources[which[i]]`` for each ``i``.

        Of sources ``a``, ``b`` of 2 rows and ``c`` of 4, row 1 of ``b`` is row 3 of ``a b``. So the gather
        for size 2 has 3 there, and 0, any row, wherever the row is one of ``c``.
        """
        values = self.values
        sizes = np.array([self.rows_in(source) for source in sources])
        found: list[Any] = []
        of_size = np.zeros(len(rows), np.int64)
        for size in np.unique(sizes)[::-1].tolist():
            members = np.flatnonzero(sizes == size).tolist()
            place = np.zeros(len(sources), np.int64)
            place[members] = size * np.arange(len(members))
            mine = sizes[which] == size
            of_size[mine] = len(found)
            whole = values.concat(to_power_of_two([sources[i] for i in members]))
            at = np.where(mine, place[which] + rows, 0)
            if len(at) == self.rows_in(whole) and np.array_equal(at, np.arange(len(at))):
                found.append(whole)
            else:
                found.append(values.gather(whole, values.indices(at)))
        if len(found) == 1:
            return found[0]
        at = of_size * len(rows) + np.arange(len(rows))
        return values.gather(values.concat(to_power_of_two(found)), values.indices(at))


class RowsOf(NamedTuple):
    """Rows of a part of a result.

    Attributes
    ----------
    value : array or container
        The whole part.
    rows : int64 array
        The numbers of the rows.
    """

    value: Any
    rows: Integers


def stretches(
    value: Any, rows: Integers, sizes: Sequence[int], sections: Sequence[int | None]
) -> dict[int | None, RowsOf]:
    """Return number of a section -> its rows: ``rows`` of ``value``, divided into consecutive ``sizes``."""
    ends = np.cumsum(sizes)
    cut = zip(sections, ends.tolist(), sizes, strict=True)
    return {section: RowsOf(value, rows[end - size : end]) for section, end, size in cut}


def to_power_of_two(values: list[Any]) -> list[Any]:
    """Return a list with the last of some values repeated until their number is a power of two."""
    return values + values[-1:] * ((1 << (len(values) - 1).bit_length()) - len(values))
