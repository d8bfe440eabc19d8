"""Trials in traces, rounds and programs, and of programs where there are no values yet."""

from __future__ import annotations

import re
import types

import numpy as np
import pytest
from trials import Seen, column, normal, one_group, refuse_in, scaled

import multifold
from multifold import Fold, LaunchError, ragged
from multifold._engine.ops.trial import Trial
from multifold._engine.ops.values import Values
from multifold._numpy.backend import NumpyBackend
from multifold.program import checks, run


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
    refused(lambda: fold.program(outputs, {"scale": lambda x, s: x * s}), "trials.py:")
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
    assert not checks.has_passed(NumpyBackend(), op, "key")


def test_a_program_tries_an_op_that_draws_again():
    def op(operand):
        (x,) = operand
        return x + np.random.random(x.shape)

    kernel = types.SimpleNamespace(name="op", site="a.py:1", operands=(), structure=None, static=None)
    spec = checks.RowsSpec([((2, 3), np.dtype(float))])
    checks.verify_rows(NumpyBackend(), kernel, op, [spec], 2, op)
    assert not checks.has_passed(NumpyBackend(), op, ((spec.key,), False, checks.kernel_key(kernel)))
