"""The picture in the languages of Graphviz and Mermaid, which lay it out themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator

from multifold.explain.picture import Picture
from multifold.explain.reasons import count

MERMAID_ARROWS = 500
"""Mermaid draws nothing of a chart with more arrows than that, unless it is configured to."""


def dot(picture: Picture) -> str:
    """Return a picture in the language of Graphviz."""
    return "\n".join(dot_lines(picture)) + "\n"


def dot_lines(picture: Picture) -> Iterator[str]:
    """Yield the lines of `dot`."""
    yield "digraph schedule {"
    yield f"  label={quoted(picture.title)} labelloc=t rankdir=LR"
    yield '  node [shape=box style="filled,rounded" fontname="Helvetica"] edge [color="#4b5563"]'
    for launch, boxes in picture.by_launch():
        colour, head = quoted(picture.colours[launch]), quoted(heading(picture, launch))
        if picture.unit == "launch":
            yield f"  n{launch} [label={head} fillcolor={colour}]"
            continue
        nodes = "; ".join(f"n{box.number} [label={quoted(box.label)}]" for box in boxes)
        yield f"  {{rank=same; head{launch} [label={head} shape=plain style=solid]"
        yield f"    node [fillcolor={colour}]; {nodes}}}"
    if picture.unit == "call" and picture.launches:
        heads = " -> ".join(f"head{launch.number}" for launch in picture.launches)
        yield f"  {heads} [style=invis]"
    for arrow in picture.arrows:
        many = f" [label={arrow.rows} weight={arrow.rows}]" if picture.unit == "launch" else ""
        yield f"  n{arrow.source} -> n{arrow.target}{many}"
    yield "}"


def mermaid(picture: Picture) -> str:
    """Return a picture as a Mermaid flowchart; of many arrows only those with the most rows."""
    return "\n".join(mermaid_lines(picture)) + "\n"


def mermaid_lines(picture: Picture) -> Iterator[str]:
    """Yield the lines of `mermaid`."""
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
    """Return what is written above a launch."""
    explained = picture.launches[launch]
    return f"{launch}: {explained.op}, {count(len(explained), 'row')}"


def quoted(text: str) -> str:
    """Return a string as Graphviz reads it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def mermaid_text(text: str) -> str:
    """Return a string as Mermaid reads it: quoted, with entities for what would end it."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return f'"{text}"'
