"""What a figure is: a function that takes one repetition, and lines of a table with their limits."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = dict[str, float]
"""What a repetition measured, by name: ``{"traced": 0.031, "hand": 0.029}`` in seconds, say."""

Results = dict[str, dict[str, np.ndarray]]
"""What each way of a repetition computed, by way and name: all ways of one minibatch must agree."""

Step = Callable[[int], tuple[Numbers, Results]]
"""Takes the repetition of this number. The same number is the same minibatch, in both checkouts."""


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes
    ----------
    what : str
        What the line says, after the name of the figure.
    of : callable
        Computes the line's number from the numbers of one repetition.
    unit : str
        Of that number.
    beside : float, optional
        How many times the other checkout's number this one's may be.
    most, least : float, optional
        What this checkout's number may be, whatever the other's is.
    worst : bool
        Whether the largest ratio counts in place of the median.
    """

    what: str
    of: Callable[[Mapping[str, float]], float]
    unit: str = ""
    beside: float | None = None
    most: float | None = None
    least: float | None = None
    worst: bool = False

    @property
    def limit(self) -> str:
        """The limit as the table shows it."""
        parts = []
        if self.beside is not None:
            parts.append(f"<= {self.beside:g} of there")
        if self.most is not None:
            parts.append(f"<= {self.most:g}")
        if self.least is not None:
            parts.append(f">= {self.least:g}")
        return ", ".join(parts)

    def is_met(self, here: float, ratio: float) -> bool | None:
        """Return whether the limit is met; None if there is none."""
        if not self.limit:
            return None
        return (
            (self.beside is None or ratio <= self.beside)
            and (self.most is None or here <= self.most)
            and (self.least is None or here >= self.least)
        )


def milliseconds(way: str, beside: float | None = None) -> Line:
    """Return the line of the milliseconds of one way."""
    return Line(way, lambda found: 1e3 * found[way], "ms", beside)


def ratio_of(x: float, other: float) -> float:
    """Return how many times a number is another one; 1 where both are 0."""
    if other:
        return x / other
    return 1.0 if not x else float("inf")


def share(way: str, other: str, most: float | None = None) -> Line:
    """Return the line of what one way takes relative to another one in the same checkout."""
    return Line(f"{way} / {other}", lambda found: ratio_of(found[way], found[other]), most=most)


@dataclass(frozen=True)
class Figure:
    """Something that is measured, repetition by repetition.

    Attributes
    ----------
    gate : str
        The letter of its gate.
    name : str
        What is measured; no other figure of the same framework has it.
    framework : str
        The backend that it runs on.
    prepare : callable
        ``prepare(quick) -> step`` makes models and minibatches in the process that measures. If it is
        quick, they are small.
    lines : tuple of Line
        What is shown of it.
    repetitions, quickly : int
        How often it is repeated, and how often if it is quick.
    warms : int
        How many repetitions before these warm up; their results are compared, and their times dropped.
    """

    gate: str
    name: str
    framework: str
    prepare: Callable[[bool], Step]
    lines: tuple[Line, ...]
    repetitions: int = 15
    quickly: int = 3
    warms: int = 2

    @property
    def key(self) -> tuple[str, str, str]:
        """Which figure it is, for a process that has its own list of them."""
        return self.gate, self.framework, self.name


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of the processor that a function took, and what it returned.

    Everything runs in one thread and waits for nothing. So these are the seconds on a clock, less those in
    which another program had the core.
    """
    gc.collect()  # otherwise it pays for the garbage of what ran before
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


class ModelStep:
    """A model on a framework, and one step of inference or training with it.

    Parameters
    ----------
    framework : str
    model : object
        Of that framework.
    train : bool
        Whether a step computes gradients, too.
    """

    def __init__(self, framework: str, model: Any, train: bool) -> None:
        import multifold

        self.backend = multifold.load_backend(framework)
        self.model = model
        self.train = train

    def step(
        self, forward: Callable[[Any], Any], weights: np.ndarray
    ) -> tuple[float, dict[str, np.ndarray]]:
        """Run ``forward(model) -> outputs``; return its seconds and what it computed.

        In training the loss is the sum of the outputs times the weights, one operation in any framework.
        """
        backend = self.backend
        if not self.train:
            with backend.inference():
                seconds, outputs = timed(lambda: self._finished(forward(self.model)))
            return seconds, {"outputs": backend.to_numpy(outputs)}
        kit = backend.kit
        seconds, (loss, gradients) = timed(
            lambda: self._finished(
                kit.value_and_grad(lambda model: kit.dot(forward(model), weights), self.model)
            )
        )
        found = {f"gradient of {name}": sums(backend.to_numpy(x)) for name, x in gradients.items()}
        return seconds, {"loss": backend.to_numpy(loss), **found}

    def _finished(self, result: Any) -> Any:
        self.backend.synchronize()
        return result


def sums(gradient: np.ndarray) -> np.ndarray:
    """Return the sum of an array and the sum of its magnitudes, to compare gradients by two numbers."""
    wide = np.asarray(gradient, np.float64)
    return np.array([wide.sum(), np.abs(wide).sum()])


def summed(steps: Iterable[tuple[float, dict[str, np.ndarray]]]) -> tuple[float, dict[str, np.ndarray]]:
    """Return the seconds of several steps together, and all that they computed."""
    total = 0.0
    together: dict[str, np.ndarray] = {}
    for number, (seconds, results) in enumerate(steps):
        total += seconds
        together |= {f"{name} of step {number}": x for name, x in results.items()}
    return total, together
