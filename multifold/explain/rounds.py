"""A run in rounds explained: the launches of each round, and which example waited for which op."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from multifold._rounds.report import Round, Wait
from multifold._rounds.told import Report
from multifold.explain.explanation import Explanation
from multifold.explain.reasons import count
from multifold.explain.text import aligned, extent

MOST_EXAMPLES = 4
"""Examples that are listed by number where few wait."""


@dataclass(frozen=True, eq=False, repr=False)
class RoundsExplanation:
    """The rounds of `Fold.run` with a function; made by `Fold.explain`.

    Its text is a table with a line for each round: which examples waited for which op, the launches, the
    bound that no schedule of that round could go below, and the rows; then the milliseconds in which the
    examples ran and recorded, and in which the round ran. The last round computes the results.

    Attributes
    ----------
    report : list of Round
        The timeline of each round, with the examples that waited for it, in the order of the rounds.

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
    """

    report: list[Round]

    @classmethod
    def of(cls, rounds: Sequence[Report]) -> RoundsExplanation | Explanation:
        """Return the explanation of some rounds; of a single one without any ``await`` as of a fold."""
        report = [part.told() for part in rounds]
        alone = len(report) == 1 and not len(report[0].refs)
        return Explanation.of_round(report[0]) if alone else cls(report)

    @cached_property
    def rounds(self) -> tuple[Explanation, ...]:
        """The explanation of each round; calls are numbered anew in each."""
        return tuple(map(Explanation.of_round, self.report))

    @property
    def waits(self) -> tuple[tuple[Wait, ...], ...]:
        """Which examples waited for which ops in each round; none in the last one."""
        return tuple(part.waits for part in self.report)

    def __len__(self) -> int:
        """The number of launches in all rounds."""
        return sum(map(len, self.rounds))

    @property
    def calls(self) -> int:
        """The number of calls that were run."""
        return sum(len(part.calls) for part in self.rounds)

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase, of all rounds: record, plan, wiring, upload, gather and op."""
        found: dict[str, float] = {}
        for part in self.report:
            for phase, spent in part.timeline.seconds.items():
                found[phase] = found.get(phase, 0.0) + spent
        return found

    @property
    def padded_rows(self) -> int:
        """The rows of all launches, with those that only fill a launch up to a compiled size."""
        return sum(len(calls) for part in self.report for calls in part.timeline.calls)

    def __repr__(self) -> str:
        return f"<RoundsExplanation: {headline(self)}>"

    def __str__(self) -> str:
        return "\n".join(lines(self))


def lines(explanation: RoundsExplanation) -> Iterator[str]:
    """Yield the lines of the text."""
    yield headline(explanation)
    yield ""
    head = ["round", "waiting", "calls", "launches", "bound", "rows", "record ms", "run ms"]
    pairs = zip(explanation.report, explanation.rounds, strict=True)
    rows = [row(number, part, explained) for number, (part, explained) in enumerate(pairs)]
    yield from aligned([head, *rows], left=(1,))
    if explanation.padded_rows > explanation.calls:
        yield ""
        yield (
            f"Launches are padded to {explanation.padded_rows:,} rows for {explanation.calls:,} calls: "
            f"{explanation.report[-1].timeline.backend} compiles an op once for each number of rows."
        )


def headline(explanation: RoundsExplanation) -> str:
    """Return the figures of all rounds in one line."""
    launches = len(explanation)
    calls = explanation.calls
    return (
        f"{count(len(explanation.rounds), 'round')}, {count(launches, 'launch', 'launches')} of "
        f"{count(calls, 'call')}, {calls / max(launches, 1):,.1f} rows a launch, "
        f"{1e3 * sum(explanation.seconds.values()):,.2f} ms"
    )


def row(number: int, part: Round, explained: Explanation) -> list[str]:
    """Return the line of one round."""
    seconds = part.timeline.seconds
    recording = seconds.get("record", 0.0)
    return [
        str(number),
        "; ".join(waiting(part.waits)) or "the results",
        f"{len(explained.calls):,}",
        f"{len(explained):,}",
        f"{explained.lower_bound:,}",
        extent(list(map(len, explained.launches))),
        f"{1e3 * recording:,.2f}",
        f"{1e3 * (sum(seconds.values()) - recording):,.2f}",
    ]


def waiting(waits: Sequence[Wait]) -> list[str]:
    """Return which examples wait for which op; examples that wait for one op stand together."""
    who: dict[str, dict[int, None]] = {}
    for wait in waits:
        for name in wait.names:
            who.setdefault(name, {})[wait.example] = None
    return [f"{examples(list(mine))} for {name}" for name, mine in who.items()]


def examples(numbers: Sequence[int]) -> str:
    """Return some examples by number, or how many they are."""
    if len(numbers) > MOST_EXAMPLES:
        return f"{len(numbers):,} examples"
    return f"example{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
