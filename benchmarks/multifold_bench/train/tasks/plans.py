"""How long a query takes, operator by operator: plans of PostgreSQL."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold_bench.datasets import DatasetError, plans, postorder
from multifold_bench.models import QPPNet
from multifold_bench.models.qppnet import target
from multifold_bench.train.metrics import q_error
from multifold_bench.train.objectives import absolute_error
from multifold_bench.train.plan_costs import PlanCosts
from multifold_bench.train.tasks.parts import Tell, divided, given
from multifold_bench.train.tasks.task import Choice, TrainingTask

LEAST = 0.001
"""PostgreSQL prints milliseconds with three digits; a shorter time counts as this."""
ROOT = 5
"""How many operators the time of the whole query counts for."""
TURNS = 11
MANY = 110
"""Fewer plans than that take turns at being the test part, and a tenth of them chooses no epoch."""


@final
class PlansTask(TrainingTask):
    """The logarithms of the times of all operators are supervised, until their last rows.

    Of fewer than 110 plans there are eleven trainings, and each plan is tested by one that has not seen it.
    Scores are q-errors: the factor by which a time is off, its median and mean over queries, and the
    geometric mean over all operators, which says the most where plans are few: a tenth of 22 are two.

    Parameters
    ----------
    path : path
        A folder of JSON files, or one file, which are divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Marcus and Papaemmanouil, VLDB 2019.
    """

    name = "plans"
    criterion = "operators"
    minimised = True
    models: ClassVar = {
        "plan-costs": Choice(lambda task, width, seed: PlanCosts(task.operators, seed=seed), 1),
        "qppnet": Choice(lambda task, width, seed: QPPNet(task.operators, width=width, seed=seed), 32),
    }
    proposed: ClassVar = {"optimizer": "adam", "rate": 0.05, "epochs": 40, "schedule": "cosine"}
    objective = staticmethod(absolute_error)

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        path = given(path, plans.SOURCE)
        files = path.glob("*.json") if path.is_dir() else (path,)
        size = sum(file.stat().st_size for file in files if Path(file).is_file())
        found = list(plans.read(path, lambda done: tell(done, size)))
        if not all("Actual Total Time" in node.fields for plan in found for node in postorder(plan)):
            message = "expected 'Actual Total Time' of every operator, received one without."
            raise DatasetError(message, plans.SOURCE, path=path)
        super().__init__(divided(found, path))
        if len(found) < MANY:
            self.turns = TURNS
            self.chooses = False

    @property
    def operators(self) -> set[str]:
        """The operators of the training part, each of which gets weights of its own."""
        return {node.operator for plan in self.parts["train"] for node in postorder(plan)}

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        nodes: list[Any] = model.encode(fold, example)
        return nodes

    def targets(self, model: Any, example: Any) -> np.ndarray:
        times = [target(node.fields) for node in postorder(example)]
        return np.stack([times, [*[1] * (len(times) - 1), ROOT]], axis=1)

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        errors = []
        for plan, times in zip(examples, outputs, strict=True):
            expected = [node.fields["Actual Total Time"] for node in postorder(plan)]
            errors.append(q_error(np.expm1(times.astype(float)), np.array(expected), LEAST))
        queries = np.array([of_nodes[-1] for of_nodes in errors])
        return {
            "median q-error": float(np.median(queries)),
            "mean q-error": float(queries.mean()),
            "operators": float(np.exp(np.log(np.concatenate(errors)).mean())),
        }
