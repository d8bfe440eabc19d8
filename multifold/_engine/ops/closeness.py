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
"""A row below this fraction of the largest row may carry the rounding errors of larger terms."""


def is_inexact(dtype: np.dtype) -> bool:
    """Return whether a dtype is floating or complex; so is bfloat16, of kind "V" in NumPy."""
    return dtype.kind in "fc" or "float" in dtype.name


def tolerance_of(x: Any, host: np.ndarray) -> float:
    """Return the relative difference that the dtype of ``x`` allows, out of `TOLERANCE`; 0.0 for integers.

    ``x`` is an array of any framework, or None, and ``host`` its NumPy copy, whose dtype may be wider: that
    of bfloat16 is float32.

    >>> tolerance_of(None, np.zeros(2, "float32")), tolerance_of(None, np.zeros(2, int))
    (0.0001, 0.0)
    """
    return TOLERANCE[width_of(x, host)] if is_inexact(host.dtype) else 0.0


def width_of(x: Any, host: np.ndarray) -> int:
    """Return how many bytes a real number of a floating array has, at most 8; half of a complex number.

    The dtype of ``x`` counts if it says its size, else that of ``host``, the copy of ``x`` on the host.
    """
    width = getattr(getattr(x, "dtype", None), "itemsize", None)
    if not isinstance(width, int):
        width = host.dtype.itemsize
    return min(width // (2 if host.dtype.kind == "c" else 1), 8)


def nudged(x: Any, host: np.ndarray) -> np.ndarray:
    """Return the numbers of ``host``, each moved by one rounding step, down and up by turns.

    Integers stay as they are, and so do floats of two bytes and fewer: their steps are as large as what an
    op may do to a row. ``host`` is the NumPy copy of ``x``, which says the dtype and may be None.

    >>> nudged(None, np.ones(2)) - 1, nudged(None, np.ones(2, int))
    (array([-2.22044605e-16,  2.22044605e-16]), array([1, 1]))
    """
    if not is_inexact(host.dtype) or width_of(x, host) < 4:
        return host
    wide = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)
    signs = np.arange(host.size).reshape(host.shape) % 2 * 2 - 1
    return (wide * (1 + signs * float(np.finfo(host.dtype).eps))).astype(host.dtype)


def magnitude(x: np.ndarray) -> float:
    """Return the largest absolute value of the finite entries; 0.0 for integers, or without entries.

    >>> magnitude(np.array([1.0, -3.0, np.inf]))
    3.0
    """
    if not is_inexact(x.dtype):
        return 0.0
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if len(finite) else 0.0


def differences(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the absolute difference of two float arrays of one shape, entry by entry, as float64.

    Two NaN, or two equal infinities, differ by 0; NaN and a number differ by infinity.
    """
    widest = np.complex128 if got.dtype.kind == "c" else np.float64
    wide = got.astype(widest)
    reference = expected.astype(widest)
    with np.errstate(invalid="ignore"):
        difference = np.abs(wide - reference)
    difference[(wide == reference) | (np.isnan(wide) & np.isnan(reference))] = 0
    return np.where(np.isnan(difference), np.inf, difference)


def gap(got: np.ndarray, expected: np.ndarray, rtol: float, scale: float = 0.0) -> tuple[float, float]:
    """Return the largest difference of two arrays of one shape, and the largest that is allowed.

    Allowed is ``rtol`` times the largest magnitude of what is expected, or of ``scale`` if that is larger:
    a result that is small because large terms cancel carries the rounding of these. Integers may not
    differ.

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
    """Return whether two arrays have one shape, and no row differs by more than rounding (`unlike`)."""
    return got.shape == expected.shape and not unlike(got, expected, rtol).any()


def unlike(got: np.ndarray, expected: np.ndarray, rtol: float, atol: Any = 0.0) -> np.ndarray:
    """Return for each row, as a bool array ``(n,)``, whether two arrays of shape ``(n, *s)`` differ there.

    Rows differ if an entry is off by more than ``rtol`` times the largest magnitude of the row that is
    expected, plus ``atol``, a number or an array ``(n,)``: one row of 1e6 must not hide a difference in a
    row of 1. A row below `SPREAD` times the largest one counts as large as that. Integers must be equal.

    >>> unlike(np.array([[1.0], [100.0]]), np.array([[1.1], [101.0]]), rtol=0.01).tolist()
    [True, False]
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
