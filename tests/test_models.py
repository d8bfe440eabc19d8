"""`multifold.models` on every backend: the values of NumPy, right gradients, weights that travel."""

from __future__ import annotations

import contextlib
import copy
import importlib
import pickle
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

import multifold
from multifold import registry
from multifold.datasets.listops import Expression
from multifold.datasets.plans import Plan
from multifold.models import (
    MLP,
    MVRNN,
    SPINN,
    BiLSTMTagger,
    BinaryTreeLSTM,
    ChildSumSimilarity,
    ChildSumTreeLSTM,
    LatticeLSTM,
    ListOpsLSTM,
    Model,
    QPPNet,
    WeightsError,
)

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


def record_trees(model, fold, trees):
    """Classify every node of some trees."""
    states = [state for tree in trees for state in model.encode_all(fold, tree)]
    return [fold.add("logits", h) for h, _ in states]


def record_pairs(model, fold):
    """Compare sentences by their dependency trees."""
    pairs = [SimpleNamespace(left=SENTENCES[0], right=SENTENCES[1])] * 2
    return [model.compare(fold, pair) for pair in pairs]


def record_expressions(model, fold):
    """Compute nested operations over digits, up to three operands."""
    one, two = (Expression(digit=digit) for digit in (1, 9))
    inner = Expression("MAX", children=(one, two, one))
    trees = [one, inner, Expression("LAST", children=(inner, two)), Expression("MAX", children=(two,))]
    return [fold.add("logits", model.encode(fold, tree)[0]) for tree in trees]


def record_plans(model, fold):
    """Predict the times of a join, a sort, and an operator that has no network of its own."""
    scan = Plan("Scan", {"Plan Rows": 10, "Parent Relationship": "Outer"})
    inner = Plan("Scan", {"Total Cost": 3.5, "Parent Relationship": "Inner"})
    join = Plan("Join", {"Join Type": "Left", "Parent Relationship": "Outer"}, (scan, inner))
    plans = [Plan("Limit", {}, (join,)), Plan("Append", {}, (inner, inner, inner))]
    return [time for plan in plans for time in model.encode(fold, plan)]


def record_parses(model, fold):
    """Relate two sentences."""
    pair = SimpleNamespace(premise=BINARY[2], hypothesis=BINARY[1])
    return [model.compare(fold, pair), model.compare(fold, pair)]


MODELS = {
    "binary-tree-lstm": (
        lambda **options: BinaryTreeLSTM(5, 4, 3, inputs=2, **options),
        lambda model, fold: record_trees(model, fold, BINARY),
    ),
    "child-sum-tree-lstm": (
        lambda **options: ChildSumTreeLSTM(5, 4, 3, inputs=2, **options),
        lambda model, fold: record_trees(model, fold, SENTENCES),
    ),
    "child-sum-similarity": (
        lambda **options: ChildSumSimilarity(5, 4, 3, inputs=2, **options),
        record_pairs,
    ),
    "mlp": (
        lambda **options: MLP(3, (4, 2), 2, **options),
        lambda model, fold: [model.classify(fold, row) for row in np.eye(3, dtype="f4")[:, None]],
    ),
    "listops-lstm": (
        lambda **options: ListOpsLSTM(("MAX", "LAST"), 4, places=2, **options),
        record_expressions,
    ),
    "qppnet": (
        lambda **options: QPPNet(("Scan", "Join"), width=2, hidden=3, layers=2, **options),
        record_plans,
    ),
    "bilstm-tagger": (
        lambda **options: BiLSTMTagger(
            5, 4, 3, width=3, inputs=4, character_inputs=2, hidden=3, **options
        ),
        lambda model, fold: model.tag_words(fold, [3, (0, 2), 1]) + model.tag_words(fold, [(3,)]),
    ),
    "spinn": (lambda **options: SPINN(5, 4, tracker=3, hidden=4, **options), record_parses),
    "mv-rnn": (
        lambda **options: MVRNN(5, 3, 2, **options),
        lambda model, fold: [
            fold.add("logits", model.encode(fold, tree)[0]) for tree in BINARY
        ],
    ),
    "lattice-lstm": (
        lambda **options: LatticeLSTM(5, 4, 3, 4, inputs=2, **options),
        lambda model, fold: model.tag_characters(fold, [(1, ()), (2, ((0, 3),)), (0, ((0, 1), (1, 2)))]),
    ),
}


@pytest.fixture(params=MODELS)
def example(request):
    """A model's constructor, and what records a minibatch and returns a group of nodes."""
    return MODELS[request.param]


@pytest.fixture(params=["float32", "float64"])
def dtype(request, backend):
    """Both widths of floats; JAX has the wide one on request only."""
    wide = contextlib.nullcontext()
    if (backend, request.param) == ("jax", "float64"):
        wide = importlib.import_module("jax").enable_x64(True)
    with wide:
        yield request.param


def run(model, record, backend):
    """Return the answers of a model."""
    fold = multifold.Fold(backend=backend)
    (answers,) = fold.apply(model, [record(model, fold)])
    return answers


# ---- values and gradients ------------------------------------------------------------------------


def test_answers_are_those_of_numpy(example, dtype, backend, seam):
    make, record = example
    model = make(dtype=dtype)
    got = seam.to_numpy(run(model.on(backend), record, backend))
    expected = run(model, record, "numpy")
    assert got.dtype == dtype
    tolerance = {"float32": 1e-5, "float64": 1e-10}[dtype]
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_batched_is_one_at_a_time(example, backend):
    make, record = example
    model = make().on(backend)
    fold = multifold.Fold(backend=backend)
    fold.check(model, [record(model, fold)])


def disturbed(model):
    """Move all parameters a little, so that none is 0 where a function has a corner."""
    rng = np.random.default_rng(0)
    return model.assign({k: x + rng.normal(scale=0.3, size=x.shape) for k, x in model.weights().items()})


def slope(make, record, name, direction, weights, step=1e-6):
    """Return how the weighted answers change when one parameter moves, by NumPy in float64."""
    ends = []
    for sign in (1, -1):
        model = disturbed(make(dtype="float64"))
        values = model.weights()
        values[name] += sign * step * direction
        ends.append((run(model.assign(values), record, "numpy") * weights).sum())
    return (ends[0] - ends[1]) / (2 * step)


def test_gradients_are_those_of_differences(example, dtype, backend, seam):
    if "kit" in seam.gaps():
        return
    make, record = example
    rng = np.random.default_rng(0)
    weights = rng.normal(size=run(make(), record, "numpy").shape)
    model = disturbed(make(dtype=dtype)).on(backend)
    _, gradients = seam.kit.value_and_grad(
        lambda m: seam.kit.dot(run(m, record, backend), weights), model
    )
    assert sorted(gradients) == sorted(model.weights())
    for name, gradient in gradients.items():
        gradient = seam.to_numpy(gradient)
        direction = rng.normal(size=gradient.shape)
        expected = slope(make, record, name, direction, weights)
        np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=1e-3, atol=1e-4)


# ---- weights travel ------------------------------------------------------------------------------


def test_weights_of_a_file_give_the_same_answers_elsewhere(example, backend, seam, tmp_path):
    make, record = example
    trained = make(seed=1).on(backend)
    trained.save(tmp_path / "weights.npz")
    expected = seam.to_numpy(run(trained, record, backend))
    loaded = make(seed=2).load(tmp_path / "weights.npz")
    np.testing.assert_allclose(run(loaded, record, "numpy"), expected, rtol=1e-5, atol=1e-5)
    back = make(seed=2).on(backend).load(tmp_path / "weights.npz")
    np.testing.assert_array_equal(seam.to_numpy(run(back, record, backend)), expected)


def test_a_model_moves_from_its_framework_to_another(example, backend, seam):
    make, record = example
    there = make().on(backend)
    again = there.on("numpy").on(backend)
    assert type(again) is type(there)
    np.testing.assert_array_equal(
        seam.to_numpy(run(again, record, backend)), seam.to_numpy(run(there, record, backend))
    )


def test_moving_copies_the_weights(backend):
    model = BinaryTreeLSTM(5, 4, 3)
    there = model.on(backend)
    model.output.bias[:] = 7
    assert not there.weights()["output.bias"].any()


def test_the_same_seed_gives_the_same_weights_in_both_widths(example):
    make, _ = example
    one, two, other = make(seed=3).weights(), make(seed=3, dtype="float64").weights(), make(seed=4)
    assert all(two[name].dtype == "float64" for name in two)
    for name, value in one.items():
        assert value.dtype == "float32"
        np.testing.assert_array_equal(value, two[name].astype("float32"))
    assert any((one[name] != value).any() for name, value in other.weights().items())


def test_weights_of_another_model_are_refused_and_nothing_changes(backend):
    model = BinaryTreeLSTM(5, 4, 3).on(backend)
    before = model.weights()
    with pytest.raises(WeightsError, match="lack compose"):
        model.assign(ChildSumTreeLSTM(5, 4, 3).weights())
    with pytest.raises(WeightsError, match=r"\(5, 4\) for the parameter embedding.*\(6, 4\)"):
        model.assign(BinaryTreeLSTM(6, 4, 3).weights())
    for name, value in model.weights().items():
        np.testing.assert_array_equal(value, before[name])


def test_an_interrupted_save_leaves_the_weights_before(backend, tmp_path, monkeypatch):
    path = tmp_path / "weights.npz"
    model = BinaryTreeLSTM(5, 4, 3, seed=1).on(backend)
    model.save(path)

    def fail(file, **weights):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(KeyboardInterrupt):
        model.save(path)
    BinaryTreeLSTM(5, 4, 3).load(path)


def test_weights_are_read_without_pickle(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, embedding=np.array([SimpleNamespace()]))
    with pytest.raises(ValueError, match="pickle"):
        BinaryTreeLSTM(5, 4, 3).load(path)


# ---- recording -----------------------------------------------------------------------------------


def test_trees_of_any_depth_are_recorded():
    tree, chain = Binary(0), Tree(0)
    for _ in range(5000):
        tree, chain = Binary(None, (tree, Binary(1))), Tree(1, (chain,))
    fold = multifold.Fold(backend="numpy")
    BinaryTreeLSTM(5, 1, 1).encode(fold, tree)
    assert len(fold) == 10001
    ChildSumTreeLSTM(5, 1, 1).encode(fold, chain)
    assert len(fold) == 20003


def test_words_are_looked_up_where_told():
    ids = {"a": 1, "cat": 2}
    model, fold = BinaryTreeLSTM(5, 4, 3), multifold.Fold(backend="numpy")
    named = Binary(None, (Binary("a"), Binary("cat")))
    got = model.encode(fold, named, lambda node: ids[node.word])[0]
    expected = model.encode(fold, binary((1, 2)))[0]
    np.testing.assert_array_equal(*fold.apply(model, [got, expected]))


def test_all_arities_share_a_launch(launches):
    model, fold = ChildSumTreeLSTM(5, 4, 3), multifold.Fold(backend="numpy")
    flat = [Tree(0, (Tree(1),) * arity) for arity in range(6)]
    nodes = [model.encode(fold, tree)[0] for tree in flat]
    assert launches(fold, [nodes]) == {"embed": 1, "leaf": 1, "node": 1}


def test_a_leaf_is_a_node_without_children(backend, seam):
    model, fold = ChildSumTreeLSTM(5, 4, 3).on(backend), multifold.Fold(backend=backend)
    embedded = fold.add("embed", 2)
    none = multifold.ragged([], row_shape=(4,))
    one = [fold.add("leaf", 3).split(2)[i] for i in range(2)]
    nodes = [
        fold.add("leaf", embedded),
        fold.add("node", embedded, none, none),
        fold.add("node", embedded, *map(multifold.ragged, ([one[0]], [one[1]]))),
    ]
    leaf, node, other = (seam.to_numpy(x) for x in fold.apply(model, [n[0] for n in nodes]))
    np.testing.assert_allclose(leaf, node, rtol=1e-6)
    assert np.abs(leaf - other).max() > 1e-3


# ---- the frameworks' own -------------------------------------------------------------------------


def test_the_neutral_model_pickles_and_copies():
    model = BinaryTreeLSTM(5, 4, 3)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert twin.width == 4
        np.testing.assert_array_equal(twin.embedding, model.embedding)


def test_the_class_that_was_written_stays_in_sight(backend):
    there = BinaryTreeLSTM(5, 4, 3).on(backend)
    assert isinstance(there, BinaryTreeLSTM) and isinstance(there, Model)
    assert there.kind is BinaryTreeLSTM
    assert registry.load(backend).device(there) is not None or backend in ("numpy", "jax")
