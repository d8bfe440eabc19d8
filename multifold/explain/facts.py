"""What an explanation knows: launches, ops, bounds, times and reasons. Tables and drawings only read it.

Everything is worked out from integers when somebody asks, for a schedule that may never be run. After
a run it is about the launches as they really ran, with their times.

Examples
--------
Three calls, two of which share a launch. Calls 0 and 2 do not depend on each other; the keyword alone
keeps them apart, and costs one launch:

>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> _ = [fold.add("scale", x, by=by) for x, by in [(3, 1), (5, 1), (4, 2)]]
>>> found = fold.explain()
>>> found.calls.tolist(), found.launch_of.tolist(), found.levels.tolist()
([0, 1, 2], [0, 0, 1], [1, 1, 1])
>>> found.lower_bound, found.certificate, [(x.cause, x.where, x.cost) for x in found.reasons]
(2, 'optimal', [('static', "keyword 'by'", 1)])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.schedule import Schedule
from multifold._engine.record.anatomy import Identity
from multifold._engine.record.damage import refusing_damage
from multifold._engine.run.report import Report
from multifold.explain.attributes import Attribute, Varieties, is_lazy, operand_classes, varieties
from multifold.explain.reasons import ATTRIBUTES, ORDERS, SAID_IF_COSTLY, SELECTS, Reason, Value


@dataclass(frozen=True, eq=False)
class ExplainedLaunch:
    """One launch of an explanation; its ``len`` is the number of its rows.

    Attributes
    ----------
    number : int
        Its position in the schedule, from 0.
    op : str
        The name of the op.
    calls : int64 array
        The calls, in the order of recording; there are as many rows.
    level : int
        How many calls of their type lie on the longest path to the calls, themselves included; the
        least of them where they differ.
    site : str
        Where the first call was recorded.
    seconds : float or None
        How long the op took, if it was run.
    """

    number: int
    op: str
    calls: Integers
    level: int
    site: str
    seconds: float | None

    def __len__(self) -> int:
        return len(self.calls)


@dataclass(frozen=True)
class ExplainedOp:
    """The launches of one op, and what keeps its calls apart.

    Attributes
    ----------
    name : str
        Its name. Different functions of one name are counted together, which is then a reason.
    calls : int
        The number of calls.
    rows : tuple of int
        The number of rows of each launch, in order.
    lower_bound : int
        How many launches no schedule could go below, if there were no other ops.
    shapes : int
        How many distinct shapes of operands its launches have: rows, rows of ragged operands,
        trailing shapes as far as they are known, and static arguments. A framework that compiles by
        shape compiles the op that many times.
    reasons : tuple of Reason
        What keeps its calls apart, the costliest first.
    seconds : float or None
        How long its launches took, if they were run.
    """

    name: str
    calls: int
    rows: tuple[int, ...]
    lower_bound: int
    shapes: int
    reasons: tuple[Reason, ...]
    seconds: float | None

    @property
    def launches(self) -> int:
        """The number of launches."""
        return len(self.rows)


@dataclass(frozen=True, eq=False, repr=False)
class Facts:
    """What is known about a schedule or a run; see `Explanation`, which adds text and drawings.

    What is said of each call that is run stands in arrays of one order: ``calls`` has their numbers, and
    ``launch_of``, ``levels`` and ``varieties.number`` what they say. `at` finds calls there.
    """

    schedule: Schedule
    alone: Integers
    site: Callable[[int], str]
    backend: str | None = None
    pads: bool = False
    run: Report | None = None

    @property
    def columns(self) -> Columns:
        """The recorded calls, those of the schedule and any others, as columns of integers."""
        return self.schedule.columns

    @cached_property
    def calls(self) -> Integers:
        """The numbers of the calls that are run, ascending, as int64: those explained."""
        return np.unique(self.schedule.calls)

    @cached_property
    def members(self) -> tuple[Integers, ...]:
        """For each launch, in order, an int64 array of the numbers of its calls, ascending.

        After a run these are the launches as they ran.
        """
        if self.run is not None:
            # `unique` sorts the calls, and drops repeats: a padded launch has its last call several times.
            return tuple(map(np.unique, self.run.notes.calls))
        return tuple(map(self.schedule.members, range(len(self.schedule))))

    @cached_property
    def launch_of(self) -> Integers:
        """An int64 array: for each of ``calls``, in their order, the number of its launch, from 0."""
        found = np.empty(len(self.calls), np.int64)
        for number, calls in enumerate(self.members):
            found[self.at(calls)] = number
        return found

    def at(self, calls: Any) -> Any:
        """Return the position in ``calls`` of a call number, or of each in an array, by binary search.

        For one that is not in ``calls`` it is where that would be inserted; no error is raised.
        """
        return np.searchsorted(self.calls, calls)

    @property
    def untried(self) -> Mapping[str, str]:
        """Name of an op -> why no trial has shown that it keeps its rows apart; empty before a run."""
        return {} if self.run is None else self.run.untried

    @property
    def divisions(self) -> int:
        """How often the run divided a launch because its rows turned out to differ in shape or dtype.

        It is 0 before a run.
        """
        return 0 if self.run is None else self.run.notes.divisions

    @cached_property
    def varieties(self) -> Varieties:
        """The varieties of ``calls``: which of them have all attributes in common.

        They are found when this is first read.
        """
        return varieties(self.columns, self.calls, self.alone, self._row_class if self.divisions else None)

    def _row_class(self, call: int, part: int) -> Hashable:
        """Return the class of the rows of part ``part`` of a call's result, as the run has noted it.

        A class is what rows must have in common to share a launch: structure, trailing shapes, dtypes. It
        is None before a run, for a call that was not run, and where the run has noted nothing.
        """
        at = int(self.at(call))
        # For a call that is not run, as one of an earlier round, `at` says only where it would stand: at
        # another call, or past the end.
        if self.run is None or at == len(self.calls) or self.calls[at] != call:
            return None
        return self.run.notes.classes.get((int(self.launch_of[at]), part))

    @cached_property
    def problem(self) -> Problem:
        """The scheduling problem of ``calls``: the variety of each is its type, and `edges` who reads whom.

        After a run, varieties also tell apart what the run has shown of shapes.
        """
        return Problem(self.varieties.number, *self.edges)

    @cached_property
    def edges(self) -> tuple[Integers, Integers]:
        """Two int64 arrays, (sources, readers): entry i says that one call reads a result of another.

        Both are positions in ``calls``; they are ordered by reader, and a pair comes once for each read.
        Calls that are not run, as those of rounds before, are left out.
        """
        with refusing_damage():
            sources, readers = compiled.edges(self.calls, *self.columns.reads)
        return sources.copy(), readers.copy()  # they are views of an array that is as long as all columns

    @property
    def levels(self) -> Integers:
        """The level of each of ``calls``, in their order, as int64, from 1.

        It counts the calls of its own type on the longest path to a call, the call included.
        """
        return self.problem.levels

    @cached_property
    def launches(self) -> tuple[ExplainedLaunch, ...]:
        """The launches, in the order in which they run."""
        times: Sequence[float | None] = [None] * len(self)
        if self.run is not None:
            times = [moments.returned - moments.call for moments in self.run.notes.times]
        return tuple(
            ExplainedLaunch(
                number,
                self.name(calls[0]),
                calls,
                int(self.levels[self.at(calls)].min()),
                self.site(int(calls[0])),
                time,
            )
            for number, (calls, time) in enumerate(zip(self.members, times, strict=True))
        )

    def name(self, call: int) -> str:
        """Return the name of the op of call number ``call``."""
        return self.columns.signatures[self.columns.signature[call]].name

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A text for each launch, in order: its op with static arguments, as ``pool(kernel=3)``.

        Arguments that all launches of the op share are left out.
        """
        known = self.varieties.labels()
        firsts = [calls[0] for calls in self.members]
        return tuple(known[i] for i in self.varieties.number[self.at(firsts)].tolist())

    def __len__(self) -> int:
        """The number of launches."""
        return len(self.members)

    @property
    def lower_bound(self) -> int:
        """A number of launches that no schedule of ``calls`` can go below; the best may need more.

        After a run it knows the shapes that the run has shown.
        """
        # What needs so many launches needs no fewer when shapes tell more calls apart.
        return max(self.problem.lower_bound, self.schedule.lower_bound)

    @property
    def continued(self) -> Sequence[int]:
        """The numbers of launches that continue the one before: further pieces of one of very many rows.

        Empty before a run.
        """
        return () if self.run is None else self.run.notes.continued

    @property
    def begins(self) -> Mapping[int, int]:
        """First launch of a round -> number of that round; empty unless examples awaited values."""
        return {}

    @property
    def certificate(self) -> str:
        """``"optimal"`` if there are as many launches as ``lower_bound`` says, else ``"heuristic"``.

        Pieces of one launch count once.
        """
        return "optimal" if len(self) - len(self.continued) == self.lower_bound else "heuristic"

    @property
    def mean_rows(self) -> float:
        """The number of calls divided by that of launches; 0.0 without any."""
        return len(self.calls) / max(len(self), 1)

    @property
    def single_rows(self) -> tuple[ExplainedLaunch, ...]:
        """The launches of one row, in order."""
        return tuple(launch for launch in self.launches if len(launch) == 1)

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds that the run spent in it: record, plan, wiring, upload, gather, op.

        Empty before a run.
        """
        return {} if self.run is None else self.run.notes.seconds()

    @property
    def shapes(self) -> int:
        """The number of distinct shapes of operands of launches, counted for each op and added up."""
        return sum(op.shapes for op in self.ops)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What keeps calls of one op apart, for all ops, in one tuple; the costliest first."""
        reasons = [reason for op in self.ops for reason in op.reasons]
        return tuple(sorted(reasons, key=lambda reason: -reason.cost))

    @cached_property
    def ops(self) -> tuple[ExplainedOp, ...]:
        """An `ExplainedOp` for each name of an op, in the order in which they are first launched."""
        launches: dict[str, list[ExplainedLaunch]] = {}
        for launch in self.launches:
            launches.setdefault(launch.op, []).append(launch)
        return tuple(self._op(name, mine) for name, mine in launches.items())

    def _op(self, name: str, launches: list[ExplainedLaunch]) -> ExplainedOp:
        # One flag for each variety: is it of this op?
        mine = np.array([other == name for other in self.varieties.names])
        rows = tuple(map(len, launches))
        bound = int(self.problem.bounds[mine].sum())
        pieces = len({launch.number for launch in launches}.intersection(self.continued))
        reasons = [
            *self._differing(name, mine),
            *self._waiting(name, mine, bound),
            Reason(name, "pieces", "", (), pieces),
            Reason(name, "order", "", (), len(launches) - pieces - bound, self._other_order(launches[0])),
        ]
        # A difference between calls is worth telling even where it costs nothing. The other causes only
        # count launches, and with a cost of 0 they say nothing.
        said = ATTRIBUTES.keys() - {*SAID_IF_COSTLY}
        found = [x for x in reasons if x.cost > 0 or x.cause in said]
        return ExplainedOp(
            name,
            sum(rows),
            rows,
            bound,
            len({self._shape(launch) for launch in launches}),
            tuple(sorted(found, key=lambda reason: -reason.cost)),
            None if self.run is None else sum(launch.seconds or 0.0 for launch in launches),
        )

    def _other_order(self, launch: ExplainedLaunch) -> str:
        """Return the hint for an op that has more launches than needed by the order of the schedule alone.

        ``launch`` is one of its launches. The hint follows from the policy of the schedule, and
        names another ``schedule=`` for `Fold`, say. It is empty where there is nothing to do, as for a
        plain program, which has no such argument, unless it ran in rounds.
        """
        policy = self.schedule.policy
        signature = self.columns.signatures[self.columns.signature[launch.calls[0]]]
        if is_lazy(signature) and policy != "rounds":
            return ""  # a plain program has no schedule= to pass
        return ORDERS.get(policy, 'Fold(schedule="auto") plans as fast, with fewer launches')

    def _differing(self, name: str, mine: np.ndarray) -> Iterator[Reason]:
        """Yield a reason for each attribute in which varieties of the op ``name`` differ, with its cost.

        The cost is by how much the lower bound of launches would drop if the attribute did not matter, at
        least 0. ``mine`` has a bool for each variety: whether it is of this op.
        """
        known = self.varieties
        sizes = np.bincount(known.number, minlength=len(mine)).tolist()
        found: dict[Attribute, Counter[Hashable]] = {}
        for number in np.flatnonzero(mine).tolist():
            for attribute, value in known.values[number].items():
                found.setdefault(attribute, Counter())[value] += sizes[number]
        for attribute, counts in found.items():
            if len(counts) > 1:
                values = tuple(Value(known.text(name, attribute, x), n) for x, n in counts.items())
                # Varieties that are merged may wait for each other, and then the bound, which looks at
                # one type at a time, can even rise: such an attribute costs nothing.
                without = Problem(known.without(attribute, name), *self.edges).lower_bound
                remedy = SELECTS if attribute.name == "static" and all(map(selects, counts)) else ""
                yield Reason(name, *attribute, values, max(0, self.problem.lower_bound - without), remedy)

    def _waiting(self, name: str, mine: np.ndarray, bound: int) -> Iterator[Reason]:
        """Yield one reason, with cause ``"level"``, if calls of one variety of this op wait for each other.

        That is so if ``bound``, the launches that the op needs at least, is more than its varieties; the
        difference is the cost. ``mine`` has a bool for each variety: whether it is of this op.
        """
        types = int(mine.sum())
        if bound > types:
            # Levels count from 1, so the first bin is empty.
            levels = np.bincount(self.problem.levels[mine[self.varieties.number]])[1:].tolist()
            values = tuple(Value(f"level {level}", n) for level, n in enumerate(levels, 1))
            yield Reason(name, "level", "", values, bound - types)

    def _shape(self, launch: ExplainedLaunch) -> Hashable:
        """Return a key that is equal for two launches of one op whose operands have equal shapes, if known.

        It holds the number of rows, the rows of ragged operands, trailing shapes, dtypes and static
        arguments.
        """
        columns = self.columns
        call = int(launch.calls[0])
        variety = int(self.varieties.number[self.at(call)])
        values = self.varieties.values[variety].items()
        # Which object is shared, or which call is read whole, makes no other shape; what the rows turned
        # out to be is in `rows` below.
        known = frozenset(x for x in values if x[0].name not in ("shared", "whole", "divided"))
        signature = columns.signatures[columns.signature[call]]
        # `lengths` has an entry for each ragged operand, those of one call side by side: operand i of a
        # call is i places after its first.
        entries = columns.ragged_starts[launch.calls]
        ragged = tuple(int(columns.lengths[entries + i].sum()) for i in range(signature.ragged))
        rows = tuple(operand_classes(columns, call, self._row_class).values())
        # An op without batched operands runs once for all its calls, so its launches have one shape.
        return known, len(launch) if signature.batched else 1, ragged, rows


def selects(key: Hashable) -> bool:
    """Return whether a static value may choose a part of a model: a text or something callable.

    ``key`` stands for the value: `freeze` makes a pair ``(str, text)`` of a text, and an `Identity` of a
    function. None, of a call that lacks the keyword, counts as well.
    """
    # `freeze` makes an `Identity` of a function or a module, and of a text the pair (str, text). None is a
    # call without that keyword.
    if isinstance(key, Identity):
        return callable(key.value)
    return key is None or (isinstance(key, tuple) and key[:1] == (str,))
