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
from multifold._measure import machine
from multifold._measure.benchmark import Batch, Benchmark
from multifold._measure.contenders import Subject
from multifold._measure.results import Row
from multifold.backend import Backend
from multifold.errors import BackendError, RecordError
from multifold_bench.contenders import CONTENDERS, loop
from multifold_bench.harness import Contender, Pace, Timing, measure, quartiles

WARMUP = 2


UNCOUNTED = ("sick", "spinn", "tiles")
"""Families of models whose hand-written programs have no count; JAX's run tiles, the others run levels."""


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

    def launches_of(self, contender: str, family: str, batch: int) -> float | None:
        """Return the launches of a contender on a family of models, None where nothing counts them."""
        if contender.startswith("fold"):
            return self.launches
        if contender.startswith("loop") or contender == "unfold":
            return self.nodes
        if contender == "stacked":
            return self.nodes / batch
        return self.lower_bound if contender == "hand" and family not in UNCOUNTED else None


def count(benchmark: Benchmark, backend: Backend, minibatches: Sequence[Batch]) -> Counts:
    """Record some minibatches and count; nothing is run."""
    found = []
    for minibatch in minibatches:
        fold = multifold.Fold(backend=backend)
        start = time.perf_counter()
        nodes = benchmark.record_all(fold, minibatch.examples)
        recorded = time.perf_counter()
        schedule = fold.schedule([nodes])
        planned = time.perf_counter()
        times = (recorded - start, planned - recorded)
        found.append((len(fold), len(schedule), schedule.lower_bound, *times))
    return Counts(*map(statistics.median, zip(*found, strict=True)))


def count_rounds(benchmark: Benchmark, backend: Backend, minibatches: Sequence[Batch]) -> Counts:
    """Run some minibatches whose calls depend on values, and count."""
    model = benchmark.model().on(backend)
    found = []
    by_round = []
    for minibatch in minibatches:
        fold = multifold.Fold(backend=backend)
        start = time.perf_counter()
        benchmark.apply(fold, model, minibatch.examples)
        seconds = time.perf_counter() - start
        explained: Any = fold.explain()
        rounds = [(len(part), part.lower_bound) for part in explained.rounds]
        by_round.append(rounds)
        plan = explained.seconds.get("plan", 0.0)
        rest = seconds - sum(explained.seconds.values())
        calls = len(explained.calls)
        found.append((calls, len(explained), sum(bound for _, bound in rounds), rest, plan))
    medians = map(statistics.median, zip(*found, strict=True))
    return replace(Counts(*medians), by_round=tuple(by_round[0]))


def gradients_of(backend: Backend) -> str | None:
    """Return why a backend has no gradients, None if it has."""
    return backend.gaps().get("kit")


def make_contenders(
    names: Sequence[str],
    subject: Subject,
    others: Mapping[str, Callable[[Subject], Contender]],
    leave_out: Callable[[str, BackendError], object] | None = None,
) -> list[Contender]:
    """Return contenders by their names; those that do not exist for a subject are told, or raise."""
    known = {**CONTENDERS, **others}
    for name in names:
        if name not in known:
            raise RecordError(f"Expected contenders out of {', '.join(known)}. Received '{name}'.")
    made = []
    for name in names:
        try:
            made.append(known[name](subject))
        except BackendError as error:
            if leave_out is None or (not made and name == names[-1]):
                raise
            leave_out(name, error)
    return made


@dataclass(frozen=True)
class Setting:
    """How a step is measured.

    Attributes
    ----------
    batch : int
        Examples in a minibatch.
    train : bool
        With the gradients of all parameters.
    rounds : int
        How often each contender is timed, each time on a new minibatch.
    seconds : float
        What a contender may use before it leaves; see `multifold_bench.harness.Pace`.
    seed : int
        Of the minibatches.
    warmup, least : int
        See `Pace`.
    reference : str
        The contender that is right: the loop, unless there are too many examples to run one by one.
    device : optional
        Where the model lives, as the framework spells it; its default one if None.
    """

    batch: int
    train: bool
    rounds: int
    seconds: float
    seed: int = 0
    warmup: int = WARMUP
    least: int = 3
    reference: str = "loop"
    device: Any = None

    @property
    def pace(self) -> Pace:
        """What the harness is told."""
        return Pace(self.rounds, self.warmup, self.seconds, self.least)


def measure_step(
    benchmark: Benchmark,
    backend: Backend,
    names: Sequence[str],
    setting: Setting,
    *,
    others: Mapping[str, Callable[[Subject], Contender]] | None = None,
    advance: Callable[[str], object] = lambda what: None,
    leave_out: Callable[[str, BackendError], object] | None = None,
) -> list[Row]:
    """Time a step of each contender and return a row for each.

    Parameters
    ----------
    benchmark : Benchmark
        What is computed.
    backend : Backend
        By which framework.
    names : sequence of str
        The contenders.
    setting : Setting
        How.
    others : mapping, optional
        More contenders by name.
    advance : callable
        Told what runs next.
    leave_out : callable, optional
        Told the name of each contender that does not exist for this benchmark and framework, and why;
        without it, the first such raises.

    Raises
    ------
    MismatchError
        If a contender computes something else than the loop does.
    BackendError
        If gradients are asked for and the backend has none.
    """
    require_gradients(backend, setting.train)
    subject = Subject(benchmark, backend, benchmark.model().on(backend, setting.device), setting.train)
    contenders = make_contenders(names, subject, others or {}, leave_out)
    right = next((c for c in contenders if c.name == setting.reference), None) or loop(subject)
    try:
        stream = benchmark.minibatches(setting.batch, setting.seed)
        timings = measure(contenders, stream, setting.pace, reference=right, advance=advance)
    finally:
        for contender in contenders:
            contender.close()
    counts = counted(benchmark, backend, setting)
    facts = facts_of(subject, setting, counts) | {"reference": right.name}
    family = "tiles" if backend.name == "jax" else benchmark.family
    by_name = {timing.name: timing for timing in timings}
    environment = machine.describe(backend)
    return [
        {
            **facts,
            **row_of(timing, by_name, counts, family, setting.batch),
            "environment": {**environment, **contender.versions},
        }
        for contender, timing in zip(contenders, timings, strict=True)
    ]


def require_gradients(backend: Backend, train: bool) -> None:
    """Refuse to train on a backend that has no gradients."""
    if train and (gap := gradients_of(backend)):
        reason, _, hint = gap.partition("; ")
        raise BackendError(f"Backend '{backend.name}' has no gradients: {reason}.", hint or None)


def counted(benchmark: Benchmark, backend: Backend, setting: Setting) -> Counts:
    """Count the calls of the minibatches that were timed first."""
    counting = count_rounds if benchmark.in_rounds else count
    return counting(
        benchmark, backend, list(islice(benchmark.minibatches(setting.batch, setting.seed), 1, 6))
    )


def facts_of(subject: Subject, setting: Setting, counts: Counts) -> Row:
    """Return what the rows of all contenders say alike."""
    return {
        "command": "bench step",
        "backend": subject.backend.name,
        "mode": "train" if setting.train else "infer",
        "width": subject.benchmark.width,
        "batch": setting.batch,
        "seed": setting.seed,
        "nodes": counts.nodes,
        "lower_bound": counts.lower_bound,
        "record_ms": 1e3 * counts.record,
        "plan_ms": 1e3 * counts.plan,
        "launches_by_round": [launches for launches, _ in counts.by_round],
        "bound_by_round": [bound for _, bound in counts.by_round],
    }


def row_of(
    timing: Timing, others: Mapping[str, Timing], counts: Counts, family: str, batch: int
) -> dict[str, Any]:
    """Return what a row says about one contender."""
    low, middle, high = timing.quartiles
    hand = others.get("hand")
    launches = counts.launches_of(timing.name, family, batch)
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
        "difference": timing.difference,
    }
