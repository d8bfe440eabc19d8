"""Whom the error of a launch names: the example whose call fails, and its line, however it was recorded."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, ragged


def run(fold, model, examples, fn, way):
    """Run examples as they are, as traces, or with a value that each of them awaits."""
    if way == "traces":
        return fold.run(model, multifold.traces(fn, examples))
    if way == "run":
        return fold.run(model, examples, fn)

    async def awaiting(fold, example):
        node = fn(fold, example)
        await fold.value(node)
        return node

    return fold.run(model, examples, awaiting)


def failure(*arguments):
    """Return what `run` raises."""
    with pytest.raises(LaunchError) as caught:
        run(*arguments)
    return caught.value


def notes(error):
    return getattr(error, "__notes__", [])


def raised_by(number, way):
    return f"Raised by {'trace' if way == 'traces' else 'example'} {number} of fold.run."


ways = pytest.mark.parametrize("way", ["run", "traces", "await"])


@pytest.fixture
def model(seam):
    def picky(x):
        if (seam.to_numpy(x) == 3).any():
            raise ValueError("three")
        return x * 2

    def narrow(x):
        if x.shape[1] != 16:
            raise ValueError("widths must be equal")
        return x

    return {"picky": picky, "narrow": narrow, "same": lambda x: x}


def two_lines(fold, x):
    if x == 3:
        return fold.add("picky", x)
    return fold.add("picky", x)


def width(fold, x):
    return fold.add("narrow", x)


@ways
def test_a_value_that_an_op_refuses_names_example_and_line(backend, model, way):
    error = failure(Fold(backend=backend), model, [0, 1, 2, 4, 5, 3, 6], two_lines, way)
    line = inspect.getsourcelines(two_lines)[1] + 2
    assert notes(error) == [raised_by(5, way)]
    assert f"{__file__}:{line}" in error.message and "(trace 0)" not in error.message


@ways
def test_a_row_of_another_width_names_its_example_and_what_others_have(backend, model, way):
    examples = [np.ones((1, 15 if i == 37 else 16), np.float32) for i in range(64)]
    error = failure(Fold(backend=backend), model, examples, width, way)
    told = "Other calls of 'narrow' have rows of shape (16,) as operand 0."
    assert sorted(notes(error)) == sorted([raised_by(37, way), told])


@pytest.mark.parametrize("way", ["run", "traces"])
def test_rows_of_nodes_of_another_width_name_their_examples(backend, model, way):
    examples = [np.ones((1, 15 if i in (1, 5) else 16), np.float32) for i in range(8)]
    error = failure(Fold(backend=backend), model, examples, lambda f, x: width(f, f.add("same", x)), way)
    name = "trace" if way == "traces" else "example"
    assert notes(error) == [
        f"Raised by {name} 1, {name} 5 of fold.run.",
        "Other calls of 'narrow' have rows of shape (16,) as operand 0.",
    ]


@pytest.mark.parametrize("way", ["run", "traces"])
def test_results_of_another_width_name_their_example(backend, model, way):
    examples = [np.ones((1, 15 if i == 2 else 16), np.float32) for i in range(4)]
    error = failure(Fold(backend=backend), model, examples, lambda f, x: f.add("same", x), way)
    assert "rows of a group to agree" in error.message and notes(error) == [raised_by(2, way)]


@pytest.mark.parametrize("way", ["run", "traces"])
def test_ragged_rows_of_two_widths_name_their_example(backend, model, way):
    def fn(fold, widths):
        return fold.add("total", ragged([fold.add("same", np.ones((1, n), np.float32)) for n in widths]))

    error = failure(Fold(backend=backend), model | {"total": lambda x: x}, [(3, 3), (3, 4)], fn, way)
    assert "a ragged operand" in error.message and notes(error) == [raised_by(1, way)]


@pytest.mark.parametrize("way", ["run", "traces"])
def test_the_members_of_a_ragged_operand_are_those_of_their_example(backend, seam, way):
    def total(kids):
        if (seam.to_numpy(kids.values) == 3).any():
            raise ValueError("three")
        return kids.lengths

    error = failure(
        Fold(backend=backend), {"total": total}, [[1], [2, 4], [], [5, 3], [6]], add_ragged, way
    )
    assert notes(error) == [raised_by(3, way)]


def add_ragged(fold, numbers):
    return fold.add("total", ragged(numbers, row_shape=(), dtype="int"))


@pytest.mark.parametrize("way", ["run", "traces"])
def test_an_op_that_takes_no_row_names_nobody_and_runs_few_times(backend, way):
    ran = itertools.count()  # which stays what it is, where a list is put back

    def broken(x):
        next(ran)
        raise ValueError("never")

    error = failure(Fold(backend=backend), {"picky": broken}, [1] * 64, two_lines, way)
    assert not notes(error) and "ValueError: never" in error.message
    assert next(ran) == 1 + 3


def test_of_many_rows_few_launches_find_the_one(backend, seam):
    ran = itertools.count()

    def picky(x):
        next(ran)
        if (seam.to_numpy(x) == 3).any():
            raise ValueError("three")
        return x

    error = failure(Fold(backend=backend), {"picky": picky}, [0] * 600 + [3] + [0] * 423, two_lines, "run")
    assert notes(error) == [raised_by(600, "run")]
    assert next(ran) <= 1 + 3 + 10 + 1


def test_an_op_that_must_not_run_twice_runs_once():
    ran = []

    @multifold.trusted
    def send(x):
        ran.append(x.tolist())
        raise ValueError("refused")

    error = failure(Fold(backend="numpy"), {"picky": send}, [1, 2, 3], two_lines, "run")
    assert ran == [[1, 2, 3]] and not notes(error)


def test_state_stays_as_the_failing_launch_has_left_it():
    class Model:
        calls = 0

        def picky(self, x):
            self.calls += 1
            np.random.random()
            if (x == 3).any():
                raise ValueError("three")
            return x

    model = Model()
    np.random.seed(0)
    error = failure(Fold(backend="numpy"), model, [1, 3, 2], two_lines, "run")
    assert notes(error) == [raised_by(1, "run")] and model.calls == 1
    after = np.random.random()
    np.random.seed(0)
    assert after == np.random.random(2)[1]


def test_what_apply_runs_names_the_line_alone(backend, model):
    fold = Fold(backend=backend)
    nodes = [two_lines(fold, x) for x in (1, 3, 2)]
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, nodes)
    assert f":{inspect.getsourcelines(two_lines)[1] + 2}" in caught.value.message and not notes(
        caught.value
    )


def test_an_op_that_fails_on_no_row_alone_names_nobody():
    def crowded(x):
        if len(set(x.tolist())) > 2:
            raise ValueError("too many")
        return x

    error = failure(Fold(backend="numpy"), {"picky": crowded}, [1, 2, 4, 5], two_lines, "run")
    assert not notes(error) and "first recorded" in error.message
