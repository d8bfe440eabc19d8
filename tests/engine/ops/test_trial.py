"""Trials: the first launch of an op shows whether it keeps the rows of nodes apart."""

from __future__ import annotations

import collections
import functools
import gc
import importlib
import itertools
import random
import re
import threading
import types
import warnings
import weakref

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, Unfold, ragged
from multifold._engine.ops.closeness import close, differences, is_inexact, magnitude, tolerance_of
from multifold._engine.ops.reach import FEW, makers
from multifold._engine.ops.state import MOST as LONGEST
from multifold._engine.ops.state import KeptState
from multifold._engine.ops.trial import ENOUGH, Trial, is_memory, nonzero
from multifold._engine.ops.values import Values
from multifold._engine.ops.verdicts import MOST, VERDICTS, Verdicts, key_of
from multifold._engine.run.launcher import Launcher
from multifold._numpy.backend import NumpyBackend
from multifold.explain.text import untried
from multifold.program import checks, run

NUMBERS = {"int": [1, 2, 3], "float": [0.5, 2.0, 3.0], "bool": [True, False, True]}
SHAPES = {
    "width 3": (3, 3),
    "width 1": (5, 1),
    "two rows": (2, 2),
    "two rows of 1": (2, 1),
    "rank 3": (3, 2, 3),
}


COUNT = itertools.count()
"""Numbers that nothing can set back."""


@pytest.fixture(autouse=True)
def nothing_known():
    """Forget what other tests have found: an op is known again by its code."""
    VERDICTS.known.clear()


@pytest.fixture
def rows(array):
    """Return a function that makes ``n`` different rows of a shape, each as an array of one row."""

    def rows(n, *shape):
        values = np.random.default_rng(0).uniform(0.5, 1.5, (n, 1, *shape))
        return [array(value) for value in values]

    return rows


@pytest.fixture
def counted():
    """Return a function that makes an op of a function: it notes the rows of each call in ``op.rows``."""

    def counted(fn):
        def op(*operands):
            op.rows.append(len(operands[0]))
            return fn(*operands)

        op.rows = []
        return op

    return counted


@pytest.fixture
def cast(backend):
    """Return a function that gives an array the dtype of another one."""
    if backend == "torch":
        return lambda x, like: x.to(like.dtype)
    if backend == "tensorflow":
        return lambda x, like: importlib.import_module("tensorflow").cast(x, like.dtype)
    return lambda x, like: x.astype(like.dtype)


@pytest.fixture
def refused():
    """Return a function that expects a launch to be refused for its numbers."""

    def refused(call, *words):
        with pytest.raises(LaunchError) as caught:
            call()
        for word in ("s[:, None]", *words):
            assert word in str(caught.value)
        assert "Unfold" not in str(caught.value)

    return refused


class Seen(list):
    """What an op has met; a trial would leave a plain list as it was."""


def column(s, rank=2):
    """Return numbers as a column: what each framework spells ``s[:, None]``."""
    for axis in range(1, rank):
        s = s.expand_dims(axis) if hasattr(s, "expand_dims") else s[(slice(None),) * axis + (None,)]
    return s


def scaled(fold, op, rows, numbers):
    """Return one group: ``op`` of each row and number."""
    return [[fold.add(op, x, s) for x, s in zip(rows, numbers, strict=True)]]


def total_of(x):
    """Return the sum of each row of a matrix."""
    if hasattr(x, "sum"):
        return x.sum(1)
    return importlib.import_module("tensorflow").reduce_sum(x, 1)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("width", [3, 1])
def test_a_number_that_scales_columns_is_refused(fold, rows, cast, refused, kind, width):
    outputs = scaled(fold, lambda x, s: x * cast(s, x), rows(3, width), NUMBERS[kind])
    refused(lambda: fold(outputs), "lambda", "test_trial.py:", f"(3, {width})", f"1 {kind} (3,)")


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


# ---- what it costs -------------------------------------------------------------------------------


def test_a_verdict_is_remembered_beyond_the_fold(backend, rows, counted):
    op = counted(lambda x, s: x * column(s))
    for calls in (7, 8, 9):
        fold = Fold(backend=backend)
        fold(scaled(fold, op, rows(16, 3), [*map(float, range(16))]))
        assert op.rows == [16] * calls


def test_other_shapes_and_other_models_are_verified_by_themselves(backend, rows, counted, refused):
    class Model:
        def __init__(self, right):
            self.right = right

        def scale(self, x, s, power=1):
            return x * (column(s) if self.right else s) ** power

    for model, wrong in ((Model(True), False), (Model(False), True)):
        fold = Fold(backend=backend)
        outputs = scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0])
        refused(lambda: fold.apply(model, outputs)) if wrong else fold.apply(model, outputs)  # noqa: B023


def test_a_static_value_is_part_of_the_verdict(backend, rows, refused):
    def scale(x, s, axis):
        return x * column(s) if axis == -1 else x * s

    fold = Fold(backend=backend)
    xs = rows(3, 3)
    numbers = [1.0, 2.0, 3.0]
    fold([[fold.add(scale, x, s, axis=-1) for x, s in zip(xs, numbers, strict=True)]])
    outputs = [[fold.add(scale, x, s, axis=-2) for x, s in zip(xs, numbers, strict=True)]]
    refused(lambda: fold(outputs))


def test_numbers_in_ragged_rows_that_meet_as_many_columns_are_verified(backend, rows, refused):
    fold = Fold(backend=backend)
    numbers = [ragged([1.0, 2.0, 3.0]), ragged([4.0, 5.0, 6.0, 7.0])]
    refused(lambda: fold(scaled(fold, lambda x, r: x * r.values, rows(2, 7), numbers)))


def test_no_count_changes(counting, rows):
    fold = Fold(backend=counting)
    fold(scaled(fold, lambda x, s: x * column(s), rows(3, 3), [1.0, 2.0, 3.0]))
    assert (counting.counts["call"], counting.counts["gather"], counting.counts["to_numpy"]) == (1, 0, 0)
    assert len(fold.explain().launches) == 1


def test_a_verdict_keeps_no_model_alive(backend, rows):
    class Model:
        def scale(self, x, s):
            return x * column(s)

    gc.collect()  # ops of other tests
    fold = Fold(backend=backend)
    model = Model()
    before = len(VERDICTS)
    fold.apply(model, scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0]))
    assert len(VERDICTS) == before + 1
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(VERDICTS) == before


def test_gradients_are_those_of_one_row_at_a_time(backend, rows, gradients):
    def loss(parameters, make):
        fold = make(parameters)
        model = None if isinstance(fold, Unfold) else ops_of(parameters)
        return fold.apply(model, scaled(fold, "scale", rows(3, 3), [1.0, 2.0, 3.0]))

    def ops_of(parameters):
        return {"scale": lambda x, s: x * parameters["w"] * column(s)}

    got = gradients(lambda w: loss(w, lambda _: Fold(backend=backend)), {"w": [2.0]})
    expected = gradients(lambda w: loss(w, lambda w: Unfold(ops_of(w), backend=backend)), {"w": [2.0]})
    np.testing.assert_allclose(got["w"], expected["w"], rtol=1e-4)


def test_threads_agree(backend, rows):
    xs = rows(3, 3)
    found = []

    def op(x, s):
        return x * column(s)

    def work():
        for _ in range(5):
            fold = Fold(backend=backend)
            found.append(fold(scaled(fold, op, xs, [1.0, 2.0, 3.0]))[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20


# ---- ops that answer differently each time ---------------------------------------------------------


@pytest.mark.parametrize("source", [np.random, random], ids=["NumPy", "Python"])
def test_an_op_that_draws_numbers_passes_and_moves_no_other_draw(backend, rows, counted, source):
    op = counted(lambda x, s: x * column(s) * float(source.random()))
    drawn = []
    for _ in range(2):
        fold = Fold(backend=backend)
        source.seed(0)
        fold(scaled(fold, op, rows(3, 3), [1.0, 2.0, 3.0]))
        drawn.append(source.random())
    assert drawn[0] == drawn[1]
    assert op.rows == [3] * 18  # a launch and eight runs, twice: random numbers may hide what is looked for


def test_an_op_that_draws_numbers_is_compared_by_shapes(fold, rows, refused):
    outputs = scaled(fold, lambda x, s: x * s * float(np.random.random()), rows(4, 1), [1.0, 2.0, 3.0, 4.0])
    refused(lambda: fold(outputs))


# ---- traces, rounds, programs ----------------------------------------------------------------------


def example(recorder, pair):
    """Record one row and its number."""
    return recorder.add("scale", *pair)


def test_traces_are_verified(fold, refused):
    xs = np.random.default_rng(0).random((3, 1, 3)).astype("float32")
    traces = [multifold.trace(example, (x, float(i))) for i, x in enumerate(xs)]
    refused(lambda: fold.run({"scale": lambda x, s: x * s}, traces))
    assert tuple(fold.run({"scale": lambda x, s: x * column(s)}, traces).shape) == (3, 3)


@pytest.mark.parametrize("width", [3, 1])
def test_rounds_of_awaited_values_are_verified(fold, refused, width):
    async def fn(fold, pair):
        node = fold.add("scale", *pair)
        await fold.value(node)
        return node

    xs = np.random.default_rng(0).random((4, 1, width)).astype("float32")
    examples = [(x, float(i)) for i, x in enumerate(xs)]
    refused(lambda: fold.run({"scale": lambda x, s: x * s}, examples, fn))
    assert tuple(fold.run({"scale": lambda x, s: x * column(s)}, examples, fn).shape) == (4, width)


@pytest.mark.parametrize("width", [3, 1, 5])
def test_programs_are_verified_while_they_are_laid_out(fold, rows, refused, width):
    outputs = scaled(fold, "scale", rows(4, width), [1.0, 2.0, 3.0, 4.0])
    refused(lambda: fold.program(outputs, {"scale": lambda x, s: x * s}), "test_trial.py:")
    fold.program(outputs, {"scale": lambda x, s: x * column(s)})


def test_a_keyword_reaches_an_op_that_is_verified_for_a_program():
    fold = Fold(backend="numpy")
    model = {"scale": lambda x, s, *, by: x * s[:, None] * by}
    program = fold.program([[fold.add("scale", np.ones((1, 3)), s, by=2) for s in (1.0, 2.0)]], model)
    assert [x.tolist() for x in run(model, program)] == [[[2.0] * 3, [4.0] * 3]]


@pytest.mark.parametrize("op", [lambda x, s: x * s, lambda x, s: (x * s).sum(1)], ids=["wide", "summed"])
def test_the_interpreter_of_programs_verifies(op, refused):
    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).random((4, 1, 1))
    program = fold.program(scaled(fold, "scale", xs, [1.0, 2.0, 3.0, 4.0]))
    refused(lambda: run({"scale": op}, program))
    assert run({"scale": lambda x, s: x * s[:, None]}, program)[0].shape == (4, 1)


def test_the_interpreter_verifies_an_op_that_divides_by_the_lengths_of_ragged_rows(rows, refused):
    model = {"mean": lambda r: np.add.reduceat(r.values, np.cumsum(r.lengths) - r.lengths) / r.lengths}
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("mean", ragged(list(np.ones((k, 1, 1))))) for k in (1, 2, 3)]])
    refused(lambda: run(model, program), "mean")


def test_the_interpreter_tries_an_op_with_its_keywords_and_its_own_static_values():
    seen = Seen()

    def scale(x, s, sizes, *, by):
        seen.append(s.tolist())
        return x * s[:, None] * by * sizes.pop()

    fold = Fold(backend="numpy")
    outputs = [
        [fold.add("scale", np.ones((1, 1)), s, multifold.static([3]), by=2) for s in (1.0, 2.0, 4.0)]
    ]
    assert run({"scale": scale}, fold.program(outputs))[0].tolist() == [[6.0], [12.0], [24.0]]
    assert seen[:3] == [[1.0, 2.0, 4.0], [1.0, 1.0, 4.0], [2.0, 2.0, 2.0]]
    assert seen[3:] == [[s] * 3 for s in (1.0, 2.0, 2.0, 4.0)]


def test_the_interpreter_tries_each_launch_of_a_loop_with_its_own_lengths():
    seen = Seen()

    def mean(rows):
        seen.append(rows.lengths.tolist())
        return np.add.reduceat(rows.values, np.cumsum(rows.lengths) - rows.lengths) / rows.lengths[:, None]

    fold = Fold(backend="numpy")
    x = np.ones((1, 1))
    first = fold.add("mean", ragged([x] * 5))
    outputs = [[fold.add("mean", ragged([first] + [x] * n)) for n in range(3)]]
    assert run({"mean": mean}, fold.program(outputs))[0].tolist() == [[1.0]] * 3
    assert seen == [[5], *[[1, 2, 3]] * 7, [3, 2, 1]]


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


def test_a_verdict_is_one_of_static_values_and_not_of_shared_ones():
    fold = Fold(backend="numpy")
    for word, weight in [("a", 1.0), ("b", 1.0), ("a", 2.0)]:
        fold.add("op", np.ones((1, 2)), multifold.static(word), multifold.shared(np.full(2, weight)))
    one, other, again = map(key_of, fold._graph.signatures)
    assert one == again and one != other


def test_infinities_and_nan_are_no_difference_to_themselves_and_no_warning():
    values = np.array([np.inf, -np.inf, np.nan, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert differences(values, values).tolist() == [0, 0, 0, 0]
        assert differences(values, values[::-1].copy()).tolist() == [np.inf] * 4


def test_arrays_of_other_shapes_or_other_integers_are_not_close():
    one = np.float32([[1, 2], [3, 4]])
    assert close(one, one * np.float32(1 + 1e-6), 1e-4) and not close(one, one + 1, 1e-4)
    assert not close(one, one[:1], 1e-4) and not close(one[:1], one, 1e-4)
    assert close(np.array([1, 2]), np.array([1, 2]), 0.5) and not close(
        np.array([1, 2]), np.array([1, 3]), 0.5
    )
    assert close(one[:0], one[:0], 1e-4)


def test_the_magnitude_of_an_array_is_that_of_its_finite_floats():
    assert magnitude(np.array([1.0, -3.0, np.inf, np.nan])) == 3.0
    assert magnitude(np.array([5, 6])) == magnitude(np.zeros(0)) == magnitude(np.array([np.nan])) == 0.0


def test_the_dtype_of_the_backend_says_how_close_and_not_that_of_its_copy():
    host = np.ones(2, np.float32)
    assert tolerance_of(np.ones(2, np.float16), host) == 3e-2  # as bfloat16, read as float32
    assert tolerance_of(object(), host) == tolerance_of(host, host) == 1e-4
    assert tolerance_of(host, np.ones(2, np.complex64)) == 3e-2
    assert tolerance_of(np.ones(2), np.ones(2)) == 1e-9 and tolerance_of(host, np.array([1])) == 0.0


def test_a_partial_function_consists_of_its_function_and_all_its_arguments():
    class Layer:
        def run(self):
            pass

    layer = Layer()
    inner = functools.partial(max, 1)
    op = functools.partial(layer.run, inner, by=functools.partial(min, 2))
    assert list(makers(op)) == [Layer.run, layer, max, 1, "by", min, 2]


def test_many_verdicts_of_one_op_are_forgotten_together():
    verdicts = Verdicts()

    def op():
        pass

    for key in range(MOST):
        verdicts.add(op, key)
    assert verdicts.has(op, 0) and verdicts.has(op, MOST - 1)
    verdicts.add(op, MOST)
    assert verdicts.has(op, MOST) and not verdicts.has(op, 0)


@pytest.mark.parametrize("bound", ["keyword", "variable", "partial"])
def test_a_float_that_is_another_one_in_each_step_is_tried_once(bound):
    def op(x, by=1.0):
        runs.append(by)
        return x * by

    runs = Seen()
    for by in (1.0, 1.5, 2.0):
        fold = Fold(backend="numpy")
        partial = functools.partial(op, by=by)
        made = {"keyword": op, "variable": lambda x, by=by: op(x, by), "partial": partial}[bound]
        static = {"by": by} if bound == "keyword" else {}
        fold.apply(None, [[fold.add(made, x, **static) for x in normal(16)]])
    assert runs == [1.0] * 7 + [1.5, 2.0]


def test_an_op_is_believed_after_as_many_trials_as_are_asked_for():
    verdicts = Verdicts()
    for _ in range(2):
        verdicts.add(len, "a", 2)
    verdicts.add(len, "b")
    assert [verdicts.has(len, "a", enough) for enough in (4, 5)] == [True, False]
    assert [verdicts.has(len, "b", enough) for enough in (1, 2)] == [True, False]


def test_an_op_that_no_weak_reference_knows_has_no_verdict():
    op = functools.partial(lambda x: x, object())
    verdicts = Verdicts()
    verdicts.add(op, "a")
    assert not verdicts.has(op, "a") and len(verdicts) == 0


def test_to_ask_for_a_verdict_makes_none():
    verdicts = Verdicts()
    assert not verdicts.has(len, "a") and len(verdicts) == 0


def test_floats_and_complex_numbers_are_inexact_and_integers_are_exact():
    assert [is_inexact(np.dtype(x)) for x in ("f4", "c8", "i4", "u1", "?")] == [True, True] + [False] * 3


@pytest.mark.parametrize(
    ("operand", "op", "says_column"),
    [
        (2.0, lambda x, y: x + y, True),
        (2, lambda x, y: x + y, True),
        (True, lambda x, y: x + y, True),
        (np.ones((1, 2)), lambda x, y: x + y, False),
        (2.0, lambda x, y: int("no number"), False),
    ],
    ids=["a float", "an int", "a bool", "two widths", "another error"],
)
def test_a_program_speaks_of_columns_only_where_an_op_reads_numbers(operand, op, says_column):
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("add", np.ones((1, 3)), operand) for _ in range(4)]])
    with pytest.raises(LaunchError, match="raised ValueError") as error:
        run({"add": op}, program)
    assert ("s[:, None]" in str(error.value)) is says_column


# ---- all ops, beside numbers or not ------------------------------------------------------------------


def one_group(fold, op, xs):
    """Return one group: an op of each row."""
    return [[fold.add(op, x) for x in xs]]


def mean_of(x):
    """Return the mean of each column, of shape ``(1, k)``."""
    if hasattr(x, "mean"):
        return x.mean(0)[None]
    return importlib.import_module("tensorflow").reduce_mean(x, 0)[None]


MIXING_OPS = {
    "mean": lambda x: x - mean_of(x),
    "first": lambda x: x + x[:1],
    "one row before": lambda x: x + x[[0, *range(len(x) - 1)]],
    "place": lambda x: x * np.arange(1.0, len(x) + 1)[:, None],
    "scale": lambda x: x / abs(x).max(),
    "sorted": lambda x: np.sort(x, 0),
}


@pytest.mark.parametrize("rows", [2, 3, 8])
@pytest.mark.parametrize("name", MIXING_OPS)
def test_an_op_that_mixes_rows_is_refused(name, rows):
    xs = np.random.default_rng(0).normal(size=(rows, 1, 3))
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, MIXING_OPS[name], xs))


@pytest.mark.parametrize("name", ["first", "one row before", "mean", "mirrored"])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_an_op_that_mixes_rows_and_draws_is_refused(name, count):
    def op(x):
        found = x[::-1] if name == "mirrored" else MIXING_OPS[name](x)
        return found * (0.5 + np.random.random(x.shape))

    xs = np.random.default_rng(0).normal(size=(count, 1, 3))
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, op, xs))


def test_an_op_whose_draws_follow_its_values_passes():
    def op(x):
        return x + np.random.poisson(np.abs(x) * 20)

    xs = np.random.default_rng(0).normal(size=(8, 1, 3))
    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fold.apply(None, one_group(fold, op, xs))[0].shape == (8, 3)


def test_an_op_that_subtracts_the_mean_of_all_rows_is_refused(backend, rows):
    fold = Fold(backend=backend)
    with pytest.raises(LaunchError, match="when row 1 was replaced, row 0 and one other changed"):
        fold.apply(None, one_group(fold, lambda x: x - mean_of(x), rows(3, 4)))


def test_an_op_that_keeps_rows_apart_runs_seven_times_at_first_and_then_once(backend, rows, counted):
    op = counted(lambda x: x * 2.0)
    for _ in range(3):
        fold = Fold(backend=backend)
        fold.apply(None, one_group(fold, op, rows(16, 4)))
    assert op.rows == [16] * 9


def test_an_op_is_tried_until_it_has_had_sixteen_rows(backend, rows, counted):
    op = counted(lambda x: x * 2.0)
    for _ in range(6):
        fold = Fold(backend=backend)
        fold.apply(None, one_group(fold, op, rows(4, 3)))
    assert op.rows == [4] * (4 * 7 + 2)


def test_an_op_that_mixes_few_rows_is_refused_where_it_shows():
    def op(x):
        return np.where(x > 0, x - x[:1], x)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, -abs(normal(4))))
    refuse_in(fold, None, one_group(fold, op, abs(normal(4))))


def test_a_single_row_waits_for_company(counted):
    op = counted(lambda x: x - x.mean(0))
    for count in (1, 1, 2):
        fold = Fold(backend="numpy")
        outputs = one_group(fold, op, np.random.default_rng(0).normal(size=(count, 1, 3)))
        if count == 1:
            fold.apply(None, outputs)
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, outputs)


@pytest.mark.parametrize(("value", "runs"), [(2.0, 9), (2, 9), (0.0, 21), (0, 15)])
def test_equal_rows_are_halved_and_zeros_wait(value, runs, counted):
    """A result of zeros tells nothing; nor do integers that nothing can be put in the place of."""
    op = counted(lambda x: x * 1)
    for _ in range(3):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, op, [np.full((1, 2), value)] * 16))
    assert len(op.rows) == runs


def test_numbers_that_are_equal_in_all_rows_hide_nothing(refused):
    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(3, 1, 1))
    refused(lambda: fold.apply(None, scaled(fold, lambda x, y: (x - y).mean(1)[:, None], xs, [1.0] * 3)))


def test_an_op_is_tried_again_where_there_are_as_many_rows_as_columns():
    def op(x):
        return x @ np.ones((3, 3)) if len(x) != 3 else np.ones((3, 3)) @ x

    fold = Fold(backend="numpy", trials=True)
    xs = np.random.default_rng(0).normal(size=(5, 1, 3))
    fold.apply(None, one_group(fold, op, xs))
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, op, xs[:3]))


def test_a_trial_leaves_no_trace_on_the_model_and_around_the_op():
    seen = []

    class Model:
        def __init__(self):
            self.calls, self.log, self.mean = 0, [], np.zeros(3)
            self.rng = np.random.default_rng(0)

        def op(self, x):
            self.calls += 1
            self.log.append(len(x))
            self.mean += x.sum()
            seen.append(len(x))
            return x + self.rng.random(x.shape)

    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    tried, plain = Model(), Model()
    for model, trials in ((tried, True), (plain, False)):
        fold = Fold(backend="numpy", trials=trials)
        found = fold.apply(model, one_group(fold, "op", xs))[0]
        if trials:
            expected = found
    np.testing.assert_array_equal(found, expected)
    assert (tried.calls, tried.log) == (plain.calls, plain.log) == (1, [4])
    np.testing.assert_array_equal(tried.mean, plain.mean)
    assert tried.rng.bit_generator.state == plain.rng.bit_generator.state
    assert seen == [4, 4]  # once for each model


def test_state_that_rows_leave_on_the_model_is_refused():
    class Model:
        last = 0.0

        def op(self, x):
            x = x + self.last
            self.last = float(x.sum())
            return x

    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    with pytest.raises(LaunchError, match="keeps state on the model") as caught:
        fold.apply(Model(), one_group(fold, "op", xs))
    assert "second result" in caught.value.hint


def test_a_count_of_launches_beside_a_log_of_rows_is_no_state_of_rows():
    class Model:
        calls, log = 0, ()

        def op(self, x):
            self.calls += 1
            self.log = (*self.log, float(x.sum()))
            return x * self.calls

    fold = Fold(backend="numpy")
    xs = np.arange(6.0).reshape(3, 1, 2)
    assert fold.apply(Model(), one_group(fold, "op", xs))[0].tolist() == xs[:, 0].tolist()


def test_an_op_that_can_not_be_tried_is_believed_with_one_warning():
    draws = iter(range(100))  # a generator that nothing can set back
    fold = Fold(backend="numpy")
    model = {"op": lambda x: x + next(draws)}
    xs = np.arange(6.0).reshape(3, 1, 2)
    with pytest.warns(
        UserWarning, match=r"'op' for 3 nodes.* could not be tried: it returned other values"
    ):
        fold.apply(model, one_group(fold, "op", xs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold.apply(model, one_group(fold, "op", xs))


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (lambda x: x + next(COUNT), "returned other values"),
        (multifold.trusted(lambda x: 2 * x), "it is marked by multifold.trusted"),
        (multifold.mixing(lambda x: x - x.mean(0)), "it is marked by multifold.mixing"),
        (lambda x: 0 * x, "the rows of its first 16 launches could not tell"),
        (lambda x: 2 * x, None),
    ],
    ids=["impure", "trusted", "mixing", "untold", "tried"],
)
@pytest.mark.filterwarnings("ignore:.*could not be tried")
def test_an_explanation_lists_ops_that_were_not_tried_in_every_run(op, reason):
    found = []
    for _ in range(ENOUGH + 1):
        fold = Fold(backend="numpy")
        fold.apply({"op": op}, one_group(fold, "op", np.arange(3.0).reshape(3, 1, 1)))
        found.append(str(fold.explain()))
    told = "first 16 launches" if reason is not None and "could not tell" in reason else reason
    assert ("without a trial: op, since" in found[0]) == (reason is not None and told == reason)
    assert ("without a trial: op, since" in found[-1]) == (reason is not None)
    assert reason is None or reason in found[-1]


def test_the_modules_of_a_function_are_asked_for_their_mode():
    class Layer:
        training = False

        def __call__(self, x):
            return x - x.mean(0) if self.training else 2 * x

    class Moded(NumpyBackend):
        def hosts(self, model):
            return isinstance(model, Layer)

        def modes(self, owners):
            return tuple([x.training for x in owners if isinstance(x, Layer)])

    def op(x):
        return layer(x)

    layer = Layer()
    fold = Fold(backend=Moded())
    fold.apply(None, one_group(fold, op, normal(16)))
    layer.training = True
    fold = Fold(backend=Moded())
    refuse_in(fold, None, one_group(fold, op, normal(16)))


def test_an_explanation_of_rounds_lists_ops_that_were_not_tried():
    async def twice(fold, x):
        await fold.value(h := fold.add("op", x))
        return fold.add("op", h)

    fold = Fold(backend="numpy")
    fold.run({"op": multifold.trusted(lambda x: 2 * x)}, [1.0, 2.0], twice)
    assert str(fold.explain()).count("without a trial: op, since it is marked by multifold.trusted") == 1


def test_an_op_whose_results_have_another_form_each_time_is_believed_with_a_warning():
    fold = Fold(backend="numpy")
    widths = iter(range(100))
    with pytest.warns(UserWarning, match="could not be tried: it returned a result of another form"):
        fold.apply(None, one_group(fold, lambda x: np.ones((len(x), next(widths))), normal(3)))


def test_an_op_that_raises_when_it_runs_again_is_believed_with_a_warning():
    def once(x):
        if next(calls):
            raise RuntimeError("the stream is at its end")
        return x * 2

    calls = iter([0, 1, 1, 1])
    fold = Fold(backend="numpy")
    with pytest.warns(UserWarning, match="could not be tried: it raised RuntimeError"):
        found = fold.apply(None, one_group(fold, once, np.arange(3.0).reshape(3, 1, 1)))
    assert found[0].ravel().tolist() == [0, 2, 4]


def test_nodes_of_ragged_operands_are_replaced_by_nodes_with_as_many_members(refused):
    def mixes(kids):
        return np.add.reduceat(kids.values, [0, 2, 4, 5]) + kids.values[:1]

    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(8, 1, 2))
    nodes = [fold.add(mixes, ragged(list(xs[i:j]))) for i, j in ((0, 2), (2, 4), (4, 5), (5, 8))]
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, [nodes])


@pytest.mark.parametrize("mark", [multifold.mixing, multifold.trusted])
def test_a_marked_op_is_not_tried(mark, counted):
    op = mark(counted(lambda x: x - x.mean(0)))
    fold = Fold(backend="numpy")
    found = fold.apply(None, one_group(fold, op, np.arange(3.0).reshape(3, 1, 1)))
    assert (found[0].ravel().tolist(), op.rows) == ([-1, 0, 1], [3])


def test_an_op_without_a_mark_is_tried_although_one_of_the_same_code_has_one():
    def made():
        return lambda x: x - x.mean(0)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, multifold.mixing(made()), normal(3)))
    refuse_in(fold, None, one_group(fold, made(), normal(3)))


def test_methods_and_partials_have_the_mark_of_their_function():
    class Model:
        @multifold.mixing
        def norm(self, x, by):
            return (x - x.mean(0)) * by

    fold = Fold(backend="numpy")
    xs = np.arange(3.0).reshape(3, 1, 1)
    for op in (
        functools.partial(Model().norm, by=2),
        functools.partial(functools.partial(Model().norm), by=2),
    ):
        assert fold.apply(None, one_group(fold, op, xs))[0].ravel().tolist() == [-2, 0, 2]


@pytest.mark.parametrize("mark", [multifold.mixing, multifold.trusted])
def test_a_function_that_wraps_a_marked_one_has_its_mark(mark):
    @functools.wraps(mark(lambda x: x - x.mean(0)))
    def op(x):
        return x - x.mean(0)

    assert op.multifold_mark == mark.__name__
    fold = Fold(backend="numpy")
    assert fold.apply(None, one_group(fold, op, np.arange(3.0).reshape(3, 1, 1)))[0].ravel().tolist() == [
        -1,
        0,
        1,
    ]


def test_what_can_have_no_mark_is_refused():
    with pytest.raises(multifold.BackendError, match=r"can be marked.* int\.\s+Hint: mark a method"):
        multifold.mixing(3)


def test_an_op_that_mixes_rows_on_purpose_has_no_place_in_a_server_or_a_program():
    norm = multifold.mixing(lambda x: x - x.mean(0))
    server = multifold.Server({"norm": norm}, lambda fold, x: fold.add("norm", x), backend="numpy")
    with server, pytest.raises(LaunchError, match=r"multifold.mixing, and a server has requests of others"):
        server.submit(1.0).result(30)
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"multifold.mixing, and a program has rows"):
        run({"norm": norm}, fold.program([[fold.add("norm", float(i)) for i in range(3)]]))


def test_a_fold_without_trials_believes_every_op(counted):
    op = counted(lambda x: x - x.mean(0))
    fold = Fold(backend="numpy", trials=False)
    fold.apply(None, one_group(fold, op, np.arange(3.0).reshape(3, 1, 1)))
    assert op.rows == [3]


WEIGHT = np.ones(3)
MADE = {
    "a lambda": lambda: lambda x: x * 2,
    "one that binds an array": lambda: (lambda w: lambda x: x * w)(WEIGHT),
    "one that binds another": lambda: (lambda f: lambda x: f(x) * 2)(lambda x: x + 1),
    "one of NumPy": lambda: np.tanh,
    "a partial": lambda: functools.partial(np.multiply, 2.0),
    "one that binds a tuple": lambda: (lambda some: lambda x: x * some[0])((2.0, WEIGHT)),
    "one that binds a dictionary": lambda: (lambda table: lambda x: x * table["by"])({"by": 2.0}),
    "one that binds as many as are looked at": lambda: (lambda some: lambda x: x * some[0])([2.0] * FEW),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_an_op_that_is_made_anew_for_each_step_is_known_again(made, monkeypatch):
    trials = []
    judge = Launcher.judge
    monkeypatch.setattr(Launcher, "judge", lambda *given: trials.append(1) or judge(*given))
    xs = np.random.default_rng(0).normal(size=(16, 1, 3))
    for _ in range(3):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, made(), xs))
    assert len(trials) == 1


CENTERED = {
    "a variable": lambda axis: lambda x: x - x.mean(axis, keepdims=True),
    "a default": lambda axis: lambda x, axis=axis: x - x.mean(axis, keepdims=True),
    "a default of a keyword": lambda axis: lambda x, *, axis=axis: x - x.mean(axis, keepdims=True),
}


@pytest.mark.parametrize("centered", CENTERED.values(), ids=CENTERED)
def test_one_code_with_other_values_around_it_is_tried_by_itself(centered):
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, centered(1), xs))
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, centered(0), xs))


def test_an_op_is_known_by_which_of_its_functions_it_binds_twice():
    def calling(functions):
        return lambda x: abs(functions[2](x))

    def apart(x):
        return x * 2

    def centered(x):
        return x - x.mean(0)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, calling((apart, centered, apart)), normal(4)))
    refuse_in(fold, None, one_group(fold, calling((apart, centered, centered)), normal(4)))


def test_partial_functions_of_other_arguments_have_verdicts_of_their_own():
    def op(*operands, **named):
        pass

    partial = functools.partial
    pairs = [
        (partial(op, 2), partial(max, 2)),
        (partial(np.add, 2), partial(np.multiply, 2)),
        (partial(op, "by", 2), partial(op, by=2)),
        (partial(op, (partial(op, op), 2)), partial(op, (op, partial(op, 2)))),
    ]
    for one, other in pairs:
        verdicts = Verdicts()
        verdicts.add(one, "a")
        assert verdicts.has(one, "a") and not verdicts.has(other, "a")


@pytest.mark.parametrize("other", [((1,), 2), [1, (2,)], {1: (2,)}, (1, 2), (1, (2.0,))], ids=str)
def test_an_op_is_known_by_the_containers_that_it_binds(other):
    verdicts = Verdicts()
    verdicts.add(binding((1, (2,))), "a")
    assert verdicts.has(binding((1, (2,))), "a") and not verdicts.has(binding(other), "a")


def binding(x):
    """Return an op that binds an object."""
    return lambda rows: rows * x


def test_what_binds_another_object_has_a_verdict_of_its_own():
    """Of an iterator nobody knows what it will yield, and of a long list how much it is to compare."""
    for make in (lambda: iter(()), lambda: [0] * (FEW + 1), lambda: np.ones(2)):
        one, other = binding(make()), binding(make())
        verdicts = Verdicts()
        verdicts.add(one, "a")
        assert verdicts.has(one, "a") and not verdicts.has(other, "a") and len(verdicts) == 1
        del one
        gc.collect()
        assert len(verdicts) == 0


def test_methods_of_one_object_have_verdicts_of_their_own():
    class Model:
        def first(self):
            pass

        def second(self):
            pass

    model = Model()
    verdicts = Verdicts()
    verdicts.add(model.first, "a")
    assert verdicts.has(model.first, "a")
    assert not verdicts.has(model.second, "a") and not verdicts.has(Model().first, "a")


def test_an_op_may_bind_a_list_that_holds_itself():
    def op(x):
        return op(x) if loop else x

    loop = [1.0]
    loop.append(loop)
    verdicts = Verdicts()
    verdicts.add(op, "a")
    assert verdicts.has(op, "a")


def test_arrays_of_jax_that_an_op_binds_count_by_shape_and_dtype():
    def array(module="jaxlib", **own):
        return type("Array", (), {"__module__": module, **own})()

    verdicts = Verdicts()
    verdicts.add(binding(array(shape=(2,), dtype="f4")), "a")
    assert verdicts.has(binding(array(shape=(2,), dtype="f4")), "a")
    for own in ({"shape": (3,), "dtype": "f4"}, {"shape": (2,), "dtype": "f8"}):
        assert not verdicts.has(binding(array(**own)), "a")
    for own in ({"module": "numpy", "shape": (2,), "dtype": "f4"}, {"shape": (2,)}, {"dtype": "f4"}):
        verdicts.add(binding(array(**own)), "a")
        assert not verdicts.has(binding(array(**own)), "a")


def test_a_generator_that_a_function_finds_around_it_moves_on_as_by_one_launch():
    xs = np.random.default_rng(0).normal(size=(4, 1, 3))
    states = []
    for trials in (True, False):
        rng = np.random.default_rng(7)
        fold = Fold(backend="numpy", trials=trials)
        fold.apply(None, one_group(fold, lambda x, rng=rng: x + rng.random(x.shape), xs))
        states.append(rng.bit_generator.state)
    assert states[0] == states[1]


# ---- what a trial tells, and what it leaves ----------------------------------------------------------


def normal(rows, width=3):
    """Return rows of normal numbers, each as an array of one row."""
    return np.random.default_rng(0).normal(size=(rows, 1, width))


def refuse_in(fold, model, outputs, match="mixes its rows"):
    """Expect a launch to be refused."""
    with pytest.raises(LaunchError, match=match):
        fold.apply(model, outputs)


def test_a_column_for_each_row_is_refused_where_all_columns_are_equal():
    fold = Fold(backend="numpy")
    outputs = one_group(fold, lambda x: np.broadcast_to(x[:, :1], (len(x), len(x))), normal(3, 5))
    refuse_in(fold, None, outputs, r"it returned \(3, 3\) for 3, and \(5, 5\) for 5")


def test_an_op_that_makes_as_many_columns_as_rows_leaves_its_model_as_after_one_launch():
    class Model:
        calls = 0

        def op(self, x):
            self.calls += 1
            return x @ np.ones((5, 3))

    model = Model()
    fold = Fold(backend="numpy")
    fold.apply(model, one_group(fold, "op", normal(3, 5)))
    assert model.calls == 1


def test_a_ragged_op_may_make_as_many_columns_as_it_has_rows():
    fold = Fold(backend="numpy")
    nodes = [fold.add("op", ragged(list(np.ones((k, 1, 5)))), 1.0) for k in (1, 2, 2)]
    model = {
        "op": lambda r, s: (
            np.add.reduceat(r.values, np.cumsum(r.lengths) - r.lengths) @ np.ones((5, 3)) * s[:, None]
        )
    }
    assert fold.apply(model, [nodes])[0].tolist() == [[5.0] * 3, [10.0] * 3, [10.0] * 3]


def test_nodes_that_all_have_other_numbers_of_members_are_halved():
    """They change places, too; but the mean of all members is the same then."""

    def mixes(r):
        return np.add.reduceat(r.values - r.values.mean(0), np.cumsum(r.lengths) - r.lengths)

    fold = Fold(backend="numpy")
    xs = normal(6)
    refuse_in(fold, None, [[fold.add(mixes, ragged(list(xs[i:j]))) for i, j in ((0, 1), (1, 3), (3, 6))]])


def test_members_of_nodes_that_change_places_are_numbered_by_their_new_nodes():
    def summed(r):
        found = np.zeros((len(r.lengths), *r.values.shape[1:]))
        np.add.at(found, r.segment_ids, r.values)
        return found

    fold = Fold(backend="numpy")
    nodes = [fold.add(summed, ragged(list(np.ones((k, 1, 2))))) for k in (1, 2, 4)]
    assert fold.apply(None, [nodes])[0].tolist() == [[1.0] * 2, [2.0] * 2, [4.0] * 2]


def test_numbers_that_an_op_does_not_take_when_halved_tell_nothing():
    def op(x):
        if not np.isin(x, (1, 2, 4)).all():
            raise ValueError("no power of two")
        return x * x.max()

    fold = Fold(backend="numpy")
    assert fold.apply(None, one_group(fold, op, [np.ones((1, 2))] * 3))[0].tolist() == [[1.0] * 2] * 3
    refuse_in(fold, None, one_group(fold, op, [np.full((1, 2), float(i)) for i in (1, 2, 4)]))


KINDS = {"list": list, "tuple": tuple, "set": set, "dict": dict.fromkeys, "str": "".join, "array": np.array}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_state_of_any_kind_that_rows_leave_on_the_model_is_refused(kind):
    class Model:
        last = kind([])

        def op(self, x):
            x = x + len(self.last)
            self.last = kind([str(i) for i in range(int(x[1::2].sum()))])
            return x

    fold = Fold(backend="numpy")
    outputs = one_group(fold, "op", [np.full((1, 1), float(i)) for i in (1, 2, 4, 8)])
    refuse_in(fold, Model(), outputs, "keeps state on the model")


def test_state_that_no_later_result_depends_on_is_left_alone():
    class Model:
        last = 0.0

        def op(self, x):
            self.last = float(x.sum())
            return x * 2

    model = Model()
    fold = Fold(backend="numpy")
    xs = np.arange(4.0).reshape(4, 1, 1)
    assert fold.apply(model, one_group(fold, "op", xs))[0].ravel().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert model.last == 6.0


def test_state_that_decides_the_form_of_later_results_is_refused():
    class Model:
        width = 2

        def op(self, x):
            found = x[:, : self.width]
            self.width = int(x[:, 0].max())
            return found

    fold = Fold(backend="numpy")
    xs = [np.full((1, 3), i) for i in (1, 2, 3)]
    refuse_in(fold, Model(), one_group(fold, "op", xs), "keeps state on the model")


def test_state_that_changes_by_itself_can_not_be_tried():
    class Model:
        last = 0

        def op(self, x):
            x = x + self.last
            self.last = next(ticks)
            return x

    ticks = iter(range(1, 100))
    fold = Fold(backend="numpy")
    with pytest.warns(UserWarning, match="could not be tried"):
        found = fold.apply(Model(), one_group(fold, "op", normal(3)))
    np.testing.assert_array_equal(found[0], normal(3)[:, 0])


CONTAINERS = {
    "an attribute": lambda: None,
    "a list": list,
    "a dictionary": dict,
    "a deque": collections.deque,
    "a list in a list": lambda: [[]],
    "a dictionary in a list": lambda: [{}],
    "a list in a dictionary": lambda: {0: []},
}


@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_statistics_that_a_model_takes_from_its_first_launch_are_refused(make):
    """A trial begins with the state of before the launch, so it takes them anew."""

    class Model:
        def __init__(self):
            if make() is not None:
                self.kept = make()

        def op(self, x):
            if make() is None:
                self.center = getattr(self, "center", x.mean(0))
                return x - self.center
            kept = self.kept[0] if make() else self.kept
            if not kept:
                kept.update({0: x.mean(0)}) if isinstance(kept, dict) else kept.append(x.mean(0))
            return x - kept[0]

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


def test_a_variable_that_an_op_sets_in_its_first_launch_is_unset_in_a_trial():
    def made():
        def op(x):
            nonlocal center
            try:
                center  # noqa: B018
            except NameError:
                center = x.mean(0)
            return x - center

        center = None
        del center
        return op

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, made(), normal(4)))


def test_a_variable_that_is_unset_stays_unset():
    def op(x):
        return x * 2 if len(x) else gone  # noqa: F821 - deleted below

    gone = 1
    del gone
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, normal(4)))
    with pytest.raises(NameError):
        op([])


def test_an_array_that_each_run_of_an_op_adds_to_is_put_back_before_each():
    class Model:
        def __init__(self):
            self.count = np.zeros(1)

        def op(self, x):
            self.count += 1
            return x + self.count

    model = Model()
    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fold.apply(model, one_group(fold, "op", np.arange(3.0).reshape(3, 1, 1)))
    assert (found[0].ravel().tolist(), model.count.tolist()) == ([1.0, 2.0, 3.0], [1.0])


def test_statistics_that_a_model_writes_into_an_array_in_its_first_launch_are_refused():
    class Model:
        def __init__(self):
            self.center = np.zeros(3)

        def op(self, x):
            if not self.center.any():
                self.center += x.mean(0)
            return x - self.center

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


GENERATORS = {
    "a generator": lambda: np.random.default_rng(0),
    "a random state": lambda: np.random.RandomState(0),
    "one of Python": lambda: random.Random(0),
}


@pytest.mark.parametrize("in_mapping", [False, True], ids=["attribute", "entry"])
@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_of_the_model_moves_on_as_by_one_launch(make, in_mapping):
    class Model:
        def __init__(self):
            self.rng = make()

        def op(self, x):
            return x + self.rng.random()

    found = []
    for trials in (True, False):
        model = Model()
        if in_mapping:
            model = {"rng": model.rng}
            model["op"] = lambda x, model=model: x + model["rng"].random()
        fold = Fold(backend="numpy", trials=trials)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = fold.apply(model, one_group(fold, "op", np.arange(4.0).reshape(4, 1, 1)))[0]
        rng = model["rng"] if in_mapping else model.rng
        found.append((result.ravel().tolist(), rng.random()))
    assert found[0] == found[1]


def test_a_long_list_of_the_model_is_none_of_its_state():
    class Model:
        pass

    model = Model()
    model.short, model.long = [0] * LONGEST, [0] * (LONGEST + 1)
    with KeptState(NumpyBackend(), [model]).again():
        model.short.append(1)
        model.long.append(1)
    assert (len(model.short), len(model.long)) == (LONGEST, LONGEST + 2)


def test_draws_that_follow_some_values_only_pass():
    """Each row draws as many numbers as it says. Other even rows draw other numbers, odd ones as many."""

    def op(x):
        return np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    xs = np.array([[1.0, 0.0], [1.0, 1.0], [5.0, 2.0], [5.0, 3.0]])[:, None]
    assert fold.apply(None, one_group(fold, op, xs))[0].shape == (4, 1)


def test_an_op_whose_draws_follow_its_values_and_that_mixes_rows_is_refused():
    fold = Fold(backend="numpy")
    outputs = one_group(fold, lambda x: x - x.mean(0) + np.random.poisson(np.abs(x) * 20), normal(8))
    refuse_in(fold, None, outputs)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_op_that_draws_as_many_numbers_as_a_row_says_and_mixes_rows_is_refused(count):
    def op(x):
        return x - x.mean(0) + np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, op, np.arange(1.0, count + 1)[:, None, None]))


def test_state_that_follows_the_rows_hides_no_mixing_of_an_op_that_draws():
    class Model:
        total = 0.0

        def op(self, x):
            self.total += float(x.sum())
            return MIXING_OPS["one row before"](x) * (0.5 + np.random.random(x.shape))

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)))


def test_an_op_that_changes_its_static_value_and_its_keyword_is_tried_with_what_was_recorded():
    def op(x, sizes, *, powers):
        return x * sizes.pop() ** powers.pop()

    fold = Fold(backend="numpy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nodes = [fold.add(op, np.full((1, 1), i), multifold.static([3]), powers=[2]) for i in (1, 2, 4)]
        assert fold.apply(None, [nodes])[0].tolist() == [[9], [18], [36]]


def test_too_little_memory_for_a_trial_is_no_mixing():
    def op(x):
        if next(calls):
            raise MemoryError("no room for 3 rows")
        return x * 2

    calls = iter([0, 1, 0, 0, 0, 0])
    fold = Fold(backend="numpy")
    with pytest.warns(UserWarning, match="could not be tried: there is too little memory"):
        found = fold.apply(None, one_group(fold, op, np.arange(3.0).reshape(3, 1, 1)))
    assert found[0].ravel().tolist() == [0, 2, 4]


def test_a_row_that_equals_the_one_before_is_replaced_by_one_that_differs():
    fold = Fold(backend="numpy")
    xs = [np.full((1, 1), i) for i in (0, 0, 2)]  # integers, where halving changes no zero
    refuse_in(fold, None, one_group(fold, lambda x: x + x[1:2], xs))


@pytest.mark.parametrize("paired", [False, True])
def test_an_operand_that_can_not_be_changed_tells_nothing_of_it(paired):
    def mixes(x, s):
        return x + column(s - s[:1])

    fold = Fold(backend="numpy")
    model = {"op": (lambda pair: mixes(*pair)) if paired else mixes, "pair": lambda x, s: (x, s)}
    for numbers in ([0, 0, 0], [0, 1, 2]):
        pairs = [(x, s) for x, s in zip(normal(3), numbers, strict=True)]
        outputs = [[fold.add("op", fold.add("pair", *x)) if paired else fold.add("op", *x) for x in pairs]]
        if len(set(numbers)) == 1:
            fold.apply(model, outputs)
    refuse_in(fold, model, outputs)


@pytest.mark.parametrize("kind", [float, int])
def test_the_largest_number_of_all_rows_is_refused_where_many_rows_have_it(kind):
    """As long as half of the rows stay in their places, it is the same."""
    fold = Fold(backend="numpy")
    xs = np.array([1, 3, 3, 2, 3, 1, 3, 3], kind)[:, None, None]
    refuse_in(fold, None, one_group(fold, lambda x: x.max() - x, xs))


@pytest.mark.parametrize("value", [0, 2, 0.0, 2.0])
def test_places_are_seen_where_all_rows_are_equal(value):
    fold = Fold(backend="numpy")
    xs = [np.full((1, 2), value)] * 4
    refuse_in(fold, None, one_group(fold, lambda x: x + np.arange(len(x))[:, None], xs))


def test_places_are_seen_beside_an_operand_that_is_the_same_in_all_rows():
    def op(x, s):
        return x * np.arange(1, 4)[:, None] * s[:, None]

    fold = Fold(backend="numpy")
    refuse_in(fold, None, [[fold.add(op, x, 1.0) for x in normal(3)]])


@pytest.mark.parametrize("value", [3, 0.0])
def test_integers_that_are_equal_are_halved_and_floating_zeros_become_numbers(value):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, lambda x: x + 1 + x.sum(), [np.full((1, 1), value)] * 3))


def test_state_of_an_op_that_draws_is_refused():
    class Model:
        mean = 0.0

        def op(self, x):
            found = (x - self.mean) * (0.5 + np.random.random(x.shape))
            self.mean = x.mean()
            return found

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(4)), "keeps state on the model")


def test_a_result_of_zeros_tells_nothing():
    def op(x):
        return x * (x.max() > 10)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, normal(4)))
    refuse_in(fold, None, one_group(fold, op, np.array([1.0, 2.0, 3.0, 11.0])[:, None, None]))


def test_a_form_that_follows_the_first_row_is_refused():
    fold = Fold(backend="numpy")
    xs = np.array([[-1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [-1.0, 2.0, -1.0], [3.0, 1.0, 1.0]])[:, None]
    outputs = one_group(fold, lambda x: x[:, : 1 + (x[:, 0] > 0).sum()], xs)
    refuse_in(fold, None, outputs, "its result had another form")


class Traced(NumpyBackend):
    """A backend whose floats have no values, as while JAX traces."""

    def to_numpy(self, x):
        if x.dtype.kind == "f":
            raise TypeError("no values")
        return x


BY_SHAPES = {
    "numbers beside rows": (lambda x, s: x * s, 1, "(3, 3) for 3, and (5, 5) for 5"),
    "one of two results": (
        lambda x, s: (x, x * s),
        1,
        "(3, 1) and (3, 3) for 3, and (5, 1) and (5, 5) for 5",
    ),
    "no result": (lambda x, s: x if len(x) == 3 else (), 1, "(3, 1) for 3, and none for 5"),
    "an error": (lambda x, s: x * np.ones((3, 2)), 2, "for 5 rows it raised ValueError"),
}


@pytest.mark.parametrize(("op", "width", "said"), BY_SHAPES.values(), ids=BY_SHAPES)
def test_without_values_an_op_that_meets_numbers_runs_on_more_rows(op, width, said):
    fold = Fold(backend=Traced())
    refuse_in(fold, None, scaled(fold, op, normal(3, width), [1.0, 2.0, 3.0]), re.escape(said))


def test_without_values_what_an_op_raises_for_more_rows_is_the_cause():
    fold = Fold(backend=Traced())
    with pytest.raises(LaunchError, match="for 5 rows it raised") as caught:
        fold.apply(None, scaled(fold, lambda x, s: x * np.ones((3, 2)), normal(3, 2), [1.0, 2.0, 3.0]))
    assert isinstance(caught.value.__cause__, ValueError)


def test_without_values_an_op_with_as_many_columns_as_rows_runs_on_more_rows():
    fold = Fold(backend=Traced())
    outputs = one_group(fold, lambda x: x[:, :1] * x[:, 0], normal(3, 4))
    refuse_in(fold, None, outputs, re.escape("(3, 3) for 3, and (5, 5) for 5"))


@pytest.mark.parametrize("op", [lambda x, k: x * 2, lambda x, k: k * 2], ids=["none", "an operand"])
def test_without_values_an_op_of_other_columns_runs_once(counted, op):
    op = counted(op)
    fold = Fold(backend=Traced())
    fold.apply(None, scaled(fold, op, normal(3, 4), [np.full((1, 4), i) for i in range(3)]))
    assert op.rows == [3]


@pytest.mark.parametrize("most", [np.max, np.min])
@pytest.mark.parametrize("value", [2.0, -2.0])
def test_the_largest_of_equal_rows_shows(most, value):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, lambda x: x - 0.2 * most(x, 0), [np.full((1, 2), value)] * 4))


def test_equal_floats_beside_equal_integers_are_halved():
    fold = Fold(backend="numpy")
    ones = [np.ones((1, 2), int)] * 3
    refuse_in(fold, None, scaled(fold, lambda x, k: x - x.mean(0) + k, [2.0 * x for x in ones], ones))


@pytest.mark.parametrize(
    ("op", "trials", "runs"),
    [(lambda x: x * 2, 1, 7), (lambda x: x * np.random.random(x.shape), 4, 13), (lambda x: x * 0, 16, 7)],
    ids=["values", "random numbers", "zeros"],
)
def test_trials_count_by_what_they_can_tell(op, trials, runs, counted):
    op = counted(op)
    for _ in range(trials + 2):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, op, normal(16)))
    assert len(op.rows) == trials * runs + 2


def test_a_result_of_zeros_beside_another_one_hides_nothing(counted):
    op = counted(lambda x: (x, x * 0))
    for _ in range(2):
        fold = Fold(backend="numpy")
        fold.apply(None, [[fold.add(op, x)[0] for x in normal(16)]])
    assert op.rows == [16] * 8


def test_what_has_an_entry_that_is_neither_zero_nor_infinite():
    arrays = [["a"], [0], [1], [False], [True], [np.nan, 0.0], [np.inf, 0.5]]
    assert [nonzero(np.array(x)) for x in arrays] == [True, False, True, False, True, False, True]


@pytest.mark.parametrize(("row", "other"), [(2, 0), (0, 2), (1, 3), (3, 1), (1, 0)])
def test_one_row_that_follows_another_one_shows_although_the_op_draws(row, other):
    def op(x):
        found = x * (0.5 + np.random.random(x.shape))
        found[row] += x[other]
        return found

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, op, normal(4)))


def test_what_an_op_raises_counts_although_its_draws_follow_its_values():
    def op(x):
        if x[0] != 1:
            raise KeyError("the first row")
        return x + np.array([[np.random.random(int(k)).sum()] for k in x[:, 0]])

    fold = Fold(backend="numpy")
    refuse_in(
        fold, None, one_group(fold, op, [np.full((1, 1), i) for i in (1, 2, 4)]), "it raised KeyError"
    )


@pytest.mark.parametrize("row", [0, 2])
def test_state_that_one_row_of_the_next_launch_follows_is_refused(row):
    class Model:
        last = 0.0

        def op(self, x):
            found = x * 2
            found[row] += self.last
            self.last = float(x.sum())
            return found

    fold = Fold(backend="numpy")
    refuse_in(fold, Model(), one_group(fold, "op", normal(3)), "keeps state on the model")


# ---- by what a verdict is known ----------------------------------------------------------------------


def test_an_op_of_rows_of_another_dtype_is_tried_by_itself():
    def op(x):
        return x if x.dtype.kind == "i" else x - x.mean(0)

    whole = [np.full((1, 2), i) for i in (1, 2, 4)]
    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, whole))
    refuse_in(fold, None, one_group(fold, op, [x + 0.5 for x in whole]))


def test_an_op_is_tried_for_each_of_its_operands_that_has_rows():
    def op(x, y):
        return x + y - y.mean(0)

    fold = Fold(backend="numpy")
    table = multifold.shared(np.arange(3.0)[None])
    fold.apply(None, [[fold.add(op, x, table) for x in normal(3)]])
    refuse_in(fold, None, [[fold.add(op, table, x) for x in normal(3)]])


def test_an_op_is_tried_for_each_nesting_of_its_operands():
    def op(x, y):
        return x[0] + x[1] + y if isinstance(x, list) else x - x.mean(0) + y[0] + y[1]

    fold = Fold(backend="numpy")
    fold.apply(None, [[fold.add(op, [x, x], x) for x in normal(3)]])
    refuse_in(fold, None, [[fold.add(op, x, [x, x]) for x in normal(3)]])


@pytest.mark.parametrize(
    ("width", "weight"), [(5, np.ones((5, 3))), (3, np.ones((3, 1)))], ids=["made", "given"]
)
def test_a_later_launch_of_as_many_rows_as_columns_of_operand_or_result_is_tried(width, weight):
    def op(x, s):
        y = x * s if x.shape == (3, 3) else x * s[:, None]
        return (y - y.mean(0) if len(x) == 3 else y) @ weight

    fold = Fold(backend="numpy")
    fold.apply(None, scaled(fold, op, normal(2, width), [1.0, 2.0]))
    refuse_in(fold, None, scaled(fold, op, normal(3, width), [1.0, 2.0, 3.0]))


def test_a_shared_table_of_as_many_rows_has_none_of_the_launch():
    def op(x, table):
        return x + table[1]

    fold = Fold(backend="numpy")
    table = multifold.shared(np.arange(9.0).reshape(3, 3))
    xs = normal(3)
    found = fold.apply(None, [[fold.add(op, x, table) for x in xs]])[0]
    np.testing.assert_allclose(found, xs[:, 0] + [3.0, 4.0, 5.0])


def test_a_backend_says_which_ops_run_once(counted):
    class Waiting(NumpyBackend):
        def untried(self, owners):
            return "others wait for it"

    op = counted(lambda x: x - x.mean(0))
    fold = Fold(backend=Waiting())
    with pytest.warns(UserWarning, match="It could not be tried: others wait for it"):
        fold.apply(None, one_group(fold, op, normal(3)))
    assert op.rows == [3]


def test_the_classes_of_rows_are_forgotten_with_the_verdicts():
    def op():
        pass

    verdicts = Verdicts()
    known = verdicts.of(op, new=True)
    known.alike.add("rows of width 3")
    for key in range(MOST + 1):
        known.add(key, 1)
    assert not known.alike


def test_the_interpreter_of_programs_tries_an_op_once():
    def op(x):
        runs.append(len(x))
        return 2 * x

    runs = Seen()
    fold = Fold(backend="numpy")
    program = fold.program(one_group(fold, "op", normal(16)))
    for _ in range(2):
        run({"op": op}, program)
    assert runs == [16] * 8


def test_a_program_is_told_that_an_op_can_not_be_tried_once():
    draws = iter(range(100))
    model = {"op": lambda x: x + next(draws)}
    fold = Fold(backend="numpy")
    program = fold.program(one_group(fold, "op", np.ones((3, 1, 1))))
    with pytest.warns(UserWarning, match="'op'.* could not be tried: it returned other values"):
        first, second, third = (run(model, program)[0].max() for _ in range(3))
    assert second - first > 1 and third - second == 1  # the first one was tried in between


# ---- marks and hints ---------------------------------------------------------------------------------


def test_a_partial_function_has_its_own_mark_and_that_of_any_inside():
    own = multifold.mixing(functools.partial(lambda x, by: (x - x.mean(0)) * by, by=2))
    outer = functools.partial(own)
    outer.name = "one that Python does not join with the one inside"
    fold = Fold(backend="numpy")
    for op in (own, outer, functools.partial(outer)):
        assert fold.apply(None, one_group(fold, op, np.arange(3.0).reshape(3, 1, 1)))[
            0
        ].ravel().tolist() == [-2, 0, 2]


def test_an_op_that_runs_once_has_a_place_in_a_server_and_a_program():
    model = {"double": multifold.trusted(lambda x: 2 * x)}
    server = multifold.Server(model, lambda fold, x: fold.add("double", x), backend="numpy")
    with server:
        assert server.submit(1.0).result(30).tolist() == [2.0]
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("double", float(i)) for i in range(3)]])
    assert run(model, program)[0].tolist() == [0.0, 2.0, 4.0]


def test_an_op_that_has_every_attribute_is_tried():
    class Op:
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __call__(self, x):
            return x - x.mean(0)

    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, Op(), normal(3)))


def test_the_hint_speaks_of_columns_only_where_numbers_meet_rows():
    fold = Fold(backend="numpy")
    for op, says_column in ((lambda x, s: s - s.mean(0), False), (lambda x, s: x + s.sum(), True)):
        outputs = [
            [
                fold.add(op, x if says_column else 1.0, s)
                for x, s in zip(normal(3), (1.0, 2.0, 4.0), strict=True)
            ]
        ]
        with pytest.raises(LaunchError, match="mixes its rows") as caught:
            fold.apply(None, outputs)
        assert ("s[:, None]" in caught.value.hint) is says_column


SAID = {
    2: "when row 1 was replaced, row 0 changed.",
    3: "when row 1 was replaced, row 0 and one other changed.",
    6: "when rows 1, 3, 5 were replaced, row 0 and 2 others changed.",
    9: "when rows 1, 3, 5, ... were replaced, row 0 and 4 others changed.",
}


@pytest.mark.parametrize(("count", "said"), SAID.items(), ids=map(str, SAID))
def test_an_error_names_the_rows_that_were_replaced_and_those_that_changed(count, said):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, MIXING_OPS["mean"], normal(count)), re.escape(said))


def test_an_error_names_the_place_that_a_result_depends_on():
    fold = Fold(backend="numpy")
    said = "in the place of row 1, row 0 came to another result than in its own."
    refuse_in(fold, None, one_group(fold, MIXING_OPS["place"], normal(3)), re.escape(said))


def test_the_advice_of_a_backend_comes_first():
    class Advising(NumpyBackend):
        def advice(self, owners, mixes=True):
            return "Do without."

    fold = Fold(backend=Advising())
    refuse_in(fold, None, one_group(fold, MIXING_OPS["mean"], normal(3)), r"Do without\. Else axis 0 has")


def test_a_framework_says_in_its_own_words_that_it_has_no_memory():
    own = type("OutOfMemoryError", (RuntimeError,), {})
    errors = [
        MemoryError(),
        own(),
        RuntimeError("CUDA out of memory"),
        RuntimeError("RESOURCE_EXHAUSTED: 1 GB"),
    ]
    assert all(map(is_memory, errors)) and not is_memory(ValueError("shapes differ"))


def test_what_an_op_raises_for_other_rows_is_the_cause():
    def op(x):
        if x[0] != 1:
            raise KeyError("the first row")
        return x + 0

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"(was|were) replaced, it raised") as caught:
        fold.apply(None, one_group(fold, op, [np.full((1, 1), i) for i in (1, 2, 4)]))
    assert isinstance(caught.value.__cause__, KeyError)


# ---- what programs believe -----------------------------------------------------------------------------


class Valueless(NumpyBackend):
    """Runs like NumPy, and tells no values."""

    def to_numpy(self, x):
        raise TypeError("no values")


@pytest.mark.parametrize("runs_on", [NumpyBackend(), Valueless()], ids=["zeros", "no values"])
def test_a_trial_that_could_not_tell_is_no_verdict_of_a_program(runs_on):
    def op(x):
        return x * 2

    trial = Trial(Values(runs_on, None), op, [np.zeros((16, 2), int)], 16)
    checks.refuse_mixed(checks.Named("op", "a.py:1"), trial, "key", trial.launch())
    assert not checks.has_passed(op, "key")


def test_a_program_tries_an_op_that_draws_again():
    def op(operand):
        (x,) = operand
        return x + np.random.random(x.shape)

    kernel = types.SimpleNamespace(name="op", site="a.py:1", operands=(), structure=None, static=None)
    spec = checks.RowsSpec([((2, 3), np.dtype(float))])
    checks.verify_rows(NumpyBackend(), kernel, op, [spec], 2, op)
    assert not checks.has_passed(op, ((spec.key,), False, checks.kernel_key(kernel)))


def test_an_explanation_counts_the_ops_that_it_lists():
    assert "keep its rows" in next(untried({"a": "x"}))
    assert "keep their rows" in next(untried({"a": "x", "b": "y"}))


# ---- rounding ------------------------------------------------------------------------------------

ONES = 1 + np.random.default_rng(0).uniform(0, 1e-3, (6, 2)).astype("float32")


def cancelled(x):
    """Return the small difference of two numbers near 1, which another order of terms rounds otherwise."""
    return x[:, 0] - x[:, 1] + (np.arange(len(x)) % 2 * 2**-23).astype("float32")


@pytest.mark.parametrize("alike", [True, False])
def test_a_small_difference_of_large_numbers_may_have_their_rounding(alike):
    x = np.repeat(ONES[:1], 6, 0) if alike else ONES
    assert Trial(Values(NumpyBackend(), None), cancelled, [x], 6).deviation(cancelled(x)) is None


def test_small_differences_that_mix_rows_do_not_pass_as_rounding():
    for mixing in (lambda x: cancelled(x) - cancelled(x).mean(), lambda x: cancelled(x)[::-1].copy()):
        assert Trial(Values(NumpyBackend(), None), mixing, [ONES], 6).deviation(mixing(ONES)) is not None


def test_what_changes_wholly_with_the_last_digit_is_no_rounding():
    def mixing(x):
        return np.modf(1e6 * x[:, 0] * x[:, 1])[0] + x[:, 0].mean()

    x = np.random.default_rng(0).uniform(0.5, 1.5, (6, 2)).astype("float32")
    assert Trial(Values(NumpyBackend(), None), mixing, [x], 6).deviation(mixing(x)) is not None
