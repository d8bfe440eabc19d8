"""One step of training or inference, by all contenders, as rows of a table.

Everything that a user pays is inside the time: recording, planning, upload of indices, forward, backward.
What a row needs beside the times, the launches and their lower bound, is counted on the same
minibatches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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


UNCOUNTED = ("sick", "spinn", "tiles")
"""Kinds of models whose programs by hand nobody counted; JAX's run tiles. All others run level by level."""


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
    by_round : tuple of pairs of int
        Launches and lower bound of each round of the first minibatch, where values decide what
        follows.
    """

    nodes: float
    launches: float
    lower_bound: float
    record: float
    plan: float
    by_round: tuple[tuple[int, int], ...] = ()

    def launches_of(self, contender: str, kind: str, batch: int) -> float | None:
        """Return the launches of a contender on a kind of model, None where nobody counted."""
        if contender.startswith("fold"):
            return self.launches
        if contender.startswith("loop") or contender == "unfold":
            return self.nodes
        if contender == "stacked":
            return self.nodes / batch
        return self.lower_bound if contender in ("hand", "hand-cat") and kind not in UNCOUNTED else None


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


def count_rounds(task: Task, backend: Backend, minibatches: Sequence[Minibatch]) -> Counts:
    """Run some minibatches whose calls depend on values, and count."""
    model = task.model().on(backend)
    found, by_round = [], []
    for minibatch in minibatches:
        fold = multifold.Fold(backend=backend)
        start = time.perf_counter()
        task.apply(fold, model, minibatch.examples)
        seconds = time.perf_counter() - start
        explained: Any = fold.explain()
        rounds = [(len(part), part.lower_bound) for part in explained.rounds]
        by_round.append(rounds)
        plan = explained.seconds.get("plan", 0.0)
        rest = seconds - sum(explained.seconds.values())
        found.append((explained.calls, len(explained), sum(bound for _, bound in rounds), rest, plan))
    medians = map(statistics.median, zip(*found, strict=True))
    return replace(Counts(*medians), by_round=tuple(by_round[0]))


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
    reference: str = "loop",
    warmup: int = WARMUP,
    least: int = 3,
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
    reference : str
        The contender that is right; the loop, unless there are too many examples to run one by one.
    warmup, least : int
        See `measure`.
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
    right = next((c for c in contenders if c.name == reference), None) or loop(subject)
    try:
        timings = measure(
            contenders,
            task.minibatches(batch, seed),
            reference=right,
            rounds=rounds,
            warmup=warmup,
            seconds=seconds,
            least=least,
            advance=advance,
        )
    finally:
        for contender in contenders:
            contender.close()
    counting = count_rounds if task.in_rounds else count
    counts = counting(task, backend, list(islice(task.minibatches(batch, seed), 1, 6)))
    facts = {
        "command": "bench step",
        "backend": backend.name,
        "mode": "train" if train else "infer",
        "width": task.width,
        "batch": batch,
        "seed": seed,
        "reference": right.name,
        "nodes": counts.nodes,
        "lower_bound": counts.lower_bound,
        "record_ms": 1e3 * counts.record,
        "plan_ms": 1e3 * counts.plan,
        "launches_by_round": [launches for launches, _ in counts.by_round],
        "bound_by_round": [bound for _, bound in counts.by_round],
    }
    by_name = {timing.name: timing for timing in timings}
    environment = machine.describe(backend)
    return [
        {
            **facts,
            **row_of(timing, by_name, counts, "tiles" if backend.name == "jax" else task.kind, batch),
            "environment": {**environment, **contender.versions},
        }
        for contender, timing in zip(contenders, timings, strict=True)
    ]


def row_of(
    timing: Timing, others: Mapping[str, Timing], counts: Counts, kind: str, batch: int
) -> dict[str, Any]:
    """Return what a row says about one contender."""
    low, middle, high = timing.quartiles
    hand, hand_cat = others.get("hand"), others.get("hand-cat")
    launches = counts.launches_of(timing.name, kind, batch)
    return {
        "contender": timing.name,
        "median_ms": 1e3 * middle,
        "quartiles_ms": [1e3 * low, 1e3 * high],
        "first_ms": 1e3 * timing.first,
        "prepare_ms": 1e3 * quartiles(timing.prepared)[1],
        "rounds": len(timing.rounds),
        "to_hand": None if hand is None else timing.ratio(hand),
        "to_hand_cat": None if hand_cat is None else timing.ratio(hand_cat),
        "launches": launches,
        "mean_rows": None if launches is None else counts.nodes / launches,
        "nodes_per_second": counts.nodes / middle,
        "peak_bytes": timing.peak_bytes,
        "difference": timing.difference,
    }
