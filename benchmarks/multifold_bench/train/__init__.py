"""Training: any model of `multifold.models`, on any framework, with that framework's own optimizer.

The one idea: everything that decides the result (order of the examples, initial weights, loss,
settings) is NumPy's or written once, and only the step from a loss to new weights is a framework's.
So the same settings give the same curve everywhere, and a run that was killed goes on where it was.

- `tasks`: data sets with their models, losses and the metrics of their papers, one module each.
- `settings`: what a run is made of, and the optimizers and schedules as formulas.
- `objectives`, `metrics`: losses over `multifold.ops`, and scores over NumPy arrays.
- `seam`: what an adapter brings, as a module ``training`` in its package.
- `examples`: the examples of a task, recorded once for all epochs.
- `plan_costs`: a model for few query plans.
- `checkpoint`: files that are whole or not there at all.
- `drawing`: learning curves.
- `ranks`: several processes that train one model.
- `run`: the loop, `train`.
- `turns`: several trainings, so that each of few examples is tested by one that has not seen it.
- `evaluation`: scores of a model on any examples.
"""

from __future__ import annotations

from multifold_bench.train.checkpoint import CheckpointError
from multifold_bench.train.evaluation import evaluate
from multifold_bench.train.run import DivergedError, Result, train
from multifold_bench.train.settings import Settings, SettingsError
from multifold_bench.train.tasks.function import FunctionTask
from multifold_bench.train.tasks.labelled import LabelledTask
from multifold_bench.train.tasks.task import Choice, TrainingTask

__all__ = [
    "CheckpointError",
    "Choice",
    "DivergedError",
    "FunctionTask",
    "LabelledTask",
    "Result",
    "Settings",
    "SettingsError",
    "TrainingTask",
    "evaluate",
    "train",
]
