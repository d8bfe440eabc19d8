"""A run in rounds explained: the launches of each round, and which example waited for which op.

All that an `Explanation` tells and draws is there for the rounds together, too: their launches one after
the other, as one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers, starts
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.schedule import Schedule, call_types, problem_of
from multifold._engine.record.graph import Graph
from multifold._engine.run.report import Notes, Report
from multifold.errors import RecordError
from multifold.explain.explanation import Explanation
from multifold.explain.operands import path_text
from multifold.explain.reasons import count
from multifold.explain.text import aligned, extent, untried

COPIED = ("signature", "refs", "ints", "floats", "lengths", "members")
"""The columns of numbers of a graph."""

MOST_EXAMPLES = 4
"""Examples that are listed by number where few wait."""


class Wait(NamedTuple):
    """One example that waited in a round, and the ops that it waited for."""

    example: int
    names: tuple[str, ...]
    """The ops of what was awaited, with the paths to its parts, as ``logits[0]``."""


def explained(reports: Sequence[Report]) -> RoundsExplanation | Explanation:
    """Return a `RoundsExplanation` of reports, one for each round.

    If there is one report and no example waited, return an `Explanation`.
    """
    # A single round in which no example waited is an ordinary schedule, and is shown as one.
    found = RoundsExplanation.of(reports)
    return found.rounds[0] if len(reports) == 1 and not len(reports[0].waits[1]) else found


class RoundsExplanation(Explanation):
    """The explanation of a `Fold.run` whose function awaited values; made by `Fold.explain`.

    Its text is a table with a line for each round: which examples waited for which op, the launches, the
    bound that no schedule of that round could go below, and the rows; then the milliseconds in which the
    examples ran and recorded, and in which the round ran. The last round computes the results.

    What else it has is about the launches of all rounds, one after the other.

    Attributes
    ----------
    rounds : tuple of Explanation
        The explanation of each round. Calls have the numbers that they have in the fold.

    Examples
    --------
    >>> import multifold
    >>> async def until(fold, x):
    ...     while await fold.value(x := fold.add("double", x)) < 20:
    ...         pass
    ...     return fold.add("result", x)
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run({"double": lambda x: 2 * x, "result": lambda x: -x}, [3, 4, 9], until)
    array([-24, -32, -36])
    >>> print(fold.explain())  # doctest: +ELLIPSIS
    4 rounds, 4 launches of 11 calls, 2.8 rows a launch, ... ms
    <BLANKLINE>
    round  waiting                      calls  launches  bound  rows  record ms  run ms
        0  examples 0, 1, 2 for double      3         1      1     3 ...
        1  examples 0, 1, 2 for double      3         1      1     3 ...
        2  examples 0, 1 for double         2         1      1     2 ...
        3  the results                      3         1      1     3 ...
    >>> print(fold.explain().why(3, 6))
    Calls 3 and 6 of 'double' cannot share a launch: call 6 needs the result of call 3.
    """

    def __init__(self, rounds: Sequence[Explanation]) -> None:
        self.rounds = tuple(rounds)

    @staticmethod
    def of(reports: Sequence[Report]) -> RoundsExplanation:
        """Return the explanation of the rounds that left these reports, in their order."""
        # Rounds of one run share a graph, so its columns are copied once for all of them. A round that was
        # planned as a schedule has its columns there.
        graphs = {id(report.graph): report.graph for report in reports if report.planned is None}
        columns = {key: snapshot(graph) for key, graph in graphs.items()}
        schedules = [
            schedule_of(x, columns[id(x.graph)]) if x.planned is None else x.planned for x in reports
        ]
        return RoundsExplanation([*map(Explanation.ran, reports, schedules)])

    @cached_property
    def run(self) -> Report | None:
        """The report of all rounds as if they were one, made when it is first read.

        With a single round it is that round's own. Raise a `RecordError` where `as_one` does: if rounds
        belong to several recordings.
        """
        return self.rounds[0].run if len(self.rounds) == 1 else as_one(self.reports)

    @cached_property
    def schedule(self) -> Schedule:
        """The launches of all rounds as one schedule, in the order in which they ran.

        Its lower bound is the sum of those of the rounds.
        """
        if self.run is None or len(self.rounds) == 1:
            return self.rounds[0].schedule
        bound = sum(part.lower_bound for part in self.rounds)
        return replace(schedule_of(self.run, self.rounds[0].columns), lower_bound=bound)

    @property
    def alone(self) -> Integers:
        """The numbers of the calls, ascending, as int64, whose whole result is read."""
        return np.unique(np.concatenate([part.alone for part in self.rounds]))

    @property
    def site(self) -> Callable[[int], str]:
        """A function: number of a call -> where it was recorded."""
        return self.rounds[-1].site

    @property
    def backend(self) -> str | None:
        """The name of the backend."""
        return self.rounds[-1].backend

    @property
    def pads(self) -> bool:
        """Whether the backend compiles an op once for each number of rows."""
        return self.rounds[-1].pads

    @property
    def reports(self) -> tuple[Report, ...]:
        """The reports of the rounds, in order."""
        return tuple(part.run for part in self.rounds if part.run is not None)

    @cached_property
    def begins(self) -> dict[int, int]:
        """First launch of a round -> number of the round, both from 0.

        A round without launches is left out.
        """
        ends = accumulate(map(len, self.rounds))
        found = enumerate(zip(ends, self.rounds, strict=True))
        # A round without launches begins nowhere.
        return {end - len(part): number for number, (end, part) in found if len(part)}

    @property
    def waits(self) -> tuple[tuple[Wait, ...], ...]:
        """For each round, in order, the examples that waited in it; empty for the last one."""
        return tuple(map(waits_of, self.reports))

    def __len__(self) -> int:
        """The number of launches in all rounds."""
        return sum(map(len, self.rounds))

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds, added up over all rounds; phases as in `Facts.seconds`."""
        found: dict[str, float] = {}
        for part in self.rounds:
            for phase, spent in part.seconds.items():
                found[phase] = found.get(phase, 0.0) + spent
        return found

    @property
    def padded_rows(self) -> int:
        """The number of rows of all launches, with those that only fill a launch to a compiled size."""
        return sum(len(calls) for report in self.reports for calls in report.notes.calls)

    def __repr__(self) -> str:
        return f"<RoundsExplanation: {headline(self)}>"

    def __str__(self) -> str:
        return "\n".join(lines(self))


def lines(explanation: RoundsExplanation) -> Iterator[str]:
    """Yield the lines of the text of an explanation of rounds."""
    yield headline(explanation)
    yield ""
    calls = sum(len(part.calls) for part in explanation.rounds)
    head = ["round", "waiting", "calls", "launches", "bound", "rows", "record ms", "run ms"]
    pairs = zip(explanation.waits, explanation.rounds, strict=True)
    rows = [row(number, waits, part) for number, (waits, part) in enumerate(pairs)]
    yield from aligned([head, *rows], left=(1,))
    if explanation.padded_rows > calls:
        yield ""
        yield (
            f"Launches are padded to {explanation.padded_rows:,} rows for {calls:,} calls: "
            f"{explanation.rounds[-1].backend} compiles an op once for each number of rows."
        )
    for part in explanation.rounds[-1:]:
        for note in untried(part.untried):  # all rounds share one mapping
            yield ""
            yield note


def headline(explanation: RoundsExplanation) -> str:
    """Return the first line of the text: rounds, launches, calls, mean rows and milliseconds."""
    launches = len(explanation)
    calls = sum(len(part.calls) for part in explanation.rounds)
    return (
        f"{count(len(explanation.rounds), 'round')}, {count(launches, 'launch', 'launches')} of "
        f"{count(calls, 'call')}, {calls / max(launches, 1):,.1f} rows a launch, "
        f"{1e3 * sum(explanation.seconds.values()):,.2f} ms"
    )


def row(number: int, waits: Sequence[Wait], part: Explanation) -> list[str]:
    """Return the cells of the table's line for round ``number``."""
    seconds = part.seconds
    recording = seconds.get("record", 0.0)
    return [
        str(number),
        "; ".join(waiting(waits)) or "the results",
        f"{len(part.calls):,}",
        f"{len(part):,}",
        f"{part.lower_bound:,}",
        extent(list(map(len, part.members))),
        f"{1e3 * recording:,.2f}",
        f"{1e3 * (sum(seconds.values()) - recording):,.2f}",
    ]


def snapshot(graph: Graph) -> Columns:
    """Return a copy of the columns of a graph, in which another thread may record meanwhile.

    A column can't grow while NumPy reads it, and NumPy lets other threads run then. So it reads copies.
    Calls are copied first, since what they refer to is recorded before them.
    """
    copies = {name: getattr(graph, name)[:] for name in COPIED}
    others = {name: getattr(graph, name) for name in ("signatures", "parts", "arrays", "loose")}
    found: Any = SimpleNamespace(**copies, **others)
    return Columns.of(found)


def as_one(reports: Sequence[Report]) -> Report:
    """Return one report with the notes of several rounds, joined in order; its policy is ``"rounds"``.

    Raises
    ------
    RecordError
        If the rounds are of different recordings, as of a server that has emptied its fold between them.
    """
    recordings = len({id(report.graph) for report in reports})
    if recordings != 1:
        raise RecordError(
            f"Expected rounds of one recording, to look at them together. Received "
            f"{count(len(reports), 'round')} of {recordings}.",
            "ask one round: explanation.rounds[i].",
        )
    notes = Notes(began=reports[0].notes.began)
    for report in reports:
        notes.joined(report.notes)
        # `joined` leaves the time of recording out, since it puts parts of one round together. Here each
        # round has recorded by itself.
        notes.spans.extend(span for span in report.notes.phases() if span.phase == "record")
    alone = np.unique(np.concatenate([report.alone for report in reports]))
    return reports[-1]._replace(notes=notes, policy="rounds", alone=alone)


def schedule_of(report: Report, columns: Columns) -> Schedule:
    """Return the launches that a report notes, in the order in which they ran, as a `Schedule`.

    ``columns`` are the recorded calls. Its lower bound is computed anew, for the calls that ran.
    """
    ran = report.ran()
    bound = problem_of(columns, call_types(columns, report.alone), ran).lower_bound
    bounds = starts(np.array([len(calls) for calls in report.notes.calls], np.int64))
    # A round may have run nothing, and `concatenate` refuses an empty list.
    calls = np.concatenate([*report.notes.calls, NO_INTEGERS])
    return Schedule(columns, report.graph, calls, bounds, bound, report.policy)


def waits_of(report: Report) -> tuple[Wait, ...]:
    """Return what each example waited for when the round of a report began, ordered by example."""
    examples, refs = report.waits
    pairs = zip(examples.tolist(), refs.tolist(), strict=True)
    return tuple(
        Wait(example, tuple(described(report.graph, ref) for _, ref in mine))
        for example, mine in groupby(pairs, key=itemgetter(0))
    )


def described(graph: Any, ref: int) -> str:
    """Return the op of a reference, with the path to a part of its result, as ``"logits[0]"``.

    ``ref`` has the number of the call in ``graph`` in its lower bits, and that of the part above them.
    """
    name: str = graph.signatures[graph.signature[ref & CALL_MASK]].name
    return name + path_text(graph.parts[ref >> PART_BITS].path)


def waiting(waits: Sequence[Wait]) -> list[str]:
    """Return texts that say which examples wait for which ops.

    Examples that wait for one op stand together.

    Examples
    --------
    >>> waiting([Wait(0, ("double",)), Wait(2, ("double", "stop"))])
    ['examples 0, 2 for double', 'example 2 for stop']
    """
    who: dict[str, dict[int, None]] = {}
    for wait in waits:
        for name in wait.names:
            who.setdefault(name, {})[wait.example] = None
    what: dict[tuple[int, ...], list[str]] = {}
    for name, mine in who.items():
        what.setdefault(tuple(mine), []).append(name)
    return [f"{examples(mine)} for {', '.join(names)}" for mine, names in what.items()]


def examples(numbers: Sequence[int]) -> str:
    """Return the numbers of examples as text, or only how many they are, if more than `MOST_EXAMPLES`.

    Examples
    --------
    >>> examples([3]), examples([0, 2]), examples(range(9))
    ('example 3', 'examples 0, 2', '9 examples')
    """
    if len(numbers) > MOST_EXAMPLES:
        return f"{len(numbers):,} examples"
    return f"example{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
