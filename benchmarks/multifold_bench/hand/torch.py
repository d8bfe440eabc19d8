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


def ready(model: Any, trees: Sequence[Any]) -> tuple[Sequence[Array], list[int]]:
    """Return all that `binary` reads of a minibatch, on the model's device."""
    levels = binary_levels(trees)
    return upload(levels.indices, levels.sizes, model), levels.offsets


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    return binary_ready(model, ready(model, trees), width)


def binary_ready(model: Any, minibatch: tuple[Sequence[Array], list[int]], width: int) -> Array:
    """Return the logits of binary trees whose index arrays `ready` has brought to the device before."""
    (words, *pairs, roots), ends = minibatch
    like = next(model.parameters())
    h = like.new_empty(ends[-1], width)
    c = like.new_empty(ends[-1], width)
    h[: ends[1]], c[: ends[1]] = model.leaf(words)
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        left_h, right_h = h.index_select(0, pair).chunk(2)
        left_c, right_c = c.index_select(0, pair).chunk(2)
        h[begin:end], c[begin:end] = model.children(left_h, left_c, right_h, right_c)
    return model.logits(h.index_select(0, roots))


def binary_padded(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees; each op gets a power of two of rows, so it meets few sizes.

    The rows that are added read row 0, and what comes of them is dropped.
    """
    levels = binary_levels(trees)
    pieces = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    filled = [power_of_two(piece, 1 if i in (0, len(pieces) - 1) else 2) for i, piece in enumerate(pieces)]
    words, *pairs, roots = upload(np.concatenate(filled), [len(x) for x in filled], model)
    like = next(model.parameters())
    ends = levels.offsets
    h = like.new_empty(ends[-1], width)
    c = like.new_empty(ends[-1], width)
    h[: ends[1]], c[: ends[1]] = (x[: ends[1]] for x in model.leaf(words))
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        left_h, right_h = h.index_select(0, pair).chunk(2)
        left_c, right_c = c.index_select(0, pair).chunk(2)
        new = model.children(left_h, left_c, right_h, right_c)
        h[begin:end], c[begin:end] = (x[: end - begin] for x in new)
    return model.logits(h.index_select(0, roots))[: len(trees)]


def power_of_two(rows: np.ndarray, parts: int) -> np.ndarray:
    """Return rows with zeros behind each of so many parts of one length, which becomes a power of two.

    Examples
    --------
    >>> power_of_two(np.array([1, 2, 3, 4, 5, 6]), 2)
    array([1, 2, 3, 0, 4, 5, 6, 0])
    """
    count = len(rows) // parts
    filled = np.zeros((parts, 1 << max(count - 1, 0).bit_length()), rows.dtype)
    filled[:, :count] = rows.reshape(parts, count)
    return filled.ravel()


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
