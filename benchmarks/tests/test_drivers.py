"""From a block to a trained model, its scores, and a stream of predictions with keys."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold._engine.frameworks import registry
from multifold_bench.train import FunctionTask, LabelledTask, SettingsError, evaluate, train
from multifold_bench.train.objectives import squared_error
from multifold_compat.blocks import FC, Function, Layers, Map, Mean, Vector

PAIRS = [([[x, y], [y, x], [x, 1]], int(x > y)) for x in range(6) for y in range(6)]
PARTS = {"train": PAIRS[::2], "dev": PAIRS[1::4], "test": PAIRS[3::4]}
POINTS = Map(Vector(2) >> Function(FC(4))) >> Mean() >> Function(FC(2, activation=None))


def first_column(x):
    return x[:, 0]


@pytest.fixture
def trains(backend):
    """Return whether the backend has gradients."""
    return "kit" not in registry.load_backend(backend).gaps()


def labelled(**proposed):
    """Return a task of blocks."""
    make_model = lambda seed: Layers(POINTS, seed=seed)  # noqa: E731
    return LabelledTask("larger", POINTS, make_model, PARTS, classes=2, batch=8, **proposed)


def test_a_block_is_trained_and_scored_and_predicts_in_a_stream(backend, trains, tmp_path):
    if not trains:
        return
    steps = []
    epochs = []
    task = labelled(epochs=3)
    result = train(
        task, tmp_path, backend, on_epoch=epochs.append, on_step=lambda *step: steps.append(step[0])
    )
    dev = [entry["dev"]["accuracy"] for entry in epochs]
    assert len(dev) == 3 and dev[result.best - 1] == max(
        dev
    )  # scored after each epoch; the best one is kept
    assert sum("loss" in what for what in steps) == 3 * 3  # minibatches of eight
    assert evaluate(task, result.model, PARTS["test"], backend=backend) == pytest.approx(result.test)
    keyed = multifold.stream(result.model, PAIRS, lambda fold, pair: POINTS(fold, pair[0]), backend=backend,
                             key=str, calls=20)  # fmt: skip
    weights = Layers(POINTS).load(tmp_path / "best.npz")
    here = multifold.Fold(backend="numpy").run(weights, [x for x, _ in PAIRS], POINTS)
    for (key, row), pair, expected in zip(keyed, PAIRS, here, strict=True):
        assert key == str(pair)
        np.testing.assert_allclose(row[0], expected, rtol=1e-4, atol=1e-5)


def test_a_model_of_another_kind_is_refused_by_its_type(backend, trains, tmp_path):
    if trains:
        task = LabelledTask("other", POINTS, lambda seed: PAIRS, PARTS, classes=2)
        with pytest.raises(SettingsError, match=r"Expected a multifold\.models\.Model\. Received list"):
            train(task, tmp_path, backend)


def test_a_score_reads_any_iterable_once_and_in_parts():
    done = []
    task = labelled()
    model = task.model(task.settings())
    examples = iter(PAIRS * 20)
    found = evaluate(task, model, examples, backend="numpy", calls=100, progress=done.append)
    assert found == evaluate(task, model, PAIRS, backend="numpy")
    assert done[-1] == len(PAIRS) * 20 and max(np.diff(done)) <= 20  # six calls an example


def test_a_regression_of_functions_learns(backend, trains, tmp_path):
    if not trains:
        return
    block = POINTS >> Function(first_column)
    parts = {name: [(x, float(x[0][0])) for x, _ in pairs] for name, pairs in PARTS.items()}
    task = FunctionTask(
        "regression", block, lambda seed: Layers(block, seed=seed), parts,
        target=lambda y: [y], objective=squared_error, criterion="error", minimised=True,
        score=lambda ys, outputs: {"error": float(np.mean((np.concatenate(outputs) - ys) ** 2))},
        epochs=8, batch=6, rate=0.03,
    )  # fmt: skip
    result = train(task, tmp_path, backend)
    errors = [entry["dev"]["error"] for entry in result.history]
    assert errors[result.best - 1] == min(errors)
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
