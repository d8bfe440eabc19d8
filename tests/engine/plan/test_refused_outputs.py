"""Examples, outputs and models in the wrong place are refused before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, RecordError, Unfold


@pytest.mark.parametrize("make", [Fold, lambda: Unfold(backend="numpy")])
def test_a_function_in_the_place_of_the_examples_is_refused(make):
    with pytest.raises(RecordError, match=r"fold.run\(model, examples, fn\)"):
        make().run(None, lambda fold, x: fold.add(abs, x), [1, 2])


def test_examples_without_a_function_are_named_by_their_types():
    with pytest.raises(RecordError, match=r"(?s)Received ndarray and int\..*fn") as caught:
        Fold(backend="numpy").run(None, [np.zeros((50, 50)), 1])
    assert len(str(caught.value)) < 300


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


def test_outputs_that_are_none_ask_for_a_return(fold):
    with pytest.raises(RecordError, match="is a `return` missing"):
        fold.run({}, [1.0], lambda fold, x: None)


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
