"""How a block looks: as an indented tree of text, and as a drawing in the style of `Fold.explain`'s.

In the drawing a block stands to the right of the one that holds it, and the lines below its name say what
goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from multifold.explain.picture import colour
from multifold.explain.svg import CHARACTER, MARGIN, STYLE, curve, rect, text
from multifold_compat.blocks.inference import Use
from multifold_compat.blocks.types import shown

ROW = 46
HEIGHT = 36
APART = 44
"""Heights of a line of blocks and of a block, and the room between two columns."""


def as_text(use: Use) -> str:
    """Return a line for each block, those inside indented: class, label, and types in and out."""
    return "\n".join(lines_of(use, 0, set()))


def lines_of(use: Use, indent: int, seen: set[int]) -> Iterator[str]:
    """Yield the line of a use and those of the uses inside of it.

    A use in ``seen``, ids of uses, gets one line that ends with "(as above)".
    """
    line = f"{'  ' * indent}{repr(use.block)[1:-1]}: {shown(use.given)} -> {shown(use.returned)}"
    if use.inside and id(use) in seen:
        yield f"{line} (as above)"
        return
    yield line
    seen.add(id(use))
    for inner in use.inside:
        yield from lines_of(inner, indent + 1, seen)


def as_svg(use: Use) -> str:
    """Return the text of an SVG drawing of a use and all uses inside of it."""
    drawing = Tree(use)
    width = round(drawing.right + MARGIN)
    height = round(drawing.bottom + MARGIN)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">'
    )
    title = f"<title>{escape(repr(use.block))}</title>"
    paper = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, title, f"<style>{STYLE}</style>", paper, *drawing.parts, "</svg>"]) + "\n"


class Tree:
    """Lays out uses in columns, outer ones left, and draws them: ``parts`` are the SVG elements.

    A block stands at the middle height of those inside of it.
    """

    def __init__(self, root: Use) -> None:
        self.widths: list[float] = []
        self.measured: set[tuple[int, int]] = set()
        self.drawn: set[int] = set()
        self.measure(root, 0)
        self.lefts = [MARGIN + sum(self.widths[:i]) + i * APART for i in range(len(self.widths))]
        self.right = self.lefts[-1] + self.widths[-1]
        self.bottom = float(MARGIN)
        self.colours: dict[str, str] = {}
        self.parts: list[str] = []
        self.place(root, 0)

    def lines(self, use: Use) -> tuple[str, str]:
        """Return the two lines of text on a block: its name, and its types."""
        return repr(use.block)[1:-1], f"{shown(use.given)} → {shown(use.returned)}"

    def measure(self, use: Use, column: int) -> None:
        """Make column ``column`` and those to its right as wide as the texts of this use need."""
        width = max(map(len, self.lines(use))) * CHARACTER + 16
        if column == len(self.widths):
            self.widths.append(0.0)
        self.widths[column] = max(self.widths[column], width)
        # A use may stand in many places: its insides are measured once a column, not once a path.
        if (id(use), column) not in self.measured:
            self.measured.add((id(use), column))
            for inner in use.inside:
                self.measure(inner, column + 1)

    def place(self, use: Use, column: int) -> float:
        """Append the elements of a use, after those inside unless they were drawn.

        Return the y of its middle.
        """
        inside = [] if id(use) in self.drawn else [self.place(inner, column + 1) for inner in use.inside]
        self.drawn.add(id(use))
        if inside:
            y = (inside[0] + inside[-1]) / 2
        else:
            y = self.bottom + HEIGHT / 2
            self.bottom = self.bottom + ROW
        left = self.lefts[column]
        width = self.widths[column]
        fill = self.colours.setdefault(type(use.block).__name__, colour(len(self.colours)))
        for at in inside:
            self.parts.append(
                f'<path class="arrow" d="{curve(left + width, y, self.lefts[column + 1], at)}"/>'
            )
        self.parts += self.box(use, left + width / 2, y, width, fill)
        return y

    def box(self, use: Use, x: float, y: float, width: float, fill: str) -> Iterator[str]:
        """Yield the SVG elements of one block, whose middle is at ``x, y``."""
        name, types = self.lines(use)
        yield rect(x, y, width, HEIGHT, fill, 8)
        yield text(x, y - 3, name, "middle")
        yield text(x, y + 12, types, "middle")
