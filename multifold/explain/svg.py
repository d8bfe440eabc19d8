"""The picture as an SVG drawing, without any dependency.

Boxes of a launch stand in one group, so that a page can light up what runs together; what a box
stands for is its title, which browsers show under the mouse.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from math import log2, sqrt

from multifold.explain.picture import Arrow, Box, Picture
from multifold.explain.reasons import count

MARGIN = 24
LINE = 18
"""Height of a line of text."""
CHARACTER = 6.7
"""Width of a character, about."""
WIDE = 1500
"""Width of a drawing of launches, about."""
MOST_ARROWS = 600
"""Arrows between launches beyond which none are drawn."""
STRIP = 200
"""Launches in a line where none are drawn."""

STYLE = """
text { font: 11px ui-sans-serif, "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #1f2430; }
.title { font-size: 14px; font-weight: 600; }
.quiet { fill: #6b7280; }
.middle { text-anchor: middle; }
.box { stroke: #1f2430; stroke-opacity: 0.45; }
.arrow { fill: none; stroke: #4b5563; stroke-opacity: 0.55; }
.wide { stroke-opacity: 0.22; }
"""

SECONDS = 1.0
"""How long an animated drawing shows each launch before the next one."""


def animation(launches: int) -> str:
    """Return CSS by which launches appear one after the other, unless the reader wants no motion.

    ``launches`` is their number.
    """
    seconds = SECONDS * (launches + 3)
    return f"""
@media (prefers-reduced-motion: no-preference) {{
  .launch {{
    animation: launch {seconds}s linear infinite;
    animation-delay: calc(var(--launch) * {SECONDS}s - {seconds - SECONDS}s);
  }}
}}
@keyframes launch {{ 0% {{ opacity: 0.1; }} 4%, 80% {{ opacity: 1; }} 90%, 100% {{ opacity: 0.1; }} }}
"""


def svg(picture: Picture, animated: bool = False) -> str:
    """Return a picture as the text of an SVG document; ``animated`` adds `animation`."""
    style = STYLE + animation(len(picture.launches)) if animated else STYLE
    return (Calls(picture) if picture.unit == "call" else Launches(picture)).document(style)


class Drawing:
    """Base of the two drawings of a picture; `document` returns the SVG document, once.

    ``right`` and ``bottom`` grow to the edges of what is drawn.
    """

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.boxes = {box.number: box for box in picture.boxes}
        # The title has letters of 14 px, and other text of 11 px.
        self.right = MARGIN + CHARACTER * 1.3 * len(picture.title)
        self.bottom = 0.0

    def document(self, style: str) -> str:
        """Return the text of the SVG document; ``style`` is its CSS."""
        parts = [text(MARGIN, MARGIN, self.picture.title, "title"), *self.parts()]
        width = round(self.right + MARGIN)
        height = round(self.bottom + MARGIN)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">'
        )
        title = f"<title>{escape(self.picture.title)}</title>"
        marker = (
            '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" '
            'markerHeight="6" markerUnits="userSpaceOnUse" orient="auto">'
            '<path d="M0 0 L6 3 L0 6 z" fill="#4b5563" fill-opacity="0.7"/></marker></defs>'
        )
        paper = f'<rect width="{width}" height="{height}" fill="white"/>'
        body = [head, title, f"<style>{style}</style>", marker, paper, *parts, "</svg>"]
        return "\n".join(body) + "\n"

    def parts(self) -> Iterator[str]:
        """Yield the SVG elements of the drawing, back to front, but for the title."""
        raise NotImplementedError

    def groups(self) -> Iterator[str]:
        """Yield a ``<g>`` element for each launch, with the elements of its boxes."""
        for launch, boxes in self.picture.by_launch():
            drawn = "".join(
                f"<g><title>{escape(box.title)}</title>{''.join(self.box(box))}</g>" for box in boxes
            )
            yield f'<g class="launch" style="--launch: {launch}">{drawn}</g>'

    def box(self, box: Box) -> Iterator[str]:
        """Yield the SVG elements of one box."""
        raise NotImplementedError


class Calls(Drawing):
    """The drawing with a column for each launch, and a box for each call in it."""

    ROW = 26
    HEIGHT = 19

    def __init__(self, picture: Picture) -> None:
        super().__init__(picture)
        longest = max((len(box.label) for box in picture.boxes), default=0)
        # Labels with static arguments, as pool(kernel=3), get more room.
        self.letters = min(longest, 24 if any("(" in x for x in picture.labels) else 14)
        self.width = max(40.0, self.letters * CHARACTER + 12)
        self.pitch = self.width + 44
        self.heads = MARGIN + (LINE if picture.begins else 0)
        self.top = self.heads + 4 * LINE

    def x(self, column: int) -> float:
        """Return the x, in pixels, of the middle of a column, numbered from 0."""
        return MARGIN + self.width / 2 + column * self.pitch

    def y(self, height: float) -> float:
        """Return the y, in pixels, of the middle of a box; ``height`` counts boxes from the top."""
        return self.top + (height + 0.5) * self.ROW

    def parts(self) -> Iterator[str]:
        """Yield the elements of column heads, rounds, arrows, boxes and legend."""
        picture = self.picture
        self.right = max(self.right, self.x(len(picture.launches) - 1) + self.width / 2)
        self.bottom = self.y(max((box.height for box in picture.boxes), default=0) + 1)
        for launch in picture.launches:
            x = self.x(launch.number)
            yield text(x, self.heads + 1.7 * LINE, f"launch {launch.number}", "quiet middle")
            yield text(x, self.heads + 2.5 * LINE, count(len(launch), "row"), "middle")
        for first, number in picture.begins.items():
            x = self.x(first) - self.pitch / 2
            yield from round_begins(x + 6, self.heads, self.bottom, f"round {number}")
        yield from self.arrows()
        yield from self.groups()
        yield from self.legend()

    def box(self, box: Box) -> Iterator[str]:
        """Yield the rectangle of one call, and its label."""
        x = self.x(box.launch)
        y = self.y(box.height)
        label = shortened(box.label, self.letters)
        yield rect(x, y, self.width, self.HEIGHT, self.picture.colours[box.launch], rounding=8)
        yield text(x, y + 4, label, "middle")

    def arrows(self) -> Iterator[str]:
        """Yield a ``<path>`` for the last curve of each arrow, with its tip.

        The curves before it, in the columns that it passes, are one more path for all arrows of a call.
        """
        passing: dict[int, dict[str, None]] = {}
        for arrow in self.picture.arrows:
            # Arrows of one call differ in the last curve only. Drawn once for each arrow, the common curves
            # would look darker, since they are half transparent.
            *way, last = self.way(arrow)
            passing.setdefault(arrow.source, {}).update(dict.fromkeys(way))
            yield f'<path class="arrow" d="{last}" marker-end="url(#tip)"/>'
        for ways in passing.values():
            if ways:
                yield f'<path class="arrow" d="{" ".join(ways)}"/>'

    def way(self, arrow: Arrow) -> Iterator[str]:
        """Yield SVG path data of an arrow, curve by curve; it is level in the columns that it passes."""
        source = self.boxes[arrow.source]
        target = self.boxes[arrow.target]
        half = self.width / 2
        x = self.x(source.launch) + half
        y = self.y(source.height)
        end = self.x(target.launch) - half
        stops = [(self.x(at) - half, self.x(at) + half, height) for at, height in arrow.bends]
        for enter, leave, at in [*stops, (end, end, target.height)]:
            height = self.y(at)
            level = f" H{leave:.1f}" if leave > enter else ""
            yield curve(x, y, enter, height) + level
            x = leave
            y = height

    def legend(self) -> Iterator[str]:
        """Yield the elements that say which launch each colour stands for, below the drawing."""
        entries = [
            f"{launch.number}  {self.picture.labels[launch.number]}, {count(len(launch), 'row')}"
            for launch in self.picture.launches
        ]
        wide = max(map(len, entries), default=0) * CHARACTER + 40
        per_line = max(1, int((self.right - MARGIN) // wide))
        top = self.bottom + LINE
        yield text(MARGIN, top, "Calls of one colour run together: one launch.", "quiet")
        for i, entry in enumerate(entries):
            x = MARGIN + i % per_line * wide
            y = top + (i // per_line + 1.2) * LINE
            yield rect(x + 8, y - 4, 16, 11, self.picture.colours[i], rounding=4, kind="key")
            yield text(x + 22, y, entry)
            self.bottom = y


class Launches(Drawing):
    """The drawing with a lane for each op and its static arguments, and a box for each launch.

    A box is the higher the more rows its launch has.
    """

    LANE = 64

    def __init__(self, picture: Picture) -> None:
        super().__init__(picture)
        self.named = {int(box.height): shortened(picture.lanes[box.launch], 40) for box in picture.boxes}
        self.left = MARGIN + max(map(len, self.named.values()), default=0) * CHARACTER + 20
        self.linked = len(picture.arrows) <= MOST_ARROWS
        self.columns = max(1, len(picture.boxes))
        if not self.linked:
            self.columns = min(self.columns, STRIP)
        self.pitch = min(84.0, WIDE / self.columns)
        self.width = self.pitch * 0.72
        self.top = MARGIN + 2 * LINE
        self.strip = len(self.named) * self.LANE + 2 * LINE
        self.most = max(map(len, picture.launches), default=1)
        self.labels = {number: label for lane in self.named for number, label in self.fitting(lane)}

    def fitting(self, lane: int) -> Iterator[tuple[int, str]]:
        """Yield (number of a launch, label) for each box of a lane, if all labels fit side by side.

        ``lane`` is the number of the lane. If they do not fit, each label is its last word, the number of
        rows; if these do not fit either, nothing is yielded.
        """
        mine = [box for box in self.picture.boxes if box.height == lane]
        gaps = (b.launch - a.launch for a, b in pairwise(mine))
        room = min(gaps, default=self.columns) * self.pitch
        for labels in ([box.label for box in mine], [box.label.rpartition(" ")[2] for box in mine]):
            if max(map(len, labels)) * CHARACTER <= room:
                yield from zip([box.number for box in mine], labels, strict=True)
                return

    def middle(self, box: Box) -> tuple[float, float]:
        """Return x and y, in pixels, of the middle of the box of a launch."""
        # Where no arrows are drawn, the lanes break into strips, one below the other as lines of a text.
        strip, column = divmod(box.launch, self.columns)
        x = self.left + (column + 0.5) * self.pitch
        return x, self.top + strip * self.strip + (box.height + 0.5) * self.LANE + 5

    def parts(self) -> Iterator[str]:
        """Yield the elements of lanes, rounds, arrows, boxes and a note."""
        picture = self.picture
        self.right = max(self.right, self.left + self.columns * self.pitch)
        for first in range(0, len(picture.boxes), self.columns):
            yield from self.lanes(first)
        yield from self.rounds()
        note = "A box is a launch, the higher the more rows it has; "
        if self.linked:
            note += "the wider an arrow, the more rows go that way."
            heaviest = max((arrow.rows for arrow in picture.arrows), default=1)
            yield from (self.arrow(arrow, heaviest) for arrow in picture.arrows)
        else:
            note += f"{len(picture.arrows):,} arrows are left out."
        yield from self.groups()
        self.bottom += LINE
        yield text(MARGIN, self.bottom, note, "quiet")

    def lanes(self, first: int) -> Iterator[str]:
        """Yield the elements of the lanes of one strip, a line of launches that begins with ``first``."""
        top = self.top + first // self.columns * self.strip
        wide = self.right - MARGIN
        if not self.linked:
            yield text(self.left, top - 4, f"from launch {first}", "quiet")
        for lane, name in self.named.items():
            middle = top + (lane + 0.5) * self.LANE
            yield rect(MARGIN + wide / 2, middle, wide, self.LANE - 4, "#f3f4f6", 4, "lane")
            yield text(MARGIN + 6, middle + 4, name)
        self.bottom = top + len(self.named) * self.LANE

    def rounds(self) -> Iterator[str]:
        """Yield the elements that show where rounds begin, with their numbers where there is room."""
        begins = self.picture.begins
        room = min((b - a for a, b in pairwise(begins)), default=self.columns) * self.pitch
        for first, number in begins.items():
            strip, column = divmod(first, self.columns)
            top = self.top + strip * self.strip
            label = f"round {number}" if self.linked and room > CHARACTER * 8 else ""
            x = self.left + column * self.pitch
            yield from round_begins(x, top - 4, top + len(self.named) * self.LANE, label)

    def box(self, box: Box) -> Iterator[str]:
        """Yield the rectangle of one launch, and its label where there is room."""
        x, y = self.middle(box)
        rows = len(self.picture.launches[box.launch])
        # By the square root, a launch of a few rows can still be seen beside one of thousands.
        high = 6 + (self.LANE - 26) * sqrt(rows / self.most)
        yield rect(x, y, self.width, high, self.picture.colours[box.launch], min(4.0, self.width / 3))
        if box.number in self.labels:
            yield text(x, y - high / 2 - 3, self.labels[box.number], "middle")

    def arrow(self, arrow: Arrow, heaviest: int) -> str:
        """Return a path between two launches, the wider the more rows it stands for.

        ``heaviest`` is the largest number of rows of any arrow.
        """
        x, y = self.middle(self.boxes[arrow.source])
        to_x, to_y = self.middle(self.boxes[arrow.target])
        x = x + self.width / 2
        to_x = to_x - self.width / 2
        way = curve(x, y, to_x, to_y)
        if y == to_y and arrow.target > arrow.source + 1:  # in an arc over the boxes between
            top = y - self.LANE * 0.5
            way = f"M{x:.1f} {y:.1f} C{x + 8:.1f} {top:.1f} {to_x - 8:.1f} {top:.1f} {to_x:.1f} {to_y:.1f}"
        # By the logarithm, since the rows of arrows differ by factors of thousands.
        wide = 0.4 + 2.6 * log2(1 + arrow.rows) / log2(1 + heaviest)
        return (
            f'<path class="arrow wide" d="{way}" stroke-width="{wide:.1f}">'
            f"<title>{count(arrow.rows, 'row')}</title></path>"
        )


def round_begins(x: float, top: float, bottom: float, label: str) -> Iterator[str]:
    """Yield a dashed line from ``top`` to ``bottom`` at ``x``, and the text ``label`` beside it."""
    way = f"M{x:.1f} {top:.1f} V{bottom:.1f}"
    yield f'<path class="round" d="{way}" stroke="#9ca3af" stroke-dasharray="3 3"/>'
    yield text(x + 4, top, label, "quiet")


def shortened(label: str, letters: int) -> str:
    """Return ``label``, cut to ``letters`` letters, the last of which is then an ellipsis."""
    return label if len(label) <= letters else label[: letters - 1] + "…"


def curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return SVG path data of a curve from ``x, y`` to ``to_x, to_y`` that leaves and arrives level."""
    middle = (x + to_x) / 2
    return f"M{x:.1f} {y:.1f} C{middle:.1f} {y:.1f} {middle:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}"


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """Return a ``<text>`` element at ``x, y``; ``kind`` is its class in CSS."""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name}>{escape(content)}</text>'


def rect(
    x: float, y: float, width: float, height: float, fill: str, rounding: float, kind: str = "box"
) -> str:
    """Return a ``<rect>`` element whose middle is at ``x, y``; ``kind`` is its class in CSS."""
    corner = f'x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" rx="{rounding:.1f}"'
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {corner} {size} fill="{fill}"/>'
