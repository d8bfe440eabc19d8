"""Plain programs of MXNet: cells for rows, blocks and operators, with what the loop computes."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

import multifold
from multifold import LaunchError, RecordError

TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]
mx.random.seed(0)
XS = [nd.random.normal(shape=(1, 4)) for _ in range(5)]


class TreeLSTM(gluon.Block):
    def __init__(self):
        super().__init__()
        self.embed = gluon.nn.Embedding(10, 8)
        self.gates = gluon.nn.Dense(20, in_units=8)
        self.initialize(mx.init.Normal(1.0))

    @multifold.op
    def leaf(self, word):
        return nd.split(self.embed(word), 2, axis=1)

    @multifold.op
    def compose(self, left_h, left_c, right_h, right_c):
        i, left, right, o, u = nd.split(self.gates(nd.concat(left_h, right_h, dim=1)), 5, axis=1)
        c = i.sigmoid() * u.tanh() + left.sigmoid() * left_c + right.sigmoid() * right_c
        return o.sigmoid() * c.tanh(), c

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(nd.array([tree]))
        return self.compose(*self.node(tree[0]), *self.node(tree[1]))


MODEL = TreeLSTM()
DENSE = gluon.nn.Dense(4, in_units=4)
DENSE.initialize(mx.init.Normal(0.5))


def batched(fn, **options):
    return multifold.batched(fn, backend="mxnet", **{"join": "cat"} | options)


def close(x, y):
    np.testing.assert_allclose(x.asnumpy(), y.asnumpy(), rtol=1e-4, atol=1e-6)


def test_a_recursive_network_has_the_values_and_gradients_of_the_loop():
    run = batched(MODEL.node, join="list")
    answers = []
    for way in (lambda: run(TREES), lambda: [MODEL.node(tree) for tree in TREES]):
        with autograd.record():
            found = nd.concat(*[h for h, _ in way()], dim=0)
        found.backward()
        answers.append([found, *[x.grad().copy() for x in MODEL.collect_params().values()]])
    for x, y in zip(*answers, strict=True):
        close(x, y)
    assert len(run.explain()) == 4  # all leaves, and a launch for each height


def test_a_class_of_blocks_is_a_cell():
    run = batched(lambda x: DENSE(DENSE(x)) + x, cells=[gluon.nn.Dense])
    close(run(XS), nd.concat(*[DENSE(DENSE(x)) + x for x in XS], dim=0))
    assert len(run.explain()) == 3


def test_operators_parts_and_reads():
    def program(x):
        h, steps = DENSE(x), 0
        assert h.shape == (1, 4) and len(h) == 1 and h.dtype is np.float32
        while float(abs(h)[0].asnumpy().sum()) > 0.5 and steps < 5:
            h, steps = DENSE(h * 0.5 - h / 4), steps + 1
        return h[0], steps

    (found, steps) = batched(program, cells=[gluon.nn.Dense], join="stack")(XS)
    wanted = [program(x) for x in XS]
    close(found, nd.stack(*[h for h, _ in wanted]))
    assert steps == [n for _, n in wanted] and len(set(steps)) > 1


def test_the_modes_of_gradients_and_training_are_those_of_the_loop():
    dropout = gluon.nn.Dropout(0.5)
    run = batched(lambda x: dropout(DENSE(x)), cells=[gluon.nn.Dense, gluon.nn.Dropout])
    assert (run(XS).asnumpy() != 0).all()
    with autograd.record():
        assert (run(XS * 9).asnumpy() == 0).any()
        with autograd.predict_mode():
            assert (run(XS).asnumpy() != 0).all()


one_example = multifold.cell(lambda x: x * 2)
mixing = multifold.op(lambda x: x - x.mean(axis=0, keepdims=True))

REFUSED = {
    "a cell of one example": (one_example, r"multifold\.op\b"),
    "a function": (lambda x: nd.tanh(DENSE(x)), r"cannot be recorded"),
    "a method": (lambda x: DENSE(x).tanh(), r"cannot be recorded"),
    "a layer": (lambda x: gluon.nn.LayerNorm()(DENSE(x)), r"cells=\[gluon"),
    "what stands on the right": (lambda x: x + DENSE(x), r"cannot be recorded"),
    "other shapes": (lambda x: DENSE(x) + nd.ones((4,)), r"cannot be recorded"),
    "in place": (lambda x: in_place(DENSE(x)), r"x = x \+ y"),
    "parameters": (lambda x: DENSE.bias.set_data(nd.zeros(4)), r"changes parameters"),
}


def in_place(x):
    x += 1
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_with_a_hint(name):
    program, match = REFUSED[name]
    with pytest.raises(RecordError, match=match) as raised:
        batched(program, cells=[gluon.nn.Dense])(XS)
    assert "\n\nHint: " in str(raised.value)


def test_a_cell_that_mixes_its_rows_is_refused():
    with pytest.raises(LaunchError, match="mixes its rows"):
        batched(mixing)(XS)


def test_arrays_of_the_numpy_kind_are_recorded_as_such():
    mx.npx.set_np()
    try:
        cell = multifold.op(lambda x: mx.np.tanh(x) * 2)
        xs = [mx.np.ones((1, 4)) * i for i in range(3)]
        found = batched(lambda x: cell(x) + x)(xs)
        close(found, mx.np.concatenate([mx.np.tanh(x) * 2 + x for x in xs]))
        assert type(found) is mx.np.ndarray
    finally:
        mx.npx.reset_np()


def test_traces_are_replayed():
    run = batched(lambda x: DENSE(x) * 2, cells=[gluon.nn.Dense])
    close(run.replay(run.traces(XS)), run(XS))
    run.check(XS)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: DENSE(x) * 2,
        lambda x: x * DENSE.bias.data().sum(),
        lambda x: x * float(DENSE.bias.data()[0].asscalar()),
    ],
    ids=["a block", "a parameter", "its value"],
)
def test_parameters_outside_of_cells_are_refused_in_traces(program):
    with pytest.raises(RecordError, match="uses the parameter"):
        batched(program).traces(XS)


def test_with_a_seed_a_cell_that_draws_is_refused():
    @multifold.op
    def noisy(x):
        return x + nd.random.normal(shape=x.shape)

    drop = gluon.nn.Dropout(0.5)
    run = multifold.batched(drop, cells=[gluon.nn.Dropout], seed=0, backend="mxnet")
    with pytest.raises(RecordError, match="draws random numbers"), autograd.record():
        run(XS)
    with pytest.raises(RecordError, match="noisy draws random numbers"):
        multifold.batched(noisy, seed=0, backend="mxnet")(XS)


def test_a_cell_that_counts_is_refused():
    state = {"n": 0}

    @multifold.op
    def counts(x):
        state["n"] += 1
        return x * state["n"]

    with pytest.raises(RecordError, match="counts changes a dict"):
        multifold.batched(counts, backend="mxnet")(XS)


def as_it_reads(x):
    h = DENSE(x)
    copied = h.asnumpy()
    copied -= copied.max()
    return h * float(h.asnumpy().max())


PROGRAMS = {
    "a copy of the value": as_it_reads,
    "a number of NumPy on the left": lambda x: DENSE(x) + np.sqrt(2.0) * DENSE(x * 2),
    "its class": lambda x: h * 2 if isinstance(h := DENSE(x), nd.NDArray) else h * 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_the_values_and_gradients_of_the_loop(name):
    run = batched(PROGRAMS[name], cells=[gluon.nn.Dense])
    answers = []
    for way in (run, lambda xs: nd.concat(*map(PROGRAMS[name], xs), dim=0)):
        with autograd.record():
            found = way(XS)
        found.backward()
        answers.append([found, *[x.grad().copy() for x in DENSE.collect_params().values()]])
    for x, y in zip(*answers, strict=True):
        close(x, y)


def test_what_mxnet_would_take_for_a_constant_is_refused_where_gradients_are_recorded():
    def program(x):
        out = nd.zeros((1, 4))
        out[:] = DENSE(x)
        return out

    run = batched(program, cells=[gluon.nn.Dense])
    close(run(XS), nd.concat(*map(program, XS), dim=0))
    with autograd.record(), pytest.raises(RecordError, match="cannot be recorded"):
        run(XS)


def test_what_a_program_keeps_has_its_value_afterwards():
    kept = []
    batched(lambda x: kept.append(DENSE(x)) or kept[-1], cells=[gluon.nn.Dense])(XS)
    np.testing.assert_allclose(kept[0].asnumpy(), DENSE(XS[0]).asnumpy(), rtol=1e-5)
    assert isinstance(kept[0], nd.NDArray)


def test_a_model_may_be_on_another_device_than_the_current_one():
    block = gluon.nn.Dense(4, in_units=4)
    block.initialize(ctx=mx.cpu(1))
    xs = [x.as_in_context(mx.cpu(1)) for x in XS]
    assert batched(block, cells=[gluon.nn.Dense], device=mx.cpu(1))(xs).context == mx.cpu(1)
