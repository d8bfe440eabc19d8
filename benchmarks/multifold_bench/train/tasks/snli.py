"""Whether one sentence implies another: SNLI, MultiNLI."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold_bench.datasets import postorder, snli
from multifold_bench.models import SPINN
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.task import Choice
from multifold_bench.train.tasks.words import WordsTask

CLASSES = len(snli.LABELS)


@final
class InferenceTask(WordsTask):
    """Both sentences are read along their parses; the score is the accuracy of the relation.

    Parameters
    ----------
    path : path
        A folder with a file for each part, or one file, which is divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Bowman et al., ACL 2016.
    """

    name = "snli"
    criterion = "accuracy"
    models: ClassVar = {
        "spinn": Choice(
            lambda task, width, seed: SPINN(len(task.words), width, CLASSES, inputs=task.inputs, seed=seed),
            100,
        )
    }
    proposed: ClassVar = {"batch": 128}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, (".jsonl",), snli.SOURCE, snli.read, tell))

    def words_of(self, example: Any) -> Iterable[str]:
        nodes = (*postorder(example.premise), *postorder(example.hypothesis))
        return (node.word.lower() for node in nodes if node.word is not None)

    def word(self, node: Any) -> int:
        """Return the id of a leaf's word."""
        return self.words[node.word.lower()]

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        return [model.compare(fold, example, self.word)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(CLASSES)[[example.label]]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        expected = np.array([example.label for example in examples])
        return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), expected)}
