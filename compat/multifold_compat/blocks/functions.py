"""The ops of the blocks that bring their own, written once over `multifold.ops` and `multifold.Ragged`."""

from __future__ import annotations

from typing import Any

from multifold import ops
from multifold.backend import Array, Ragged


def same(x: Array) -> Array:
    """Return an array as it is."""
    return x


def add(a: Array, b: Array) -> Array:
    """Return the sum of two arrays."""
    return a + b


def concat(*xs: Array, axis: int) -> Array:
    """Return rows side by side along an axis of a row; numbers become rows of one where the axis is 0."""
    if axis == 0:
        xs = tuple(ops.reshape(x, (1,)) if len(x.shape) == 1 else x for x in xs)
    return ops.concat(xs, axis + 1)


def total(rows: Ragged) -> Array:
    """Return the sum of each node's rows."""
    return ops.segment_sum(rows.values, rows)


def average(rows: Ragged) -> Array:
    """Return the mean of each node's rows."""
    return ops.segment_mean(rows.values, rows)


def largest(rows: Ragged) -> Array:
    """Return the largest of each node's rows, element by element."""
    return ops.segment_max(rows.values, rows)


def smallest(rows: Ragged) -> Array:
    """Return the smallest of each node's rows, element by element."""
    if rows.values.shape[0] == 0:  # MXNet 1.9.1 cannot negate an array without rows
        return ops.segment_max(rows.values, rows)
    return -ops.segment_max(-rows.values, rows)


def flattened(x: Any) -> tuple[Any, ...]:
    """Return what stands in nested tuples, in one."""
    if not isinstance(x, tuple):
        return (x,)
    return tuple(inner for item in x for inner in flattened(item))
