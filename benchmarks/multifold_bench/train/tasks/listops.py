"""Nested operations over digits, whose values are exact: ListOps."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._compare.files import PathLike
from multifold.models import ListOpsLSTM
from multifold_bench.datasets import listops
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.task import Choice, TrainingTask

DIGITS = 10


@final
class ListOpsTask(TrainingTask):
    """The value of the whole expression is supervised, nothing below it; the score is its accuracy.

    Parameters
    ----------
    path : path
        A folder with a file for each part, or one file, which is divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Nangia and Bowman, NAACL 2018.
    """

    name = "listops"
    criterion = "accuracy"
    models: ClassVar = {
        "listops-lstm": Choice(
            lambda task, width, seed: ListOpsLSTM(tuple(listops.OPERATORS), width, seed=seed), 64
        )
    }
    proposed: ClassVar = {"optimizer": "adam", "rate": 0.001}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, (".tsv",), listops.SOURCE, listops.read, tell))

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        return [fold.add("logits", model.encode(fold, example.expression)[0])]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(DIGITS)[[example.label]]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        expected = np.array([example.label for example in examples])
        return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), expected)}
