"""Where boxes stand: a layered drawing whose layers are given.

The columns are the launches, so only heights are to be found. An arrow that passes columns takes
room in each of them, as if a small box stood there (Sugiyama et al. 1981). Boxes of one connected
component (an example) share a band. They are ordered by walking from the last readers back to
their operands, which draws trees without crossings; then sweeps order them by the mean position of
their neighbours, kept if fewer arrows cross, and move them towards their neighbours.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import pairwise

Edge = tuple[int, int]
Item = Hashable
"""A box, given by its number, or ``(source, column)``: the passage of its arrows there."""

SWEEPS = 8
"""How often `Layers` goes over all columns to untangle them, and once more to move its boxes."""

GAP = 0.6
"""Height between two components."""


def arrange(
    column: Mapping[int, int], edges: Sequence[Edge], apart: Collection[int] = ()
) -> tuple[dict[int, float], dict[Edge, list[tuple[int, float]]]]:
    """Return two dictionaries: box -> height, and arrow -> the points where it passes columns.

    A height counts boxes from the top, 0; a point is (column, height). Arrows between neighbouring columns
    have none.

    Parameters
    ----------
    column : mapping of int to int
        The column of each box, in an order that decides where there is no other reason.
    edges : sequence of (int, int)
        The arrows; each leads to a later column.
    apart : collection of int
        Boxes whose arrows do not join components: a table that all examples read would otherwise make
        one component of the whole picture.

    Examples
    --------
    >>> arrange({0: 0, 1: 0, 2: 1}, [(0, 2), (1, 2)])
    ({0: 0.0, 1: 1.0, 2: 0.5}, {})
    """
    heights: dict[int, float] = {}
    bends: dict[Edge, list[tuple[int, float]]] = {}
    top = 0.0
    for boxes in components(list(column), [edge for edge in edges if edge[0] not in apart]):
        inside = set(boxes)
        mine = [edge for edge in edges if edge[0] in inside and edge[1] in inside]
        layers = Layers({box: column[box] for box in boxes}, mine)
        layers.untangle()
        layers.move()
        # Heights of a component may begin below 0: it is moved to where the one before has ended.
        lowest = min(layers.height.values())
        for box in boxes:
            heights[box] = top + layers.height[box] - lowest
        for source, target in mine:
            passed = range(column[source] + 1, column[target])
            if passed:
                bends[source, target] = [(at, top + layers.height[source, at] - lowest) for at in passed]
        top += max(layers.height.values()) - lowest + 1 + GAP
    return heights, bends


def components(boxes: Sequence[int], edges: Iterable[Edge]) -> list[list[int]]:
    """Return the connected components as lists of boxes, in the order of their first boxes.

    Examples
    --------
    >>> components([0, 1, 2, 3], [(0, 2), (1, 3)])
    [[0, 2], [1, 3]]
    """
    parent = {box: box for box in boxes}

    def root(box: int) -> int:
        while parent[box] != box:
            # Halve the way to the root, which all later questions save.
            parent[box] = parent[parent[box]]
            box = parent[box]
        return box

    for source, target in edges:
        parent[root(target)] = root(source)
    found: dict[int, list[int]] = {}
    for box in boxes:
        found.setdefault(root(box), []).append(box)
    return list(found.values())


class Layers:
    """One connected component: its boxes, and the passages of its arrows through columns, in an order.

    ``rows`` is column -> items from the top; `move` fills ``height``, item -> height.
    """

    def __init__(self, column: Mapping[int, int], edges: Sequence[Edge]) -> None:
        self.before: dict[Item, list[Item]] = defaultdict(list)
        self.after: dict[Item, list[Item]] = defaultdict(list)
        self.height: dict[Item, float] = {}
        last = dict(column)
        for source, target in edges:
            # All arrows of a box share its passages, which reach to the column before the last reader.
            last[source] = max(last[source], column[target] - 1)

        def item(box: int, at: int) -> Item:
            return box if at == column[box] else (box, at)

        rows: dict[int, list[Item]] = defaultdict(list)
        rank = walk(list(column), edges)
        for box in sorted(column, key=rank.__getitem__):
            for at in range(column[box], last[box] + 1):
                rows[at].append(item(box, at))
                if at > column[box]:
                    self.link(item(box, at - 1), item(box, at))
        for source, target in edges:
            self.link(item(source, column[target] - 1), target)
        self.rows = dict(sorted(rows.items()))

    def link(self, source: Item, target: Item) -> None:
        """Note in ``after`` and ``before`` that an arrow leads from ``source`` to ``target``.

        Both are items of neighbouring columns, ``source`` in the left one.
        """
        self.after[source].append(target)
        self.before[target].append(source)

    def untangle(self) -> None:
        """Reorder the items of each column, in ``rows``, so that fewer arrows cross.

        Up to 8 sweeps sort each column by the mean position of neighbours, of operands and of readers in
        turn. The order with the fewest crossings is kept, so there are never more than before.
        """
        # A sweep may also make things worse, so the best order so far is kept.
        best = dict(self.rows)
        least = self.crossings()
        for sweep in range(SWEEPS):
            if not least:
                break
            # Even sweeps go from left to right and look at operands, odd ones back and look at readers.
            neighbours = self.after if sweep % 2 else self.before
            rank = self.ranks()
            for at in list(self.rows)[:: -1 if sweep % 2 else 1]:
                wanted = {x: mean(rank, neighbours[x], rank[x]) for x in self.rows[at]}
                self.rows[at] = sorted(self.rows[at], key=wanted.__getitem__)
                rank.update(zip(self.rows[at], range(len(wanted)), strict=True))
            crossings = self.crossings()
            if crossings < least:
                best = dict(self.rows)
                least = crossings
        self.rows = best

    def ranks(self) -> dict[Item, float]:
        """Return item -> its position in its column, from 0."""
        return {item: float(i) for row in self.rows.values() for i, item in enumerate(row)}

    def crossings(self) -> int:
        """Return the number of pairs of arrows that cross, in the present order."""
        rank = self.ranks()
        total = 0
        for row in self.rows.values():
            seen: list[float] = []
            for item in row:
                # An arrow crosses those from higher items that end below it. Arrows of one item do not
                # cross each other, so its ends join the list after all of them were counted.
                ends = sorted(rank[other] for other in self.after[item])
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def move(self) -> None:
        """Fill ``height``, item -> height of its middle, keeping the order of each column.

        Sweeps move each item as near to the mean height of its neighbours as it can be without overlap.
        """
        self.height = self.ranks()
        for sweep in range(SWEEPS + 1):  # the last one puts readers in the middle of their operands
            neighbours = self.after if sweep % 2 else self.before
            for at in list(self.rows)[:: -1 if sweep % 2 else 1]:
                row = self.rows[at]
                wanted = [mean(self.height, neighbours[x], self.height[x]) for x in row]
                self.height.update(zip(row, spread(wanted, list(map(width, row))), strict=True))


def width(item: Item) -> float:
    """Return the height that an item takes: 1.0 for a box, 0.5 for the passage of an arrow."""
    return 0.5 if isinstance(item, tuple) else 1.0


def walk(boxes: Sequence[int], edges: Sequence[Edge]) -> dict[int, int]:
    """Return box -> the step, from 0, at which a walk from the last readers to their operands leaves it.

    A box is left after all of its operands.

    Examples
    --------
    >>> walk([0, 1, 2, 3], [(1, 3), (0, 3), (2, 3)])
    {1: 0, 0: 1, 2: 2, 3: 3}
    """
    operands: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        operands[target].append(source)
    read = {source for source, _ in edges}
    left: dict[int, int] = {}
    stack = [(box, False) for box in reversed(boxes) if box not in read]
    entered = set()
    while stack:
        box, done = stack.pop()
        if done:
            left[box] = len(left)
        elif box not in entered:
            entered.add(box)
            # It is left when all operands, which come off the stack before it, were left.
            stack.append((box, True))
            stack += [(source, False) for source in reversed(operands[box])]
    return left


def mean(values: Mapping[Item, float], items: Sequence[Item], otherwise: float) -> float:
    """Return the mean of ``values[item]`` over ``items``, or ``otherwise`` if there are no items."""
    return sum(values[item] for item in items) / len(items) if items else otherwise


def spread(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return centres of items, as near to ``wanted`` as their order and ``widths`` allow without overlap.

    Least squares under an order: pool adjacent violators (Ayer et al. 1955).

    Examples
    --------
    >>> spread([0.0, 0.0, 5.0], [1.0, 1.0, 1.0])
    [-0.5, 0.5, 5.0]
    """
    offsets = [0.0]
    for a, b in pairwise(widths):
        offsets.append(offsets[-1] + (a + b) / 2)
    pools: list[tuple[float, int]] = []  # mean shift, members
    for want, offset in zip(wanted, offsets, strict=True):
        # Less the room that all items before it take, a centre only has to be no less than the one before
        # it.
        shift = want - offset
        members = 1
        # Neighbours that want to pass each other share a pool, and stand at the mean of their wishes.
        while pools and pools[-1][0] > shift:
            other, count = pools.pop()
            shift = (shift * members + other * count) / (members + count)
            members += count
        pools.append((shift, members))
    shifts = [shift for shift, members in pools for _ in range(members)]
    return [shift + offset for shift, offset in zip(shifts, offsets, strict=True)]
