"""`Fold.check` compares results and gradients with the eager twin, and names what differs."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, MismatchError
from multifold.models import BinaryTreeLSTM


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


@pytest.mark.parametrize("op", DIFFERENT.values(), ids=DIFFERENT)
def test_check_names_the_output_that_differs(fold, seam, op):
    nodes = [fold.add("op", float(i + 1)) for i in range(3)]
    with pytest.raises(MismatchError, match=r"(?s)outputs\['a'\].*Hint: "):
        fold.check({"op": lambda x: op(seam, x)}, {"b": [1], "a": nodes})
