"""What `multifold train` reaches at its defaults: one table from the rows that it wrote with ``--json``.

A cell is the mean over the seeds that were trained, and says how many if there are several. What was not
trained is said to be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from multifold._compare import results
from multifold._compare.results import Row

FILE = "training.jsonl"
BACKENDS = ("torch", "tensorflow", "mxnet", "jax")
"""Those that train."""


class Goal(NamedTuple):
    """A score of a task that its defaults are to reach, at least or, of an error, at most."""

    task: str
    part: str
    score: str
    bound: float
    data: str


GOALS = (
    Goal("sst", "test", "root 5-way", 0.469, "Stanford Sentiment Treebank"),
    Goal("sick", "test", "pearson", 0.78, "SICK, without pretrained vectors"),
    Goal("tagging", "dev", "f1", 0.25, "WNUT-17"),
    Goal("tagging", "test", "f1", 0.15, "WNUT-17"),
    Goal("listops", "test", "accuracy", 0.95, "60,000 expressions that are made up"),
    Goal("plans", "test", "median q-error", 1.5, "PostgreSQL's plans of TPC-H, scale factor 1"),
    Goal("digits", "test", "accuracy", 0.97, "scikit-learn's digits"),
)
"""In the order of the table."""

WITHOUT_DATA = {"listops", "digits"}


def section(folder: Path) -> str:
    """Return the section about trained models, if the folder has rows of them."""
    from multifold_bench.report import table

    path = folder / FILE
    if not path.exists():
        return ""
    rows = results.read(path)
    commands = [
        f"multifold train {task}{'' if task in WITHOUT_DATA else ' --data PATH'} --backend NAME --out DIR"
        + ("" if seeds == {0} else f" --seed N    # N = {', '.join(map(str, sorted(seeds)))}")
        for task in dict.fromkeys(goal.task for goal in GOALS)
        if (seeds := {row["seed"] for row in rows if row["task"] == task})
    ]
    cells = [
        [
            f"`{goal.task}`",
            goal.data,
            f"{goal.score}, {goal.part}",
            f"{'at most' if goal.score.endswith('error') else 'at least'} {goal.bound:g}",
            *(cell(goal, [row for row in rows if row["backend"] == name]) for name in BACKENDS),
        ]
        for goal in GOALS
    ]
    return "\n\n".join(
        (
            "## Training at the defaults",
            "What `multifold train` reaches without any option about the training: model, width, epochs, "
            "optimizer and schedule are as each task proposes, alike on all frameworks. Scores are those "
            "of the weights after the epoch that was best on the development part; for plans, the last. "
            "Where there are several seeds, a cell is their mean.",
            "```sh\n" + "\n".join(commands) + "\n```",
            table(["task", "data", "score", "wanted", *BACKENDS], cells, texts=range(4)),
            f"Losses and scores of each epoch, settings, versions and machine are in [{FILE}]({FILE})."
            + gaps(rows),
        )
    )


def gaps(rows: Sequence[Row]) -> str:
    """Return what the table lacks: trainings that were not run, and rows with less than the command writes.

    Examples
    --------
    >>> print(gaps([{"task": "sick", "backend": "torch"}]).strip())
    Trainings without a figure were not run, for want of time. Of `sick` only the scores were kept.
    """
    measured = {(row["task"], row["backend"]) for row in rows}
    said = ""
    if any((goal.task, name) not in measured for goal in GOALS for name in BACKENDS):
        said += " Trainings without a figure were not run, for want of time."
    short = sorted({f"`{row['task']}`" for row in rows if "history" not in row})
    return said + (f" Of {', '.join(short)} only the scores were kept." if short else "")


def cell(goal: Goal, rows: Sequence[Row]) -> str:
    """Return what is said of a goal from the rows of a backend.

    Examples
    --------
    >>> rows = [{"task": "digits", "seed": seed, "test": {"accuracy": 0.9 + seed / 50}} for seed in (0, 1)]
    >>> cell(Goal("digits", "test", "accuracy", 0.97, ""), rows)
    '0.910 (2 seeds)'
    >>> cell(Goal("sick", "test", "pearson", 0.78, ""), rows)
    'not measured'
    """
    values = {row["seed"]: row[goal.part][goal.score] for row in rows if row["task"] == goal.task}
    if not values:
        return "not measured"
    return f"{fmean(values.values()):.3f}" + (f" ({len(values)} seeds)" if len(values) > 1 else "")
