"""Arrays as the core sees them: rows on axis 0, ragged rows, and dtypes that promote each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any
"""An array of the backend's framework: rows on axis 0."""


NUMBER_DTYPES = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}
"""Python's numbers as NumPy keeps them, unless a framework has another default."""


PIECE = 8192
"""Rows of a launch that a CPU's caches and allocators still take well (docs/profile.md)."""


class Ragged(NamedTuple):
    """Any number of rows for each node of a launch: what an op receives for `multifold.ragged`.

    Attributes
    ----------
    values : array of shape ``(total, *s)``
        The rows of all nodes, one node after the other.
    lengths : integer array of shape ``(n,)``
        How many rows each node has; their sum is ``total``.
    segment_ids : integer array of shape ``(total,)``
        The node, from 0 to ``n - 1``, that each row belongs to; never decreasing.

    Examples
    --------
    >>> rows = Ragged(np.ones((3, 2)), np.array([1, 2]), np.array([0, 1, 1]))
    >>> total = np.zeros((len(rows.lengths), 2))
    >>> np.add.at(total, rows.segment_ids, rows.values)
    >>> total
    array([[1., 1.],
           [2., 2.]])
    """

    values: Array
    lengths: Array
    segment_ids: Array


def cached_pieces(rows: int) -> int:
    """Return into how many pieces a CPU divides a launch of that many rows: one for each `PIECE`, or 1.

    >>> [cached_pieces(rows) for rows in (1, 10_000, 16_384, 100_000)]
    [1, 1, 2, 12]
    """
    return max(1, rows // PIECE)


def promoted(
    signatures: Sequence[Any], inexact: Callable[[Any], bool], common: Callable[[Sequence[Any]], Any]
) -> Hashable | None:
    """Return the signature of some rows joined; None if they differ in more than inexact dtypes.

    Adapters use it for `Backend.promoted`.

    Parameters
    ----------
    signatures : sequence of tuple
        ``(trailing shape, dtype, ...)``.
    inexact : callable
        Returns whether a dtype is floating or complex. The core promotes no other: the integer 2**24 + 1
        would become 2**24 beside rows of float32.
    common : callable
        Returns the dtype of what the framework's own concatenation makes of such rows.

    Examples
    --------
    >>> def common(dtypes):
    ...     return np.result_type(*dtypes).name
    >>> promoted([((2,), "float16"), ((2,), "float32")], lambda dtype: "float" in dtype, common)
    ((2,), 'float32')
    >>> promoted([((2,), "int32"), ((2,), "float32")], lambda dtype: "float" in dtype, common)
    """
    shape, _, *rest = signatures[0]
    dtypes = [dtype for _, dtype, *_ in signatures]
    if any([x[0], *x[2:]] != [shape, *rest] for x in signatures) or not all(map(inexact, dtypes)):
        return None
    return shape, common(dtypes), *rest
