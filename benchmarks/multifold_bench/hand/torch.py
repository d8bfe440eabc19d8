"""PyTorch by hand: slabs that are allocated once, read by one gather and written by one slice a height.

Autograd follows writes into a slab, so training and inference are one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import binary_levels, child_sum_levels, frontier_levels


def upload(indices: np.ndarray, sizes: Sequence[int], model: Any) -> Sequence[Array]:
    """Return index arrays on the model's device, from one upload, and none where that is the host."""
    import torch

    device = next(model.parameters()).device
    return torch.from_numpy(indices).to(device, non_blocking=True).split(list(sizes))


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    levels = binary_levels(trees)
    words, *pairs, roots = upload(levels.indices, levels.sizes, model)
    like = next(model.parameters())
    ends = levels.offsets
    h = like.new_empty(ends[-1], width)
    c = like.new_empty(ends[-1], width)
    h[: ends[1]], c[: ends[1]] = model.leaf(words)
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        left_h, right_h = h.index_select(0, pair).chunk(2)
        left_c, right_c = c.index_select(0, pair).chunk(2)
        h[begin:end], c[begin:end] = model.children(left_h, left_c, right_h, right_c)
    return model.logits(h.index_select(0, roots))


def binary_frontier(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, carrying on only the states that are still to be read."""
    import torch

    levels = frontier_levels(trees)
    words, *orders, roots = upload(levels.indices, levels.sizes, model)
    h, c = model.leaf(words)
    for count, order in zip(levels.offsets, orders, strict=True):
        cut = [count, count, len(order) - 2 * count]
        left_h, right_h, rest_h = h.index_select(0, order).split(cut)
        left_c, right_c, rest_c = c.index_select(0, order).split(cut)
        new_h, new_c = model.children(left_h, left_c, right_h, right_c)
        h = torch.cat([rest_h, new_h])
        c = torch.cat([rest_c, new_c])
    return model.logits(h.index_select(0, roots))


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = upload(levels.indices, levels.sizes, model)
    like = next(model.parameters())
    ends = levels.offsets
    h = like.new_empty(ends[-1], width)
    c = like.new_empty(ends[-1], width)
    first, *others = model.embed(words).split(np.diff(ends).tolist())
    h[: ends[1]], c[: ends[1]] = model.leaf(first)
    heights = zip(others, *(iter(pieces),) * 3, strict=True)
    for begin, end, (embedded, lengths, rows, ids) in zip(ends[1:], ends[2:], heights, strict=False):
        hs = Ragged(h.index_select(0, rows), lengths, ids)
        cs = Ragged(c.index_select(0, rows), lengths, ids)
        h[begin:end], c[begin:end] = model.node(embedded, hs, cs)
    return model.logits(h.index_select(0, roots))
