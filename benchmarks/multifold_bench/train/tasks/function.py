"""A task said by functions: what records an input, what is right, and how good an answer is.

`LabelledTask` is the one for classes; any other needs no class of one's own either.
"""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multifold.models import Model
from multifold_bench.train.objectives import Objective, cross_entropy
from multifold_bench.train.settings import refuse_unknown
from multifold_bench.train.tasks.task import Choice, TrainingTask

USUAL = {"optimizer": "adam", "rate": 0.003, "schedule": "cosine", "batch": 64}
"""What is proposed, unless the caller says otherwise."""


class FunctionTask(TrainingTask):
    """Pairs of an input and what is right for it, and functions of them.

    Parameters
    ----------
    name : str
        What the task is called.
    fn : callable
        ``fn(fold, x)`` returns a node, or a list of nodes: a block, or any function.
    make_model : callable
        ``make_model(seed)`` returns the model with its initial weights, as ``Layers(block, seed=seed)`` is.
    parts : mapping of str to list of (x, y)
        The examples of ``"train"``, ``"dev"`` and ``"test"``.
    target : callable
        ``target(y)`` returns what the objective compares with: a row for each node that ``fn`` returns.
    score : callable
        ``score(ys, outputs)`` returns scores by name, from what is right and the rows of each example.
    criterion : str
        The score that says which epoch is the best.
    objective : callable
        The loss, of `multifold_bench.train.objectives`; the cross entropy by default.
    minimised : bool
        Whether a smaller score is better.
    **proposed
        Those of `multifold_bench.train.Settings` that are other than Adam with a rate of 0.003, which goes
        down along a cosine, and minibatches of 64.

    Examples
    --------
    A regression, whose rows are the numbers themselves:

    >>> from multifold_compat.blocks import FC, Function, Layers, Vector
    >>> from multifold_bench.train.objectives import squared_error
    >>> block = Vector(2) >> Function(FC(1, activation=None)) >> Function(lambda x: x[:, 0])
    >>> pairs = [((0, 1), 1.0), ((1, 2), 3.0)]
    >>> parts = {"train": pairs, "dev": pairs, "test": pairs}
    >>> task = FunctionTask(
    ...     "sums", block, lambda seed: Layers(block, seed=seed), parts,
    ...     target=lambda y: [y], objective=squared_error, criterion="error", minimised=True,
    ...     score=lambda ys, outputs: {"error": float(np.abs(np.concatenate(outputs) - ys).mean())},
    ... )
    >>> task.scores(pairs, [np.array([1.5]), np.array([3.0])])
    {'error': 0.25}
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[Any, Any], Any],
        make_model: Callable[[int], Model],
        parts: Mapping[str, Sequence[tuple[Any, Any]]],
        *,
        target: Callable[[Any], Any],
        score: Callable[[Sequence[Any], Sequence[np.ndarray]], dict[str, float]],
        criterion: str,
        objective: Objective = cross_entropy,
        minimised: bool = False,
        **proposed: Any,
    ) -> None:
        super().__init__(parts)
        refuse_unknown(proposed)
        self.name = name  # type: ignore[misc]
        self.proposed = {**USUAL, **proposed}  # type: ignore[misc]
        self.models = {name: Choice(lambda task, width, seed: make_model(seed), width=1)}  # type: ignore[misc]
        self.objective = objective
        self.minimised = minimised  # type: ignore[misc]
        self.criterion = criterion
        self.fn = fn
        self.target = target
        self.score = score

    def record(self, model: Any, fold: Any, example: tuple[Any, Any]) -> list[Any]:
        made = self.fn(fold, example[0])
        return made if isinstance(made, list) else [made]

    def targets(self, model: Any, example: tuple[Any, Any]) -> np.ndarray:
        return np.asarray(self.target(example[1]))

    def scores(
        self, examples: Sequence[tuple[Any, Any]], outputs: Sequence[np.ndarray]
    ) -> dict[str, float]:
        return self.score([right for _, right in examples], outputs)
