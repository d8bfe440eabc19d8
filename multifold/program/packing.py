"""Packing the calls of a loop into tiles of equal width, in an order in which each finds its operands done.

Calls are taken by the number of calls on the longest path behind them, the longest first (Hu, "Parallel
sequencing and assembly line problems", 1961): for trees that is optimal. A tile holds calls of one
kernel. The launches of the schedule, cut into tiles, are the other candidate; the fewer tiles win.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from multifold._schedule.columns import Integers, ranges, starts
from multifold.program.layout import Program


class Packing(NamedTuple):
    """Calls in tiles.

    Attributes
    ----------
    kernel : int64 array of shape ``(tiles,)``
        The kernel of each tile, by its place in the phase.
    rows : list of int64 arrays
        For each kernel the rows in its tiles, -1 where a tile is not full.
    counts : list of int
        The tiles of each kernel.
    """

    kernel: Integers
    rows: list[Integers]
    counts: list[int]


class Readings:
    """Which rows of kernels the rows of kernels read.

    Attributes
    ----------
    owner, row : lists of int64 arrays
        For each slab the kernel (-1 for given rows) and the row behind each of its rows.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.owner = [np.full(int(n), -1) for n in program.sizes]
        self.row = [np.zeros(int(n), np.int64) for n in program.sizes]
        for number, source in enumerate(program.form.sources):
            low = int(program.starts[number])  # up to the next source, which writes over the rest
            self.owner[source.slab][low:] = source.kernel
            self.row[source.slab][low:] = np.arange(len(self.row[source.slab]) - low)

    def of(self, kernel: int) -> tuple[Integers, Integers, Integers]:
        """Return all reads of a kernel: its row, and the kernel and the row that it reads."""
        form, program = self.program.form, self.program
        found = [np.zeros((3, 0), np.int64)]
        for operand, column in zip(form.kernels[kernel].operands, program.columns[kernel], strict=True):
            if operand.index < 0 or operand.kind not in ("rows", "ragged"):
                continue
            if operand.kind == "rows":
                reader, rows = np.arange(len(column)), column
            else:
                lengths = np.diff(column.splits)
                reader, rows = np.repeat(np.arange(len(lengths)), lengths), column.addresses
            found.append(np.stack([reader, self.owner[operand.index][rows], self.row[operand.index][rows]]))
        reader, owner, row = np.concatenate(found, axis=1)
        return reader, owner, row


def pack(
    readings: Readings, phase: int, launches: np.ndarray, tile: int, edges: tuple[tuple[int, ...], ...]
) -> Packing:
    """Pack the calls of a loop.

    Parameters
    ----------
    readings : Readings
        What reads what.
    phase : int
        The loop.
    launches : array of shape ``(launches, 3)``
        Its launches in the ragged program.
    tile : int
        Rows of a tile.
    edges : tuple of tuples
        For each kernel and ragged operand the members of a tile.
    """
    loop = Loop(readings, phase, launches, tile, edges)
    cut = loop.cut()
    if len(cut) > loop.bound:
        critical = loop.critical()
        cut = critical if len(critical) < len(cut) else cut
    kernel = np.array([place for place, _ in cut], np.int64)
    rows = []
    for place in range(len(edges)):
        own = [calls for kernel_place, calls in cut if kernel_place == place]
        table = np.full((len(own), tile), -1)
        for i, calls in enumerate(own):
            table[i, : len(calls)] = calls
        rows.append(table.ravel())
    return Packing(kernel, rows, np.bincount(kernel, minlength=len(edges)).tolist())


Tiles = list[tuple[int, Integers]]
"""Kernel (by its place in the phase) and rows of each tile, in order."""


class Loop:
    """The calls of one loop, numbered kernel by kernel.

    Attributes
    ----------
    begin : int64 array
        Where the calls of each kernel begin.
    first : list of int
        The first row of each kernel in this loop.
    """

    def __init__(
        self,
        readings: Readings,
        phase: int,
        launches: np.ndarray,
        tile: int,
        edges: tuple[tuple[int, ...], ...],
    ) -> None:
        program = readings.program
        self.kernels = program.form.phases[phase].kernels
        self.launches = launches
        places = range(len(self.kernels))
        own = [launches[launches[:, 0] == place] for place in places]
        self.first = [int(table[0, 1]) if len(table) else 0 for table in own]
        counts = np.array([int(table[:, 2].sum()) for table in own], np.int64)
        self.begin = starts(counts)
        self.lengths, self.budget = [], edges
        for place in places:
            kernel, low = self.kernels[place], self.first[place]
            columns = zip(program.form.kernels[kernel].operands, program.columns[kernel], strict=True)
            self.lengths.append(
                [
                    np.diff(column.splits)[low : low + int(counts[place])]
                    for operand, column in columns
                    if operand.kind == "ragged" and operand.index >= 0
                ]
            )
        self.tile, self.width = tile, [tile - bool(budget) for budget in edges]
        self.bound = sum(-(-int(n) // width) for n, width in zip(counts, self.width, strict=True))
        self.read(readings)

    def read(self, readings: Readings) -> None:
        """Note which calls of the loop read which others."""
        sources, readers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        place_of = np.full(len(readings.program.form.kernels) + 1, -1)
        place_of[list(self.kernels)] = np.arange(len(self.kernels))
        first = np.array(self.first)
        for place, kernel in enumerate(self.kernels):
            reader, owner, row = readings.of(kernel)
            reader = reader - self.first[place]
            place_read = place_of[owner]
            row = row - first[place_read]
            size = np.diff(self.begin)
            inside = (place_read >= 0) & (row >= 0) & (row < size[place_read])
            inside &= (reader >= 0) & (reader < size[place])
            sources.append(self.begin[place_read[inside]] + row[inside])
            readers.append(self.begin[place] + reader[inside])
        self.sources, self.readers = np.concatenate(sources), np.concatenate(readers)

    def cut(self) -> Tiles:
        """Return the launches of the loop, cut into tiles."""
        tiles: Tiles = []
        for place, first, rows in self.launches.tolist():
            calls = np.arange(first, first + rows)
            while len(calls):
                count = self.fitting(place, calls - self.first[place])
                tiles.append((place, calls[:count]))
                calls = calls[count:]
        return tiles

    def fitting(self, place: int, calls: Integers) -> int:
        """Return how many of some calls of a kernel fit into one tile."""
        count = min(len(calls), self.width[place])
        for lengths, budget in zip(self.lengths[place], self.budget[place], strict=True):
            # Each row that pads has a member, too.
            used = np.cumsum(lengths[calls[:count]]) + self.tile - 1 - np.arange(count)
            over = np.flatnonzero(used > budget)
            count = int(over[0]) if len(over) else count
        return count

    def heights(self) -> Integers:
        """Return the number of calls on the longest path that begins at each call."""
        height = np.ones(int(self.begin[-1]), np.int64)
        launch = np.zeros(len(height), np.int64)
        for number, (place, first, rows) in enumerate(self.launches.tolist()):
            low = int(self.begin[place]) + first - self.first[place]
            launch[low : low + rows] = number
        order = np.argsort(-launch[self.readers], kind="stable")
        sources, readers = self.sources[order], self.readers[order]
        ends = np.flatnonzero(np.diff(launch[readers])) + 1
        for low, high in zip([0, *ends.tolist()], [*ends.tolist(), len(order)], strict=True):
            np.maximum.at(height, sources[low:high], height[readers[low:high]] + 1)
        return height

    def critical(self) -> Tiles:
        """Return tiles filled by the longest path behind each call, the longest first."""
        total = int(self.begin[-1])
        height = self.heights()
        waiting = np.bincount(self.readers, minlength=total)
        order = np.argsort(self.sources, kind="stable")
        readers = self.readers[order]
        begin = starts(np.bincount(self.sources, minlength=total))
        rank = np.empty(total, np.int64)  # by height; calls of one height in the order of recording
        rank[np.argsort(-height, kind="stable")] = np.arange(total)
        kernel = np.repeat(np.arange(len(self.kernels)), np.diff(self.begin))
        ready = [
            by_rank(np.flatnonzero((waiting == 0) & (kernel == place)), rank)
            for place in range(len(self.kernels))
        ]
        tiles: Tiles = []
        done = 0
        while done < total:
            place = max(
                (place for place, calls in enumerate(ready) if len(calls)),
                key=lambda place: (height[ready[place][0]], len(ready[place])),
            )
            calls, low = ready[place], int(self.begin[place])
            count = self.fitting(place, calls - low)
            taken, ready[place] = calls[:count], calls[count:]
            tiles.append((place, taken - low + self.first[place]))
            done += count
            reached = readers[ranges(begin[taken], begin[taken + 1] - begin[taken])]
            np.subtract.at(waiting, reached, 1)
            fresh = np.unique(reached[waiting[reached] == 0])
            for number in range(len(self.kernels)) if len(self.kernels) > 1 else (0,):
                own = fresh[kernel[fresh] == number]
                if len(own):
                    ready[number] = by_rank(np.concatenate([ready[number], own]), rank)
        return tiles


def by_rank(calls: Integers, rank: Integers) -> Integers:
    """Return calls by their rank."""
    return calls[np.argsort(rank[calls])]
