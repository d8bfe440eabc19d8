"""The workloads of many types: query plans with a network for each operator, and graphs of five ops.

Both are drawn: plans of 8 to 40 operators of a dozen sorts, and graphs in layers of 16 calls, of which each
reads results of the two layers before (`multifold_bench.graphs.control`). All results are read.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, final

from multifold import ops
from multifold._measure.benchmark import Examples, Rng, Tell, Workload
from multifold._measure.files import PathLike
from multifold.backend import Array
from multifold.models import Model
from multifold.models.layers import Initial, linear, postorder
from multifold_bench.datasets.plans import QueryPlan
from multifold_bench.examples import drawn, no_files
from multifold_bench.graphs.base import WORDS
from multifold_bench.graphs.control import sample_dag, typed_dag
from multifold_bench.models import QPPNet
from multifold_bench.recorded import RowsBenchmark

SCANS = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan")
ABOVE = ("Sort", "Aggregate", "Hash", "Materialize", "Gather", "Limit")
JOINS = ("Hash Join", "Merge Join", "Nested Loop")


def plan(rng: Rng, operators: int, side: str = "Outer") -> QueryPlan:
    """Draw a plan of about so many operators."""
    fields: dict[str, Any] = {"Parent Relationship": side, "Plan Rows": int(rng.integers(1, 10**6))}
    fields["Total Cost"] = float(rng.uniform(1, 10**5))
    if operators < 2:
        return QueryPlan(str(rng.choice(SCANS)), fields)
    if operators < 3 or rng.random() < 0.4:
        return QueryPlan(str(rng.choice(ABOVE)), fields, (plan(rng, operators - 1),))
    left = int(rng.integers(1, operators - 1))
    below = plan(rng, left), plan(rng, operators - 1 - left, "Inner")
    return QueryPlan(str(rng.choice(JOINS)), fields, below)


def read_plans(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return plans that are drawn."""
    no_files(path, "query-plans")
    return drawn(lambda rng: plan(rng, int(rng.integers(8, 41))), 0, 0)


def read_graphs(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return graphs of typed calls that are drawn."""
    no_files(path, "typed-graphs")
    return drawn(sample_dag, WORDS, 0)


@final
class QueryPlanBenchmark(RowsBenchmark):
    """`QPPNet` predicts the time of each operator of a plan."""

    family: ClassVar[str] = "qppnet"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return ()

    def model(self) -> Model:
        return QPPNet([*SCANS, *ABOVE, *JOINS], width=self.width // 4 or 1, hidden=self.width)

    def record(self, fold: Any, example: Any) -> Any:
        return self.program.encode(fold, example)

    def rows(self, example: Any) -> int:
        return len(postorder(example))


def mixing(number: int) -> Callable[..., Array]:
    """Return the op of one type: a layer of its own over what it reads."""

    def op(model: Any, *states: Array) -> Array:
        return ops.tanh(linear(getattr(model, f"mixed_{number}"), *states))

    return op


@final
class TypedGraphNet(Model):
    """A layer for each of five types of calls, with one to three operands.

    Parameters
    ----------
    vocabulary, width : int
        The number of inputs, and of entries of a state.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        initial = Initial(0, "float32")
        parameters = {"embedding": initial.embedding(vocabulary, width)}
        for number in range(1, 6):
            parameters |= initial.linear(f"mixed_{number}", (1 + number % 3) * width, width)
        super().__init__(parameters, width=width)

    def op_0(self, word: Array) -> Array:
        """Return the states ``(n, width)`` of inputs ``(n,)``."""
        return ops.take(self.embedding, word)

    op_1, op_2, op_3, op_4, op_5 = map(mixing, range(1, 6))


@final
class TypedGraphBenchmark(RowsBenchmark):
    """`TypedGraphNet` computes every state of a graph."""

    family: ClassVar[str] = "typed-graph"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (self.width,)

    def model(self) -> Model:
        return TypedGraphNet(self.examples.words, self.width)

    def record(self, fold: Any, example: Any) -> Any:
        return typed_dag(fold, example)


WORKLOADS = {
    "query-plans": Workload(read_plans, QueryPlanBenchmark),
    "typed-graphs": Workload(read_graphs, TypedGraphBenchmark),
}
"""By name."""
