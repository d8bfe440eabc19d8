"""One example at a time against folded, on one backend: what ``multifold compare`` shows of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from multifold._measure import machine
from multifold._measure.benchmark import Batch, Benchmark
from multifold._measure.contenders import Subject, fold, loop, step
from multifold._measure.results import Row
from multifold._measure.timing import UNTIMED, take_turns
from multifold.backend import Backend
from multifold.fold import Fold

SECONDS = 1.0
"""Neither way is repeated once it has used that many seconds."""


def compare(
    benchmark: Benchmark,
    backend: Backend,
    *,
    batch: int,
    train: bool,
    rounds: int,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> Row:
    """Run one minibatch both ways in turn, ``rounds`` times, and return the row for it: name -> value.

    It is the same minibatch each time: frameworks that compile for each new structure have done so
    before the first round, and ``first_ms`` says what that took.

    Parameters
    ----------
    benchmark, backend
        The model with its examples, and the backend whose framework runs it.
    batch, seed : int
        How many examples the minibatch has, and which ones.
    train : bool
        Whether gradients are computed. Where a backend has none, the row has a ``note`` and no times.
    rounds : int
        How often each way is timed.
    advance : callable
        Called with the name of what runs next, as ``"numpy: loop"``.

    Raises MismatchError if the two ways differ.
    """
    facts = {
        "command": "compare",
        "backend": backend.name,
        "mode": "train" if train else "infer",
        "batch": batch,
        "width": benchmark.width,
        "seed": seed,
    }
    if train and "kit" in backend.gaps():
        return {**facts, "note": "no gradients"}
    minibatch = next(benchmark.minibatches(batch, seed))
    subject = Subject(benchmark, backend, benchmark.model().on(backend), train)
    steps = {way.__name__: partial(step, subject, way(subject), *minibatch) for way in (loop, fold)}
    with machine.one_blas_thread():
        seconds, difference = take_turns(
            steps, rounds, SECONDS, lambda name: advance(f"{backend.name}: {name}")
        )
    timed = {name: times[UNTIMED:] for name, times in seconds.items()}
    # The loop comes first in `steps`, and dictionaries keep their order.
    slow, quick = map(statistics.median, timed.values())
    return {
        **facts,
        **counts(benchmark, backend, minibatch),
        "loop_ms": 1e3 * slow,
        "fold_ms": 1e3 * quick,
        "first_ms": 1e3 * seconds["fold"][0],
        "rounds": list(map(len, timed.values())),
        "speed_up": slow / quick,
        "difference": difference,
        "environment": machine.describe(backend),
    }


def counts(benchmark: Benchmark, backend: Backend, minibatch: Batch) -> Row:
    """Record a minibatch and return how many calls and launches it has; run nothing.

    The row has ``nodes``, the calls; ``launches``; ``lower_bound``, launches that any schedule has at
    least; and ``mean_rows``, calls a launch.
    """
    recorder = Fold(backend=backend)
    schedule = recorder.schedule([benchmark.record_all(recorder, minibatch.examples)])
    return {
        "nodes": len(recorder),
        "launches": len(schedule),
        "lower_bound": schedule.lower_bound,
        "mean_rows": len(recorder) / len(schedule),
    }
