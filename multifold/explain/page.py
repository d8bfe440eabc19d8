"""An explanation as a page of its own: the drawing, and the tables of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import PurePath

from multifold.explain.facts import Facts
from multifold.explain.picture import Picture
from multifold.explain.svg import svg
from multifold.explain.text import headline, notes, op_table, shares

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


def page(facts: Facts, picture: Picture) -> str:
    """Return an explanation as an HTML document that needs nothing else."""
    return "\n".join(parts(facts, picture)) + "\n"


def parts(facts: Facts, picture: Picture) -> Iterator[str]:
    """Yield the lines of the document."""
    yield "<!DOCTYPE html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>Schedule</title>'
    yield f"<style>{STYLE}{animation(len(facts))}</style></head><body>"
    yield f"<h1>{escape(headline(facts))}</h1>"
    yield '<input type="checkbox" id="play"><label for="play"> Show the launches one by one</label>'
    drawing = svg(picture)
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
    yield from html_table(launch_table(facts), text=(1, 4))
    yield "</body></html>"


def animation(launches: int) -> str:
    """Return the animation in which each of that many launches has its turn."""
    turn = 100 / max(launches, 1)
    on, off = "{ opacity: 1; }", "{ opacity: 0.2; }"
    return f"@keyframes run {{ 0%, {turn:.3f}% {on} {turn + 0.001:.3f}%, to {off} }}"


def launch_table(facts: Facts) -> list[Sequence[str]]:
    """Return the table of the launches, with its head."""
    rows = [
        (str(x.number), x.op, f"{len(x):,}", str(x.level), PurePath(x.site).name) for x in facts.launches
    ]
    return [("launch", "op", "rows", "level", "first recorded at"), *rows]


def html_table(rows: Sequence[Sequence[str]], text: Sequence[int]) -> Iterator[str]:
    """Yield a table; the first row is its head, columns of text stand to the left."""
    yield "<table>"
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = (
            f"<{tag}{' class=text' if i in text else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table>"
