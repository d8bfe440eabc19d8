"""What a run leaves for `Fold.explain`: its plan, the launches as they really ran, and when.

Times are measured on the host. A framework that queues work for a device returns from an op before the
device is done, so the time of such an op says how long queueing took.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from multifold._compiled.arrays import Integers
from multifold._plan.plan import Plan
from multifold._plan.schedule import Schedule


class LaunchTimes(NamedTuple):
    """Moments of one launch, in seconds of `time.perf_counter`."""

    begin: float
    """When its operands began to be put together."""
    call: float
    """When the op was called."""
    returned: float
    """When it had returned, and its result began to become sections."""
    end: float
    """When the next launch could begin."""


class Span(NamedTuple):
    """A phase outside the launches, in seconds of `time.perf_counter`."""

    phase: str
    begin: float
    end: float


@dataclass
class Timeline:
    """One run, without any of its results.

    Attributes
    ----------
    plan : Plan
        What was to be run.
    backend : str
        The name of the backend that ran it.
    pads : bool
        Whether the backend compiles for each number of rows; see `Backend.pads`.
    times : list of LaunchTimes
        The moments of each launch; the run appends to it.
    classes : dict of (launch, part) to Hashable
        What the rows of a launch's result had in common; the run fills it.
    types : int64 array
        The type of each call, as the last division left it.
    calls : list of int64 array
        The calls of each launch, in the order in which they ran.
    divisions : int
        How often a launch had to be divided and the rest was scheduled again.
    continued : list of int
        The launches that run another piece of the launch before them, which had very many rows.
    """

    plan: Plan
    backend: str
    pads: bool
    times: list[LaunchTimes] = field(default_factory=list)
    classes: dict[tuple[int, int], Hashable] = field(default_factory=dict)
    types: Integers = field(init=False)
    calls: list[Integers] = field(default_factory=list)
    divisions: int = 0
    continued: list[int] = field(default_factory=list)
    _spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.types = self.plan.types
        self._began = perf_counter()

    @property
    def spans(self) -> list[Span]:
        """The phases outside the launches.

        A plan may have been made an hour before it runs; its phases are moved to end where the run begins.
        """
        spans = []
        begin = self._began - sum(self.plan.seconds.values())
        for phase, seconds in self.plan.seconds.items():
            spans.append(Span(phase, begin, begin + seconds))
            begin += seconds
        return spans + self._spans

    @property
    def schedule(self) -> Schedule:
        """The launches that were planned, as far as they ran if the run was stopped."""
        planned = self.plan.schedule
        ran = len(self.calls)
        return planned if self.divisions or ran >= len(planned) else planned.first(ran)

    def add(self, phase: str, begin: float) -> float:
        """Add a phase that lasted from a moment until now, and return now."""
        now = perf_counter()
        self._spans.append(tuple.__new__(Span, (phase, begin, now)))
        return now

    def ran(self, launches: Sequence[Integers], continued: Collection[int]) -> None:
        """Add launches that ran, and say which of them continue the one before in another piece."""
        first = len(self.calls)
        if continued:
            self.continued += [first + number for number in continued if number < len(launches)]
        self.calls += launches

    def divided(self, types: Integers, begin: float) -> float:
        """Note that what is left was scheduled again by other types, since a moment; return now."""
        self.types = types
        self.divisions += 1
        return self.add("plan", begin)

    def is_of(self, schedule: Schedule, alone: Integers) -> bool:
        """Return whether it ran just the calls of a schedule, and the same ones by themselves."""
        planned = self.plan.schedule
        return (
            planned.graph is schedule.graph
            and np.array_equal(np.sort(planned.calls), np.sort(schedule.calls))
            and np.array_equal(self.plan.alone, alone)
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase.

        ``record`` (from the first call to the run, the user's own code included), ``plan``,
        ``wiring``, ``upload``, ``gather`` (putting operands together, splitting results), ``op``.
        """
        found: dict[str, float] = {}
        for span in self.spans:
            found[span.phase] = found.get(span.phase, 0.0) + span.end - span.begin
        found["gather"] = sum(t.call - t.begin + t.end - t.returned for t in self.times)
        found["op"] = sum(t.returned - t.call for t in self.times)
        return found
