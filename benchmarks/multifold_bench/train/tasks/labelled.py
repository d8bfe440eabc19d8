"""Classification by any function of one example, such as a block: no class of one's own is needed."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multifold.models import Model
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.task import Choice, TrainingTask

USUAL = {"optimizer": "adam", "rate": 0.003, "schedule": "cosine", "batch": 64}
"""What is proposed, unless the caller says otherwise."""


class LabelledTask(TrainingTask):
    """Pairs of an input and its class, and a function that records the scores of the classes for one input.

    Parameters
    ----------
    name : str
        What the task is called.
    fn : callable
        ``fn(fold, x)`` returns a node with a row of ``classes`` scores: a block, or any function.
    make_model : callable
        ``make_model(seed)`` returns the model with its initial weights, as ``Layers(block, seed=seed)`` is.
    parts : mapping of str to list of (x, int)
        The examples of ``"train"``, ``"dev"`` and ``"test"``.
    classes : int
        How many classes there are.
    **proposed
        Those of `multifold_bench.train.Settings` that are other than Adam with a rate of 0.003, which goes
        down along a cosine, and minibatches of 64.

    Examples
    --------
    >>> from multifold.blocks import FC, Function, Layers, Vector
    >>> block = Vector(2) >> Function(FC(2, activation=None))
    >>> pairs = [((0, 1), 0), ((1, 0), 1)]
    >>> parts = {"train": pairs, "dev": pairs, "test": pairs}
    >>> task = LabelledTask("sides", block, lambda seed: Layers(block, seed=seed), parts, classes=2)
    >>> task.targets(None, pairs[1]).tolist()
    [[0.0, 1.0]]
    """

    criterion = "accuracy"

    def __init__(
        self,
        name: str,
        fn: Callable[[Any, Any], Any],
        make_model: Callable[[int], Model],
        parts: Mapping[str, Sequence[tuple[Any, int]]],
        *,
        classes: int,
        **proposed: Any,
    ) -> None:
        super().__init__(parts)
        self.name, self.proposed = name, {**USUAL, **proposed}  # type: ignore[misc]
        self.models = {name: Choice(lambda task, width, seed: make_model(seed), width=1)}  # type: ignore[misc]
        self.fn, self.classes = fn, classes

    def record(self, model: Any, fold: Any, example: tuple[Any, int]) -> list[Any]:
        return [self.fn(fold, example[0])]

    def targets(self, model: Any, example: tuple[Any, int]) -> np.ndarray:
        return np.eye(self.classes)[[example[1]]]

    def scores(
        self, examples: Sequence[tuple[Any, int]], outputs: Sequence[np.ndarray]
    ) -> dict[str, float]:
        predicted = np.concatenate(outputs).argmax(axis=1)
        return {"accuracy": accuracy(predicted, np.array([label for _, label in examples]))}
