"""MXNet by hand: states grow by one concatenation a height, and one `take` reads both parts.

Indices are int64, which `take` reads exactly; as float32, MXNet's habit, rows beyond 2**24 merge.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import binary_levels, child_sum_levels, frontier_levels


def cut(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return sections of rows."""
    ends = itertools.accumulate(sizes)
    return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def upload(indices: np.ndarray, sizes: Sequence[int], model: Any) -> list[Array]:
    """Return index arrays as views of one upload to the model's context."""
    import mxnet as mx

    context = next(iter(model.collect_params().values())).list_ctx()[0]
    return cut(mx.nd.array(indices, ctx=context, dtype="int64"), sizes)


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    from mxnet import nd

    words, *pairs, roots = upload(*binary_levels(trees)[:2], model)
    h, c = model.leaf(words)
    for pair in pairs:
        left_h, right_h = nd.split(nd.take(h, pair), 2, axis=0)
        left_c, right_c = nd.split(nd.take(c, pair), 2, axis=0)
        new_h, new_c = model.children(left_h, left_c, right_h, right_c)
        h = nd.concat(h, new_h, dim=0)
        c = nd.concat(c, new_c, dim=0)
    return model.logits(nd.take(h, roots))


def binary_frontier(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, carrying on only the states that are still to be read."""
    from mxnet import nd

    levels = frontier_levels(trees)
    words, *orders, roots = upload(levels.indices, levels.sizes, model)
    h, c = model.leaf(words)
    for count, order in zip(levels.offsets, orders, strict=True):
        left = order[:count]
        right = order[count : 2 * count]
        rest = order[2 * count :]
        new = model.children(nd.take(h, left), nd.take(c, left), nd.take(h, right), nd.take(c, right))
        if len(rest):
            new = [nd.concat(nd.take(x, rest), y, dim=0) for x, y in zip((h, c), new, strict=True)]
        h, c = new
    return model.logits(nd.take(h, roots))


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    from mxnet import nd

    levels = child_sum_levels(trees)
    words, *pieces, roots = upload(levels.indices, levels.sizes, model)
    embedded = model.embed(words)
    if len(levels.offsets) > 2:
        first, *others = nd.split_v2(embedded, tuple(levels.offsets[1:-1]))
    else:
        first = embedded
        others = []
    h, c = model.leaf(first)
    for read, lengths, rows, ids in zip(others, *(iter(pieces),) * 3, strict=True):
        hs = Ragged(nd.take(h, rows), lengths, ids)
        cs = Ragged(nd.take(c, rows), lengths, ids)
        new_h, new_c = model.node(read, hs, cs)
        h = nd.concat(h, new_h, dim=0)
        c = nd.concat(c, new_c, dim=0)
    return model.logits(nd.take(h, roots))
