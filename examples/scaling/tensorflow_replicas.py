"""Keras' fit on several replicas: of this process, or of the workers that TF_CONFIG names.

python examples/scaling/tensorflow_replicas.py [--replicas 2] [--out weights.npz] [--export folder]
"""

import argparse
import os

import keras
import multifold_tensorflow as mt
import numpy as np
import tensorflow as tf
from formulas import MEANING, examples, record

import multifold
from multifold.sampling import CallBudget


class Gate(keras.layers.Layer):
    def __init__(self, width):
        super().__init__()
        self.dense = keras.layers.Dense(width, activation="tanh")

    def call(self, left, right):  # two arrays of shape (n, width)
        return self.dense(tf.concat([left, right], axis=1))


class Logic(mt.ProgramModel):
    def __init__(self, width=16):
        super().__init__()
        self.value = keras.layers.Embedding(2, width)
        self.gates = {name: Gate(width) for name in MEANING}
        self.logits = keras.layers.Dense(2)


def strategy_of(replicas):
    """Return a strategy for the workers of TF_CONFIG, or for several devices of this process."""
    if "TF_CONFIG" in os.environ:
        # An all-reduce waits in a thread of the pool; with a pool of one it would wait for ever.
        tf.config.threading.set_intra_op_parallelism_threads(2)
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpus = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def main(replicas, out, export, epochs=2):
    strategy = strategy_of(replicas)
    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    labels = np.array(labels)
    fold = multifold.Fold(backend="tensorflow")
    first = mt.as_tensors(fold.program(traces))  # has all ops, so programs have one form from now on
    specs = tf.type_spec_from_value(first), tf.TensorSpec((None,), tf.int64)
    budget = CallBudget([len(trace) for trace in traces], 300, shards=strategy.num_replicas_in_sync)

    def data(context):
        def elements():  # of each step as many as this process has replicas
            for step in budget.steps():
                for own in step[context.input_pipeline_id :: context.num_input_pipelines]:
                    program = fold.program([traces[i] for i in own]) if own else specs[0].empty()
                    yield mt.as_tensors(program), labels[own]

        return mt.dataset(elements, specs)

    keras.utils.set_random_seed(0)  # the same weights in each process
    with strategy.scope():
        model = Logic()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    next_epoch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: budget.set_epoch(epoch))
    model.fit(
        strategy.distribute_datasets_from_function(data), epochs=epochs, callbacks=[next_epoch], verbose=2
    )
    if out:
        np.savez(out, *model.get_weights())
    if export:
        mt.export(model, first, export)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--export")
    main(**vars(parser.parse_args()))
