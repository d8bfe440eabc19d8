"""How related two sentences are: SICK."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold.models import ChildSumSimilarity
from multifold_bench.datasets import postorder, sick
from multifold_bench.train.metrics import pearson, spearman
from multifold_bench.train.tasks.parts import NAMES, Tell, given
from multifold_bench.train.tasks.task import Choice
from multifold_bench.train.tasks.words import WordsTask


@final
class RelatednessTask(WordsTask):
    """The loss compares distributions whose means are the scores; so do its metrics with the means.

    Scores are Pearson's and Spearman's correlation and the mean squared error.

    Parameters
    ----------
    path : path
        The folder of the folders ``train``, ``dev`` and ``test``.
    tell : callable, optional
        Called with how many folders are read, and how many there are.

    References
    ----------
    Tai, Socher and Manning, ACL 2015, section 5.2.
    """

    name = "sick"
    criterion = "pearson"
    models: ClassVar = {
        "child-sum-similarity": Choice(
            lambda task, width, seed: ChildSumSimilarity(
                len(task.words), width, inputs=task.inputs, seed=seed
            ),
            150,
        )
    }
    proposed: ClassVar = {"epochs": 10, "schedule": "cosine"}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        folder = given(path, sick.SOURCE)
        parts = {}
        for part in NAMES:
            parts[part] = list(sick.read(folder / part))
            tell(len(parts), len(NAMES))
        super().__init__(parts)

    def words_of(self, example: Any) -> Iterable[str]:
        return (node.word.lower() for tree in (example.left, example.right) for node in postorder(tree))

    def word(self, node: Any) -> int:
        """Return the id of a node's word."""
        return self.words[node.word.lower()]

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        return [model.compare(fold, example, self.word)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        found: np.ndarray = model.targets([example.similarity])
        return found

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        logits = np.concatenate(outputs)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        predicted = powers @ np.arange(1.0, logits.shape[1] + 1) / powers.sum(axis=1)
        expected = np.array([pair.similarity for pair in examples])
        return {
            "pearson": pearson(predicted, expected),
            "spearman": spearman(predicted, expected),
            "mse": float(np.mean((predicted - expected) ** 2)),
        }
