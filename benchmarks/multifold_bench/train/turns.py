"""Several trainings of one task, so that each example is once in the test part: cross-validation.

A tenth of 22 query plans are two, and a score over two says little. So the plans are divided into eleven
parts of two, and there are eleven trainings, each of which tests another part; the score is over all 22.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from multifold._measure.files import PathLike
from multifold.backend import Backend
from multifold_bench.train.run import Result, settings_in, train
from multifold_bench.train.settings import Settings, refuse_others
from multifold_bench.train.tasks.task import TrainingTask


def train_turns(
    task: TrainingTask, out: PathLike, backend: str | Backend, settings: Settings, **options: Any
) -> Result:
    """Train as often as the task has `turns`, each in a folder of its own below ``out``: ``turn-0``, ...

    Returns
    -------
    Result
        The scores of all examples, each by the training that has not seen it, and the means of the scores
        on the development parts. The losses and the model are those of the last training.
    """
    if task.turns == 1:
        return train(task, out, backend, settings, **options)
    tasks = [task.turn(number) for number in range(task.turns)]
    results = [
        train(own, Path(out) / f"turn-{number}", backend, settings, **options)
        for number, own in enumerate(tasks)
    ]
    outputs = [rows for result in results for rows in result.outputs]
    test = task.scores([example for own in tasks for example in own.parts["test"]], outputs)
    dev = {name: fmean(result.dev[name] for result in results) for name in results[0].dev}
    last = results[-1]
    history = [*last.history]
    history[last.best - 1] = {**history[last.best - 1], "dev": dev}
    return Result(last.model, history, last.best, test, outputs)


def refuse_early(task: Any, out: Path, backend: Backend, chosen: Mapping[str, Any]) -> None:
    """Refuse a folder of a run with other settings, before the examples of a class of tasks are read.

    ``chosen`` has the settings that are not the proposed ones. What the examples tell is compared later.
    """
    for folder in (out, out / "turn-0"):
        kept = settings_in(folder)
        if kept is not None:
            blank = object.__new__(task)  # models and proposals are the class's; to make a task is to read
            given = {"task": task.name, "backend": backend.name, **blank.settings(**chosen).record()}
            late = {name: x for name, x in kept.items() if name in ("examples", "vectors")}
            refuse_others(given | late, kept, str(folder))
