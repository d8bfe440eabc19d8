"""All decisions of a run, made from integers before any array is touched.

A `Frame` says what is to be planned: calls, and what is asked of them. A `Plan` holds the frame, the
schedule and the wiring. The compiled form of a minibatch (`multifold.program`) lays rows out by itself, so
a plan has no wiring until a run asks for it. A plan knows no backend and no model: a worker of a data
loader can make it ahead of time and pickle it, and a fold can run it many times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.outputs import Outputs
from multifold._engine.plan.schedule import Schedule, by_policy, call_types, make_schedule
from multifold._engine.plan.wiring import Place, Planned, Wiring, plan_and_wire, wire
from multifold._engine.record.damage import damaged

MOST_CALLS = 1 << 15
"""How many calls the kept plans may have in all: they take some ten megabytes."""

MOST_PLANS = 256
"""How many plans are kept, however small: one takes some kilobytes besides its calls."""

MOST_FORMS = 1 << 12
"""How many forms the cache remembers to have met once, by a number each; more push out the oldest."""

WIRED_AT_ONCE = 1 << 14
"""Frames of more calls are wired in a step of their own: a run may cut their launches in pieces before."""


@dataclass(frozen=True)
class Frame:
    """What is planned: calls as columns, and what is wanted of them.

    Attributes
    ----------
    columns : Columns
        The calls: those of a fold, those recorded since the last round, or those of merged traces.
    asked : Outputs
        What is asked for.
    site : callable
        Call -> where it was recorded.
    owner : object or None
        The graph, or trace, of which `Schedule.launches` makes its nodes; None for the columns.
    place : Place or None
        Where the calls that have run before are; all others are run. None where none has: then the calls
        run that the outputs need.
    alone : int64 array
        Calls whose whole results are read, by nodes that are not outputs of this frame.
    pad : callable or None
        Rows of a launch -> how many it is padded to.
    keeps : bool
        Whether all results stay after the run, since later frames may read them.
    recording : float or None
        How many seconds recording took, where that is known.
    whose : callable or None
        Call -> the example that recorded it, for messages: "example 3", or "" if that is not known. None
        where a launch that fails is run again for halves of those who asked, until one fails alone.
    """

    columns: Columns
    asked: Outputs
    site: Callable[[int], str]
    owner: Any = None
    place: Place | None = None
    alone: Integers = field(default_factory=lambda: NO_INTEGERS)
    pad: Callable[[int], int] | None = None
    keeps: bool = False
    recording: float | None = None
    whose: Callable[[int], str] | None = None

    @property
    def graph(self) -> Any:
        """What `Schedule.launches` makes its nodes of: ``owner``, or ``columns`` if there is none."""
        return self.columns if self.owner is None else self.owner

    @property
    def pending(self) -> Integers | None:
        """The calls to be run, ascending, int64; None for those that the outputs need."""
        if self.place is None:
            return None
        # Places have at least one entry, even of no calls (`Place.nowhere`).
        return (self.place.launch[: len(self.columns)] < 0).nonzero()[0]

    def places(self) -> Place:
        """Return a `Place` that wiring may extend: a copy of ``place``, or one in which no call has run."""
        return Place.nowhere(len(self.columns)) if self.place is None else self.place.copy()

    def is_plain(self, policy: str) -> bool:
        """Return whether one compiled call can schedule and wire the frame (`plan_and_wire`).

        That call knows the policy "auto" and up to `WIRED_AT_ONCE` calls. No launch may be padded, and no
        result may be read whole: by an operand that is a shared node, by ``alone``, or by what is asked
        for.
        """
        return (
            policy == "auto"
            and self.pad is None
            and not len(self.alone)
            and not self.columns.sharing
            and len(self.columns) <= WIRED_AT_ONCE
            and all(isinstance(group, np.ndarray) for group in self.asked.groups)
        )

    def form(self) -> Hashable:
        """Return a hashable key of all that planning reads: frames with equal keys have equal plans.

        It holds the columns as bytes, so it takes as much memory as the integers of the frame.
        """
        columns = self.columns
        place = self.place
        groups = [group if isinstance(group, int) else group.tobytes() for group in self.asked.groups]
        before = () if place is None else (place.launch.tobytes(), place.row.tobytes(), *place.rows)
        return (
            tuple([signature.form for signature in columns.signatures]),
            len(columns.parts),
            self.keeps,
            self.pad is not None,
            columns.signature.tobytes(),
            columns.refs.tobytes(),
            columns.lengths.tobytes(),
            columns.members.tobytes(),
            self.alone.tobytes(),
            before,
            *groups,
        )


@dataclass(frozen=True)
class Plan:
    """What is run, in which launches, and which rows go where.

    The schedule and the wiring read nothing of the calls but their form. So `of` makes the plan of another
    frame of the same form without planning anew (`PlanCache`).

    Attributes
    ----------
    frame : Frame
        What was planned.
    alone : int64 array
        Calls whose whole result is wanted: they run in launches of their own.
    types : int64 array
        The type of each call; only calls of one type share a launch.
    schedule : Schedule
        The launches.
    seconds : dict of str to float
        How long making it took, by phase.
    wiring : Wiring or None
        How rows move between the launches; None until `wired`.
    divided : Divided or None
        What the runs of a kept plan have shown of the shapes of rows; None for a plan that is not kept.
    """

    frame: Frame
    alone: Integers
    types: Integers
    schedule: Schedule
    seconds: dict[str, float]
    wiring: Wiring | None = None
    divided: Divided | None = None

    @property
    def columns(self) -> Columns:
        """The calls that the frame has, as columns."""
        return self.frame.columns

    @property
    def asked(self) -> Outputs:
        """The outputs that the frame asks for."""
        return self.frame.asked

    @cached_property
    def loose(self) -> Sequence[Any]:
        """Loose values of ragged operands, then of groups: reference ``-1 - i`` stands for entry i."""
        columns = self.columns
        return [*columns.loose, *self.asked.loose] if self.asked.loose else columns.loose

    @property
    def site(self) -> Callable[[int], str]:
        """A function from a call to the text where it was recorded: ``"model.py:12"``."""
        return self.frame.site

    def of(self, frame: Frame, seconds: dict[str, float]) -> Plan:
        """Return this plan for another frame of the same `Frame.form`; nothing is planned.

        It takes over the launches and the wiring of this plan; or, once launches of this plan had to be
        divided in a run, those that ``divided`` has kept from that run.
        ``seconds`` is how long making the new one took, by phase.
        """
        best = self.divided.plan if self.divided is not None and self.divided.plan is not None else self
        schedule = best.schedule.of(frame.columns, frame.graph)
        return Plan(frame, self.alone, best.types, schedule, seconds, best.wiring, self.divided)

    def bare(self, divided: Divided | None) -> Plan:
        """Return this plan without ops, numbers and arrays, as it is kept for frames of the same form."""
        frame = Frame(self.columns.form(), Outputs(groups=self.asked.groups), nowhere)
        schedule = self.schedule.of(frame.columns, frame.graph)
        return Plan(frame, self.alone, self.types, schedule, {}, self.wiring, divided)

    def wired(self) -> Plan:
        """Return the plan with its wiring: itself if it has one, else a new plan whose wiring is made now.

        Raises
        ------
        RecordError
            If a call reads one that has not run, as in a damaged trace.
        """
        if self.wiring is not None:
            return self
        began = perf_counter()
        frame = self.frame
        try:
            wiring = wire(frame.columns, self.schedule, frame.places(), frame.asked.batched, frame.keeps)
        except IndexError as error:  # only a damaged trace reads a call that has not run
            raise damaged(f"{error}") from error
        seconds = {**self.seconds, "wiring": perf_counter() - began}
        return replace(self, wiring=wiring, seconds=seconds)

    def in_pieces(self, pieces: Callable[[int], int]) -> Plan:
        """Return the plan with its launches divided by `Schedule.in_pieces`; itself if none is divided.

        ``pieces(n)`` says into how many pieces a launch of ``n`` rows is divided. A plan that is divided
        has no wiring.
        """
        schedule = self.schedule.in_pieces(pieces)
        # The wiring was that of the launches before they were cut.
        return self if schedule is self.schedule else replace(self, schedule=schedule, wiring=None)


class Divided:
    """The plan to take in place of a kept one whose launches had to be divided when they ran.

    Rows that turn out to differ in shape in one run mostly do so in the next. To tell their calls apart
    from the outset saves a division, which plans anew in the middle of a run; where they do not differ, it
    costs launches and no more.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def take(self, plan: Plan) -> None:
        """Let ``plan``, which was made with the types of a run, be that of the runs to come."""
        self.plan = plan.bare(None)


def make_plan(frame: Frame, policy: str, schedule: Schedule | None = None, *, runs: bool = False) -> Plan:
    """Return a new plan of a frame; it has its wiring only where one compiled call has made both.

    Parameters
    ----------
    frame : Frame
        What is planned.
    policy : str
        The scheduling policy.
    schedule : Schedule, optional
        The launches, where they are known already.
    runs : bool
        Whether the plan is sure to be run. Then one compiled call makes the schedule and the wiring, unless
        calls run alone or are padded, or a policy has to choose the launches.
    """
    began = perf_counter()
    columns = frame.columns
    seconds = {} if frame.recording is None else {"record": frame.recording}
    # One compiled call does both, so that the columns are handed over once.
    if runs and frame.is_plain(policy):
        found = plan_and_wire(
            columns, frame.graph, frame.asked.batched, frame.places(), frame.pending, frame.keeps
        )
        if isinstance(found, Planned):
            seconds["plan"] = found.scheduled - began
            seconds["wiring"] = perf_counter() - found.scheduled
            return Plan(frame, NO_INTEGERS, columns.signature, found.schedule, seconds, found.wiring)
        # Ops read each other in a cycle, so levels do not say in which order launches run. The call has
        # found the levels of all calls; a policy goes on from these.
        pending, *counted = found
        schedule = by_policy(columns, frame.graph, Problem.counted_as(*counted), pending, policy)
    # A result that is read whole may have any number of rows, so its call can't share a launch.
    alone = columns.shared_calls
    if len(frame.alone) or len(frame.asked.whole_calls):
        alone = np.unique(np.concatenate([alone, frame.alone, frame.asked.whole_calls]))
    types = call_types(columns, alone)
    if schedule is None:
        left = frame.pending
        if left is None:  # a call that no output needs does not run
            left = columns.ancestors(frame.asked.sources)
        schedule = make_schedule(columns, frame.graph, types, left, policy)
    # Awaited values decide how many rows the next launches have. A framework that compiles an op for each
    # number of rows would compile in every round; padded to powers of two, 1,000 rows need 11 sizes.
    if frame.pad is not None:
        schedule = schedule.padded(frame.pad, alone)
    seconds["plan"] = perf_counter() - began
    return Plan(frame, alone, types, schedule, seconds)


class PlanCache:
    """The one cache of plans: those of frames that came twice. Several threads may use one object.

    Many programs run the same examples again and again in form: a policy that is asked once a step, an
    evaluation that is not shuffled. What differs between two such runs are ops, numbers and arrays, none of
    which planning reads. So when a form is met for the second time, its plan is kept without these. A run
    that finds its plan has the launches and the order of rows of one that does not.

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
        self._once: OrderedDict[int, None] = OrderedDict()
        self._found: OrderedDict[Hashable, Plan] = OrderedDict()
        self._calls = 0

    def __reduce__(self) -> tuple[type[PlanCache], tuple[str]]:
        """Return the class and the policy: what is pickled or copied begins without plans."""
        return PlanCache, (self.policy,)

    def __len__(self) -> int:
        return len(self._found)

    def plan(self, frame: Frame, *, runs: bool) -> Plan:
        """Return the plan of a frame: a kept one of its `Frame.form`, or else a new one.

        A new plan is kept if the form was met before and has at most `MOST_CALLS` calls. ``runs`` says
        whether the plan is sure to be run; one that is kept then has its wiring.
        """
        began = perf_counter()
        # A plan that is too large to be kept needs no key.
        if len(frame.columns) > MOST_CALLS:
            return make_plan(frame, self.policy, runs=runs)
        form = frame.form()
        kept, again = self._look(form)
        # A program may have left a plan without wiring. A run replaces it by one that has it.
        if kept is None or (runs and kept.wiring is None):
            plan = make_plan(frame, self.policy, runs=runs)
            if again:
                plan = plan.wired() if runs else plan
                self._keep(form, plan)
            return plan
        seconds = {} if frame.recording is None else {"record": frame.recording}
        seconds["plan"] = perf_counter() - began
        seconds["wiring"] = 0.0
        return kept.of(frame, seconds)

    def _look(self, form: Hashable) -> tuple[Plan | None, bool]:
        """Return ``(plan, met)``: the kept plan of a form, or None, and whether the form was met before.

        A plan that is found counts in ``hits`` and as the one used last. Of a new form the hash is
        remembered, so that it is met at the next look; forms of equal hash count as one here.
        """
        with self._lock:
            found = self._found.get(form)
            if found is not None:
                self._found.move_to_end(form)
                self.hits += 1
                return found, True
            # Of a form that came once the cache keeps the hash only, since the form itself may take a
            # megabyte. If two forms have one hash, a plan is kept after its first run, which does no harm.
            number = hash(form)
            if number in self._once:
                return None, True
            self._once[number] = None  # frames that differ each time leave a number here, and no plan
            if len(self._once) > MOST_FORMS:
                self._once.popitem(last=False)
            return None, False

    def _keep(self, form: Hashable, plan: Plan) -> None:
        """Keep a plan without ops, numbers and arrays under its form; drop those not used for longest.

        All kept plans have at most `MOST_CALLS` calls, and they are at most `MOST_PLANS`.
        """
        bare = plan.bare(Divided())
        with self._lock:
            if form not in self._found:  # another thread may have been faster
                self._calls += len(bare.columns)
            self._found[form] = bare
            # `_look` moves what it finds to the end, so the first plan is the one that waited longest.
            while self._calls > MOST_CALLS or len(self._found) > MOST_PLANS:
                self._calls -= len(self._found.popitem(last=False)[1].columns)


def nowhere(call: int) -> str:
    """Return ``"nowhere"`` for any call: the `Frame.site` of a kept plan, which has no lines."""
    return "nowhere"


def nobody(call: int) -> str:
    """Return ``""`` for any call: the `Frame.whose` of a fold, whose calls belong to no example."""
    return ""
