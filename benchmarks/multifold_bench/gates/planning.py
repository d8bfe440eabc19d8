"""Gate (g): how many launches random graphs need, and what a call of planning takes.

Graphs of which a type may follow itself by way of others, as two cells that take turns, are those on which
planners differ: each is a figure. On all others the fewest launches are known to be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import multifold
from multifold_bench.gates.figures import Figure, Line, Numbers, Results, Step, timed
from multifold_bench.graphs import GRAPHS


def planning_step(names: Sequence[str], quick: bool) -> Step:
    """Return what records minibatches of some graphs, and schedules them."""

    def step(number: int) -> tuple[Numbers, Results]:
        seconds = 0.0
        calls = 0
        launches = 0
        for name in names:
            graphs = GRAPHS[name]
            fold = multifold.Fold(backend="numpy")
            nodes = graphs(fold, seed=number, batch=graphs.batch // 8 if quick else graphs.batch)
            taken, schedule = timed(partial(fold.schedule, nodes))
            seconds += taken
            calls += len(fold)
            launches += len(schedule)
        return {"seconds": seconds, "calls": calls, "launches": launches}, {}

    return step


def figure(name: str, graphs: Sequence[str], most: float) -> Figure:
    """Return a figure of gate (g)."""
    lines = (
        Line("launches", lambda found: found["launches"], beside=most, worst=True),
        Line("planning a call", lambda found: 1e6 * found["seconds"] / found["calls"], "us", beside=1.1),
    )
    return Figure("g", name, "numpy", partial(planning_step, graphs), lines, repetitions=7, warms=1)


FIGURES = [
    *[figure(name, [name], 1.03) for name, graphs in GRAPHS.items() if not graphs.optimal],
    figure("all other graphs", [name for name, graphs in GRAPHS.items() if graphs.optimal], 1.0),
]
