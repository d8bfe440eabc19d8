"""What advice is: ways to run a program, how fast each is, and a table of them."""

from __future__ import annotations

import re
import textwrap
from typing import NamedTuple

SPREAD = 1.4
"""A gain lies between the measured one divided by this and multiplied by it: less than twice apart."""

COLUMNS = 100
"""The table and its notes are no wider, in characters."""

LONGEST = 36
"""Names of ways that are longer are shown without what is in brackets."""

IN_BRACKETS = re.compile(r"\[.*\]")


class MeasuredWay(NamedTuple):
    """One way to run a program, and how fast it is.

    Attributes
    ----------
    name : str
        What to write for it, as ``"multifold.batched(fn)"``.
    calls, launches : int
        How many calls it records, and in how many launches these run; 0 for the loop.
    gain : float
        How many times as fast as the loop it was, measured in turn with it, or estimated.
    """

    name: str
    calls: int
    launches: int
    gain: float

    @property
    def low(self) -> float:
        """The least number of times as fast as the loop that is expected: ``gain / 1.4``."""
        return self.gain / SPREAD

    @property
    def high(self) -> float:
        """The largest number of times as fast as the loop that is expected: ``gain * 1.4``."""
        return self.gain * SPREAD


class Advice:
    """What a program would gain by each way of running it; `advise` makes it, and ``print`` shows a table.

    Attributes
    ----------
    examples : int
        How many examples were run.
    trains : bool
        Whether times hold the gradients of all parameters.
    loop : float
        The median of the loop's seconds. The time of another way is this divided by its gain.
    ways : list of MeasuredWay
        All ways that were measured, the loop first.
    ops : list of str
        The functions to record, by their qualified names: ops of `Fold.add`, or cells.
    notes : list of str
        What else there is to know, a sentence each.
    """

    def __init__(
        self,
        examples: int,
        trains: bool,
        loop: float,
        ways: list[MeasuredWay],
        ops: list[str],
        notes: list[str],
    ) -> None:
        self.examples = examples
        self.trains = trains
        self.loop = loop
        self.ways = ways
        self.ops = ops
        self.notes = notes

    def __repr__(self) -> str:
        return f"<Advice on {self.examples} examples: {self.ways[-1].name}>"

    def __str__(self) -> str:
        head = ("", "calls", "launches", "ms", "times as fast")
        rows = [
            (
                way.name if len(way.name) <= LONGEST else IN_BRACKETS.sub("[...]", way.name),
                f"{way.calls:,}" if way.calls else "",
                f"{way.launches:,}" if way.launches else "",
                rounded(1e3 * self.loop / way.gain),
                f"{rounded(way.low)} to {rounded(way.high)}" if way.calls else "",
            )
            for way in self.ways
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *rows)
        ]
        mode = "forward and backward" if self.trains else "forward"
        notes = [textwrap.fill(note, COLUMNS, subsequent_indent="  ") for note in self.notes]
        return "\n".join([f"{self.examples:,} examples, {mode}", "", *lines, "", *notes]).rstrip()


def rounded(x: float) -> str:
    """Return a number with one decimal, or with two below 1.

    Examples
    --------
    >>> rounded(1234.56), rounded(0.0712)
    ('1,234.6', '0.07')
    """
    return f"{x:,.1f}" if x >= 1 else f"{x:.2f}"
