"""How a launch without a plan reads the rows of its operands: from which pages, by which gathers.

A launch of three calls ``join(left, right)``. The left rows are rows 4 and 7 of page 1 and row 2 of page 2,
the right ones rows 5, 9 and 8 of page 1. Calls that read the same page as each operand are a *group*: here
the first two, and the third. Groups next to each other that read one page as an operand are a *stretch* of
that operand:

=======  =================  ==================================
operand  stretches          row numbers of the gathers
=======  =================  ==================================
left     page 1, page 2     4 7 and 2, which are put together
right    page 1             5 9 8
=======  =================  ==================================
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, final

import numpy as np

from multifold._await.pages import SPARE, Page, padded
from multifold._compiled.arrays import Integers
from multifold.backend import Backend

Leaf = tuple[Page, int]
"""A page, and which of its arrays."""


@final
class LaunchReads:
    """How the operands of a launch are gathered whose calls read from some sources.

    Parameters
    ----------
    backend : Backend
        Whose arrays the pages are.
    leaves : sequence of sequences of Leaf
        Of each operand, the leaf that each group of calls reads.
    """

    def __init__(self, backend: Backend, leaves: Sequence[Sequence[Leaf]]) -> None:
        self._backend = backend
        # Groups next to each other that read one leaf are one stretch: the leaf, and how many groups.
        stretches = [[(leaf, len([*same])) for leaf, same in groupby(groups)] for groups in leaves]
        self._leaves: list[list[Leaf]] = [[leaf for leaf, _ in parts] for parts in stretches]
        self._groups = [[groups for _, groups in parts] for parts in stretches]
        # The pages and the leaves of all operands, where no operand has two.
        plain = not backend.pads and all(len(parts) == 1 for parts in self._leaves)
        self._whole = [[parts[0][i] for parts in self._leaves] for i in (0, 1)] if plain else None

    def sizes(self, begins: Sequence[int]) -> list[int]:
        """Return how many rows each gather brings, and at last how many the launch writes.

        ``begins`` has where each group of calls begins, and at last how many calls there are.
        """
        count = begins[-1]
        if self._whole is not None:
            return [count] * (len(self._leaves) + 1)
        return [size for parts in self._counts(begins) for size in parts] + [count]

    def padded(self, rows: Integers, begins: Sequence[int], size: int) -> list[Integers]:
        """Return the row numbers of each gather and those that the launch writes, in ``size`` rows each.

        ``rows`` has the rows that all calls read as their first operand, then as their second, and so on,
        and at last those that they write.
        """
        *reads, new = rows.reshape(-1, begins[-1])
        found = list[Integers]()
        for leaves, counts, own in zip(self._leaves, self._counts(begins), reads, strict=True):
            found += indices_of(leaves, np.repeat(np.arange(len(counts)), counts), own, size)
        return [*found, padded(self._backend, new, SPARE, size)]

    def gathered(self, index: Iterator[Any]) -> Sequence[Any]:
        """Return the rows of each node operand; ``index`` has the numbers for each gather, in order."""
        backend = self._backend
        if self._whole is not None:
            return [*map(Page.read, *self._whole, index)]
        if backend.pads:
            return [gathered(backend, leaves, index) for leaves in self._leaves]
        nodes = list[Any]()
        for leaves in self._leaves:
            one = [page.read(leaf, next(index)) for page, leaf in leaves]
            nodes.append(one[0] if len(one) == 1 else backend.concat(one))
        return nodes

    def _counts(self, begins: Sequence[int]) -> list[list[int]]:
        """Return how many calls each stretch of each operand has, from where each group of calls begins."""
        bounds = [[begins[i] for i in accumulate(groups, initial=0)] for groups in self._groups]
        return [[end - begin for begin, end in pairwise(own)] for own in bounds]


def one_class(leaves: Sequence[Leaf | None]) -> Hashable | None:
    """Return what rows of some leaves have in common; None if there is no such class, or no leaf."""
    classes = {None if leaf is None else leaf[0].classes[leaf[1]] for leaf in leaves}
    return classes.pop() if len(classes) == 1 else None


def indices_of(leaves: Sequence[Leaf], which: Integers, rows: Integers, size: int) -> list[Integers]:
    """Return the indices by which `gathered` puts rows of leaves together, in arrays of one size.

    Rows in two leaves are gathered from each, and then from both. If the size is 4, row 5 of the one and
    row 7 of the other (``which`` is ``0 1``) are rows ``5 7 7 7`` of each, and ``0 5 5 5`` of these eight.
    """
    at = np.minimum(np.arange(size), len(rows) - 1)
    if len(leaves) == 1:
        return [rows[at]]
    return [*[np.minimum(rows, page.rows - 1)[at] for page, _ in leaves], at + size * which[at]]


def gathered(backend: Backend, leaves: Sequence[Leaf], index: Iterator[Any]) -> Any:
    """Return rows of leaves, by the next ``index`` for each, and one more if there are several leaves."""
    found = [backend.gather(page.leaves[leaf], next(index)) for page, leaf in leaves]
    return found[0] if len(found) == 1 else backend.gather(backend.concat(found), next(index))
