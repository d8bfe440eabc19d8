"""TensorFlow by hand: states grow by one concatenation a height, and one gather reads both parts.

``binary_function`` and ``binary_frontier_function`` are the same inside of one `tf.function`, in a
`tf.while_loop` that reads the heights as data, so that one trace serves all minibatches. The gather has a
gradient of its own: that of `tf.gather` is a `tf.IndexedSlices`, which TensorFlow 2.21 makes dense in a
dozen operations (training at width 100: 92 ms instead of 120).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import Levels, binary_levels, child_sum_levels, frontier_levels
from multifold_bench.hand.recurrent import Tools
from multifold_bench.hand.recurrent import tagger as tagger_of


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
        h, c = tf.concat([h, new_h], 0), tf.concat([c, new_c], 0)
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
        h, c = tf.concat([rest_h, new_h], 0), tf.concat([rest_c, new_c], 0)
    return model.logits(gather(h, roots))


@functools.lru_cache(maxsize=1)  # of the model that is measured
def binary_loop(model: Any, width: int) -> Callable[..., Array]:
    """Return the function of ``binary``: words, pairs of all heights, where each begins, roots."""
    import tensorflow as tf

    gather = gather_rows()
    states = tf.TensorShape((None, width))

    @tf.function(autograph=False, reduce_retracing=True)
    def run(words: Array, pairs: Array, bounds: Array, roots: Array) -> Array:
        def grow(height: Array, h: Array, c: Array) -> Any:
            pair = pairs[bounds[height] : bounds[height + 1]]
            left_h, right_h = tf.split(gather(h, pair), 2)
            left_c, right_c = tf.split(gather(c, pair), 2)
            new_h, new_c = model.children(left_h, left_c, right_h, right_c)
            return height + 1, tf.concat([h, new_h], 0), tf.concat([c, new_c], 0)

        _, h, _ = tf.while_loop(
            lambda height, h, c: height < tf.shape(bounds)[0] - 1,
            grow,
            (0, *model.leaf(words)),
            shape_invariants=(tf.TensorShape(()), states, states),
        )
        return model.logits(gather(h, roots))

    return run


def binary_function(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, from one trace for all structures."""
    import tensorflow as tf

    levels = binary_levels(trees)
    words, pairs, roots = split_ends(levels)
    bounds = tf.constant(bounds_of(levels.sizes[1:-1]))
    return binary_loop(model, width)(words, pairs, bounds, roots)


@functools.lru_cache(maxsize=1)
def frontier_loop(model: Any, width: int) -> Callable[..., Array]:
    """Return the function of ``binary_frontier``; ``counts`` holds the nodes of each height."""
    import tensorflow as tf

    gather = gather_rows()
    states = tf.TensorShape((None, width))

    @tf.function(autograph=False, reduce_retracing=True)
    def run(words: Array, orders: Array, bounds: Array, counts: Array, roots: Array) -> Array:
        def advance(height: Array, h: Array, c: Array) -> Any:
            order, count = orders[bounds[height] : bounds[height + 1]], counts[height]
            cut = [count, count, tf.shape(order)[0] - 2 * count]
            left_h, right_h, rest_h = tf.split(gather(h, order), cut, num=3)
            left_c, right_c, rest_c = tf.split(gather(c, order), cut, num=3)
            new_h, new_c = model.children(left_h, left_c, right_h, right_c)
            return height + 1, tf.concat([rest_h, new_h], 0), tf.concat([rest_c, new_c], 0)

        _, h, _ = tf.while_loop(
            lambda height, h, c: height < tf.shape(counts)[0],
            advance,
            (0, *model.leaf(words)),
            shape_invariants=(tf.TensorShape(()), states, states),
        )
        return model.logits(gather(h, roots))

    return run


def binary_frontier_function(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees, carrying on only unread states, from one trace."""
    import tensorflow as tf

    levels = frontier_levels(trees)
    words, orders, roots = split_ends(levels)
    bounds = tf.constant(bounds_of(levels.sizes[1:-1]))
    counts = tf.constant(np.array(levels.offsets, np.int32))
    return frontier_loop(model, width)(words, orders, bounds, counts, roots)


def split_ends(levels: Levels) -> Sequence[Array]:
    """Return the first index array, those between, and the last one, from one upload."""
    import tensorflow as tf

    first, *between, last = levels.sizes
    return tf.split(tf.constant(levels.indices), [first, sum(between), last])


def bounds_of(sizes: Sequence[int]) -> np.ndarray:
    """Return where runs of these sizes begin, and where the last one ends."""
    return np.cumsum([0, *sizes], dtype=np.int32)


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    import tensorflow as tf

    gather = gather_rows()
    words, *pieces, roots = upload(child_sum_levels(trees))
    h, c = model.leaf(words)
    for words, lengths, rows, ids in zip(*(iter(pieces),) * 4, strict=True):
        hs, cs = Ragged(gather(h, rows), lengths, ids), Ragged(gather(c, rows), lengths, ids)
        new_h, new_c = model.node(words, hs, cs)
        h, c = tf.concat([h, new_h], 0), tf.concat([c, new_c], 0)
    return model.logits(gather(h, roots))


def tagger(model: Any, sentences: Sequence[Any], width: int) -> Array:
    """Return the logits of all words of sentences."""
    import tensorflow as tf

    tools = Tools(
        upload=lambda indices, sizes: tf.split(tf.constant(indices), sizes),
        gather=gather_rows(),
        split=tf.split,
        concat=lambda xs: tf.concat(xs, 0),
        repeat=lambda row, count: tf.repeat(row, count, axis=0),
    )
    return tagger_of(model, sentences, tools)
