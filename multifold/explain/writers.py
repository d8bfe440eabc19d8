"""What is written for other programs: the picture for Graphviz and Mermaid, the run as a Chrome trace.

Graphviz and Mermaid lay the picture out themselves. https://ui.perfetto.dev and chrome://tracing open a
Chrome trace, which is JSON. It has two tracks. One shows the phases outside the launches. The other shows
the launches, each in three parts: ``gather``, its operands are put together; ``op``; and ``cut``, its
result is divided into the sections that later launches read. A plan may have been made long before the
run, or in another process: its phases are drawn end to end just before the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from multifold.errors import RecordError
from multifold.explain.facts import Facts
from multifold.explain.picture import Picture
from multifold.explain.reasons import count

MERMAID_ARROWS = 500
"""Mermaid draws nothing of a chart with more arrows than that, unless it is configured to."""


PHASES = 0
LAUNCHES = 1
"""The two tracks of a timeline: phases outside the launches, and the launches."""


def dot(picture: Picture) -> Iterator[str]:
    """Yield the lines of a picture as a Graphviz file."""
    yield "digraph schedule {"
    yield f"  label={quoted(picture.title)} labelloc=t rankdir=LR"
    yield '  node [shape=box style="filled,rounded" fontname="Helvetica"] edge [color="#4b5563"]'
    for launch, boxes in picture.by_launch():
        colour = quoted(picture.colours[launch])
        head = quoted(heading(picture, launch))
        if picture.unit == "launch":
            yield f"  n{launch} [label={head} fillcolor={colour}]"
            continue
        nodes = "; ".join(f"n{box.number} [label={quoted(box.label)}]" for box in boxes)
        # One rank puts the heading and the boxes of a launch into one column.
        yield f"  {{rank=same; head{launch} [label={head} shape=plain style=solid]"
        yield f"    node [fillcolor={colour}]; {nodes}}}"
    if picture.unit == "call" and picture.launches:
        # Invisible arrows between the headings keep the columns in the order of the run.
        heads = " -> ".join(f"head{launch.number}" for launch in picture.launches)
        yield f"  {heads} [style=invis]"
    for arrow in picture.arrows:
        many = f" [label={arrow.rows} weight={arrow.rows}]" if picture.unit == "launch" else ""
        yield f"  n{arrow.source} -> n{arrow.target}{many}"
    yield "}"


def mermaid(picture: Picture) -> Iterator[str]:
    """Yield the lines of a picture as a Mermaid flowchart.

    Of more than `MERMAID_ARROWS` arrows only those with the most rows are kept.
    """
    yield "---"
    yield f"title: {json.dumps(picture.title)}"
    yield "---"
    yield "flowchart LR"
    for launch, boxes in picture.by_launch():
        if picture.unit == "launch":
            yield f"  n{launch}[{mermaid_text(heading(picture, launch))}]:::launch{launch}"
        else:
            yield f"  subgraph launch{launch}_[{mermaid_text(heading(picture, launch))}]"
            for box in boxes:
                yield f"    n{box.number}[{mermaid_text(box.label)}]:::launch{launch}"
            yield "  end"
    heaviest = sorted(picture.arrows, key=lambda arrow: -arrow.rows)[:MERMAID_ARROWS]
    kept = {(arrow.source, arrow.target) for arrow in heaviest}
    if len(kept) < len(picture.arrows):
        yield f"  %% {count(len(picture.arrows) - len(kept), 'arrow')} with fewer rows left out"
    for arrow in picture.arrows:
        if (arrow.source, arrow.target) in kept:
            many = f"|{arrow.rows}|" if picture.unit == "launch" else ""
            yield f"  n{arrow.source} -->{many} n{arrow.target}"
    for launch, colour in enumerate(picture.colours):
        yield f"  classDef launch{launch} fill:{colour},stroke:#4b5563,color:#1f2430"


def heading(picture: Picture, launch: int) -> str:
    """Return the text above launch number ``launch``, as ``"3: scale, 12 rows"``."""
    explained = picture.launches[launch]
    return f"{launch}: {picture.labels[launch]}, {count(len(explained), 'row')}"


def quoted(text: str) -> str:
    """Return a text as a quoted string of Graphviz."""
    # Backslashes come first: later, the ones that protect quotes would be doubled.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def mermaid_text(text: str) -> str:
    """Return a text as a quoted string of Mermaid."""
    # `#` comes first, since the entities for the others contain one.
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return f'"{text}"'


def trace_events(facts: Facts) -> str:
    """Return the run as the text of a Chrome trace in JSON. Raises `RecordError` if nothing was run."""
    return json.dumps({"traceEvents": list(events(facts)), "displayTimeUnit": "ms"}, indent=0)


def events(facts: Facts) -> Iterator[dict[str, Any]]:
    """Yield the events of a Chrome trace as dictionaries, times in microseconds from the first one.

    Raises `RecordError` if nothing was run.
    """
    run = facts.run
    if run is None:
        raise RecordError(
            "Expected a run to show the timeline of. Received a schedule that was not run.",
            "call fold.apply or fold.run first, then fold.explain().",
        )
    phases = run.notes.phases()
    start = min([span.begin for span in phases] + [times.begin for times in run.notes.times])

    def complete(name: str, track: int, begin: float, end: float, **args: Any) -> dict[str, Any]:
        # What Chrome's trace format calls a complete event: one with a beginning and a duration.
        ts = round((begin - start) * 1e6, 3)
        dur = round((end - begin) * 1e6, 3)
        return {"name": name, "ph": "X", "pid": 0, "tid": track, "ts": ts, "dur": dur, "args": args}

    yield metadata("process_name", PHASES, f"multifold on {facts.backend}")
    yield metadata("thread_name", PHASES, "phases")
    yield metadata("thread_name", LAUNCHES, "launches")
    for span in phases:
        yield complete(span.phase, PHASES, span.begin, span.end)
    for launch, times in zip(facts.launches, run.notes.times, strict=True):
        about = {
            "launch": launch.number,
            "op": launch.op,
            "rows": len(launch),
            "level": launch.level,
            "recorded": launch.site,
        }
        name = f"{launch.op} ({count(len(launch), 'row')})"
        yield complete(name, LAUNCHES, times.begin, times.end, **about)
        yield complete("gather", LAUNCHES, times.begin, times.call)
        yield complete("op", LAUNCHES, times.call, times.returned)
        yield complete("cut", LAUNCHES, times.returned, times.end)


def metadata(what: str, track: int, name: str) -> dict[str, Any]:
    """Return the event that gives ``name`` to a track or to the process.

    ``what`` is the event's name in the format, as ``"thread_name"``.
    """
    return {"name": what, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}
