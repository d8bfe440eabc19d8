"""Explanations of programs as they stand."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from explained import plain

import multifold
from multifold.explain import Explanation


def join(a, b):
    return np.tanh(a + b)


def total_of(tree):
    return np.add(join(*map(total_of, tree)), 1) if isinstance(tree, tuple) else np.full(2, 1.0 * tree)


@pytest.fixture
def plain_explanation():
    run = multifold.batched(total_of, cells=[join], backend="numpy")
    run([(0, 1), ((1, 2), 3)])
    return run.explain()


def test_calls_of_plain_programs_are_told_apart_by_their_ops_first(plain_explanation):
    assert str(plain_explanation.why(0, 1)) == "Call 0 is of op 'join' and call 1 of op 'add'."
    assert plain_explanation.why(0, 2).cause == "together"
    assert plain_explanation.why(0, 4).cause == "source"


def test_values_are_told_apart_among_the_calls_of_one_op_alone():
    fold = plain()
    keywords = [object(), object()]
    for op in "fg":
        fold.add(op, 1, by=keywords[0])
    fold.add("g", 1, by=keywords[1])
    (reason,) = fold.explain().reasons
    assert str(reason) == "keyword 'by' is an object (1 call), an object (no. 2) (1 call)"


def test_explanations_of_plain_programs_are_explanations(plain_explanation):
    assert isinstance(plain_explanation, Explanation)
    assert plain_explanation.rounds == (plain_explanation.explanation,)
    assert plain_explanation.glue == [] and len(plain_explanation.slow) == 1
    lines = plain_explanation.listing().splitlines()
    assert [line[:7] for line in lines[:2]] == ["0  join", "1  add("]


@multifold.cell
def more(x):
    return x + 1


@multifold.cell
def twice(x):
    return x * 2


def test_a_plain_program_is_not_told_to_pass_a_schedule():
    def grown(steps):
        return reduce(lambda x, step: step(x), steps, np.ones(2))

    run = multifold.batched(grown, backend="numpy")
    run([[more, more, twice, twice], [twice, twice, more, more]])
    orders = [reason for reason in run.explain().reasons if reason.cause == "order"]
    assert orders and not any(reason.hint for reason in orders)
    assert "schedule=" not in str(run.explain())
