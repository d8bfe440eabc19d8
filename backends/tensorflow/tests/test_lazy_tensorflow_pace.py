"""Batched programs of TensorFlow take the loop where that is faster; the times are those of the test."""

from __future__ import annotations

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from paced import Clock

import multifold
from multifold.lazy.pace import LoopPace

XS = [*tf.random.normal((16, 1, 3))]


def dense() -> keras.Layer:
    layer = keras.layers.Dense(2)
    layer(XS[0])
    return layer


@pytest.mark.parametrize("taped", [True, False])
@pytest.mark.parametrize(("batched", "looped"), [(2.0, 16), (0.5, 0)])
def test_runs_take_the_loop_where_it_is_faster(taped, batched, looped, monkeypatch):
    clock, layer = Clock(monkeypatch, 1.0, batched), dense()
    run = multifold.batched(lambda x: clock.took() or tf.tanh(layer(x)), join="cat")
    found = []
    for _ in range(6):
        with tf.GradientTape() if taped else nullcontext() as tape:
            y = run(XS)
        np.testing.assert_allclose(y, tf.tanh(layer(tf.concat(XS, 0))), rtol=1e-5)
        assert not taped or tape.gradient(y, layer.kernel) is not None
        found.append(clock.count())
    assert found[0] == 0 and found[-2:] == [looped] * 2
    assert ("take the loop" in str(run.explain())) == bool(looped)


def test_a_run_that_draws_graphs_is_not_measured(monkeypatch):
    notes, layer, steps = [], dense(), [0]
    monkeypatch.setattr(LoopPace, "note", lambda self, count, **times: notes.append(steps[0]))
    cells = [multifold.cell(lambda x, i=i: layer(x) * i) for i in range(3)]

    def program(x):
        return cells[steps[0]](x)

    run = multifold.batched(program)
    for step in (0, 1, 2, 2):  # a new cell in each of the first three runs
        steps[0] = step
        run(XS)
        notes.append("-")
    assert notes == ["-", "-", "-", 2, "-"]


def test_what_a_function_of_tensorflow_draws_is_not_timed(monkeypatch):
    clock, layer = Clock(monkeypatch, 1.0, 2.0), dense()
    run = multifold.batched(lambda x: clock.took() or tf.tanh(layer(x)), join="cat")
    for _ in range(4):
        tf.function(lambda: run(XS), autograph=False)()
    assert clock.count() == 0
