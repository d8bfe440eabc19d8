"""Hybridized ops: the same answers and gradients, one graph a block, and a warning where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from multifold_mxnet import Hybridizer, MxnetBackend
from mxnet import autograd, gluon, nd

import multifold


class Cell(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.dense = gluon.nn.Dense(3, in_units=6)

    def hybrid_forward(self, F, left, right):
        return F.tanh(self.dense(F.concat(left, right, dim=1)))


class LooksAtShapes(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x * x.shape[1]


def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("cell", *[record(fold, child) for child in tree])


def loss_and_gradient(model, backend, trees):
    with autograd.record():
        traces = [multifold.trace(record, tree) for tree in trees]
        loss = multifold.Fold(backend=backend).run(model, traces).square().sum()
    loss.backward()
    return loss.asscalar(), model["cell"].dense.weight.grad().asnumpy()


def test_hybridized_ops_have_the_gradients_of_ops_as_written():
    model = {"leaf": gluon.nn.Embedding(5, 3), "cell": Cell()}
    for block in model.values():
        block.initialize(init="xavier")
    for trees in ([(1, (2, 3)), ((1, 2), (3, 4))], [(1, 2)]):
        expected = loss_and_gradient(model, "mxnet", trees)
        backend = MxnetBackend(hybridizer=Hybridizer())
        for got, wanted in zip(loss_and_gradient(model, backend, trees), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        assert model["cell"]._active
        for block in model.values():
            block.hybridize(False)


def test_only_named_blocks_are_hybridized():
    named = gluon.nn.Dense(2, in_units=2)
    other = gluon.nn.Dense(2, in_units=2)
    for block in (named, other):
        block.initialize()
    fold = multifold.Fold(backend=MxnetBackend(hybridizer=Hybridizer([named.name])))
    fold(fold.add(other, fold.add(named, nd.ones((1, 2)))))
    assert (named._active, other._active) == (True, False)


def test_a_block_that_is_no_graph_is_named_and_runs_as_written():
    block = LooksAtShapes()
    hybridizer = Hybridizer()
    fold = multifold.Fold(backend=MxnetBackend(hybridizer=hybridizer))
    with pytest.warns(UserWarning, match=f"The op '{block.name}' runs without hybridize"):
        assert fold(fold.add(block, nd.ones((1, 2)))).asnumpy().tolist() == [[2.0, 2.0]]
    assert hybridizer.refused == [block.name]
