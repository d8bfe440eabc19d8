"""The structure of a minibatch by levels: what a careful engineer prepares before batching by hand.

All nodes of one height run together, so each state gets a row in a slab that is ordered by height, and
each height is a few index arrays into it. One pass of plain recursion over the trees notes for each
node its height and its place there; NumPy then turns these notes into rows all at once. Everything
comes as ONE array, so that it is one upload, and the sizes into which to cut it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

BITS = 32
"""A note is ``height << BITS | place at that height``."""


class Levels(NamedTuple):
    """A minibatch of trees by height.

    Attributes
    ----------
    indices : int64 array
        All index arrays, one after the other.
    sizes : list of int
        How long each of them is.
    offsets : list of int
        Where each height begins in the slab, and where the last one ends.
    """

    indices: np.ndarray
    sizes: list[int]
    offsets: list[int]


def binary_levels(trees: Sequence[Any]) -> Levels:
    """Prepare binary trees: words of the leaves, then for each height all left rows and all right ones.

    The last index array holds the rows of the roots.

    Parameters
    ----------
    trees : sequence
        With ``word``, ``left`` and ``right``; ``left`` is None at a leaf.
    """
    words: list[int] = []
    lefts: list[list[int]] = []
    rights: list[list[int]] = []

    def visit(tree: Any) -> int:
        if tree.left is None:
            words.append(tree.word)
            return len(words) - 1
        left = visit(tree.left)
        right = visit(tree.right)
        below = (left if left > right else right) >> BITS
        if below == len(lefts):
            lefts.append([])
            rights.append([])
        lefts[below].append(left)
        rights[below].append(right)
        return (below + 1) << BITS | len(lefts[below]) - 1

    roots = [visit(tree) for tree in trees]
    notes: list[int] = []
    for left, right in zip(lefts, rights, strict=True):
        notes += left
        notes += right
    notes += roots
    widths = [len(words), *map(len, lefts)]
    offsets = np.cumsum([0, *widths])
    indices = np.concatenate([np.array(words, np.int64), rows_of(notes, offsets)])
    sizes = [len(words), *(2 * width for width in widths[1:]), len(roots)]
    return Levels(indices, sizes, offsets.tolist())


def frontier_levels(trees: Sequence[Any]) -> Levels:
    """Prepare binary trees so that each height reads the states that are still unread, and only them.

    A state of a tree is read once. So the states that are carried from height to height shrink: each
    height gathers them in the order (left ones, right ones, those that are read later), and
    appends its own. ``offsets`` holds the number of nodes at each height above the leaves.
    """
    levels = binary_levels(trees)
    ends = levels.offsets
    words, *pairs, roots = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    carried = np.arange(ends[1])  # rows of the slab, in the order in which they are carried
    place = np.arange(ends[-1])
    orders = []
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        unread = np.ones(len(carried), bool)
        unread[place[pair]] = False
        orders.append(np.concatenate([place[pair], np.flatnonzero(unread)]))
        carried = np.concatenate([carried[unread], np.arange(begin, end)])
        place[carried] = np.arange(len(carried))
    pieces = [words, *orders, place[roots]]
    widths = np.diff(ends[1:]).tolist()
    return Levels(np.concatenate(pieces), [len(piece) for piece in pieces], widths)


def child_sum_levels(trees: Sequence[Any]) -> Levels:
    """Prepare trees of any arity: all words, then for each height lengths, child rows and segment ids.

    The leaves have words only. The last index array holds the rows of the roots.

    Parameters
    ----------
    trees : sequence
        With ``word`` and ``children``, which is empty at a leaf.
    """
    words: list[list[int]] = [[]]
    lengths: list[list[int]] = [[]]
    members: list[list[int]] = [[]]

    def visit(tree: Any) -> int:
        notes = [visit(child) for child in tree.children]
        height = (max(notes) >> BITS) + 1 if notes else 0
        if height == len(words):
            words.append([])
            lengths.append([])
            members.append([])
        words[height].append(tree.word)
        lengths[height].append(len(notes))
        members[height] += notes
        return height << BITS | len(words[height]) - 1

    roots = [visit(tree) for tree in trees]
    offsets = np.cumsum([0, *map(len, words)])
    pieces = [np.array(list(chain.from_iterable(words)), np.int64)]
    for height in range(1, len(words)):
        count = np.array(lengths[height], np.int64)
        pieces += [
            count,
            rows_of(members[height], offsets),
            np.repeat(np.arange(len(count)), count),
        ]
    pieces.append(rows_of(roots, offsets))
    return Levels(np.concatenate(pieces), [len(piece) for piece in pieces], offsets.tolist())


def rows_of(notes: Sequence[int], offsets: np.ndarray) -> np.ndarray:
    """Turn notes into rows of the slab."""
    array = np.array(notes, np.int64)
    return offsets[array >> BITS] + (array & ((1 << BITS) - 1))
