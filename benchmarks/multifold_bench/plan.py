"""What scheduling costs and what it reaches: launches against the lower bound, for each policy."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import multifold
from multifold import load_backend
from multifold._engine.plan.schedule import Schedule, call_types, make_schedule
from multifold._engine.traces.minibatch import Merger
from multifold._engine.traces.trace import Trace
from multifold._measure.machine import describe
from multifold._measure.results import Row
from multifold.errors import RecordError
from multifold_bench.graphs import GRAPHS
from multifold_bench.graphs.base import RandomGraphs
from multifold_bench.harness import quartiles

TRACES = "traces"
"""Stands for a policy in the table: merging traces."""


def measure_planning(
    workload: str,
    policies: Sequence[str],
    *,
    batch: int | None = None,
    rounds: int = 5,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Schedule one workload by some policies and return a row for each.

    Parameters
    ----------
    workload : str
        A name of `multifold_bench.graphs.GRAPHS`.
    policies : sequence of str
        What ``Fold(schedule=...)`` takes; or ``"traces"``: the examples recorded ahead of time, merged
        and scheduled by ``"auto"``.
    batch : int, optional
        Examples in the minibatch; by default as many as the workload says.
    rounds : int
        How often each schedule is made, from a new recording of the same examples.
    seed : int
        Of the examples.
    advance : callable
        Told what runs next.

    Returns
    -------
    Rows with ``launches``, ``lower_bound``, ``certificate`` and ``plan_us``: quartiles of microseconds a
    node, from the recorded columns to the ordered launches.

    Examples
    --------
    >>> row, = measure_planning("synthetic", ["auto"], batch=4, rounds=1)
    >>> row["launches"] == row["lower_bound"], row["certificate"]
    (True, 'optimal')
    """
    if workload not in GRAPHS:
        raise RecordError(f"Expected a workload out of {', '.join(GRAPHS)}. Received '{workload}'.")
    found = GRAPHS[workload]
    examples = found.examples(seed, batch)
    rows = []
    for policy in policies:
        seconds = []
        for _ in range(rounds):
            advance(f"{workload} by {policy}")
            schedule, spent = schedule_once(found, examples, policy)
            seconds.append(spent)
        facts: Row = {"command": "bench plan", "workload": workload, "policy": policy}
        facts |= {"batch": len(examples), "seed": seed, "rounds": rounds}
        rows.append(facts | figures(schedule, seconds))
    return rows


def schedule_once(graphs: RandomGraphs, examples: Sequence[Any], policy: str) -> tuple[Schedule, float]:
    """Record examples and schedule them; return the schedule and the seconds that scheduling took."""
    if policy == TRACES:
        return merge_once([multifold.trace(graphs.record, x) for x in examples])
    fold = multifold.Fold(backend="numpy", schedule=policy)
    nodes = [node for example in examples for node in graphs.record(fold, example)]
    gc.collect()
    start = time.perf_counter()
    schedule = fold.schedule(nodes)
    return schedule, time.perf_counter() - start


def figures(schedule: Schedule, seconds: Sequence[float]) -> Row:
    """Return what a row says about a schedule, and about the seconds that it took."""
    return {
        "nodes": len(schedule.calls),
        "types": len(schedule.columns.signatures),
        "launches": len(schedule),
        "lower_bound": schedule.lower_bound,
        "certificate": schedule.certificate,
        "plan_us": [1e6 * x / len(schedule.calls) for x in quartiles(seconds)],
        "environment": describe(load_backend("numpy")),
    }


def merge_once(traces: Sequence[Trace]) -> tuple[Schedule, float]:
    """Merge traces and schedule them by "auto"; return the schedule and the seconds that it took."""
    gc.collect()
    start = time.perf_counter()
    merger = Merger(traces)
    columns = merger.columns()
    asked = merger.outputs()
    types = call_types(columns, columns.shared_calls)
    schedule = make_schedule(columns, columns, types, columns.ancestors(asked.sources), "auto")
    return schedule, time.perf_counter() - start
