"""What counts as a difference in a trial: neither rounding, nor infinities that stay where they were."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from multifold._engine.ops.closeness import close, differences, is_inexact, magnitude, tolerance_of
from multifold._engine.ops.trial import Trial
from multifold._engine.ops.values import Values
from multifold._numpy.backend import NumpyBackend


def test_infinities_and_nan_are_no_difference_to_themselves_and_no_warning():
    values = np.array([np.inf, -np.inf, np.nan, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert differences(values, values).tolist() == [0, 0, 0, 0]
        assert differences(values, values[::-1].copy()).tolist() == [np.inf] * 4


def test_arrays_of_other_shapes_or_other_integers_are_not_close():
    one = np.float32([[1, 2], [3, 4]])
    assert close(one, one * np.float32(1 + 1e-6), 1e-4) and not close(one, one + 1, 1e-4)
    assert not close(one, one[:1], 1e-4) and not close(one[:1], one, 1e-4)
    assert close(np.array([1, 2]), np.array([1, 2]), 0.5) and not close(
        np.array([1, 2]), np.array([1, 3]), 0.5
    )
    assert close(one[:0], one[:0], 1e-4)


def test_the_magnitude_of_an_array_is_that_of_its_finite_floats():
    assert magnitude(np.array([1.0, -3.0, np.inf, np.nan])) == 3.0
    assert magnitude(np.array([5, 6])) == magnitude(np.zeros(0)) == magnitude(np.array([np.nan])) == 0.0


def test_the_dtype_of_the_backend_says_how_close_and_not_that_of_its_copy():
    host = np.ones(2, np.float32)
    assert tolerance_of(np.ones(2, np.float16), host) == 3e-2  # as bfloat16, read as float32
    assert tolerance_of(object(), host) == tolerance_of(host, host) == 1e-4
    assert tolerance_of(host, np.ones(2, np.complex64)) == 3e-2
    assert tolerance_of(np.ones(2), np.ones(2)) == 1e-9 and tolerance_of(host, np.array([1])) == 0.0


def test_floats_and_complex_numbers_are_inexact_and_integers_are_exact():
    assert [is_inexact(np.dtype(x)) for x in ("f4", "c8", "i4", "u1", "?")] == [True, True] + [False] * 3


ONES = 1 + np.random.default_rng(0).uniform(0, 1e-3, (6, 2)).astype("float32")


def cancelled(x):
    """Return the small difference of two numbers near 1, which another order of terms rounds otherwise."""
    return x[:, 0] - x[:, 1] + (np.arange(len(x)) % 2 * 2**-23).astype("float32")


@pytest.mark.parametrize("alike", [True, False])
def test_a_small_difference_of_large_numbers_may_have_their_rounding(alike):
    x = np.repeat(ONES[:1], 6, 0) if alike else ONES
    assert Trial(Values(NumpyBackend(), None), cancelled, [x], 6).deviation(cancelled(x)) is None


def test_small_differences_that_mix_rows_do_not_pass_as_rounding():
    for mixing in (lambda x: cancelled(x) - cancelled(x).mean(), lambda x: cancelled(x)[::-1].copy()):
        assert Trial(Values(NumpyBackend(), None), mixing, [ONES], 6).deviation(mixing(ONES)) is not None


def test_what_changes_wholly_with_the_last_digit_is_no_rounding():
    def mixing(x):
        return np.modf(1e6 * x[:, 0] * x[:, 1])[0] + x[:, 0].mean()

    x = np.random.default_rng(0).uniform(0.5, 1.5, (6, 2)).astype("float32")
    assert Trial(Values(NumpyBackend(), None), mixing, [x], 6).deviation(mixing(x)) is not None
