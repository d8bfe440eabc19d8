"""The workloads whose examples may all have one structure: images, and trees of 128 leaves."""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from multifold import ops
from multifold._compare.benchmark import Examples, Rng, Tell, Workload, drawn_from
from multifold._compare.files import PathLike
from multifold._compare.workloads import BinaryTree
from multifold.backend import Array
from multifold.models import (
    MLP,
    Model,
)
from multifold.models.layers import Initial, linear
from multifold_bench.datasets import (
    DatasetError,
    idx,
)
from multifold_bench.examples import kept, no_files
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import draw_tree, uniform_split
from multifold_bench.recorded import ModelBenchmark, RecordedBenchmark
from multifold_bench.trees import binary_tree


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
class MnistBenchmark(ModelBenchmark):
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
        shape = draw_tree(rng, LEAVES, uniform_split)
        trees = []
        for _ in range(count):
            if not same:
                shape = draw_tree(rng, LEAVES, uniform_split)
            words = rng.integers(WORDS, size=len(shape)).tolist()
            nodes = (
                node if isinstance(node, str) else word for node, word in zip(shape, words, strict=True)
            )
            trees.append(binary_tree(tuple(nodes)))
        return trees

    return Examples(draw, WORDS, CLASSES)


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


WORKLOADS = {
    "fold-2017-same": Workload(partial(read_fold, same=True), ConcatBenchmark),
    "fold-2017-different": Workload(partial(read_fold, same=False), ConcatBenchmark),
    "mnist": Workload(read_mnist, MnistBenchmark),
}
"""By name."""
