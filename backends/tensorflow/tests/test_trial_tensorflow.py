"""What a trial leaves alone in TensorFlow; `tests/engine/ops/test_trial.py` says what trials are for."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from multifold_tensorflow.program import run
from multifold_tensorflow.program.tensors import as_tensors

import multifold
from multifold import LaunchError

ROWS = np.random.default_rng(0).random((3, 1, 3)).astype("float32")


class Model(tf.Module):
    """Ops that scale rows by numbers, rightly but for ``wrong`` and ``summed``."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.dense.build((None, 3))
        self.drop = keras.layers.Dropout(0.5)
        self.norm = keras.layers.BatchNormalization()
        self.calls = 0

    def scale(self, x, s):
        self.calls += 1
        return self.dense(x) * s[:, None]

    def dropped(self, x, s):
        self.calls += 1
        return self.drop(x, training=True) * s[:, None]

    def masked(self, x, s):
        return tf.nn.dropout(x, 0.5) * s[:, None]

    def normed(self, x, s):
        return self.norm(x, training=True) * s[:, None]

    def wrong(self, x, s):
        return x * s

    def summed(self, x, s):
        return tf.reduce_sum(x * s, 1)


def apply(model, op, rows=ROWS):
    """Return one group: an op of each row and its number."""
    fold = multifold.Fold(backend="tensorflow")
    return fold.apply(model, [[fold.add(op, x, i + 1.0) for i, x in enumerate(rows)]])[0]


def test_the_seed_of_a_layer_moves_once():
    model = Model()
    for draws in (1, 2):
        apply(model, "dropped")
        assert model.drop.seed_generator.state.numpy()[1] == draws
    assert model.calls == 2


def test_masks_are_those_that_would_have_been_drawn():
    model = Model()
    drawn = []
    for _ in range(2):
        tf.random.set_seed(0)
        drawn.append((apply(model, "masked").numpy(), tf.random.uniform((3,)).numpy()))
    np.testing.assert_equal(drawn[0], drawn[1])


def test_a_running_mean_moves_once():
    model = Model()
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(model, "normed")
    np.testing.assert_allclose(model.norm.moving_mean, 0.01 * ROWS[:, 0].mean(0), rtol=1e-5)


def test_a_tape_records_nothing_of_a_trial():
    model = Model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(apply(model, "scale"))
    kernel, bias = tape.gradient(loss, model.dense.trainable_variables)
    np.testing.assert_allclose(bias, [6.0] * 3, rtol=1e-5)
    assert len(kernel.shape) == 2
    assert model.calls == 1


@pytest.mark.parametrize("autograph", [True, False])
def test_inside_of_a_function_shapes_are_compared_and_nothing_is_drawn(autograph):
    model = Model()
    step = tf.function(lambda: apply(model, "scale"), autograph=autograph)
    assert step().shape == (3, 3)
    names = [op.type for op in step.get_concrete_function().graph.get_operations()]
    assert names.count("MatMul") == 1
    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        tf.function(lambda: apply(model, "wrong"), autograph=autograph)()


@pytest.mark.parametrize(("op", "width"), [("wrong", 3), ("wrong", 1), ("wrong", 5), ("summed", 1)])
def test_a_program_is_verified_while_it_is_traced(op, width):
    fold = multifold.Fold(backend="tensorflow")
    rows = np.ones((4, 1, width), "float32")
    program = as_tensors(fold.program([[fold.add(op, x, i + 1.0) for i, x in enumerate(rows)]]))
    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        tf.function(lambda p: run(Model(), p))(program)


def test_a_program_of_right_ops_runs():
    fold = multifold.Fold(backend="tensorflow")
    model = Model()
    program = fold.program([[fold.add("scale", x, i + 1.0) for i, x in enumerate(ROWS)]])
    (got,) = tf.function(lambda p: run(model, p))(as_tensors(program))
    np.testing.assert_allclose(got, apply(model, "scale"), rtol=1e-5)
