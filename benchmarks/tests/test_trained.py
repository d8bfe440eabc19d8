"""The table of what training reaches: made from the rows beside it, which reach their goals everywhere."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from multifold._compare import results
from multifold_bench import trained

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
ROWS = results.read(FOLDER / trained.FILE)
POINTS = 0.015
"""By how much frameworks may differ."""


def scores(goal, backend):
    """Return a score of the rows of a backend, by seed."""
    rows = [row for row in ROWS if (row["task"], row["backend"]) == (goal.task, backend)]
    return {row["seed"]: row[goal.part][goal.score] for row in rows}


def test_the_page_has_the_table_of_the_rows_beside_it():
    assert trained.section(FOLDER) in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("goal", trained.GOALS, ids=lambda goal: f"{goal.task}-{goal.part}")
def test_each_task_reaches_its_goal_alike_on_all_frameworks(goal):
    found = {name: seeds for name in trained.BACKENDS if (seeds := scores(goal, name))}
    for seeds in found.values():
        mean = round(fmean(seeds.values()), 3)
        assert mean <= goal.bound if goal.score.endswith("error") else mean >= goal.bound
    for seed in set.intersection(*map(set, found.values())):
        values = [seeds[seed] for seeds in found.values()]
        assert max(values) - min(values) <= POINTS
