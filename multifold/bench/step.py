"""One step of training or inference, by all contenders, as rows of a table.

Everything that a user pays is inside the time: recording, planning, upload of indices, forward, backward.
What a row needs beside the times, the launches and their lower bound, is counted on the same
minibatches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import multifold
from multifold.backend import Backend
from multifold.bench import machine
from multifold.bench.contenders import CONTENDERS, Subject, loop
from multifold.bench.harness import Contender, Timing, measure, quartiles
from multifold.bench.results import Row
from multifold.bench.workloads import Minibatch, Task
from multifold.errors import BackendError, RecordError

WARMUP = 2


@dataclass(frozen=True)
class Counts:
    """What the calls of a minibatch are, by the medians over some minibatches.

    Attributes
    ----------
    nodes : float
        Recorded calls.
    launches, lower_bound : float
        Of the schedule that a fold makes.
    record, plan : float
        Seconds of recording, and of scheduling what was recorded.
    """

    nodes: float
    launches: float
    lower_bound: float
    record: float
    plan: float

    def launches_of(self, contender: str) -> float | None:
        """Return the launches of a contender: level batching by hand has as few as there can be."""
        if contender.startswith("fold"):
            return self.launches
        return {"loop": self.nodes, "hand": self.lower_bound}.get(contender)


def count(task: Task, backend: Backend, minibatches: Sequence[Minibatch]) -> Counts:
    """Record some minibatches and count; nothing is run."""
    found = []
    for minibatch in minibatches:
        fold = multifold.Fold(backend=backend)
        start = time.perf_counter()
        nodes = task.record_all(fold, minibatch.examples)
        recorded = time.perf_counter()
        schedule = fold.schedule([nodes])
        planned = time.perf_counter()
        times = (recorded - start, planned - recorded)
        found.append((len(fold), len(schedule), schedule.lower_bound, *times))
    return Counts(*map(statistics.median, zip(*found, strict=True)))


def gradients_of(backend: Backend) -> str | None:
    """Return why a backend has no gradients, None if it has."""
    return backend.gaps().get("kit")


def make_contenders(
    names: Sequence[str], subject: Subject, others: Mapping[str, Callable[[Subject], Contender]]
) -> list[Contender]:
    """Return contenders by their names."""
    known = {**CONTENDERS, **others}
    for name in names:
        if name not in known:
            raise RecordError(f"Expected contenders out of {', '.join(known)}. Received '{name}'.")
    return [known[name](subject) for name in names]


def measure_step(
    task: Task,
    backend: Backend,
    names: Sequence[str],
    *,
    batch: int,
    train: bool,
    rounds: int,
    seconds: float,
    seed: int = 0,
    others: Mapping[str, Callable[[Subject], Contender]] | None = None,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Time a step of each contender and return a row for each.

    Parameters
    ----------
    task : Task
        What is computed.
    backend : Backend
        By which framework.
    names : sequence of str
        The contenders.
    batch : int
        Examples in a minibatch.
    train : bool
        With the gradients of all parameters.
    rounds : int
        How often each contender is timed, each time on a new minibatch.
    seconds : float
        What a contender may use before it leaves; see `measure`.
    seed : int
        Of the minibatches.
    others : mapping, optional
        More contenders by name.
    advance : callable
        Told what runs next.

    Raises
    ------
    MismatchError
        If a contender computes something else than the loop does.
    BackendError
        If gradients are asked for and the backend has none.
    """
    if train and (gap := gradients_of(backend)):
        reason, _, hint = gap.partition("; ")
        raise BackendError(f"Backend '{backend.name}' has no gradients: {reason}.", hint or None)
    subject = Subject(task, backend, task.model().on(backend), train)
    contenders = make_contenders(names, subject, others or {})
    reference = next((c for c in contenders if c.name == "loop"), None) or loop(subject)
    try:
        timings = measure(
            contenders,
            task.minibatches(batch, seed),
            reference=reference,
            rounds=rounds,
            warmup=WARMUP,
            seconds=seconds,
            advance=advance,
        )
    finally:
        for contender in contenders:
            contender.close()
    counts = count(task, backend, list(islice(task.minibatches(batch, seed), 1, 6)))
    facts = {
        "command": "bench step",
        "backend": backend.name,
        "mode": "train" if train else "infer",
        "width": task.width,
        "batch": batch,
        "seed": seed,
        "nodes": counts.nodes,
        "lower_bound": counts.lower_bound,
        "record_ms": 1e3 * counts.record,
        "plan_ms": 1e3 * counts.plan,
    }
    hand = next((timing for timing in timings if timing.name == "hand"), None)
    environment = machine.describe(backend)
    return [
        {**facts, **row_of(timing, hand, counts), "environment": {**environment, **contender.versions}}
        for contender, timing in zip(contenders, timings, strict=True)
    ]


def row_of(timing: Timing, hand: Timing | None, counts: Counts) -> dict[str, Any]:
    """Return what a row says about one contender."""
    low, middle, high = timing.quartiles
    launches = counts.launches_of(timing.name)
    return {
        "contender": timing.name,
        "median_ms": 1e3 * middle,
        "quartiles_ms": [1e3 * low, 1e3 * high],
        "first_ms": 1e3 * timing.first,
        "prepare_ms": 1e3 * quartiles(timing.prepared)[1],
        "rounds": len(timing.rounds),
        "to_hand": None if hand is None else timing.ratio(hand),
        "launches": launches,
        "mean_rows": None if launches is None else counts.nodes / launches,
        "nodes_per_second": counts.nodes / middle,
        "peak_bytes": timing.peak_bytes,
        "difference": timing.difference,
    }
