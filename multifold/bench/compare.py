"""One example at a time against folded, on one backend: what ``multifold compare`` shows of each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, repeat

from multifold.backend import Backend
from multifold.bench import machine
from multifold.bench.contenders import Subject, fold, loop
from multifold.bench.harness import measure
from multifold.bench.results import Row
from multifold.bench.step import count, gradients_of
from multifold.bench.workloads import Task

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
    task: Task,
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
    task : Task
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
    facts |= {"width": task.width, "seed": seed}
    if train and gradients_of(backend):
        return {**facts, "note": "no gradients"}
    minibatch = next(task.minibatches(batch, seed))
    subject = Subject(task, backend, task.model().on(backend), train)
    one_at_a_time, folded = loop(subject), fold(subject)
    with machine.one_blas_thread():
        slow, quick = measure(
            [one_at_a_time, folded],
            islice(repeat(minibatch), 1 + 1 + rounds),
            reference=one_at_a_time,
            rounds=rounds,
            warmup=1,
            seconds=SECONDS,
            least=1,
            advance=lambda name: advance(f"{backend.name}: {name}"),
        )
    counts = count(task, backend, [minibatch])
    return {
        **facts,
        "nodes": counts.nodes,
        "launches": counts.launches,
        "lower_bound": counts.lower_bound,
        "mean_rows": counts.nodes / counts.launches,
        "loop_ms": 1e3 * slow.median,
        "fold_ms": 1e3 * quick.median,
        "first_ms": 1e3 * quick.first,
        "rounds": [len(slow.rounds), len(quick.rounds)],
        "speed_up": slow.median / quick.median,
        "difference": quick.difference,
        "environment": machine.describe(backend),
    }
