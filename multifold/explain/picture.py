"""What a schedule looks like, before it is written in any language.

The picture of dynamic batching: calls of the same colour run together. A column is a launch, a box
in it is a call, an arrow leads from an operand to its reader. Where that would be too much to look
at, a box is a launch and an arrow says how many rows go that way.
"""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from multifold._engine.compiled.arrays import Integers
from multifold.explain.facts import ExplainedLaunch, Facts
from multifold.explain.layout import arrange
from multifold.explain.reasons import count
from multifold.explain.text import some, title

MOST_CALLS = 240
"""Calls up to which each is drawn as a box of its own."""

MOST_COLUMNS = 40
"""Launches up to which calls are drawn."""

MOST_LANES = 12
"""Lanes that one op may have, one for each way in which its static arguments differ."""

GOLDEN = 0.618034
"""A turn of the colour wheel by this share of it never comes back to a colour that was there."""


@dataclass(frozen=True)
class Box:
    """One box of a picture: a call, or a launch.

    Attributes
    ----------
    number : int
        The number of the call or of the launch.
    launch : int
        The launch that it belongs to.
    height : float
        Where it stands in its column, from 0 at the top.
    label, title : str
        What is written on it, and what is said about it.
    """

    number: int
    launch: int
    height: float
    label: str
    title: str


@dataclass(frozen=True)
class Arrow:
    """Rows that are read, from the box of the operand to that of its reader.

    Attributes
    ----------
    source, target : int
        Numbers of boxes.
    rows : int
        How many rows are read.
    bends : tuple of (int, float)
        The columns that it passes, and where.
    """

    source: int
    target: int
    rows: int
    bends: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Picture:
    """A schedule as boxes in columns, with arrows between them, before it is written in any language.

    Attributes
    ----------
    unit : str
        What a box is: ``"call"`` or ``"launch"``.
    title : str
        What is shown.
    launches : tuple of ExplainedLaunch
        The columns.
    labels : tuple of str
        The op of each launch with the static arguments in which launches of the op differ.
    boxes, arrows : tuples
        What stands in them.
    begins : mapping of int to int
        The launches with which rounds begin, and which rounds; none where nothing was awaited.
    colours : tuple of str
        The colour of each launch: another for each launch if boxes are calls, else one for each lane.
    lanes : tuple of str
        The name of the lane of each launch if boxes are launches: its label, or its op if that would have
        very many lanes.
    """

    unit: str
    title: str
    launches: tuple[ExplainedLaunch, ...]
    labels: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    begins: Mapping[int, int]
    colours: tuple[str, ...]
    lanes: tuple[str, ...] = ()

    def by_launch(self) -> Iterator[tuple[int, list[Box]]]:
        """Yield (number of a launch, its boxes) for each launch, in order."""
        boxes: dict[int, list[Box]] = {launch.number: [] for launch in self.launches}
        for box in self.boxes:
            boxes[box.launch].append(box)
        yield from boxes.items()


def picture(facts: Facts) -> Picture:
    """Return the picture of a schedule: a box for each call if there are few, else one for each launch.

    Few are `MOST_CALLS` calls in `MOST_COLUMNS` launches.
    """
    few = len(facts.calls) <= MOST_CALLS and len(facts) <= MOST_COLUMNS
    return of_calls(facts) if few else of_launches(facts)


def of_calls(facts: Facts) -> Picture:
    """Return the picture with a box for each call, in the column of its launch."""
    calls = facts.calls.tolist()
    launch = dict(zip(calls, facts.launch_of.tolist(), strict=True))
    reads = Counter(pairs(*(facts.calls[ends] for ends in facts.edges)))
    alone = set(facts.alone.tolist())
    heights, bends = arrange(launch, list(reads), alone)
    boxes = tuple(
        Box(
            call,
            launch[call],
            heights[call],
            # Of a function that is defined in another one, its own name is enough in a small box.
            facts.labels[launch[call]].rpartition("<locals>.")[2],
            f"call {call} of {facts.labels[launch[call]]}, launch {launch[call]}, recorded at "
            f"{PurePath(facts.site(call)).name}",
        )
        for call in calls
    )
    arrows = tuple(Arrow(*pair, rows, tuple(bends.get(pair, ()))) for pair, rows in reads.items())
    colours = tuple(map(colour, range(len(facts))))
    columns = facts.launches, facts.labels, boxes, arrows, facts.begins, colours
    return Picture("call", title(facts), *columns)


def of_launches(facts: Facts) -> Picture:
    """Return the picture with a box for each launch, in a lane for each op and its static arguments.

    A box of an op that would have too many lanes says its static arguments itself.
    """
    # How many labels the launches of each op have.
    ways = Counter(op for op, _ in {(launch.op, facts.labels[launch.number]) for launch in facts.launches})
    names = [
        facts.labels[launch.number] if ways[launch.op] <= MOST_LANES else launch.op
        for launch in facts.launches
    ]
    lanes = {name: lane for lane, name in enumerate(dict.fromkeys(names))}
    boxes = tuple(
        Box(
            launch.number,
            launch.number,
            lanes[name],
            f"{facts.labels[launch.number].removeprefix(name)} {len(launch):,}".lstrip(),
            f"launch {launch.number} of {facts.labels[launch.number]}: {count(len(launch), 'row')}, "
            f"calls {some(launch.calls.tolist())}, first recorded at {PurePath(launch.site).name}",
        )
        for launch, name in zip(facts.launches, names, strict=True)
    )
    reads = Counter(pairs(*(facts.launch_of[ends] for ends in facts.edges)))
    arrows = tuple(Arrow(*pair, rows) for pair, rows in sorted(reads.items()))
    colours = tuple(colour(lanes[name]) for name in names)
    columns = facts.launches, facts.labels, boxes, arrows, facts.begins, colours, tuple(names)
    return Picture("launch", title(facts), *columns)


def pairs(sources: Integers, readers: Integers) -> list[tuple[int, int]]:
    """Return a list of (source, reader), one for each row read, from two int64 arrays of one length."""
    return list(zip(sources.tolist(), readers.tolist(), strict=True))


def colour(number: int) -> str:
    """Return a light colour, as ``"#rrggbb"``, a different one for each number from 0.

    Examples
    --------
    >>> len({colour(number) for number in range(MOST_COLUMNS)}) == MOST_COLUMNS
    True
    """
    hue = (0.58 + number * GOLDEN) % 1
    # Three shades in turn tell hues apart that come close to each other after many launches.
    light = (0.74, 0.66, 0.82)[number % 3]
    rgb = colorsys.hls_to_rgb(hue, light, 0.72)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
