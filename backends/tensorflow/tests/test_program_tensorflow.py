"""Programs inside a `tf.function`: held to a fold and its eager twin, to one trace, to linear gradients."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from multifold_tensorflow import as_tensors, run
from multifold_tensorflow.program.slabs import Threads, empty

import multifold
from multifold import Fold, Unfold
from multifold.errors import LaunchError
from multifold.models import ChildSumTreeLSTM
from multifold.program import Tiler

TESTS = Path(__file__).resolve().parents[3] / "tests"


def load(name):
    """Load a test module of the core: test modules do not import each other."""
    spec = importlib.util.spec_from_file_location(name, TESTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up the module of a class
    spec.loader.exec_module(module)
    return module


graphs = load("test_properties")


def total(rows):
    return tf.math.unsorted_segment_sum(rows.values, rows.segment_ids, tf.shape(rows.lengths)[0])


def column(numbers):
    return tf.cast(numbers, tf.float32)[:, None]


def ops_of(p):
    """The ops of the random graphs, written for symbolic tensors."""
    return {
        "leaf": lambda x: x * 1.5,
        "squash": tf.tanh,
        "mix": lambda x, y: tf.tanh(x) * y - x,
        "number": lambda x, k: x * column(k),
        "numbers": lambda x, a, b: x + column(a) * 0.1 - column(b),
        "weighted": lambda x, w: x * w,
        "both": lambda d: {"sum": d["x"] + d["yz"][0], "pair": (d["yz"][1] * 0.5, [d["x"]])},
        "total": total,
        "beside": lambda x, rows: x - total(rows),
        "scaled": lambda x, k, by: x * float(k + by),
        "pair": lambda x: (x * 0.7, tf.tanh(x)),
        "stack": lambda *xs: tf.concat(xs, 0),
        "whole": lambda w, x: tf.reduce_sum(w, 0, keepdims=True) * 0.5 + x,
        "constant2": lambda: p["v2"] * 2.0,
        "constant3": lambda: p["v3"] * 2.0,
    }


def weighted(results):
    return sum(
        tf.reduce_sum(x * tf.cos(tf.cast(tf.range(tf.shape(x)[0]), x.dtype))[:, None]) for x in results
    )


def value_and_grad(fn, p):
    with tf.GradientTape() as tape:
        value = fn(p)
    return value, tape.gradient(value, p, unconnected_gradients="zero")


@settings(graphs.relaxed, max_examples=4)
@given(program=graphs.programs, choice=graphs.picks)
def test_random_graphs_have_the_values_and_gradients_of_unfold(program, choice):
    rng = np.random.default_rng(0)
    shapes = {name: (int(name[1]),) if name[0] == "s" else (1, int(name[1])) for name in graphs.NAMES}
    p = {name: tf.Variable(rng.uniform(-1, 1, shape), dtype="float32") for name, shape in shapes.items()}

    def expected(p):
        unfold = Unfold(ops_of(p), backend="tensorflow")
        return weighted(unfold.apply(None, graphs.groups(graphs.record(unfold, program, p), choice)))

    def got(p):
        # Recorded in there, so that leaf arrays and shared ones are symbolic and have gradients.
        fold = Fold(backend="tensorflow")
        tensors = {name: x + 0 for name, x in p.items()}
        outputs = graphs.groups(graphs.record(fold, program, tensors), choice)
        return weighted(run(ops_of(tensors), fold.program(outputs, ops_of(tensors))))

    value, gradients = tf.function(lambda: value_and_grad(got, p), autograph=False)()
    wanted, references = value_and_grad(expected, p)
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    for name, gradient in references.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-4)


class Tree(keras.Model):
    """Sums a tree's words, child by child, by layers of Keras."""

    def __init__(self, width=3):
        super().__init__()
        self.words = keras.layers.Embedding(9, width)
        self.compose = keras.layers.Dense(2 * width, activation="tanh")
        self.head = keras.layers.Dense(2)

    def leaf(self, word):
        h = self.words(word)
        return h, 2 * h

    def join(self, children, c):
        gates = self.compose(tf.concat([total(children), c], 1))
        return tuple(tf.split(gates, 2, axis=1))

    def train_step(self, data):
        program, labels = data
        with tf.GradientTape() as tape:
            logits = run(self, program)
            loss = self.compute_loss(y=labels, y_pred=logits)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            values = (loss,) if metric.name == "loss" else (labels, logits)
            metric.update_state(*values)
        return self.get_metrics_result()


def encode(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree).split(2)
    states = [encode(fold, child) for child in tree]
    hs = multifold.ragged([h for h, _ in states])
    return fold.add("join", hs, states[0][1]).split(2)


def record(fold, tree):
    return fold.add("head", encode(fold, tree)[0])


MINIBATCHES = [
    [(1, (2, 3, 4)), ((5, 6), (7, (8, 1))), 4],
    [((1, 2), (3, 4)), (5, (6, (7, (8, (1, 2)))))],
    [(1, 2)],
]


def traced(trees):
    return [multifold.trace(record, tree) for tree in trees]


@pytest.fixture(scope="module")
def model():
    model = Tree()
    Fold(backend="tensorflow").run(model, traced(MINIBATCHES[0]))  # builds its layers
    return model


@pytest.fixture
def fold():
    """A fold that has seen all ops and edges, so that its programs have one form."""
    fold = Fold(backend="tensorflow")
    fold.program(traced([tree for trees in MINIBATCHES for tree in trees]))
    return fold


def close(got, expected):
    tf.debugging.assert_near(tf.convert_to_tensor(got), tf.convert_to_tensor(expected), 1e-4, 1e-5)


def test_one_trace_serves_all_structures_and_has_the_gradients_of_a_fold(model, fold):
    def loss(logits):
        return tf.reduce_sum(logits * [1.0, -2.0])

    def step(program, labels):
        with tf.GradientTape() as tape:
            value = loss(run(model, program))
        return value, tape.gradient(value, model.trainable_variables)

    # AutoGraph, which is on, leaves the inside of `run` alone.
    first = as_tensors(fold.program(traced(MINIBATCHES[0])))
    signature = tf.type_spec_from_value(first), tf.TensorSpec((None,), tf.int64)
    compiled = tf.function(step, input_signature=signature)
    for trees in MINIBATCHES:
        labels = np.zeros(len(trees), np.int64)
        value, gradients = compiled(as_tensors(fold.program(traced(trees))), labels)
        with tf.GradientTape() as tape:
            wanted = loss(Fold(backend="tensorflow").run(model, traced(trees)))
        close(value, wanted)
        for got, expected in zip(gradients, tape.gradient(wanted, model.trainable_variables), strict=True):
            close(got, expected)
    assert compiled.experimental_get_tracing_count() == 1


def test_second_derivatives_are_those_of_a_fold():
    weight = tf.Variable(0.7)
    model = {
        "leaf": lambda n: tf.cast(n, tf.float32) * weight,
        "join": lambda x, y: tf.tanh(x * weight + y),
    }

    def encode(fold, tree):
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("join", encode(fold, tree[0]), encode(fold, tree[1]))

    traces = [multifold.trace(encode, tree) for tree in ((1, (2, 1)), ((1, 1), (2, (1, 1))), (1, 2))]
    program = as_tensors(Fold(backend="tensorflow").program(traces))

    def second(fn):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = tf.reduce_sum(fn() ** 2)
            slope = inner.gradient(value, weight)
        return slope, outer.gradient(slope, weight)

    got = tf.function(lambda: second(lambda: run(model, program)), autograph=False)()
    expected = second(lambda: Fold(backend="tensorflow").run(model, traces))
    for x, y in zip(got, expected, strict=True):
        close(x, y)


def test_fit_trains_on_programs_from_a_data_set(model, fold):
    def minibatches():
        for trees in MINIBATCHES:
            yield as_tensors(fold.program(traced(trees))), np.zeros(len(trees), np.int64)

    first = next(minibatches())[0]
    spec = tf.type_spec_from_value(first), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(minibatches, output_signature=spec)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    costs = model.fit(data.repeat(), steps_per_epoch=3, epochs=3, verbose=0).history["loss"]
    assert costs[-1] < costs[0]


def test_xla_compiles_a_tiled_program():
    words = tf.Variable(np.arange(12, dtype=np.float32).reshape(4, 3) / 10)
    model = {"leaf": lambda n: tf.gather(words, n), "join": lambda x, y: (tf.tanh(x - y), x)[0]}

    def encode(fold, tree):
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("join", encode(fold, tree[0]), encode(fold, tree[1]))

    def step(program):
        return value_and_grad(lambda p: tf.reduce_sum(run(model, program) ** 2), words)

    traces = [multifold.trace(encode, tree) for tree in ((1, (2, 3)), ((0, 1), (2, (3, 0))), 2)]
    ragged = Fold(backend="tensorflow").program(traces)
    tiler = Tiler(ragged)
    got = tf.function(step, jit_compile=True)(as_tensors(tiler.tiled(tiler.own())))
    for x, y in zip(got, tf.function(step)(as_tensors(ragged)), strict=True):
        close(x, y)


def test_examples_keep_their_words_beside_the_rows_of_one_trace():
    fold = Fold(backend="tensorflow")
    model = {"length": lambda x: x * 2}
    step = tf.function(lambda program: run(model, program))

    def lengths(fold, sentence):
        words = sentence.split()
        return multifold.each({"words": words, "rows": [fold.add("length", len(word)) for word in words]})

    for sentences in (["a tree", "two"], ["three of", "b", "c d e"]):
        program = fold.program(multifold.traces(lengths, sentences))
        for found, sentence in zip(program.each(step(as_tensors(program))), sentences, strict=True):
            assert found["words"] == sentence.split()
            assert found["rows"].tolist() == [2 * len(word) for word in found["words"]]
    assert step.experimental_get_tracing_count() == 1


def test_the_loop_moves_rows_and_no_slabs(model, fold):
    """Every operation on a slab, forward and backward, works in place or reads a launch's rows."""
    program = as_tensors(fold.program(traced(MINIBATCHES[0])))

    def step(program):
        return value_and_grad(lambda p: tf.reduce_sum(run(model, program)), model.trainable_variables)

    graph = tf.function(step, autograph=False).get_concrete_function(program).graph.as_graph_def()
    loops = [
        f for f in graph.library.function if "while" in f.signature.name and "body" in f.signature.name
    ]
    used = {node.op for function in loops for node in function.node_def}
    assert {"InplaceUpdate", "InplaceAdd", "GatherV2"} <= used
    assert not used & {"TensorScatterAdd", "TensorScatterUpdate"}


def test_rows_that_are_read_twice_get_both_gradients():
    def once(in_place, rows):
        threads = Threads(in_place)

        def fn(x):
            slab = threads.write(empty(4, (2,), tf.float32), 1, x)
            values, slab = threads.read(slab, tf.constant(rows))
            (result,) = threads.end([tf.reduce_sum(values * [1.0, 3.0])], [slab])
            return result

        return tf.function(lambda x: value_and_grad(fn, x), autograph=False)(tf.Variable(tf.ones((2, 2))))[
            1
        ]

    for in_place in (True, False):
        close(once(in_place, [1, 2, 1]), [[2.0, 6.0], [1.0, 3.0]])


BROKEN = {
    "looks at values": lambda x: x if x.numpy().any() else -x,
    "rows as wide as there are rows": lambda x: x @ tf.transpose(x),
    "twice the rows": lambda x: tf.concat([x, x], 0),
    "one row for all": lambda x: tf.reduce_sum(x, 0, keepdims=True),
    "no shape": lambda x: tf.numpy_function(lambda y: y, [x], tf.float32),
    "no array": lambda x: "text",
}


@pytest.mark.parametrize("autograph", [True, False])
@pytest.mark.parametrize("name", BROKEN)
def test_ops_that_make_no_program_are_named(name, autograph):
    fold = Fold(backend="tensorflow")
    rows = [fold.add("bad", np.ones((1, 2), np.float32)) for _ in range(3)]
    program = as_tensors(fold.program([rows]))
    with pytest.raises(LaunchError, match=r"The op 'bad', first recorded at .*test_program_tensorflow.py"):
        tf.function(lambda program: run({"bad": BROKEN[name]}, program), autograph=autograph)(program)


def test_a_child_sum_tree_lstm_knows_its_children_in_a_graph():
    lstm = ChildSumTreeLSTM(9, 4, 2)
    leaves = [SimpleNamespace(word=i, children=[]) for i in range(5)]
    inner = SimpleNamespace(word=5, children=leaves[:3])
    trees = [
        SimpleNamespace(word=6, children=[inner, leaves[3]]),
        SimpleNamespace(word=7, children=leaves[4:]),
    ]
    fold = Fold(backend="tensorflow")
    model = lstm.on("tensorflow")
    traces = [multifold.trace(lambda f, tree: lstm.encode(f, tree)[0], tree) for tree in trees]
    got = tf.function(lambda tensors: run(model, tensors))(as_tensors(fold.program(traces)))
    np.testing.assert_allclose(got, fold.run(model, traces), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tiled", [False, True])
def test_an_op_that_a_minibatch_lacks_leaves_no_trace_in_its_gradients(tiled):
    w = tf.Variable(2.0)
    fold = Fold(backend="tensorflow")
    model = {"leaf": lambda x: w * x, "mean": lambda x, n: x / tf.cast(n, tf.float32)}

    def record(f, x):
        return f.add("mean", f.add("leaf", x), 3) if x > 0 else f.add("leaf", x)

    @tf.function
    def gradient(program):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(run(model, program))
        return tf.convert_to_tensor(tape.gradient(loss, w))

    for numbers, expected in (((2.0, -1.0), 2 / 3 - 1), ((-1.0, -2.0), -3.0)):
        program = fold.program([multifold.trace(record, x) for x in numbers])
        if tiled:
            tiler = Tiler(program)
            program = tiler.tiled(tiler.own())
        assert float(gradient(as_tensors(program))) == pytest.approx(expected)


def test_a_value_that_is_read_whole_may_lie_inside_of_a_circle_of_ops():
    fold = Fold(backend="tensorflow")
    h = fold.add("step", fold.add("leaf", 1.0))
    whole = fold.add("pool", h).no_batch()
    outputs = [fold.add("step", fold.add("attend", h, whole))]
    model = {
        "leaf": lambda x: x, "step": lambda x: 2 * x, "pool": lambda x: x + 1, "attend": lambda h, s: h * s,
    }  # fmt: skip
    assert run(model, fold.program(outputs)).numpy().tolist() == fold.apply(model, outputs).numpy().tolist()


def test_an_op_that_takes_no_empty_batch_is_left_out_where_a_minibatch_lacks_it():
    kernel = tf.ones((3, 3, 3, 8))
    weights = tf.ones((8, 4))
    model = {
        "number": lambda x: x,
        "convolve": lambda x: tf.nn.conv2d(x, kernel, 1, "SAME"),  # oneDNN refuses no rows
        "read": lambda h: tf.reduce_sum(h @ weights, (1, 2, 3)),
    }

    def record(fold, x):
        if isinstance(x, float):
            return fold.add("number", x)
        return fold.add("read", fold.add("convolve", x))

    fold = Fold(backend="tensorflow")
    image = np.ones((1, 6, 5, 3), np.float32)
    step = tf.function(lambda program: run(model, program))
    for examples in ([image, 1.0], [2.0, 1.0]):
        traces = [multifold.trace(record, x) for x in examples]
        got = step(as_tensors(fold.program(traces))).numpy()
        np.testing.assert_allclose(got, fold.run(model, traces).numpy(), rtol=1e-5)


@pytest.mark.parametrize("names", [("cell", "pass"), ("pass", "cell")])
def test_rows_of_a_ragged_operand_may_come_from_the_op_itself(names):
    cell, through = names

    def encode(fold, tree):
        children = [fold.add(through, encode(fold, child)) for child in tree]
        return fold.add(cell, float(len(tree)), multifold.ragged(children, row_shape=(2,)))

    def step(x, rows):
        return tf.tanh(tf.stack([x, x + 1], axis=1) + total(rows))

    fold = Fold(backend="tensorflow")
    model = {cell: step, through: lambda x: 2 * x}
    outputs = [encode(fold, (((), ()), ())), encode(fold, ())]
    got = run(model, fold.program(outputs)).numpy()
    np.testing.assert_allclose(got, fold.apply(model, outputs).numpy(), rtol=1e-6)


def test_rows_of_a_ragged_operand_may_be_pairs_of_the_op_itself():
    def cell(fold, tree):
        return fold.add(
            "cell", multifold.ragged([cell(fold, child) for child in tree], row_shape=((2,), (3,)))
        )

    def step(rows):
        return tuple(tf.tanh(total(rows._replace(values=x)) + 1) for x in rows.values)

    fold = Fold(backend="tensorflow")
    model = {"cell": step}
    outputs = [cell(fold, tree)[1] for tree in ((((), ()), ()), ())]
    program = fold.program(outputs)
    np.testing.assert_allclose(run(model, program), fold.apply(model, outputs), rtol=1e-6)


def test_slices_of_results_are_parts_of_a_program():
    def record(fold, x):
        parts = fold.add("three", x)
        return parts[1:], fold.add("plus", parts[::2][1], parts[1:][0])

    model = {"three": lambda x: (x, 2 * x, 3 * x), "plus": lambda a, b: a + b}
    program = multifold.Fold(backend="tensorflow").program([multifold.trace(record, x) for x in (1, 2)])
    (twice, thrice), both = tf.function(lambda: run(model, program))()
    assert [x.numpy().tolist() for x in (twice, thrice, both)] == [[2, 4], [3, 6], [5, 10]]


@pytest.mark.parametrize("runs", [run, lambda _, x: as_tensors(x)])
def test_traces_in_the_place_of_a_program_are_refused(runs):
    traces = multifold.traces(lambda fold, x: fold.add("double", x), [1, 2])
    with pytest.raises(multifold.RecordError, match=r"Expected a program(.|\n)*fold\.program\(traces\)"):
        runs({"double": lambda x: 2 * x}, traces)
