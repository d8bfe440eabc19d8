"""`multifold.models` on every backend: NumPy's values, right gradients, weights that travel."""

from __future__ import annotations

import copy
import functools
import importlib
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from model_checks import (
    BINARY,
    SENTENCES,
    Binary,
    Tree,
    binary,
    compiled,
    disturbed,
    run,
    test_answers_are_those_of_numpy,
    test_batched_is_one_at_a_time,
    test_examples_are_recorded_in_traces_too,
    test_gradients_are_those_of_differences,
    test_parameters_have_the_same_names_everywhere,
    test_the_same_seed_gives_the_same_weights_in_both_widths,
    wide,
)

import multifold
from multifold import Ragged, ops
from multifold.models import MLP, BinaryTreeLSTM, ChildSumSimilarity, ChildSumTreeLSTM, Model, WeightsError
from multifold.ops import tables

__all__ = [
    "compiled",
    "test_answers_are_those_of_numpy",
    "test_batched_is_one_at_a_time",
    "test_examples_are_recorded_in_traces_too",
    "test_gradients_are_those_of_differences",
    "test_parameters_have_the_same_names_everywhere",
    "test_the_same_seed_gives_the_same_weights_in_both_widths",
    "wide",
]


def record_trees(model, fold, trees):
    """Classify every node of some trees."""
    states = [state for tree in trees for state in model.encode_all(fold, tree)]
    return [fold.add("logits", h) for h, _ in states]


def record_pairs(model, fold):
    """Compare sentences by their dependency trees."""
    pairs = [SimpleNamespace(left=SENTENCES[0], right=SENTENCES[1])] * 2
    return [model.compare(fold, pair) for pair in pairs]


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
}


@pytest.fixture(params=MODELS)
def example(request):
    """A model's constructor, and what records a minibatch and returns a group of nodes."""
    return MODELS[request.param]


# ---- values and gradients ------------------------------------------------------------------------


# ---- weights travel ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["binary-tree-lstm", "mlp"])
def test_weights_of_a_file_give_the_same_answers_elsewhere(name, backend, seam, tmp_path):
    make, record = MODELS[name]
    trained = make(seed=1).on(backend)
    trained.save(tmp_path / "weights.npz")
    expected = seam.to_numpy(run(trained, record, backend))
    loaded = make(seed=2).load(tmp_path / "weights.npz")
    np.testing.assert_allclose(run(loaded, record, "numpy"), expected, rtol=1e-5, atol=1e-5)
    back = make(seed=2).on(backend).load(tmp_path / "weights.npz")
    np.testing.assert_array_equal(seam.to_numpy(run(back, record, backend)), expected)


def test_a_model_moves_from_its_framework_to_another(backend):
    there = BinaryTreeLSTM(5, 4, 3).on(backend)
    again = there.on("numpy").on(backend)
    assert type(again) is type(there) and again.width == 4
    for name, value in again.weights().items():
        np.testing.assert_array_equal(value, there.weights()[name])


def test_moving_copies_the_weights(backend):
    model = BinaryTreeLSTM(5, 4, 3)
    there = model.on(backend)
    model.output.bias[:] = 7
    assert not there.weights()["output.bias"].any()


def test_weights_of_another_model_are_refused_and_nothing_changes(backend):
    model = BinaryTreeLSTM(5, 4, 3).on(backend)
    before = model.weights()
    with pytest.raises(WeightsError, match=r"lack compose\.bias.* and have besides child\.weight"):
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
    with pytest.raises(WeightsError, match=r"Expected a file of weights in .*weights.npz"):
        BinaryTreeLSTM(5, 4, 3).load(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\3\4torn"])
def test_a_file_that_holds_no_weights_is_named(tmp_path, content):
    path = tmp_path / "weights.npz"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"weights.npz"):
        BinaryTreeLSTM(5, 4, 3).load(path)


# ---- recording -----------------------------------------------------------------------------------


def test_trees_of_any_depth_are_recorded():
    tree = Binary(0)
    chain = Tree(0)
    for _ in range(5000):
        tree = Binary(None, (tree, Binary(1)))
        chain = Tree(1, (chain,))
    fold = multifold.Fold(backend="numpy")
    BinaryTreeLSTM(5, 1, 1).encode(fold, tree)
    assert len(fold) == 10001
    ChildSumTreeLSTM(5, 1, 1).encode(fold, chain)
    assert len(fold) == 20003


def test_words_are_looked_up_where_told():
    ids = {"a": 1, "cat": 2}
    model = BinaryTreeLSTM(5, 4, 3)
    fold = multifold.Fold(backend="numpy")
    named = Binary(None, (Binary("a"), Binary("cat")))
    got = model.encode(fold, named, lambda node: ids[node.word])[0]
    expected = model.encode(fold, binary((1, 2)))[0]
    np.testing.assert_array_equal(*fold.apply(model, [got, expected]))


def test_all_arities_share_a_launch(launches):
    model = ChildSumTreeLSTM(5, 4, 3)
    fold = multifold.Fold(backend="numpy")
    flat = [Tree(0, (Tree(1),) * arity) for arity in range(6)]
    nodes = [model.encode(fold, tree)[0] for tree in flat]
    assert launches(fold, [nodes]) == {"embed": 1, "leaf": 1, "node": 1}


def test_a_leaf_is_a_node_without_children(backend, seam):
    model = ChildSumTreeLSTM(5, 4, 3).on(backend)
    fold = multifold.Fold(backend=backend)
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


def torch_trainer(model, loss):
    """Return a function that makes one step with an optimizer of PyTorch."""
    torch = importlib.import_module("torch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        return model

    return step


def tensorflow_trainer(model, loss):
    """Return a function that makes one step with an optimizer of Keras."""
    tf = importlib.import_module("tensorflow")
    optimizer = tf.keras.optimizers.SGD(0.01)

    def step():
        with tf.GradientTape() as tape:
            value = loss(model)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return model

    return step


def mxnet_trainer(model, loss):
    """Return a function that makes one step with a trainer of Gluon."""
    mx = importlib.import_module("mxnet")
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.01})

    def step():
        with mx.autograd.record():
            value = loss(model)
        value.backward()
        trainer.step(1)
        return model

    return step


def jax_trainer(model, loss):
    """Return a function that makes one step with an optimizer of Optax."""
    jax, optax = map(importlib.import_module, ("jax", "optax"))
    optimizer = optax.sgd(0.01)
    state = [model, optimizer.init(model)]

    def step():
        updates, state[1] = optimizer.update(jax.grad(loss)(state[0]), state[1])
        state[0] = optax.apply_updates(state[0], updates)
        return state[0]

    return step


TRAINERS = {
    "torch": torch_trainer,
    "tensorflow": tensorflow_trainer,
    "mxnet": mxnet_trainer,
    "jax": jax_trainer,
}


def test_an_optimizer_of_the_framework_trains_a_model(backend, seam, compiled):
    if backend not in TRAINERS:
        return
    model = disturbed(BinaryTreeLSTM(5, 4, 3))

    @compiled
    def loss(model):
        answers = run(model, lambda model, fold: record_trees(model, fold, BINARY), backend)
        return ops.sum(ops.sum(answers * answers, 1), 0)

    step = TRAINERS[backend](model.on(backend), loss)
    for _ in range(3):
        trained = step()

    def value(values):
        return float(seam.to_numpy(loss(model.assign(values).on(backend))).item())

    before = model.weights()
    after = trained.weights()
    assert all((before[name] != after[name]).any() for name in before)
    assert value(after) < 0.9 * value(before)


def test_ops_of_a_model_compile_though_nothing_ran_before(backend, seam, monkeypatch):
    monkeypatch.setattr(tables, "_TABLES", {})
    model = ChildSumTreeLSTM(5, 4, 3).on(backend)
    node = model.node
    if backend == "torch":
        node = importlib.import_module("torch").compile(node, fullgraph=True, backend="eager")
    elif backend == "tensorflow":
        node = importlib.import_module("tensorflow").function(node)
    elif backend == "jax":
        node = functools.partial(importlib.import_module("jax").jit(type(model).node), model)
    given = [np.array([1, 2]), np.ones((3, 4), "float32"), np.array([0, 3]), np.array([1, 1, 1])]
    word, values, lengths, ids = (seam.constant(x, None) for x in given)
    rows = Ragged(values, lengths, ids)
    for got, expected in zip(node(word, rows, rows), model.node(word, rows, rows), strict=True):
        np.testing.assert_allclose(seam.to_numpy(got), seam.to_numpy(expected), rtol=1e-5)


def test_a_module_of_torch_stays_one_though_an_op_is_called_children(backend):
    if backend != "torch":
        return
    torch = importlib.import_module("torch")
    model = BinaryTreeLSTM(5, 4, 3).on("torch")
    assert len(list(model.children())) == 3
    assert not model.eval().compose.training
    assert model.to(torch.float64).compose.weight.dtype is torch.float64
    assert set(model.state_dict()) == set(model.weights())
    h = torch.ones(2, 4, dtype=torch.float64)
    assert model.children(h, h, h, h)[0].shape == (2, 4)


def test_models_pickle_and_copy(backend):
    if backend in ("tensorflow", "mxnet"):
        return  # their own modules with variables do not
    model = BinaryTreeLSTM(5, 4, 3).on(backend)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(twin) is type(model) and twin.width == 4
        for name, value in twin.weights().items():
            np.testing.assert_array_equal(value, model.weights()[name])


def test_the_class_that_was_written_stays_in_sight(backend, seam):
    there = BinaryTreeLSTM(5, 4, 3).on(backend)
    assert isinstance(there, BinaryTreeLSTM) and there.kind is BinaryTreeLSTM
    assert there.__doc__ == BinaryTreeLSTM.__doc__
    assert seam.hosts(there) == (backend != "numpy")


def test_names_of_methods_are_refused_as_parameters():
    class Wrong(Model):
        def __init__(self):
            super().__init__({"apply.weight": np.zeros(1)})

        def apply(self, x):
            return x

    with pytest.raises(WeightsError, match=r"named like what it has anyway. Received apply\."):
        Wrong()


CLASHES = {"torch": "_apply", "tensorflow": "with_name_scope", "mxnet": "hybridize"}


def test_ops_named_like_what_the_framework_needs_are_refused(backend):
    if backend not in CLASHES:
        return
    kind = type("Wrong", (Model,), {CLASHES[backend]: lambda self, x: x})
    with pytest.raises(multifold.BackendError, match=rf"Received {CLASHES[backend]}\."):
        kind({"weight": np.zeros(1)}).on(backend)
