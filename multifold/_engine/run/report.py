"""What a run leaves for `explain`: the launches as they ran, when, and who waited for them.

A run appends what happens to its `Notes`, and makes a `Report` with them when it has ended. That is a few
lists, for a run of 1,000 rounds keeps a thousand reports. What else can be said of the calls, such as
their operands, their levels and a bound on the launches, `multifold.explain` finds out of the graph when
`Fold.explain` is called.

Times are measured on the host. A framework that queues work for a device returns from an op before the
device is done, so the time of such an op says how long queueing took.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np

from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.columns import NO_INTEGERS
from multifold._engine.plan.schedule import Schedule
from multifold.backend import Backend

Waits = tuple[Integers, Integers]
"""Numbers of examples, and the reference that each of them waits for."""

NOBODY: Waits = (NO_INTEGERS, NO_INTEGERS)
"""No example waits: in the last round, which runs what the results need, and in a run without ``await``."""


class LaunchTimes(NamedTuple):
    """Moments of one launch, in seconds of `time.perf_counter`, as if its trial had come before it."""

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


@final
@dataclass(slots=True)
class Notes:
    """What a run, or one round of a run, notes while it is under way.

    Attributes
    ----------
    prepared : mapping of str to float
        How long the phases before the run took: recording, and making its plan.
    began : float
        When the run began.
    calls : list of int64 array
        The calls of each launch, in the order in which they ran.
    times : list of LaunchTimes
        The moments of each launch.
    spans : list of Span
        The phases of the run outside the launches.
    classes : dict of (launch, part) to Hashable
        What the rows of a launch's result have in common, for the parts that were read. While a round runs
        by a plan, launches are counted from its first given result on.
    divisions : int
        How often a launch had to be divided and the rest was scheduled again.
    continued : list of int
        The launches that run another piece of the launch before them, which had very many rows.
    """

    prepared: Mapping[str, float] = field(default_factory=dict)
    began: float = field(default_factory=perf_counter)
    calls: list[Integers] = field(default_factory=list)
    times: list[LaunchTimes] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    classes: dict[tuple[int, int], Hashable] = field(default_factory=dict)
    divisions: int = 0
    continued: list[int] = field(default_factory=list)

    def launched(self, calls: Integers, times: LaunchTimes) -> None:
        """Append a launch that has run: its calls, in the order of its rows, and its moments."""
        self.calls.append(calls)
        self.times.append(times)

    def took(self, phase: str, begin: float) -> float:
        """Append a span for a phase that lasted from ``begin`` until now; return now.

        Both are in seconds of `time.perf_counter`; ``phase`` is its name, such as "upload".
        """
        now = perf_counter()
        # The class itself would call a function of Python, and a run of 1,000 rounds makes thousands of
        # these.
        self.spans.append(tuple.__new__(Span, (phase, begin, now)))
        return now

    def divided(self, began: float) -> float:
        """Count one division, and append a "plan" span from ``began`` until now; return now."""
        self.divisions += 1
        return self.took("plan", began)

    def pieces(self, first: int, continued: Collection[int]) -> None:
        """Note which of the launches that have run continue the launch before them.

        The argument ``continued`` has their numbers in a schedule, whose launch 0 is launch ``first`` of
        the run.
        """
        numbers = [first + number for number in continued]
        self.continued += [number for number in numbers if number < len(self.calls)]

    def renumbered(self, numbers: Integers, given: int) -> Notes:
        """Return the notes of a round, with the numbers that calls and launches have outside of it.

        Call ``i`` of the round is call ``numbers[i]`` of the graph. The first ``given`` launches are
        results of rounds before: in ``classes`` these are left out, and the other launches count from 0.
        All else is shared with these notes.
        """
        # Classes of given results are left out: the report of the round that computed them has them.
        own = {(launch - given, part): x for (launch, part), x in self.classes.items() if launch >= given}
        return replace(self, calls=[numbers[launch] for launch in self.calls], classes=own)

    def joined(self, others: Notes) -> None:
        """Append the notes of a part of this round, which ran by a plan; its launches come last.

        Its phases are appended, those before its run too, but not "record", which the round has noted
        itself. Launches in ``classes`` and ``continued`` are renumbered.
        """
        first = len(self.calls)
        self.calls += others.calls
        self.times += others.times
        # The round has noted the time of recording: no example records between two of its launches.
        self.spans += [span for span in others.phases() if span.phase != "record"]
        self.classes |= {(first + launch, part): x for (launch, part), x in others.classes.items()}
        self.divisions += others.divisions
        self.continued += [first + launch for launch in others.continued]

    def phases(self) -> list[Span]:
        """Return a new list of all phases outside the launches, those before the run first.

        A plan may have been made an hour before it runs; its phases are moved to end where the run begins.
        """
        found: list[Span] = []
        # The phases lie back to back before the run, so that a timeline shows them without the hour
        # between.
        begin = self.began - sum(self.prepared.values())
        for phase, seconds in self.prepared.items():
            found.append(Span(phase, begin, begin + seconds))
            begin += seconds
        return [*found, *self.spans]

    def seconds(self) -> dict[str, float]:
        """Return a new dict, name of a phase -> its seconds in all.

        The phases are ``record`` (from the first call to the run, the user's own code included), ``plan``,
        ``wiring``, ``upload``, ``gather`` (putting operands together, splitting results or writing them to
        pages), and ``op``. What a trial takes is in none of them.
        """
        found: dict[str, float] = {}
        for span in self.phases():
            found[span.phase] = found.get(span.phase, 0.0) + span.end - span.begin
        found["gather"] = sum(t.call - t.begin + t.end - t.returned for t in self.times)
        found["op"] = sum(t.returned - t.call for t in self.times)
        return found


class Report(NamedTuple):
    """One run, or one round of a run, without any of its results.

    Attributes
    ----------
    notes : Notes
        What was noted while it ran. Calls have their numbers in the graph.
    graph : Graph or Columns
        What the calls were recorded in, which numbers them.
    backend : Backend
        What ran them.
    policy : str
        The scheduling policy.
    site : callable
        Call -> where it was recorded.
    alone : int64 array
        The calls whose whole results are read.
    planned : Schedule or None
        The launches as they were planned, where all calls of the graph were there to be planned. A round of
        awaited values leaves None.
    waits : pair of int64 arrays
        Which example waited for which reference; of a server, which request. No nodes are kept, since a
        node would keep the result of its call alive.
    untried : mapping of str to str
        Names of ops that no trial has shown to keep their rows apart, and why there was none.
    """

    notes: Notes
    graph: Any
    backend: Backend
    policy: str
    site: Callable[[int], str]
    alone: Integers = NO_INTEGERS
    planned: Schedule | None = None
    waits: Waits = NOBODY
    untried: Mapping[str, str] = MappingProxyType({})

    def is_of(self, schedule: Schedule, alone: Integers) -> bool:
        """Return whether just the calls of ``schedule`` ran, of the same graph and with the same ``alone``.

        ``alone`` are the calls whose whole results are read. The launches may be others.
        """
        return (
            self.graph is schedule.graph
            # `unique` restores the order of recording, and leaves out what a padded launch repeats.
            and np.array_equal(self.ran(), np.unique(schedule.calls))
            and np.array_equal(self.alone, alone)
        )

    def ran(self) -> Integers:
        """Return the calls that ran, each once, as an int64 array in the order of recording."""
        calls = self.notes.calls
        return np.unique(np.concatenate(calls)) if calls else NO_INTEGERS
