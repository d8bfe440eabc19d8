"""What each model of `multifold.models` and of `multifold_bench.models` is held to.

A file of tests imports these tests, and has a fixture `example`: the constructor of a model, and what
records a minibatch and returns a group of nodes.
"""

from __future__ import annotations

import functools
import importlib
import pickle
from collections import namedtuple
from contextlib import nullcontext

import numpy as np
import pytest

import multifold

Tree = namedtuple("Tree", "word children", defaults=[()])


class Binary(Tree):
    """A binary tree with words at its leaves."""

    left = property(lambda self: self.children[0])
    right = property(lambda self: self.children[1])


def binary(shape):
    """Return nested pairs of word ids as a tree."""
    if isinstance(shape, int):
        return Binary(shape)
    return Binary(None, tuple(map(binary, shape)))


BINARY = [binary(shape) for shape in (3, (1, 2), ((0, 1), (2, (3, 4))))]


SENTENCES = [
    Tree(4),
    Tree(1, (Tree(2), Tree(0, (Tree(3),)), Tree(1))),
    Tree(0, (Tree(2, (Tree(3), Tree(4))),)),
]


@pytest.fixture
def wide(backend):
    """Have float64, which JAX has on request only."""
    with importlib.import_module("jax").enable_x64(True) if backend == "jax" else nullcontext():
        yield


@pytest.fixture
def compiled(backend):
    """Compile a function of a model as a whole where that is quicker than step by step."""
    return importlib.import_module("jax").jit if backend == "jax" else lambda function: function


def run(model, record, backend):
    """Return the answers of a model."""
    fold = multifold.Fold(backend=backend)
    (answers,) = fold.apply(model, [record(model, fold)])
    return answers


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float32", 1e-5),
        pytest.param("float64", 1e-10, marks=pytest.mark.nightly(but=["numpy", "torch"])),
    ],
)
def test_answers_are_those_of_numpy(example, dtype, tolerance, backend, seam, wide):
    make, record = example
    model = make(dtype=dtype)
    got = seam.to_numpy(run(model.on(backend), record, backend))
    expected = run(model, record, "numpy")
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_batched_is_one_at_a_time(example):
    make, record = example
    fold = multifold.Fold(backend="numpy")
    model = make()
    fold.check(model, [record(model, fold)])


def disturbed(model):
    """Move all parameters a little, so that none is 0 where a function has a corner."""
    rng = np.random.default_rng(0)
    weights = model.weights()
    return model.assign({k: x + rng.normal(scale=0.3, size=x.shape) for k, x in weights.items()})


def slope(make, record, name, direction, weights, step=1e-5):
    """Return how the weighted answers change when one parameter moves, by NumPy in float64."""
    ends = []
    for sign in (1, -1):
        model = disturbed(make(dtype="float64"))
        values = model.weights()
        values[name] += sign * step * direction
        ends.append((run(model.assign(values), record, "numpy") * weights).sum())
    return (ends[0] - ends[1]) / (2 * step)


def test_gradients_are_those_of_differences(example, backend, seam, wide, compiled):
    if "kit" in seam.gaps():
        return
    make, record = example
    rng = np.random.default_rng(0)
    weights = rng.normal(size=run(make(), record, "numpy").shape)
    model = disturbed(make(dtype="float64")).on(backend)
    loss = compiled(lambda model: seam.kit.dot(run(model, record, backend), weights))
    _, gradients = seam.kit.value_and_grad(loss, model)
    assert sorted(gradients) == sorted(model.weights())
    for name, gradient in gradients.items():
        gradient = seam.to_numpy(gradient)
        direction = rng.normal(size=gradient.shape)
        expected = slope(make, record, name, direction, weights)
        np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=1e-6, atol=1e-8)


def test_the_same_seed_gives_the_same_weights_in_both_widths(example):
    make, _ = example
    one = make(seed=3).weights()
    two = make(seed=3, dtype="float64").weights()
    other = make(seed=4)
    assert all(two[name].dtype == "float64" for name in two)
    for name, value in one.items():
        assert value.dtype == "float32"
        np.testing.assert_array_equal(value, two[name].astype("float32"))
    assert any((one[name] != value).any() for name, value in other.weights().items())


def test_examples_are_recorded_in_traces_too(example, launches):
    make, record = example
    model = make()
    fold = multifold.Fold(backend="numpy")
    trace = pickle.loads(pickle.dumps(multifold.trace(functools.partial(record_by, record), model)))
    (answers,) = fold.run(model, [trace])
    np.testing.assert_allclose(answers, run(model, record, "numpy"), rtol=1e-6)


def record_by(record, recorder, model):
    """Record a minibatch as one example of a trace."""
    return [record(model, recorder)]


def test_parameters_have_the_same_names_everywhere(example, backend, seam):
    if "kit" in seam.gaps():
        return
    model = example[0]()
    assert sorted(seam.kit.parameters(model.on(backend))) == sorted(model.parameters)
