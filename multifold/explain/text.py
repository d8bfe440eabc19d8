"""An explanation as text: aligned columns, the same for the same schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from multifold.explain.facts import Facts
from multifold.explain.reasons import count

MOST_NUMBERS = 6
"""Launches of one row that are listed by number for each op."""


def table(facts: Facts) -> str:
    """Return an explanation as text."""
    return "\n".join(lines(facts))


def lines(facts: Facts) -> Iterator[str]:
    """Yield the lines of the text."""
    yield headline(facts)
    yield ""
    yield from aligned(op_table(facts))
    if facts.reasons:
        yield ""
        yield "What keeps calls of one op apart, and the launches that it costs"
        found = [(reason.op, f"{reason.cost:,}", str(reason)) for reason in facts.reasons]
        for line, reason in zip(aligned(found, left=(0, 2)), facts.reasons, strict=True):
            yield line
            if reason.hint:
                yield " " * (len(line) - len(str(reason))) + f"hint: {reason.hint}"
    for note in notes(facts):
        yield ""
        yield note
    if facts.run is not None:
        total = 1e3 * sum(facts.seconds.values())
        times = count(facts.divisions, "time")
        divided = f"launches were divided {times}" if facts.divisions else "no launch was divided"
        yield ""
        yield f"{total:,.2f} ms on {facts.backend}; {divided}"
        yield from aligned(shares(facts))


def title(facts: Facts, known: str = "") -> str:
    """Return launches, bound and certificate in one line; ``known`` stands after the bound."""
    return (
        f"{count(len(facts), 'launch', 'launches')} of {count(len(facts.calls), 'call')}, "
        f"lower bound {facts.lower_bound:,}{known}: {facts.certificate} ({facts.schedule.policy})"
    )


def headline(facts: Facts) -> str:
    """Return the title with the bound as it was planned, where a run has shown another, and the rows."""
    planned = facts.schedule.lower_bound
    known = "" if planned == facts.lower_bound else f" ({planned:,} before shapes were known)"
    return f"{title(facts, known)}, {facts.mean_rows:,.1f} rows a launch"


def op_table(facts: Facts) -> list[list[str]]:
    """Return the table of the ops, with its head."""
    run = facts.run is not None
    head = ["op", "calls", "launches", "bound", "rows", "mean", "shapes", *["ms"] * run]
    rows = [
        [
            op.name,
            f"{op.calls:,}",
            f"{op.launches:,}",
            f"{op.lower_bound:,}",
            extent(op.rows),
            f"{op.calls / op.launches:,.1f}",
            f"{op.shapes:,}",
            *[f"{1e3 * (op.seconds or 0.0):,.3f}"] * run,
        ]
        for op in facts.ops
    ]
    return [head, *rows]


def extent(rows: Sequence[int]) -> str:
    """Return the least and the most rows of some launches.

    Examples
    --------
    >>> extent([3, 1200, 7]), extent([4, 4]), extent([])
    ('3-1,200', '4', '-')
    """
    return "-".join(f"{x:,}" for x in sorted({min(rows), max(rows)})) if rows else "-"


def notes(facts: Facts) -> Iterator[str]:
    """Yield what is said below the tables: launches of one row, and how often ops are compiled."""
    if facts.single_rows:
        numbers: dict[str, list[int]] = {}
        for launch in facts.single_rows:
            numbers.setdefault(launch.op, []).append(launch.number)
        listed = []
        for op, mine in numbers.items():
            rest = f" and {len(mine) - MOST_NUMBERS:,} more" if len(mine) > MOST_NUMBERS else ""
            listed.append(f"{', '.join(map(str, mine[:MOST_NUMBERS]))}{rest} of {op}")
        yield f"{count(len(facts.single_rows), 'launch', 'launches')} of one row: {'; '.join(listed)}"
    if facts.pads:
        yield (
            f"{facts.backend} compiles what runs eagerly once for each shape: "
            f"{count(facts.shapes, 'shape')} here, and minibatches with other numbers of rows bring more; "
            "fold.program(...) is compiled once for many (docs/compiling.md)."
        )


def shares(facts: Facts) -> list[tuple[str, str, str]]:
    """Return phase, time and share of the time."""
    total = sum(facts.seconds.values())
    return [
        (phase, f"{1e3 * spent:,.2f} ms", f"{spent / total:.0%}") for phase, spent in facts.seconds.items()
    ]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Iterator[str]:
    """Yield rows with their columns under each other; text to the left, numbers to the right.

    Examples
    --------
    >>> list(aligned([("op", "calls"), ("leaf", "7")]))
    ['op    calls', 'leaf      7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
