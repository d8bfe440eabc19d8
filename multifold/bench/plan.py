"""What scheduling costs and what it reaches: launches against the lower bound, for each policy."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import multifold
from multifold.bench import machine
from multifold.bench.generators import WORKLOADS
from multifold.bench.harness import quartiles
from multifold.bench.results import Row
from multifold.errors import RecordError
from multifold.registry import load


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
        A name of `multifold.bench.generators.WORKLOADS`.
    policies : sequence of str
        What ``Fold(schedule=...)`` takes.
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
    if workload not in WORKLOADS:
        raise RecordError(f"Expected a workload out of {', '.join(WORKLOADS)}. Received '{workload}'.")
    found = WORKLOADS[workload]
    examples = found.examples(seed, batch)
    rows = []
    for policy in policies:
        seconds = []
        for _ in range(rounds):
            advance(f"{workload} by {policy}")
            fold = multifold.Fold(backend="numpy", schedule=policy)
            nodes = [node for example in examples for node in found.record(fold, example)]
            gc.collect()
            start = time.perf_counter()
            schedule = fold.schedule(nodes)
            seconds.append(time.perf_counter() - start)
        rows.append(
            {
                "command": "bench plan",
                "workload": workload,
                "policy": policy,
                "batch": len(examples),
                "seed": seed,
                "rounds": rounds,
                "nodes": len(schedule.calls),
                "types": len(schedule.columns.signatures),
                "launches": len(schedule),
                "lower_bound": schedule.lower_bound,
                "certificate": schedule.certificate,
                "plan_us": [1e6 * x / len(schedule.calls) for x in quartiles(seconds)],
                "environment": machine.describe(load("numpy")),
            }
        )
    return rows
