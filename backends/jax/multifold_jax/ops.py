"""The functions of `multifold.ops` for JAX, compiled once a shape, also inside of `jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multifold.backend import Ragged


def over(axis_function: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """Return ``axis_function(x, axis)`` compiled by `jax.jit`, once for each axis and shape.

    Eager JAX would pay for each step in it.
    """
    return jax.jit(axis_function, static_argnums=1)


stack = over(jnp.stack)
softmax = over(jax.nn.softmax)
log_softmax = over(jax.nn.log_softmax)
sum = over(jnp.sum)
mean = over(jnp.mean)
max = over(jnp.max)
where = jnp.where
zeros_like = jax.jit(jnp.zeros_like)
matmul = jnp.matmul
tanh = jnp.tanh
relu = jax.nn.relu
exp = jnp.exp
log = jnp.log
_concat = over(jnp.concatenate)
_split = jax.jit(jax.lax.split, static_argnums=(1, 2))
_reshape = jax.jit(jnp.reshape, static_argnums=1)
_cast = jax.jit(jax.lax.convert_element_type, static_argnums=1)


def sigmoid(x: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(_array(x))


def _array(x: Any) -> Any:
    """Return ``x`` if it is a `jax.Array`, else `jnp.asarray` of it, as of a parameter of Flax."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def concat(xs: Sequence[jax.Array], axis: int) -> jax.Array:
    return _concat(tuple(xs), axis)


def split(x: jax.Array, sections: int | Sequence[int], axis: int) -> Sequence[jax.Array]:
    if isinstance(sections, int):
        size, rest = divmod(x.shape[axis], sections)
        if rest:
            raise ValueError(f"An axis of {x.shape[axis]} cannot be cut into {sections} equal sections.")
        sections = (size,) * sections
    return _split(_array(x), tuple(sections), axis % x.ndim)


@jax.jit
def linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return jnp.matmul(x, weight) + bias


def affine(xs: Sequence[jax.Array], weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    return _affine(tuple(xs), weight, bias)


@jax.jit
def _affine(xs: Any, weight: Any, bias: Any) -> Any:
    product = jnp.matmul(jnp.concatenate(xs, -1), weight)
    return product if bias is None else product + bias


def lstm_state(
    gates: jax.Array, cells: Sequence[jax.Array], kept: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    # One call of compiled code in the place of a dozen of eager ones.
    return _lstm_state(gates, tuple(cells), kept)


@jax.jit
def _lstm_state(gates: Any, cells: Any, kept: Any) -> Any:
    take_in, *keep, out, candidate = jnp.split(gates, 3 + len(cells), 1)
    c = jax.nn.sigmoid(take_in) * jnp.tanh(candidate)
    for gate, cell in zip(keep, cells, strict=True):
        c = c + jax.nn.sigmoid(gate) * cell
    if kept is not None:
        c = c + kept
    return jax.nn.sigmoid(out) * jnp.tanh(c), c


@jax.jit
def take(x: jax.Array, rows: jax.Array) -> jax.Array:
    return x.at[rows].get(mode="promise_in_bounds")


def reshape(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    return _reshape(x, (x.shape[0], *shape))


def cast(x: jax.Array, dtype: Any) -> jax.Array:
    dtype = jnp.dtype(dtype if isinstance(dtype, str) else dtype.dtype)
    return x if x.dtype == dtype else _cast(x, dtype)


def segment_sum(values: jax.Array, segments: Ragged) -> jax.Array:
    return _segment_sum(values, segments.segment_ids, segments.lengths.shape[0])


def segment_mean(values: jax.Array, segments: Ragged) -> jax.Array:
    return _segment_mean(values, segments.segment_ids, segments.lengths)


def segment_max(values: jax.Array, segments: Ragged) -> jax.Array:
    return _segment_max(values, segments.segment_ids, segments.lengths)


def segment_softmax(values: jax.Array, segments: Ragged) -> jax.Array:
    return _segment_softmax(values, segments.segment_ids, segments.lengths)


@functools.partial(jax.jit, static_argnums=2)
def _segment_sum(values: Any, ids: Any, count: int) -> Any:
    return jax.ops.segment_sum(values, ids, count, indices_are_sorted=True)


@jax.jit
def _segment_mean(values: Any, ids: Any, lengths: Any) -> Any:
    sums = _segment_sum(values, ids, lengths.shape[0])
    return sums / _column(jnp.maximum(lengths, 1), values).astype(values.dtype)


@jax.jit
def _segment_max(values: Any, ids: Any, lengths: Any) -> Any:
    largest = jax.ops.segment_max(values, ids, lengths.shape[0], indices_are_sorted=True)
    return jnp.where(_column(lengths > 0, values), largest, 0)


@jax.jit
def _segment_softmax(values: Any, ids: Any, lengths: Any) -> Any:
    largest = _segment_max(jax.lax.stop_gradient(values), ids, lengths)
    powers = jnp.exp(values - take(largest, ids))
    return powers / take(_segment_sum(powers, ids, lengths.shape[0]), ids)


def _column(lengths: Any, values: Any) -> Any:
    """Return ``lengths``, of shape ``(n,)``, as ``(n, 1, ..., 1)`` with as many axes as ``values``."""
    return lengths.reshape(-1, *[1] * (values.ndim - 1))
