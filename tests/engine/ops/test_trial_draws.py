"""Trials of ops that draw numbers, and so answer differently each time."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from trials import MIXING_OPS, column, normal, one_group, refuse_in, scaled

from multifold import Fold, LaunchError


@pytest.mark.parametrize("source", [np.random, random], ids=["NumPy", "Python"])
def test_an_op_that_draws_numbers_passes_and_moves_no_other_draw(backend, rows, counted, source):
    op = counted(lambda x, s: x * column(s) * float(source.random()))
    drawn = []
    for _ in range(2):
        fold = Fold(backend=backend)
        source.seed(0)
        fold(scaled(fold, op, rows(3, 3), [1.0, 2.0, 3.0]))
        drawn.append(source.random())
    assert drawn[0] == drawn[1]
    assert op.rows == [3] * 18  # a launch and eight runs, twice: random numbers may hide what is looked for


def test_an_op_that_draws_numbers_is_compared_by_shapes(fold, rows, refused):
    outputs = scaled(fold, lambda x, s: x * s * float(np.random.random()), rows(4, 1), [1.0, 2.0, 3.0, 4.0])
    refused(lambda: fold(outputs))


@pytest.mark.parametrize("once", [True, False])
def test_an_op_that_draws_one_number_for_all_rows_is_told_of(once, recwarn):
    def op(x):
        return x * np.random.random(() if once else (len(x), 1))

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, normal(8)))
    told = [
        str(x.message) for x in recwarn if "draws the same random numbers for all rows" in str(x.message)
    ]
    assert len(told) == once


@pytest.mark.parametrize("name", ["first", "one row before", "mean", "mirrored"])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_an_op_that_mixes_rows_and_draws_is_refused(name, count):
    def op(x):
        found = x[::-1] if name == "mirrored" else MIXING_OPS[name](x)
        return found * (0.5 + np.random.random(x.shape))

    xs = np.random.default_rng(0).normal(size=(count, 1, 3))
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, op, xs))


def test_an_op_whose_draws_follow_its_values_passes():
    def op(x):
        return x + np.random.poisson(np.abs(x) * 20)

    xs = np.random.default_rng(0).normal(size=(8, 1, 3))
    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fold.apply(None, one_group(fold, op, xs))[0].shape == (8, 3)


def test_a_generator_that_a_function_finds_around_it_moves_on_as_by_one_launch():
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    states = []
    for trials in (True, False):
        rng = np.random.default_rng(7)
        fold = Fold(backend="numpy", trials=trials)
        fold.apply(None, one_group(fold, lambda x, rng=rng: x + rng.random(x.shape), xs))
        states.append(rng.bit_generator.state)
    assert states[0] == states[1]


GENERATORS = {
    "a generator": lambda: np.random.default_rng(0),
    "a random state": lambda: np.random.RandomState(0),
    "one of Python": lambda: random.Random(0),
}


@pytest.mark.parametrize("in_mapping", [False, True], ids=["attribute", "entry"])
@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_of_the_model_moves_on_as_by_one_launch(make, in_mapping):
    class Model:
        def __init__(self):
            self.rng = make()

        def op(self, x):
            return x + self.rng.random()

    found = []
    for trials in (True, False):
        model = Model()
        if in_mapping:
            model = {"rng": model.rng}
            model["op"] = lambda x, model=model: x + model["rng"].random()
        fold = Fold(backend="numpy", trials=trials)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = fold.apply(model, one_group(fold, "op", np.arange(4.0).reshape(4, 1, 1)))[0]
        rng = model["rng"] if in_mapping else model.rng
        found.append((result.ravel().tolist(), rng.random()))
    assert found[0] == found[1]


def test_draws_that_follow_some_values_only_pass():
    """Each row draws as many numbers as it says. Other even rows draw other numbers, odd ones as many."""

    def op(x):
        return np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    xs = np.array([[1.0, 0.0], [1.0, 1.0], [5.0, 2.0], [5.0, 3.0]])[:, None]
    assert fold.apply(None, one_group(fold, op, xs))[0].shape == (4, 1)


def test_an_op_whose_draws_follow_its_values_and_that_mixes_rows_is_refused():
    fold = Fold(backend="numpy")
    outputs = one_group(fold, lambda x: x - x.mean(0) + np.random.poisson(np.abs(x) * 20), normal(8))
    refuse_in(fold, None, outputs)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_op_that_draws_as_many_numbers_as_a_row_says_and_mixes_rows_is_refused(count):
    def op(x):
        return x - x.mean(0) + np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, op, np.arange(1.0, count + 1)[:, None, None]))


def test_state_that_follows_the_rows_hides_no_mixing_of_an_op_that_draws():
    class Model:
        total = 0.0

        def op(self, x):
            self.total += float(x.sum())
            return MIXING_OPS["one row before"](x) * (0.5 + np.random.random(x.shape))

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


def test_state_of_an_op_that_draws_is_refused():
    class Model:
        mean = 0.0

        def op(self, x):
            found = (x - self.mean) * (0.5 + np.random.random(x.shape))
            self.mean = x.mean()
            return found

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)), "keeps state on the model")


@pytest.mark.parametrize(("row", "other"), [(2, 0), (0, 2), (1, 3), (3, 1), (1, 0)])
def test_one_row_that_follows_another_one_shows_although_the_op_draws(row, other):
    def op(x):
        found = x * (0.5 + np.random.random(x.shape))
        found[row] += x[other]
        return found

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, op, normal(4)))


def test_what_an_op_raises_counts_although_its_draws_follow_its_values():
    def op(x):
        if x[0] != 1:
            raise KeyError("the first row")
        return x + np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    refuse_in(
        fold, None, one_group(fold, op, [np.full((1, 1), i) for i in (1, 2, 4)]), "it raised KeyError"
    )
