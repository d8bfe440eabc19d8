"""Contenders side by side: the same minibatches in turn, checked before any time is believed.

A contender has a name and takes steps; each step says how long it took and what came out. The harness knows
nothing of frameworks, models and data. It lets the contenders take turns on new minibatches (A B, A B, so
that a machine busy with something else slows all of them down), compares what they return, and keeps every
time. Below, two ways to add numbers agree, so their times count; a wrong sum would raise a `MismatchError`.

>>> class Sum(Contender):
...     def __init__(self, name, add):
...         self.name, self.add = name, add
...     def step(self, numbers):
...         start = time.perf_counter()
...         total = self.add(numbers)
...         return Step(time.perf_counter() - start, lambda: {"the sum": np.array(float(total))})
>>> plain, numpys = Sum("plain", sum), Sum("numpy", np.sum)
>>> timings = measure([plain, numpys], ([i, 2.0, 3.0] for i in range(9)), Pace(rounds=4), reference=plain)
>>> [(timing.name, len(timing.rounds), timing.difference) for timing in timings]
[('plain', 4, 0.0), ('numpy', 4, 0.0)]
"""

from __future__ import annotations

import abc
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from multifold._measure.garbage import only_new_garbage
from multifold._measure.timing import Step, largest_difference


class Contender(abc.ABC):
    """One way to compute the same thing."""

    name: str
    versions: Mapping[str, str] = MappingProxyType({})
    """What it needs beyond the framework, and the version of each."""

    def prepare(self, minibatch: Any) -> Any:
        """Return what `step` reads: work that its users do once per data set, outside the time."""
        return minibatch

    @abc.abstractmethod
    def step(self, prepared: Any) -> Step:
        """Compute the values (and gradients) of a minibatch, from first line to last result."""

    def close(self) -> None:
        """Give back what the contender holds."""


@dataclass
class Timing:
    """What the harness found out about a contender.

    Attributes
    ----------
    first : float
        Seconds of the very first step: with all that is compiled on the way.
    prepared : list of float
        Seconds of each preparation.
    rounds : dict of int to float
        Round -> seconds.
    difference : float
        The largest difference of a value or gradient from the reference's.
    """

    name: str
    first: float = float("nan")
    prepared: list[float] = field(default_factory=list)
    rounds: dict[int, float] = field(default_factory=dict)
    difference: float = 0.0

    def begin(self, seconds: float, difference: float) -> None:
        """Note what the very first step took, and how far its results are from the reference's."""
        self.first = seconds
        self.difference = difference

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The lower quartile, the median and the upper quartile of the seconds of a step."""
        return quartiles(list(self.rounds.values()))

    @property
    def median(self) -> float:
        """The median of the seconds of a step."""
        return self.quartiles[1]

    def ratio(self, other: Timing) -> float:
        """Return the median, over the rounds that both took part in, of this time / the other's."""
        common = self.rounds.keys() & other.rounds.keys()
        if not common:
            return float("nan")
        return statistics.median(self.rounds[i] / other.rounds[i] for i in common)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the quartiles of some values.

    Examples
    --------
    >>> quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) < 2:
        only = values[0] if values else float("nan")
        return only, only, only
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True)
class Pace:
    """How often contenders are timed, and when one of them may leave.

    Attributes
    ----------
    rounds : int
        How often each contender is timed.
    warmup : int
        Untimed rounds after the first minibatch. A contender whose untimed steps took longer than
        ``seconds`` twice, which is more than compiling once, leaves out the others.
    seconds : float
        A contender that has used that many seconds leaves.
    least : int
        However slow a contender is, it takes part in that many rounds.
    """

    rounds: int
    warmup: int = 1
    seconds: float = float("inf")
    least: int = 3

    @property
    def minibatches(self) -> int:
        """How many minibatches a race uses."""
        return 1 + self.warmup + self.rounds


class Race:
    """Contenders that are timed against each other, and what is known of them so far.

    Parameters
    ----------
    contenders : sequence of Contender
        Who takes part, in the order of each round.
    pace : Pace
        How often.
    advance : callable
        Told the contender's name before each step.
    """

    def __init__(
        self, contenders: Sequence[Contender], pace: Pace, advance: Callable[[str], object]
    ) -> None:
        self.contenders = contenders
        self.pace = pace
        self.advance = advance
        self.timings = {contender.name: Timing(contender.name) for contender in contenders}
        self.slow = dict.fromkeys(self.timings, 0)

    def prepare(self, contender: Contender, minibatch: Any) -> Any:
        """Let a contender prepare a minibatch, and keep how long that took."""
        start = time.perf_counter()
        prepared = contender.prepare(minibatch)
        if contender.name in self.timings:
            self.timings[contender.name].prepared.append(time.perf_counter() - start)
        return prepared

    def step(self, contender: Contender, prepared: Any) -> Step:
        """Let a contender take a step."""
        self.advance(contender.name)
        gc.collect()  # otherwise a contender pays for the garbage of the one before it
        return contender.step(prepared)

    def begin(self, minibatch: Any, reference: Contender) -> None:
        """Run the first minibatch and compare each contender with the reference."""
        expected = self.step(reference, self.prepare(reference, minibatch))
        right = expected.results()
        for contender in self.contenders:
            done = expected
            if contender is not reference:
                done = self.step(contender, self.prepare(contender, minibatch))
            difference = largest_difference(contender.name, done.results(), reference.name, right)
            self.timings[contender.name].begin(done.seconds, difference)
            self.slow[contender.name] += done.seconds > self.pace.seconds

    def sits_out(self, contender: Contender, number: int) -> bool:
        """Return whether a contender leaves out a round, since it was slow or has used up its time."""
        if number < 0:
            return self.slow[contender.name] > 1
        rounds = self.timings[contender.name].rounds
        return len(rounds) >= self.pace.least and sum(rounds.values()) > self.pace.seconds

    def round(self, number: int, minibatch: Any) -> None:
        """Run one round; the rounds below 0 warm up, and their times are not kept."""
        taking = []
        for contender in self.contenders:
            if self.sits_out(contender, number):
                self.advance(contender.name)
            else:  # all prepare before any steps: making traces fills caches, which is no part of a step
                taking.append((contender, self.prepare(contender, minibatch)))
        leader: tuple[str, Mapping[str, np.ndarray]] | None = None
        for contender, prepared in taking:
            done = self.step(contender, prepared)
            if number >= 0:
                self.timings[contender.name].rounds[number] = done.seconds
            else:
                self.slow[contender.name] += done.seconds > self.pace.seconds
            results = done.results()
            if leader is None:
                leader = contender.name, results
            else:
                largest_difference(contender.name, results, *leader)


def measure(
    contenders: Sequence[Contender],
    minibatches: Iterable[Any],
    pace: Pace,
    *,
    reference: Contender,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Timing]:
    """Time contenders against each other.

    Every result is checked: on the first minibatch against the reference, values and gradients; on
    all others against the first contender that took part.

    Parameters
    ----------
    contenders : sequence of Contender
        Who takes part, in the order of each round; the reference may be among them.
    minibatches : iterable
        ``pace.minibatches`` of them are used, each once, so that no contender profits from a repetition
        that training would not have.
    pace : Pace
        How often.
    reference : Contender
        Who is right.
    advance : callable
        Told the contender's name before each step.

    Returns
    -------
    A `Timing` for each contender, in their order.

    Raises
    ------
    MismatchError
        If a value or a gradient differs.
    """
    stream = iter(minibatches)
    race = Race(contenders, pace, advance)
    with only_new_garbage():
        race.begin(next(stream), reference)
        for number, minibatch in enumerate(islice(stream, pace.minibatches - 1), start=-pace.warmup):
            if number == 0:
                # Spare the collector what a compiler has loaded meanwhile: to walk over all of that empties
                # the caches of the processor, and a short step after it takes several times as long.
                gc.freeze()
            race.round(number, minibatch)
    return list(race.timings.values())
