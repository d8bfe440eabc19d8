"""The conformance suite, and what is MXNet's own: its import, arrays, tape, blocks and cells."""

from __future__ import annotations

import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from multifold_mxnet import MxnetBackend
from mxnet import autograd, gluon
from mxnet import np as mxnp
from mxnet.gluon import contrib, nn, rnn

from multifold import Fold, Ragged, Unfold, ops
from multifold.backend import Cell
from multifold.errors import BackendError, RecordError
from multifold.testing import Conformance

BACKEND = MxnetBackend()
ROWS = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.fixture(params=["nd", "np", "set_np"])
def rows(request):
    """Four rows of three with a gradient: as each kind of array, and in MXNet's NumPy mode."""
    switched = request.param == "set_np"
    with mx.util.np_shape(switched), mx.util.np_array(switched):
        x = mx.nd.array(ROWS) if request.param == "nd" else mxnp.array(ROWS, dtype="float32")
        x.attach_grad()
        yield x


def constants(values):
    """The same integers as either kind of array."""
    legacy = mx.nd.array(np.array(values), dtype="int64")
    return legacy, legacy.as_np_ndarray()


def run_python(code):
    """Run code in a new interpreter; return its output, errors included."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], check=False, capture_output=True, text=True
    )
    return done.stdout + done.stderr


class TestConformance(Conformance):
    backend = BACKEND


class TestConformanceInNumpyMode(Conformance):
    backend = BACKEND

    @pytest.fixture(autouse=True)
    def numpy_mode(self):
        with mx.util.np_shape(True), mx.util.np_array(True):
            yield


# ---- import ----------------------------------------------------------------------------------


def test_import_prints_nothing():
    assert run_python("import multifold_mxnet") == ""


def test_import_leaves_the_warning_filters_alone():
    code = "import numpy, warnings; old = list(warnings.filters); import multifold_mxnet\n"
    assert run_python(code + "print(old == warnings.filters)") == "True\n"


def test_too_new_numpy_is_named_in_the_error():
    code = "import numpy; numpy.__version__ = '1.24.0'; import multifold_mxnet"
    assert "ImportError: MXNet 1.9.1 needs numpy<1.24" in run_python(code)


# ---- arrays ----------------------------------------------------------------------------------


def test_kinds_of_arrays_have_different_signatures():
    legacy, modern = constants([1])
    assert BACKEND.owns(legacy) and BACKEND.owns(modern)
    assert BACKEND.signature(legacy) != BACKEND.signature(modern)


def test_signature_is_shape_dtype_and_context(rows):
    assert BACKEND.signature(rows) == BACKEND.signature(rows[1:])
    assert BACKEND.signature(rows) != BACKEND.signature(rows.astype("float64"))
    assert BACKEND.signature(rows) != BACKEND.signature(rows[:, :2])


def test_constant_is_legacy_unless_the_user_switched():
    assert type(BACKEND.constant(ROWS, None)) is mx.nd.NDArray
    with mx.util.np_array(True):
        assert type(BACKEND.constant(ROWS, None)) is mxnp.ndarray


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "bool"])
def test_constant_keeps_dtype(dtype):
    assert np.dtype(BACKEND.constant(np.ones(2, dtype), mx.cpu()).dtype) == dtype


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
def test_constant_widens_integers_that_mxnet_lacks(dtype):
    largest = min(np.iinfo(dtype).max, 2**40)
    assert BACKEND.to_numpy(BACKEND.constant(np.array([largest], dtype), None))[0] == largest


def test_integers_address_rows_beyond_float32():
    table = mx.nd.arange(2**24 + 4, dtype="int32")
    index = BACKEND.constant(np.array([2**24 + 1], BACKEND.number_dtype(int)), None)
    assert BACKEND.to_numpy(BACKEND.gather(table, index))[0] == 2**24 + 1


@pytest.mark.parametrize("kind", [0, 1])
def test_gather_takes_either_kind_of_index(rows, kind):
    taken = BACKEND.gather(rows, constants([3, 0, 3])[kind])
    assert type(taken) is type(rows)
    np.testing.assert_array_equal(taken.asnumpy(), ROWS[[3, 0, 3]])


def test_gather_of_no_rows_has_no_gradient(rows):
    with autograd.record():
        none = BACKEND.gather(rows, BACKEND.constant(np.zeros(0, "int64"), None))
        (rows * 2).sum().backward()
    assert none.shape == (0, 3)
    assert (rows.grad.asnumpy() == 2).all()


def test_concat_of_both_kinds_is_modern(rows):
    legacy, modern = constants([1, 2])
    assert type(BACKEND.concat([legacy, modern])) is mxnp.ndarray
    assert type(BACKEND.concat([rows, rows])) is type(rows)


# ---- the tape --------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("sizes", [[1, 2, 1], [1, 0, 1, 1, 1]], ids=["few", "many"])
def test_split_has_the_gradient_of_its_sections(rows, grad_req, sizes):
    rows.attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            first, *_, last = BACKEND.split(rows, sizes)
            (first * 2).sum().backward(retain_graph=True)
            (last * 3).sum().backward()
    expected = [4, 0, 0, 6] if grad_req == "add" else [0, 0, 0, 3]
    np.testing.assert_array_equal(rows.grad.asnumpy()[:, 0], expected)


@pytest.mark.parametrize("sizes", [[0, 4], [0, 1, 0, 3, 0, 0]], ids=["few", "many"])
def test_empty_sections_do_not_disturb_the_tape(rows, sizes):
    with autograd.record():
        sections = BACKEND.split(rows * 2, sizes)
        autograd.backward([section * 1 for section in sections if section.shape[0]])
    assert [section.shape for section in sections] == [(size, 3) for size in sizes]
    assert (rows.grad.asnumpy() == 2).all()


@pytest.mark.parametrize("count", [1, 4, 5, 16, 17, 90])
def test_split_into_many_sections_is_the_inverse_of_concat(count):
    sizes = [1 + i % 3 for i in range(count)]
    values = np.arange(sum(sizes) * 2.0).reshape(-1, 2)
    x = BACKEND.kit.variable(values)
    with autograd.record():
        sections = BACKEND.split(x, sizes)
        autograd.backward([section * i for i, section in enumerate(sections)])
    np.testing.assert_array_equal(np.concatenate([s.asnumpy() for s in sections]), values)
    np.testing.assert_array_equal(x.grad.asnumpy()[:, 0], np.repeat(np.arange(count), sizes))


def test_the_largest_sections_are_cut_first(monkeypatch):
    # The gradient of a slice is as large as its source: these are the rows that a backward pass fills.
    sources = []
    cut = mx.nd.NDArray._slice
    monkeypatch.setattr(
        mx.nd.NDArray, "_slice", lambda x, *ends: sources.append(x.shape[0]) or cut(x, *ends)
    )
    sizes = [2**i for i in reversed(range(16))]
    x = BACKEND.kit.variable(np.zeros((sum(sizes), 1)))
    with autograd.record():
        sections = BACKEND.split(x, sizes)
    assert [section.shape[0] for section in sections] == sizes
    assert sum(sources) < 5 * sum(sizes) and len(sources) < 1.5 * len(sizes)


def test_sections_are_views_without_a_tape(rows):
    section = BACKEND.split(rows, [1, 3])[1]
    rows[1] = 7
    assert section.asnumpy()[0].tolist() == [7, 7, 7]


def test_gather_and_concat_have_gradients_through_both_kinds(rows):
    with autograd.record():
        taken = BACKEND.gather(rows, constants([1, 1, 3])[0])
        BACKEND.concat([taken, mxnp.ones((1, 3))]).sum().backward()
    np.testing.assert_array_equal(rows.grad.asnumpy()[:, 0], [0, 2, 0, 1])


# ---- models ----------------------------------------------------------------------------------


def test_hosts_blocks_and_dictionaries_of_them():
    assert BACKEND.hosts(nn.Dense(2)) and BACKEND.hosts({"dense": nn.HybridSequential()})
    assert not BACKEND.hosts({"a": ROWS}) and not BACKEND.hosts(print)


def test_device_of_deferred_and_of_uninitialised_parameters():
    dense = nn.Dense(2)
    assert BACKEND.device(dense) is None
    dense.initialize(ctx=mx.cpu(1))
    assert BACKEND.device(dense) == BACKEND.device({"dense": dense}) == mx.cpu(1)


def test_value_and_grad_leaves_the_buffers_of_the_user_alone():
    dense = nn.Dense(1, use_bias=False)
    unused = nn.Dense(1, in_units=1, use_bias=False)
    for block in (dense, unused):
        block.initialize()
    model = {"dense": dense, "unused": unused, "free": BACKEND.kit.variable(np.ones(3), None)}
    value, gradients = BACKEND.kit.value_and_grad(lambda m: m["dense"](mx.nd.array(ROWS)).sum(), model)
    used, lonely, free = gradients.values()
    np.testing.assert_allclose(used.asnumpy()[0], ROWS.sum(0))
    assert not lonely.asnumpy().any() and not free.asnumpy().any() and free.dtype == np.float64
    assert not dense.weight.grad().asnumpy().any()
    assert value.asnumpy() == pytest.approx((ROWS @ dense.weight.data().asnumpy().T).sum(), rel=1e-5)


def test_kit_skips_parameters_without_gradient():
    norm = nn.BatchNorm(in_channels=2)
    norm.initialize()
    assert [name.split("_")[-1] for name in BACKEND.kit.parameters(norm)] == ["gamma", "beta"]


def test_value_and_grad_follows_the_mode_of_the_user():
    drop = nn.Dropout(0.5)
    ones = {"x": BACKEND.kit.variable(np.ones(64, "float32"))}
    assert BACKEND.kit.value_and_grad(lambda m: drop(m["x"]).sum(), ones)[0].asscalar() == 64
    with autograd.train_mode():
        gradient = BACKEND.kit.value_and_grad(lambda m: drop(m["x"]).sum(), ones)[1]["x"]
    assert set(gradient.asnumpy()) == {0.0, 2.0}


# ---- end to end ----------------------------------------------------------------------------


class Tree(nn.Block):
    """A recursive encoder: words are embedded, two children become their parent."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.leaf = nn.Embedding(5, 4)
            self.cell = nn.Dense(4, activation="tanh", in_units=8)
        mx.random.seed(0)
        self.initialize(mx.init.Uniform(0.5))

    def children(self, left, right):
        """Return the parents of ``(n, 4)`` left and right children."""
        return self.cell(mx.nd.concat(left, right, dim=1))


def encode(fold, tree):
    """The root of a tree of nested pairs of words."""
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("children", *(encode(fold, child) for child in tree))


TREES = [0, (1, 2), ((3, 0), 4), ((1, 1), (2, (3, 4))), (0, (0, (0, 1)))]


@pytest.mark.parametrize("hybrid", [False, True])
def test_fold_has_the_gradients_of_one_tree_at_a_time(hybrid):
    model = Tree()
    gradients = []
    model.hybridize(hybrid)
    for fold in (Fold(backend=BACKEND), Unfold(model, backend=BACKEND)):
        with autograd.record():
            roots = fold.apply(model, [encode(fold, tree) for tree in TREES])
            loss = (roots * roots).sum()
        loss.backward()
        gradients.append([p.grad().asnumpy() for p in model.collect_params().values()])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_recording_stands_inside_or_outside_of_the_tape():
    model = Tree()
    fold = Fold(backend=BACKEND)
    nodes = [encode(fold, tree) for tree in TREES]
    with autograd.record():
        loss = fold.apply(model, nodes).sum()
    loss.backward()
    assert np.abs(model.leaf.weight.grad().asnumpy()).min() > 0


@pytest.mark.parametrize("hybrid", [False, True])
def test_trainer_learns(hybrid):
    model = Tree()
    losses = []
    model.hybridize(hybrid)
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5})
    for _ in range(10):
        with autograd.record():
            fold = Fold(backend=BACKEND)
            roots, targets = fold.apply(model, [[encode(fold, t) for t in TREES], [0.0, 1.0] * 2 + [0.0]])
            loss = gluon.loss.L2Loss()(roots[:, 0], targets)
        loss.backward()
        trainer.step(len(TREES))
        losses.append(loss.mean().asscalar())
    assert losses[-1] < losses[0] / 2


def test_a_trainer_steps_past_an_op_that_no_example_used():
    """A leaf alone calls no `children`: the cell keeps its parameters, and SGD moves those of the leaf."""
    model = Tree()
    fold = Fold(backend=BACKEND)
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.5})
    leaf, cell = (p.data().asnumpy() for p in (model.leaf.weight, model.cell.weight))
    with autograd.record():
        loss = fold.apply(model, encode(fold, 3)).sum()
    loss.backward()
    with pytest.raises(UserWarning, match="has not been updated by backward"):
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    leaf[3] -= 0.5
    np.testing.assert_allclose(model.leaf.weight.data().asnumpy(), leaf, rtol=1e-6)
    np.testing.assert_array_equal(model.cell.weight.data().asnumpy(), cell)


def test_check_compares_values_and_gradients_of_a_block():
    fold = Fold(backend=BACKEND)
    fold.check(Tree(), [encode(fold, tree) for tree in TREES])


def test_fold_runs_in_numpy_mode():
    with mx.util.np_shape(True), mx.util.np_array(True):
        fold = Fold(backend=BACKEND)
        nodes = [fold.add(lambda x, i: x * i, fold.add("twice", mxnp.ones((1, 2))), i) for i in (1, 2)]
        (values,) = fold.apply({"twice": lambda x: x * 2}, [nodes])
    assert type(values) is mxnp.ndarray
    assert values.asnumpy().tolist() == [[2, 2], [4, 4]]


# ---- cells -----------------------------------------------------------------------------------


def sequential(*layers):
    """A stack of Gluon cells."""
    stack = rnn.SequentialRNNCell()
    for layer in layers:
        stack.add(layer)
    return stack


CELLS = {
    "rnn": lambda: rnn.RNNCell(4),
    "gru": lambda: rnn.GRUCell(4),
    "lstm": lambda: rnn.LSTMCell(4),
    "residual": lambda: rnn.ResidualCell(rnn.GRUCell(3)),
    "zoneout": lambda: rnn.ZoneoutCell(rnn.LSTMCell(4), zoneout_states=0.5),
    "sequential": lambda: sequential(rnn.LSTMCell(3), rnn.GRUCell(4)),
    "bidirectional": lambda: sequential(
        rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.GRUCell(2)),
        rnn.BidirectionalCell(rnn.RNNCell(2), rnn.RNNCell(5)),
    ),
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_unroll_equals_that_of_the_cell(name, hybrid):
    cell = CELLS[name]()
    fold = Fold(backend=BACKEND)
    cell.initialize(mx.init.Uniform(0.5))
    cell.hybridize(hybrid)
    inputs = [mx.nd.array(ROWS[None, :length] / 12) for length in (2, 1, 4)]
    outputs = [fold.unroll(cell, x.shape[1], x)[0] for x in inputs]
    for ours, x in zip(fold.apply(None, outputs), inputs, strict=True):
        theirs = mx.nd.concat(*cell.unroll(x.shape[1], x, merge_outputs=False)[0], dim=0)
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_step_has_the_name_of_its_cell():
    cell = CELLS["lstm"]()
    fold = Fold(backend=BACKEND)
    cell.initialize()
    outputs, _ = fold.unroll(cell, 1, mx.nd.ones((1, 1, 3)))
    assert "of LSTMCell[0]" in repr(outputs[0])


def test_states_begin_in_the_dtype_of_the_cell():
    cell = rnn.LSTMCell(4, input_size=3)
    cell.cast("float64")
    cell.initialize()
    made = BACKEND.cell(cell)
    assert isinstance(made, Cell)
    assert [(s.shape, s.dtype) for s in made.begin()] == [((1, 4), np.float64)] * 2


@pytest.mark.parametrize(
    "cell",
    [
        rnn.ResidualCell(rnn.ZoneoutCell(rnn.RNNCell(3), zoneout_outputs=0.5)),
        contrib.rnn.VariationalDropoutCell(rnn.RNNCell(3), 0.5),
        nn.Dense(3),
    ],
    ids=["zoneout", "variational", "dense"],
)
def test_cell_that_cannot_be_unrolled_is_refused(cell):
    with pytest.raises(BackendError, match="unroll"):
        BACKEND.cell(cell)


# ---- contexts, both kinds of arrays, cells inside of cells -------------------------------------------


def test_an_example_leaves_pause_before_it_waits():
    async def fn(fold, x):
        with autograd.pause():
            await fold.value(fold.add(mx.nd.sigmoid, x))

    with autograd.record(), pytest.raises(RecordError, match="leave the framework's `with`"):
        Fold(backend="mxnet").run(None, [mx.nd.ones((1, 2))] * 2, fn)
    assert not autograd.is_recording()


FUNCTIONS = {
    "tanh": (ops.tanh, np.tanh),
    "sum": (lambda x: ops.sum(x, 1), lambda x: x.sum(1)),
    "concat": (lambda x: ops.concat([x, x], 1), lambda x: np.concatenate([x, x], 1)),
    "split": (lambda x: ops.split(x, 2, 1)[1], lambda x: x[:, 1:]),
    "where": (lambda x: ops.where(x > 0, x, 0 * x), lambda x: np.maximum(x, 0)),
    "linear": (lambda x: ops.linear(x, x, x[0]), lambda x: x @ x + x[0]),
    "segment_sum": (lambda x: ops.segment_sum(x, both(x)), lambda x: x.sum(0, keepdims=True)),
}


def both(x):
    """Both rows of an array as one node's."""
    make = mx.np.array if isinstance(x, mx.np.ndarray) else mx.nd.array
    return Ragged(x, make([2], dtype="int64"), make([0, 0], dtype="int64"))


@pytest.mark.parametrize("kind", [mx.nd, mx.np], ids=["nd", "np"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_both_kinds_of_arrays(name, kind):
    ours, numpys = FUNCTIONS[name]
    x = kind.array([[1.0, -2.0], [3.0, 4.0]], dtype="float32")
    got = ours(x)
    assert isinstance(got, type(x))
    np.testing.assert_allclose(got.asnumpy(), numpys(x.asnumpy()), rtol=1e-6)


def test_a_bool_of_python_chooses():
    fold = Fold(backend="mxnet")
    picks = [fold.add(ops.where, bool(i % 2), float(i), -1.0) for i in range(4)]
    assert fold([picks])[0].asnumpy().tolist() == [-1, 1, -1, 3]


def test_a_bidirectional_cell_inside_of_another_one_is_refused_at_once():
    cell = rnn.ResidualCell(rnn.BidirectionalCell(rnn.GRUCell(2), rnn.GRUCell(2)))
    with pytest.raises(BackendError, match="BidirectionalCell inside of another cell"):
        Fold("mxnet").unroll(cell, 3, mx.nd.ones((1, 3, 4)))
