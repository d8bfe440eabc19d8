"""Replicas give the values and gradients of one process on all their examples, whatever each has."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from pathlib import Path

import keras
import multifold_tensorflow as mt
import numpy as np
import pytest
import tensorflow as tf
from ranks import started
from shards import WORDS, score, shards_of, trees_of

import multifold
from multifold import Fold


class Encoder(mt.ProgramModel):
    """The ops of `shards.score`."""

    def __init__(self, width=5):
        super().__init__()
        self.embed = keras.layers.Embedding(WORDS, width)
        self.gates = keras.layers.Dense(width, kernel_regularizer=keras.regularizers.L2(0.1))
        self.turn = keras.layers.Dense(width)
        self.out = keras.layers.Dense(2)

    def join(self, left, right):
        return tf.tanh(self.gates(tf.concat([left, right], axis=1)))

    def flip(self, x):
        return tf.tanh(self.turn(x))


STEPS = [
    shards_of(0),  # seven trees and three, of which none flips
    [trees_of(1, 4), []],
    [trees_of(2, 2, flips=False), trees_of(3, 5)],
]
"""The trees of two shards in each of three steps."""


def labels_of(trees):
    return np.array([len(str(tree)) % 2 for tree in trees], np.int64)


def prepared():
    """Return a fold that has seen all ops, and the types of what a replica receives in a step."""
    fold = Fold(backend="tensorflow")
    first = mt.as_tensors(fold.program(multifold.traces(score, trees_of(0, 7))))
    return fold, (tf.type_spec_from_value(first), *[tf.TensorSpec((None,), tf.int64)] * 2)


def data_of(steps, weighted=False):
    """Return what makes the data set of a worker: for each step one element for each of its replicas.

    An element is a program, the labels, and the weights of examples or else their number in the whole step.
    """
    fold, specs = prepared()

    def data(context):
        def elements():
            for shards in steps() if callable(steps) else steps:
                total = sum(map(len, shards))
                for trees in shards[context.input_pipeline_id :: context.num_input_pipelines]:
                    traces = multifold.traces(score, trees)
                    program = mt.as_tensors(fold.program(traces)) if traces else specs[0].empty()
                    labels = labels_of(trees)
                    yield program, labels, labels + 1 if weighted else np.full(len(trees), total)

        return mt.dataset(elements, specs)

    return data


def whole(steps):
    """Return the same examples as those of one shard."""
    return [[[tree for trees in shards for tree in trees]] for shards in steps]


def weights_of(model):
    return {variable.path: variable.numpy() for variable in model.trainable_variables}


def kept_up(strategy, steps):
    """Train, evaluate and predict by Keras; return all that it says, and the weights."""
    keras.backend.clear_session()  # the names of variables begin anew
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Encoder()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.1), loss, metrics=["accuracy"])
    make = data_of(steps, weighted=True)
    if strategy:
        data = strategy.distribute_datasets_from_function(make)
    else:
        data = make(tf.distribute.InputContext())
    before = model.fit(data, epochs=2, verbose=0).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    return {**before, **evaluated, "rows": model.predict(data, verbose=0), **weights_of(model)}


def looped(strategy, steps):
    """Train by a loop of its own; return the losses, the values, and the weights."""
    keras.backend.clear_session()  # the names of variables begin anew
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Encoder()
        optimizer = keras.optimizers.SGD(0.5)
        model(program=mt.as_tensors(prepared()[0].program(multifold.traces(score, trees_of(0, 7)))))
        optimizer.build(model.trainable_variables)

    def replica(program, labels, totals):
        with tf.GradientTape() as tape:
            logits = mt.run(model, program)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            # The mean over all replicas: they add up their gradients.
            loss = tf.reduce_sum(losses / tf.cast(totals, losses.dtype))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    make = data_of(steps)
    if strategy is None:
        data = make(tf.distribute.InputContext())
        step = tf.function(replica)
    else:
        data = strategy.distribute_datasets_from_function(make)

        @tf.function
        def step(*element):
            return strategy.reduce("SUM", strategy.run(replica, element), axis=None)

    losses = [float(step(*element)) for element in data]
    return {"loss": losses, **weights_of(model)}


WAYS = {"fit": kept_up, "loop": looped}


def close(got, expected):
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        rtol = 1e-4 if isinstance(value, np.ndarray) else 1e-5
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=rtol / 10, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_two_replicas_train_as_one_process_with_all_examples(way):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    close(WAYS[way](strategy, STEPS), WAYS[way](None, whole(STEPS)))


def test_a_sum_of_losses_is_refused_where_replicas_are_averaged():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Encoder()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"))
    with pytest.raises(multifold.BackendError, match="is a sum"):
        model.fit(strategy.distribute_datasets_from_function(data_of(STEPS)), verbose=0)


def test_an_example_that_fails_ends_the_epoch_with_an_error_that_names_it():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = Encoder()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    steps = [*STEPS, [trees_of(4, 3), [1, None]]]
    with pytest.raises(tf.errors.OpError, match="Raised by example 1 of multifold"):
        model.fit(strategy.distribute_datasets_from_function(data_of(steps)), verbose=0)


@functools.cache
def of_workers():
    """Return the strategy of a process of `ranks`: with the first one it takes part in the cluster."""
    # An all-reduce waits in a thread of the pool; with a pool of one it waits for ever.
    tf.config.threading.set_intra_op_parallelism_threads(2)
    return tf.distribute.MultiWorkerMirroredStrategy()


def worker(rank, way, steps):
    return WAYS[way](of_workers(), steps)


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_as_one_with_all_examples(ranks, way):
    expected = WAYS[way](None, whole(STEPS))
    for found in ranks.run(worker, way, STEPS, seconds=100):
        close(found, expected)


def train_until_killed(rank):
    """Train, where the second of two processes is killed in the second step."""
    strategy = of_workers()

    def steps():
        yield STEPS[0]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from STEPS[1:]

    with strategy.scope():
        model = Encoder()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(strategy.distribute_datasets_from_function(data_of(steps)), verbose=0)


def test_a_process_whose_peer_is_killed_ends_with_an_error_that_names_it(cluster):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "tests" / "imported")]
    code = "import sys; sys.path[:0] = {}; import test_replicas; test_replicas.train_until_killed({})"
    commands = [[sys.executable, "-c", code.format(paths, rank)] for rank in (0, 1)]
    with started(commands, cluster) as (survivor, _):
        printed, _ = survivor.communicate(timeout=90)
    assert survivor.returncode
    assert "worker/replica:0/task:1" in printed
