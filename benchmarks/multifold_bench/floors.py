"""Floors under a step: what a fold asks of the framework, asked again with nothing between.

A fold is run, and each call of its backend is kept with its operands. A floor makes these calls once more,
in a bare loop. ``ops-alone`` makes those of the model's ops: no fold can be faster with the same launches,
and a step divided by it says what everything costs that is not the model. ``framework-alone`` makes all of
them, also those that put operands together and cut results: what a step takes above that is spent on
recording, planning, wiring and checks.

A floor has all operands before its clock starts. A step makes each operand just before the op reads it,
among other work, so the op finds it in a cache less often: a floor is lower than what these calls cost in a
step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import multifold
from multifold._compare.benchmark import Batch
from multifold._compare.timing import Step
from multifold._compare.ways import Subject
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold.testing import Counting
from multifold_bench.harness import Contender

Call = tuple[Callable[..., Any], Sequence[Any]]
"""A method of a backend, and what it is given."""


class Floor(Contender):
    """Calls a backend again as a fold has called it, one call after the other.

    As its result it shows what the fold has returned, which the harness compares with the loop.

    Parameters
    ----------
    name : str
        Of the contender.
    subject : Subject
        What is computed.
    methods : sequence of str
        The methods of a `multifold.backend.Backend` that are called again.

    Raises
    ------
    BackendError
        In training, where the gradients of a launch belong to those before it.
    """

    def __init__(self, name: str, subject: Subject, methods: Sequence[str]) -> None:
        if subject.train:
            raise BackendError(
                f"Expected inference, for the contender '{name}'.",
                "leave it out; `multifold bench profile` says what ops take in a step of training.",
            )
        self.name, self.subject, self.methods = name, subject, methods

    def prepare(self, minibatch: Batch) -> tuple[list[Call], Any]:
        """Run a fold, and keep what it calls."""
        benchmark, backend, model, _ = self.subject
        with backend.inference():
            return kept_calls(
                backend,
                self.methods,
                lambda seam: benchmark.apply(multifold.Fold(backend=seam), model, minibatch.examples),
            )

    def step(self, prepared: tuple[list[Call], Any]) -> Step:
        """Make the calls."""
        calls, logits = prepared
        backend = self.subject.backend
        with backend.inference():
            start = time.perf_counter()
            call_again(calls)
            backend.synchronize()
            seconds = time.perf_counter() - start
        return Step(seconds, lambda: {"the logits": backend.to_numpy(logits)})


def kept_calls(
    backend: Backend, methods: Sequence[str], run: Callable[[Any], Any]
) -> tuple[list[Call], Any]:
    """Return the calls of some methods of a backend while something runs, and what that returns.

    ``run`` is given a backend in the place of this one.
    """
    calls: list[Call] = []

    def kept(method: str) -> Callable[..., Any]:
        ask = getattr(backend, method)

        def keep(*given: Any) -> Any:
            # The run empties its lists of operands to free memory early, so a copy is kept.
            calls.append((ask, [tuple(x) if type(x) is list else x for x in given]))
            return ask(*given)

        return keep

    @contextlib.contextmanager
    def aside(owners: Sequence[Any]) -> Iterator[None]:
        """Keep nothing of what only verifies an op."""
        count = len(calls)
        with backend.aside(owners):
            yield
        del calls[count:]

    seam: Any = Counting(backend)
    seam.aside = aside
    for method in methods:
        setattr(seam, method, kept(method))
    found = run(seam)
    return calls, found


def call_again(calls: Sequence[Call]) -> None:
    """Make calls once more, one after the other."""
    for ask, operands in calls:
        ask(*operands)


OF_THE_FRAMEWORK = ("call", "concat", "constants", "gather", "put", "split", "to_numpy")
"""What a fold asks of a framework."""


def ops_alone(subject: Subject) -> Contender:
    """Return the floor of the model's ops."""
    return Floor("ops-alone", subject, ["call"])


def framework_alone(subject: Subject) -> Contender:
    """Return the floor of all that a fold asks of the framework."""
    return Floor("framework-alone", subject, OF_THE_FRAMEWORK)
