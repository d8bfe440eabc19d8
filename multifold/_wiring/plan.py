"""All decisions of a run, made from integers before any array is touched.

A `Plan` holds the calls, what is asked for and the schedule. It makes the wiring when somebody reads that,
since a program needs none. It knows no backend and no model, so a worker of a data loader can make it ahead
of time, pickle it, and a fold can run it many times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from multifold._compiled.arrays import Integers
from multifold._record.damage import damaged
from multifold._schedule.columns import NO_INTEGERS, Columns
from multifold._schedule.kept import KeptSchedules
from multifold._schedule.levels import Problem
from multifold._schedule.outputs import Outputs
from multifold._schedule.schedule import Schedule, by_policy, call_types, make_schedule
from multifold._wiring.place import Place
from multifold._wiring.wiring import Planned, Wiring, plan_and_wire, wire

WIRED_AT_ONCE = 1 << 14
"""Up to so many calls are wired in the call that schedules them; more rows may run in pieces."""


class First(NamedTuple):
    """A signature that launches of a schedule have."""

    signature: int
    call: int
    """The first call of the signature."""
    calls: int
    """How many calls of the schedule have it."""


@dataclass
class Plan:
    """What is run, in which launches, and which rows go where.

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
    pad : callable or None
        Rows of a launch -> how many it is padded to.
    kept : Plan or None
        A plan of calls of the same form, whose wiring is the wiring of this one.
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
    pad: Callable[[int], int] | None = None
    kept: Plan | None = None
    keeps: bool = False
    stays: Integers | None = None
    _pieces: Plan | None = field(default=None, init=False, repr=False, compare=False)

    @cached_property
    def whole(self) -> Integers:
        """The calls whose results are asked for whole."""
        return self.asked.whole_calls

    @cached_property
    def wiring(self) -> Wiring:
        """How rows move between the launches, made when it is first read and kept for the next run."""
        began = perf_counter()
        if self.kept is not None:
            wiring = self.kept.wiring.of(self.columns)
        else:
            # `wire` fills the places in. The given ones belong to the caller, who may plan from them again.
            place = Place.nowhere(len(self.columns)) if self.place is None else self.place.copy()
            try:
                wiring = wire(self.columns, self.schedule, place, self.asked.batched, self.keeps)
            except IndexError as error:  # calls that were recorded, not read from a trace, are in order
                raise damaged(f"{error}") from error
        self.seconds["wiring"] = perf_counter() - began
        return wiring

    @property
    def firsts(self) -> Sequence[First]:
        """Each signature of the schedule once: a model is asked for its op in every run of the plan."""
        return (self if self.kept is None else self.kept)._firsts

    @cached_property
    def _firsts(self) -> Sequence[First]:
        schedule = self.schedule
        # Calls of a launch are in the order of recording, so the first of all is the first of a launch.
        calls = schedule.calls[schedule.bounds[:-1]]
        first: dict[int, int] = {}
        counts: dict[int, int] = {}
        numbers = self.columns.signature[calls].tolist()
        for number, call, size in zip(numbers, calls.tolist(), schedule.sizes.tolist(), strict=True):
            first[number] = min(call, first.get(number, call))
            counts[number] = counts.get(number, 0) + size
        return [First(number, call, counts[number]) for number, call in first.items()]

    @property
    def bare(self) -> Plan:
        """The plan without its wiring, which has an object for each operand of each launch.

        The wiring of a plan of a kept form is small, and stays.
        """
        if self.kept is not None:
            return self
        bare = object.__new__(Plan)  # each run makes one, and `replace` takes ten times as long
        vars(bare).update(vars(self), _pieces=None)
        vars(bare).pop("wiring", None)
        return bare

    def wired(self, found: Planned) -> Plan:
        """Take the wiring, which was made together with the schedule."""
        vars(self)["wiring"] = found.wiring
        self.seconds["wiring"] = perf_counter() - found.scheduled
        return self

    def in_pieces(self, pieces: Callable[[int], int]) -> Plan:
        """Return the plan with launches of very many rows in pieces (`Schedule.in_pieces`), and keep it."""
        schedule = self.schedule.in_pieces(pieces)
        if schedule is self.schedule:
            return self
        # A plan that is run again, on the same device, finds its pieces and their wiring made.
        if self._pieces is None or not np.array_equal(self._pieces.schedule.bounds, schedule.bounds):
            self._pieces = replace(self, schedule=schedule, kept=None)
        return self._pieces


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
    kept: KeptSchedules | None = None,
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
    kept : KeptSchedules, optional
        Schedules of minibatches of the same kind.
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
    whole = asked.whole_calls
    graph = owner or columns
    loose = [*columns.loose, *asked.loose] if asked.loose else columns.loose
    seconds = {} if recording is None else {"record": recording}
    # Two steps take 30 microseconds more for 16 trees: their columns are handed over twice.
    if runs and is_plain(columns, asked, policy):
        found = plan_and_wire(columns, graph, asked.batched, keeps)
    if isinstance(found, Planned):
        seconds["plan"] = found.scheduled - began
        facts = columns, asked, NO_INTEGERS, columns.signature, found.schedule, place, loose, site, seconds
        return Plan(*facts, keeps=keeps, stays=stays).wired(found)
    # Types meet in a circle: the call has found the levels of all calls, and a policy goes on from there.
    if found is not None:
        pending, *counted = found
        schedule = by_policy(columns, graph, Problem.counted_as(*counted), pending, policy, kept)
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
        schedule = make_schedule(columns, graph, types, pending, policy, kept)
    # Awaited values decide how many rows the next launches have. A framework that compiles an op for each
    # number of rows would compile in every round; padded to powers of two, 1,000 rows need 11 sizes.
    if pad is not None:
        schedule = schedule.padded(pad, alone)
    seconds["plan"] = perf_counter() - began
    facts = columns, asked, alone, types, schedule, place, loose, site, seconds
    return Plan(*facts, pad, keeps=keeps, stays=stays)


def is_plain(columns: Columns, asked: Outputs, policy: str) -> bool:
    """Return whether one call can schedule and wire what is asked for: no result is read whole."""
    groups = all(isinstance(group, np.ndarray) for group in asked.groups)
    return groups and policy == "auto" and not columns.sharing and len(columns) <= WIRED_AT_ONCE
