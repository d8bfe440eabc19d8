"""The functions of `multifold.ops` for TensorFlow, also inside of a `tf.function`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multifold.backend import Ragged

raw = tf.raw_ops
concat = tf.concat
where = tf.where
zeros_like = tf.zeros_like
matmul = tf.matmul
sigmoid = tf.sigmoid
tanh = tf.tanh
relu = tf.nn.relu
exp = tf.exp
log = tf.math.log
softmax = tf.nn.softmax
log_softmax = tf.nn.log_softmax
sum = tf.reduce_sum
mean = tf.reduce_mean
max = tf.reduce_max


def _array(x: Any) -> Any:
    """Return the `tf.Variable` inside of a `keras.Variable`; anything else as it is."""
    keras = sys.modules.get("keras")
    return x.value if keras is not None and isinstance(x, keras.Variable) else x


def stack(xs: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    return tf.stack([_array(x) for x in xs], axis)


def split(x: tf.Tensor, sections: int | Sequence[int], axis: int) -> Sequence[tf.Tensor]:
    size = x.shape[axis]
    if isinstance(sections, int) and size is not None and size % sections:
        raise ValueError(f"An axis of {size} cannot be cut into {sections} equal sections.")
    return tf.split(x, sections, axis)


def linear(x: tf.Tensor, weight: Any, bias: Any) -> tf.Tensor:
    # BiasAdd has a simpler gradient than a sum that broadcasts, which counts where rows are few.
    return raw.BiasAdd(value=raw.MatMul(a=_array(x), b=_array(weight)), bias=_array(bias))


def lstm_state(
    gates: tf.Tensor, cells: Sequence[tf.Tensor], kept: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    # Raw operations skip names and conversions, which take long beside such small ones, and one split in
    # place of two saves a copy.
    take_in, *keep, out, candidate = raw.Split(axis=1, value=gates, num_split=3 + len(cells))
    c = raw.Mul(x=raw.Sigmoid(x=take_in), y=raw.Tanh(x=candidate))
    for gate, cell in zip(keep, cells, strict=True):
        c = raw.AddV2(x=c, y=raw.Mul(x=raw.Sigmoid(x=gate), y=cell))
    if kept is not None:
        c = raw.AddV2(x=c, y=kept)
    return raw.Mul(x=raw.Sigmoid(x=out), y=raw.Tanh(x=c)), c


def take(x: Any, rows: tf.Tensor) -> tf.Tensor:
    # The gradient of a variable, such as an embedding, holds only the rows that were read. Any other array
    # gets a dense gradient: TensorFlow would make that of `tf.gather` dense anyway, in a dozen operations.
    x = _array(x)
    return tf.gather(x, rows) if isinstance(x, tf.Variable) else _take(x, rows)


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    return tf.reshape(x, (_rows(x), *shape))


def cast(x: tf.Tensor, dtype: Any) -> tf.Tensor:
    return tf.cast(x, dtype if isinstance(dtype, str) else dtype.dtype)


def segment_sum(values: tf.Tensor, segments: Ragged) -> tf.Tensor:
    # Not tf.math.segment_sum: how many segments there are would depend on the values of the ids.
    return tf.math.unsorted_segment_sum(values, segments.segment_ids, _count(segments))


def segment_mean(values: tf.Tensor, segments: Ragged) -> tf.Tensor:
    lengths = tf.cast(tf.maximum(segments.lengths, 1), values.dtype)
    lengths = tf.reshape(lengths, (-1, *[1] * (values.shape.rank - 1)))
    return segment_sum(values, segments) / lengths


def segment_max(values: tf.Tensor, segments: Ragged) -> tf.Tensor:
    ids = segments.segment_ids
    count = _count(segments)
    largest = tf.math.unsorted_segment_max(values, ids, count)
    # A segment without rows has the least number there is, and is to have 0.
    filled = tf.reshape(segments.lengths > 0, (-1, *[1] * (values.shape.rank - 1)))
    return tf.where(filled, largest, tf.zeros_like(largest))


def segment_softmax(values: tf.Tensor, segments: Ragged) -> tf.Tensor:
    ids = segments.segment_ids
    count = _count(segments)
    # The largest value cancels out, so no gradient goes through it.
    largest = tf.math.unsorted_segment_max(tf.stop_gradient(values), ids, count)
    powers = tf.exp(values - tf.gather(largest, ids))
    return powers / _take(segment_sum(powers, segments), ids)


@tf.custom_gradient
def _take(x: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return ``x[rows]`` along axis 0, with a gradient that is a dense array of the shape of ``x``."""
    size = _rows(x)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(upstream, rows, size), None

    return tf.gather(x, rows), gradient


def _rows(x: tf.Tensor) -> Any:
    """Return the length of axis 0: an int if the shape is static, else, inside of a program, a tensor."""
    return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def _count(segments: Ragged) -> Any:
    """Return the length of ``segments.lengths``, one for each node.

    An int, or a tensor if it is not static.
    """
    return _rows(segments.lengths)
