"""What a round without a plan leaves for `explain`: its launches, told only if somebody asks.

A round whose launches gather their operands is made without a plan (`multifold._await.gathers`), so what a
plan would say of it is found out afterwards, from the numbers of its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from multifold._await.calls import CallTable
from multifold._await.report import Round
from multifold._compiled.arrays import Integers, starts
from multifold._record.graph import Graph
from multifold._run.timeline import LaunchTimes, Timeline
from multifold._schedule.columns import NO_INTEGERS
from multifold._schedule.outputs import Outputs
from multifold._schedule.schedule import Schedule, call_types, make_schedule
from multifold._wiring.plan import Plan
from multifold.backend import Backend


@final
@dataclass(frozen=True, slots=True)
class ToldRound:
    """One round whose launches gathered their operands.

    Attributes
    ----------
    graph : Graph
        What its calls were recorded in.
    backend : Backend
        What ran them.
    waits : sequence of pairs
        A request, or several, and the references that it waits for, or each of them.
    launches : list of int64 array
        The calls of each launch.
    times : list of LaunchTimes
        When each launch ran.
    seconds : dict of str to float
        How long the examples recorded before, where that is known.
    """

    graph: Graph
    backend: Backend
    waits: Sequence[tuple[int | Integers, Sequence[int] | Integers]]
    launches: list[Integers]
    times: list[LaunchTimes]
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, calls: Integers, times: LaunchTimes) -> None:
        """Note a launch that has run."""
        self.launches.append(calls)
        self.times.append(times)

    @property
    def launched(self) -> int:
        """How many launches ran."""
        return len(self.launches)

    def told(self) -> Round:
        """Return the round as `multifold.explain` shows it."""
        table = CallTable(self.graph)
        ran = np.concatenate(self.launches)
        table.extend()
        table.result[:] = 1
        table.result[ran] = 0
        selection = table.select(ran)
        columns = table.columns(selection)
        types = call_types(columns, NO_INTEGERS)
        calls = table.renumbered(ran)
        bound = make_schedule(columns, columns, types, np.unique(calls), "auto").lower_bound
        bounds = starts(np.array(list(map(len, self.launches)), np.int64))
        schedule = Schedule(columns, columns, calls, bounds, bound, "auto")
        graph = self.graph
        numbers = selection.kept
        plan = Plan(
            columns, Outputs(), NO_INTEGERS, types, schedule, None, columns.loose,
            lambda call: graph.site(int(numbers[call])), seconds=self.seconds,
        )  # fmt: skip
        timeline = Timeline(plan, self.backend.name, self.backend.pads)
        timeline.times.extend(self.times)
        timeline.ran([table.renumbered(launch) for launch in self.launches], ())
        examples, refs = np.concatenate([np.broadcast_arrays(*pair) for pair in self.waits], axis=1)
        return Round(timeline, graph, examples, refs, numbers)


Report = Round | ToldRound
"""What one round leaves for `explain`."""
