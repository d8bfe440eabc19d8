"""The workloads of many types of calls: an op for each operator, or states of several sorts.

Without a path examples are drawn whose sizes are distributed like those of the files: lengths, depths and
arities, not words.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

from multifold._compare.benchmark import Examples, Rng, Tell, Workload, drawn_from
from multifold._compare.files import PathLike
from multifold._compare.workloads import BinaryTree
from multifold.models import (
    MVRNN,
    LatticeLSTM,
    ListOpsLSTM,
    Model,
    QPPNet,
)
from multifold_bench.datasets import (
    listops,
    plans,
    postorder,
)
from multifold_bench.examples import drawn, kept, no_files
from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS
from multifold_bench.graphs.sequences import sample_lattice
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.recorded import ModelBenchmark, RowsBenchmark
from multifold_bench.trees import binary_tree


def read_listops(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read expressions; without a path draw them as the data set's own generator does."""
    if path is None:
        return drawn(partial(listops.draw, depth=20), 0, 10)
    found = [example.expression for example in kept(listops.read(path), limit, tell, path)]
    return Examples(partial(drawn_from, found), 0, 10)


@final
class ListOpsBenchmark(ModelBenchmark):
    """One network for each operator, over any number of operands (Nangia and Bowman, NAACL 2018)."""

    family = "listops"

    def model(self) -> Model:
        return ListOpsLSTM(tuple(listops.OPERATORS), self.width)

    def record(self, fold: Any, expression: listops.Expression) -> Any:
        return fold.add("logits", self.program.encode(fold, expression)[0])


SCANS = ("Seq Scan", "Seq Scan", "Index Scan", "Index Only Scan", "CTE Scan")
JOINS = ("Hash Join", "Hash Join", "Nested Loop", "Merge Join")
OTHERS = ("Aggregate", "Sort", "Gather", "Gather Merge", "Limit", "Memoize", "Incremental Sort")
OPERATORS = tuple(sorted({*SCANS, *JOINS, *OTHERS, "Hash"}))


def read_plans(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read query plans; without a path draw some as large as those of TPC-H."""
    if path is None:
        return drawn(random_plan, 0, 1)
    return Examples(partial(drawn_from, kept(plans.read(path), limit, tell, path)), 0, 1)


def random_plan(rng: Rng) -> plans.QueryPlan:
    """Draw a plan of 13 operators on average: joins on top of each other, sorts and sums between them."""

    def node(operator: str, *children: plans.QueryPlan, side: str = "Outer") -> plans.QueryPlan:
        rows, cost = rng.lognormal(6, 3, size=2).tolist()
        fields = {"Plan Rows": rows, "Total Cost": cost, "Startup Cost": cost / 2, "Plan Width": 32}
        return plans.QueryPlan(operator, {**fields, "Parent Relationship": side}, children)

    def one_of(operators: Sequence[str]) -> str:
        return operators[int(rng.integers(len(operators)))]

    plan = node(one_of(SCANS))
    for _ in range(rng.integers(6)):
        inner = node("Hash", node(one_of(SCANS)), side="Inner")
        plan = node(one_of(JOINS), plan, inner)
    for _ in range(rng.integers(1, 8)):
        plan = node(one_of(OTHERS), plan)
    return plan


@final
class PlansBenchmark(RowsBenchmark):
    """One network for each operator of a query plan (Marcus and Papaemmanouil, VLDB 2019)."""

    family = "plans"

    def model(self) -> Model:
        return QPPNet(OPERATORS, width=self.width, hidden=self.width)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return ()

    def rows(self, example: plans.QueryPlan) -> int:
        return sum(1 for _ in postorder(example))

    def record(self, fold: Any, plan: plans.QueryPlan) -> Any:
        return self.program.encode(fold, plan)


def read_lattices(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Draw sentences of characters in which words of a lexicon begin and end."""
    no_files(path, "lattice")
    return drawn(sample_lattice, CHARACTERS, CLASSES)


@final
class LatticeBenchmark(RowsBenchmark):
    """A lattice LSTM, a tag at every character (Zhang and Yang, ACL 2018)."""

    family = "lattice"

    def model(self) -> Model:
        examples = self.examples
        return LatticeLSTM(examples.words, WORDS, examples.classes, self.width)

    def record(self, fold: Any, places: Any) -> Any:
        return self.program.tag_characters(fold, places)


def read_phrases(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees as long and as deep as those of the Stanford Sentiment Treebank."""
    no_files(path, "sentences")
    return drawn(lambda rng: binary_tree(sentence_tree(rng)), WORDS, CLASSES)


@final
class MatrixVectorBenchmark(ModelBenchmark):
    """A vector and a matrix for each phrase (Socher et al., EMNLP 2012)."""

    family = "mv_rnn"

    def model(self) -> Model:
        return MVRNN(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", self.program.encode(fold, tree)[0])


WORKLOADS = {
    "lattice": Workload(read_lattices, LatticeBenchmark),
    "listops": Workload(read_listops, ListOpsBenchmark),
    "mv-rnn": Workload(read_phrases, MatrixVectorBenchmark),
    "plans": Workload(read_plans, PlansBenchmark),
}
"""By name."""
