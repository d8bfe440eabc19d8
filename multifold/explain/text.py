"""An explanation as text, and as a page of its own with the same tables around the drawing.

The text has aligned columns; it is the same for the same schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import PurePath

from multifold.explain.facts import Facts
from multifold.explain.reasons import count

MOST_NUMBERS = 6
"""Numbers of calls, or of launches of one row, that are listed."""


STYLE = """
body { font: 14px/1.45 ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; color: #1f2430;
  background: white; margin: 2rem auto; max-width: 90rem; padding: 0 1.5rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.drawing { overflow-x: auto; border: 1px solid #e5e7eb; border-radius: 6px; }
table { border-collapse: collapse; } td, th { padding: 0.2rem 0.8rem; text-align: right; }
th { border-bottom: 1px solid #9ca3af; } tr:nth-child(even) td { background: #f8f9fa; }
td.text, th.text { text-align: left; } td.colour { min-width: 1.2rem; }
.hint { color: #6b7280; }
.launch { transition: opacity 0.15s; }
.drawing:has(.launch:hover) .launch:not(:hover) { opacity: 0.2; }
#play:checked ~ .drawing .launch { animation: run calc(var(--launches) * 0.5s) infinite;
  animation-delay: calc((var(--launch) - var(--launches)) * 0.5s); }
"""


def lines(facts: Facts) -> Iterator[str]:
    """Yield the lines of the text of an explanation."""
    yield headline(facts)
    yield ""
    yield from aligned(op_table(facts))
    if facts.reasons:
        yield ""
        yield "What keeps calls of one op apart, and the launches that it costs"
        found = [(reason.op, f"{reason.cost:,}", str(reason)) for reason in facts.reasons]
        # Print a hint once, below the first reason that it helps against, and never an empty one.
        said = {""}
        for line, reason in zip(aligned(found, left=(0, 2)), facts.reasons, strict=True):
            yield line
            if reason.hint not in said:
                said.add(reason.hint)
                # `aligned` strips trailing spaces, so the reason is the end of the line, and the hint
                # begins below its beginning.
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
    """Return launches, calls, bound and certificate as one line; ``known`` is put after the bound."""
    return (
        f"{count(len(facts), 'launch', 'launches')} of {count(len(facts.calls), 'call')}, "
        f"lower bound {facts.lower_bound:,}{known}: {facts.certificate} ({facts.schedule.policy})"
    )


def headline(facts: Facts) -> str:
    """Return the first line of the text: `title` and the mean rows a launch.

    If a run has shown another bound than was planned, the planned one is added.
    """
    planned = facts.schedule.lower_bound
    known = "" if planned == facts.lower_bound else f" ({planned:,} before shapes were known)"
    return f"{title(facts, known)}, {facts.mean_rows:,.1f} rows a launch"


def op_table(facts: Facts) -> list[list[str]]:
    """Return the table of ops as rows of cells, its head first.

    There is a column of milliseconds only after a run.
    """
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
    """Return the least and the most of ``rows``, as ``"3-1,200"``; one number if they are equal.

    Examples
    --------
    >>> extent([3, 1200, 7]), extent([4, 4]), extent([])
    ('3-1,200', '4', '-')
    """
    return "-".join(f"{x:,}" for x in sorted({min(rows), max(rows)})) if rows else "-"


def notes(facts: Facts) -> Iterator[str]:
    """Yield the lines below the tables.

    They are on launches of one row, on ops without a trial, and on how often ops are compiled.
    """
    if facts.single_rows:
        numbers: dict[str, list[int]] = {}
        for launch in facts.single_rows:
            numbers.setdefault(launch.op, []).append(launch.number)
        listed = []
        for op, mine in numbers.items():
            listed.append(f"{some(mine)} of {op}")
        yield f"{count(len(facts.single_rows), 'launch', 'launches')} of one row: {'; '.join(listed)}"
    yield from untried(facts.untried)
    if facts.pads:
        yield (
            f"{facts.backend} compiles what runs eagerly once for each shape: "
            f"{count(facts.shapes, 'shape')} here, and minibatches with other numbers of rows bring more; "
            "fold.program(...) is compiled once for many (docs/compiling.md)."
        )


def some(numbers: Sequence[int]) -> str:
    """Return the first `MOST_NUMBERS` numbers as text, and how many more there are.

    Examples
    --------
    >>> some([3, 4]), some(range(10))
    ('3, 4', '0, 1, 2, 3, 4, 5 and 4 more')
    """
    rest = f" and {len(numbers) - MOST_NUMBERS:,} more" if len(numbers) > MOST_NUMBERS else ""
    return ", ".join(map(str, numbers[:MOST_NUMBERS])) + rest


def untried(reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield one line on ops that no trial has shown to keep their rows apart; nothing if there are none.

    ``reasons`` is name of an op -> why there was none.
    """
    if reasons:
        listed = "; ".join(f"{op}, since {reason}" for op, reason in reasons.items())
        whose = "its" if len(reasons) == 1 else "their"
        yield f"Believed to keep {whose} rows apart without a trial: {listed}"


def shares(facts: Facts) -> list[tuple[str, str, str]]:
    """Return (phase, time, share of the whole time) for each phase of the run, in texts.

    An example is ``("op", "1.20 ms", "40%")``. The list is empty before a run.
    """
    total = sum(facts.seconds.values())
    return [
        (phase, f"{1e3 * spent:,.2f} ms", f"{spent / total:.0%}") for phase, spent in facts.seconds.items()
    ]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Iterator[str]:
    """Yield a line for each row of cells, columns under each other.

    Columns in ``left``, their positions, are aligned to the left, others to the right.

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


def page(facts: Facts, drawing: str) -> Iterator[str]:
    """Yield the lines of an HTML document: the tables around ``drawing``, the text of an SVG document."""
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>Schedule</title>'
    yield f"<style>{STYLE}{animation(len(facts))}</style></head><body>"
    yield f"<h1>{escape(headline(facts))}</h1>"
    yield '<input type="checkbox" id="play"><label for="play"> Show the launches one by one</label>'
    yield f'<div class="drawing" style="--launches: {len(facts)}">{drawing}</div>'
    yield "<h2>Ops</h2>"
    yield from html_table(op_table(facts), text=(0,))
    if facts.reasons:
        yield "<h2>What keeps calls of one op apart</h2>"
        rows = [(x.op, f"{x.cost:,}", str(x), x.hint) for x in facts.reasons]
        yield from html_table([("op", "costs", "because", "hint"), *rows], text=(0, 2, 3))
    yield from (f"<p>{escape(note)}</p>" for note in notes(facts))
    if facts.run is not None:
        yield "<h2>Time</h2>"
        yield from html_table([("phase", "time", "share"), *shares(facts)], text=(0,))
    yield "<h2>Launches</h2>"
    yield from html_table(launch_table(facts), text=(1, 4, 5))
    yield "</body></html>"


def animation(launches: int) -> str:
    """Return CSS keyframes in which each of ``launches`` launches has an equal turn."""
    # All launches have one animation, as long as the turns of all. `STYLE` delays each, so that it is
    # opaque in its own turn.
    turn = 100 / max(launches, 1)
    on = "{ opacity: 1; }"
    off = "{ opacity: 0.2; }"
    # The step to `off` takes a thousandth of a percent: browsers fade between distant keyframes.
    return f"@keyframes run {{ 0%, {turn:.3f}% {on} {turn + 0.001:.3f}%, to {off} }}"


def launch_table(facts: Facts) -> list[Sequence[str]]:
    """Return the table of launches as rows of cells, its head first."""
    rows = [
        (str(x.number), x.op, f"{len(x):,}", str(x.level), some(x.calls.tolist()), PurePath(x.site).name)
        for x in facts.launches
    ]
    return [("launch", "op", "rows", "level", "calls", "first recorded at"), *rows]


def html_table(rows: Sequence[Sequence[str]], text: Sequence[int]) -> Iterator[str]:
    """Yield the HTML of a table of cells; the first row is its head.

    Columns in ``text``, their positions, are aligned to the left.
    """
    yield "<table>"
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = (
            f"<{tag}{' class=text' if i in text else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"
