"""One example at a time against folded, on one backend: what ``multifold compare`` shows of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

from multifold._compare import machine
from multifold._compare.benchmark import Batch, Benchmark
from multifold._compare.contenders import Subject, fold, loop
from multifold._compare.harness import Pace, measure
from multifold._compare.results import Row
from multifold.backend import Backend
from multifold.fold import Fold

WORDS = ("backend", "workload", "mode")
FIGURES = (
    "batch",
    "width",
    "nodes",
    "launches",
    "lower_bound",
    "mean_rows",
    "loop_ms",
    "fold_ms",
    "first_ms",
    "speed_up",
    "difference",
)
"""The strings and the numbers of a backend's row, unless it has a ``note`` that says why not."""

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
    """Run one minibatch both ways, several times, and return what there is to say.

    It is the same minibatch each time: frameworks that compile for each new structure have done so
    before the first round, and ``first_ms`` says what that took.

    Parameters
    ----------
    benchmark : Benchmark
        What is computed.
    backend : Backend
        By which framework.
    batch : int
        Examples in the minibatch.
    train : bool
        With gradients. Where a backend has none, the row has a ``note`` and no times.
    rounds : int
        How often each way is timed.
    seed : int
        Of the minibatch.
    advance : callable
        Told what runs next.

    Raises
    ------
    MismatchError
        If the two ways differ.
    """
    mode = "train" if train else "infer"
    facts = {"command": "compare", "backend": backend.name, "mode": mode, "batch": batch}
    facts |= {"width": benchmark.width, "seed": seed}
    if train and "kit" in backend.gaps():
        return {**facts, "note": "no gradients"}
    minibatch = next(benchmark.minibatches(batch, seed))
    subject = Subject(benchmark, backend, benchmark.model().on(backend), train)
    one_at_a_time, folded = loop(subject), fold(subject)
    with machine.one_blas_thread():
        slow, quick = measure(
            [one_at_a_time, folded],
            repeat(minibatch),
            Pace(rounds, seconds=SECONDS, least=1),
            reference=one_at_a_time,
            advance=lambda name: advance(f"{backend.name}: {name}"),
        )
    return {
        **facts,
        **counts(benchmark, backend, minibatch),
        "loop_ms": 1e3 * slow.median,
        "fold_ms": 1e3 * quick.median,
        "first_ms": 1e3 * quick.first,
        "rounds": [len(slow.rounds), len(quick.rounds)],
        "speed_up": slow.median / quick.median,
        "difference": quick.difference,
        "environment": machine.describe(backend),
    }


def counts(benchmark: Benchmark, backend: Backend, minibatch: Batch) -> Row:
    """Record a minibatch and return how many calls and launches it has; nothing is run."""
    recorder = Fold(backend=backend)
    schedule = recorder.schedule([benchmark.record_all(recorder, minibatch.examples)])
    return {
        "nodes": len(recorder),
        "launches": len(schedule),
        "lower_bound": schedule.lower_bound,
        "mean_rows": len(recorder) / len(schedule),
    }
