"""How close two arrays must be to count as equal, in `Fold.check` and in trials of launches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from multifold._engine.ops.closeness import close, differences, magnitude, tolerance_of, unlike

ALLOWED = {"g": 1e-9, "f8": 1e-9, "f4": 1e-4, "f2": 3e-2, "c16": 1e-9, "c8": 1e-4, "i8": 0, "?": 0}


@pytest.mark.parametrize(("dtype", "tolerance"), ALLOWED.items(), ids=ALLOWED)
def test_the_difference_that_a_dtype_allows(dtype, tolerance):
    x = np.zeros(2, dtype)
    assert tolerance_of(x, x) == tolerance_of(object(), x) == tolerance


def test_the_width_of_the_array_itself_counts_not_that_of_its_copy():
    assert tolerance_of(np.zeros(1, np.float16), np.zeros(1, np.float32)) == 3e-2


def test_numbers_of_one_byte_may_differ_by_a_step():
    """The steps of ``float8_e5m2`` from 1 to 2 are a quarter."""
    limit = tolerance_of(SimpleNamespace(dtype=SimpleNamespace(itemsize=1)), np.ones(1, np.float32))
    steps = np.array([[1.0], [1.25], [1.5]])
    assert close(steps[:1], steps[1:2], limit) and not close(steps[:1], steps[2:], limit)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_each_row_is_compared_on_its_own_scale(dtype, scale):
    rows = (np.arange(1.0, 7).reshape(2, 3) * [[1.0], [scale]]).astype(dtype)
    nearly = rows.copy()
    off = rows.copy()
    nearly[1, 0] += 0.5e-2 * scale
    off[0, 0] += 2  # a thousandth of the largest row is the least scale: 0.6 may be rounding beside 6e6
    assert close(rows, rows, 0) and close(nearly, rows, 1e-2)
    assert not close(off, rows, 1e-4) and not close(nearly, rows, 1e-4)


def test_small_numbers_are_compared_on_their_own_scale():
    x = np.array([[1e-9, 1e-9]])
    assert not close(2 * x, x, 1e-4) and close(x * (1 + 1e-6), x, 1e-4)


def test_an_imaginary_part_counts():
    x = np.array([[1 + 1j]])
    assert not close(x, x.conj(), 1e-3) and differences(x, x.conj())[0, 0] == 2


def test_shapes_and_whole_numbers_must_be_equal():
    assert not close(np.zeros((2, 1)), np.zeros(2), 1)
    assert close(np.arange(3), np.arange(3), 0) and not close(np.arange(3), np.arange(3) + 1, 9)
    for shape in ((0, 2), (2, 0), (2,), (2, 3, 1)):
        assert close(np.zeros(shape), np.zeros(shape), 0) and close(
            np.zeros(shape, int), np.zeros(shape, int), 0
        )


@pytest.mark.parametrize("dtype", ["f4", "c8", "i4", "?"])
def test_each_row_is_told_for_itself(dtype):
    one = np.zeros((3, 2), dtype)
    other = one.copy()
    other[1, 0] = 1
    assert unlike(other, one, 0.1).tolist() == unlike(one, other, 0.1).tolist() == [False, True, False]


def test_what_is_not_finite_is_equal_to_itself_only():
    x = np.array([[np.nan, np.inf, -np.inf, 1.0]])
    assert close(x, x.copy(), 1e-9) and magnitude(x) == 1 and magnitude(x[:, :3]) == 0
    for i in range(3):
        other = x.copy()
        other[0, i] = 0
        assert not close(other, x, 1e-1) and not close(x, other, 1e-1)


def test_the_magnitude_of_a_complex_number_has_both_parts():
    x = np.array([[1 + 1e6j]])
    assert close(x, x + 1, 1e-4) and not close(x, x + 1e3, 1e-4)


def test_what_is_not_finite_adds_nothing_to_the_scale_of_its_row():
    x = np.array([[np.inf, 0.001]])
    assert not close(x + 0.01, x, 0.1) and close(x + 1e-5, x, 0.1)


def test_the_difference_of_a_row_is_no_matter_of_other_rows():
    """What the scale of the first row allows is too much for the second."""
    x = np.array([[1e6, 1e6], [1.0, 1.0]])
    first = np.array([[900.0], [0.0]])
    second = np.array([[0.0], [900.0]])
    assert close(x + first, x, 1e-3) and not close(x + second, x, 1e-3)
