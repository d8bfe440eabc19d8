"""Ops that are not tried: marked ones, those of a fold without trials, and those that cannot be tried."""

from __future__ import annotations

import functools
import itertools
import warnings

import numpy as np
import pytest
from trials import normal, one_group, refuse_in

import multifold
from multifold import Fold, LaunchError
from multifold._engine.ops.trial import ENOUGH
from multifold._numpy.backend import NumpyBackend
from multifold.explain.text import untried
from multifold.program import run

COUNT = itertools.count()
"""Numbers that nothing can set back."""


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


def test_a_backend_says_which_ops_run_once(counted):
    class Waiting(NumpyBackend):
        def untried(self, owners):
            return "others wait for it"

    op = counted(lambda x: x - x.mean(0))
    fold = Fold(backend=Waiting())
    with pytest.warns(UserWarning, match="It could not be tried: others wait for it"):
        fold.apply(None, one_group(fold, op, normal(3)))
    assert op.rows == [3]


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


def test_an_explanation_counts_the_ops_that_it_lists():
    assert "keep its rows" in next(untried({"a": "x"}))
    assert "keep their rows" in next(untried({"a": "x", "b": "y"}))
