"""Straight functions of TensorFlow programs are found, recorded whole, and do what the loop does."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from multifold_tensorflow.lazy.calls import FoundTensors, TensorCell

import multifold

keras.utils.set_random_seed(0)
XS = [tf.random.normal((1, 4)) for _ in range(20)]
ROWS = tf.random.normal((10, 1, 4))
WORDS = [*range(10), *range(10)]


class Net(tf.Module):
    """A recursive network of variables, without layers."""

    def __init__(self):
        self.weights = tf.Variable(tf.random.normal((8, 4)))
        self._scale = 2.0

    def combine(self, left, right):
        return tf.tanh(tf.concat([left, right], 1) @ self.weights) * self._scale

    def encode(self, tree):
        if isinstance(tree, int):
            return ROWS[tree]
        return self.combine(self.encode(tree[0]), self.encode(tree[1]))

    def fit(self, tree):
        with tf.GradientTape() as tape:
            loss = self.encode(tree)
        self.weights.assign_sub(tape.gradient(loss, self.weights))


class Counter(tf.Module):
    """Counts its calls, and in a variable."""

    def __init__(self):
        self.count = tf.Variable(0)
        self.seen = 0

    def counts(self, x):
        self.seen += 1
        return gate(x)

    def assigns(self, x):
        self.count.assign_add(1)
        return gate(x) + tf.cast(self.count, tf.float32) * 0


NET, COUNTER = Net(), Counter()
LAYER = keras.layers.Dense(4)
LAYER.build((1, 4))
MASKED_ROWS = keras.layers.Embedding(10, 4, mask_zero=True)(tf.constant([[0, 1]]))


def gate(x):
    return tf.tanh(x) * 2 + 1


def noise(x):
    return gate(x) + tf.random.normal(x.shape) * 0


def itself(x):
    return x if x.shape == (1, 4) else gate(x)


def eager(x):
    return gate(x) if tf.executing_eagerly() else x


def numpy_of(x):
    return tf.constant(x.numpy()) + 1


def slope(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gate(x)
    return tape.gradient(y, x)


def sparse(x):
    return tf.sparse.from_dense(x)


def dense(x):
    return tf.sparse.to_dense(sparse(x)) + 1


def pair(x):
    return gate(x), len(x.shape)


@tf.function
def drawn(x):
    return gate(x) * 3


def as_loop(fn, xs, variables=()):
    """Compare values and gradients of a batched program with the loop, three times; return the program."""
    run = multifold.batched(fn, join="list", backend="tensorflow")
    for _ in range(3):
        answers = []
        for way in (lambda: [fn(x) for x in xs], lambda: run(xs)):
            with tf.GradientTape() as tape:
                found = way()
                total = tf.add_n([tf.reduce_sum(x) for x in tf.nest.flatten(found) if tf.is_tensor(x)])
            answers.append((found, tape.gradient(total, variables) if variables else []))
        (wanted, slopes), (found, own) = answers
        tf.nest.assert_same_structure(wanted, found)
        for x, y in zip(tf.nest.flatten((wanted, slopes)), tf.nest.flatten((found, own)), strict=True):
            assert type(x) is type(y)
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    return run


def calls_of(run):
    """Return how many calls of each function were recorded whole in the last run, by its name."""
    return {cell.name: cell.calls for cell in run.function.found.cells.values() if cell.calls}


def tree_of(leaves, chance):
    if leaves == 1:
        return chance.randrange(10)
    left = chance.randrange(1, leaves)
    return tree_of(left, chance), tree_of(leaves - left, chance)


def test_functions_of_variables_are_recorded_whole_from_the_start():
    chance = random.Random(0)
    trees = [tree_of(chance.randrange(2, 6), chance) for _ in range(20)]
    run = as_loop(NET.encode, trees, [NET.weights])
    assert calls_of(run)["Net.combine"] >= 5 * len(run.explain()) > 0


@pytest.mark.parametrize("xs", [XS[:2], XS])
def test_few_examples_compile_nothing(xs):
    run = as_loop(gate, xs)
    assert bool(len(run.explain())) is (len(xs) > 2) or not calls_of(run)


FOUND = {
    "of what it returns": lambda x: gate(LAYER(gate(gate(x)))),
    "of layers": lambda x: gate(LAYER(x)),
    "in a structure": lambda x: tf.nest.map_structure(gate, [x, LAYER(x)]),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_straight_function_is_recorded_whole(name):
    assert calls_of(as_loop(FOUND[name], XS, LAYER.trainable_variables))["gate"] >= len(XS)


NOT_FOUND = {
    "draws": noise,
    "returns its argument": lambda x: gate(itself(x)) if itself(x) is x else x,
    "asks for the mode": eager,
    "reads": numpy_of,
    "differentiates": slope,
    "stores to itself": COUNTER.counts,
    "assigns": COUNTER.assigns,
    "sparse": dense,
    "numbers": lambda x: pair(x)[1] * x,
    "masked": lambda x: gate(MASKED_ROWS),
    "drawn as a graph": drawn,
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_not_straight_does_what_it_does_in_the_loop(name):
    as_loop(NOT_FOUND[name], XS)


class Words(keras.Model):
    """Looks words up, and does other things with their numbers."""

    def __init__(self):
        super().__init__()
        self.table = tf.constant(np.random.default_rng(0).normal(size=(10, 4)).astype("f4"))

    def leaf(self, word):
        return tf.tanh(tf.gather(self.table, word)) * 2

    def asks(self, word):
        return tf.gather(self.table, word) * (2.0 if isinstance(word, int) else 3.0)

    def halves(self, word):
        return tf.gather(self.table, word // 2) + word


class Node:
    """A node of an example."""

    def __init__(self, row):
        self.row = row


def scaled(node, x):
    return tf.tanh(x) * node.row


def test_objects_of_examples_make_no_kinds_of_calls():
    run = as_loop(lambda node: gate(scaled(node, gate(node.row))), [Node(x) for x in XS])
    assert "scaled" not in calls_of(run)
    assert sum(isinstance(x.call, FoundTensors) for x in run.recorder.known.values()) <= 2


@pytest.mark.parametrize(("name", "is_operand"), [("leaf", True), ("asks", False), ("halves", False)])
def test_numbers_are_operands_where_they_are_indices_alone(name, is_operand):
    words = Words()
    run = as_loop(lambda word: gate(getattr(words, name)(word)), WORDS)
    assert (calls_of(run).get(f"Words.{name}") == len(WORDS)) is is_operand
    kinds = [x for x in run.recorder.known.values() if isinstance(x.call, FoundTensors)]
    assert len(kinds) == 1 + is_operand


def test_a_named_method_is_traced_once_for_all_runs(monkeypatch):
    traced, learn = [], TensorCell.learn
    monkeypatch.setattr(TensorCell, "learn", lambda call, *more: traced.append(call) or learn(call, *more))
    run = multifold.batched(NET.encode, cells=[Net.combine])
    for _ in range(3):
        run([(1, 2), ((3, 4), 5)])
    assert len(traced) == 1


class Hidden(keras.layers.Layer):
    """Has an option whose name begins with an underscore."""

    _factor = 1.0

    def step(self, x):
        return tf.tanh(x) * self._factor

    def go(self, x):
        return self.step(self.step(x))


def test_what_changes_between_runs_is_that_of_each_run():
    layer, model = Hidden(), keras.Sequential([LAYER])
    run = multifold.batched(lambda x: gate(model(layer.go(x))) * keras.config.epsilon(), join="cat")
    for factor in (1.0, 2.0, 3.0):
        layer._factor = factor
        keras.config.set_epsilon(factor)
        model.add(keras.layers.Dense(4, kernel_initializer=keras.initializers.Constant(factor)))
        wanted = tf.concat([gate(model(layer.go(x))) * keras.config.epsilon() for x in XS], 0)
        np.testing.assert_allclose(run(XS), wanted, rtol=1e-3, atol=1e-3)
    keras.config.set_epsilon(1e-7)


def test_tangents_flow_through_computed_operands():
    run = multifold.batched(lambda x: gate(LAYER(x)), join="list", backend="tensorflow")
    tangents = []
    for way in (lambda: [gate(LAYER(x)) for x in XS], lambda: run(XS)):
        with tf.autodiff.ForwardAccumulator(XS[3], tf.ones_like(XS[3])) as accumulator:
            found = way()
        tangents.append(accumulator.jvp(found[3]))
    np.testing.assert_allclose(*tangents, rtol=1e-5)
