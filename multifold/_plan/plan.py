"""All decisions of a run, made from integers before any array is touched.

A `Plan` holds the calls, what is asked for, the schedule, and the wiring where somebody has asked for it,
since a program needs none. It knows no backend and no model, so a worker of a data loader can make it ahead
of time, pickle it, and a fold can run it many times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from multifold._compiled.arrays import Integers
from multifold._plan.columns import NO_INTEGERS, Columns
from multifold._plan.levels import Problem
from multifold._plan.outputs import Outputs
from multifold._plan.schedule import Schedule, by_policy, call_types, make_schedule
from multifold._plan.wiring import Place, Planned, Wiring, plan_and_wire, wire
from multifold._record.damage import damaged

MOST_CALLS = 1 << 15
"""How many calls the kept plans may have in all: they take 6 to 40 MB."""

MOST_PLANS = 256
"""How many plans are kept, however small: one takes 5 kB besides its calls."""

MOST_FORMS = 1 << 12
"""How many forms are known to have been met."""

WIRED_AT_ONCE = 1 << 14
"""Up to so many calls are wired in the call that schedules them; more rows may run in pieces."""


@dataclass(frozen=True)
class Plan:
    """What is run, in which launches, and which rows go where.

    The schedule and the wiring read nothing of the calls but their form. So `of` makes the plan of other
    calls of the same form without planning anew (`PlanCache`).

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


# ---- plans that are kept -------------------------------------------------------------------------


class PlanCache:
    """The one cache of plans: those of frames that came twice. Several threads may use one object.

    To plan 16 trees takes 150 microseconds, and a policy takes milliseconds where it has to choose the
    launches of a lattice. Many programs run the same examples again and again in form: a policy that is
    asked once a step, an evaluation that is not shuffled. What differs between two such runs are ops,
    numbers and arrays, none of which planning reads. So when a form is met for the second time, its plan is
    kept without these. A run that finds its plan has the launches and the order of rows of one that does
    not.

    Parameters
    ----------
    policy : str
        The scheduling policy of all these plans.

    Attributes
    ----------
    hits : int
        How often a plan was found.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> for op, x in ("f", 1.0), ("g", 2.0), ("f", 3.0):
    ...     fold.reset()
    ...     y = fold.add(op, fold.add(op, x), 3.0)
    ...     print(fold.apply({"f": lambda *xs: sum(xs), "g": lambda *xs: max(*xs, 0)}, y))
    [4.]
    [3.]
    [6.]
    >>> fold._plans.hits
    1
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.hits = 0
        self._lock = Lock()
        self._met: OrderedDict[int, None] = OrderedDict()
        self._found: OrderedDict[Hashable, Plan] = OrderedDict()
        self._calls = 0

    def __reduce__(self) -> tuple[type[PlanCache], tuple[str]]:
        """Let a copy, and what is pickled, begin without plans."""
        return PlanCache, (self.policy,)

    def __len__(self) -> int:
        return len(self._found)

    def plan(
        self,
        columns: Columns,
        asked: Outputs,
        site: Callable[[int], str],
        owner: Any = None,
        recording: float | None = None,
        *,
        runs: bool,
    ) -> Plan:
        """Return the plan for some outputs: one that was made for calls of their form before, or now.

        See `make_plan` for the parameters.
        """
        began = perf_counter()
        graph = owner or columns
        if len(columns) > MOST_CALLS:
            return make_plan(columns, asked, self.policy, site, graph, recording=recording, runs=runs)
        form = form_of(columns, asked)
        kept, again = self._look(form)
        if kept is None or (runs and kept.wiring is None):
            plan = make_plan(columns, asked, self.policy, site, graph, recording=recording, runs=runs)
            if not again:
                return plan
            plan = plan.wired() if runs else plan
            self._keep(form, plan)
            return plan
        seconds = {} if recording is None else {"record": recording}
        plan = kept.of(columns, asked, graph, site, seconds)
        seconds["plan"] = perf_counter() - began
        seconds["wiring"] = 0.0
        return plan

    def _look(self, form: Hashable) -> tuple[Plan | None, bool]:
        """Return the plan of a form, None for one that is not kept; and whether the form was met before."""
        with self._lock:
            found = self._found.get(form)
            if found is not None:
                self._found.move_to_end(form)
                self.hits += 1
                return found, True
            number = hash(form)
            if number in self._met:
                return None, True
            self._met[number] = None  # frames that differ each time leave a number here, and no plan
            if len(self._met) > MOST_FORMS:
                self._met.popitem(last=False)
            return None, False

    def _keep(self, form: Hashable, plan: Plan) -> None:
        """Keep a plan, without what is of its calls alone; forget those that were used least lately."""
        columns = plan.columns.form()
        bare = plan.of(columns, Outputs(groups=plan.asked.groups), columns, nowhere, {})
        with self._lock:
            if form not in self._found:  # another thread may have been faster
                self._calls += len(columns)
            self._found[form] = bare
            while self._calls > MOST_CALLS or len(self._found) > MOST_PLANS:
                self._calls -= len(self._found.popitem(last=False)[1].columns)


def nowhere(call: int) -> str:
    """Return where a call of a form was recorded: a plan of a form is never run."""
    return "nowhere"


def form_of(columns: Columns, asked: Outputs) -> Hashable:
    """Return all that planning reads, as bytes; equal forms have equal plans."""
    groups = [group if isinstance(group, int) else group.tobytes() for group in asked.groups]
    return (
        tuple([signature.form for signature in columns.signatures]),
        len(columns.parts),
        columns.signature.tobytes(),
        columns.refs.tobytes(),
        columns.lengths.tobytes(),
        columns.members.tobytes(),
        *groups,
    )
