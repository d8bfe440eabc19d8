"""All decisions of a run, made from integers before any array is touched.

A `Plan` holds the calls, what is asked for, the schedule, and the wiring where somebody has asked for it,
since a program needs none. It knows no backend and no model, so a worker of a data loader can make it ahead
of time, pickle it, and a fold can run it many times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from multifold._compiled.arrays import Integers
from multifold._record.damage import damaged
from multifold._schedule.columns import NO_INTEGERS, Columns
from multifold._schedule.levels import Problem
from multifold._schedule.outputs import Outputs
from multifold._schedule.schedule import Schedule, by_policy, call_types, make_schedule
from multifold._wiring.place import Place
from multifold._wiring.wiring import Planned, Wiring, plan_and_wire, wire

WIRED_AT_ONCE = 1 << 14
"""Up to so many calls are wired in the call that schedules them; more rows may run in pieces."""


@dataclass(frozen=True)
class Plan:
    """What is run, in which launches, and which rows go where.

    The schedule and the wiring read nothing of the calls but their form. So `of` makes the plan of other
    calls of the same form without planning anew (`multifold._wiring.cache`).

    Attributes
    ----------
    columns : Columns
        The calls.
    asked : Outputs
        What is asked for.
    alone : int64 array
        Calls whose whole result is wanted: they run in launches of their own.
    types : int64 array
        The type of each call; only calls of one type share a launch.
    schedule : Schedule
        The launches.
    place : Place or None
        Where the calls that have run before are.
    loose : sequence
        Numbers and arrays inside ragged operands and groups.
    site : callable
        Call -> where it was recorded.
    seconds : dict of str to float
        How long making it took, by phase.
    wiring : Wiring or None
        How rows move between the launches; None where nobody has asked for it, since a program needs none.
    pad : callable or None
        Rows of a launch -> how many it is padded to.
    keeps : bool
        Whether all results stay after the run, since later plans may read them.
    stays : int64 array or None
        Calls whose results stay after the run, where not all do.
    """

    columns: Columns
    asked: Outputs
    alone: Integers
    types: Integers
    schedule: Schedule
    place: Place | None
    loose: Sequence[Any]
    site: Callable[[int], str]
    seconds: dict[str, float]
    wiring: Wiring | None = None
    pad: Callable[[int], int] | None = None
    keeps: bool = False
    stays: Integers | None = None

    def changed(self, **changes: Any) -> Plan:
        """Return the plan with other attributes. `dataclasses.replace` takes ten times as long."""
        found = object.__new__(Plan)
        vars(found).update(vars(self), **changes)
        return found

    def of(
        self,
        columns: Columns,
        asked: Outputs,
        graph: Any,
        site: Callable[[int], str],
        seconds: dict[str, float],
    ) -> Plan:
        """Return the plan of other calls, whose columns have the same form."""
        loose = [*columns.loose, *asked.loose] if asked.loose else columns.loose
        schedule = self.schedule.of(columns, graph)
        return self.changed(
            columns=columns, asked=asked, schedule=schedule, loose=loose, site=site, seconds=seconds
        )

    def wired(self) -> Plan:
        """Return the plan with its wiring."""
        if self.wiring is not None:
            return self
        began = perf_counter()
        # `wire` fills the places in. The given ones belong to the caller, who may plan from them again.
        place = Place.nowhere(len(self.columns)) if self.place is None else self.place.copy()
        try:
            wiring = wire(self.columns, self.schedule, place, self.asked.batched, self.keeps)
        except IndexError as error:  # calls that were recorded, not read from a trace, are in order
            raise damaged(f"{error}") from error
        return self.changed(wiring=wiring, seconds={**self.seconds, "wiring": perf_counter() - began})

    def in_pieces(self, pieces: Callable[[int], int]) -> Plan:
        """Return the plan with launches of very many rows in pieces (`Schedule.in_pieces`)."""
        schedule = self.schedule.in_pieces(pieces)
        return self if schedule is self.schedule else self.changed(schedule=schedule, wiring=None)


def make_plan(
    columns: Columns,
    asked: Outputs,
    policy: str,
    site: Callable[[int], str],
    owner: Any = None,
    schedule: Schedule | None = None,
    *,
    place: Place | None = None,
    alone: Integers | None = None,
    pad: Callable[[int], int] | None = None,
    recording: float | None = None,
    keeps: bool = False,
    stays: Integers | None = None,
    runs: bool = False,
    found: Planned | tuple[Integers, ...] | None = None,
    began: float | None = None,
) -> Plan:
    """Return the plan for some outputs.

    Parameters
    ----------
    columns, asked
        The calls and what is asked for.
    policy : str
        The scheduling policy.
    site : callable
        Call -> where it was recorded.
    owner : Graph, optional
        What the nodes of the schedule belong to; by default the columns.
    schedule : Schedule, optional
        The schedule, where it is known already.
    place : Place, optional
        Where the calls that have run before are; all others are run.
    alone : int64 array, optional
        Calls whose whole results are read by others than these.
    pad : callable, optional
        Rows of a launch -> how many it is padded to.
    recording : float, optional
        How many seconds recording took, where that is known.
    keeps : bool
        Whether all results stay after the run.
    stays : int64 array, optional
        Calls whose results stay where not all do, besides those that are asked for.
    runs : bool
        Whether the plan is sure to be run. Then one compiled call makes the schedule and the wiring, unless
        calls run alone or are padded, or a policy has to choose the launches.
    found : tuple, optional
        What that call has found, where it was made already.
    began : float, optional
        When planning began, if not now.
    """
    began = perf_counter() if began is None else began
    graph = owner or columns
    loose = [*columns.loose, *asked.loose] if asked.loose else columns.loose
    seconds = {} if recording is None else {"record": recording}
    # Two steps take 30 microseconds more for 16 trees: their columns are handed over twice.
    if runs and is_plain(columns, asked, policy):
        found = plan_and_wire(columns, graph, asked.batched, keeps)
    if isinstance(found, Planned):
        seconds["plan"] = found.scheduled - began
        seconds["wiring"] = perf_counter() - found.scheduled
        facts = columns, asked, NO_INTEGERS, columns.signature, found.schedule, place, loose, site, seconds
        return Plan(*facts, found.wiring, keeps=keeps, stays=stays)
    # Types meet in a circle: the call has found the levels of all calls, and a policy goes on from there.
    if found is not None:
        pending, *counted = found
        schedule = by_policy(columns, graph, Problem.counted_as(*counted), pending, policy)
    whole = asked.whole_calls
    if alone is None or not len(alone):
        alone = whole
    elif len(whole):
        alone = np.append(alone, whole)
    # A result that is read whole may have any number of rows, so its call can't share a launch.
    alone = np.union1d(columns.shared_calls, alone) if len(alone) else columns.shared_calls
    types = call_types(columns, alone)
    if schedule is None:
        # A call that no output needs does not run.
        if place is None:
            pending = columns.ancestors(asked.sources)
        else:
            pending = (place.launch[: len(columns)] < 0).nonzero()[0]
        schedule = make_schedule(columns, graph, types, pending, policy)
    # Awaited values decide how many rows the next launches have. A framework that compiles an op for each
    # number of rows would compile in every round; padded to powers of two, 1,000 rows need 11 sizes.
    if pad is not None:
        schedule = schedule.padded(pad, alone)
    seconds["plan"] = perf_counter() - began
    facts = columns, asked, alone, types, schedule, place, loose, site, seconds
    return Plan(*facts, pad=pad, keeps=keeps, stays=stays)


def is_plain(columns: Columns, asked: Outputs, policy: str) -> bool:
    """Return whether one call can schedule and wire what is asked for: no result is read whole."""
    groups = all(isinstance(group, np.ndarray) for group in asked.groups)
    return groups and policy == "auto" and not columns.sharing and len(columns) <= WIRED_AT_ONCE
