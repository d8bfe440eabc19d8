"""Programs written for mxnet-jit-batch run on MXNet after their import line was changed."""

from __future__ import annotations

import random
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import multifold
from multifold_compat import mxnet_fold as fold
from multifold_compat.mxnet_fold.rnn import ChildSumLSTMCell

pytestmark = pytest.mark.filterwarnings("ignore:.*unregistered container")


@pytest.fixture(autouse=True)
def _seeds():
    mx.random.seed(0)
    random.seed(0)


class Tree:
    def __init__(self, idx, children):
        self.idx = idx
        self.children = children


def random_tree(size):
    """Return a tree over the inputs ``0 .. size - 1``, with up to three children a node."""
    trees = [Tree(0, [])]
    for idx in range(1, size):
        count = random.randint(0, min(3, len(trees)))
        children = [trees.pop(random.randrange(len(trees))) for _ in range(count)]
        trees.append(Tree(idx, children))
    while len(trees) > 1:  # join what is left under its last node
        trees[-1].children.append(trees.pop(0))
    return trees[0]


class Similarity(nn.HybridBlock):
    def __init__(self, classes):
        super().__init__()
        with self.name_scope():
            self.hidden = nn.Dense(7)
            self.out = nn.Dense(classes)

    def hybrid_forward(self, F, left, right):
        both = F.concat(left * right, F.abs(left - right), dim=1)
        return F.log_softmax(self.out(F.sigmoid(self.hidden(both))))


class TreeSimilarity(nn.Block):
    """Two dependency trees in, the log-probabilities of their relatedness out."""

    def __init__(self, arities=9):
        super().__init__()
        with self.name_scope():
            self.embed = nn.Embedding(50, 6)
            self.cell = ChildSumLSTMCell(8, 0, input_size=6)
            self.similarity = Similarity(5)
        shared = self.cell.collect_params()
        self.cells = {0: self.cell}
        self.cells |= {i: ChildSumLSTMCell(8, i, params=shared) for i in range(1, arities)}

    def hybridize(self):
        for block in (self.embed, self.similarity, *self.cells.values()):
            block.hybridize()

    def forward(self, left, right, left_tree, right_tree):
        states = [
            ChildSumLSTMCell.encode(self.cells, self.embed(words), tree)[1][1]
            for words, tree in ((left, left_tree), (right, right_tree))
        ]
        return self.similarity(*states)

    def fold_encode(self, pool, left, right, left_tree, right_tree):
        states = [
            ChildSumLSTMCell.fold_encode(pool, self.cells, self.embed(words), tree)[1][1]
            for words, tree in ((left, left_tree), (right, right_tree))
        ]
        return pool.record(0, self.similarity, *states)


@pytest.fixture
def pairs():
    """Fifteen pairs of sentences with their trees."""
    sizes = [(random.randint(1, 9), random.randint(1, 9)) for _ in range(15)]
    return [
        (*(mx.nd.array(np.random.randint(0, 50, n)) for n in size), *map(random_tree, size))
        for size in sizes
    ]


def gradients(net):
    return {name: x.grad().asnumpy().copy() for name, x in net.collect_params().items()}


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("hybridized", [False, True], ids=["eager", "hybridized"])
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_tree_similarity_equals_the_loop_in_values_and_gradients(pairs, batch, hybridized):
    net = TreeSimilarity()
    pool = fold.Fold()
    loss = gluon.loss.KLDivLoss()
    net.initialize(mx.init.Xavier(magnitude=2.24))
    if hybridized:
        net.hybridize()
    target = mx.nd.one_hot(mx.nd.array([2]), 5)
    for start in range(0, len(pairs), batch):
        part = pairs[start : start + batch]
        with autograd.record():
            expected = [net(*pair) for pair in part]
            mx.nd.concat(*(loss(x, target) for x in expected), dim=0).backward()
        wanted = gradients(net)
        with autograd.record():
            nodes = [net.fold_encode(pool, *pair) for pair in part]
            losses = [pool.record(0, loss, node, target) for node in nodes]
            got, total = pool([nodes, losses], True)
        total.backward()
        close(got.asnumpy(), mx.nd.concat(*expected, dim=0).asnumpy())
        for name, grad in gradients(net).items():
            close(grad, wanted[name])


def test_nodes_with_the_same_number_of_children_share_a_launch():
    net = TreeSimilarity()
    pool = fold.Fold()
    net.initialize()
    embedded = net.embed(mx.nd.arange(6))
    trees = [Tree(0, [Tree(i, []) for i in range(1, n)]) for n in (3, 3, 4)]
    for tree in trees:
        ChildSumLSTMCell.fold_encode(pool, net.cells, embedded, tree)
    assert sorted(len(x) for x in pool.schedule().launches) == [
        1,
        1,
        2,
        7,
    ]  # begin_state is one call


def test_the_cell_has_the_parameters_of_before():
    cell = ChildSumLSTMCell(4, 2, prefix="tree_")
    cell.initialize()
    states = [[mx.nd.ones((3, 4))] * 2] * 2
    h, (again, c) = cell(mx.nd.ones((3, 5)), states)
    assert h.shape == again.shape == c.shape == (3, 4)
    shapes = {name: x.shape for name, x in cell.collect_params().items()}
    assert shapes == {
        "tree_dense0_weight": (16, 5),
        "tree_dense0_bias": (16,),
        "tree_dense1_weight": (12, 4),
        "tree_dense1_bias": (12,),
        "tree_dense2_weight": (4, 4),
        "tree_dense2_bias": (4,),
    }


def test_the_cell_refuses_another_number_of_children():
    cell = ChildSumLSTMCell(4, 2)
    cell.initialize()
    with pytest.raises(multifold.RecordError, match="2 children"):
        cell(mx.nd.ones((1, 5)), [[mx.nd.ones((1, 4))]] * 2)


def test_deep_trees_are_no_trouble():
    cells = {0: ChildSumLSTMCell(2, 0)}
    pool = fold.Fold()
    cells[1] = ChildSumLSTMCell(2, 1, params=cells[0].collect_params())
    cells[0].initialize()
    tree = Tree(0, [])
    for _ in range(2000):
        tree = Tree(0, [tree])
    node = ChildSumLSTMCell.fold_encode(pool, cells, mx.nd.ones((1, 3)), tree)
    assert pool([[node[0]]])[0].shape == (1, 2)


def test_a_hundred_rows_meet_a_table_of_fifteen():
    embed = nn.Embedding(10, 1)
    pool = fold.Fold()
    embed.initialize()
    values = [pool.record(0, embed, mx.nd.array([i % 10])) for i in range(15)]
    table = pool.record(0, mx.nd.concat, *values).no_batch()
    nodes = [pool.record(0, mx.nd.dot, values[i % 10], table) for i in range(100)]
    assert [len(x) for x in pool.schedule([nodes]).launches] == [15, 1, 10]  # equal calls are one
    rows = embed(mx.nd.arange(15) % 10)
    close(pool([nodes])[0].asnumpy(), mx.nd.dot(rows[np.arange(100) % 10], rows.T).asnumpy())


def test_constants_of_an_op_go_with_its_own_calls():
    pool = fold.Fold()
    x = mx.nd.array([[1.0, 2.0]])
    nodes = [pool.record(0, mx.nd.sum, x, axis) for axis in (1, (0, 1))]
    assert len(pool.schedule().launches) == 2
    close(pool([nodes])[0].asnumpy(), [3, 3])


CELLS = {
    "lstm": lambda: gluon.rnn.LSTMCell(4),
    "gru": lambda: gluon.rnn.GRUCell(4),
    "rnn": lambda: gluon.rnn.RNNCell(4),
}


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("kind", CELLS)
def test_fold_unroll_equals_the_cells_own_unroll(kind, layout):
    cell = CELLS[kind]()
    pool = fold.Fold()
    cell.initialize()
    outputs = []
    lasts = []
    expected = []
    for length in (2, 5, 3):
        x = mx.nd.random.uniform(shape=(1, length, 3))
        x = x if layout == "NTC" else x.swapaxes(0, 1)
        steps, states = fold.fold_unroll(cell, pool, length, x, layout=layout)
        outputs += steps
        lasts.append(states[0])
        cell.reset()
        expected.append(cell.unroll(length, x, layout=layout, merge_outputs=False))
    got, states = pool([outputs, lasts])
    close(got.asnumpy(), mx.nd.concat(*(x for steps, _ in expected for x in steps), dim=0).asnumpy())
    close(states.asnumpy(), mx.nd.concat(*(s[0] for _, s in expected), dim=0).asnumpy())


def test_steps_of_a_recurrence_are_recorded_by_hand():
    cell = gluon.rnn.LSTMCell(4)
    pool = fold.Fold()
    cell.initialize()
    x = mx.nd.random.uniform(shape=(1, 6, 3))
    state = cell.begin_state(1)
    outputs = []
    for step in x.split(6, squeeze_axis=True):
        output, state = pool.record(0, cell, step, state).split(2)
        state = state.split(2)
        outputs.append(output)
    expected = cell.unroll(6, x, merge_outputs=False)[0]
    close(pool([outputs])[0].asnumpy(), mx.nd.concat(*expected, dim=0).asnumpy())


def test_rows_on_axis_one_have_gradients_although_recorded_off_the_tape():
    dense = nn.Dense(2, flatten=False)
    pool = fold.Fold()
    dense.initialize()
    series = [mx.nd.random.uniform(shape=(3, 1, 4)) for _ in range(3)]
    for x in series:
        x.attach_grad()
    nodes = [pool.record(1, dense, x) for x in series]
    with autograd.record():
        (result,) = pool([nodes])
    result.backward()
    close(result.asnumpy(), mx.nd.concat(*map(dense, series), dim=1).asnumpy())
    for x in series:
        close(x.grad.asnumpy(), np.tile(dense.weight.data().asnumpy().sum(0), (3, 1, 1)))


def test_ops_run_in_the_context_that_was_asked_for():
    pool = fold.Fold(mx.cpu(1))
    assert pool.ctx == mx.cpu(1)
    assert pool([[pool.record(0, mx.nd.ones, (1, 3))]])[0].ctx == mx.cpu(1)


def test_a_program_causes_no_warning():
    net = TreeSimilarity()
    pool = fold.Fold()
    net.initialize()
    embedded = net.embed(mx.nd.arange(6))
    trees = [Tree(0, [Tree(i, []) for i in range(1, n)]) for n in (2, 3, 4)]
    nodes = [ChildSumLSTMCell.fold_encode(pool, net.cells, embedded, tree)[0] for tree in trees]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        pool([nodes])
