"""Nodes taken for arrays: refused with the call that was meant, in Python's and the frameworks' terms."""

from __future__ import annotations

import copy
import importlib
import inspect
import operator
import warnings

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, Unfold, shared, static
from multifold._engine.record import graph
from multifold_compat import mxnet_fold, torchfold

ARITHMETIC = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and_",
    "or_",
    "xor",
]
OWN = {
    "torch": [("torch", "relu"), ("torch.nn", "Linear(1, 1)")],
    "tensorflow": [("tensorflow", "nn.relu"), ("tensorflow", "concat([node], 0)")],
    "jax": [("jax.numpy", "array"), ("jax.numpy", "concatenate([node])")],
    "mxnet": [],  # its own errors: "Argument data must have NDArray type, but got <node 0 of f>"
    "numpy": [("numpy", "exp"), ("numpy", "concatenate([node])"), ("numpy", "asarray")],
}
"""Functions and layers of the frameworks, called on a node. JAX's compiled ones have their own error."""


@pytest.fixture
def node(fold):
    return fold.add("f", 1.0)


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_with_a_node_shows_the_call_that_was_meant(name, node):
    with pytest.raises(RecordError, match=rf"fold\.add\(operator\.{name}, node, x\)"):
        getattr(operator, name)(node, 2)
    with pytest.raises(RecordError, match=rf"fold\.add\(operator\.{name}, x, node\)"):
        getattr(operator, name)(2, node)


@pytest.mark.parametrize("name", ["neg", "pos", "invert", "abs"])
def test_an_operator_of_one_node_shows_the_call_that_was_meant(name, node):
    with pytest.raises(RecordError, match=rf"fold\.add\((operator\.)?{name}, node\)"):
        getattr(operator, name)(node)


@pytest.mark.parametrize("convert", [float, int, complex, len, operator.index, bool, list])
def test_a_node_is_no_number_and_no_list(convert, node):
    with pytest.raises(RecordError, match=r"computed|not known yet"):
        convert(node)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_a_comparison_of_a_node_names_await(compare, node):
    for pair in ((node, 0), (0.5, node), (node, node)):
        with pytest.raises(RecordError, match=r"Hint: `await fold\.value\(node\)` inside of"):
            compare(*pair)
    assert node == node and node != 0


def test_the_value_of_a_node_is_awaited_of_its_fold(node):
    with pytest.raises(AttributeError, match=r"await fold\.value\(node\)"):
        node.value  # noqa: B018
    assert not inspect.isawaitable(node)


@pytest.mark.parametrize("ask", [bool, lambda node: node.argmax()])
def test_what_only_a_value_has_is_awaited(ask, node):
    with pytest.raises(RecordError, match=r"await fold\.value\(node\)"):
        ask(node)


def test_awaiting_a_node_has_a_hint(fold):
    async def forgetful(fold, x):
        return await fold.add("f", x)

    with pytest.raises(TypeError) as caught:
        fold.run({"f": lambda x: x}, [1.0], forgetful)
    assert "await fold.value(node)" in caught.value.__notes__[-1]


def test_a_node_is_not_written_to(node):
    with pytest.raises(RecordError, match=r"fold\.add\(function, node, x\)"):
        node[0] = 1


@pytest.mark.parametrize("name", ["shape", "dtype", "size", "T", "sum", "item", "hidden", "_private"])
def test_a_node_has_no_attributes_of_a_result(name, node):
    assert not hasattr(node, name) and getattr(node, name, 7) == 7
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
        getattr(node, name)
    assert isinstance(caught.value, RecordError) and "inside an op" in caught.value.hint


@pytest.mark.parametrize("name", ["unbind", "chunk", "unstack"])
def test_a_method_that_takes_an_array_apart_is_told_to_the_op(name, node):
    with pytest.raises(RecordError, match=r"node\.split\(2\)"):
        getattr(node, name)()


def test_a_misspelt_method_of_a_node_is_suggested(node):
    with pytest.raises(RecordError, match=r"did you mean `node\.no_batch`"):
        node.nobatch()


def test_a_node_answers_the_protocols_of_python_by_a_plain_error(node):
    with pytest.raises(AttributeError) as caught:
        node.__deepcopy__  # noqa: B018 - asked for by `copy`
    assert not isinstance(caught.value, RecordError)
    assert copy.copy(node) == node


def test_a_function_or_layer_of_the_framework_refuses_a_node(seam, node):
    for package, written in OWN.get(seam.name, []):
        call = written if "node" in written else f"{written}(node)"
        module = importlib.import_module(package)
        with pytest.raises(RecordError, match=r"fold\.add\(\w+, node(, other)?\)"):
            eval(call, {**vars(module), "node": node})


def test_an_array_and_a_node_do_not_add(seam, node):
    array = seam.constant(np.ones(3, "float32"), None)
    with pytest.raises((RecordError, TypeError), match=r"fold\.add\(\w+, node\)|Node.*not supported"):
        array + node


def test_a_node_that_was_refused_can_be_recorded(seam, fold, node):
    with pytest.raises(RecordError):
        node * 2
    (result,) = fold.apply({"f": lambda x: x + 1}, [[fold.add(operator.mul, node, 2.0)]])
    assert seam.to_numpy(result).tolist() == [4.0]


# ---- arrays and nodes as keywords --------------------------------------------------------------------

KEYWORDS = {
    "row": lambda array, node: array(np.ones((1, 2), "float32")),
    "table": lambda array, node: array(np.ones(3, "float32")),
    "NumPy": lambda array, node: np.ones(3),
    "list": lambda array, node: [1, array(np.ones(3, "float32"))],
    "dict": lambda array, node: {"a": (np.ones(3),)},
    "node": lambda array, node: node,
    "shared": lambda array, node: shared(np.ones(3)),
}
"""What is passed as a keyword argument, by name."""

RECORDERS = {
    "fold": Fold,
    "cse": lambda backend: Fold(backend=backend, cse=True),
    "unfold": lambda backend: Unfold({"f": lambda x, **_: x, "g": lambda x, **_: x}, backend=backend),
    "torchfold": lambda backend: torchfold.Fold(backend=backend),
    "torchfold-unfold": lambda backend: torchfold.Unfold({"f": lambda x, **_: x}, backend=backend),
    "mxnet_fold": lambda backend: mxnet_fold.Fold(backend=backend),
}
"""Everything that records for a user."""


@pytest.mark.parametrize("recorder", RECORDERS.values(), ids=RECORDERS)
@pytest.mark.parametrize("make", KEYWORDS.values(), ids=KEYWORDS)
def test_an_array_or_a_node_as_keyword_is_refused(make, recorder, seam, backend):
    fold = recorder(backend=backend)
    for x in (1.0, 2.0):  # the second call of a form takes the quick path
        node = fold.add("f", x, by=3)
    calls = len(fold)
    with pytest.raises(RecordError, match=r"keyword 'by' of op 'f'") as caught:
        fold.add("f", 3.0, by=make(lambda x: seam.constant(x, None), node))
    assert "positional" in caught.value.hint and len(fold) == calls


@pytest.mark.parametrize("make", KEYWORDS.values(), ids=KEYWORDS)
def test_a_trace_refuses_an_array_or_a_node_as_keyword(make, seam):
    def record(fold, x):
        node = fold.add("f", x, by=3)
        return fold.add("f", node, by=make(lambda x: seam.constant(x, None), node))

    with pytest.raises(RecordError, match=r"keyword 'by' of op 'f'"):
        multifold.trace(record, 1.0)


def test_the_hint_of_an_array_as_keyword_can_be_followed(seam, fold):
    remedies = r"positionally.*multifold\.shared\(x\).*by=multifold\.static\(x\)"
    with pytest.raises(RecordError, match=remedies):
        fold.add("f", 1.0, by=np.ones(1))
    nodes = [fold.add("f", 1.0, by=static(np.full(1, 2.0, "float32"))) for _ in range(2)]
    (result,) = fold.apply({"f": lambda x, by: x * float(by[0])}, [nodes])
    assert seam.to_numpy(result).tolist() == [2, 2] and len(fold.schedule()) == 1


def test_what_only_describes_an_array_is_no_array(fold):
    for x in (np.float32(2), np.dtype("f4"), np.float32, "float32", (2, 3), slice(2)):
        fold.add("f", 1.0, by=x)
    assert len(fold.schedule()) == 6


# ---- a fold that is never reset ------------------------------------------------------------------------


def apply_often(fold, times):
    """Record a call and apply the fold, again and again; return the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(times):
            fold.apply({"f": lambda x: x}, fold.add("f", i))
    return [str(warning.message) for warning in found]


def test_a_fold_that_grows_warns_once_with_both_remedies(backend):
    (text,) = apply_often(Fold(backend=backend), 120)
    assert "holds all 50 of them" in text
    assert "fold.reset()" in text
    assert "fold.run(model, examples, fn)" in text


def test_a_fold_that_is_reset_may_run_as_often_as_it_likes():
    fold = Fold(backend="numpy")
    for _ in range(4):
        assert apply_often(fold, 40) == []
        fold.reset()


@pytest.mark.parametrize("calls", [0, 1])
def test_a_fold_that_runs_beside_calls_of_before_grows(calls):
    """Without them, each run forgets the last one."""
    fold = Fold(backend="numpy")
    for _ in range(calls):
        fold.add("f", 1)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for i in range(120):
            fold.run({"f": lambda x: x}, [i], lambda fold, x: fold.add("f", x))
    assert len(found) == calls


def test_a_fold_of_many_calls_says_that_it_grows_after_few_runs(monkeypatch):
    """One large minibatch, even in two phases, is no growth."""
    monkeypatch.setattr(graph, "MANY_CALLS", 10)
    fold = Fold(backend="numpy")
    for size, warned in ((30, 0), (60, 0), (61, 1), (90, 0)):
        nodes = [fold.add("f", i) for i in range(size - len(fold))]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            fold.apply({"f": lambda x: x}, [nodes])
        assert len(found) == warned


def test_a_fold_that_is_applied_to_the_same_calls_does_not_grow():
    fold = Fold(backend="numpy")
    node = fold.add("f", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            fold.apply({"f": lambda x: x}, node)


def test_one_large_minibatch_after_small_ones_is_no_growth(monkeypatch):
    monkeypatch.setattr(graph, "MANY_CALLS", 10)
    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (5, 6, 30):
            fold.apply({"f": lambda x: x}, [[fold.add("f", i) for i in range(size - len(fold))]])
