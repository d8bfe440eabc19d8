"""What holds for any recording: random programs with operands of every kind.

A program is a list of instructions in small integers, so that hypothesis can shrink it. `record` plays it
on a `Fold` or an `Unfold`, for several examples that read common rows and their own. Rows are 2 or 3
wide, and the same ops serve both, so that launches have to be divided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import Fold, Node, Unfold, ragged, shared, static
from multifold._engine.plan.policies import POLICIES

WIDTHS = (2, 3)
NAMES = [f"{name}{width}" for name in "vws" for width in WIDTHS]
"""Parameters: v and w are rows of shape ``(1, width)``, s is shared, of shape ``(width,)``."""

small = st.integers(0, 30)
instructions = st.tuples(st.integers(0, 14), st.sampled_from(WIDTHS), small, small, small)
programs = st.tuples(
    st.lists(instructions, min_size=1, max_size=10),
    st.lists(small, min_size=1, max_size=4),  # an example each: how far it turns the operands
)
picks = st.lists(st.lists(small, min_size=1, max_size=6), min_size=1, max_size=4)
policies = st.sampled_from(list(POLICIES))
relaxed = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def model(seam, array, column, total, ops):
    """Return what makes the model from parameters; it holds the ops of `record`."""

    def of(p):
        def squash(x):
            return ops.tanh(x)

        def whole(w, x):
            rows = seam.split(w, [1] * seam.rows(w)) if seam.rows(w) > 1 else [w]
            return sum(rows[1:], rows[0]) * 0.5 + x

        return {
            "leaf": lambda x: x * 1.5,
            "squash": squash,
            "mix": lambda x, y: squash(x) * y - x,
            "number": lambda x, k: x * column(k),
            "numbers": lambda x, a, b: x + column(a) * 0.1 - column(b),
            "weighted": lambda x, w: x * w,
            "both": lambda d: {"sum": d["x"] + d["yz"][0], "pair": (d["yz"][1] * 0.5, [d["x"]])},
            "total": total,
            "beside": lambda x, rows: x - total(rows),
            "scaled": lambda x, k, by: x * (k + by),
            "pair": lambda x: (x * 0.7, squash(x)),
            "stack": lambda *xs: seam.concat(xs),
            "whole": whole,
            "constant2": lambda: p["v2"] * 2.0,
            "constant3": lambda: p["v3"] * 2.0,
        }

    return of


def record(fold: Any, program: Any, p: dict[str, Any]) -> dict[int, list[Any]]:
    """Play a program on a fold or its eager twin; return the rows that it made, by width."""
    instructions, turns = program
    leaves = {
        width: [fold.add("number", fold.add("leaf", p[f"v{width}"]), i / 4) for i in range(4)]
        for width in WIDTHS
    }
    made = {width: list(rows) for width, rows in leaves.items()}
    for turn in turns:
        own = {width: list(rows) for width, rows in leaves.items()}
        play(fold, instructions, turn, p, own)
        for width in WIDTHS:
            made[width] += own[width][len(leaves[width]) :]
    return made


def play(fold: Any, program: list[Any], turn: int, p: dict[str, Any], made: dict[int, list[Any]]) -> None:
    """Record one example; it reads the rows that it made and those that were made before."""
    wholes: dict[int, list[Any]] = {width: [] for width in WIDTHS}
    for kind, width, a, b, c in program:
        rows = made[width]
        x, y, z = (rows[(i + turn) % len(rows)] for i in (a, b, c))
        if kind == 0:
            new = [fold.add("leaf", (p[f"v{width}"], p[f"w{width}"])[a % 2])]
        elif kind == 1:
            new = [fold.add("squash", x)]
        elif kind == 2:
            new = [fold.add("mix", x, y)]
        elif kind == 3:
            new = [fold.add("number", x, (b, b / 8, bool(b % 2), np.float32(b))[c % 4])]
        elif kind == 4:
            new = [fold.add("numbers", x, b, c / 4)]
        elif kind == 5:
            new = [fold.add("weighted", x, shared(p[f"s{width}"]))]
        elif kind == 6:
            parts = fold.add("both", {"x": x, "yz": [y, z]})
            new = [parts["sum"], parts["pair"][0], parts["pair"][1][0]]
        elif kind == 7:
            new = [fold.add("total", ragged([x, y, z][: b % 4], row_shape=(width,)))]
        elif kind == 8:
            new = [fold.add("beside", x, ragged([y, p[f"w{width}"], z][: c % 4], row_shape=(width,)))]
        elif kind == 9:
            new = [fold.add("scaled", x, static(b % 2), by=c % 2)]
        elif kind == 10:
            new = list(fold.add("pair", x).split(2))
        elif kind == 11:
            wholes[width].append(fold.add("stack", *[x, y, z][: 2 + c % 2]).no_batch())
            new = []
        elif kind == 12 and wholes[width]:
            new = [fold.add("whole", wholes[width][b % len(wholes[width])], x)]
        elif kind == 13:  # a node that is read whole by one call and by rows by another
            new = [fold.add("whole", x.no_batch(), y), fold.add("squash", x)]
        else:
            new = [fold.add(f"constant{width}")]
        rows += [node for node in new if isinstance(node, Node)]


def groups(made: dict[int, list[Any]], choice: list[list[int]]) -> list[list[Any]]:
    """Return groups of rows of one width: repeated, reordered, more than one of each width."""
    chosen = []
    for i, picked in enumerate(choice):
        rows = made[WIDTHS[i % 2]]
        chosen.append([rows[-1 - k % len(rows)] for k in picked])
    return chosen


@pytest.fixture
def parameters():
    rng = np.random.default_rng(0)
    shapes = {name: (int(name[1]),) if name[0] == "s" else (1, int(name[1])) for name in NAMES}
    return {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}


@pytest.fixture
def same(backend, array, model, equal, to_numpy, parameters):
    """Return what compares a fold of a program with its eager twin."""

    def check(program, choice, policy):
        p = {name: array(values) for name, values in parameters.items()}
        fold = Fold(backend=backend, schedule=policy)
        unfold = Unfold(model(p), backend=backend)
        got = fold.apply(model(p), groups(record(fold, program, p), choice))
        expected = unfold.apply(None, groups(record(unfold, program, p), choice))
        for x, y in zip(got, expected, strict=True):
            equal(x, to_numpy(y))

    return check


@relaxed
@given(program=programs, choice=picks, policy=policies)
def test_fold_equals_unfold(same, program, choice, policy):
    same(program, choice, policy)


@settings(relaxed, max_examples=25)
@given(program=programs, other=programs, choice=picks, policy=policies)
def test_a_fold_that_was_reset_does_what_a_new_one_does(
    backend, array, model, to_numpy, parameters, program, other, choice, policy
):
    p = {name: array(values) for name, values in parameters.items()}
    cold = Fold(backend=backend, schedule=policy)
    warm = Fold(backend=backend, schedule=policy)
    asked = groups(record(cold, program, p), choice)
    expected = list(map(to_numpy, cold.apply(model(p), asked)))
    order = str(cold.schedule(asked))
    for recorded in (other, program, program, other, program):  # the last two find forms and plans
        warm.reset()
        asked = groups(record(warm, recorded, p), choice)
        got = list(map(to_numpy, warm.apply(model(p), asked)))
    assert str(warm.schedule(asked)) == order
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_array_equal(x, y)


@settings(relaxed, max_examples=25)
@given(program=programs, choice=picks, policy=policies)
def test_fold_has_the_gradients_of_unfold(
    backend, array, model, gradients, parameters, program, choice, policy
):
    def weighted(fold, p):
        results = fold.apply(
            fold.model if isinstance(fold, Unfold) else model(p),
            groups(record(fold, program, p), choice),
        )
        # A parameter of its own, since MXNet refuses to differentiate what was made of none.
        return [p["v2"], *(x * array(np.cos(np.arange(len(x) * 1.0))[:, None]) for x in results)]

    got = gradients(lambda p: weighted(Fold(backend=backend, schedule=policy), p), parameters)
    expected = gradients(lambda p: weighted(Unfold(model(p), backend=backend), p), parameters)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-3, atol=1e-4)


@relaxed
@given(program=programs, policy=policies)
def test_merged_traces_equal_the_examples_one_by_one(
    backend, seam, array, model, equal, to_numpy, parameters, program, policy
):
    instructions, turns = program
    p = {name: values.astype(seam.number_dtype(float)) for name, values in parameters.items()}
    ops = model({name: array(values) for name, values in parameters.items()})

    def example(recorder, turn):
        made = record(recorder, (instructions, [turn]), p)
        return {"narrow": made[2][-3:], "wide": made[3][:-3:-1]}

    unfold = Unfold(ops, backend=backend)
    expected = [to_numpy(unfold(example(unfold, turn))) for turn in turns]
    traces = [multifold.trace(example, turn) for turn in turns]
    got = Fold(backend=backend, schedule=policy).run(ops, traces)
    for name in ("narrow", "wide"):
        equal(got[name], np.concatenate([x[name] for x in expected]))


@relaxed
@given(program=programs, policy=policies)
def test_every_call_is_in_one_launch_of_its_op(backend, array, parameters, program, policy):
    p = {name: array(values) for name, values in parameters.items()}
    fold = Fold(backend=backend, schedule=policy)
    record(fold, program, p)
    schedule = fold.schedule()
    nodes = [node for launch in schedule.launches for node in launch.nodes]
    assert len(nodes) == len(set(nodes)) == len(fold)
    assert len(schedule.launches) >= schedule.lower_bound
    assert all(f" of {launch.op}>" in repr(node) for launch in schedule.launches for node in launch.nodes)


@settings(relaxed, max_examples=25)
@given(program=programs, choice=picks, policy=policies)
def test_launches_in_pieces_change_no_value(monkeypatch, seam, same, program, choice, policy):
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: (rows + 1) // 2)
    same(program, choice, policy)
