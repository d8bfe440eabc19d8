"""How a launch without a plan reads the rows of its operands: from which pages, by which gathers.

A launch of three calls ``join(left, right)``. The left rows are rows 4 and 7 of page 1 and row 2 of page 2,
the right ones rows 5, 9 and 8 of page 1. Its calls are in two *groups*, which read the same pages, and of
them the first operand makes two *stretches* and the second one:

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

Stretch = tuple[Page, int, int]
"""Calls of a launch, one after the other, whose rows of an operand are in one leaf: that, and how many."""


@final
class LaunchReads:
    """How launches run whose calls read from some sources.

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
        self._stretches = [[(leaf, len([*same])) for leaf, same in groupby(groups)] for groups in leaves]
        parts = {leaf for groups in leaves for leaf in groups}
        self._only = parts.pop() if len(parts) == 1 and len(leaves) > 1 else None  # the one leaf of all

    def indices(self, rows: Integers, new: Integers, begins: list[int], size: int) -> list[Integers]:
        """Return the row numbers of each gather, and at last those that the launch writes.

        ``rows`` has the rows that all calls read as their first operand, then as their second, and so on.
        The launch runs in ``size`` rows, and its calls write the rows ``new``.
        """
        backend, found = self._backend, list[Integers]()
        if self._only is not None and not backend.pads:
            return [rows, new]
        for own, parts in zip(rows.reshape(-1, len(new)), self.stretches(begins), strict=True):
            counts = [count for *_, count in parts]
            if backend.pads:
                which = np.repeat(np.arange(len(parts)), counts)
                found += indices_of([(page, leaf) for page, leaf, _ in parts], which, own, size)
            else:
                found += [own[begin:end] for begin, end in pairwise([0, *accumulate(counts)])]
        return [*found, padded(backend, new, SPARE, size)]

    def gathered(self, index: Iterator[Any], begins: list[int]) -> Sequence[Any]:
        """Return the rows of each node operand; ``index`` gives those of `indices` on the device.

        If all operands are read from one array, as the two subtrees of `join` may be, one gather brings the
        rows of all of them, and one split separates them.
        """
        backend = self._backend
        if self._only is not None and not backend.pads:
            page, leaf = self._only
            found = backend.gather(page.leaves[leaf], next(index))
            return backend.split(found, [begins[-1]] * len(self._stretches))
        nodes = list[Any]()
        for parts in self.stretches(begins):
            leaves = [(page, leaf) for page, leaf, _ in parts]
            if backend.pads:
                nodes.append(gathered(backend, leaves, index))
                continue
            one = [backend.gather(page.leaves[leaf], next(index)) for page, leaf in leaves]
            nodes.append(one[0] if len(one) == 1 else backend.concat(one))
        return nodes

    def stretches(self, begins: list[int]) -> list[list[Stretch]]:
        """Return in which stretches the rows of each operand lie, from where each group of calls begins."""
        found = list[list[Stretch]]()
        for stretches in self._stretches:
            end = 0
            found.append(parts := [])
            for leaf, groups in stretches:
                parts.append((*leaf, begins[end + groups] - begins[end]))
                end += groups
        return found


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
