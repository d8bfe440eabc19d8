"""A floor under each step: the ops of its launches alone, on operands that were put together before.

No fold can be faster than this with the same launches. So a step divided by it says what everything costs
that is not the model: recording, planning, wiring, and copies of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import multifold
from multifold._compare.benchmark import Batch
from multifold._compare.timing import Step
from multifold._compare.ways import Subject
from multifold.errors import BackendError
from multifold.testing import Counting
from multifold_bench.harness import Contender

Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""An op with its operands and static arguments."""


class OpsAlone(Contender):
    """Calls the ops of a fold's launches again, one after the other.

    Its results are those of the fold whose launches they are.

    Raises
    ------
    BackendError
        In training, where the gradients of a launch belong to those before it; and where values decide what
        is called.
    """

    name = "ops-alone"

    def __init__(self, subject: Subject) -> None:
        if subject.train or subject.benchmark.in_rounds:
            raise BackendError(
                "Expected inference of calls known before any runs, for the contender 'ops-alone'.",
                "leave it out; `multifold bench profile` says what ops take in a step of training.",
            )
        self.subject = subject

    def prepare(self, minibatch: Batch) -> tuple[list[Call], Any]:
        """Run a fold, and keep what its launches call."""
        benchmark, backend, model, _ = self.subject
        calls: list[Call] = []

        def keep(fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
            calls.append((fn, tuple(operands), static))  # the run empties its list to free memory early
            return backend.call(fn, operands, static)

        seam: Any = Counting(backend)
        seam.call = keep
        with backend.inference():
            logits = benchmark.apply(multifold.Fold(backend=seam), model, minibatch.examples)
        return calls, logits

    def step(self, prepared: tuple[list[Call], Any]) -> Step:
        """Call the ops."""
        calls, logits = prepared
        backend = self.subject.backend
        with backend.inference():
            start = time.perf_counter()
            for fn, operands, static in calls:
                backend.call(fn, operands, static)
            backend.synchronize()
            seconds = time.perf_counter() - start
        return Step(seconds, lambda: {"the logits": backend.to_numpy(logits)})
