"""Plain programs of TensorFlow and Keras: functions, layers and cells, with what the loop computes."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import multifold
from multifold import LaunchError, RecordError

keras.utils.set_random_seed(0)
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]
XS = [tf.random.normal((1, 4)) for _ in range(5)]
WEIGHTS = tf.Variable(tf.random.normal((4, 4)))


class TreeLSTM(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(10, 8)
        self.gates = keras.layers.Dense(20)
        self.logits = keras.layers.Dense(3)

    def leaf(self, word):
        return tf.split(self.embed(word), 2, axis=1)

    def compose(self, left_h, left_c, right_h, right_c):
        i, left, right, o, u = tf.split(self.gates(tf.concat([left_h, right_h], 1)), 5, axis=1)
        c = tf.sigmoid(i) * tf.tanh(u) + tf.sigmoid(left) * left_c + tf.sigmoid(right) * right_c
        return tf.sigmoid(o) * tf.tanh(c), c

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(tf.constant([tree]))
        return self.compose(*self.node(tree[0]), *self.node(tree[1]))

    def score(self, tree):
        return self.logits(self.node(tree)[0])


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=False):
        return self.dropout(tf.tanh(self.dense(x)), training=training)


DENSE = keras.layers.Dense(4)
BLOCK = Block()


@multifold.cell
def layer(x):
    return tf.tanh(x @ WEIGHTS) * 2


def leaves_of(x):
    return tf.nest.flatten(x, expand_composites=False)


def as_loop(fn, xs, variables=(), **options):
    """Compare values and gradients of a batched program with the loop; return the program."""
    run = multifold.batched(fn, join="list", backend="tensorflow", **options)
    answers = []
    for way in (lambda: [fn(x) for x in xs], lambda: run(xs)):
        with tf.GradientTape() as tape:
            found = way()
            floats = [x for x in leaves_of(found) if tf.is_tensor(x) and x.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(x * x) for x in floats]) if floats else tf.constant(0.0)
        slopes = tape.gradient(loss, list(variables), unconnected_gradients="zero")
        answers.append((found, [tf.convert_to_tensor(x) for x in slopes]))
    (wanted, slopes), (found, own_slopes) = answers
    tf.nest.assert_same_structure(wanted, found)
    for x, y in zip(leaves_of((found, own_slopes)), leaves_of((wanted, slopes)), strict=True):
        assert type(x) is type(y) and getattr(x, "dtype", None) == getattr(y, "dtype", None)
        if x is None or isinstance(x, str):
            assert x == y
            continue
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    return run


@pytest.mark.parametrize(("cells", "launches"), [((), 33), (("leaf", "compose"), 5)])
def test_a_recursive_network_has_the_values_and_gradients_of_the_loop(cells, launches):
    model = TreeLSTM()
    model.score((1, 2))
    run = as_loop(
        model.score, TREES, model.trainable_variables, cells=[getattr(TreeLSTM, x) for x in cells]
    )
    assert len(run.explain()) == launches


PROGRAMS = {
    "operators": lambda x: (2 * layer(x) - x / (layer(x) + 3), -layer(x), layer(x) ** 2, abs(layer(x))),
    "right": lambda x: (x + layer(x), x @ tf.transpose(layer(x)), x > layer(x), WEIGHTS * layer(x)),
    "numpy": lambda x: (layer(x) * np.float32(2), np.ones((1, 4), np.float32) - layer(x)),
    "comparisons": lambda x: (layer(x) > 0, layer(x) == x, layer(x) >= 0.5),
    "functions": lambda x: (
        tf.reduce_sum(layer(x), -1),
        tf.nn.softmax(layer(x)),
        tf.where(layer(x) > 0, layer(x), 0.0),
        tf.cast(layer(x), tf.int32),
        tf.einsum("ij,kj->ik", layer(x), x),
        tf.reshape(layer(x), (2, 2)),
        tf.math.top_k(layer(x), 2).values,
        tf.norm(layer(x)),
        tf.stack([layer(x), x]),
        tf.convert_to_tensor(layer(x)),
        tf.linalg.matmul(x, layer(x), transpose_b=True),
    ),
    "keras": lambda x: (keras.ops.sigmoid(layer(x)), keras.ops.concatenate([layer(x), x], 1)),
    "shapes": lambda x: (tf.shape(layer(x)), tf.zeros_like(layer(x)), tf.rank(layer(x)), tf.size(layer(x))),
    "parts": lambda x: (layer(x)[0], layer(x)[0, -2:], layer(x)[..., None], [*layer(x)[0]]),
    "gather": lambda x: (tf.gather(layer(x)[0], tf.argmax(layer(x)[0])), WEIGHTS[tf.argmax(layer(x)[0])]),
    "attributes": lambda x: (tuple(layer(x).shape), layer(x).ndim, len(layer(x)), layer(x).dtype.name),
    "one part": lambda x: (
        tf.unstack(layer(x))[0],
        *tf.split(layer(x), 1),
        *multifold.op(lambda y: [y])(x),
    ),
    "kinds": lambda x: (isinstance(layer(x), tf.Tensor), tf.is_tensor(layer(x))),
    "structures": lambda x: {"a": layer(x), "b": [tf.reduce_sum(layer(x)), 3, None]},
    "reads": lambda x: (
        float(layer(x)[0, 1]),
        layer(x).numpy(),
        int(tf.argmax(layer(x)[0])),
        bool(layer(x)[0, 0] > 0),
    ),
    "text": lambda x: float(f"{layer(x)[0, 1].numpy():.2f}"),
    "layers": lambda x: (DENSE(x), DENSE(layer(x)), keras.activations.relu(layer(x))),
    "a layer of the user": lambda x: BLOCK(layer(x)),
    "conditions": lambda x: tf.cond(bool(layer(x)[0, 0] > 0), lambda: x, lambda: -x),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_returns_what_the_loop_returns(program):
    as_loop(PROGRAMS[program], XS, [WEIGHTS])


SHAPES = {
    "of computed tensors": lambda x: tf.reshape(DENSE(x), (tf.shape(x)[0], -1, 2)),
    "of pending ones": lambda x: tf.reshape(DENSE(x), [tf.shape(DENSE(x))[0], 2, -1]),
    "whole": lambda x: tf.broadcast_to(DENSE(x), tf.shape(tf.concat([x, x], 0))),
    "by keyword": lambda x: tf.tile(DENSE(x), multiples=tf.constant([2, 1])),
    "of a result": lambda x: tf.scatter_nd([[1]], DENSE(x), (tf.shape(x)[0] + 2, 4)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_may_be_tensors(name):
    as_loop(SHAPES[name], XS, DENSE.trainable_variables)


def test_a_loop_on_values_goes_on_for_each_example():
    def program(x):
        steps = 0
        while float(tf.norm(x)) > 0.3 and steps < 10:
            x, steps = DENSE(tf.tanh(x)) * 0.4, steps + 1
        return x, steps

    as_loop(program, XS)


def test_a_cell_is_drawn_once_for_any_number_of_rows():
    run = multifold.batched(layer, backend="tensorflow")
    for count in (3, 1, 5):
        np.testing.assert_allclose(run(XS[:count]), tf.stack([layer(x) for x in XS[:count]]), rtol=1e-5)
    assert len(run.recorder.known) == 1


@multifold.op
def of_rows(x):
    return x @ WEIGHTS


def test_a_cell_that_is_written_for_rows_gets_all_of_them():
    run = as_loop(of_rows, XS, [WEIGHTS])
    assert len(run.explain()) == 1


def test_a_cell_of_rows_that_mixes_them_is_refused():
    mixing = multifold.op(lambda x: x - tf.reduce_mean(x, 0))
    with pytest.raises(LaunchError, match="mixes its rows"):
        multifold.batched(mixing, backend="tensorflow")(XS)


def test_a_class_of_layers_is_a_cell():
    run = as_loop(lambda x: BLOCK(layer(x)), XS, [WEIGHTS, *BLOCK.trainable_variables], cells=[Block])
    assert len(run.explain()) == 2


def test_a_layer_is_built_when_it_is_first_recorded():
    dense = keras.layers.Dense(3)
    run = multifold.batched(lambda x: dense(layer(x)) + dense(x), join="cat", backend="tensorflow")
    found = run(XS)
    np.testing.assert_allclose(found, tf.concat([dense(layer(x)) + dense(x) for x in XS], 0), rtol=1e-5)


@tf.custom_gradient
def steep(x):
    return x * 2, lambda slope: slope * 100


def test_a_cell_that_cannot_be_vectorized_runs_row_by_row_and_says_so():
    run = as_loop(multifold.cell(lambda x: steep(x @ WEIGHTS)), XS, [WEIGHTS])
    assert "row by row" in str(run.explain())


UNFIT = {
    "a roll": lambda x: tf.roll(layer(x), 1, -1),
    "a transpose": lambda x: tf.transpose(layer(x) > 0, [-1, 0]),
    "padding": lambda x: tf.pad(layer(x), [[0, 0], [0, 1]], constant_values=-9.0),
    "text": lambda x: tf.strings.to_number(tf.strings.format("{}", layer(x)[0, 0])),
    "an array": multifold.cell(
        lambda x: tf.TensorArray("float", 4).unstack((x @ WEIGHTS)[0]).gather([1, 2])
    ),
    "an entry": multifold.cell(
        lambda x: tf.TensorArray("float", 4).unstack(x[0]).read(tf.cast(x[0, 0] > 0, "int32"))
    ),
    "a function": multifold.cell(lambda x: tf.function(steep, autograph=False)(x @ WEIGHTS)),
    "a branch": multifold.cell(lambda x: tf.cond(x[0, 0] > 0, lambda: steep(x @ WEIGHTS), lambda: x)),
    "a loop": multifold.cell(lambda x: tf.map_fn(steep, x @ WEIGHTS)),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_tensorflow_gets_wrong_on_rows_runs_row_by_row(name):
    assert "row by row" in str(as_loop(UNFIT[name], XS, [WEIGHTS]).explain())


def test_a_recurrent_cell_of_keras_is_one_call():
    cell = keras.layers.LSTMCell(4)

    def program(x):
        state = [tf.zeros((1, 4)), tf.zeros((1, 4))]
        for _ in range(3):
            x, state = cell(x, state)
        return x

    program(XS[0])
    run = as_loop(program, XS, cell.trainable_variables)
    assert len(run.explain()) == 3


@pytest.mark.parametrize("cells", [[], [Block]])
def test_dropout_draws_for_each_row(cells):
    block = Block()
    block(XS[0])
    run = multifold.batched(
        lambda x: block(x * 0 + 1, training=True), cells=cells, join="cat", backend="tensorflow"
    )
    ones = [tf.ones((1, 4))] * 200
    kept = np.asarray(run(ones)) != 0
    assert 0.4 < kept.mean() < 0.6 and len({row.tobytes() for row in kept}) > 8
    assert (np.asarray(run(ones)) != 0).tolist() != kept.tolist()


GENERATOR = tf.random.Generator.from_seed(0)


@pytest.mark.parametrize("draw", [tf.random.normal, keras.random.normal, GENERATOR.normal])
def test_a_cell_that_draws_draws_for_each_row(draw):
    run = multifold.batched(
        multifold.cell(lambda x: x * 0 + draw((1, 4))), join="cat", backend="tensorflow"
    )
    first, second = run(XS), run(XS)
    assert len({float(x) for x in tf.reshape([first, second], -1)}) == 2 * 4 * len(XS)


class Outer(keras.Model):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x):
        return self.dropout(layer(x) * 0 + 1)


def test_a_layer_is_trained_as_the_model_around_it():
    model = Outer()
    for training, zeros in ((False, 0), (True, 1), (False, 0)):
        run = multifold.batched(
            lambda x, training: model(x, training=training), join="cat", backend="tensorflow"
        )
        assert (np.asarray(run(XS * 20, training=training)) == 0).any() == zeros


def test_batch_normalisation_in_training_is_refused():
    norm = keras.layers.BatchNormalization()
    as_loop(lambda x: norm(layer(x)), XS)
    with pytest.raises(RecordError, match="assigns a variable"):
        multifold.batched(lambda x: norm(layer(x), training=True), backend="tensorflow")(XS)


def test_a_variable_that_recorded_calls_use_is_not_assigned():
    scale, count = tf.Variable(2.0), tf.Variable(0)

    def program(x):
        count.assign_add(1)
        y = layer(x) * scale
        scale.assign(3.0)
        return y

    with pytest.raises(RecordError, match="assigns the variable"):
        multifold.batched(program, backend="tensorflow")(XS)
    with pytest.raises(RecordError, match="not computed yet"):
        multifold.batched(lambda x: WEIGHTS.assign(layer(x)), backend="tensorflow")(XS)
    assert multifold.batched(lambda x: layer(x) + 0, backend="tensorflow")(XS).shape == (5, 1, 4)


SCALE = 2.0


def helper(x):
    return x * SCALE


def test_what_a_cell_finds_around_it_is_that_of_each_run(monkeypatch):
    run = multifold.batched(multifold.cell(lambda x: helper(x) + 0), backend="tensorflow")
    np.testing.assert_allclose(run(XS), 2 * tf.stack(XS))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_allclose(run(XS), 3 * tf.stack(XS))


def test_the_options_of_a_layer_are_those_of_each_run():
    block = Block()
    run = multifold.batched(multifold.cell(lambda x: block(x, training=True)), backend="tensorflow")
    run(XS)
    block.dropout.rate = 0.0
    np.testing.assert_allclose(run(XS), tf.stack([block(x) for x in XS]), rtol=1e-5)


def test_a_variable_that_a_cell_uses_and_that_changes_is_refused():
    scale = [1.0]
    scaled = multifold.cell(lambda x: x * scale[0])

    def program(x):
        h = scaled(x)
        scale[0] += 1
        return h + scaled(x)

    with pytest.raises(RecordError, match="changed during the run"):
        multifold.batched(program, backend="tensorflow")(XS)


def test_new_weights_are_used_in_the_next_run():
    weights = tf.Variable(1.0)
    run = multifold.batched(multifold.cell(lambda x: x * weights), backend="tensorflow")
    np.testing.assert_allclose(run(XS), tf.stack(XS))
    weights.assign(5.0)
    np.testing.assert_allclose(run(XS), 5 * tf.stack(XS))


LSTM = keras.layers.LSTMCell(4, dropout=0.5)
STATE = [tf.zeros((1, 4)), tf.zeros((1, 4))]
LSTM(XS[0], STATE)

MASKED = keras.layers.Embedding(5, 4, mask_zero=True)

REFUSED = {
    "numbers of Python": (multifold.cell(lambda x: x * random.random()), "draws random numbers"),
    "a mask of Keras": (lambda x: MASKED(tf.argmax(layer(x), 1)), "makes a mask"),
    "a mask that is kept": (lambda x: LSTM(x, STATE, training=True), "keeps a mask"),
    "a tf.function": (lambda x: tf.function(lambda y: y + 1)(layer(x)), "cannot be recorded"),
    "a custom gradient": (lambda x: steep(layer(x)), "cannot be recorded"),
    "a constant": (lambda x: tf.constant(layer(x)), "cannot be recorded"),
    "a condition of TensorFlow": (lambda x: tf.cond(layer(x)[0, 0] > 0, lambda: 1, lambda: 2), "read"),
    "an assertion": (lambda x: tf.debugging.assert_greater(layer(x), -9.0), "cannot be recorded"),
    "a shape": (lambda x: tf.boolean_mask(x, layer(x) > 0), "depends on values"),
    "a tape": (lambda x: watched(layer(x)), "put the tape around the run"),
    "a cell that reads": (multifold.cell(lambda x: x if tf.reduce_sum(x) > 0 else -x), "looks at a value"),
    "a cell of numbers": (multifold.cell(lambda x: (x, 1.0)), "to return tensors"),
    "an attribute": (lambda x: hasattr(layer(x), "device"), "no attribute 'device'"),
    "a loss": (lambda x: REGULAR(layer(x)), "adds to the losses of"),
}
REGULAR = keras.layers.Dense(4, activity_regularizer="l2")


def watched(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.gradient(y, x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused_with_a_hint(name):
    program, match = REFUSED[name]
    with pytest.raises(RecordError, match=match) as raised:
        multifold.batched(program, backend="tensorflow")(XS)
    assert "\n\nHint: " in str(raised.value)


CAUGHT = {
    "a map": lambda y: tf.map_fn(lambda t: t * 2, y),
    "a range": lambda y: tf.range(tf.argmax(y[0])),
    "a constant": tf.constant,
    "a graph": lambda y: tf.function(lambda: y * 2)(),
    "a tape": watched,
    "a mask": lambda y: MASKED(tf.argmax(y, 1)),
    "a cell": multifold.cell(lambda y: y if tf.reduce_sum(y) > 0 else -y),
    "a cell of numbers": multifold.cell(lambda y: (y, 1.0)),
}


@pytest.mark.parametrize("name", CAUGHT)
def test_what_is_refused_stays_refused_where_the_program_catches_it(name):
    def program(x):
        try:
            return CAUGHT[name](layer(x))
        except Exception:  # noqa: BLE001
            return x

    with pytest.raises(RecordError, match="has caught an error of multifold"):
        multifold.batched(program, backend="tensorflow", join="list")(XS)


def test_what_tensorflow_catches_and_records_is_not_refused():
    def program(x):
        return tf.einsum("ij,kj->ik", layer(x), x), tf.image.flip_left_right(layer(x)[..., None])

    as_loop(program, XS, [WEIGHTS])


@pytest.mark.parametrize("program", [lambda x: layer(layer(x)), DENSE, lambda x: float(layer(x)[0, 0])])
def test_a_tape_that_a_program_stops_is_refused(program):
    with tf.GradientTape() as tape:

        def stops(x):
            y = layer(x)
            with tape.stop_recording():
                return program(x), y

        with pytest.raises(RecordError, match="has stopped the tf"):
            multifold.batched(stops, backend="tensorflow", join="list")(XS)
    as_loop(lambda x: (layer(x), float(layer(x)[0, 0])), XS, [WEIGHTS])


def test_a_loss_that_a_layer_keeps_is_not_left_in_it():
    REGULAR(XS[0])
    for _ in range(2):
        with pytest.raises(RecordError, match="adds to the losses of"):
            multifold.batched(REGULAR, backend="tensorflow")(XS)
        assert not any(map(tf.is_symbolic_tensor, REGULAR.losses))


def test_an_index_out_of_range_is_an_error_of_tensorflow_where_it_is_known():
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of bounds"):
        multifold.batched(lambda x: layer(x)[4], backend="tensorflow")(XS)


def test_a_call_that_is_wrong_raises_what_it_raises_in_the_loop():
    def program(x):
        try:
            return layer(x) + tf.ones(3)
        except tf.errors.InvalidArgumentError:
            return layer(x) * 2

    as_loop(program, XS)


def doubled(x):
    return x * 2 if tf.reduce_sum(layer(x)) > 0 else x


class Doubled(keras.layers.Layer):
    def call(self, x):
        return doubled(x)


def test_an_example_waits_inside_of_scopes_that_no_other_one_sees():
    inner = Doubled()

    def program(x):
        with tf.device("/CPU:0"), tf.name_scope("outer"), keras.name_scope("inner"):
            y = inner(doubled(x))
            return y, tf.Variable(0.0, name="v").name, keras.Variable(0.0, name="w").path

    assert "read alone" not in str(as_loop(program, XS).explain())
    assert keras.Variable(0.0, name="w").path == "w"


@pytest.mark.parametrize("seed", [tf.random.set_seed, keras.utils.set_random_seed])
def test_an_example_that_sets_a_seed_goes_on_alone(seed):
    def program(x):
        (tf.random.set_seed if seed is tf.random.set_seed else keras.utils.set_random_seed)(3)
        return doubled(x) + tf.random.normal((1, 4))

    as_loop(program, XS)


def test_an_example_that_changes_a_setting_goes_on_alone():
    def program(x):
        tf.config.run_functions_eagerly(bool(x[0, 0] > 0))
        y, eagerly = doubled(x), tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(False)
        return y, eagerly

    assert "run_functions_eagerly" in str(as_loop(program, XS).explain())


def test_what_an_example_keeps_stands_for_its_value_afterwards():
    kept = []
    multifold.batched(lambda x: kept.append(layer(x)), backend="tensorflow", join="list")(XS)
    for h, x in zip(kept, XS, strict=True):
        np.testing.assert_allclose(h.numpy(), layer(x), rtol=1e-6)
        np.testing.assert_allclose(h + 1, layer(x) + 1, rtol=1e-6)
        np.testing.assert_allclose(tf.tanh(h), tf.tanh(layer(x)), rtol=1e-6)
    with tf.GradientTape() as tape:
        multifold.batched(lambda x: kept.append(layer(x)), backend="tensorflow", join="list")(XS)
        loss = tf.reduce_sum(kept[-1] * 2)
    np.testing.assert_allclose(tape.gradient(loss, kept[-1]), 2 * tf.ones((1, 4)))


def test_a_program_runs_inside_of_a_tf_function():
    run = multifold.batched(lambda x: tf.tanh(layer(x)) + DENSE(x), join="cat", backend="tensorflow")
    wanted = tf.concat([tf.tanh(layer(x)) + DENSE(x) for x in XS], 0)
    drawn = tf.function(run.__call__, autograph=False)
    for _ in range(2):
        np.testing.assert_allclose(drawn(XS), wanted, rtol=1e-5)
        np.testing.assert_allclose(run(XS), wanted, rtol=1e-5)
    reads = multifold.batched(lambda x: float(layer(x)[0, 0]), backend="tensorflow")
    with pytest.raises(multifold.MultifoldError):
        tf.function(reads.__call__, autograph=False)(XS)


def test_keywords_are_the_same_for_all_examples():
    scale = tf.constant([1.0, 2.0, 3.0, 4.0])
    run = multifold.batched(lambda x, by: layer(x) * by, join="cat", backend="tensorflow")
    with tf.GradientTape() as tape:
        tape.watch(scale)
        found = run(XS, by=scale)
    np.testing.assert_allclose(found, tf.concat([layer(x) * scale for x in XS], 0), rtol=1e-5)
    wanted = tf.reduce_sum(tf.concat([layer(x) for x in XS], 0), 0)
    np.testing.assert_allclose(tape.gradient(found, scale), wanted, rtol=1e-5)


def test_traces_are_replayed_with_new_weights():
    weights = tf.Variable(tf.eye(4))
    product = multifold.cell(lambda x: x @ weights)
    run = multifold.batched(lambda x, n: tf.tanh(product(x)) * n, join="cat", backend="tensorflow")
    traces = run.traces(XS, range(5))
    weights.assign(weights * 2)
    wanted = tf.concat([tf.tanh(x @ weights) * i for i, x in enumerate(XS)], 0)
    np.testing.assert_allclose(run.replay(traces), wanted, rtol=1e-5)
    with pytest.raises(RecordError, match="computed with a variable"):
        multifold.batched(lambda x: product(x @ weights), backend="tensorflow").traces(XS)


@pytest.mark.parametrize("trainable", [True, False])
def test_values_of_variables_are_refused_in_traces(trainable):
    weights = tf.Variable(tf.ones(4), trainable=trainable)
    layer = keras.layers.Dense(4)
    layer(XS[0])
    programs = {
        "an operand": lambda x: layer(x) * tf.exp(weights),
        "a result": lambda x: (layer(x), weights * x),
        "alone": lambda x: tf.reduce_sum(weights * weights),
        "a number": lambda x: layer(x) * float(weights[0]),
        "a branch": lambda x: layer(x) if weights[0] > 0 else x,
        "an index": lambda x: layer(x) * int(tf.argmax(weights)),
        "an array": lambda x: layer(x) * weights.numpy(),
        "a graph": lambda x: layer(x) * tf.function(lambda: weights * 2)(),
    }
    for program in programs.values():
        with pytest.raises(RecordError, match="computed with a variable"):
            multifold.batched(program, backend="tensorflow").traces(XS)


def test_traces_keep_what_depends_on_no_variable():
    layer = keras.layers.Dense(4)
    run = multifold.batched(
        lambda x: layer(x) * tf.reduce_sum(x) if float(x[0, 0]) > 0 else layer(x) + tf.random.normal([1]),
        join="list",
        backend="tensorflow",
    )
    assert len(run.replay(run.traces(XS))) == len(XS)


def test_checks_failures_and_copies():
    run = multifold.batched(TreeLSTM().score, join="cat", backend="tensorflow")
    run.check(TREES)

    def program(x):
        if float(layer(x)[0, 0]) > 0:
            raise KeyError("positive")
        return layer(x)

    signs = [float(layer(x)[0, 0]) > 0 for x in XS]
    found, failures = multifold.batched(program, on_error="collect", backend="tensorflow")(XS)
    assert [*failures] == [i for i, sign in enumerate(signs) if sign] and len(found) == signs.count(False)


class Counter(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.steps = 0

    def run(self, x):
        self.steps = 0
        while float(tf.norm(x)) > 0.3 and self.steps < 5:
            x, self.steps = self.dense(x) * 0.5, self.steps + 1
        return x, self.steps


def test_state_on_a_model_of_keras_is_that_of_the_loop_and_its_copies_share_no_weights():
    model = Counter()
    model.run(XS[0])
    wanted = [model.run(x) for x in XS]
    found = multifold.batched(model.run, join="list", backend="tensorflow")(XS)
    for (x, steps), (y, wanted_steps) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        assert steps == wanted_steps
    with pytest.raises(RecordError, match=r"(?s)cannot be copied|do not share its parameters"):
        multifold.batched(model.run, own=True, backend="tensorflow")(XS)


@pytest.mark.parametrize("draw", [lambda: tf.random.uniform(()), lambda: keras.random.uniform(())])
def test_a_seed_gives_each_example_random_numbers_of_its_own(draw):
    def program(x):
        steps = 0
        while float(tf.reduce_sum(layer(x)) * 0) + float(draw()) > 0.3:
            steps += 1
        return steps

    run = multifold.batched(program, seed=1, join="list", backend="tensorflow")
    found = run(XS)
    assert found == run.loop(XS) == run(XS) and len(set(found)) > 1


DENSE = keras.layers.Dense(4, activation="tanh")
DENSE(XS[0])


@multifold.cell
def slope(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(DENSE(x) ** 2)
    return tape.gradient(y, x)


def test_a_cell_may_use_a_tape_and_a_tape_may_go_through_it():
    run = as_loop(lambda x: slope(DENSE(x)), XS, DENSE.trainable_variables)
    assert len(run.explain()) == 2
    found = multifold.batched(slope, backend="tensorflow")(XS)
    np.testing.assert_allclose(found, tf.stack([slope(x) for x in XS]), rtol=1e-4, atol=1e-6)


DROPOUT = keras.layers.Dropout(0.5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: tf.nn.dropout(layer(x), 0.5),
        lambda x: DROPOUT(layer(x), training=True),
        multifold.cell(lambda x: x + GENERATOR.normal((1, 4))),
        multifold.op(lambda x: x + tf.random.normal((1, 4))),
    ],
)
def test_with_a_seed_a_call_that_draws_is_refused(draw):
    with pytest.raises(RecordError, match="draws random numbers for all examples at once"):
        multifold.batched(draw, seed=0, backend="tensorflow")(XS)


COMPILED = tf.function(DENSE)
of_compiled = multifold.cell(lambda x: COMPILED(x) * 2)


def test_a_compiled_function_with_variables_draws_nothing():
    run = multifold.batched(lambda x: of_compiled(layer(x)), seed=0, join="list", backend="tensorflow")
    for found, x in zip(run(XS), XS, strict=True):
        np.testing.assert_allclose(found, DENSE(layer(x)) * 2, rtol=1e-5)


def test_a_cell_that_counts_is_refused():
    state = {"n": 0}

    @multifold.cell
    def counts(x):
        state["n"] += 1
        return x * state["n"]

    with pytest.raises(RecordError, match="counts changes a dict"):
        multifold.batched(counts, backend="tensorflow")(XS)
    assert state == {"n": 0}


def test_a_variable_that_examples_share_is_seen_as_the_loop_sees_it():
    layer = keras.layers.Dense(4)
    layer(XS[0])

    def program():
        count = tf.Variable(0.0)

        def fn(x):
            count.assign_add(1.0)
            bool(tf.reduce_sum(layer(x)) > 0)
            return float(count)

        return fn

    assert multifold.batched(program(), join="list", may_loop=False)(XS) == [1.0, 2.0, 3.0, 4.0, 5.0]


TABLE = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
QUEUE = tf.queue.FIFOQueue(100, tf.float32)


def counts(x):
    count = TABLE.lookup(tf.constant([1], tf.int64))
    bool(tf.reduce_sum(layer(x)) > 0)
    TABLE.insert(tf.constant([1], tf.int64), count + 1)
    return int(count[0])


def queues(x):
    QUEUE.enqueue(x[0, 0])
    bool(tf.reduce_sum(layer(x)) > 0)
    return int(QUEUE.size()) - 1


@pytest.mark.parametrize("program", [counts, queues])
def test_tables_and_queues_that_examples_share_are_seen_as_the_loop_sees_them(program):
    run = multifold.batched(program, join="list", backend="tensorflow", may_loop=False)
    assert [*run(XS), *run(XS)] == [*range(10)]


def test_a_cell_that_changes_a_table_or_queue_is_refused():
    for change in (lambda x: TABLE.insert([1], [2]), lambda x: QUEUE.enqueue(x[0, 0])):
        cell = multifold.cell(lambda x, change=change: (change(x), x)[1])
        with pytest.raises(RecordError, match="changes a table or queue"):
            multifold.batched(cell, backend="tensorflow")(XS)
