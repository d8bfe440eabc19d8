"""Which calls share a launch, and in which order the launches run.

A `Schedule` is the decision as an object: it prints as a table, says how many launches no schedule could
go below, and whether it reached that bound. Making one reads integers only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers, starts
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.policies import POLICIES, Policy, without_buckets
from multifold._engine.record.node import Node
from multifold._engine.record.signature import op_name
from multifold.errors import RecordError

MANY_NUMBERS = 1 << 17
"""From this many rows on, a launch whose operands are all numbers runs in pieces, too.

Its operands are small, but its results may be wide: an embedding returns a vector for each integer.
"""


@dataclass(frozen=True)
class Launch:
    """The calls that run as one batched call; ``len(launch)`` is how many.

    Attributes
    ----------
    op : str or callable
        What was recorded.
    nodes : tuple of Node
        The calls, in the order of recording.
    """

    op: str | Callable[..., Any]
    nodes: tuple[Node, ...]

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, repr=False)
class Schedule:
    """The ordered launches of a minibatch.

    Attributes
    ----------
    calls : int64 array
        All calls that are run, ordered by launch and then by recording.
    bounds : int64 array of shape ``(launches + 1,)``
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    lower_bound : int
        The number of launches that no schedule of these calls can go below.
    policy : str
        How the schedule was made.
    continued : tuple of int
        Launches that are not the first piece of what was one launch before `in_pieces`.
    """

    columns: Columns
    graph: Any
    calls: Integers
    bounds: Integers
    lower_bound: int
    policy: str
    continued: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def of(self, columns: Columns, graph: Any) -> Schedule:
        """Return this schedule for other calls, in ``columns``, that read each other as these do.

        Its launches have nodes of ``graph``. Nothing is scheduled: calls of equal numbers share launches as
        before.
        """
        found = object.__new__(Schedule)  # the class is frozen, and slow to set attributes of
        vars(found).update(vars(self), columns=columns, graph=graph)
        vars(found).pop("launches", None)  # they hold the nodes of this graph
        return found

    def padded(self, rows: Callable[[int], int], alone: Integers) -> Schedule:
        """Return the schedule with each launch's last call repeated: ``n`` rows become ``rows(n)``.

        A framework that compiles an op for each number of rows then compiles few sizes. Repeated rows are
        computed like any other, and no launch reads them. Calls in the array ``alone`` are not repeated,
        because their results are read whole.
        """
        sizes = np.array([max(rows(n), n) for n in self.sizes.tolist()])
        if len(alone):
            lonely = np.isin(self.calls[self.bounds[:-1]], alone)
            sizes[lonely] = self.sizes[lonely]
        more = sizes - self.sizes
        if not more.any():
            return self
        # This repeats the last call of each launch, once for each missing row, before the next launch
        # begins.
        calls = np.insert(
            self.calls, np.repeat(self.bounds[1:], more), np.repeat(self.calls[self.bounds[1:] - 1], more)
        )
        return replace(self, calls=calls, bounds=starts(sizes))

    def in_pieces(self, pieces: Callable[[int], int]) -> Schedule:
        """Return the schedule with launches of ``n`` rows divided into ``pieces(n)`` of about one size.

        It is returned itself if none is divided. On a CPU, very many rows at once exceed the caches and
        take longer than the same rows in pieces. Launches that read nothing but numbers, which are small
        rows, stay whole up to `MANY_NUMBERS`. An op without batched operands has one row.
        """
        # If even all calls together would stay whole, no launch is divided, and no signature need be looked
        # at.
        if pieces(len(self.calls)) == 1:
            return self
        numbers = self.columns.signature[self.calls[self.bounds[:-1]]].tolist()
        bounds: list[int] = []
        continued: list[int] = []
        launches = zip(self.bounds[:-1].tolist(), self.sizes.tolist(), numbers, strict=True)
        for begin, rows, number in launches:
            signature = self.columns.signatures[number]
            wide = any(slot.kind.wide for slot in signature.slots)
            count = pieces(rows) if wide or (signature.batched and rows >= MANY_NUMBERS) else 1
            continued += range(len(bounds) + 1, len(bounds) + count)
            bounds += [begin + rows * piece // count for piece in range(count)]
        if not continued:
            return self
        bounds.append(len(self.calls))
        return replace(self, bounds=np.array(bounds, np.int64), continued=tuple(continued))

    def __repr__(self) -> str:
        return f"Schedule(lower_bound={self.lower_bound}, policy={self.policy!r})"

    @property
    def certificate(self) -> str:
        """``"optimal"`` if there are as many launches as ``lower_bound``, else ``"heuristic"``.

        The pieces of a divided launch count once.
        """
        return "optimal" if len(self) - len(self.continued) == self.lower_bound else "heuristic"

    @property
    def sizes(self) -> Integers:
        """The number of calls in each launch, in the order in which they run: int64."""
        return self.bounds[1:] - self.bounds[:-1]

    @property
    def mean_rows(self) -> float:
        """The mean number of calls in a launch; 0.0 without launches."""
        return len(self.calls) / max(len(self), 1)

    def members(self, launch: int) -> Integers:
        """Return the calls of launch number ``launch``, from 0, in the order of recording: int64."""
        return self.calls[self.bounds[launch] : self.bounds[launch + 1]]

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """A `Launch` with its op and nodes for each launch, in the order in which they run."""
        signature = self.columns.signature
        return tuple(
            Launch(
                self.columns.signatures[signature[calls[0]]].op,
                tuple(Node(self.graph, call) for call in calls.tolist()),
            )
            for calls in map(self.members, range(len(self)))
        )

    def __str__(self) -> str:
        names = [op_name(launch.op) for launch in self.launches]
        width = max(map(len, ["op", *names]))
        head = (
            f"{len(self)} launches of {len(self.calls)} calls, lower bound {self.lower_bound}: "
            f"{self.certificate} ({self.policy}), {self.mean_rows:.1f} rows a launch"
        )
        rows = [f"{'launch':>6}  {'op':<{width}}  {'rows':>6}"]
        rows += [
            f"{i:>6}  {name:<{width}}  {len(launch):>6}"
            for i, (name, launch) in enumerate(zip(names, self.launches, strict=True))
        ]
        return "\n".join([head, *rows])


def find_policy(name: str) -> Policy:
    """Return the policy of that name, one of `POLICIES`; raise `RecordError` for an unknown one."""
    if name not in POLICIES:
        raise RecordError(
            f"Expected schedule to be one of {', '.join(POLICIES)}. Received schedule={name!r}.",
            "'auto' is right for nearly all graphs.",
        )
    return POLICIES[name]


def call_types(columns: Columns, alone: Integers) -> Integers:
    """Return the type of each call, int64: calls of one type have the same signature and shared nodes.

    It is the number of the signature where the call has no shared nodes and is not ``alone``; other types
    are numbered after all signatures.

    Parameters
    ----------
    columns : Columns
        The recorded calls.
    alone : int64 array
        The calls whose whole result is wanted: each has a type of its own.
    """
    if not columns.sharing and not len(alone):
        return columns.signature
    # Types of calls with shared nodes, and of calls that run alone, are numbered after all signatures.
    types = columns.signature.copy()
    fresh = len(columns.signatures)
    for number in columns.sharing:
        calls, shared = columns.shared_by(number)
        distinct, inverse = np.unique(shared, axis=0, return_inverse=True)
        # `ravel`, since NumPy 2.0.0 returns an inverse of two axes here.
        types[calls] = fresh + inverse.ravel()
        fresh += len(distinct)
    # This comes last, since a call that runs alone and shares nodes has a type of its own, too.
    types[alone] = fresh + np.arange(len(alone))
    return types


def problem_of(columns: Columns, types: Integers, pending: Integers) -> Problem:
    """Return the scheduling problem of some calls: call ``pending[i]`` of the columns is call ``i`` in it.

    ``types`` has the type of each call of the columns; in the problem types are numbered without gaps.
    """
    if len(pending) == len(columns):
        sources, readers = columns.edges
    else:
        sources, readers = compiled.edges(pending, *columns.reads)
        types = types[pending]
    if len(types):
        # Policies expect types without gaps, and perhaps no call of a type is pending.
        present = np.bincount(types) > 0
        if not present.all():
            types = (np.cumsum(present) - 1)[types]
    return Problem(types, sources, readers)


def make_schedule(
    columns: Columns,
    graph: Any,
    types: Integers,
    pending: Integers,
    policy: str,
) -> Schedule:
    """Return the schedule of the calls ``pending``, ascending, by a policy of `POLICIES`.

    ``types`` has the type of each call of ``columns``; ``graph`` is what the launches' nodes belong to.

    Raises
    ------
    RecordError
        If no policy has that name.
    """
    if policy == "auto":
        # Most graphs need no policy: one launch for each type and level is a schedule, and none is shorter.
        found = compiled.schedule(types, pending, *columns.reads)
        # Three values are a schedule; more are the problem and its levels, where levels alone give no
        # order.
        if len(found) == 3:
            return Schedule(columns, graph, *found, policy)
        problem = Problem.counted_as(*found)
    else:
        problem = problem_of(columns, types, pending)
    return by_policy(columns, graph, problem, pending, policy)


def by_policy(
    columns: Columns,
    graph: Any,
    problem: Problem,
    pending: Integers,
    policy: str,
) -> Schedule:
    """Return the schedule that a policy finds for ``problem``, whose call ``i`` is ``pending[i]``.

    With "auto", a launch for each type and level must have turned out to be no schedule
    (`without_buckets`). Raises `RecordError` for an unknown policy.
    """
    chosen = without_buckets if policy == "auto" else find_policy(policy)
    order, bounds = chosen(problem)
    return Schedule(columns, graph, pending[order], bounds, problem.lower_bound, policy)
