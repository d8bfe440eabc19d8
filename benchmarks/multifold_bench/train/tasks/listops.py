"""Nested operations over digits, whose values are exact: ListOps."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold_bench.datasets import listops
from multifold_bench.models import ListOpsChain, ListOpsLSTM
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.parts import Tell, divided, read_parts
from multifold_bench.train.tasks.task import Choice, TrainingTask

DIGITS = 10
OPERATORS = tuple(listops.OPERATORS)
MADE = 60_000
"""How many expressions are made up where no file is given."""


@final
class ListOpsTask(TrainingTask):
    """The value of the whole expression is supervised, nothing below it; the score is its accuracy.

    Parameters
    ----------
    path : path, optional
        A folder with a file for each part, or one file, which is divided. Without one, 60,000 expressions
        are made up and divided: `datasets.listops.made` draws them, up to six operations deep and of up to
        50 nodes.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Nangia and Bowman, NAACL 2018.
    """

    name = "listops"
    criterion = "accuracy"
    models: ClassVar = {
        "listops-chain": Choice(lambda task, width, seed: ListOpsChain(OPERATORS, width, seed=seed), 64),
        "listops-lstm": Choice(lambda task, width, seed: ListOpsLSTM(OPERATORS, width, seed=seed), 64),
    }
    proposed: ClassVar = {
        "optimizer": "adam",
        "rate": 0.003,
        "schedule": "cosine",
        "epochs": 10,
        "batch": 128,
    }

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        if path is None:
            super().__init__(divided(list(_made(tell)), "the generator"))
        else:
            super().__init__(read_parts(path, (".tsv",), listops.SOURCE, listops.read, tell))

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        return [model.compute(fold, example.expression)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(DIGITS)[[example.label]]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        expected = np.array([example.label for example in examples])
        return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), expected)}


def _made(tell: Tell) -> Iterator[listops.Example]:
    for number, example in enumerate(listops.made(MADE), 1):
        yield example
        tell(number, MADE)
