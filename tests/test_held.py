"""Layers of a framework that a block calls as objects are parts of the model of its weights."""

from __future__ import annotations

import copy
import functools
import importlib

import numpy as np
import pytest
from dense_layers import dense

import multifold
from multifold.models.held import layers_in
from multifold_compat import blocks


def calling(layer):
    """Return a block that calls a layer as an object."""
    return blocks.Vector(2) >> blocks.Function(layer, out=3) >> blocks.Function(blocks.FC(1))


def within(layer):
    return [layer, lambda x: 1 * layer(x), functools.partial(layer), layer.__call__]


@pytest.mark.parametrize("form", range(4), ids=["layer", "lambda", "partial", "method"])
def test_a_layer_in_a_block_is_a_part_of_its_model(backend, seam, form):
    layer = dense(backend)
    if backend == "numpy":  # which trains nothing
        return
    block = calling(within(layer)[form])
    if backend == "jax":
        with pytest.raises(multifold.BackendError, match="Received a Linear, which a block calls"):
            blocks.Layers(block).on(backend)
        return
    model = blocks.Layers(block).on(backend)
    examples = [[1, 2], [3, 1]]
    assert len(model.weights()) == len(seam.kit.parameters(model)) == 4

    def total(model):
        return seam.kit.dot(multifold.Fold(backend=backend).run(model, examples, block), np.ones((2, 1)))

    assert len(seam.kit.value_and_grad(total, model)[1]) == 4


def test_its_weights_are_saved_and_loaded_with_the_model(backend, tmp_path, to_numpy):
    if backend in ("numpy", "jax"):  # see above
        return
    blocks_of = [calling(dense(backend)) for _ in range(2)]
    models = [blocks.Layers(block).on(backend) for block in blocks_of]
    models[0].save(tmp_path / "weights.npz")
    models[1].load(tmp_path / "weights.npz")
    results = [
        to_numpy(multifold.Fold(backend=backend).run(model, [[1, 2]], block))
        for model, block in zip(models, blocks_of, strict=True)
    ]
    np.testing.assert_array_equal(*results)


def test_a_cell_in_a_block_is_a_part_too(backend):
    if backend != "torch":
        return
    cell = importlib.import_module("torch").nn.GRUCell(2, 3)
    model = blocks.Layers(blocks.Map(blocks.Vector(2)) >> blocks.RNN(cell)).on(backend)
    assert [name.split(".")[0] for name, _ in model.named_parameters()] == ["GRUCell"] * 4


def test_a_copy_without_the_block_is_refused(backend):
    if backend in ("numpy", "jax"):
        return
    model = blocks.Layers(calling(dense(backend))).on(backend)
    with pytest.raises(multifold.MultifoldError, match=r"Received (Linear|Dense)\."):
        model.on(backend)
    if backend == "torch":
        with pytest.raises(multifold.BackendError, match="copied with the block"):
            copy.deepcopy(model)


def test_a_layer_without_arrays_is_refused(backend):
    lazy = {
        "tensorflow": lambda: importlib.import_module("keras").layers.Dense(3),
        "mxnet": lambda: importlib.import_module("mxnet").gluon.nn.Dense(3),
    }
    if backend in lazy:
        with pytest.raises(multifold.BackendError, match="a Dense, to have its"):
            blocks.Layers(calling(lazy[backend]())).on(backend)


def test_layers_are_found_once_and_in_order():
    class Callable:
        def __init__(self):
            self.inner = 3.5

        def __call__(self, x):
            return x

    cell = multifold.Cell(functools.partial(max, 2.5), lambda: (), 0)
    assert layers_in([[1.5, {"a": 1.5}], cell, Callable(), Callable().__call__], (float,)) == [
        1.5,
        2.5,
        3.5,
    ]


# ---- mistakes with layers ------------------------------------------------------------------------


def test_an_activation_that_is_no_function_is_refused():
    with pytest.raises(blocks.BlockError, match="Expected a function in FC"):
        blocks.FC(3, activation="tanh")


def test_a_layer_behind_a_cell_says_how_its_width_is_declared():
    chain = blocks.Map(blocks.Vector(2)) >> blocks.RNN(multifold.Cell(max, tuple, 1)) >> blocks.GetItem(1)
    with pytest.raises(blocks.BlockError, match=r"rnn.set_output_type\(\(SequenceType\(16\), 16\)\)"):
        blocks.Layers(chain >> blocks.Function(blocks.FC(2)))


@pytest.mark.parametrize("name", ["FC", "Embedding"])
def test_layers_that_are_on_no_framework_yet_say_so(backend, name):
    first, layer, example = {
        "FC": (blocks.Vector(2), blocks.FC(2), [1, 2]),
        "Embedding": (blocks.Scalar("int"), blocks.Embedding(5, 2), 1),
    }[name]
    block = first >> blocks.Function(layer)
    if backend != "numpy":
        with pytest.raises(multifold.LaunchError, match=r"say Layers\(block\)\.on"):
            multifold.Fold(backend=backend).run(blocks.Layers(block), [example], block)


def test_a_number_beside_rows_is_a_column_to_make():
    fold = multifold.Fold(backend="numpy")
    rows = fold.add(lambda x: np.ones((len(x), 2)), 1.0)
    both = fold.add(lambda h, x: np.concatenate([h, x], 1), rows, 7)
    with pytest.raises(multifold.LaunchError, match=r"s\[:, None\] makes a column"):
        fold([[both]])


def test_a_function_whose_outer_variable_has_no_value_holds_nothing():
    def make(known):
        if known:
            scale = 2.5
        return lambda x: x * scale

    assert layers_in([make(True), make(False)], (float,)) == [2.5]
