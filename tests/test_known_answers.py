"""Cases whose answers are known beforehand, collected from the predecessors of multifold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import multifold
from multifold import Fold, Ragged, ragged, shared
from multifold._engine.ops.values import Values

# ---- known from TorchFold ------------------------------------------------------------------------


class Outputs:
    """Ops of which one has two results."""

    def b(self, x1, x2):
        return (x1 - x2) * 2, (x1 + x2) * 3

    def c(self, x, y):
        return x * y

    def d(self, x, y):
        return x + y


def test_exponentiation_by_chained_calls(fold, equal):
    x = 1
    powers = []
    for _ in range(4):
        x = fold.add("double", x)
        powers.append(x)
    equal(fold.apply({"double": lambda x: x * 2}, powers), [2, 4, 8, 16])


def test_two_outputs_of_one_op(fold, equal):
    bc, bd = fold.add("b", 1, 2).split(2)
    equal(fold.apply(Outputs(), [fold.add("d", bd, fold.add("c", bc, 5))]), [-1])


def test_a_table_made_of_rows_is_read_by_a_hundred_calls(fold, seam, array, take, ops, equal):
    embedding = np.random.default_rng(0).standard_normal((10, 4))
    model = {
        "value": lambda i: take(array(embedding), i),
        "concat": lambda *rows: seam.concat(rows),
        "logits": lambda x, d: ops.matmul(x, ops.transpose(d)),
    }
    v = [fold.add("value", i % 10) for i in range(15)]
    d = fold.add("concat", *v).no_batch()
    logits = [fold.add("logits", v[i % 10], d) for i in range(100)]
    equal(
        fold.apply(model, logits),
        embedding[np.arange(100) % 10] @ embedding[np.arange(15) % 10].T,
    )


# ---- known from mxnet-jit-batch ------------------------------------------------------------------


def test_the_gradient_of_a_dense_layer_is_that_of_the_sum_of_its_inputs(backend, ops, array, gradients):
    def loss(p):
        fold = Fold(backend=backend)
        dense = {"dense": lambda x: ops.matmul(x, p["weight"])}
        return fold.apply(dense, [fold.add("dense", array([[float(i)] * 4])) for i in range(3)])

    np.testing.assert_allclose(gradients(loss, {"weight": np.ones((4, 2))})["weight"], 3, rtol=1e-5)


def test_results_skip_levels_and_rows_of_two_widths_meet_in_one_op(fold, ops, seam, array, equal):
    model = {
        "add": lambda x, y: x + y,
        "cat": lambda x, y: ops.transpose(seam.concat([ops.transpose(x), ops.transpose(y)])),
    }
    x = [fold.add("add", array([[0.0, 0.0, 0.0]]), array([[1.0, 2.0, 3.0]]))]
    for _ in range(2):
        x.append(fold.add("add", x[-1], x[-1]))
    five = fold.add("add", x[2], x[0])
    wide = fold.add("add", fold.add("cat", x[2], x[2]), fold.add("cat", x[2], five))
    equal(fold.apply(model, [wide]), [[8, 16, 24, 9, 18, 27]])
    equal(fold.apply(model, [five, x[1]]), [[5, 10, 15], [2, 4, 6]])


def test_the_gradient_of_a_shared_operand_is_the_sum_over_its_readers(backend, array, gradients):
    def loss(p):
        fold = Fold(backend=backend)
        m = array([[1.0, 2.0, 3.0]])
        b = array([[4.0, 5.0, 6.0]])
        return fold([fold.add(lambda m, x, b: m * x + b, m, shared(p["x"]), b)])

    np.testing.assert_allclose(gradients(loss, {"x": [7.0, 8.0, 9.0]})["x"], [1, 2, 3], rtol=1e-5)


def test_eight_leaves_are_summed_by_a_tree_of_three_levels(fold, array, equal):
    rows = [array([[0.0, 1.0, 1 << k]]) for k in range(8)]
    while len(rows) > 1:
        rows = [fold.add("add", *pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
    equal(fold.apply({"add": lambda x, y: x + y}, rows), [[0, 8, 255]])
    assert len(fold.schedule()) == 3


@pytest.mark.parametrize("apart", [True, False], ids=["merged", "one fold"])
def test_two_graphs_recorded_apart_are_merged(fold, array, equal, apart):
    def record(recorder, c):
        return recorder.add("mul", c[0], recorder.add("add", c[1], c[2]))

    model = {"mul": lambda x, y: x * y, "add": lambda x, y: x + y}
    examples = [np.arange(1.0, 4)[None] * np.array(k)[:, None, None] for k in ([1, 2, 3], [1, 3, 5])]
    if apart:
        got = fold.run(model, [multifold.trace(record, c) for c in examples])
    else:
        got = fold.apply(model, [record(fold, c) for c in examples])
    equal(got, [[5, 20, 45], [8, 32, 72]])


# ---- recurrent cells -----------------------------------------------------------------------------


class Gru:
    """A gated recurrent unit on rows, on arrays of any framework."""

    def __init__(self, ops, weights):
        self.ops = ops
        self.w = weights

    def sigmoid(self, x):
        return (self.ops.tanh(x * 0.5) + 1) * 0.5

    def step(self, x, h):
        dot = self.ops.matmul
        w = self.w
        z = self.sigmoid(dot(x, w["xz"]) + dot(h, w["hz"]))
        r = self.sigmoid(dot(x, w["xr"]) + dot(h, w["hr"]))
        return (1 - z) * self.ops.tanh(dot(x, w["xn"]) + dot(h * r, w["hn"])) + z * h


def gru_weights(rng):
    return {f"{a}{b}": rng.standard_normal((3 if a == "x" else 4, 4)) for a in "xh" for b in "zrn"}


def test_a_gru_over_sequences_of_lengths_2_3_5_equals_the_loop(backend, counting, array, ops, equal):
    rng = np.random.default_rng(0)
    weights = gru_weights(rng)
    sequences = [rng.standard_normal((n, 3)) for n in (2, 3, 5)]
    fold = Fold(backend=counting)
    states = []
    expected = []
    loop = Gru(NUMPY, weights)
    for xs in sequences:
        h = fold.add("begin")
        by_hand = np.zeros((1, 4))
        for x in xs:
            h = fold.add("step", array(x[None]), h)
            by_hand = loop.step(x[None], by_hand)
        states.append(h)
        expected.append(by_hand)
    cell = Gru(ops, {name: array(w) for name, w in weights.items()})
    cell.begin = lambda: array(np.zeros((1, 4)))
    equal(fold.apply(cell, states), np.concatenate(expected))
    assert counting.counts["call"] == 1 + 5


class NUMPY:
    """The functions of the `ops` fixture, of NumPy."""

    tanh = np.tanh
    matmul = np.matmul


# ---- the child-sum Tree-LSTM (Tai et al. 2015) on pairs of made-up trees -------------------------


class Tree(NamedTuple):
    word: int
    children: tuple[Tree, ...]


def made_up(rng, budget):
    """Return a tree of at most ``budget`` nodes with any number of children each."""
    children = []
    left = budget - 1
    while left > 0 and rng.random() < 0.7:
        size = int(rng.integers(1, left + 1))
        children.append(made_up(rng, size))
        left -= size
    return Tree(int(rng.integers(6)), tuple(children))


class ChildSum:
    """Child-sum Tree-LSTM and a classifier of pairs, on rows of any framework."""

    def __init__(self, seam, ops, total, weights):
        self.seam = seam
        self.ops = ops
        self.total = total
        self.w = weights

    def sigmoid(self, x):
        return (self.ops.tanh(x * 0.5) + 1) * 0.5

    def node(self, word, hs, cs):
        dot = self.ops.matmul
        w = self.w
        x = self.seam.gather(w["embedding"], word)
        h = self.total(hs)
        i, o, u = (dot(x, w["x" + gate]) + dot(h, w["h" + gate]) for gate in "iou")
        c = self.sigmoid(i) * self.ops.tanh(u)
        if self.seam.rows(hs.values):
            own = self.seam.gather(dot(x, w["xf"]), hs.segment_ids)
            kept = self.sigmoid(own + dot(hs.values, w["hf"])) * cs.values
            c = c + self.total(cs._replace(values=kept))
        return self.sigmoid(o) * self.ops.tanh(c), c

    def similarity(self, left, right):
        apart = left - right
        return self.ops.matmul(left * right, self.w["same"]) + self.ops.matmul(
            apart * apart, self.w["apart"]
        )


def tree_weights(hidden=3, width=2):
    rng = np.random.default_rng(1)
    shapes = {f"x{gate}": (width, hidden) for gate in "ifou"} | {
        f"h{gate}": (hidden, hidden) for gate in "ifou"
    }
    shapes |= {"embedding": (6, width), "same": (hidden, 5), "apart": (hidden, 5)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def encode(fold, tree):
    states = [encode(fold, child) for child in tree.children]
    rows = [ragged([state[i] for state in states], row_shape=(3,)) for i in (0, 1)]
    return fold.add("node", tree.word, *rows).split(2)


def by_loop(model, seam, tree):
    """Return the states of a tree by calling the cell for each of its nodes."""
    states = [by_loop(model, seam, child) for child in tree.children]
    index = seam.number_dtype(int)
    lengths = np.array([len(states)], index)
    ids = np.zeros(len(states), index)
    rows = []
    for i in (0, 1):
        values = [state[i] for state in states] or [
            seam.constant(np.zeros((0, 3), seam.number_dtype(float)), None)
        ]
        values = seam.concat(values) if len(values) > 1 else values[0]
        rows.append(Ragged(values, seam.constant(lengths, None), seam.constant(ids, None)))
    return model.node(seam.constant(np.array([tree.word], index), None), *rows)


def pairs_of_trees():
    rng = np.random.default_rng(2)
    return [(made_up(rng, 6), made_up(rng, 6)) for _ in range(15)]


AT_NIGHT = pytest.mark.nightly(but=["numpy", "torch"])


@pytest.mark.parametrize("size", [4, *(pytest.param(n, marks=AT_NIGHT) for n in (1, 2, 3, 5))])
def test_child_sum_tree_lstm_in_minibatches_equals_the_loop(backend, seam, ops, total, array, equal, size):
    model = ChildSum(seam, ops, total, {name: array(w) for name, w in tree_weights().items()})
    pairs = pairs_of_trees()
    for first in range(0, len(pairs), size):
        batch = pairs[first : first + size]
        fold = Fold(backend=backend)
        both = [[encode(fold, tree)[0] for tree in pair] for pair in batch]
        expected = [model.similarity(*(by_loop(model, seam, tree)[0] for tree in pair)) for pair in batch]
        got = fold.apply(model, [fold.add("similarity", *pair) for pair in both])
        equal(got, np.concatenate([seam.to_numpy(row) for row in expected]))


def test_child_sum_tree_lstm_has_the_gradients_of_the_loop(backend, seam, ops, total, gradients):
    pairs = pairs_of_trees()[:3]

    def folded(p):
        fold = Fold(backend=backend)
        model = ChildSum(seam, ops, total, p)
        both = [[encode(fold, tree)[0] for tree in pair] for pair in pairs]
        return fold.apply(model, [fold.add("similarity", *pair) for pair in both])

    def looped(p):
        model = ChildSum(seam, ops, total, p)
        states = [[by_loop(model, seam, tree)[0] for tree in pair] for pair in pairs]
        return seam.concat([model.similarity(*pair) for pair in states])

    got = gradients(folded, tree_weights())
    expected = gradients(looped, tree_weights())
    for name, gradient in expected.items():
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(got[name], gradient, rtol=1e-3, atol=1e-5)


class Whole(ChildSum):
    """The same cell, which reads the states of all children as one pair."""

    def whole(self, word, children):
        h, c = children.values
        return self.node(word, children._replace(values=h), children._replace(values=c))


def test_a_leaf_is_a_cell_without_children(backend, seam, ops, total, array, equal):
    def cell(fold, tree):
        children = [cell(fold, child) for child in tree.children]
        return fold.add("whole", tree.word, ragged(children, row_shape=((3,), (3,))))

    model = Whole(seam, ops, total, {name: array(w) for name, w in tree_weights().items()})
    trees = [left for left, _ in pairs_of_trees()]
    fold = Fold(backend=backend)
    got = fold.apply(model, [cell(fold, tree)[0] for tree in trees])
    equal(got, np.concatenate([seam.to_numpy(by_loop(model, seam, tree)[0]) for tree in trees]))
    assert len(fold.explain().launches) == fold.schedule().lower_bound


# ---- rows that a run has to tell apart -----------------------------------------------------------------


def sums(rows):
    """Return the sum of the rows of each node; the op has to know their width to make an empty sum."""
    width = rows.values.shape[1]
    out = np.zeros((len(rows.lengths), width))
    np.add.at(out, rows.segment_ids, rows.values)
    return out


def test_loose_rows_of_two_widths_are_told_apart_by_their_own():
    """Widths 2, 3, 2: which array belongs to which call decides which calls share a launch."""
    fold = Fold(backend="numpy")
    arrays = [np.full((1, width), float(i)) for i, width in enumerate((2, 3, 2, 3, 3))]
    nodes = [fold.add("sums", ragged([x, x])) for x in arrays]
    found = fold.apply({"sums": sums}, tuple(nodes))
    assert [x.tolist() for x in found] == [[[2.0 * i] * x.shape[1]] for i, x in enumerate(arrays)]
    assert len(fold.explain().launches) == 2


def test_launches_of_ragged_operands_without_rows_share_one_array(monkeypatch):
    made = []
    no_rows = Values.no_rows
    monkeypatch.setattr(Values, "no_rows", lambda self, shape: made.append(shape) or no_rows(self, shape))
    fold = Fold(backend="numpy")
    nodes = [fold.add(op, ragged([], row_shape=(2,)), fold.add("leaf", 1.0)) for op in ("f", "g")]
    model = {"leaf": lambda x: x, "f": lambda rows, x: x + 1, "g": lambda rows, x: x * 5}
    assert [float(x[0]) for x in fold.apply(model, tuple(nodes))] == [2.0, 5.0]
    assert made == [((2,), "float")]


def test_calls_without_rows_go_with_those_that_fit_all_their_operands():
    """The second operand tells the calls apart although the first one has no row to tell by."""
    fold = Fold(backend="numpy")

    def both(left, right):
        return sums(right) + np.bincount(left.segment_ids, minlength=len(right.lengths))[:, None]

    two, three = (np.ones((1, width)) for width in (2, 3))
    none = ragged([], row_shape=(2,))
    calls = [
        fold.add("both", left, ragged([right]))
        for left, right in [(none, two), (none, three), (ragged([two]), two), (ragged([two]), three)]
    ]
    found = fold.apply({"both": both}, tuple(calls))
    assert [x[0].tolist() for x in found] == [[1.0] * 2, [1.0] * 3, [2.0] * 2, [2.0] * 3]
