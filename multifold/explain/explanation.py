"""A schedule explained: which launches there are, how few there could be, what keeps calls apart.

Everything is worked out from integers when it is asked for, for a schedule that may never be run.
After a run it is about the launches as they really ran, with their times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from multifold._record.graph import CALL_MASK, Node
from multifold._run.timeline import Timeline
from multifold._schedule.columns import Columns, Integers
from multifold._schedule.levels import Problem
from multifold._schedule.schedule import Schedule, problem_of
from multifold.errors import RecordError
from multifold.explain.attributes import Attribute, Varieties, operand_classes, varieties
from multifold.explain.events import trace_events
from multifold.explain.page import page
from multifold.explain.picture import Picture, picture
from multifold.explain.reasons import Difference, Reason, Value
from multifold.explain.svg import svg
from multifold.explain.text import headline, table
from multifold.explain.why import difference
from multifold.explain.writers import dot, mermaid


@dataclass(frozen=True, eq=False)
class ExplainedLaunch:
    """One launch.

    Attributes
    ----------
    number : int
        Its place in the schedule, from 0.
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
    """What becomes of the calls of one op.

    Attributes
    ----------
    name : str
        Its name; different functions of one name are counted together, and that is a reason.
    calls : int
        The number of calls.
    rows : tuple of int
        The number of rows of each launch, in order.
    lower_bound : int
        How many launches no schedule could go below.
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
class Explanation:
    """Why calls did not share a launch; made by `Fold.explain`.

    Its text is a table of the ops, what keeps the calls of each apart, the launches of one row, and
    after a run where the time went.

    Attributes
    ----------
    schedule : Schedule
        The schedule, as it was planned.
    alone : int64 array
        The calls of which the whole result is read.
    site : callable
        Call -> where it was recorded.
    backend : str or None
        The name of the backend, where it is known.
    run : Timeline or None
        The run that is explained, if it was run.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> one, two = fold.add("scale", 3, by=1), fold.add("scale", 4, by=2)
    >>> explanation = fold.explain()
    >>> print(explanation.why(one, two))
    Calls 0 and 1 of 'scale' differ in keyword 'by': 1 and 2.
    >>> print(explanation)
    2 launches of 2 calls, lower bound 2: optimal (auto), 1.0 rows a launch
    <BLANKLINE>
    op     calls  launches  bound  rows  mean  shapes
    scale      2         2      2     1   1.0       2
    <BLANKLINE>
    What keeps calls of one op apart, and the launches that it costs
    scale  1  keyword 'by' is 1 (1 call), 2 (1 call)
              hint: pass a number that varies as an operand, not as static
    <BLANKLINE>
    2 launches of one row: 0, 1 of scale
    """

    schedule: Schedule
    alone: Integers
    site: Callable[[int], str]
    backend: str | None = None
    run: Timeline | None = None

    @classmethod
    def of_run(cls, run: Timeline) -> Explanation:
        """Return the explanation of a run."""
        return cls(run.plan.schedule, run.plan.alone, run.plan.site, run.backend, run)

    # ---- calls, launches, types -----------------------------------------------------------------

    @property
    def columns(self) -> Columns:
        """The recorded calls."""
        return self.schedule.columns

    @cached_property
    def calls(self) -> Integers:
        """The calls that are run, in the order of recording."""
        return np.unique(self.schedule.calls)

    @cached_property
    def members(self) -> tuple[Integers, ...]:
        """The calls of each launch, in the order of recording; as it ran, if it was run."""
        if self.run is not None:
            return tuple(map(np.unique, self.run.calls))
        return tuple(map(self.schedule.members, range(len(self.schedule))))

    @cached_property
    def place(self) -> Integers:
        """The launch of each recorded call, -1 for those that are not run."""
        place = np.full(len(self.columns), -1)
        for number, calls in enumerate(self.members):
            place[calls] = number
        return place

    @property
    def classes(self) -> Mapping[tuple[int, int], Hashable]:
        """What the rows of launches had in common, if it was run."""
        return {} if self.run is None else self.run.classes

    @property
    def divisions(self) -> int:
        """How often a launch had to be divided, because rows turned out to differ."""
        return 0 if self.run is None else self.run.divisions

    @cached_property
    def varieties(self) -> Varieties:
        """Which calls have all attributes in common."""
        classes = self.classes if self.divisions else {}
        return varieties(self.columns, self.calls, self.alone, self.place, classes)

    @cached_property
    def problem(self) -> Problem:
        """The scheduling problem, with what a run has shown of shapes."""
        return self._problem(self.varieties.number)

    def _problem(self, numbers: Integers) -> Problem:
        types = np.zeros(len(self.columns), np.int64)
        types[self.calls] = numbers
        return problem_of(self.columns, types, self.calls)

    @cached_property
    def levels(self) -> Integers:
        """The typed level of each recorded call, 0 for those that are not run."""
        levels = np.zeros(len(self.columns), np.int64)
        levels[self.calls] = self.problem.levels
        return levels

    @cached_property
    def launches(self) -> tuple[ExplainedLaunch, ...]:
        """The launches in the order in which they run."""
        times = [None] * len(self) if self.run is None else [t.returned - t.call for t in self.run.times]
        return tuple(
            ExplainedLaunch(
                number,
                self.name(int(calls[0])),
                calls,
                int(self.levels[calls].min()),
                self.site(int(calls[0])),
                seconds,
            )
            for number, (calls, seconds) in enumerate(zip(self.members, times, strict=True))
        )

    def name(self, call: int) -> str:
        """Return the name of the op of a call."""
        return self.columns.signatures[self.columns.signature[call]].name

    # ---- figures --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of launches."""
        return len(self.members)

    @property
    def lower_bound(self) -> int:
        """How many launches no schedule could go below, with what a run has shown of shapes."""
        return self.problem.lower_bound

    @property
    def continued(self) -> Sequence[int]:
        """The launches that are further pieces of the one before; see `Schedule.in_pieces`."""
        return () if self.run is None else self.run.continued

    @property
    def certificate(self) -> str:
        """``"optimal"`` where launches, pieces of one counted once, equal the bound, or ``"heuristic"``."""
        return "optimal" if len(self) - len(self.continued) == self.lower_bound else "heuristic"

    @property
    def mean_rows(self) -> float:
        """The mean number of calls in a launch."""
        return len(self.calls) / max(len(self), 1)

    @property
    def single_rows(self) -> tuple[ExplainedLaunch, ...]:
        """The launches of one row."""
        return tuple(launch for launch in self.launches if len(launch) == 1)

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase, if it was run: record, plan, wiring, upload, gather and op."""
        return {} if self.run is None else self.run.seconds

    @property
    def shapes(self) -> int:
        """How many distinct shapes of operands the launches of all ops have."""
        return sum(op.shapes for op in self.ops)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What keeps calls of one op apart, for all ops; the costliest first."""
        reasons = [reason for op in self.ops for reason in op.reasons]
        return tuple(sorted(reasons, key=lambda reason: -reason.cost))

    @cached_property
    def ops(self) -> tuple[ExplainedOp, ...]:
        """The ops, in the order in which they are first launched."""
        launches: dict[str, list[ExplainedLaunch]] = {}
        for launch in self.launches:
            launches.setdefault(launch.op, []).append(launch)
        return tuple(self._op(name, mine) for name, mine in launches.items())

    def _op(self, name: str, launches: list[ExplainedLaunch]) -> ExplainedOp:
        mine = np.array([other == name for other in self.varieties.names])
        bound = int(self.problem.bounds[mine].sum())
        return ExplainedOp(
            name,
            sum(map(len, launches)),
            tuple(map(len, launches)),
            bound,
            len({self._shape(launch) for launch in launches}),
            tuple(self._reasons(name, mine, bound, launches)),
            None if self.run is None else sum(launch.seconds or 0.0 for launch in launches),
        )

    def _shape(self, launch: ExplainedLaunch) -> Hashable:
        """Return the shapes of the operands of a launch, as far as they are known."""
        columns, call = self.columns, int(launch.calls[0])
        variety = int(self.varieties.number[np.searchsorted(self.calls, call)])
        values = self.varieties.values[variety].items()
        known = frozenset(x for x in values if x[0].kind not in ("shared", "whole", "divided"))
        signature = columns.signatures[columns.signature[call]]
        ragged = tuple(
            int(columns.lengths[columns.operand(slot, position, launch.calls)].sum())
            for slot, position in signature.operands
            if slot.kind.ragged
        )
        rows = tuple(operand_classes(columns, call, self.place, self.classes).values())
        return known, len(launch) if signature.batched else 1, ragged, rows

    # ---- reasons --------------------------------------------------------------------------------

    def _reasons(
        self, name: str, mine: np.ndarray, bound: int, launches: list[ExplainedLaunch]
    ) -> list[Reason]:
        """Return what keeps calls of an op apart, the costliest first."""
        known, numbers = self.varieties, np.flatnonzero(mine).tolist()
        sizes = np.bincount(known.number, minlength=len(mine))
        found: dict[Attribute, dict[Hashable, int]] = {}
        for number in numbers:
            for attribute, value in known.values[number].items():
                counts = found.setdefault(attribute, {})
                counts[value] = counts.get(value, 0) + int(sizes[number])
        reasons = []
        for attribute, counts in found.items():
            if len(counts) > 1:
                values = [Value(known.text(attribute, x), n) for x, n in counts.items()]
                without = self._problem(known.without(attribute, name)).lower_bound
                saved = max(0, self.lower_bound - without)  # a bound that is cruder may be larger
                reasons.append(Reason(name, *attribute, tuple(values), saved))
        if bound > len(numbers):
            levels = np.bincount(self.problem.levels[mine[known.number]])[1:].tolist()
            values = [Value(f"level {level}", n) for level, n in enumerate(levels, 1)]
            reasons.append(Reason(name, "level", "", tuple(values), bound - len(numbers)))
        pieces = len({launch.number for launch in launches}.intersection(self.continued))
        if pieces:
            reasons.append(Reason(name, "pieces", "", (), pieces))
        if len(launches) - pieces > bound:
            reasons.append(Reason(name, "order", "", (), len(launches) - pieces - bound))
        return sorted(reasons, key=lambda reason: -reason.cost)

    def why(self, first: Node | int, second: Node | int) -> Difference:
        """Return why two calls did not share a launch; its text is one sentence.

        Parameters
        ----------
        first, second : Node or int
            Two nodes of the fold, or the numbers of two calls (those of traces count on from one
            trace to the next).

        Raises
        ------
        RecordError
            For a node of another fold, or a call that is not run.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> low, high = fold.add("double", 1), fold.add("double", 1.5)
        >>> print(fold.explain().why(high, low))
        Calls 0 and 1 of 'double' differ in the kind of operand 0: an int and a float.
        """
        return difference(self, *sorted((self._call(first), self._call(second))))

    def _call(self, node: Node | int) -> int:
        """Return the number of a call that is run."""
        if isinstance(node, Node) and node._graph is not self.schedule.graph:
            raise RecordError(
                f"The node {node!r} belongs to another fold, or to other traces.",
                "ask the explanation of the fold that recorded it, or pass the number of a call.",
            )
        call = node._ref & CALL_MASK if isinstance(node, Node) else int(node)
        if not 0 <= call < len(self.columns) or self.place[call] < 0:
            raise RecordError(
                f"Expected calls that the explained outputs need. Received call {call}.",
                "fold.explain() without outputs explains all recorded calls, until a run was made.",
            )
        return call

    # ---- to look at -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Explanation: {headline(self)}>"

    def __str__(self) -> str:
        return table(self)

    @cached_property
    def picture(self) -> Picture:
        """What is drawn: calls in columns of launches, or launches alone where there are many."""
        return picture(self)

    def to_dot(self) -> str:
        """Return the picture in the language of Graphviz."""
        return dot(self.picture)

    def to_mermaid(self) -> str:
        """Return the picture as a Mermaid flowchart."""
        return mermaid(self.picture)

    def to_svg(self) -> str:
        """Return the picture as an SVG drawing: a column for each launch, and a colour."""
        return svg(self.picture)

    def to_html(self) -> str:
        """Return a page of its own with the drawing and the tables."""
        return page(self)

    def timeline_json(self) -> str:
        """Return the run as a Chrome trace, which https://ui.perfetto.dev opens.

        Raises
        ------
        RecordError
            If nothing was run.
        """
        return trace_events(self)

    def write_timeline(self, path: str | Path) -> None:
        """Write `timeline_json` to a file."""
        Path(path).write_text(self.timeline_json(), encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Let notebooks show the drawing."""
        return self.to_svg()
