"""NumPy by hand: slabs that are allocated once, read by one gather and written by one slice a height.

``binary_cat`` is what most people write: growing states, and a gather for each operand. ``binary_frontier``
carries from height to height only the states that nobody has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import Levels, binary_levels, child_sum_levels, frontier_levels
from multifold_bench.hand.recurrent import Tools
from multifold_bench.hand.recurrent import tagger as tagger_of


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
        hs, cs = h[pair], c[pair]
        h[begin:end], c[begin:end] = model.children(hs[:count], cs[:count], hs[count:], cs[count:])
    return model.logits(h[roots])


def binary_cat(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, from growing states and by a gather for each operand."""
    levels = binary_levels(trees)
    words, *pairs, roots = cut(levels)
    h, c = model.leaf(words)
    for pair in pairs:
        new_h, new_c = model.children(*(x[side] for side in np.split(pair, 2) for x in (h, c)))
        h, c = np.concatenate([h, new_h]), np.concatenate([c, new_c])
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
        h, c = np.concatenate([rest_h, new_h]), np.concatenate([rest_c, new_c])
    return model.logits(h[roots])


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = cut(levels)
    ends = levels.offsets
    h, c = slabs(levels, model.leaf(words), width)
    heights = zip(*(iter(pieces),) * 4, strict=True)
    for begin, end, (words, lengths, rows, ids) in zip(ends[1:], ends[2:], heights, strict=False):
        h[begin:end], c[begin:end] = model.node(
            words, Ragged(h[rows], lengths, ids), Ragged(c[rows], lengths, ids)
        )
    return model.logits(h[roots])


def tagger(model: Any, sentences: Sequence[Any], width: int) -> Array:
    """Return the logits of all words of sentences."""

    def split(x: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        return np.split(x, np.cumsum(sizes)[:-1])

    tools = Tools(
        upload=split,
        gather=lambda x, rows: x[rows],
        split=split,
        concat=np.concatenate,
        repeat=lambda row, count: np.broadcast_to(row, (count, row.shape[1])),
    )
    return tagger_of(model, sentences, tools)
