"""Where the time of a step goes: the times that a fold keeps of its last run, and what is left of the step.

A step is recorded, scheduled, wired, uploaded and run as any other; the phases are those of
`Fold.explain`. What lies between the end of the forward pass and that of the step is the backward pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import multifold
from multifold._measure import machine
from multifold._measure.benchmark import Batch, Benchmark
from multifold._measure.results import Row
from multifold.backend import Backend
from multifold_bench.step import require_gradients

PHASES = ("record", "plan", "wiring", "upload", "gather", "op", "backward", "rest")
"""What a step consists of.

``record`` is the user's program with its calls of ``add``, or, for traces, nothing; ``plan`` and
``wiring`` are then merging. ``gather`` puts operands together and cuts results, ``op`` is the model.
``rest`` is the loss, what waits for a device, and all other time.
"""


def profile(
    benchmark: Benchmark,
    backend: Backend,
    *,
    batch: int,
    train: bool,
    rounds: int,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Split the time of a step, for a fold and for traces.

    Parameters
    ----------
    benchmark : Benchmark
        What is computed.
    backend : Backend
        By which framework.
    batch : int
        Examples in a minibatch.
    train : bool
        With the gradients of all parameters.
    rounds : int
        Minibatches, each a new one; one more before them is not counted.
    seed : int
        Of the minibatches.
    advance : callable
        Told what runs next.

    Returns
    -------
    A row each for ``fold`` and ``fold-traced``: the medians of milliseconds by phase, and of the step.

    Raises
    ------
    BackendError
        If gradients are asked for and the backend has none.
    """
    require_gradients(backend, train)
    model = benchmark.model().on(backend)
    rows = []
    for name in ("fold", "fold-traced"):
        found: list[dict[str, float]] = []
        for minibatch in islice(benchmark.minibatches(batch, seed), 1 + rounds):
            advance(f"{backend.name}: {name}")
            with machine.one_blas_thread(backend):
                found.append(one_step(benchmark, backend, model, minibatch, train, name == "fold-traced"))
        facts: Row = {"command": "bench profile", "backend": backend.name}
        facts |= {"mode": "train" if train else "infer", "width": benchmark.width, "batch": batch}
        facts |= {"seed": seed, "contender": name, "rounds": rounds, **medians(found[1:])}
        rows.append(facts | {"environment": machine.describe(backend)})
    return rows


def medians(steps: Sequence[dict[str, float]]) -> Row:
    """Return what a row says about some steps: calls, launches and milliseconds."""

    def median(name: str) -> float:
        return statistics.median(step[name] for step in steps)

    return {
        "calls": median("calls"),
        "launches": median("launches"),
        "total_ms": median("total"),
        "ms": {phase: median(phase) for phase in PHASES},
    }


def one_step(
    benchmark: Benchmark, backend: Backend, model: Any, minibatch: Batch, train: bool, traced: bool
) -> dict[str, float]:
    """Return the milliseconds of one step by phase, their total, and how many calls and launches it had."""
    traces = [multifold.trace(benchmark.record, x) for x in minibatch.examples] if traced else []
    fold = multifold.Fold(backend=backend)
    ended = 0.0

    def forward(model: Any) -> Any:
        nonlocal ended
        if traced:
            logits = fold.run(model, traces)
        else:
            logits = fold.apply(model, benchmark.record_all(fold, minibatch.examples))
        ended = time.perf_counter()
        return logits

    kit = backend.kit if train else None
    begin = time.perf_counter()
    if kit is None:
        with backend.inference():
            forward(model)
    else:
        kit.value_and_grad(lambda model: kit.dot(forward(model), minibatch.weights), model)
    backend.synchronize()
    total = time.perf_counter() - begin
    explained: Any = fold.explain()
    seconds = {phase: explained.seconds.get(phase, 0.0) for phase in PHASES}
    if train:
        seconds["backward"] = total - (ended - begin)
    seconds["rest"] = total - sum(seconds.values())
    found = {phase: 1e3 * x for phase, x in seconds.items()}
    calls = len(explained.calls)
    return {**found, "total": 1e3 * total, "calls": calls, "launches": len(explained)}


def shares(row: Row) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a row, each with its milliseconds and its share of the step."""
    for phase, ms in row["ms"].items():
        yield phase, ms, ms / row["total_ms"]
