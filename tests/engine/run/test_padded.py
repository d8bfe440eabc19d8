"""Rows of padded launches are gathered from whole results, of few sizes."""

from __future__ import annotations

import numpy as np
import pytest

from multifold._engine.ops.values import Values
from multifold._engine.run.padded import PaddedSections, stretches, to_power_of_two
from multifold._numpy.backend import NumpyBackend


class Gathering(PaddedSections):
    """Only what gathers; it notes the sizes that a framework would compile for."""

    def __init__(self):
        self.backend = NumpyBackend()
        self.values = Values(self.backend, None)


@pytest.mark.parametrize("sizes", [[8], [8, 8], [8, 8, 8], [4, 8], [2, 16, 4, 16, 4, 2, 4], [1] * 5])
def test_rows_come_from_the_results_that_they_are_of(sizes):
    rng = np.random.default_rng(len(sizes))
    sources = [rng.normal(size=(size, 3)) for size in sizes]
    which = rng.integers(len(sizes), size=16)
    rows = np.array([rng.integers(sizes[i]) for i in which])
    found = Gathering().gathered(sources, which, rows)
    np.testing.assert_array_equal(found, [sources[i][j] for i, j in zip(which, rows, strict=True)])


def test_a_whole_result_in_order_is_read_as_it_is():
    source = np.ones((4, 3))
    assert Gathering().gathered([source], np.zeros(4, int), np.arange(4)) is source


def test_results_of_a_container_are_gathered_leaf_by_leaf():
    sources = [(np.arange(4.0), np.ones((4, 2))), (np.arange(2.0) + 10, np.zeros((2, 2)))]
    numbers, rows = Gathering().gathered(sources, np.array([1, 0, 1, 0]), np.array([1, 3, 0, 0]))
    assert numbers.tolist() == [11, 3, 10, 0] and rows[:, 0].tolist() == [0, 1, 0, 1]


def test_stretches_and_counts():
    found = stretches("value", np.array([5, 6, 7]), (1, 2), (3, None))
    assert found[3].rows.tolist() == [5] and found[None].rows.tolist() == [6, 7]
    assert [len(to_power_of_two([0] * count)) for count in (1, 2, 3, 5)] == [1, 2, 4, 8]
