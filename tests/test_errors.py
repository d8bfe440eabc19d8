"""Errors: which class they are, what their parts say, and which backend they miss."""

from __future__ import annotations

import pickle
import sys
import types
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from error_texts import launch_error

import multifold
from multifold import (
    BackendError,
    BackendMissing,
    Fold,
    LaunchError,
    MismatchError,
    MultifoldError,
    RecordError,
    Unfold,
    ragged,
    static,
)
from multifold._engine.ops import messages
from multifold._numpy.backend import NumpyBackend


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (RecordError, ValueError),
        (LaunchError, RuntimeError),
        (BackendMissing, ImportError),
        (BackendMissing, BackendError),
        (MismatchError, AssertionError),
    ],
)
def test_errors_are_multifold_errors_and_what_python_calls_them(error, base):
    assert issubclass(error, MultifoldError)
    assert issubclass(error, base)


def test_an_error_is_a_sentence_a_blank_line_and_a_hint():
    error = RecordError("Expected one row.", "take one.")
    assert str(error) == "Expected one row.\n\nHint: take one."
    assert str(RecordError("Expected one row.")) == "Expected one row."


@pytest.mark.parametrize("hint", [None, "take one."])
def test_errors_survive_pickling(hint):
    again = pickle.loads(pickle.dumps(LaunchError("Expected one row.", hint)))
    assert (type(again), str(again)) == (LaunchError, str(LaunchError("Expected one row.", hint)))
    assert (again.message, again.hint) == ("Expected one row.", hint)


def test_a_fold_of_one_framework_refuses_arrays_of_another():
    class Tensor:
        shape = (1, 2)
        dtype = "float32"

    with pytest.raises(BackendError, match=r"Tensor.*no backend"):
        Fold(backend="numpy").add("f", Tensor())


def test_an_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(BackendError, match=r"(?s)backend='pytorch'.*Hint: did you mean 'torch'"):
        Fold(backend="pytorch")


def test_a_backend_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(multifold._engine.frameworks.registry, "entry_points", dict)
    multifold._engine.frameworks.registry.load_backend.cache_clear()
    with pytest.raises(BackendMissing, match=r"pip install \./backends/mxnet"):
        Fold(backend="mxnet")
    multifold._engine.frameworks.registry.load_backend.cache_clear()


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_model_of_a_framework_without_its_adapter_says_how_to_install_it(monkeypatch, name):
    monkeypatch.setattr(multifold._engine.frameworks.registry, "entry_points", dict)
    monkeypatch.setitem(sys.modules, name, sys.modules.get(name, types.ModuleType(name)))
    multifold._engine.frameworks.registry.load_backend.cache_clear()
    model = type("Linear", (), {"__module__": f"{name}.nn", "f": lambda self, x: x})()
    fold = Fold()
    with pytest.raises(BackendMissing, match=rf"pip install \./backends/{name}"):
        fold.apply(model, [fold.add("f", 1.0)])
    multifold._engine.frameworks.registry.load_backend.cache_clear()


def test_a_model_in_the_place_of_the_backend_is_named_by_its_type():
    with pytest.raises(BackendError, match=r"Received an object.*\n\nHint: the model is for `apply`"):
        Fold(object())


def test_a_device_that_is_none_is_a_launch_error(backend):
    said = "could not be put on device 'nowhere': OSError: no such device"
    for make in (Fold, partial(Unfold, None)):
        for operand in (1, np.ones((1, 2)), multifold.ragged([1]), multifold.shared(np.ones(3))):
            fold = make(backend=Nowhere(), device="nowhere")
            with pytest.raises(LaunchError, match=said):
                fold.apply(None, fold.add(lambda x: x, operand))
        with pytest.raises(LaunchError, match=said):
            make(backend=Nowhere(), device="nowhere").apply(None, [[1, 2]])


class Nowhere(NumpyBackend):
    """A backend whose device does not exist."""

    def constant(self, values, device):
        raise OSError("no such device")


@pytest.mark.parametrize("op", [lambda x: 1 / 0, lambda x: None])
def test_a_backend_that_was_taken_by_default_is_named(op):
    fold = Fold()
    assert "Fold(backend=" in launch_error(fold, {"op": op}, fold.add("op", 1))
    named = Fold(backend="numpy")
    assert "Fold(backend=" not in launch_error(named, {"op": op}, named.add("op", 1))


def test_operands_are_listed_with_their_kinds_shapes_and_dtypes():
    def fails(*operands):
        raise ValueError("no.")

    fold = Fold(backend="numpy")
    node = fold.add("f", np.ones((1, 2), np.float32))
    with pytest.raises(LaunchError) as caught:
        fold.apply({"f": abs, "g": fails}, fold.add("g", node, 0.5, [1, "word"]))
    listed = "0 node (1, 2) float32; 1 float (1,) float32; 2[0] int (1,) int64; 2[1] static 'word'."
    assert f"Operands: {listed}" in str(caught.value)


def test_an_operand_that_prints_long_is_cut_in_a_message(fold):
    def fails(x, text):
        raise ValueError("it failed.")

    with pytest.raises(LaunchError) as error:
        fold.apply({"f": fails}, fold.add("f", 1, static("x" * 100)))
    assert "raised ValueError: it failed. Operands: " in str(error.value)
    assert f"'{'x' * 59}" in str(error.value) and "x" * 60 not in str(error.value)


def test_a_line_is_found_in_code_that_belongs_to_no_module(fold):
    namespace = {"fold": fold, "cell": multifold.Cell(lambda x, s: (x + s, (x + s,)), lambda: (0.0,), 1)}
    exec(compile("\nfold.unroll(cell, 1, [1.0])", "typed in", "exec"), namespace)  # without __name__
    assert fold._graph.line(0) == ("typed in", 2)


class Dtype:
    def __init__(self, said, **names):
        self.said = said
        vars(self).update(names)

    def __str__(self):
        return self.said


def made(*shape, **dtype):
    """Return what a framework's array shows of itself."""
    return SimpleNamespace(shape=shape, dtype=Dtype(**dtype))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((2, 3)), "(2, 3) float64"),
        (made(4, said="<dtype>", name="bfloat16"), "(4,) bfloat16"),
        (made(4, said="<class 'numpy.float32'>", __name__="float32"), "(4,) float32"),
        (made(4, said="torch.float16"), "(4,) float16"),
        (SimpleNamespace(shape=(1,)), "namespace(shape=(1,))"),
        ((np.zeros(1), [2.5]), "tuple of (1,) float64, 2.5"),
        ("x" * 99, f"'{'x' * 59}"),
    ],
    ids=["numpy", "jax", "mxnet", "torch", "shape only", "nested", "long"],
)
def test_operands_are_described_by_shape_and_dtype(x, said):
    assert messages.describe(x) == said


def test_nodes_are_shown_with_their_parts():
    fold = Fold(backend="numpy")
    node = fold.add("f", 1.0)
    assert repr(node["a"][1].no_batch()) == "<node 0 of f['a'][1].no_batch()>"
    with pytest.raises(RecordError, match=r"can't be iterated: .* not known yet"):
        list(node)
    with pytest.raises(RecordError, match=r"Received node\[1::0\]"):
        node[1::0]


def test_an_op_that_is_none_is_shown_in_sixty_characters():
    class Long:
        def __repr__(self):
            return "long  and\n" + "x" * 99

    with pytest.raises(RecordError) as caught:
        Fold(backend="numpy").add(Long(), 1)
    assert f"Received op=long and {'x' * 51}." in str(caught.value)


def test_an_error_is_said_without_the_stop_at_its_end():
    said = [messages.error_text(ValueError(text)) for text in ("it failed.", "it failed: ", "")]
    assert said == ["ValueError: it failed", "ValueError: it failed", "ValueError"]


def test_an_op_that_is_none_is_shown_in_one_short_line(fold):
    with pytest.raises(RecordError) as error:
        fold.add(list(range(50)), 1)
    assert f"Received op={repr(list(range(50)))[:60]}.\n" in str(error.value)
    with pytest.raises(RecordError, match=r"Received op=a b."):
        fold.add(type("Lines", (), {"__repr__": lambda self: "a\n  b"})(), 1)


def test_a_node_shows_its_parts_and_how_it_is_read(fold):
    node = fold.add("f", 1)
    assert repr(node[0]["k"].no_batch()) == "<node 0 of f[0]['k'].no_batch()>"
    with pytest.raises(RecordError, match=r"A <node 0 of f> can't be iterated") as error:
        iter(node)
    assert error.value.hint.startswith("use .split(n")
    with pytest.raises(RecordError, match=r"ragged\(...\). Received <node 0 of f.no_batch\(\)>"):
        fold.add("g", ragged([node.no_batch()]))
