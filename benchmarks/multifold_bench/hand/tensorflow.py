"""TensorFlow by hand: states grow by one concatenation a height, and one gather reads both parts.

The gather has a gradient of its own: that of `tf.gather` is a `tf.IndexedSlices`, which TensorFlow makes
dense in a dozen operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import Levels, binary_levels, child_sum_levels, frontier_levels


@functools.cache
def gather_rows() -> Callable[[Array, Array], Array]:
    """Return a gather with a dense gradient."""
    import tensorflow as tf

    @tf.custom_gradient
    def gather(x: Array, rows: Array) -> Any:
        count = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]

        def gradient(upstream: Array) -> Any:
            return tf.math.unsorted_segment_sum(upstream, rows, count), None

        return tf.raw_ops.GatherV2(params=x, indices=rows, axis=0), gradient

    return gather


def upload(levels: Levels) -> Sequence[Array]:
    """Return all index arrays, from one upload."""
    import tensorflow as tf

    return tf.split(tf.constant(levels.indices), levels.sizes)


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    import tensorflow as tf

    gather = gather_rows()
    words, *pairs, roots = upload(binary_levels(trees))
    h, c = model.leaf(words)
    for pair in pairs:
        left_h, right_h = tf.split(gather(h, pair), 2)
        left_c, right_c = tf.split(gather(c, pair), 2)
        new_h, new_c = model.children(left_h, left_c, right_h, right_c)
        h = tf.concat([h, new_h], 0)
        c = tf.concat([c, new_c], 0)
    return model.logits(gather(h, roots))


def binary_frontier(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, carrying on only the states that are still to be read."""
    import tensorflow as tf

    gather = gather_rows()
    levels = frontier_levels(trees)
    words, *orders, roots = upload(levels)
    h, c = model.leaf(words)
    for count, order in zip(levels.offsets, orders, strict=True):
        cut = [count, count, order.shape[0] - 2 * count]
        left_h, right_h, rest_h = tf.split(gather(h, order), cut)
        left_c, right_c, rest_c = tf.split(gather(c, order), cut)
        new_h, new_c = model.children(left_h, left_c, right_h, right_c)
        h = tf.concat([rest_h, new_h], 0)
        c = tf.concat([rest_c, new_c], 0)
    return model.logits(gather(h, roots))


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    import tensorflow as tf

    gather = gather_rows()
    levels = child_sum_levels(trees)
    words, *pieces, roots = upload(levels)
    first, *others = tf.split(model.embed(words), np.diff(levels.offsets))
    h, c = model.leaf(first)
    for embedded, lengths, rows, ids in zip(others, *(iter(pieces),) * 3, strict=True):
        hs = Ragged(gather(h, rows), lengths, ids)
        cs = Ragged(gather(c, rows), lengths, ids)
        new_h, new_c = model.node(embedded, hs, cs)
        h = tf.concat([h, new_h], 0)
        c = tf.concat([c, new_c], 0)
    return model.logits(gather(h, roots))
