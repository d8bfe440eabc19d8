"""Packing the calls of a loop into tiles of equal width, in an order in which each finds its operands done.

Calls are taken by the length of the longest path from them to the end of the loop, the longest first (Hu,
"Parallel sequencing and assembly line problems", 1961): for trees no order needs fewer tiles. A tile
holds calls of one kernel. The other candidate is the order of the schedule with its launches divided into
tiles; the order with fewer tiles wins.

A chain of four calls and four calls that no other call reads, in tiles of two rows:

    schedule    a1 b c d e | a2 | a3 | a4         8 calls, 4 launches
    divided     a1 b | c d | e . | a2 . | a3 . | a4 .         6 tiles
    longest     a1 b | a2 c | a3 d | a4 e                     4 tiles

An executor without a switch has the kernels take turns in a fixed cycle: by the longest path again, and a
tile stays empty where its kernel has no call whose operands are done.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import Integers, ranges, starts
from multifold.program.layout import Program

Tiles = list[tuple[int, Integers]]
"""Kernel (its entry in `Phase.kernels`) and rows of each tile, in order."""


class Packing(NamedTuple):
    """Calls in tiles.

    Attributes
    ----------
    kernel : int64 array of shape ``(tiles,)``
        The kernel of each tile, an entry of `Phase.kernels`.
    rows : list of int64 arrays
        For each kernel the rows in its tiles, -1 where a tile is not full; the rows of a tile come first.
    counts : list of int
        The tiles of each kernel.
    """

    kernel: Integers
    rows: list[Integers]
    counts: list[int]


class SlabOwners:
    """Which call wrote each row of the slabs, and so which calls read which.

    Attributes
    ----------
    kernel, row : lists of int64 arrays
        For each slab the kernel (-1 for given rows) that wrote each of its rows, and the kernel's row.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        # Each row of a slab is a row of some source, so every entry is written below.
        self.kernel = [np.zeros(int(n), np.int64) for n in program.sizes]
        self.row = [np.zeros(int(n), np.int64) for n in program.sizes]
        for number, source in enumerate(program.form.sources):
            # Sources come in the order of their rows: write up to the end of the slab, and let the next
            # source write over what is its own.
            low = int(program.starts[number])
            self.kernel[source.slab][low:] = source.kernel
            self.row[source.slab][low:] = np.arange(len(self.row[source.slab]) - low)

    def reads(self, kernel: int) -> tuple[Integers, Integers, Integers]:
        """Return all rows that the calls of a kernel read, as three int64 arrays with one entry a read.

        They hold the row of the reading call, the kernel that is read (-1 for given rows), and its row.
        """
        found = [np.zeros((3, 0), np.int64)]
        operands = self.program.form.kernels[kernel].operands
        for operand, column in zip(operands, self.program.columns[kernel], strict=True):
            if not operand.reads:
                continue
            if operand.role == "rows":
                reader = np.arange(len(column))
                rows = column
            else:
                lengths = np.diff(column.splits)
                reader = np.repeat(np.arange(len(lengths)), lengths)
                rows = column.addresses
            slab = operand.index
            found.append(np.stack([reader, self.kernel[slab][rows], self.row[slab][rows]]))
        reader, owner, row = np.concatenate(found, axis=1)
        return reader, owner, row


def ragged_lengths(program: Program, kernel: int) -> list[Integers]:
    """Return one array for each ragged operand of a kernel: how many members each row of the kernel has.

    Ragged operands that read no slab are left out.
    """
    pairs = zip(program.form.kernels[kernel].operands, program.columns[kernel], strict=True)
    ragged = (column for operand, column in pairs if operand.role == "ragged" and operand.reads)
    return [np.diff(column.splits) for column in ragged]


def rows_of(launches: np.ndarray, entry: int) -> tuple[int, int]:
    """Return the first row of a kernel that the launches of a phase compute, and the row after the last.

    ``launches`` are lines (entry of the kernel, first row, rows), and the rows of one kernel follow each
    other. Without a launch of the kernel it is ``(0, 0)``.

    Examples
    --------
    >>> rows_of(np.array([[0, 0, 2], [1, 0, 7], [0, 2, 1]]), 0)
    (0, 3)
    """
    own = launches[launches[:, 0] == entry]
    return (int(own[0, 1]), int(own[-1, 1] + own[-1, 2])) if len(own) else (0, 0)


class LoopCalls:
    """The calls of one loop, numbered kernel by kernel.

    Parameters
    ----------
    owners : SlabOwners
        Which calls read which.
    phase : int
        The loop.
    launches : array of shape ``(launches, 3)``
        Its launches in the ragged program.
    tile : int
        Rows of a tile.
    edges : tuple of tuples
        For each kernel and ragged operand the members of a tile.

    Attributes
    ----------
    begin : int64 array
        The number of the first call of each kernel, and how many calls there are.
    first : list of int
        The first row of each kernel in this loop.
    bound : int
        No packing has fewer tiles.
    """

    def __init__(
        self,
        owners: SlabOwners,
        phase: int,
        launches: np.ndarray,
        tile: int,
        edges: tuple[tuple[int, ...], ...],
    ) -> None:
        program = owners.program
        self.kernels = program.form.phases[phase].kernels
        self.launches = launches
        spans = [rows_of(launches, entry) for entry in range(len(self.kernels))]
        self.first = [low for low, _ in spans]
        counts = np.array([high - low for low, high in spans], np.int64)
        self.begin = starts(counts)
        self.lengths = [
            [lengths[low:high] for lengths in ragged_lengths(program, kernel)]
            for kernel, (low, high) in zip(self.kernels, spans, strict=True)
        ]
        # Members that pad a ragged tile must belong to a row that pads it, so such a tile has one row less.
        self.tile = tile
        self.edges = edges
        self.width = [tile - bool(own_edges) for own_edges in edges]
        self.bound = sum(-(-int(n) // width) for n, width in zip(counts, self.width, strict=True))
        self.sources, self.readers = self.pairs(owners)

    def pairs(self, owners: SlabOwners) -> tuple[Integers, Integers]:
        """Return the reads between calls of the loop: the calls that are read, and those that read them.

        Both are int64 arrays of the numbers that calls have in the loop, with an entry for each read.
        """
        sources = [np.zeros(0, np.int64)]
        readers = [np.zeros(0, np.int64)]
        # There is one entry more than kernels: given rows have the owner -1, which looks up the last one,
        # again -1.
        entry_of = np.full(len(owners.program.form.kernels) + 1, -1)
        entry_of[list(self.kernels)] = np.arange(len(self.kernels))
        first = np.array(self.first)
        size = np.diff(self.begin)
        for entry, kernel in enumerate(self.kernels):
            reader, owner, row = owners.reads(kernel)
            reader = reader - self.first[entry]
            read = entry_of[owner]
            row = row - first[read]
            # A kernel may be in several loops (`no_batch` divides one), so its rows may be of another loop.
            inside = (read >= 0) & (row >= 0) & (reader >= 0) & (reader < size[entry])
            sources.append(self.begin[read[inside]] + row[inside])
            readers.append(self.begin[entry] + reader[inside])
        return np.concatenate(sources), np.concatenate(readers)

    def packed(self, turn: tuple[int, ...] = ()) -> Packing:
        """Put the calls into tiles, in the better of two orders: the schedule's, or longest path first.

        With a ``turn`` of several kernels, each tile is of the kernel whose turn it is, and may be empty.
        """
        # With one kernel every tile is its turn, so the better order is a turn as well.
        if len(set(turn)) > 1:
            tiles = self.longest_first(turn)
        else:
            tiles = self.divided()
            # Of two equal orders `min` takes the first, that of the schedule.
            if len(tiles) > self.bound:
                tiles = min(tiles, self.longest_first(), key=len)
        kernel = np.array([entry for entry, _ in tiles], np.int64)
        rows = []
        for number in range(len(self.kernels)):
            own = [calls for entry, calls in tiles if entry == number]
            table = np.full((len(own), self.tile), -1)
            for i, calls in enumerate(own):
                table[i, : len(calls)] = calls
            rows.append(table.ravel())
        return Packing(kernel, rows, np.bincount(kernel, minlength=len(rows)).tolist())

    def divided(self) -> Tiles:
        """Divide the launches of the loop into tiles, in the order of the schedule.

        Returns a pair for each tile: the kernel, an entry of `Phase.kernels`, and the tile's rows of that
        kernel.
        """
        tiles: Tiles = []
        for entry, first, rows in self.launches.tolist():
            calls = np.arange(first, first + rows)
            while len(calls):
                count = self.fitting(entry, calls - self.first[entry])
                tiles.append((entry, calls[:count]))
                calls = calls[count:]
        return tiles

    def fitting(self, entry: int, calls: Integers) -> int:
        """Return how many of ``calls``, from the first on, fit into one tile of the kernel ``entry``.

        Calls are counted from 0 among those of the kernel in this loop. One always fits: `members_of`
        leaves room for the longest call where all other rows are padding.
        """
        count = min(len(calls), self.width[entry])
        for lengths, edges in zip(self.lengths[entry], self.edges[entry], strict=True):
            # Each row that pads the tile has at least one member, too.
            used = np.cumsum(lengths[calls[:count]]) + self.tile - 1 - np.arange(count)
            over = np.flatnonzero(used > edges)
            count = int(over[0]) if len(over) else count
        return count

    def heights(self) -> Integers:
        """Return for each call of the loop the number of calls on the longest path that begins with it."""
        height = np.ones(int(self.begin[-1]), np.int64)
        launch = np.zeros(len(height), np.int64)
        for number, (entry, first, rows) in enumerate(self.launches.tolist()):
            low = int(self.begin[entry]) + first - self.first[entry]
            launch[low : low + rows] = number
        # From the last launch to the first: the heights of a launch's readers are final by then.
        order = np.argsort(-launch[self.readers], kind="stable")
        sources = self.sources[order]
        readers = self.readers[order]
        ends = np.flatnonzero(np.diff(launch[readers])) + 1
        for low, high in zip([0, *ends.tolist()], [*ends.tolist(), len(order)], strict=True):
            np.maximum.at(height, sources[low:high], height[readers[low:high]] + 1)
        return height

    def longest_first(self, turn: tuple[int, ...] = ()) -> Tiles:
        """Fill tile after tile with calls whose operands are done, those with the longest path ahead first.

        Returns tiles as `divided` does. Without a ``turn`` each tile is of the kernel with the longest path
        ahead. A ``turn`` names every kernel that is called, one for each tile of a turn, and a tile may
        have no call.
        """
        total = int(self.begin[-1])
        kernels = range(len(self.kernels))
        height = self.heights()
        waiting = np.bincount(self.readers, minlength=total)  # operands of each call that are not done
        order = np.argsort(self.sources, kind="stable")
        readers = self.readers[order]
        begin = starts(np.bincount(self.sources, minlength=total))
        rank = np.empty(total, np.int64)  # by height; calls of one height in the order of recording
        rank[np.argsort(-height, kind="stable")] = np.arange(total)
        kernel = np.repeat(np.array(kernels), np.diff(self.begin))
        ready = [by_rank(np.flatnonzero((waiting == 0) & (kernel == entry)), rank) for entry in kernels]
        tiles: Tiles = []
        done = 0
        while done < total:
            if turn:
                entry = turn[len(tiles) % len(turn)]
            else:
                # This takes the kernel whose first call has the longest way to go, and of equal ones the
                # one with most calls.
                entry = max(
                    (entry for entry, calls in enumerate(ready) if len(calls)),
                    key=lambda entry: (height[ready[entry][0]], len(ready[entry])),
                )
            calls = ready[entry]
            low = int(self.begin[entry])
            count = self.fitting(entry, calls - low)
            taken = calls[:count]
            ready[entry] = calls[count:]
            tiles.append((entry, taken - low + self.first[entry]))
            done += count
            reached = readers[ranges(begin[taken], begin[taken + 1] - begin[taken])]
            # A call that reads two calls of this tile is reached twice: `at` counts both, `unique` keeps
            # one.
            np.subtract.at(waiting, reached, 1)
            fresh = np.unique(reached[waiting[reached] == 0])
            for other in kernels:
                own = fresh[kernel[fresh] == other] if len(kernels) > 1 else fresh
                if len(own):
                    ready[other] = by_rank(np.concatenate([ready[other], own]), rank)
        return tiles


def turns_like(packing: Packing) -> list[tuple[int, ...]]:
    """Return turns to choose from, in which kernels have tiles in about the same ratio as in a packing.

    A turn has an entry of `Phase.kernels` for each of its tiles. There is one turn for each number in
    `TURNS`: that is how many of its tiles the kernel with the most tiles has. Equal turns are returned
    once.

    Examples
    --------
    >>> turns_like(Packing(np.array([1, 0, 1, 1]), [], [1, 3]))
    [(1, 0), (1, 1, 0), (1, 1, 1, 0)]
    """
    # A minibatch without a call in this loop has no order, but its form needs turns all the same.
    order = list(dict.fromkeys(packing.kernel.tolist())) or list(range(len(packing.counts)))
    found = []
    for most in TURNS if len(order) > 1 else (1,):
        turns = max(-(-max(packing.counts) // most), 1)
        tiles = [max(-(-packing.counts[entry] // turns), 1) for entry in order]
        found.append(tuple(entry for entry, n in zip(order, tiles, strict=True) for _ in range(n)))
    return list(dict.fromkeys(found))


TURNS = (1, 2, 3, 4)
"""How many tiles of the kernel that has most of them are tried in one turn."""


def by_rank(calls: Integers, rank: Integers) -> Integers:
    """Sort calls by ``rank[call]``, ascending."""
    return calls[np.argsort(rank[calls])]
