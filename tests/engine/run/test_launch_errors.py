"""Launches that fail: what the error says, where it points, and that the fold stays usable."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from error_texts import PARTS, here, launch_error

import multifold
from multifold import Fold, LaunchError, RecordError, ragged, shared, static

HELD = [object()]
FREE = sys.getrefcount(HELD[0])
"""What `sys.getrefcount(results[i])` is where only the list ``results`` holds it."""


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


def test_a_nested_none_is_listed_among_the_operands():
    def fails(x):
        raise ValueError

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"0\[0\] float \(1,\) float64; 0\[1\] static None"):
        fold.apply({"f": fails}, [[fold.add("f", [1.0, None])]])


def test_a_hint_names_the_dtype_of_a_model_that_holds_one_floating_dtype():
    array = np.zeros((1, 2))
    half = np.zeros(2, np.float16)
    op = {"f": lambda x, i: (_ for _ in ()).throw(TypeError(f"type {half.dtype} and {x.dtype}"))}
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError) as error:
        fold.apply(op, fold.add("f", array, 1))
    assert "the model is in float16, and operand 0 in float64. Pass arrays of float16" in error.value.hint
