"""The workloads over pairs of sentences: relatedness and entailment, read from files or drawn.

Without a path examples are drawn whose sizes are distributed like those of the files: lengths, depths and
arities, not words.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

from multifold._measure.benchmark import Examples, Rng, Tell, Workload, drawn_from
from multifold._measure.files import PathLike
from multifold._measure.workloads import BinaryTree, Branch
from multifold.models import ChildSumSimilarity, Model
from multifold_bench.datasets import (
    WordIds,
    bottom_up,
    postorder,
    sick,
    snli,
)
from multifold_bench.examples import binary_tree, drawn, kept
from multifold_bench.graphs.base import draw_length
from multifold_bench.graphs.trees import draw_tree, parse_split
from multifold_bench.models import SPINN
from multifold_bench.recorded import ModelBenchmark


class TreePair(NamedTuple):
    """Two trees, by the names that `ChildSumSimilarity.compare` and `SPINN.compare` know."""

    left: Any
    right: Any

    @property
    def premise(self) -> Any:
        """The first."""
        return self.left

    @property
    def hypothesis(self) -> Any:
        """The second."""
        return self.right


def read_sick(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read pairs of dependency trees: a folder of SICK, or the one that has its ``train``."""
    if path is None:
        return drawn(lambda rng: TreePair(dependencies(rng), dependencies(rng)), 2255, 5)
    folder = Path(path) / "train" if (Path(path) / "train").is_dir() else Path(path)
    pairs = kept(sick.read(folder), limit, tell, path)
    words = WordIds(node.word for x in pairs for tree in (x.left, x.right) for node in postorder(tree))

    def convert(node: Any, children: Sequence[Branch]) -> Branch:
        return Branch(words[node.word], tuple(children))

    trees = [TreePair(bottom_up(x.left, convert), bottom_up(x.right, convert)) for x in pairs]
    return Examples(partial(drawn_from, trees), len(words), 5)


def dependencies(rng: Rng) -> Branch:
    """Draw a dependency tree of 10 words on average: each word hangs on any word before it."""
    children: list[list[Branch]] = []
    nodes: list[Branch] = []
    for place in range(draw_length(rng, 9.7, 3.7, 3, 36)):
        children.append([])
        nodes.append(Branch(int(rng.integers(2255)), children[-1]))
        if place:
            children[int(rng.integers(place))].append(nodes[-1])
    return nodes[0]


@final
class SickBenchmark(ModelBenchmark):
    """Relatedness by two child-sum Tree-LSTMs (Tai, Socher and Manning, ACL 2015)."""

    family = "sick"

    def model(self) -> Model:
        return ChildSumSimilarity(self.examples.words, self.width)

    def record(self, fold: Any, pair: TreePair) -> Any:
        return self.program.compare(fold, pair)


def read_snli(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read pairs of parses from a jsonl file of SNLI; without one, draw some of such lengths."""
    if path is None:
        return drawn(random_pair, 1000, 3)
    pairs = kept(snli.read(path), limit, tell, path)
    trees = [tree for x in pairs for tree in (x.premise, x.hypothesis)]
    words = WordIds(node.word for tree in trees for node in postorder(tree) if node.word is not None)

    def convert(node: Any, children: Sequence[BinaryTree]) -> BinaryTree:
        return BinaryTree(None, *children) if children else BinaryTree(words[node.word])

    found = [TreePair(bottom_up(x.premise, convert), bottom_up(x.hypothesis, convert)) for x in pairs]
    return Examples(partial(drawn_from, found), len(words), len(snli.LABELS))


def random_pair(rng: Rng) -> TreePair:
    """Draw two parses of 14 and 8 words on average."""
    lengths = draw_length(rng, 14.1, 6.0, 2, 60), draw_length(rng, 8.3, 3.2, 2, 40)
    left, right = (draw_tree(rng, length, parse_split) for length in lengths)
    return TreePair(binary_tree(left), binary_tree(right))


@final
class SpinnBenchmark(ModelBenchmark):
    """Entailment by a shift-reduce parser along known parses (Bowman et al., ACL 2016)."""

    family = "spinn"

    def model(self) -> Model:
        return SPINN(**self.sizes)

    def record(self, fold: Any, pair: TreePair) -> Any:
        return self.program.compare(fold, pair)


WORKLOADS = {
    "sick": Workload(read_sick, SickBenchmark),
    "spinn": Workload(read_snli, SpinnBenchmark),
}
"""By name."""
