"""Trees with a class for each node, by a GRU, or by two Tree-LSTM cells of which each phrase takes one.

An example is a list of nodes, children first, as `multifold_bench.graphs.trees` draws it: the tree
"(7 8) 9" is ``(7, 8, "first", 9, "second")``, where `first` and `second` are the cells. The MV-RNN of
`multifold.models`, which classifies the root only, reads objects with two parts.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

from multifold import ops
from multifold._compare.benchmark import Examples, Tell, Workload
from multifold._compare.files import PathLike
from multifold._compare.workloads import BinaryTree
from multifold.backend import Array
from multifold.models import MVRNN, Model
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold_bench.examples import drawn, no_files, read_phrases
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import Tree, sentence_tree, tree_states, word_leaf
from multifold_bench.recorded import ModelBenchmark, RowsBenchmark


@final
class DoubleTypedTreeLSTM(Classifier):
    """A binary Tree-LSTM with two cells, `first` and `second`.

    Examples
    --------
    >>> import multifold
    >>> model = DoubleTypedTreeLSTM(vocabulary=10, width=4, classes=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.classify(fold, (7, 8, "first", 9, "second"))
    >>> fold.apply(model, [nodes])[0].shape
    (5, 5)
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        initial = Initial(0, "float32")
        forget = slice(width, 3 * width)
        parameters = {
            "embedding": initial.embedding(vocabulary, width),
            **initial.linear("word", width, 3 * width),
            **initial.linear("one", 2 * width, 5 * width, forget),
            **initial.linear("other", 2 * width, 5 * width, forget),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters)

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of words: ids ``(n,)`` give ``(n, width)`` each."""
        return ops.lstm_state(linear(self.word, ops.take(self.embedding, word)))

    def first(self, left_h: Array, left_c: Array, right_h: Array, right_c: Array) -> tuple[Array, Array]:
        """Return the states of phrases from the states of their parts, all ``(n, width)``."""
        return ops.lstm_state(linear(self.one, left_h, right_h), [left_c, right_c])

    def second(self, left_h: Array, left_c: Array, right_h: Array, right_c: Array) -> tuple[Array, Array]:
        """Do the same with the weights of the other cell."""
        return ops.lstm_state(linear(self.other, left_h, right_h), [left_c, right_c])

    def classify(self, fold: Any, tree: Tree) -> list[Any]:
        """Record a tree; return the `logits` of its nodes, children first."""
        return [fold.add("logits", h) for h, _ in tree_states(fold, tree, word_leaf)]


@final
class TreeGRU(Classifier):
    """A gated recurrent unit that keeps some of both parts of a phrase, each part with gates of its own.

    Examples
    --------
    >>> import multifold
    >>> model = TreeGRU(vocabulary=10, width=4, classes=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.classify(fold, (7, 8, "children"))
    >>> fold.apply(model, [nodes])[0].shape
    (3, 5)
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        initial = Initial(0, "float32")
        parameters = {"embedding": initial.embedding(vocabulary, width)}
        for part in ("word", "left", "right"):
            parameters |= initial.linear(f"{part}_gates", width, 2 * width)
            parameters |= initial.linear(f"{part}_candidate", width, width)
        parameters |= initial.linear("output", width, classes)
        super().__init__(parameters)

    def leaf(self, word: Array) -> Array:
        """Return the states of words: ids ``(n,)`` give ``(n, width)``."""
        return unit(self.word_gates, self.word_candidate, ops.take(self.embedding, word))

    def children(self, left: Array, right: Array) -> Array:
        """Return the states of phrases from the states of their parts, all ``(n, width)``."""
        left = unit(self.left_gates, self.left_candidate, left)
        return (left + unit(self.right_gates, self.right_candidate, right)) / 2

    def classify(self, fold: Any, tree: Tree) -> list[Any]:
        """Record a tree; return the `logits` of its nodes, children first."""
        states: list[Any] = []
        stack: list[Any] = []
        for node in tree:
            if isinstance(node, str):
                right = stack.pop()
                left = stack.pop()
                stack.append(fold.add("children", left, right))
            else:
                stack.append(fold.add("leaf", node))
            states.append(stack[-1])
        return [fold.add("logits", state) for state in states]


def unit(gates: Any, candidate: Any, h: Array) -> Array:
    """Return ``keep * h + (1 - keep) * new``, where ``new`` reads what another gate leaves of ``h``."""
    reset, keep = ops.split(ops.sigmoid(linear(gates, h)), 2, axis=1)
    new = ops.tanh(linear(candidate, reset * h))
    return new + keep * (h - new)


def read(path: PathLike | None, limit: int, tell: Tell, cells: Sequence[str], name: str) -> Examples:
    """Draw trees as long and as deep as those of the Stanford Sentiment Treebank."""
    no_files(path, name)
    return drawn(partial(sentence_tree, ops=cells), WORDS, CLASSES)


class NodesBenchmark(RowsBenchmark):
    """Every node of a tree is classified."""

    kind: type[Any]

    def model(self) -> Model:
        made: Model = self.kind(**self.sizes)
        return made

    def record(self, fold: Any, tree: Tree) -> Any:
        return self.program.classify(fold, tree)


@final
class DoubleTypedBenchmark(NodesBenchmark):
    """Two Tree-LSTM cells in one tree."""

    family = "double_typed"
    kind = DoubleTypedTreeLSTM


@final
class TreeGRUBenchmark(NodesBenchmark):
    """A Tree-GRU."""

    family = "tree_gru"
    kind = TreeGRU


@final
class MatrixVectorBenchmark(ModelBenchmark):
    """A vector and a matrix for each phrase (Socher et al., EMNLP 2012)."""

    family = "mv_rnn"

    def model(self) -> Model:
        return MVRNN(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", self.program.encode(fold, tree)[0])


WORKLOADS = {
    "double-typed": Workload(
        partial(read, cells=("first", "second"), name="double-typed"), DoubleTypedBenchmark
    ),
    "mv-rnn": Workload(read_phrases, MatrixVectorBenchmark),
    "tree-gru": Workload(partial(read, cells=("children",), name="tree-gru"), TreeGRUBenchmark),
}
"""By name."""
