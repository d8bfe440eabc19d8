"""PyTorch by hand: slabs that are allocated once, one gather an operand pair, one slice written a height.

Autograd follows writes into a slab, so that training and inference are one program. Growing the states
with ``torch.cat`` instead costs 1.0 (training) to 1.4 times as much (inference); measured on 128
random trees at widths 100 and 300.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold.backend import Array, Ragged
from multifold.bench.hand.levels import Levels, binary_frontier, binary_levels, child_sum_levels


def upload(levels: Levels, model: Any) -> Sequence[Array]:
    """Bring all index arrays to the model's device at once, without a copy where that is the host."""
    import torch

    device = next(model.parameters()).device
    return torch.from_numpy(levels.indices).to(device, non_blocking=True).split(levels.sizes)


def binary(model: Any, trees: Sequence[Any]) -> Array:
    """Return the logits of binary trees."""
    levels = binary_levels(trees)
    words, *pairs, roots = upload(levels, model)
    leaf_h, leaf_c = model.leaf(words)
    width, ends = leaf_h.shape[1], levels.offsets
    h, c = leaf_h.new_empty(ends[-1], width), leaf_c.new_empty(ends[-1], width)
    h[: ends[1]], c[: ends[1]] = leaf_h, leaf_c
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=True):
        left_h, right_h = h.index_select(0, pair).chunk(2)
        left_c, right_c = c.index_select(0, pair).chunk(2)
        h[begin:end], c[begin:end] = model.children(left_h, left_c, right_h, right_c)
    return model.logits(h.index_select(0, roots))


def child_sum(model: Any, trees: Sequence[Any]) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = upload(levels, model)
    ends = levels.offsets
    width = next(iter(model.parameters())).shape[-1]
    none = words[:0]
    return None


def binary_frontier(model: Any, trees: Sequence[Any]) -> Array:
    return None
