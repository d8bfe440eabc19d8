"""`multifold_bench.models` on every backend, by the checks that all models are held to."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from model_checks import (
    BINARY,
    compiled,
    test_answers_are_those_of_numpy,
    test_batched_is_one_at_a_time,
    test_examples_are_recorded_in_traces_too,
    test_gradients_are_those_of_differences,
    test_parameters_have_the_same_names_everywhere,
    test_the_same_seed_gives_the_same_weights_in_both_widths,
    wide,
)

from multifold_bench.models import (
    MVRNN,
    SPINN,
    BiLSTMTagger,
    LatticeLSTM,
    ListOpsChain,
    ListOpsLSTM,
    QPPNet,
)

__all__ = [
    "compiled",
    "test_answers_are_those_of_numpy",
    "test_batched_is_one_at_a_time",
    "test_examples_are_recorded_in_traces_too",
    "test_gradients_are_those_of_differences",
    "test_parameters_have_the_same_names_everywhere",
    "test_the_same_seed_gives_the_same_weights_in_both_widths",
    "wide",
]


@dataclass(frozen=True)
class Expression:
    """A list operation as `ListOpsLSTM` and `ListOpsChain` read it."""

    op: str | None = None
    digit: int | None = None
    children: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class QueryPlan:
    """An operator of a query plan as `QPPNet` reads it."""

    operator: str
    fields: dict[str, Any]
    children: tuple[QueryPlan, ...] = ()


def record_expressions(model, fold):
    """Compute nested operations over digits, up to three operands."""
    one, two = (Expression(digit=digit) for digit in (1, 9))
    inner = Expression("MAX", children=(one, two, one))
    outer = [Expression("LAST", children=(inner, two)), Expression("MAX", children=(two,))]
    return [model.compute(fold, tree) for tree in [one, inner, *outer]]


def record_plans(model, fold):
    """Predict the times of a join, a sort, and an operator that has no network of its own."""
    scan = QueryPlan("Scan", {"Plan Rows": 10, "Parent Relationship": "Outer"})
    inner = QueryPlan("Scan", {"Total Cost": 3.5, "Parent Relationship": "Inner"})
    join = QueryPlan("Join", {"Join Type": "Left", "Parent Relationship": "Outer"}, (scan, inner))
    plans = [QueryPlan("Limit", {}, (join,)), QueryPlan("Append", {}, (inner, inner, inner))]
    return [time for plan in plans for time in model.encode(fold, plan)]


def record_parses(model, fold):
    """Relate two sentences."""
    pair = SimpleNamespace(premise=BINARY[2], hypothesis=BINARY[1])
    return [model.compare(fold, pair), model.compare(fold, pair)]


MODELS = {
    "listops-lstm": (
        lambda **options: ListOpsLSTM(("MAX", "LAST"), 4, places=2, **options),
        record_expressions,
    ),
    "listops-chain": (
        lambda **options: ListOpsChain(("MAX", "LAST"), 4, **options),
        record_expressions,
    ),
    "qppnet": (
        lambda **options: QPPNet(("Scan", "Join"), width=2, hidden=3, layers=2, **options),
        record_plans,
    ),
    "bilstm-tagger": (
        lambda **options: BiLSTMTagger(5, 4, 3, width=3, inputs=4, character_inputs=2, hidden=3, **options),
        lambda model, fold: model.tag_words(fold, [3, (0, 2), 1]) + model.tag_words(fold, [(3,)]),
    ),
    "spinn": (lambda **options: SPINN(5, 4, tracker=3, hidden=4, **options), record_parses),
    "mv-rnn": (
        lambda **options: MVRNN(5, 3, 2, **options),
        lambda model, fold: [fold.add("logits", model.encode(fold, tree)[0]) for tree in BINARY],
    ),
    "lattice-lstm": (
        lambda **options: LatticeLSTM(5, 4, 3, 4, inputs=2, **options),
        lambda model, fold: model.tag_characters(fold, [(1, ()), (2, ((0, 3),)), (0, ((0, 1), (1, 2)))]),
    ),
}


@pytest.fixture(params=MODELS)
def example(request):
    """A model's constructor, and what records a minibatch and returns a group of nodes."""
    return MODELS[request.param]
