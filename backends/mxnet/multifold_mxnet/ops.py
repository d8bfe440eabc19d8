"""The functions of `multifold.ops` for MXNet, on both of its kinds of arrays.

Two habits of MXNet are met in one place, `defined`. An operator takes arrays of one kind, so all
are viewed as legacy ones. And an array without rows, which legacy operators take for one of unknown
size, is handled under NumPy's rules and off the tape, where its gradient would crash MXNet 1.9.1:
what has no rows has no gradient either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from multifold.backend import Array, Ragged


def defined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, which takes legacy arrays (`mx.nd`) with rows, for all arrays.

    Given arrays of `mx.np` it returns `mx.np`. Where the first operand has no rows, it runs under NumPy's
    rules for shapes, off the tape.
    """

    @functools.wraps(function)
    def everywhere(*operands: Any) -> Any:
        x = operands[0][0] if isinstance(operands[0], (list, tuple)) else operands[0]
        if isinstance(x, mx.np.ndarray):
            return _view("as_np_ndarray", everywhere(*map(_legacy, operands)))
        if x.shape[0]:
            return function(*operands)
        with mx.util.np_shape(), autograd.pause():
            return function(*operands)

    return everywhere


def _legacy(x: Any) -> Any:
    return _view("as_nd_ndarray", x)


def _view(method: str, x: Any) -> Any:
    """Return ``x.method()``, a view of the other kind.

    ``method`` is ``"as_np_ndarray"`` or ``"as_nd_ndarray"``. Of a list, tuple or `Ragged` each part is
    viewed; what is no array stays.
    """
    if isinstance(x, Ragged):
        return Ragged(*[_view(method, part) for part in x])
    if isinstance(x, (list, tuple)):
        parts = [_view(method, part) for part in x]
        return tuple(parts) if isinstance(x, tuple) else parts
    return getattr(x, method)() if isinstance(x, nd.NDArray) else x


MANY = 8192
"""From this many elements on a CPU, oneDNN's functions are quicker than MXNet's own."""


def _activation(operator: Callable[..., Array], name: str) -> Callable[[Array], Array]:
    """Return a function of one array.

    `nd.Activation` of that name for many float32 on a CPU, else ``operator``. Many are `MANY` or more,
    where oneDNN's vectorised code is faster.
    """

    def activate(x: Array) -> Array:
        if x.size < MANY or x.dtype != np.float32 or x.ctx.device_type != "cpu":
            return operator(x)
        return nd.Activation(x, act_type=name)

    return activate


_sigmoid = _activation(nd.sigmoid, "sigmoid")
_tanh = _activation(nd.tanh, "tanh")


@defined
def sigmoid(x: Array) -> Array:
    # Nothing can differentiate nd.Activation twice (MXNet 1.9.1).
    return nd.sigmoid(x) if autograd.is_recording() else _sigmoid(x)


@defined
def tanh(x: Array) -> Array:
    return nd.tanh(x) if autograd.is_recording() else _tanh(x)


relu = defined(nd.relu)
exp = defined(nd.exp)
log = defined(nd.log)
zeros_like = defined(nd.zeros_like)
stack = defined(lambda xs, axis: nd.stack(*xs, axis=axis))
softmax = defined(lambda x, axis: nd.softmax(x, axis=axis))
log_softmax = defined(lambda x, axis: nd.log_softmax(x, axis=axis))


@defined
def concat(xs: Sequence[Array], axis: int) -> Array:
    if axis == 0:
        xs = [x for x in xs if x.shape[0]] or xs[:1]
    return nd.concat(*xs, dim=axis)


FEW = 8
"""Up to this many unequal sections cost less as slices than by one operator, gradients included."""


@defined
def split(x: Array, sections: int | Sequence[int], axis: int) -> Sequence[Array]:
    # MXNet's operators divide integers for each element, which slices don't. But each slice has a gradient
    # as large as x.
    length = x.shape[axis]
    if isinstance(sections, int):
        if length % sections:
            raise ValueError(f"An axis of {length} cannot be cut into {sections} equal sections.")
        if sections > 1 and autograd.is_recording():
            return nd.split(x, sections, axis=axis)
        sections = [length // sections] * sections
    ends = np.cumsum(sections).tolist()
    if ends[-1] != length:
        raise ValueError(f"Sections of {list(sections)} do not cover an axis of {length}.")
    if len(ends) == 1:
        return [x]
    if min(sections) < 1 or (len(ends) > FEW and autograd.is_recording()):
        return nd.split_v2(x, tuple(ends[:-1]), axis=axis)  # slices refuse sections of no length
    return [nd.slice_axis(x, axis=axis, begin=b, end=e) for b, e in pairwise([0, *ends])]


@defined
def take(x: Array, rows: Array) -> Array:
    return nd.take(x, rows) if rows.shape[0] else _zeros((0, *x.shape[1:]), x)


@defined
def reshape(x: Array, shape: Sequence[int]) -> Array:
    return nd.reshape(x, shape=(-1, *shape)) if x.shape[0] else _zeros((0, *shape), x)


@defined
def where(condition: Array, x: Array, y: Array) -> Array:
    if condition.dtype == np.bool_:
        condition = nd.cast(condition, dtype="uint8")  # legacy operators have no bool
    if condition.shape != x.shape:
        condition = nd.broadcast_to(condition, x.shape)
    return nd.where(condition, x, y)


@defined
def cast(x: Array, dtype: Any) -> Array:
    dtype = np.dtype(dtype if isinstance(dtype, str) else dtype.dtype)
    if x.dtype == dtype:
        return x
    return nd.cast(x, dtype=dtype.name) if x.shape[0] else _zeros(x.shape, x, dtype)


@defined
def matmul(a: Array, b: Array) -> Array:
    return nd.dot(a, b) if b.ndim == 2 else nd.batch_dot(a, b)


@defined
def linear(x: Array, weight: Array, bias: Array) -> Array:
    # MXNet's fully connected layer reads the weight's transpose, whose copy pays from many rows on.
    # Neither it nor nd.dot is differentiable twice.
    if x.shape[0] < 128:
        return nd.dot(x, weight) + bias
    return nd.FullyConnected(x, weight.T, bias, num_hidden=weight.shape[1])


@defined
def lstm_state(gates: Array, cells: Sequence[Array], kept: Array | None) -> tuple[Array, Array]:
    count = 3 + len(cells)
    rows = gates.shape[0]
    width = gates.shape[1] // count
    if autograd.is_recording() and gates.size >= MANY:
        # MXNet splits the middle one of three axes faster than columns.
        cut = nd.reshape(gates, shape=(rows, count, width))
        parts = nd.split(cut, count, axis=1, squeeze_axis=True)
    else:
        parts = [nd.slice_axis(gates, axis=1, begin=i * width, end=(i + 1) * width) for i in range(count)]
    take_in, *keep, out, candidate = parts
    c = _sigmoid(take_in) * _tanh(candidate)
    for gate, cell in zip(keep, cells, strict=True):
        c = c + _sigmoid(gate) * cell
    if kept is not None:
        c = c + kept
    return _sigmoid(out) * _tanh(c), c


def _reduction(operator: Callable[..., Array]) -> Callable[[Array, int], Array]:
    """Return ``operator(x, axis)`` that returns zeros of the reduced shape where ``x`` has no rows.

    MXNet's own reductions refuse such arrays.
    """

    def reduce(x: Array, axis: int) -> Array:
        if x.shape[0]:
            return operator(x, axis=axis)
        shape = list(x.shape)
        del shape[axis]
        return _zeros(shape, x)

    return defined(reduce)


sum = _reduction(nd.sum)
mean = _reduction(nd.mean)
max = _reduction(nd.max)


@defined
def segment_sum(values: Array, segments: Ragged) -> Array:
    shape = (segments.lengths.shape[0], *values.shape[1:])
    if not values.shape[0]:
        return _zeros(shape, values)
    # MXNet's own description of this operator: "accumulates data according to indices". It has a gradient.
    # A product with a one-hot matrix would take time in rows times nodes; differences of a cumulative sum
    # would lose digits.
    ids = nd.expand_dims(segments.segment_ids, 0)
    return nd._internal._backward_gather_nd(values, ids, shape=shape)


@defined
def segment_mean(values: Array, segments: Ragged) -> Array:
    lengths = nd.cast(nd.maximum(segments.lengths, 1), dtype=values.dtype)
    return nd.broadcast_div(segment_sum(values, segments), _column(lengths, values))


@defined
def segment_max(values: Array, segments: Ragged) -> Array:
    if not values.shape[0]:
        return segment_sum(values, segments)
    ids = segments.segment_ids
    with autograd.pause():
        hits = values == nd.take(_largest(values, segments), ids)
        share = nd.cast(hits, dtype=values.dtype)
        share = share / nd.take(segment_sum(share, segments), ids)
    return segment_sum(nd.where(hits, values, nd.zeros_like(values)) * share, segments)


@defined
def segment_softmax(values: Array, segments: Ragged) -> Array:
    if not values.shape[0]:
        return values
    ids = segments.segment_ids
    with autograd.pause():
        largest = nd.take(_largest(values, segments), ids)
    powers = nd.exp(values - largest)
    return powers / nd.take(segment_sum(powers, segments), ids)


def _largest(values: Array, segments: Ragged) -> Array:
    """Return the largest values of each node's rows, ``(nodes, *s)``; for a node without rows any value.

    MXNet has no such operator. Each row is compared with the row 1, then 2, 4, ... before it, if both
    belong to one node. After that the last row of each node holds the largest values.
    """
    ids = segments.segment_ids
    step = 1
    while step < len(values):
        before = values[:-step]
        here = values[step:]
        same = ids[:-step] == ids[step:]
        values = nd.concat(values[:step], nd.where(same, nd.maximum(before, here), here), dim=0)
        step *= 2
    return nd.take(values, nd.cumsum(segments.lengths) - 1)  # clips the -1 of an empty first one


def _column(lengths: Array, values: Array) -> Array:
    """Return ``lengths``, of shape ``(n,)``, as ``(n, 1, ..., 1)`` with as many axes as ``values``."""
    return nd.reshape(lengths, shape=(-1, *[1] * (values.ndim - 1)))


def _zeros(shape: Sequence[int], like: Array, dtype: Any = None) -> Array:
    """Return zeros of a shape, on the context of ``like`` and of its dtype unless ``dtype`` is given."""
    with mx.util.np_shape():
        return nd.zeros(tuple(shape), ctx=like.ctx, dtype=dtype or like.dtype)
