"""How close two arrays must be to count as equal, for all that compares results.

`gap` is what `Fold.check`, `Batched.check` and ``multifold compare`` ask of two whole arrays; `unlike` is
what trials of launches ask of their rows. Both read one table of tolerances.

Two runs of one op add and multiply in another order, so their results differ by rounding. How much that is
depends on the dtype, and on the magnitude of the numbers:

>>> x = np.array([[1.0, 2.0], [1e6, 2e6]], np.float32)
>>> tolerance_of(x, x)
0.0001
>>> close(x, x + np.float32(1e-4), 1e-4), close(x, x + np.float32(1), 1e-4)
(True, False)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 3e-2, 1: 0.3}
"""Bytes of a floating dtype -> difference allowed, relative to the largest magnitude.

That of one byte is a little more than its coarsest step, a quarter. What is longer than a double is
compared as doubles.
"""

SPREAD = 1e-3
"""A row that is smaller than this beside the largest one may carry the rounding errors of larger terms."""


def is_inexact(dtype: np.dtype) -> bool:
    """Return whether a dtype is floating or complex; NumPy takes bfloat16 for a structure of bytes."""
    return dtype.kind in "fc" or "float" in dtype.name


def tolerance_of(x: Any, host: np.ndarray) -> float:
    """Return the difference that the dtype of an array allows; its copy on the host may be wider."""
    return TOLERANCE[width_of(x, host)] if is_inexact(host.dtype) else 0.0


def width_of(x: Any, host: np.ndarray) -> int:
    """Return the bytes of a real number of a floating array, at most 8."""
    width = getattr(getattr(x, "dtype", None), "itemsize", None)
    if not isinstance(width, int):
        width = host.dtype.itemsize
    return min(width // (2 if host.dtype.kind == "c" else 1), 8)


def nudged(x: Any, host: np.ndarray) -> np.ndarray:
    """Return the numbers of an array, each a step away, up or down by turns; integers stay as they are.

    So do floats of two bytes and fewer, whose steps are as large as what an op does to a row may be.

    >>> nudged(None, np.ones(2)) - 1, nudged(None, np.ones(2, int))
    (array([-2.22044605e-16,  2.22044605e-16]), array([1, 1]))
    """
    if not is_inexact(host.dtype) or width_of(x, host) < 4:
        return host
    wide = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)
    signs = np.arange(host.size).reshape(host.shape) % 2 * 2 - 1
    return (wide * (1 + signs * float(np.finfo(host.dtype).eps))).astype(host.dtype)


def magnitude(x: np.ndarray) -> float:
    """Return the largest finite magnitude in an array; 0 where there is none."""
    if not is_inexact(x.dtype):
        return 0.0
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if len(finite) else 0.0


def differences(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return how far apart two arrays of floats are, entry by entry; NaN is as far from NaN as 1 from 1."""
    widest = np.complex128 if got.dtype.kind == "c" else np.float64
    wide = got.astype(widest)
    reference = expected.astype(widest)
    with np.errstate(invalid="ignore"):
        difference = np.abs(wide - reference)
    difference[(wide == reference) | (np.isnan(wide) & np.isnan(reference))] = 0
    return np.where(np.isnan(difference), np.inf, difference)


def gap(got: np.ndarray, expected: np.ndarray, rtol: float, scale: float = 0.0) -> tuple[float, float]:
    """Return how far apart two arrays of one shape are at most, and how far apart they may be.

    That is ``rtol`` times the largest magnitude of what is expected, or of ``scale`` if that is larger: a
    result that is small because large terms cancel carries the rounding of these. Integers may not differ.

    >>> gap(np.array([1.0, 2.0]), np.array([1.0, 2.5]), rtol=0.1)
    (0.5, 0.25)
    """
    got, expected = np.atleast_1d(got), np.atleast_1d(expected)
    if not got.size:
        return 0.0, 0.0
    if is_inexact(got.dtype):
        return float(differences(got, expected).max()), rtol * max(scale, magnitude(expected))
    if np.array_equal(got, expected):
        return 0.0, 0.0
    return float(np.abs(got.astype(float) - expected.astype(float)).max()), 0.0


def close(got: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    """Return whether two arrays have one shape, and all their rows are equal up to rounding."""
    return got.shape == expected.shape and not unlike(got, expected, rtol).any()


def unlike(got: np.ndarray, expected: np.ndarray, rtol: float, atol: Any = 0.0) -> np.ndarray:
    """Return which rows of two arrays differ by more than rounding, each on the scale of its own.

    One row of 1e6 must not hide a difference in a row of 1. ``atol``, a number or one for each row, is
    allowed besides.
    """
    if np.array_equal(got, expected):  # as most are, and this says so at once
        return np.zeros(len(got), bool)
    rows = len(got), math.prod(got.shape[1:])
    if not is_inexact(expected.dtype):
        return (got != expected).reshape(rows).any(axis=1)
    sizes = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    sizes = np.where(np.isfinite(sizes), sizes, 0).reshape(rows).max(axis=1, initial=0)
    limits = atol + rtol * np.maximum(sizes, SPREAD * sizes.max(initial=0))
    return differences(got, expected).reshape(rows).max(axis=1, initial=0) > limits
