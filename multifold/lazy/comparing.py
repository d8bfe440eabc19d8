"""Comparing what a batched program returns with what its loop returns, as `Batched.check` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import optree

from multifold._engine.ops.closeness import gap, tolerance_of
from multifold._engine.ops.closeness import magnitude as magnitude
from multifold.backend import Backend

ROUNDED, OF_READS = (float, np.floating, np.ndarray), tolerance_of(None, np.ones(1, np.float32))
"""What a program may have computed from values that it read, and how far apart two of these may be: the
arrays were perhaps of single precision, whatever they are now."""


def differing(backend: Backend, found: Sequence[Any], wanted: Sequence[Any]) -> int | None:
    """Return the index of the first example whose batched result differs from the loop's, or None.

    ``found`` and ``wanted`` hold what each example returned, batched and in the loop, nested as it is.
    Arrays of one shape that several examples return at one position may differ by the rounding of the
    largest of them: a small result may be the sum of large terms.
    """
    ours, theirs = [[optree.tree_leaves(x) for x in results] for results in (found, wanted)]
    scales: defaultdict[Hashable, float] = defaultdict(float)
    for leaves in theirs:
        for place, x in enumerate(leaves):
            if backend.owns(x):
                key = place, *x.shape
                scales[key] = max(scales[key], magnitude(backend.to_numpy(x)))
    for number, leaves in enumerate(theirs):
        if len(ours[number]) != len(leaves):
            return number
        for place, (x, y) in enumerate(zip(ours[number], leaves, strict=True)):
            if not same(backend, x, y, scales[place, *y.shape] if backend.owns(y) else 0.0):
                return number
    return None


def same(backend: Backend, x: Any, y: Any, scale: float = 0.0) -> bool:
    """Return whether two leaves of results are equal: a Python bool, whatever they are.

    Two arrays of the backend are equal up to the rounding of their dtype, relative to the largest magnitude
    in ``y`` or to ``scale`` if that is larger. So are two floats or NumPy arrays, with a scale of 1.
    Anything else is compared by ``==``.
    """
    if backend.owns(x) and backend.owns(y):
        return alike(backend.to_numpy(x), backend.to_numpy(y), tolerance_of(x, backend.to_numpy(x)), scale)
    if isinstance(x, ROUNDED) and isinstance(y, ROUNDED):
        # It is not known beside which numbers they were computed: beside 1, say.
        return alike(np.asarray(x), np.asarray(y), OF_READS, 1.0)
    return bool(np.all(x == y))


def alike(x: np.ndarray, y: np.ndarray, rtol: float, scale: float) -> bool:
    """Return whether two arrays have one shape and are equal up to rounding.

    Floats may differ by ``rtol`` times the largest magnitude in ``y``, or ``rtol * scale`` if that is
    larger; integers not at all.
    """
    if x.shape != y.shape:
        return False
    difference, allowed = gap(x, y, rtol, scale)
    return difference <= allowed
