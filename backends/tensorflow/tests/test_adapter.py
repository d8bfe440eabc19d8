"""What is TensorFlow's own: tapes, graphs, sparse gradients, devices, Keras layers and cells."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import types
from functools import reduce
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from multifold_tensorflow import TensorflowBackend

import multifold
from multifold import ops
from multifold.errors import BackendError, LaunchError, RecordError

backend = TensorflowBackend()
layers = keras.layers
rng = np.random.default_rng(0)


def rows(n, width=3):
    return tf.constant(rng.normal(size=(n, width)).astype(np.float32))


def graph(fn):
    """Return a `tf.function` that leaves the Python of this library alone."""
    return tf.function(fn, autograph=False)


def seen_inside_a_function(look, *signature):
    """Return what ``look`` says about symbolic tensors of that signature."""
    seen = []
    graph(lambda x: (seen.append(look(x)), x)[1]).get_concrete_function(*signature)
    return seen[-1]


def run_python(code, **environment):
    """Run code in a process of its own, for what TensorFlow and Keras decide once."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **environment,
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_tensors_and_variables_are_owned_and_what_has_no_rows_is_not():
    assert all(map(backend.owns, [rows(2), tf.Variable(rows(2)), keras.Variable(rows(2))]))
    others = [
        np.ones(2),
        1.0,
        [rows(1)],
        keras.Input((3,)),
        tf.ragged.constant([[1], [1, 2]]),
        tf.IndexedSlices(rows(1), tf.constant([0])),
    ]
    assert not any(map(backend.owns, others))


def test_variables_have_the_signature_of_a_tensor():
    expected = backend.signature(rows(2))
    assert backend.signature(tf.Variable(rows(4))) == expected
    assert backend.signature(keras.Variable(rows(4))) == expected


def test_rows_are_taken_from_variables_as_from_tensors():
    for variable in (tf.Variable([[1.0], [2.0]]), keras.Variable([[1.0], [2.0]])):
        first, second = backend.split(variable, [1, 1])
        swapped = backend.concat([second, first, variable])
        taken = backend.gather(variable, tf.constant([1, 1]))
        np.testing.assert_array_equal(swapped, [[2], [1], [1], [2]])
        np.testing.assert_array_equal(taken, [[2], [2]])


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int64, np.bool_]
)
def test_rows_keep_their_dtype(dtype):
    values = rng.integers(0, 2, (5, 2)).astype(dtype)
    first, second = backend.split(backend.constant(values, None), [3, 2])
    taken = backend.gather(backend.concat([second, first]), tf.constant([4, 0, 0]))
    back = backend.to_numpy(taken)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, values[[2, 3, 3]])


def test_to_numpy_returns_a_copy_of_any_number_of_axes_without_a_warning(recwarn):
    variable = tf.Variable([1.0, 2.0])
    before = backend.to_numpy(variable)
    variable.assign([3.0, 4.0])
    np.testing.assert_array_equal(before, [1, 2])
    assert backend.to_numpy(tf.constant(2.0)).shape == ()
    assert not recwarn.list


def test_symbolic_tensors_are_owned_and_say_their_static_rows():
    spec = tf.TensorSpec([4, 3])
    assert seen_inside_a_function(backend.owns, spec)
    assert seen_inside_a_function(backend.rows, spec) == 4
    assert seen_inside_a_function(backend.signature, spec)[:2] == ((3,), tf.float32)


def test_variables_and_symbolic_tensors_share_launches_inside_a_function():
    variable = tf.Variable(rows(2))
    spec = tf.TensorSpec([4, 3])
    assert seen_inside_a_function(lambda x: backend.signature(x) == backend.signature(variable), spec)


@pytest.mark.parametrize("shape", [[None, 3], [2, None], None])
def test_a_shape_that_is_not_static_is_an_error_that_says_what_to_do(shape):
    with pytest.raises(BackendError, match=r"static shape(.|\n)*Hint: .*tf.ensure_shape"):
        seen_inside_a_function(backend.signature, tf.TensorSpec(shape))


def test_a_scalar_has_no_rows():
    with pytest.raises(IndexError):
        backend.rows(tf.constant(1.0))


def test_rows_stay_static_through_all_operations_inside_a_function():
    def operations(x):
        first, second, empty = backend.split(x, [1, 3, 0])
        whole = backend.concat([second, first, empty])
        return backend.rows(backend.gather(whole, backend.constant(np.array([3, 0]), None)))

    assert seen_inside_a_function(operations, tf.TensorSpec([4, 3])) == 2


def test_an_op_that_is_a_relaxed_function_keeps_static_rows_inside_another():
    op = tf.function(lambda x: tf.concat([x, x], 1), reduce_retracing=True)
    for n in (1, 2, 3, 50):
        backend.call(op, [rows(n)], {})
    assert op.experimental_get_tracing_count() <= 2
    inside = seen_inside_a_function(lambda x: backend.call(op, [x], {}).shape, tf.TensorSpec([7, 3]))
    assert inside == (7, 6)


@pytest.mark.parametrize("context", [lambda fn: fn, graph], ids=["eager", "function"])
def test_gradients_of_repeated_and_unread_rows_are_dense_sums(context):
    x = rows(4)
    index = backend.constant(np.array([2, 0, 2]), None)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first, _unread = backend.split(backend.gather(x, index), [2, 1])
            total = tf.reduce_sum(backend.concat([first, first]))
        return tape.gradient(total, x)

    found = context(gradient)(x)
    assert isinstance(found, tf.Tensor)
    np.testing.assert_array_equal(found, np.repeat([[2.0], [0], [2], [0]], 3, axis=1))


def test_second_derivatives_pass_through_a_gather():
    x = rows(3)
    index = tf.constant([0, 2, 2])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            total = tf.reduce_sum(backend.gather(x, index) ** 3)
        first = inner.gradient(total, x)
    np.testing.assert_allclose(outer.gradient(first, x), 6 * x * [[1.0], [0], [2]], rtol=1e-6)


def test_forward_mode_passes_through_a_gather():
    x = rows(3)
    with tf.autodiff.ForwardAccumulator(x, 2 * x) as accumulator:
        taken = backend.gather(x, tf.constant([1, 1]))
    np.testing.assert_allclose(accumulator.jvp(taken), 2 * x.numpy()[[1, 1]])


def test_without_a_tape_a_gather_is_one_operation(monkeypatch):
    monkeypatch.setattr("multifold_tensorflow.backend._gather", lambda x, rows: "with a gradient")
    x = rows(3)
    index = tf.constant([1, 1])
    assert backend.gather(x, index).shape == (2, 3)
    with tf.GradientTape():
        assert backend.gather(x, index) == "with a gradient"
    with tf.autodiff.ForwardAccumulator(x, x):
        assert backend.gather(x, index) == "with a gradient"
    assert (
        seen_inside_a_function(lambda x: backend.gather(x, index), tf.TensorSpec([3, 3]))
        == "with a gradient"
    )


def test_numbers_are_int64_and_the_floats_of_keras():
    assert backend.number_dtype(int) == np.int64
    assert backend.number_dtype(float) == np.float32
    keras.config.set_floatx("float64")
    try:
        assert backend.number_dtype(float) == np.float64
    finally:
        keras.config.set_floatx("float32")


def test_a_batch_of_integers_looks_rows_up_in_an_embedding():
    embedding = layers.Embedding(5, 2)
    index = backend.constant(np.array([4, 0], backend.number_dtype(int)), None)
    np.testing.assert_array_equal(embedding(index), embedding.embeddings.numpy()[[4, 0]])


def test_arrays_go_to_the_device_that_is_named_or_that_the_model_is_on():
    code = """if True:
        import numpy as np, tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        from multifold_tensorflow import TensorflowBackend
        backend = TensorflowBackend()
        with tf.device("CPU:1"):
            model = {"weight": tf.Variable(1.0)}
            print(backend.constant(np.ones(2), None).device[-5:])
        print(backend.device(model)[-5:], backend.device(model["weight"])[-5:], backend.device({}))
        print(backend.constant(np.ones(2), backend.device(model)).device[-5:])
        print(backend.kit.variable(np.ones(2), "CPU:1").device[-5:])
        print(backend.constant(np.ones(2), None).device[-5:])
        print(backend.signature(model["weight"]) == backend.signature(tf.Variable(1.0)))
    """
    other = "CPU:1"
    assert run_python(code) == [other, other, other, "None", other, other, "CPU:0", "False"]


class Module(tf.Module):
    """Variables in attributes, lists and mappings, some of them twice or not trainable."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(1.0)
        self.parts = [tf.Variable(2.0), {"again": self.weight, "own": tf.Variable(3.0)}]
        self.frozen = tf.Variable(4.0, trainable=False)
        self.count = tf.Variable(0)
        self.dense = layers.Dense(1, name="dense")
        self.me = self


class Sentiment(keras.Model):
    """A Keras model whose layers are built by their first call."""

    def __init__(self):
        super().__init__(name="sentiment")
        self.embedding = layers.Embedding(4, 2, name="embedding")
        self.unused = layers.Dense(1, name="unused")
        self.frozen = layers.Dense(1, trainable=False, name="frozen")

    def leaf(self, word):
        return self.embedding(word)


def test_keras_layers_keras_models_and_modules_are_hosted_and_other_objects_are_not():
    assert all(map(backend.hosts, [layers.Dense(1), Sentiment(), keras.Sequential(), Module()]))
    assert not any(map(backend.hosts, [types.SimpleNamespace(), {"op": len}, np.ones(1)]))


def test_keras_on_another_backend_is_not_tensorflow():
    """There a layer has no base of TensorFlow; Keras itself would need that other backend to import."""
    elsewhere = type("GRUCell", (), {"__module__": "keras.src.layers.rnn.gru"})()
    assert not backend.hosts(elsewhere)
    assert not backend.owns(elsewhere)
    with pytest.raises(BackendError):
        backend.cell(elsewhere)


def test_parameters_are_found_once_in_attributes_lists_mappings_and_layers():
    module = Module()
    module.dense.build((None, 1))
    names = ["weight", "parts.0", "parts.1.own", "dense.dense/kernel", "dense.dense/bias"]
    assert list(backend.kit.parameters(module)) == names
    plain = types.SimpleNamespace(inner={"module": types.SimpleNamespace(w=module.weight)})
    assert list(backend.kit.parameters(plain)) == ["inner.module.w"]


def test_parameters_of_equal_name_stay_apart():
    model = [layers.Dense(1, name="same"), layers.Dense(1, name="same")]
    for layer in model:
        layer.build((None, 2))
    model = (
        keras.Sequential(model[:1]),
        model[1],
        {"x.y": tf.Variable(1.0), "x": {"y": tf.Variable(2.0)}},
    )
    assert len(backend.kit.parameters(model)) == 6


def test_networks_of_several_depths_share_launches_where_their_variables_are_operands():
    def layer(w, x):  # a matrix for each row
        return tf.tanh(tf.matmul(x[:, None], w)[:, 0])

    networks = [[tf.Variable(rows(3)[None]) for _ in range(depth)] for depth in (1, 3, 2, 3)]
    weights = [w for network in networks for w in network]
    fold, xs = multifold.Fold(), [rows(1) for _ in networks]
    with tf.GradientTape(persistent=True) as tape:
        nodes = [
            reduce(lambda x, w: fold.add(layer, w, x), own, x) for own, x in zip(networks, xs, strict=True)
        ]
        found = fold([nodes])[0]
        expected = tf.concat(
            [reduce(lambda x, w: layer(w, x), own, x) for own, x in zip(networks, xs, strict=True)], 0
        )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for got, own in zip(tape.gradient(found, weights), tape.gradient(expected, weights), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(got), own, rtol=1e-4, atol=1e-6)
    assert len(fold.schedule().launches) == 3


def test_value_and_grad_builds_layers_and_gives_dense_gradients_and_zeros():
    model = Sentiment()
    model.unused.build((None, 2))
    model.frozen.build((None, 2))

    def loss(model):
        return tf.reduce_sum(model.leaf(tf.constant([1, 3, 3])))

    value, gradients = backend.kit.value_and_grad(loss, model)
    weights = model.embedding.embeddings.numpy()
    np.testing.assert_allclose(value, weights[[1, 3, 3]].sum(), rtol=1e-6)
    assert list(gradients) == ["embedding/embeddings", "unused/kernel", "unused/bias"]
    expected = np.repeat([[0.0], [1], [0], [2]], 2, axis=1)
    np.testing.assert_array_equal(gradients["embedding/embeddings"], expected)
    assert not gradients["unused/kernel"].numpy().any()


TREES = [3, (1, 2), ((0, 3), 1), (2, ((1, 0), (3, 3)))]


class Tree(Sentiment):
    """A tree of words, one of whose ops is a relaxed `tf.function`."""

    def __init__(self):
        super().__init__()
        self.cell = layers.Dense(2, activation="tanh")

    @tf.function(reduce_retracing=True)
    def children(self, left, right):
        return self.cell(tf.concat([left, right], 1))


def batched(model, trees=TREES):
    def encode(tree):
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("children", *map(encode, tree))

    fold = multifold.Fold(backend=backend)
    return tf.reduce_sum(fold.apply(model, [encode(tree) for tree in trees]) ** 2)


def looped(model):
    def encode(tree):
        if isinstance(tree, int):
            return model.leaf(tf.constant([tree]))
        return model.children(*map(encode, tree))

    return tf.reduce_sum(tf.concat([encode(tree) for tree in TREES], 0) ** 2)


@pytest.mark.parametrize("context", [lambda fn: fn, graph], ids=["eager", "function"])
def test_values_and_gradients_of_a_keras_model_are_those_of_the_loop(context):
    model = Tree()
    looped(model)
    value, gradients = context(lambda: backend.kit.value_and_grad(batched, model))()
    expected, expected_gradients = backend.kit.value_and_grad(looped, model)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_relaxed_function_is_traced_no_more_when_launches_have_other_sizes():
    model = Tree()
    batched(model)
    traced = model.children.experimental_get_tracing_count()
    assert traced <= 3  # one of them for the variables of the layer, built on the way
    for count in (2, 3, 5):
        batched(model, TREES * count)
    assert model.children.experimental_get_tracing_count() == traced


def assert_unrolls_like(cell, layer):
    """The layer is called last: what both share is built by the first step that is launched."""
    examples = [rng.normal(size=(1, length, 4)).astype(np.float32) for length in (5, 1, 3)]
    fold = multifold.Fold(backend=backend)
    found = fold([fold.unroll(cell, x.shape[1], x)[0] for x in examples])
    for outputs, x in zip(found, examples, strict=True):
        np.testing.assert_allclose(outputs, layer(x)[0], rtol=1e-5, atol=1e-6)


CELLS = {
    "rnn": lambda: layers.SimpleRNNCell(3),
    "gru": lambda: layers.GRUCell(3),
    "lstm": lambda: layers.LSTMCell(3),
    "stack": lambda: layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)]),
}


@pytest.mark.parametrize("make", CELLS.values(), ids=CELLS)
def test_a_cell_unrolls_like_keras(make):
    cell = make()
    assert_unrolls_like(cell, layers.RNN(cell, return_sequences=True))


def test_a_step_has_the_name_of_its_cell():
    outputs, _ = multifold.Fold(backend=backend).unroll(layers.LSTM(3), 1, tf.ones((1, 1, 3)))
    assert "of LSTMCell[0]" in repr(outputs[0])


@pytest.mark.parametrize("kind", [layers.SimpleRNN, layers.GRU, layers.LSTM])
def test_a_layer_unrolls_as_its_cell(kind):
    layer = kind(3, return_sequences=True)
    assert_unrolls_like(layer, layer)


@pytest.mark.parametrize("merge_mode", ["concat", "sum", "mul", "ave"])
def test_both_directions_unroll_like_keras(merge_mode):
    inner = layers.RNN(CELLS["stack"](), return_sequences=True)
    layer = layers.Bidirectional(inner, merge_mode=merge_mode)
    assert_unrolls_like(layer, layer)


def test_a_cell_of_the_users_own_unrolls_inside_an_rnn_layer():
    class Sum(layers.Layer):
        state_size = 4

        def call(self, x, states):
            return x + states[0], [x + states[0]]

    layer = layers.RNN(Sum(), return_sequences=True)
    assert_unrolls_like(layer, layer)


def test_the_tape_reaches_a_cell_that_its_first_step_builds():
    cell = layers.GRUCell(3)
    form = backend.cell(cell)
    assert not cell.built
    with tf.GradientTape() as tape:
        output, _state = form.step(rows(2), *[tf.repeat(state, 2, 0) for state in form.begin()])
    kernel = tape.gradient(output, [variable.value for variable in cell.trainable_variables])[0]
    assert kernel.shape == (3, 9)
    assert tf.reduce_any(kernel != 0)


@pytest.mark.parametrize(
    "cell",
    [
        layers.LSTMCell(2, dropout=0.5),
        layers.StackedRNNCells([layers.GRUCell(2, recurrent_dropout=0.5)]),
        layers.GRU(2, go_backwards=True),
        layers.RNN(layers.StackedRNNCells([layers.GRUCell(2)]), stateful=True),
        layers.Bidirectional(layers.GRU(2), merge_mode=None),
        layers.Bidirectional(layers.GRU(2, go_backwards=True), backward_layer=layers.GRU(2)),
    ],
    ids=["dropout", "recurrent_dropout", "go_backwards", "stateful", "apart", "reversed"],
)
def test_a_layer_that_does_more_than_its_cell_is_refused_with_a_way_out(cell):
    with pytest.raises(BackendError, match=r"Expected a cell that(.|\n)*Hint: change that setting"):
        backend.cell(cell)


def test_what_is_no_cell_is_refused():
    for other in (layers.Dense(2), len, Module()):
        with pytest.raises(BackendError, match="does not know how to unroll"):
            backend.cell(other)


OPS = {
    "take": lambda x: ops.take(x, tf.constant([1, 1])),
    "stack": lambda x: ops.stack([x, x], axis=0),
    "concat": lambda x: ops.concat([x, x], axis=0),
    "split": lambda x: ops.split(x, 3, axis=1)[0],
    "matmul": lambda x: ops.matmul(tf.ones((2, 4)), x),
    "sum": lambda x: ops.sum(x, axis=0),
    "sigmoid": ops.sigmoid,
    "reshape": lambda x: ops.reshape(x, (3,)),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_ops_take_the_variables_of_keras(op):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    gradients = []
    for variable in (keras.Variable(values), tf.Variable(values)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(op(variable) ** 2)
        source = variable if isinstance(variable, tf.Variable) else variable.value
        gradients.append(tf.convert_to_tensor(tape.gradient(loss, source)).numpy())
    np.testing.assert_allclose(*gradients)


def test_an_axis_that_can_not_be_cut_evenly_is_a_value_error():
    with pytest.raises(ValueError, match="3 cannot be cut into 2"):
        ops.split(tf.ones((4, 3)), 2, axis=1)


def test_an_await_inside_of_a_function_says_that_there_is_no_value():
    async def example(fold, x):
        node = fold.add("double", x)
        await fold.value(node)
        return node

    @tf.function  # with AutoGraph, which rewrites what it calls
    def step():
        return multifold.Fold(backend="tensorflow").run({"double": lambda x: 2 * x}, [1.0, 2.0], example)

    with pytest.raises(LaunchError, match="Awaited values could not be read"):
        step()


class Minimal(layers.Layer):
    """The smallest cell that `keras.layers.RNN` takes."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units))
        self.again = self.add_weight(shape=(self.units, self.units))

    def call(self, x, states):
        output = x @ self.kernel + states[0] @ self.again
        return output, [output]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Minimal(2),
        lambda: layers.RNN(Minimal(2), return_sequences=True),
        lambda: layers.StackedRNNCells([Minimal(2), Minimal(3)]),
        lambda: layers.RNN([Minimal(2), Minimal(3)], return_sequences=True),
    ],
    ids=["cell", "layer", "stacked cells", "layer of stacked cells"],
)
def test_a_cell_without_an_initial_state_of_its_own_begins_with_zeros(make):
    cell = make()
    x = tf.ones((1, 3, 4))
    layer = cell if isinstance(cell, layers.RNN) else layers.RNN(cell, return_sequences=True)
    expected = layer(x)
    fold = multifold.Fold(backend="tensorflow")
    outputs, _ = fold.unroll(cell, 3, x)
    np.testing.assert_allclose(fold([outputs])[0], expected[0], rtol=1e-5)


def test_a_tape_may_be_open_while_an_example_waits():
    async def fn(fold, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            square = x * x
            await fold.value(fold.add(tf.tanh, x))
        return fold.add(tf.identity, tape.gradient(square, x))

    got = multifold.Fold(backend="tensorflow").run(None, [tf.constant([[1.0]]), tf.constant([[3.0]])], fn)
    assert got.numpy().tolist() == [[2], [6]]


def test_an_example_leaves_stop_recording_before_it_waits():
    async def fn(fold, x):
        with tape.stop_recording():
            await fold.value(fold.add(tf.tanh, x))

    with tf.GradientTape() as tape, pytest.raises(RecordError, match="leave the framework's `with`"):
        multifold.Fold(backend="tensorflow").run(None, [rows(1), rows(1)], fn)


TWO_DEVICES = """
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

import multifold
from multifold.testing import Conformance

with tf.device("CPU:1"):
    model = {"w": tf.Variable([[1.0, 2.0]]), "double": lambda x: x + x}
model["scale"] = lambda x: x * model["w"]
fold = multifold.Fold(backend="tensorflow")
nodes = [fold.add("double", fold.add("scale", np.full((1, 2), i, np.float32))) for i in range(3)]
print([x.device[-5:] for x in fold.apply(model, [nodes, nodes[::-1]])])


async def climb(fold, x):
    first = fold.add("scale", x)
    await fold.value(first)
    return fold.add("double", first)


rows = [np.full((1, 2), i, np.float32) for i in range(3)]
tf.config.experimental.set_device_policy("silent_for_int32")
print(multifold.Fold(backend="tensorflow").run(model, rows, climb).device[-5:])
launched = []


def scale(x):
    launched.append((x * model["w"]).device[-5:])
    return x * model["w"]


model["scale"] = scale
section = Path(sys.argv[1]).read_text().split("## Gradients on another device")[1]
shown = section.split("```python\\n")[1].split("```")[0]
exec(shown)
print(launched, [x.device[-5:] for x in (values, loss, gradient)], gradient.numpy().tolist())
try:  # without the device
    exec(shown.replace("with tf.device(device):\\n    gradient", "if True:\\n    gradient"))
except tf.errors.InvalidArgumentError as refused:
    print(str(refused)[:30])

launched.clear()
unfold = multifold.Unfold(model, backend="tensorflow")
with tf.GradientTape() as tape:
    nodes = [unfold.add("double", unfold.add("scale", row)) for row in rows]
    results = unfold.apply(None, [nodes, nodes[:1]])
    with tf.device("CPU:1"):
        loss = tf.reduce_sum(results[0] * results[0])
with tf.device("CPU:1"):
    gradient = tape.gradient(loss, model["w"])
print(launched, [x.device[-5:] for x in (*results, gradient)], gradient.numpy().tolist())
print(multifold.Unfold(model, backend="tensorflow").run(None, rows, climb).device[-5:])
fold.check(model, [outputs])

suite = type("Suite", (Conformance,), {"backend": "tensorflow"})()
suite.test_transfers_do_not_grow_with_launches()
"""


def test_a_run_and_the_gradient_of_the_readme_stay_on_the_device_of_the_variables():
    readme = Path(__file__).resolve().parents[1] / "README.md"
    command = [sys.executable, "-c", TWO_DEVICES, str(readme)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there = "'CPU:1'"
    assert done.stdout.split("\n") == [
        f"[{there}, {there}]",
        "CPU:1",
        # The launch, without its trial; and 8 w times the sum of the squared rows.
        f"[{there}] [{there}, {there}, {there}] [[40.0, 80.0]]",
        "Tensors on conflicting devices",
        f"[{there}, {there}, {there}] [{there}, {there}, {there}] [[40.0, 80.0]]",  # Unfold, row by row
        "CPU:1",
        "",
    ]


def test_autograph_calls_what_a_block_writes_as_it_is(tmp_path, capfd, caplog):
    """It reads the source of a function by its file and line, which are those of the definition here."""
    program = tmp_path / "program.py"
    program.write_text(
        "def another(fold, x): return 42.0\n"
        "from multifold_compat.blocks import Function, Map, Reduce, Scalar\n"
        "block = Map(Scalar() >> Function('double')) >> Reduce(Function('add'))\n"
    )
    block = runpy.run_path(str(program))["block"]
    model = {"double": lambda x: x + x, "add": lambda x, y: x + y}

    @tf.function
    def step():
        return multifold.Fold(backend="tensorflow").run(model, [[3, 4], [5]], block)

    assert step().numpy().tolist() == [14, 10]
    assert "AutoGraph" not in capfd.readouterr().err + caplog.text


def test_autograph_leaves_a_fold_inside_of_a_function_alone(caplog):
    fold, double = multifold.Fold(backend="tensorflow"), tf.Variable(2.0)
    run = multifold.batched(lambda x: tf.tanh(x * double))
    xs = [tf.ones((1, 2)), tf.zeros((1, 2))]

    @tf.function  # with AutoGraph, as a user writes it
    def step():
        return fold.run({"by": lambda x: x * double}, xs, lambda fold, x: fold.add("by", x)), run(xs)

    np.testing.assert_allclose(step()[0], [[2, 2], [0, 0]])
    assert "AutoGraph" not in caplog.text
