"""Errors: which class, what they say (what, where, a hint), and what they leave behind."""

from __future__ import annotations

import inspect
import pickle
import sys
import types
from collections import ChainMap, Counter, OrderedDict, UserDict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

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
    shared,
    static,
)
from multifold._engine.ops import messages
from multifold._numpy.backend import NumpyBackend
from multifold.models import BinaryTreeLSTM

HELD = [object()]
FREE = sys.getrefcount(HELD[0])
"""What `sys.getrefcount(results[i])` is where only the list ``results`` holds it."""


def here(back=0):
    """Return ``file:line`` of the caller, or of a line before."""
    frame = inspect.currentframe().f_back
    return f"{__file__}:{frame.f_lineno - back}"


@pytest.fixture
def columns(fold):
    """Return a function that gives all that was recorded, to see that nothing was added."""
    names = ("signature", "refs", "ints", "floats", "arrays", "lengths", "members", "loose", "codes")
    return lambda: {name: list(getattr(fold._graph, name)) for name in names}


# ---- classes -------------------------------------------------------------------------------------


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


# ---- what cannot be recorded ---------------------------------------------------------------------

REFUSED = {
    "an array of three rows": (lambda f: f.add("f", np.ones((3, 2))), r"\(3, 2\).*x\[None\].*shared\(x\)"),
    "an array of no rows": (lambda f: f.add("f", np.ones((0, 2))), r"\(0, 2\)"),
    "an array without dimensions": (lambda f: f.add("f", np.array(1.0)), r"\(\).*x\[None\]"),
    "an array of objects": (lambda f: f.add("f", np.array([None])), "object"),
    "an array of three rows in a list": (lambda f: f.add("f", [1, np.ones((3, 2))]), r"\(3, 2\)"),
    "an array of three rows in ragged": (lambda f: f.add("f", ragged([np.ones((3, 2))])), r"\(3, 2\)"),
    "a node as keyword": (lambda f: f.add("f", 1, h=f.add("g", 2)), "keyword.*Node.*positional"),
    "nodes inside a keyword": (lambda f: f.add("f", 1, hs=[{"h": f.add("g", 2)}]), "Node.*positional"),
    "a static node": (lambda f: f.add("f", static([f.add("g", 2)])), "Node.*positional"),
    "a shared operand as keyword": (lambda f: f.add("f", 1, w=shared(1)), "Shared.*positional"),
    "a ragged operand as keyword": (lambda f: f.add("f", 1, w=ragged([1])), "Ragged.*positional"),
    "a row shape that is an int": (lambda f: f.add("f", ragged([], row_shape=3)), "row_shape=3"),
    "a row shape of a shape and an int": (
        lambda f: ragged([], row_shape=((3,), 3)),
        r"\(\(3,\), 3\).*pair",
    ),
    "a set": (lambda f: f.add("f", {1, 2}), r"set.*multifold.static\(x\)"),
    "an int of more than 64 bits": (lambda f: f.add("f", 2**63), "64 bits.*9223372036854775808"),
    "one of them behind others": (lambda f: f.add("f", f.add("g", 1), 2, 1 << 70), "64 bits"),
    "no name and no callable": (lambda f: f.add(3, 1), "op=3"),
    "None as op": (lambda f: f.add(None, 1), "op=None"),
    "a shared node in ragged": (lambda f: f.add("f", ragged([f.add("g", 1).no_batch()])), "no_batch"),
    "a string in ragged": (lambda f: f.add("f", ragged(["a"])), "str"),
    "a list in ragged": (lambda f: f.add("f", ragged([[1]])), "list"),
    "split into none": (lambda f: f.add("f", 1).split(0), "n=0"),
    "split into half": (lambda f: f.add("f", 1).split(1.5), "n=1.5"),
    "split into True": (lambda f: f.add("f", 1).split(True), "n=True"),
    "an index of a list": (lambda f: f.add("f", 1)[[0]], r"\[0\]"),
    "an index of two": (lambda f: f.add("f", 1)[0, 1], r"\(0, 1\)"),
    "the truth of a node": (lambda f: bool(f.add("f", 1)), "truth"),
    "an unknown layout": (lambda f: f.unroll(CELL, 1, [1.0], layout="CTN"), "layout='CTN'"),
    "steps that are a number": (lambda f: f.unroll(CELL, 3, 7), r"shape \(1, 3, C\).*shape \(\)"),
    "no steps": (lambda f: f.unroll(CELL, 0, []), "length=0"),
    "too few steps": (lambda f: f.unroll(CELL, 3, [1.0, 2.0]), "3 steps.*2"),
    "steps of another axis": (
        lambda f: f.unroll(CELL, 3, np.ones((3, 1, 2))),
        r"\(1, 3, C\).*NTC.*\(3, 1, 2\)",
    ),
    "too many layers' states": (
        lambda f: f.unroll(multifold.Stack((CELL, CELL)), 1, [1.0], [[1.0]] * 3),
        "2 layers.*3",
    ),
    "layers' states that are no list": (
        lambda f: f.unroll(multifold.Stack((CELL, CELL)), 1, [1.0], np.ones(2)),
        "2 layers.*an ndarray",
    ),
    "an input of one axis": (lambda f: f.unroll(CELL, 3, np.ones(3)), r"\(1, 3, C\).*\(3,\)"),
    "one direction's states": (
        lambda f: f.unroll(multifold.Bidirectional(CELL, CELL, max), 1, [1.0], [[1.0]]),
        "2 directions.*1",
    ),
    "too many states": (lambda f: f.unroll(CELL, 1, [1.0], [1.0, 2.0]), "1 states.*2"),
    "nothing to reduce": (lambda f: f.reduce("join", []), "one node to reduce by op 'join'.*none"),
    "a node to reduce": (lambda f: f.reduce("join", f.add("f", 1)), "split"),
    "a set to reduce": (lambda f: f.reduce("join", [{1}, {2}]), "a set"),
}
CELL = multifold.Cell(lambda x, h: (h, h), lambda: (np.zeros((1, 2)),), 1)


@pytest.mark.parametrize(("add", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_recorded_is_refused_with_a_hint(add, words):
    with pytest.raises(RecordError, match=f"(?s){words}") as caught:
        add(Fold(backend="numpy"))
    assert "\n\nHint: " in str(caught.value)


@pytest.mark.parametrize("operand", ["stranger", 1 << 63, np.ones((2, 1)), {1}], ids=str)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x]], ids=["plain", "nested"])
def test_a_refused_call_records_nothing(fold, columns, equal, operand, wrap):
    if isinstance(operand, str):
        operand = Fold(backend="numpy").add("f", 1)
    node = fold.add("f", 1.0, 2.0, 3.0, 4.0)
    fold.add("f", node, 1, 2.0, node)  # later calls of these types take the quick path
    before = columns()
    for last in (operand, wrap(operand)):
        for operands in ((node, 1, 2.0, last), (node, 1, last, node), (last, 1, 2.0, node), (last,)):
            with pytest.raises(RecordError):
                fold.add("f", *operands)
            with pytest.raises(RecordError):
                fold.add("f", *operands, k=1)
    assert columns() == before
    equal(fold.apply({"f": lambda a, b, c, d: a}, [node]), [1])


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


@pytest.mark.parametrize("make", [Fold, lambda: Unfold(backend="numpy")])
def test_a_function_in_the_place_of_the_examples_is_refused(make):
    with pytest.raises(RecordError, match=r"fold.run\(model, examples, fn\)"):
        make().run(None, lambda fold, x: fold.add(abs, x), [1, 2])


def test_examples_without_a_function_are_named_by_their_types():
    with pytest.raises(RecordError, match=r"(?s)Received ndarray and int\..*fn") as caught:
        Fold(backend="numpy").run(None, [np.zeros((50, 50)), 1])
    assert len(str(caught.value)) < 300


# ---- outputs that cannot be asked for ------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([[]], "empty list.*leave the group out"),
        ({"a": ([],)}, "empty list"),
        (None, "NoneType"),
        ([None], "NoneType"),
        ("node", "str"),
        ([Ellipsis], "ellipsis"),
        (np.ones((2, 1)), r"\(2, 1\).*need not pass through the fold"),
        ([np.ones((2, 1))], r"\(2, 1\).*labels.tolist\(\)"),
    ],
    ids=str,
)
def test_outputs_that_are_no_nodes_are_refused(fold, outputs, words):
    fold.add("f", 1.0)
    with pytest.raises(RecordError, match=f"(?s){words}") as caught:
        fold.apply({"f": lambda x: x}, outputs)
    assert "\n\nHint: " in str(caught.value)


# ---- launches that fail --------------------------------------------------------------------------


def launch_error(fold, model, outputs):
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, outputs)
    return str(caught.value)


def test_a_launch_error_says_everything(fold, array, seam):
    table = shared(array([[1.0, 2.0, 3.0]]))
    row = fold.add("row", array([[1.0, 2.0]]))
    nodes = [fold.add("bad", row, i, 0.5, table, ragged([row, row]), static("s")) for i in range(7)]
    where = here(back=1)
    message = launch_error(fold, {"row": lambda x: x, "bad": lambda *xs: 1 / 0}, nodes)
    first, _, hint = message.partition("\n\n")
    assert hint.startswith("Hint: ")
    floats = str(seam.number_dtype(float))
    for words in (
        *("'bad'", "7 nodes", where, "ZeroDivisionError: division by zero"),
        *(f"0 node (7, 2) {floats}", "1 int (7,) int", f"2 float (7,) {floats}"),
        *(f"3 shared (1, 3) {floats}", f"4 ragged values (14, 2) {floats}", "5 static 's'"),
    ):
        assert words in first


def test_a_launch_error_says_where_operands_nest(fold):
    node = fold.add("bad", [0.5, (1.5, {"k": 2.5})], 3)
    message = launch_error(fold, {"bad": lambda *xs: 1 / 0}, node)
    for where in ("0[0] float (1,)", "0[1][0] float (1,)", "0[1][1]['k'] float (1,)", "1 int (1,)"):
        assert where in message


def test_an_error_about_dtypes_says_how_a_numpy_array_becomes_float32(fold):
    def picky(x):
        raise TypeError("mat1 and mat2 must have the same dtype")

    assert "x.astype(numpy.float32)" in launch_error(
        fold, {"picky": picky}, fold.add("picky", np.ones((1, 2)))
    )


def test_the_line_is_that_of_the_first_node_that_was_recorded(fold):
    first = fold.add("bad", 1.0)
    where = here(1)
    later = [fold.add("bad", 1.0) for _ in range(3)]
    assert f"4 nodes, first recorded at {where}" in launch_error(
        fold, {"bad": lambda x: None}, [*later, first]
    )


def record_deep_down(fold, depth):
    if depth:
        return record_deep_down(fold, depth - 1)
    return fold.add("bad", 1.0), here()


def test_the_line_is_that_of_the_function_that_calls_add(fold):
    node, where = record_deep_down(fold, 3)
    assert where in launch_error(fold, {"bad": lambda x: None}, node)


def test_unrolled_calls_name_the_line_of_unroll(fold, array):
    def broken(x, h):
        raise ValueError("broken on purpose")

    cell = multifold.Cell(broken, lambda: (array([[0.0]]),), 1)
    outputs, _ = fold.unroll(cell, 2, [array([[1.0]])] * 2)
    where = here(back=1)
    assert where in launch_error(fold, None, outputs)


def test_reduced_calls_name_the_line_of_reduce(fold):
    def broken(left, right):
        raise ValueError("broken on purpose")

    node = fold.reduce(broken, [1.0, 2.0, 3.0])
    where = here(back=1)
    assert where in launch_error(fold, None, node)


BAD_RESULTS = {
    "a number": (lambda x: 3.0, "returned a float, which is no array"),
    "None": (lambda x: None, "returned a NoneType"),
    "a list of numbers": (lambda x: [1.0, 2.0], "returned a float"),
    "a string": (lambda x: "x", "returned a str"),
    "an array of NumPy objects": (lambda x: object(), "returned an object"),
}


@pytest.mark.parametrize(("op", "words"), BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_results_that_are_no_arrays_are_refused(fold, op, words):
    nodes = [fold.add("op", float(i)) for i in range(2)]
    message = launch_error(fold, {"op": op}, nodes)
    for expected in (words, "'op'", "2 nodes", __file__, "\n\nHint: "):
        assert expected in message


def test_each_leaf_of_a_result_must_have_a_row_for_each_node(fold, seam, array):
    nodes = [fold.add("op", float(i)) for i in range(4)]
    three = lambda x: {"good": x, "bad": [seam.split(x, [3, 1])[0]]}  # noqa: E731
    message = launch_error(fold, {"op": three}, [n["good"] for n in nodes])
    assert "returned 3 rows for 4 rows" in message


@pytest.mark.parametrize(("nodes", "whole"), [(1, True), (2, False)])
def test_a_result_of_one_node_may_be_read_whole_instead(fold, array, nodes, whole):
    rows = [fold.add("op", float(i)) for i in range(nodes)]
    message = launch_error(fold, {"op": lambda x: array([1.0, 2.0, 3.0])}, rows)
    assert ("no_batch()" in message) is whole


def test_an_op_without_batched_operands_must_return_one_row(fold, array):
    nodes = [fold.add("op") for _ in range(4)]
    message = launch_error(fold, {"op": lambda: array([1.0, 2.0])}, nodes)
    for words in ("2 rows for 1 row", "no operand is batched", "no_batch()"):
        assert words in message


def test_a_node_that_is_read_whole_and_by_rows_must_have_one_row(fold, array):
    node = fold.add("op")
    rows = fold.add("use", node)
    assert "2 rows for 1 row" in launch_error(
        fold, {"op": lambda: array([1.0, 2.0]), "use": lambda x: x}, (node.no_batch(), [rows])
    )


def test_only_the_parts_that_are_read_by_rows_need_one(fold, array, seam, equal):
    wide, row = fold.add("op").split(2)
    node = fold.add("use", wide.no_batch(), row)
    model = {"op": lambda: (array([[1.0], [2.0], [3.0]]), array([[5.0]]))}
    equal(fold.apply({**model, "use": lambda w, x: seam.split(w, [1, 2])[0] + x}, node), [[6]])


PARTS = {
    "too few": (lambda n: n.split(3)[0], r"has 2 parts, where .split\(3\) expects 3"),
    "too many": (lambda n: n.split(1)[0], r"has 2 parts, where .split\(1\) expects 1"),
    "no such index": (lambda n: n[5], r"has no part \[5\]"),
    "no such key": (lambda n: n["h"], r"has no part \['h'\]"),
    "a part of an array": (lambda n: n[0][1], r"of which \[1\] is no part"),
    "a slice of an array": (lambda n: n[0][:1], "is no part"),
    "None": (lambda n: n[1]["none"], r"is None at \[1\]\['none'\]"),
}


@pytest.mark.parametrize(("part", "words"), PARTS.values(), ids=PARTS)
def test_a_part_that_is_not_there_is_named(fold, part, words):
    parts = [part(fold.add("pair", float(i))) for i in range(2)]
    with pytest.raises(LaunchError, match=rf"(?s)'pair' for 2 nodes.*{__file__}.*{words}.*Hint: "):
        fold.apply({"pair": lambda x: (x, {"none": None})}, parts)


@pytest.mark.parametrize("key", [2, "h", -3])
def test_a_part_that_is_read_whole_and_not_there_is_named(fold, key):
    view = fold.add("pair", 1.0)[key].no_batch()
    for outputs in (view, [fold.add("same", view, 2.0)]):
        with pytest.raises(LaunchError, match=rf"(?s)'pair'.*no part \[{key!r}\].*Hint: "):
            fold.apply({"pair": lambda x: (x, x), "same": lambda w, x: x}, outputs)


@pytest.mark.parametrize(
    ("operands", "op", "hint"),
    [
        (lambda n: [[n, n]], lambda nodes: nodes.values, "multifold.ragged(nodes) makes one operand"),
        (lambda n: ["word"], lambda word: word.shape, "map words to integers"),
        (lambda n: [n], lambda pair: pair.shape, "pass a part of it, by node.split(n)"),
        (lambda n: [ragged([], (3,))], lambda rows: unpacked(rows.values), "((width,), (width,))"),
    ],
    ids=["list", "str", "tuple", "pair"],
)
def test_what_an_op_does_not_take_has_a_hint(fold, operands, op, hint):
    node = fold.add("pair", 1.0)
    assert hint in launch_error(fold, {"pair": lambda x: (x, x), "op": op}, fold.add("op", *operands(node)))


def unpacked(values):
    """Take a pair apart, as an op does; iterating arrays without rows is not alike in all frameworks."""
    h, _ = values if len(values) else ()
    return h


def test_outputs_that_are_none_ask_for_a_return(fold):
    with pytest.raises(RecordError, match="is a `return` missing"):
        fold.run({}, [1.0], lambda fold, x: None)


def test_a_launch_of_one_row_whose_axis_is_dropped_has_a_hint_of_squeeze():
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="array of 0 dimensions for 1 row") as caught:
        fold.apply({"score": lambda x: x.sum(1).squeeze()}, [fold.add("score", np.ones((1, 4)))])
    assert "squeeze(1)" in caught.value.hint


def test_an_op_that_fails_on_one_row_after_a_squeeze_has_a_hint_of_it():
    def score(x):
        return x.squeeze().sum(1)

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"Hint: squeeze\(\) drops the axis of rows.*squeeze\(1\)"):
        fold.apply({"score": score}, [fold.add("score", np.ones((1, 4)))])


@pytest.mark.parametrize("rows", [1, 3])
def test_one_number_for_all_rows_has_a_hint_of_reductions(fold, array, rows, backend):
    if backend == "mxnet":
        pytest.skip("its arrays have a dimension at least")
    nodes = [fold.add("loss", array([[1.0, 2.0]])) for _ in range(rows)]
    with pytest.raises(LaunchError, match=f"of 0 dimensions for {rows} row") as caught:
        fold.apply({"loss": lambda x: multifold.ops.sum(multifold.ops.sum(x, 1), 0)}, [nodes])
    assert 'reduction="none"' in caught.value.hint


def test_a_check_that_fails_names_the_op_that_differs_first(fold):
    nodes = [fold.add("last", fold.add("mixes", fold.add("first", x))) for x in (1.0, 2.0)]
    model = {"first": lambda x: x + 1, "mixes": lambda x: x - x[:1], "last": lambda x: 2 * x}
    with pytest.raises(MismatchError, match=rf"differs is of op 'mixes', recorded at {__file__}:\d+"):
        fold.check(model, [nodes])


CHECKED = {
    "examples": lambda fn: ([1, 2, 3], fn),
    "traces": lambda fn: (multifold.traces(fn, [1, 2, 3]),),
    "minibatch": lambda fn: (multifold.merge(multifold.traces(fn, [1, 2, 3])),),
}


@pytest.mark.parametrize("given", CHECKED.values(), ids=CHECKED)
def test_a_check_of_examples_names_the_op_that_differs_first(fold, seam, given):
    def chain(fold, n):
        return fold.add("last", fold.add("mixes", fold.add("first", float(n))))

    model = {"first": lambda x: x + 1, "mixes": lambda x: x * seam.rows(x), "last": lambda x: 2 * x}
    with pytest.raises(MismatchError, match=rf"differs is of op 'mixes', recorded at {__file__}:\d+"):
        fold.check(model, *given(chain))


def test_a_check_of_awaiting_examples_names_the_op_that_differs_first(fold, seam):
    async def chain(fold, n):
        node = fold.add("mixes", fold.add("first", float(n)))
        return fold.add("last", node) if await fold.value(node) > 2 else node

    model = {"first": lambda x: x + 1, "mixes": lambda x: x * seam.rows(x), "last": lambda x: 2 * x}
    with pytest.raises(MismatchError, match=rf"differs is of op 'mixes', recorded at {__file__}:\d+"):
        fold.check(model, [1, 2, 3], chain)


NOT_SAID = {
    "no rows": ([], None, None, "without rows"),
    "a dtype beside rows": ([1.0], None, "int64", "beside dtype='int64'"),
    "no dtype": ([], (2,), "flote", "'flote'"),
    "a dtype too few": ([], ((2,), ()), ("int64",), r"\(\(2,\), \(\)\), dtype=\('int64',\)"),
}


@pytest.mark.parametrize(("items", "shape", "dtype", "received"), NOT_SAID.values(), ids=NOT_SAID)
def test_what_is_missing_must_be_said_of_a_ragged_operand(items, shape, dtype, received):
    with pytest.raises(RecordError, match=f"(?s){received}.*Hint: "):
        ragged(items, row_shape=shape, dtype=dtype)


MISSING = {
    "a typo": ("encdoe", "no op 'encdoe'"),
    "a method of dict": ("update", "has no op 'update'"),
    "a path": ("encode.deeper", "has no op 'encode.deeper'"),
    "a value": ("width", "'width'.*callable.*int"),
}


@pytest.mark.parametrize(("op", "words"), MISSING.values(), ids=MISSING)
def test_an_op_that_the_model_lacks_is_named_before_anything_runs(fold, op, words):
    ran = []
    outputs = [fold.add("encode", 1.0), fold.add(op, 1.0)]
    where = here(back=1)
    with pytest.raises(LaunchError, match=f"(?s){words}.*Hint: ") as caught:
        fold.apply({"encode": ran.append, "width": 3}, tuple(outputs))
    assert where in str(caught.value)
    assert not ran


def test_operands_that_the_framework_refuses_name_the_launch(backend, seam, monkeypatch):
    def refuse(self, values, device):
        raise TypeError("no such dtype")

    fold = Fold(backend=backend)
    nodes = [fold.add("op", np.ones((1, 2))) for _ in range(2)]
    where = here(back=1)
    monkeypatch.setattr(type(seam), "constant", refuse)
    message = launch_error(fold, {"op": lambda x: x}, nodes)
    for words in ("'op' for 2 nodes", where, "no such dtype", "Hint: "):
        assert words in message


@pytest.mark.parametrize("op", [lambda x: 1 / 0, lambda x: None])
def test_a_backend_that_was_taken_by_default_is_named(op):
    fold = Fold()
    assert "Fold(backend=" in launch_error(fold, {"op": op}, fold.add("op", 1))
    named = Fold(backend="numpy")
    assert "Fold(backend=" not in launch_error(named, {"op": op}, named.add("op", 1))


def test_names_need_a_model(fold):
    assert "Received none" in launch_error(fold, None, fold.add("f", 1.0))


# ---- what errors leave behind --------------------------------------------------------------------


def test_a_fold_stays_usable_after_each_error(fold, equal):
    nodes = [fold.add("late", fold.add("op", float(i))) for i in range(3)]
    good = {"op": lambda x: x * 2, "late": lambda x: x + 1}
    for bad in ({}, {"op": lambda x: x}, {**good, "late": lambda x: None}, {**good, "op": lambda x: 1 / 0}):
        launch_error(fold, bad, nodes)
        with pytest.raises(RecordError):
            fold.apply(good, [[], nodes])
        with pytest.raises(RecordError):
            fold.add("op", {1})
        equal(fold.apply(good, nodes), [1, 3, 5])
    nodes.append(fold.add("late", 9.0))
    equal(fold.apply(good, nodes), [1, 3, 5, 10])


def test_the_cause_is_the_error_of_the_framework(fold):
    problem = TypeError("its own words")

    def op(x):
        raise problem

    with pytest.raises(LaunchError) as caught:
        fold.apply({"op": op}, fold.add("op", 1.0))
    assert caught.value.__cause__ is problem


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_what_stops_a_program_is_not_wrapped(fold, stop):
    def op(x):
        raise stop

    with pytest.raises(stop):
        fold.apply({"op": op}, fold.add("op", 1.0))


def test_a_failed_launch_keeps_no_result_alive(fold):
    results = []

    def op(x):
        results.append(x + 1)
        return results[-1]

    x = fold.add("op", 1.0)
    last = fold.add("bad", fold.add("op", x), x)
    with pytest.raises(LaunchError):
        fold.apply({"op": op, "bad": lambda x, y: None}, last)
    assert [sys.getrefcount(results[i]) for i in range(len(results))] == [FREE] * 2


# ---- the eager twin ------------------------------------------------------------------------------


def test_the_eager_twin_raises_at_the_call(backend):
    unfold = Unfold({"op": lambda x, k: 1 / 0}, backend=backend)
    with pytest.raises(LaunchError, match="ZeroDivisionError") as caught:
        unfold.add("op", 1.0, k=2)
    where = here(back=1)
    for words in ("'op'", where, "0 float (1,)", "Hint: "):
        assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("part", "words"), PARTS.values(), ids=PARTS)
def test_the_eager_twin_names_a_part_that_is_not_there(backend, part, words):
    unfold = Unfold({"pair": lambda x: (x, {"none": None})}, backend=backend)
    node = part(unfold.add("pair", 1.0))
    with pytest.raises(LaunchError, match="Hint: ") as caught:
        unfold.apply(None, [node])
    assert __file__ in str(caught.value)


def test_the_eager_twin_goes_on_after_an_error(backend, equal):
    unfold = Unfold({"op": lambda x: x * 2, "bad": lambda x: 1 / 0}, backend=backend)
    first = unfold.add("op", 1.0)
    for add in (lambda: unfold.add("bad", first), lambda: unfold.add("op", {1})):
        with pytest.raises(MultifoldError):
            add()
    equal(unfold([first, unfold.add("op", first)]), [2, 4])


# ---- check ---------------------------------------------------------------------------------------


def test_check_accepts_ops_that_treat_rows_apart(fold, array):
    nodes = [fold.add("op", array([[float(i), 1.0]])) for i in range(3)]
    assert fold.check({"op": lambda x: x * x}, {"a": nodes, "b": [3, 4]}) is None


DIFFERENT = {
    "a value that depends on the batch": lambda seam, x: x * seam.rows(x),
    "an integer that does": lambda seam, x: seam.constant(np.full(seam.rows(x), seam.rows(x)), None),
    "a structure that does": lambda seam, x: (x,) if seam.rows(x) > 1 else x,
}


def halves(fold, n):
    """Record a chain of calls for a number."""
    node = fold.add("op", float(n))
    return {"last": fold.add("op", node), "all": [node, 1.0]}


async def awaited(fold, n):
    """Record another call where a value is large."""
    node = fold.add("op", float(n))
    return fold.add("op", node) if await fold.value(node) > 2 else node


EXAMPLES = {
    "function": lambda: ([1, 2, 3], halves),
    "iterator": lambda: (iter([1, 2, 3]), halves),
    "async": lambda: ([1, 2, 3], awaited),
    "traces": lambda: (multifold.traces(halves, [1, 2, 3]),),
    "minibatch": lambda: (multifold.merge(multifold.traces(halves, [1, 2, 3])),),
}
"""What `Fold.check` takes behind the model, beside outputs."""


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
def test_check_takes_examples_and_traces_as_run_does(fold, seam, make):
    node = fold.add("op", 5.0)
    assert fold.check({"op": lambda x: x / 2 + 3}, *make()) is None
    with pytest.raises(MismatchError, match="the value of outputs"):
        fold.check({"op": lambda x: x * seam.rows(x)}, *make())
    assert len(fold) == 1 and fold.apply({"op": lambda x: x}, node).shape == (1,)


def test_check_finds_an_op_that_looks_along_rows_in_gradients(seam, backend):
    if "kit" in seam.gaps():
        return
    model = BinaryTreeLSTM(5, 3, 2).on(backend)
    fold = Fold(backend=backend)

    def record(fold, tree):
        return fold.add("logits", fold.add("leaf", tree).split(2)[0])

    fold.check(model, [1, 2], record)
    fold.check(model, multifold.traces(record, [1, 2]))


def test_a_node_of_the_eager_twin_prints_its_value(backend):
    unfold = Unfold({"op": lambda x: (x, x + 1)}, backend=backend)
    node = unfold.add("op", 1.0)
    assert str(node[1]).startswith("<node 0 of op[1]>: ") and "2." in str(node[1])
    assert repr(node) == "<node 0 of op>"


@pytest.mark.parametrize("op", DIFFERENT.values(), ids=DIFFERENT)
def test_check_names_the_output_that_differs(fold, seam, op):
    nodes = [fold.add("op", float(i + 1)) for i in range(3)]
    with pytest.raises(MismatchError, match=r"(?s)outputs\['a'\].*Hint: "):
        fold.check({"op": lambda x: op(seam, x)}, {"b": [1], "a": nodes})


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda node: node.split(3)[0], r"2 parts, where .split\(3\) expects 3"),
        (lambda node: node["k"], r"has no part \['k'\]"),
        (lambda node: node[5], r"has no part \[5\]"),
    ],
)
def test_a_program_says_which_part_a_result_lacks(read, said):
    fold = Fold(backend="numpy")
    nodes = [fold.add("same", read(fold.add("pair", float(i)))) for i in range(2)]
    with pytest.raises(LaunchError, match=f"The op 'pair'.*{said}"):
        fold.program([nodes], {"pair": lambda x: (x, x), "same": lambda x: x})


def test_a_fold_says_that_it_keeps_the_ops_of_its_programs():
    fold = Fold(backend="numpy")
    fold.program([[fold.add("first", 1.0)]])
    program = fold.program([[fold.add("second", 1.0)]])
    with pytest.raises(LaunchError, match=r"no op 'first'[^$]*another fold for another model"):
        multifold.program.run({"second": lambda x: x}, program)


@pytest.mark.parametrize("name", ["²", "7"])
def test_a_position_that_a_list_lacks_is_no_op(name):
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=f"no op '{name}'"):
        fold.apply([lambda x: x], fold.add(name, 1))


def test_private_names_are_no_suggestions():
    class Model:
        def _encode(self, x):
            return x

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="has no op 'encode'") as error:
        fold.apply(Model(), [fold.add("encode", 1.0)])
    assert error.value.hint == "op names are attributes, paths or keys."


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("encoder.sell", "encoder.cell"),
        ("encodr.cell", "encoder.cell"),
        ("encoder.layers.0.forwrad", "encoder.layers.0.forward"),
    ],
)
def test_a_name_inside_of_a_path_is_suggested(wrong, right):
    layer = SimpleNamespace(forward=abs)
    model = {"encoder": SimpleNamespace(cell=abs, layers=[layer])}
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError) as error:
        fold.apply(model, [fold.add(wrong, 1.0)])
    assert error.value.hint == f"did you mean '{right}'?"


# ---- values without an end, and arguments in the wrong order --------------------------------------


def list_of_itself():
    made = []
    made.append(made)
    return made


def dict_of_itself():
    made = {}
    made["me"] = made
    return made


def tuple_of_itself():
    made = ([],)
    made[0].append(made)
    return made


async def awaits(fold, outputs):
    return await fold.values(outputs)


async def returns(fold, outputs):
    return outputs


ASKS = {
    "apply": lambda fold, outputs: fold.apply({}, outputs),
    "schedule": lambda fold, outputs: fold.schedule(outputs),
    "explain": lambda fold, outputs: fold.explain(outputs),
    "check": lambda fold, outputs: fold.check({}, outputs),
    "program": lambda fold, outputs: fold.program(outputs),
    "unfold": lambda fold, outputs: Unfold()(outputs),
    "run": lambda fold, outputs: fold.run({}, [1], lambda fold, x: outputs),
    "trace": lambda fold, outputs: multifold.trace(lambda fold, x: outputs, 1),
    "values": lambda fold, outputs: fold.run({}, [outputs], awaits),
    "await": lambda fold, outputs: fold.run({}, [outputs], returns),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("make", [list_of_itself, dict_of_itself, tuple_of_itself])
def test_outputs_that_contain_themselves_are_refused(make, ask, fold):
    with pytest.raises(RecordError, match=r"contains itself\..*\n\nHint:"):
        ask(fold, make())


@pytest.mark.parametrize("key", [slice(None, None, 0), slice("a", "b"), slice(0.5), slice([1])], ids=str)
def test_a_slice_that_no_result_has_is_refused_when_it_is_recorded(key, fold):
    with pytest.raises(RecordError, match=r"node\[.*:.*\]\.\n\nHint: node\[a:b\]"):
        fold.add("f", 1)[key]


def test_slices_of_numpy_integers_are_those_of_python():
    node = Fold().add("f", 1)
    assert node[np.int64(1) : np.int32(2)] == node[1:2] != node[1:2:1]


SWAPS = {
    "apply": lambda fold, nodes, empty: fold.apply(nodes, empty),
    "check": lambda fold, nodes, empty: fold.check(nodes, empty),
    "program": lambda fold, nodes, empty: fold.program(empty, nodes),
    "unfold": lambda fold, nodes, empty: Unfold().apply(nodes, empty),
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
@pytest.mark.parametrize("nest", [lambda x: x, lambda x: [x], lambda x: {"a": [x]}, lambda x: (x, x)])
@pytest.mark.parametrize("empty", [{}, [], ()], ids=str)
def test_a_model_in_the_place_of_the_outputs_is_refused(empty, nest, swap, fold):
    with pytest.raises(RecordError, match=r"model .*\. Received"):
        swap(fold, nest(fold.add(abs, 1)), empty)


def test_an_empty_model_and_outputs_without_nodes_are_allowed(fold):
    assert (fold.apply({}, {}), fold.apply(None, [])) == ({}, [])
    assert fold.apply({}, {"a": ()}) == {"a": ()}


def test_rows_of_two_widths_in_one_group_are_refused_as_a_group():
    fold = Fold(backend="numpy")
    rows = [fold.add(lambda x: x, np.ones((1, width))) for width in (2, 3)]
    with pytest.raises(LaunchError, match="Expected the rows of a group to agree in structure") as error:
        fold.apply(None, [rows])
    assert error.value.hint == "ask for them as two groups."


# ---- what is no op -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Counter({"f": 1}), "update"),
        (OrderedDict(f=1), "pop"),
        (UserDict(f=1), "get"),
        (ChainMap({"f": 1}), "items"),
        ({"f": 1}, "copy"),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_what_every_mapping_has_is_no_op_of_a_model(model, name):
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=f"has no op '{name}'"):
        fold.apply(model, fold.add(name, 1.0))


def test_a_mapping_of_a_users_own_may_define_an_op_of_such_a_name():
    class Ops(dict):
        def update(self, x):
            return x + 1

    fold = Fold(backend="numpy")
    assert fold.apply(Ops(), fold.add("update", 1.0)).tolist() == [2.0]


def test_a_name_with_a_dot_may_be_a_key_or_a_path():
    fold = Fold(backend="numpy")
    model = {"a.b": lambda x: x + 1, "c": SimpleNamespace(d=lambda x: x + 2)}
    assert fold.apply(model, [fold.add("a.b", 1.0), fold.add("c.d", 1.0)]).tolist() == [2.0, 3.0]
    with pytest.raises(LaunchError, match=r"c\.e"):
        fold.apply(model, fold.add("c.e", 1.0))


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


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, np.uint64(2**63)])
def test_numbers_of_more_than_64_bits_are_refused(fold, number):
    for record in (
        lambda: fold.add("f", number),
        lambda: fold.add("f", [number]),
        lambda: fold([[number]]),
    ):
        with pytest.raises(RecordError, match=f"at most 64 bits. Received {number}"):
            record()
    assert len(fold) == 0


def test_a_line_is_found_in_code_that_belongs_to_no_module(fold):
    namespace = {"fold": fold, "cell": multifold.Cell(lambda x, s: (x + s, (x + s,)), lambda: (0.0,), 1)}
    exec(compile("\nfold.unroll(cell, 1, [1.0])", "typed in", "exec"), namespace)  # without __name__
    assert fold._graph.line(0) == ("typed in", 2)


# ---- the pieces of a message -------------------------------------------------------------------------


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


@pytest.mark.parametrize("path", ["nothing.__init__", "nothing.__call__", "part.nothing.__str__"])
def test_a_path_that_ends_early_leads_to_no_op(path):
    fold = Fold(backend="numpy")
    model = SimpleNamespace(part=SimpleNamespace())
    with pytest.raises(LaunchError, match="has no op"):
        fold.apply(model, [[fold.add(path, 1.0)]])


def test_calls_are_recorded_from_code_of_no_module():
    fold = Fold(backend="numpy")
    exec("node = fold.add('f', 1.0, {'a': 2})", names := {"fold": fold})
    assert repr(names["node"]) == "<node 0 of f>"


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


@pytest.mark.parametrize(("x", "fits"), [(-(2**63), True), (2**63 - 1, True), (-(2**63) - 1, False)])
def test_an_int_operand_has_64_bits(x, fits):
    fold = Fold(backend="numpy")
    for one in (x, [x]):
        if fits:
            fold.add("f", one)
        else:
            with pytest.raises(RecordError):
                fold.add("f", one)


def test_a_nested_none_is_listed_among_the_operands():
    def fails(x):
        raise ValueError

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"0\[0\] float \(1,\) float64; 0\[1\] static None"):
        fold.apply({"f": fails}, [[fold.add("f", [1.0, None])]])


def test_a_shared_node_is_no_row_of_a_ragged_operand():
    fold = Fold(backend="numpy")
    with pytest.raises(RecordError, match=r"one row in ragged\(...\). Received <node 0 of f.no_batch"):
        fold.add("g", multifold.ragged([fold.add("f", 1.0).no_batch()]))


def test_an_error_is_said_without_the_stop_at_its_end():
    said = [messages.error_text(ValueError(text)) for text in ("it failed.", "it failed: ", "")]
    assert said == ["ValueError: it failed", "ValueError: it failed", "ValueError"]


def test_a_hint_names_the_dtype_of_a_model_that_holds_one_floating_dtype():
    array = np.zeros((1, 2))
    half = np.zeros(2, np.float16)
    op = {"f": lambda x, i: (_ for _ in ()).throw(TypeError(f"type {half.dtype} and {x.dtype}"))}
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError) as error:
        fold.apply(op, fold.add("f", array, 1))
    assert "the model is in float16, and operand 0 in float64. Pass arrays of float16" in error.value.hint


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
