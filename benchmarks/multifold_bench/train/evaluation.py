"""Scores of a model on any examples, which `multifold.stream` runs, on whatever backend."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import multifold
from multifold_bench.train.tasks.task import TrainingTask


def evaluate(task: TrainingTask, model: Any, examples: Iterable[Any], **options: Any) -> dict[str, float]:
    """Return the scores of a model on examples, which need not be those of the task's parts.

    Parameters
    ----------
    task : TrainingTask
        What records an example, and what scores the rows.
    model : object
        What `train` returns as `Result.model`; or a model with its weights, for NumPy or another framework.
    examples : iterable
        Read once. They and their rows are kept, since scores are of all of them; what is computed in
        between is not.
    **options
        Of `multifold.stream`: ``backend``, ``calls``, ``progress``.

    Examples
    --------
    Weights that were trained with one framework are scored on NumPy. Here the model is untrained:

    >>> import numpy as np
    >>> from multifold_compat.blocks import FC, Function, Layers, Vector
    >>> from multifold_bench.train import LabelledTask
    >>> block = Vector(2) >> Function(FC(2, activation=None))
    >>> pairs = [((0, 1), 0), ((1, 0), 1)]
    >>> parts = {"train": pairs, "dev": pairs, "test": pairs}
    >>> task = LabelledTask("sides", block, lambda seed: Layers(block, seed=seed), parts, classes=2)
    >>> model = Layers(block).assign({"FC_2.weight": np.eye(2)[::-1], "FC_2.bias": np.zeros(2)})
    >>> evaluate(task, model, pairs, backend="numpy")
    {'accuracy': 1.0}
    """
    kept: list[Any] = []
    found = multifold.stream(model, noting(examples, kept), partial(task.record, model), **options)
    outputs = [rows for _, rows in found]
    return task.scores(kept, outputs)


def noting(examples: Iterable[Any], kept: list[Any]) -> Iterable[Any]:
    """Yield examples, and append each to a list."""
    for example in examples:
        kept.append(example)
        yield example
