"""The workloads of the sources and those of many types: examples, from files or drawn, and tasks.

Without a path examples are drawn whose sizes are distributed like those of the files: lengths, depths and
arities, not words. Their plain programs are the recording ones, run one row at a time (`benchmark.Plain`).
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from multifold import ops
from multifold._compare.benchmark import Examples, Rng, Tell, Workload, drawn_from
from multifold._compare.files import PathLike
from multifold._compare.workloads import BinaryTree, Branch
from multifold.backend import Array
from multifold.errors import MultifoldError
from multifold.models import (
    MLP,
    MVRNN,
    SPINN,
    ChildSumSimilarity,
    LatticeLSTM,
    ListOpsLSTM,
    Model,
    QPPNet,
)
from multifold.models.layers import Initial, linear
from multifold_bench import generators
from multifold_bench.datasets import (
    DatasetError,
    Vocabulary,
    bottom_up,
    idx,
    listops,
    plans,
    postorder,
    sick,
    snli,
)
from multifold_bench.recorded import RecordedBenchmark
from multifold_bench.trees import binary_tree


class Pair(NamedTuple):
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


def kept(examples: Iterable[Any], limit: int, tell: Tell, path: PathLike) -> list[Any]:
    """Read the first examples of a file, at least one."""
    found = []
    for example in islice(examples, limit):
        found.append(example)
        tell(len(found), limit)
    if not found:
        raise DatasetError("expected an example, received the end of the file.", path=path, line=1)
    return found


def no_files(path: PathLike | None, name: str) -> None:
    """Refuse a path for what is always drawn."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload '{name}'. Received --data {path}.")


def drawn(sample: Callable[[Rng], Any], words: int, classes: int) -> Examples:
    """Return examples that are drawn one by one."""
    return Examples(lambda rng, count: [sample(rng) for _ in range(count)], words, classes)


# ---- pairs of sentences --------------------------------------------------------------------------


def read_sick(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read pairs of dependency trees: a folder of SICK, or the one that has its ``train``."""
    if path is None:
        return drawn(lambda rng: Pair(dependencies(rng), dependencies(rng)), 2255, 5)
    folder = Path(path) / "train" if (Path(path) / "train").is_dir() else Path(path)
    pairs = kept(sick.read(folder), limit, tell, path)
    words = Vocabulary(node.word for x in pairs for tree in (x.left, x.right) for node in postorder(tree))

    def convert(node: Any, children: Sequence[Branch]) -> Branch:
        return Branch(words[node.word], tuple(children))

    trees = [Pair(bottom_up(x.left, convert), bottom_up(x.right, convert)) for x in pairs]
    return Examples(partial(drawn_from, trees), len(words), 5)


def dependencies(rng: Rng) -> Branch:
    """Draw a dependency tree of 10 words on average: each word hangs on any word before it."""
    children: list[list[Branch]] = []
    nodes: list[Branch] = []
    for place in range(generators.draw_length(rng, 9.7, 3.7, 3, 36)):
        children.append([])
        nodes.append(Branch(int(rng.integers(2255)), children[-1]))
        if place:
            children[int(rng.integers(place))].append(nodes[-1])
    return nodes[0]


class Written(RecordedBenchmark):
    """A benchmark whose model brings its recording program along."""

    @cached_property
    def program(self) -> Any:
        """The model as it was written, for its recording program."""
        return self.model()


@final
class SickBenchmark(Written):
    """Relatedness by two child-sum Tree-LSTMs (Tai, Socher and Manning, ACL 2015)."""

    family = "sick"

    def model(self) -> Model:
        return ChildSumSimilarity(self.examples.words, self.width)

    def record(self, fold: Any, pair: Pair) -> Any:
        return self.program.compare(fold, pair)


def read_snli(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read pairs of parses from a jsonl file of SNLI; without one, draw some of such lengths."""
    if path is None:
        return drawn(random_pair, 1000, 3)
    pairs = kept(snli.read(path), limit, tell, path)
    trees = [tree for x in pairs for tree in (x.premise, x.hypothesis)]
    words = Vocabulary(node.word for tree in trees for node in postorder(tree) if node.word is not None)

    def convert(node: Any, children: Sequence[BinaryTree]) -> BinaryTree:
        return BinaryTree(None, *children) if children else BinaryTree(words[node.word])

    found = [Pair(bottom_up(x.premise, convert), bottom_up(x.hypothesis, convert)) for x in pairs]
    return Examples(partial(drawn_from, found), len(words), len(snli.LABELS))


def random_pair(rng: Rng) -> Pair:
    """Draw two parses of 14 and 8 words on average."""
    lengths = generators.draw_length(rng, 14.1, 6.0, 2, 60), generators.draw_length(rng, 8.3, 3.2, 2, 40)
    left, right = (generators.draw_tree(rng, length, generators.parse_split) for length in lengths)
    return Pair(binary_tree(left), binary_tree(right))


@final
class SpinnBenchmark(Written):
    """Entailment by a shift-reduce parser along known parses (Bowman et al., ACL 2016)."""

    family = "spinn"

    def model(self) -> Model:
        return SPINN(**self.sizes)

    def record(self, fold: Any, pair: Pair) -> Any:
        return self.program.compare(fold, pair)


# ---- one structure -------------------------------------------------------------------------------


def read_mnist(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the training files of MNIST in a folder; without one, take scikit-learn's digits."""
    if path is None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DatasetError(
                "expected --data DIR for the workload 'mnist', or scikit-learn for its digits: "
                "pip install scikit-learn.",
                idx.SOURCE,
            ) from error
        images = load_digits().data.astype(np.float32) / 16
    else:
        files = [next(iter(sorted(Path(path).glob(f"train-{x}*"))), None) for x in ("images", "labels")]
        if files[0] is None or files[1] is None:
            raise DatasetError("expected train-images* and train-labels*.", idx.SOURCE, path=path)
        digits = kept(idx.read(files[0], files[1]), limit, tell, path)
        images = np.stack([digit.image.ravel() for digit in digits]).astype(np.float32) / 255
    rows = [image[None] for image in images]
    return Examples(partial(drawn_from, rows), images.shape[1], 10)


@final
class MnistBenchmark(Written):
    """An MLP of two hidden layers that is fed one image at a time."""

    family = "mnist"

    def model(self) -> Model:
        return MLP(self.examples.words, (self.width, self.width), self.examples.classes)

    def record(self, fold: Any, image: np.ndarray) -> Any:
        return self.program.classify(fold, image)

    def stack(self, examples: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(examples)


LEAVES = 128
"""Of the trees of TensorFlow Fold's benchmark."""


def read_fold(path: PathLike | None, limit: int, tell: Tell, *, same: bool) -> Examples:
    """Return random trees of 128 leaves, those of a minibatch all of one shape or all different."""
    no_files(path, "fold-2017")

    def draw(rng: Rng, count: int) -> list[BinaryTree]:
        shape = generators.draw_tree(rng, LEAVES, generators.uniform_split)
        trees = []
        for _ in range(count):
            if not same:
                shape = generators.draw_tree(rng, LEAVES, generators.uniform_split)
            words = rng.integers(generators.WORDS, size=len(shape)).tolist()
            nodes = (
                node if isinstance(node, str) else word for node, word in zip(shape, words, strict=True)
            )
            trees.append(binary_tree(tuple(nodes)))
        return trees

    return Examples(draw, generators.WORDS, generators.CLASSES)


@final
class ConcatTree(Model):
    """A recursive network whose cell is one layer over its two parts: TensorFlow Fold's benchmark.

    Parameters
    ----------
    vocabulary, width, classes : int
        The numbers of words and of classes, and the width of states.

    References
    ----------
    Looks et al., Deep Learning with Dynamic Computation Graphs, ICLR 2017, section 3.
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        initial = Initial(0, "float32")
        super().__init__(
            {
                "embedding": initial.embedding(vocabulary, width),
                **initial.linear("compose", 2 * width, width),
                **initial.linear("output", width, classes),
            }
        )

    def leaf(self, word: Array) -> Array:
        """Return the states of words: ids ``(n,)`` give ``(n, width)``."""
        return ops.take(self.embedding, word)

    def join(self, left: Array, right: Array) -> Array:
        """Return the states of phrases from those of their parts, all ``(n, width)``."""
        return ops.tanh(linear(self.compose, ops.concat([left, right], axis=1)))

    def logits(self, state: Array) -> Array:
        """Return the scores of the classes: ``(n, width)`` gives ``(n, classes)``."""
        return linear(self.output, state)


@final
class ConcatBenchmark(RecordedBenchmark):
    """The benchmark of TensorFlow Fold, at whatever width."""

    family = "concat"

    def model(self) -> Model:
        return ConcatTree(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        def encode(tree: BinaryTree) -> Any:
            if tree.left is None:
                return fold.add("leaf", tree.word)
            return fold.add("join", encode(tree.left), encode(tree.right))

        return fold.add("logits", encode(tree))

    def stack(self, examples: Sequence[BinaryTree]) -> BinaryTree | None:
        first = examples[0]
        if first.left is None:
            alike = all(tree.left is None for tree in examples)
            return BinaryTree(np.array([tree.word for tree in examples])) if alike else None
        if any(tree.left is None for tree in examples):
            return None
        left = self.stack([tree.left for tree in examples])
        right = None if left is None else self.stack([tree.right for tree in examples])
        return None if right is None else BinaryTree(None, left, right)


# ---- many types ----------------------------------------------------------------------------------


def read_listops(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read expressions; without a path draw them as the data set's own generator does."""
    if path is None:
        return drawn(random_expression, 0, 10)
    found = [example.expression for example in kept(listops.read(path), limit, tell, path)]
    return Examples(partial(drawn_from, found), 0, 10)


def random_expression(rng: Rng, depth: int = 0) -> listops.Expression:
    """Draw an operation on two to five operands, each an operation with probability 1/4, else a digit."""
    operators = tuple(listops.OPERATORS)
    operands = tuple(
        random_expression(rng, depth + 1)
        if depth < 19 and rng.random() < 0.25
        else listops.Expression(digit=int(rng.integers(10)))
        for _ in range(rng.integers(2, 6))
    )
    return listops.Expression(operators[int(rng.integers(len(operators)))], None, operands)


@final
class ListOpsBenchmark(Written):
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


def random_plan(rng: Rng) -> plans.Plan:
    """Draw a plan of 13 operators on average: joins on top of each other, sorts and sums between them."""

    def node(operator: str, *children: plans.Plan, side: str = "Outer") -> plans.Plan:
        rows, cost = rng.lognormal(6, 3, size=2).tolist()
        fields = {"Plan Rows": rows, "Total Cost": cost, "Startup Cost": cost / 2, "Plan Width": 32}
        return plans.Plan(operator, {**fields, "Parent Relationship": side}, children)

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
class PlansBenchmark(Written):
    """One network for each operator of a query plan (Marcus and Papaemmanouil, VLDB 2019)."""

    family = "plans"

    def model(self) -> Model:
        return QPPNet(OPERATORS, width=self.width, hidden=self.width)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return ()

    def rows(self, example: plans.Plan) -> int:
        return sum(1 for _ in postorder(example))

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        return [node for example in examples for node in self.record(fold, example)]

    def record(self, fold: Any, plan: plans.Plan) -> Any:
        return self.program.encode(fold, plan)


def read_lattices(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Draw sentences of characters in which words of a lexicon begin and end."""
    no_files(path, "lattice")
    return drawn(generators.sample_lattice, generators.CHARACTERS, generators.CLASSES)


@final
class LatticeBenchmark(Written):
    """A lattice LSTM, a tag at every character (Zhang and Yang, ACL 2018)."""

    family = "lattice"

    def model(self) -> Model:
        examples = self.examples
        return LatticeLSTM(examples.words, generators.WORDS, examples.classes, self.width)

    def rows(self, example: Any) -> int:
        return len(example)

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        return [node for example in examples for node in self.record(fold, example)]

    def record(self, fold: Any, places: Any) -> Any:
        return self.program.tag_characters(fold, places)


def read_phrases(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees as long and as deep as those of the Stanford Sentiment Treebank."""
    no_files(path, "sentences")
    return drawn(
        lambda rng: binary_tree(generators.sentence_tree(rng)), generators.WORDS, generators.CLASSES
    )


@final
class MatrixVectorBenchmark(Written):
    """A vector and a matrix for each phrase (Socher et al., EMNLP 2012)."""

    family = "mv_rnn"

    def model(self) -> Model:
        return MVRNN(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", self.program.encode(fold, tree)[0])


WORKLOADS = {
    "fold-2017-same": Workload(partial(read_fold, same=True), ConcatBenchmark),
    "fold-2017-different": Workload(partial(read_fold, same=False), ConcatBenchmark),
    "lattice": Workload(read_lattices, LatticeBenchmark),
    "listops": Workload(read_listops, ListOpsBenchmark),
    "mnist": Workload(read_mnist, MnistBenchmark),
    "mv-rnn": Workload(read_phrases, MatrixVectorBenchmark),
    "plans": Workload(read_plans, PlansBenchmark),
    "sick": Workload(read_sick, SickBenchmark),
    "spinn": Workload(read_snli, SpinnBenchmark),
}
"""By name."""
