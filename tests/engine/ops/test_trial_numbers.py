"""Numbers beside rows: an op that lets them meet columns in the place of rows is refused in its trial."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from trials import column, scaled

import multifold
from multifold import Fold, Unfold, ragged

NUMBERS = {"int": [1, 2, 3], "float": [0.5, 2.0, 3.0], "bool": [True, False, True]}
SHAPES = {
    "width 3": (3, 3),
    "width 1": (5, 1),
    "two rows": (2, 2),
    "two rows of 1": (2, 1),
    "rank 3": (3, 2, 3),
}


@pytest.fixture
def cast(backend):
    """Return a function that gives an array the dtype of another one."""
    if backend == "torch":
        return lambda x, like: x.to(like.dtype)
    if backend == "tensorflow":
        return lambda x, like: importlib.import_module("tensorflow").cast(x, like.dtype)
    return lambda x, like: x.astype(like.dtype)


def total_of(x):
    """Return the sum of each row of a matrix."""
    if hasattr(x, "sum"):
        return x.sum(1)
    return importlib.import_module("tensorflow").reduce_sum(x, 1)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("width", [3, 1])
def test_a_number_that_scales_columns_is_refused(fold, rows, cast, refused, kind, width):
    outputs = scaled(fold, lambda x, s: x * cast(s, x), rows(3, width), NUMBERS[kind])
    refused(lambda: fold(outputs), "lambda", "trials.py:", f"(3, {width})", f"1 {kind} (3,)")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_broadcasting_along_the_last_axis_is_refused_whatever_the_rows(fold, rows, refused, shape):
    n, *width = shape
    outputs = scaled(fold, lambda x, s: x * s, rows(n, *width), [*map(float, range(n))])
    refused(lambda: fold(outputs))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_column_passes_and_equals_one_row_at_a_time(backend, fold, rows, to_numpy, shape):
    n, *width = shape

    def op(x, s):
        return x * column(s, len(shape))

    xs = rows(n, *width)
    numbers = [*map(float, range(n))]
    (got,) = to_numpy(fold(scaled(fold, op, xs, numbers)))
    unfold = Unfold(backend=backend)
    (expected,) = to_numpy(unfold(scaled(unfold, op, xs, numbers)))
    np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize("width", [3, 1])
def test_a_node_of_scalar_rows_is_a_number_too(fold, rows, refused, width):
    numbers = [fold.add("number", float(i)) for i in range(3)]
    outputs = scaled(fold, "scale", rows(3, width), numbers)
    refused(lambda: fold.apply({"number": lambda s: s + 1, "scale": lambda x, s: x * s}, outputs))


def test_results_of_a_launch_are_verified_in_tuples_and_dictionaries(fold, rows, refused):
    outputs = scaled(fold, lambda x, s: {"x": x, "both": (x, x * s)}, rows(3, 3), [1.0, 2.0, 3.0])
    refused(lambda: fold({"x": [node["both"][1] for node in outputs[0]]}))


def test_one_operand_may_hold_both_a_number_and_a_row(fold, rows, refused):
    pairs = [fold.add("pair", x, float(i)) for i, x in enumerate(rows(4, 1))]
    outputs = [[fold.add("scale", pair) for pair in pairs]]
    model = {"pair": lambda x, s: (x, s), "scale": lambda pair: pair[0] * pair[1]}
    refused(lambda: fold.apply(model, outputs), "scale")


def test_rows_that_were_mixed_and_added_up_show_by_their_values(fold, rows, refused):
    """A loss of predictions ``(n, 1)`` and labels ``(n,)`` is a matrix, and its sum has the right shape."""
    outputs = scaled(fold, lambda x, y: total_of((x - y) ** 2), rows(3, 1), [1.0, 2.0, 4.0])
    refused(lambda: fold(outputs))


def test_equal_rows_beside_numbers_that_differ_tell_enough(backend, array, counted):
    op = counted(lambda x, s: x * column(s))
    fold = Fold(backend=backend)
    for _ in range(2):
        fold(scaled(fold, op, [array([[1.0, 1.0, 1.0]])] * 16, [*map(float, range(16))]))
    assert op.rows == [16] * 8  # the second launch needs no trial


def test_not_a_number_in_one_row_hides_no_other(fold, rows, refused):
    outputs = scaled(fold, lambda x, s: total_of(x * s), rows(3, 1), [1.0, float("nan"), 2.0])
    refused(lambda: fold(outputs))


def test_not_a_number_equals_itself(fold, rows, to_numpy):
    outputs = scaled(fold, lambda x, s: x * column(s), rows(3, 3), [1.0, float("nan"), 2.0])
    assert np.isnan(to_numpy(fold(outputs))[0]).tolist() == [[False] * 3, [True] * 3, [False] * 3]


def test_lengths_of_ragged_operands_are_numbers_too(fold, rows, total, cast, refused):
    outputs = [[fold.add("mean", ragged(rows(k, 1))) for k in (1, 2, 3)]]
    model = {"mean": lambda r: total(r) / cast(r.lengths, r.values)}
    refused(lambda: fold.apply(model, outputs), "mean")


def test_a_ragged_operand_passes_with_a_column(fold, rows, total, to_numpy):
    xs = [rows(k, 1) for k in (1, 3, 2)]
    outputs = [[fold.add("scale", ragged(own), s) for own, s in zip(xs, (1.0, 2.0, 3.0), strict=True)]]
    (got,) = fold.apply({"scale": lambda r, s: total(r) * column(s)}, outputs)
    expected = [[s * np.sum(to_numpy(own))] for own, s in zip(xs, (1.0, 2.0, 3.0), strict=True)]
    np.testing.assert_allclose(to_numpy(got), expected, rtol=1e-5)


def test_a_ragged_operand_of_containers_passes(fold, total, equal):
    model = {
        "pair": lambda x: {"a": x, "b": x},
        "sum": lambda rows: total(rows._replace(values=rows.values["a"])),
    }
    pairs = [fold.add("pair", float(i)) for i in range(3)]
    equal(fold.apply(model, [fold.add("sum", ragged(pairs[i:])) for i in range(2)]), [3, 3])


def test_shapes_that_do_not_meet_have_the_same_hint(fold, rows, refused):
    outputs = scaled(fold, lambda x, s: x * s, rows(4, 3), [1.0, 2.0, 3.0, 4.0])
    refused(lambda: fold(outputs), "raised")


def test_a_large_row_does_not_hide_a_small_one(fold, array, refused):
    xs = [array([[1e6]]), array([[1.0]]), array([[2.0]])]
    outputs = scaled(fold, lambda x, s: x + column(s - s[:1]), xs, [1.0, 2.0, 4.0])
    refused(lambda: fold(outputs))


def test_a_later_launch_of_as_many_rows_as_columns_is_verified(refused):
    """Two rows of width 3 tell nothing of three rows of width 3, in one run."""

    def op(x, s):
        return x * s if len(x) == 3 else x * s[:, None]

    fold = Fold(backend="numpy")
    leaves = [fold.add("leaf", np.full((1, 3), float(i))) for i in (1, 2)]
    first = [fold.add("op", leaf, 0.5) for leaf in leaves]
    second = [fold.add("op", node, s) for node, s in zip((*first, first[0]), (1.0, 2.0, 3.0), strict=True)]
    refused(lambda: fold.apply({"leaf": abs, "op": op}, [second]), "mixes its rows")


def test_zeros_beside_rows_of_width_one_tell_nothing_of_the_next_launch(refused):
    def op(x, s):
        return (x * s).sum(axis=1, keepdims=True)

    fold = Fold(backend="numpy")
    leaves = [fold.add("leaf", np.full((1, 1), float(i))) for i in (1, 2, 3)]
    first = [fold.add("op", leaf, 0.0) for leaf in leaves]
    second = [
        fold.add("op", fold.add("next", node), s) for node, s in zip(first, (1.0, 2.0, 3.0), strict=True)
    ]
    model = {"leaf": abs, "op": op, "next": lambda x: x + 1}
    refused(lambda: fold.apply(model, [second]), "mixes its rows")


def test_rows_of_another_width_are_verified_by_themselves(refused):
    """Both widths come out of one op, so only the run shows which calls of the second op read which."""

    def op(x, s):
        return x * s if x.shape == (3, 3) else x * s[:, None]

    fold = Fold(backend="numpy")
    wide_nodes = [fold.add("wide", multifold.static(k)) for k in (5, 3)]
    model = {"wide": lambda k: np.arange(k, dtype=float)[None] + 1, "op": op}
    five = [fold.add("op", wide_nodes[0], s) for s in (1.0, 2.0)]
    three = [fold.add("op", wide_nodes[1], s) for s in (1.0, 2.0, 3.0)]
    refused(lambda: fold.apply(model, {"five": [five], "three": [three]}), "mixes its rows")


def test_a_width_that_the_op_makes_itself_counts(refused):
    weight = np.arange(15.0).reshape(5, 3)
    fold = Fold(backend="numpy")
    calls = [fold.add("op", np.full((1, 5), float(i + 1)), s) for i, s in enumerate((1.0, 2.0, 3.0))]
    refused(lambda: fold.apply({"op": lambda x, s: x @ weight * s}, [calls]), "mixes its rows")


def test_one_of_two_results_may_be_mixed(refused):
    def op(x, s):
        return x * s[:, None], (x * s).sum(axis=1, keepdims=True)

    fold = Fold(backend="numpy")
    nodes = [fold.add("op", np.full((1, 1), float(i)), float(i)) for i in (1, 2, 3)]
    refused(lambda: fold.apply({"op": op}, [nodes]), "mixes its rows")


def test_an_op_that_draws_numbers_is_refused_where_fewer_rows_fail(refused):
    draw = np.random.default_rng(0)
    fold = Fold(backend="numpy")
    nodes = [fold.add("op", np.full((1, 3), float(i)), float(i)) for i in (1, 2, 3)]
    refused(lambda: fold.apply({"op": lambda x, s: x * s + draw.random()}, [nodes]), "mixes its rows")
