"""What `multifold.advise` foretells of a loop, beside the gain that is measured once it was rewritten.

The loop and the program by `multifold.Fold.add` take turns, as all contenders do: same model, same
examples, and every result is compared, with gradients where it trains.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

import multifold
from multifold._measure import contenders, machine
from multifold._measure.contenders import Subject
from multifold._measure.results import Row
from multifold._measure.timing import UNTIMED, take_turns
from multifold.backend import Array, Backend
from multifold_bench.loops import Case, make

WARMUP = 16
"""Untimed runs of the program by `Fold.add`: in the first ones its ops are tried."""


def judge(
    case: Case,
    backend: Backend,
    *,
    count: int,
    rounds: int,
    seconds: float,
    advance: Callable[[str], object] = lambda what: None,
) -> tuple[Any, Row]:
    """Advise on a loop, then measure what was foretold; return the advice and a row.

    Parameters
    ----------
    case : Case
        The loop.
    backend : Backend
        Its framework.
    count : int
        How many examples there are.
    rounds : int
        How often each way is timed.
    seconds : float
        What a way may use before it leaves.
    advance : callable
        Told what runs next.

    Raises
    ------
    MismatchError
        If the program by `Fold.add` computes something else than the loop.
    """
    fn, record, model, examples = make(case, count)
    advice = multifold.advise(fn, examples, most=count, train=case.train, backend=backend, advance=advance)
    foretold = advice.ways[-1]
    subject = Subject(None, backend, model, case.train)  # type: ignore[arg-type]

    def loop(model: Any, examples: Sequence[Any]) -> Array:
        return backend.concat([fn(example) for example in examples])

    def fold(model: Any, examples: Sequence[Any]) -> Array:
        return multifold.Fold(backend=backend).run(model, examples, record)

    with backend.inference():
        shape = loop(model, examples).shape
    with nullcontext() if case.train else backend.inference():
        for _ in range(WARMUP):
            fold(model, examples)
    weights = np.random.default_rng(0).standard_normal(tuple(shape)) / shape[0]
    steps = {
        forward.__name__: lambda forward=forward: contenders.step(subject, forward, examples, weights)
        for forward in (loop, fold)
    }
    times, difference = take_turns(steps, rounds, seconds, advance)
    kept = {name: own[UNTIMED:] for name, own in times.items()}
    gain = statistics.median(x / y for x, y in zip(kept["loop"], kept["fold"], strict=False))
    return advice, {
        "command": "bench advise",
        "case": case.name,
        "examples": count,
        "ops": advice.ops,
        "low": foretold.low,
        "high": foretold.high,
        "calls": foretold.calls,
        "launches": foretold.launches,
        "gain": gain,
        "inside": foretold.low <= gain <= foretold.high,
        "loop_ms": 1e3 * statistics.median(kept["loop"]),
        "fold_ms": 1e3 * statistics.median(kept["fold"]),
        "difference": difference,
        "environment": machine.describe(backend),
    }
