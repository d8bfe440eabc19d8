"""A task of made-up trees, for the tests of training: small, and with something to learn in fifty steps."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold.models import BinaryTreeLSTM, ChildSumTreeLSTM
from multifold.models.layers import postorder
from multifold_bench.datasets.snli import ParseTree
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.task import Choice, TrainingTask

WORDS = 6
CLASSES = 3


def tree(rng: np.random.Generator, leaves: int) -> ParseTree:
    """Return a random binary tree; its words are the digits of their ids."""
    if leaves == 1:
        return ParseTree(str(rng.integers(WORDS)))
    left = int(rng.integers(1, leaves))
    return ParseTree(None, (tree(rng, left), tree(rng, leaves - left)))


def label(node: ParseTree) -> int:
    """Return what is to be learned: in which third of the ids the last word below a node is."""
    while node.children:
        node = node.right
    return int(node.word or 0) * CLASSES // WORDS


@final
class MadeUpTask(TrainingTask):
    """Classifies all nodes of random binary trees of up to five words.

    Parameters
    ----------
    train : int
        How many trees there are for training.
    """

    name = "made-up"
    criterion = "accuracy"
    models: ClassVar = {
        "binary": Choice(lambda task, width, seed: BinaryTreeLSTM(WORDS + 1, width, CLASSES, seed=seed), 3),
        "child-sum": Choice(
            lambda task, width, seed: ChildSumTreeLSTM(WORDS + 1, width, CLASSES, seed=seed), 3
        ),
    }

    def __init__(self, train: int = 20) -> None:
        rng = np.random.default_rng(0)
        counts = {"train": train, "dev": 6, "test": 6}
        super().__init__(
            {part: [tree(rng, int(n)) for n in rng.integers(1, 6, k)] for part, k in counts.items()}
        )

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        def word(node: ParseTree) -> int:
            return WORDS if node.word is None else int(node.word)

        return [fold.add("logits", state[0]) for state in model.encode_all(fold, example, word)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(CLASSES)[[label(node) for node in postorder(example)]]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        expected = np.array([label(node) for example in examples for node in postorder(example)])
        return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), expected)}
