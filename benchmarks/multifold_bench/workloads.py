"""The workloads by name: how their examples are read or drawn, and the tasks that run on them.

Two families of trees are the core's own, from `multifold._measure`. The others are in `digits`, `pairs`,
`parser`, `peers` and `typed`.
"""

from __future__ import annotations

from multifold._measure.benchmark import Batch, Benchmark, Examples, OneByOne, Rng, Tell, Workload
from multifold._measure.files import PathLike
from multifold._measure.workloads import (
    BinaryBenchmark,
    BinaryTree,
    ChildSumBenchmark,
    read_python_ast,
    read_sst,
)
from multifold_bench import digits, pairs, parser, peers, typed
from multifold_bench.examples import binary_tree, no_files, read_phrases
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import random_tree

__all__ = ["WORKLOADS", "Batch", "Benchmark", "OneByOne"]


def random_trees(rng: Rng, count: int) -> list[BinaryTree]:
    """Draw binary trees of 14 to 22 leaves, cut anywhere: 36 calls on average with the output."""
    return [binary_tree(random_tree(rng)) for _ in range(count)]


def read_synthetic(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees, which need no file."""
    no_files(path, "synthetic")
    return Examples(random_trees, WORDS, CLASSES)


WORKLOADS = {
    "python-ast": Workload(read_python_ast, ChildSumBenchmark),
    "sentences": Workload(read_phrases, BinaryBenchmark),
    "sst": Workload(read_sst, BinaryBenchmark),
    "synthetic": Workload(read_synthetic, BinaryBenchmark),
    **digits.WORKLOADS,
    **pairs.WORKLOADS,
    **parser.WORKLOADS,
    **peers.WORKLOADS,
    **typed.WORKLOADS,
}
"""What ``--workload`` takes."""
