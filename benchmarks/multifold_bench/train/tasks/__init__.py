"""What can be trained: data sets, each with its models and the metrics of its paper, one module each.

A task is a subclass of `multifold_bench.train.TrainingTask`; the command line knows those that `TASKS`
names, and imports only the one that is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from multifold_bench.train.tasks.task import TrainingTask


class Entry(NamedTuple):
    """Where a task is written, and a line on it."""

    module: str
    name: str
    about: str


TASKS = {
    "sst": Entry("sst", "SentimentTask", "sentiment of phrases: a folder of train.txt, dev.txt, test.txt"),
    "sick": Entry("sick", "RelatednessTask", "relatedness of sentences: a folder of train, dev and test"),
    "tagging": Entry("tagging", "TaggingTask", "names in sentences: CoNLL files with BIO tags"),
    "segmentation": Entry("segmentation", "SegmentationTask", "words without spaces: CoNLL files"),
    "listops": Entry("listops", "ListOpsTask", "nested operations over digits: tsv files"),
    "snli": Entry("snli", "InferenceTask", "whether one sentence implies another: jsonl files"),
    "plans": Entry("plans", "PlansTask", "run times of PostgreSQL's query plans: JSON files"),
    "digits": Entry("digits", "DigitsTask", "handwritten digits: a folder of MNIST's four files"),
}
"""The tasks by name."""


def find(name: str) -> Callable[..., TrainingTask]:
    """Return the class of a task by its name in `TASKS`: ``find(name)(path, tell)`` reads its data.

    Examples
    --------
    >>> find("sst").__name__
    'SentimentTask'
    """
    entry = TASKS[name]
    task: Callable[..., TrainingTask] = getattr(
        importlib.import_module(f"{__name__}.{entry.module}"), entry.name
    )
    return task
