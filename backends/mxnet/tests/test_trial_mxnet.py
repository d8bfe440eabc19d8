"""What a trial leaves alone in MXNet; `tests/engine/ops/test_trial.py` says what trials are for."""

from __future__ import annotations

import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import multifold
from multifold import LaunchError

ROWS = np.random.default_rng(0).random((3, 1, 3)).astype("float32")


class Model(gluon.Block):
    """Ops that scale rows by numbers."""

    def __init__(self):
        super().__init__()
        self.dense = gluon.nn.Dense(3, in_units=3)
        self.norm = gluon.nn.BatchNorm(in_channels=3)
        self.drop = gluon.nn.Dropout(0.5)
        self.initialize()
        self.calls = 0

    def scale(self, x, s):
        self.calls += 1
        return self.dense(x) * s.expand_dims(1)

    def dropped(self, x, s):
        return self.drop(x) * s.expand_dims(1)

    def normed(self, x, s):
        return self.norm(x) * s.expand_dims(1)


def apply(model, op):
    """Return one group: an op of each row and its number."""
    fold = multifold.Fold(backend="mxnet")
    return fold.apply(model, [[fold.add(op, x, i + 1.0) for i, x in enumerate(ROWS)]])[0]


def test_a_trial_is_not_on_the_tape():
    model = Model()
    with autograd.record():
        loss = apply(model, "scale").sum()
    loss.backward()
    np.testing.assert_allclose(model.dense.bias.grad().asnumpy(), [6.0] * 3, rtol=1e-5)
    assert model.calls == 1


def test_dropout_passes():
    with autograd.train_mode():
        kept = apply(Model(), "dropped").asnumpy() != 0
    assert kept.shape == (3, 3)


def test_a_running_mean_moves_as_it_does_without_a_trial():
    model = Model()
    plain = Model()
    with autograd.train_mode():
        plain.norm(mx.nd.array(ROWS[:, 0])).wait_to_read()
        with pytest.raises(LaunchError, match="mixes its rows"):
            apply(model, "normed")
    np.testing.assert_allclose(*(x.norm.running_mean.data().asnumpy() for x in (model, plain)), rtol=1e-5)


def test_an_object_that_is_no_block_may_have_some():
    class Plain:
        def __init__(self):
            self.model = Model()

        def dropped(self, x, s):
            return self.model.drop(x) * s.expand_dims(1)

        def normed(self, x, s):
            return self.model.norm(x) * s.expand_dims(1)

    plain = Plain()
    with autograd.train_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apply(plain, "dropped").shape == (3, 3)
        with pytest.raises(LaunchError, match="mixes its rows"):
            apply(plain, "normed")
    once = Model()
    with autograd.train_mode():
        once.norm(mx.nd.array(ROWS[:, 0])).wait_to_read()
    means = [x.norm.running_mean.data().asnumpy() for x in (plain.model, once)]
    np.testing.assert_allclose(*means, rtol=1e-5)


def test_an_op_that_writes_to_its_operand_is_refused_in_its_first_launch():
    def op(x):
        x[:] = 2 * x
        return x + 1

    fold = multifold.Fold(backend="mxnet")
    with pytest.raises(LaunchError, match="operand 0 was changed by an inplace operation"):
        fold.apply(None, [[fold.add(op, x) for x in ROWS]])
