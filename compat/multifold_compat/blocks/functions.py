"""The ops of the blocks that bring their own, written once over `multifold.ops` and `multifold.Ragged`."""

from __future__ import annotations

from typing import Any

from multifold import ops
from multifold.backend import Array, Ragged


def same(x: Array) -> Array:
    """Return ``x``."""
    return x


def add(a: Array, b: Array) -> Array:
    """Return ``a + b``."""
    return a + b


def concat(*xs: Array, axis: int) -> Array:
    """Return arrays ``(n, *s)`` joined along ``axis`` of a row, that is ``axis + 1``.

    Where the axis is 0, numbers, ``(n,)``, count as rows of one.
    """
    if axis == 0:
        xs = tuple(ops.reshape(x, (1,)) if len(x.shape) == 1 else x for x in xs)
    return ops.concat(xs, axis + 1)


def total(rows: Ragged) -> Array:
    """Return the sum of each node's rows, ``(nodes, *s)``; zeros for a node without rows."""
    return ops.segment_sum(rows.values, rows)


def average(rows: Ragged) -> Array:
    """Return the mean of each node's rows, ``(nodes, *s)``; zeros for a node without rows."""
    return ops.segment_mean(rows.values, rows)


def largest(rows: Ragged) -> Array:
    """Return the largest of each node's rows, element by element; zeros for a node without rows."""
    return ops.segment_max(rows.values, rows)


def smallest(rows: Ragged) -> Array:
    """Return the smallest of each node's rows, element by element; zeros for a node without rows."""
    if rows.values.shape[0] == 0:  # MXNet 1.9.1 cannot negate an array without rows
        return ops.segment_max(rows.values, rows)
    return -ops.segment_max(-rows.values, rows)


def flattened(x: Any) -> tuple[Any, ...]:
    """Return a flat tuple of what nested tuples hold.

    ``(1, (2, 3))`` gives ``(1, 2, 3)``, ``1`` gives ``(1,)``.
    """
    if not isinstance(x, tuple):
        return (x,)
    return tuple(inner for item in x for inner in flattened(item))
