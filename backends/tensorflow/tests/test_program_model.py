"""`ProgramModel` as users of Keras take it: saved, loaded, exported, and not compiled by XLA by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import multifold_tensorflow as mt
import numpy as np
import pytest
import tensorflow as tf
from shards import WORDS, score, trees_of

import multifold
from multifold import Fold


class Encoder(mt.ProgramModel):
    """The ops of `shards.score`."""

    def __init__(self, width=3, rate=0.0):
        super().__init__()
        self.width = width
        self.rate = rate
        self.embed = keras.layers.Embedding(WORDS, width)
        self.gates = keras.layers.Dense(width, activation="tanh")
        self.turn = keras.layers.Dense(width)
        self.drop = keras.layers.Dropout(rate)
        self.out = keras.layers.Dense(2)

    def join(self, left, right):
        return self.gates(tf.concat([left, right], axis=1))

    def flip(self, x):
        return self.drop(self.turn(x))

    def get_config(self):
        return {"width": self.width, "rate": self.rate}


TREES = [trees_of(0, 7), trees_of(1, 4, flips=False), [3]]


@pytest.fixture
def fold():
    """A fold that has seen all ops."""
    fold = Fold(backend="tensorflow")
    fold.program(multifold.traces(score, TREES[0]))
    return fold


@pytest.fixture
def data(fold):
    """Programs with labels, as `fit` takes them."""

    def elements():
        for trees in TREES:
            program = mt.as_tensors(fold.program(multifold.traces(score, trees)))
            yield program, np.array([len(str(tree)) % 2 for tree in trees])

    spec = tf.type_spec_from_value(next(elements())[0]), tf.TensorSpec((None,), tf.int64)
    return mt.dataset(elements, spec)


def compiled(model):
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def test_predict_has_the_rows_of_a_fold(fold, data):
    model = compiled(Encoder())
    rows = model.predict(data, verbose=0)
    trees = [tree for trees in TREES for tree in trees]
    np.testing.assert_allclose(rows, Fold(backend="tensorflow").run(model, trees, score), 1e-5, 1e-6)


def test_layers_are_told_whether_they_train(data):
    keras.utils.set_random_seed(1)
    program = next(iter(data))[0]
    model = Encoder(rate=0.5)
    training, testing, again = (model(program=program, training=flag) for flag in (True, False, False))
    np.testing.assert_array_equal(testing, again)
    assert not np.allclose(training, testing)  # dropout


def test_a_checkpoint_goes_on_as_training_did(tmp_path, data):
    model = compiled(Encoder())
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "whole.keras")
    weights = keras.callbacks.ModelCheckpoint(tmp_path / "own.weights.h5", save_weights_only=True)
    model.fit(data, callbacks=[saved, weights], verbose=0)
    loaded = keras.models.load_model(tmp_path / "whole.keras", custom_objects={"Encoder": Encoder})
    other = compiled(Encoder())
    other.predict(data, verbose=0)  # builds its layers
    other.load_weights(tmp_path / "own.weights.h5")
    for again in (loaded, other):
        for got, expected in zip(again.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(got, expected)
    histories = [x.fit(data, epochs=2, verbose=0).history for x in (model, loaded)]
    assert histories[0] == histories[1]  # the state of the optimizer, too


SERVER = """
import sys
sys.modules["multifold"] = sys.modules["multifold_tensorflow"] = None  # importing them fails
import numpy as np, tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
for request in sys.argv[2:]:
    with np.load(request, allow_pickle=True) as arrays:
        tensors = {name: tf.constant(x.item() if name == "form" else x) for name, x in arrays.items()}
    try:
        print(served(**tensors)["output_0"].numpy().tolist())
    except tf.errors.InvalidArgumentError as error:
        print("form" in str(error))
"""


def test_an_exported_program_runs_without_multifold(tmp_path, fold):
    model = Encoder()
    requests = []
    first = fold.program(multifold.traces(score, TREES[0]))
    mt.export(model, first, tmp_path / "served")
    other = Fold(backend="tensorflow").program(multifold.traces(score, TREES[2]))
    for i, program in enumerate([fold.program(multifold.traces(score, TREES[1])), other]):
        requests.append(str(tmp_path / f"{i}.npz"))
        np.savez(requests[-1], **{name: x.numpy() for name, x in mt.tensors_of(program).items()})
    command = [sys.executable, "-c", SERVER, str(tmp_path / "served"), *requests]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=100, check=False
    )
    rows, refused = done.stdout.splitlines()
    expected = Fold(backend="tensorflow").run(model, TREES[1], score)
    np.testing.assert_allclose(eval(rows), expected, 1e-5, 1e-6)
    assert eval(refused)


def test_keras_does_not_compile_ragged_programs_by_itself(monkeypatch):
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu])
    plain = keras.Sequential([keras.layers.Dense(1)])
    assert compiled(plain).jit_compile
    assert not compiled(Encoder()).jit_compile


def test_a_program_of_the_same_form_is_made_for_no_examples(fold):
    program = mt.as_tensors(fold.program(multifold.traces(score, TREES[0])))
    spec = tf.type_spec_from_value(program)
    assert tf.type_spec_from_value(spec.empty()) == spec
    assert Encoder()(program=spec.empty()).shape == (0, 2)


EXIT = """
import sys, time
import tensorflow as tf
import multifold_tensorflow as mt

def numbers():
    for i in range(100):
        begin = time.monotonic()
        while time.monotonic() - begin < 0.2:
            pass
        yield i

data = iter(mt.dataset(numbers, tf.TensorSpec((), tf.int64)).prefetch(2))
next(data)
raise ValueError("in the middle")
"""


def test_a_process_that_fails_while_elements_are_made_comes_to_an_end():
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "in the middle" in done.stderr
