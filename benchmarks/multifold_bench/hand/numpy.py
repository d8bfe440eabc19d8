"""NumPy by hand: slabs that are allocated once, read by one gather and written by one slice a height.

``binary_frontier`` carries from height to height only the states that are still to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import Levels, binary_levels, child_sum_levels, frontier_levels


def cut(levels: Levels) -> list[np.ndarray]:
    """Return the index arrays as views."""
    return np.split(levels.indices, np.cumsum(levels.sizes)[:-1])


def slabs(levels: Levels, first: tuple[Array, Array], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return slabs for the states of all nodes, those of the leaves filled in."""
    h, c = (np.empty((levels.offsets[-1], width), x.dtype) for x in first)
    h[: levels.offsets[1]], c[: levels.offsets[1]] = first
    return h, c


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    levels = binary_levels(trees)
    words, *pairs, roots = cut(levels)
    ends = levels.offsets
    h, c = slabs(levels, model.leaf(words), width)
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        count = end - begin
        hs = h[pair]
        cs = c[pair]
        h[begin:end], c[begin:end] = model.children(hs[:count], cs[:count], hs[count:], cs[count:])
    return model.logits(h[roots])


def binary_frontier(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, carrying on only the states that are still to be read."""
    levels = frontier_levels(trees)
    words, *orders, roots = cut(levels)
    h, c = model.leaf(words)
    for count, order in zip(levels.offsets, orders, strict=True):
        (left_h, right_h, rest_h), (left_c, right_c, rest_c) = (
            np.split(x[order], [count, 2 * count]) for x in (h, c)
        )
        new_h, new_c = model.children(left_h, left_c, right_h, right_c)
        h = np.concatenate([rest_h, new_h])
        c = np.concatenate([rest_c, new_c])
    return model.logits(h[roots])


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = cut(levels)
    ends = levels.offsets
    embedded = model.embed(words)
    h, c = slabs(levels, model.leaf(embedded[: ends[1]]), width)
    heights = zip(*(iter(pieces),) * 3, strict=True)
    for begin, end, (lengths, rows, ids) in zip(ends[1:], ends[2:], heights, strict=False):
        h[begin:end], c[begin:end] = model.node(
            embedded[begin:end], Ragged(h[rows], lengths, ids), Ragged(c[rows], lengths, ids)
        )
    return model.logits(h[roots])
