"""From a ragged program to a tiled one: every size is one of few, so that few programs are compiled.

All launches of a loop become *tiles* of the same number of rows. They are not those of the schedule: calls
are packed into tiles by the longest path behind them (Hu 1961), which for trees gives the fewest tiles
that there can be, so that hardly more rows are computed than there are. What pads a tile repeats a real
row, so its values and gradients are finite, and nobody reads it.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from multifold._schedule.columns import Integers, ranges, starts
from multifold.program.layout import Form, Operand, Program, RaggedColumn
from multifold.program.packing import Packing, Readings, pack

OVERHEAD = 24
"""What a tile costs beside its rows, in rows; by which the width of tiles is chosen."""

WIDTHS = (8, 16, 32, 64, 128, 256)
"""The rows that a tile may have."""

FEWEST = 4
"""The tiles that a loop has at least."""

CLOSE = 1.5
"""A loop keeps the tiles of the program before unless others are that many times cheaper."""

NARROW = (16,)
"""The same, for a loop that results which are read whole cut into pieces of few launches."""


class LoopSize(NamedTuple):
    """The sizes of a loop: rows of a tile, tiles, and for each kernel its tiles and ragged edges."""

    tile: int
    launches: int
    kernels: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]


class OnceSize(NamedTuple):
    """The sizes of a phase of one launch: its rows, and the edges of its ragged operands."""

    rows: int
    edges: tuple[int, ...]


class Sizes(NamedTuple):
    """All sizes of a tiled program, by phase; of given blocks, and of the results."""

    phases: tuple[LoopSize | OnceSize, ...]
    blocks: tuple[int, ...]
    groups: tuple[int, ...]


def bucket(count: int, least: int = 8) -> int:
    """Return the size to pad to, of four sizes for each power of two.

    Examples
    --------
    >>> [bucket(count) for count in (1, 9, 100, 1000, 1030)]
    [8, 10, 112, 1024, 1280]
    """
    step = 1 << max((count - 1).bit_length() - 3, 0)
    return max(-(-count // step) * step, least)


def members_of(tile: int, lengths: Integers) -> int:
    """Return how many members a tile has: enough for as many calls, or for the longest and what pads."""
    most, mean = int(lengths.max(initial=0)), int(lengths.sum()) / max(len(lengths), 1)
    return bucket(max(most + tile - 1, round(tile * mean) + 1))


class Tiler:
    """A ragged program in the course of being tiled.

    Parameters
    ----------
    program : Program
        Ragged.
    pad : bool
        Pad the results, too: by repeating the first row of each.
    """

    def __init__(self, program: Program, *, pad: bool = False) -> None:
        self.program = program
        self.pad = pad
        self.form = program.form
        self.readings = Readings(program)
        self.packings: dict[tuple[int, int, tuple[tuple[int, ...], ...]], Packing] = {}
        bounds = program.bounds.tolist()
        self.launches = [program.launches[a:b] for a, b in pairwise(bounds)]

    # ---- sizes -----------------------------------------------------------------------------------

    def packed(self, phase: int, tile: int, edges: tuple[tuple[int, ...], ...]) -> Packing:
        """Return the calls of a loop in tiles."""
        key = phase, tile, edges
        if key not in self.packings:
            self.packings[key] = pack(self.readings, phase, self.launches[phase], tile, edges)
        return self.packings[key]

    def lengths(self, phase: int, place: int) -> list[Integers]:
        """Return the lengths of each ragged operand of a kernel of a phase, for its rows there."""
        kernel = self.form.phases[phase].kernels[place]
        low, high = self.rows_of(phase, place)
        return [lengths[low:high] for lengths in self.all_lengths(kernel)]

    def all_lengths(self, kernel: int) -> list[Integers]:
        """Return the lengths of each ragged operand of a kernel."""
        pairs = zip(self.form.kernels[kernel].operands, self.program.columns[kernel], strict=True)
        return [np.diff(c.splits) for o, c in pairs if o.kind == "ragged" and o.index >= 0]

    def in_one_piece(self, phase: int) -> bool:
        """Return whether the kernels of a loop run in no other phase."""
        mine = set(self.form.phases[phase].kernels)
        return sum(bool(mine & set(other.kernels)) for other in self.form.phases) == 1

    def rows_of(self, phase: int, place: int) -> tuple[int, int]:
        """Return the range of rows of a kernel that a phase computes."""
        table = self.launches[phase]
        own = table[table[:, 0] == place]
        return (int(own[0, 1]), int(own[-1, 1] + own[-1, 2])) if len(own) else (0, 0)

    def own(self, like: Sizes | None = None) -> Sizes:
        """Return the sizes that fit this program, with the tiles of others unless they are far off."""
        phases: list[LoopSize | OnceSize] = []
        for number, phase in enumerate(self.form.phases):
            if phase.loop:
                before = like.phases[number] if like is not None else None
                phases.append(self.loop_size(number, before.tile if isinstance(before, LoopSize) else None))
            else:
                phases.append(self.once_size(number))
        return Sizes(tuple(phases), self.blocks, self.groups)

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """The rows of given blocks."""
        return tuple(
            bucket(len(block)) if isinstance(block, np.ndarray) else block.shape[0]
            for block in self.program.blocks
        )

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The rows of the results."""
        counts = [0 if rows is None else len(rows) for rows in self.program.groups]
        return tuple(bucket(count) if self.pad and count else count for count in counts)

    def once_size(self, number: int) -> OnceSize:
        """Return the sizes of a phase of one launch."""
        edges = [int(lengths.sum()) for lengths in self.lengths(number, 0)]
        if self.form.kernels[self.form.phases[number].kernels[0]].solo:
            return OnceSize(1, tuple(edges))
        rows = int(self.launches[number][:, 2].sum())
        size = bucket(rows + bool(edges))
        return OnceSize(size, tuple(bucket(edge + size - rows) for edge in edges))

    def loop_size(self, number: int, before: int | None) -> LoopSize:
        """Return the sizes of a loop: the width that makes it cheapest, then as few tiles as fit."""
        places = range(len(self.form.phases[number].kernels))
        counts = [high - low for low, high in (self.rows_of(number, place) for place in places)]
        levels = len(self.launches[number])
        lengths = [self.all_lengths(kernel) for kernel in self.form.phases[number].kernels]

        def expected(tile: int) -> int:
            return max(levels, sum(-(-n // tile) for n in counts)) * (tile + OVERHEAD)

        tile = min(WIDTHS if self.in_one_piece(number) else NARROW, key=expected)
        if before is not None and expected(before) < CLOSE * expected(tile):
            tile = before
        edges = tuple(tuple(members_of(tile, x) for x in own) for own in lengths)
        packing = self.packed(number, tile, edges)
        tiles = tuple(bucket(count, FEWEST) for count in packing.counts)
        return LoopSize(tile, bucket(len(packing.kernel), FEWEST), tiles, edges)

    def fits(self, sizes: Sizes) -> bool:
        """Return whether this program fits into some sizes."""
        if not (self.pad or sizes.groups == self.groups):
            return False
        if not covers(sizes.groups, self.groups) or not covers(sizes.blocks, self.blocks):
            return False
        return all(
            self.loop_fits(number, size) if isinstance(size, LoopSize) else self.once_fits(number, size)
            for number, size in enumerate(sizes.phases)
        )

    def once_fits(self, number: int, size: OnceSize) -> bool:
        """Return whether a phase of one launch fits into some sizes."""
        if self.form.kernels[self.form.phases[number].kernels[0]].solo:
            return size == self.once_size(number)
        rows = int(self.launches[number][:, 2].sum())
        # Each row that pads has a member, too.
        need = tuple(int(x.sum()) + size.rows - rows for x in self.lengths(number, 0))
        return size.rows >= rows + bool(need) and covers(size.edges, need)

    def loop_fits(self, number: int, size: LoopSize) -> bool:
        """Return whether a loop fits into some sizes."""
        for place, edges in enumerate(size.edges):
            longest = [int(x.max(initial=0)) for x in self.lengths(number, place)]
            if any(edge < most + size.tile - 1 for edge, most in zip(edges, longest, strict=True)):
                return False
        packing = self.packed(number, size.tile, size.edges)
        return len(packing.kernel) <= size.launches and covers(size.kernels, tuple(packing.counts))

    # ---- the tiled program -----------------------------------------------------------------------

    def tiled(self, sizes: Sizes) -> Program:
        """Return the program in some sizes, which it fits into."""
        form, program = self.form, self.program
        count = len(form.kernels)
        placed: list[list[Integers]] = [[] for _ in range(count)]  # old rows by new row, -1 pads
        edges: list[tuple[int, ...]] = [()] * count
        tile = [0] * count
        done = [0] * count
        tables, phases = [], []
        for number, (phase, size) in enumerate(zip(form.phases, sizes.phases, strict=True)):
            if isinstance(size, OnceSize):
                kernel = phase.kernels[0]
                low, high = self.rows_of(number, 0)
                rows = np.full(size.rows, -1)
                rows[: high - low] = np.arange(low, high)
                table = np.array([[0, done[kernel], size.rows if high > low else 0]])
                placed[kernel].append(rows)
                tile[kernel], edges[kernel] = size.rows, size.edges
                done[kernel] += size.rows
                phases.append(phase._replace(launches=1, rows=(size.rows,)))
            else:
                packing = self.packed(number, size.tile, size.edges)
                table = np.zeros((size.launches, 3), np.int64)
                table[:, 0] = len(phase.kernels)
                table[: len(packing.kernel), 0] = packing.kernel
                table[: len(packing.kernel), 2] = size.tile
                for place, (kernel, tiles) in enumerate(zip(phase.kernels, size.kernels, strict=True)):
                    own = np.flatnonzero(table[:, 0] == place)
                    table[own, 1] = done[kernel] + size.tile * np.arange(len(own))
                    rows = np.full(tiles * size.tile, -1)
                    rows[: len(own) * size.tile] = packing.rows[place]
                    placed[kernel].append(rows)
                    tile[kernel], edges[kernel] = size.tile, size.edges[place]
                    done[kernel] += len(rows)
                rows_here = tuple(size.tile * tiles for tiles in size.kernels)
                phases.append(phase._replace(tile=size.tile, launches=size.launches, rows=rows_here))
            tables.append(table)
        rows_of = [np.concatenate(rows) if rows else np.zeros(0, np.int64) for rows in placed]
        moved = self.move(rows_of, sizes)
        operands: list[tuple[Operand, ...]] = []
        columns: list[tuple[Any, ...]] = []
        for number in range(count):
            found = self.column_tiles(number, rows_of[number], tile[number], edges[number], moved)
            operands.append(tuple(operand for operand, _ in found))
            columns.append(tuple(column for _, column in found))
        kernels = tuple(
            dataclasses.replace(kernel, operands=own, rows=len(rows))
            for kernel, own, rows in zip(form.kernels, operands, rows_of, strict=True)
        )
        groups = tuple(
            rows if rows is None else repeated(moved.rows[group.slab][rows], upto(len(rows), size), size)
            for group, rows, size in zip(form.groups, program.groups, sizes.groups, strict=True)
        )
        made = dataclasses.replace(
            form,
            kernels=kernels,
            sources=tuple(
                source._replace(rows=int(rows))
                for source, rows in zip(form.sources, moved.sizes, strict=True)
            ),
            phases=tuple(phases),
            groups=tuple(g._replace(rows=n) for g, n in zip(form.groups, sizes.groups, strict=True)),
        )
        return dataclasses.replace(
            program,
            form=made,
            starts=moved.starts.astype(np.int32),
            sizes=moved.slabs.astype(np.int32),
            bounds=starts(np.array([len(table) for table in tables])).astype(np.int32),
            launches=np.concatenate([*tables, np.zeros((0, 3), np.int64)]).astype(np.int32),
            columns=tuple(columns),
            groups=groups,
            blocks=tuple(padded(b, n) for b, n in zip(program.blocks, sizes.blocks, strict=True)),
        )

    def column_tiles(
        self, kernel: int, rows: Integers, tile: int, edges: tuple[int, ...], moved: Moved
    ) -> list[tuple[Operand, Any]]:
        """Return the operands of a kernel and their columns in tiles."""
        found: list[tuple[Operand, Any]] = []
        budget = iter(edges)
        for operand, column in zip(
            self.form.kernels[kernel].operands, self.program.columns[kernel], strict=True
        ):
            if operand.kind == "ragged":
                edge = next(budget) if operand.index >= 0 else 0
                ragged = ragged_tiles(column, rows, tile, edge, moved.rows.get(operand.index))
                found.append((dataclasses.replace(operand, edges=edge), ragged))
            elif column is None:
                found.append((operand, None))
            else:
                column = moved.rows[operand.index][column] if operand.kind == "rows" else column
                found.append((operand, repeated(column, rows, tile)))
        return found

    def move(self, rows_of: list[Integers], sizes: Sizes) -> Moved:
        """Return where the rows of slabs are now."""
        form, program = self.form, self.program
        count = np.array(
            [len(rows_of[s.kernel]) if s.kernel >= 0 else sizes.blocks[s.block] for s in form.sources],
            np.int64,
        )
        slab = np.array([source.slab for source in form.sources], np.int64)
        slabs = np.bincount(slab, count, minlength=form.slabs).astype(np.int64)
        begin = starts(count)[:-1] - starts(slabs)[slab]
        rows = {number: np.zeros(int(n), np.int32) for number, n in enumerate(program.sizes)}
        for number, source in enumerate(form.sources):
            low = int(program.starts[number])
            if source.kernel < 0:
                old = np.arange(len(program.blocks[source.block]))
                rows[source.slab][low : low + len(old)] = begin[number] + old
            else:
                real = np.flatnonzero(rows_of[source.kernel] >= 0)
                rows[source.slab][low + rows_of[source.kernel][real]] = begin[number] + real
        return Moved(rows, begin, slabs, count)


class Moved(NamedTuple):
    """Where the rows of slabs are in the tiled program.

    Attributes
    ----------
    rows : dict of int to int32 array
        For each slab the new row of each old one.
    starts, slabs, sizes : int64 arrays
        Where sources begin, the rows of slabs, and those of sources.
    """

    rows: dict[int, np.ndarray]
    starts: Integers
    slabs: Integers
    sizes: Integers


def repeated(column: np.ndarray, rows: Integers, tile: int) -> np.ndarray:
    """Return a column in tiles; what pads a tile repeats its first row."""
    if not len(column):  # nobody reads these rows; at a half few functions are singular
        half = 0.5 if column.dtype.kind == "f" else 0
        return np.full((len(rows), *column.shape[1:]), half, column.dtype)
    first = np.repeat(rows[::tile], tile)[: len(rows)] if tile else rows
    return column[np.maximum(np.where(rows < 0, first, rows), 0)]


def upto(count: int, size: int) -> Integers:
    """Return the rows ``0 .. count - 1`` and -1 for what pads them."""
    rows = np.full(size, -1)
    rows[:count] = np.arange(count)
    return rows


def padded(block: Any, rows: int) -> Any:
    """Return given rows with their last one repeated; zeros where there is none."""
    if not isinstance(block, np.ndarray) or len(block) == rows:
        return block
    if not len(block):
        return np.zeros((rows, *block.shape[1:]), block.dtype)
    return block[np.minimum(np.arange(rows), len(block) - 1)]


def ragged_tiles(
    column: RaggedColumn, rows: Integers, tile: int, edges: int, moved: np.ndarray | None
) -> RaggedColumn:
    """Return a ragged column in tiles of ``edges`` members each.

    The members that pad a tile belong to the rows that pad it, in equal shares, and repeat its first one.
    """
    tiles = len(rows) // tile if tile else 0
    owned = np.flatnonzero(rows >= 0)
    lengths = np.zeros(len(rows), np.int64)
    lengths[owned] = np.diff(column.splits)[rows[owned]]
    used = lengths.reshape(tiles, tile).sum(axis=1)
    surplus = edges - used
    spare = (rows < 0).reshape(tiles, tile).sum(axis=1)
    # Real members first: those of each tile begin where the tile begins.
    members = ranges(column.splits[rows[owned]].astype(np.int64), lengths[owned])
    place = ranges(np.arange(tiles) * edges, used)
    addresses, segments = np.zeros((2, tiles * edges), np.int32)
    values = column.addresses if moved is None else moved[column.addresses]
    addresses[place] = values[members]
    segments[place] = np.repeat(owned % tile if tile else owned, lengths[owned])
    pads = ranges(np.arange(tiles) * edges + used, surplus)
    share = ranges(np.zeros(tiles, np.int64), surplus)
    first = values[0] if len(values) else 0
    head = np.where(used > 0, addresses[np.arange(tiles) * edges] if edges else 0, first)
    addresses[pads] = np.repeat(head, surplus)
    rows_left, per_tile = np.repeat(spare, surplus), np.repeat(surplus, surplus)
    segments[pads] = np.repeat(tile - spare, surplus) + share * rows_left // np.maximum(per_tile, 1)
    counts = np.bincount(np.repeat(np.arange(tiles) * tile, edges) + segments, minlength=len(rows))
    return RaggedColumn(addresses, starts(counts).astype(np.int32), segments)


class Shelf:
    """The sizes that programs of one fold have had, so that a new one takes those if it can.

    Attributes
    ----------
    known : dict of (Form, bool) to list of Sizes
        By the ragged form, and whether results are padded. The last ones that were made are last.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Form, bool], list[Sizes]] = {}

    def choose(self, tiler: Tiler) -> Sizes:
        """Return sizes for a program: known ones if it fits into them without much waste."""
        known = self.known.setdefault((tiler.form, tiler.pad), [])
        last = known[-1] if known else None
        own = tiler.own(last)
        most = WASTE * cost(own) + SPARE
        for sizes in sorted(known, key=cost):
            if cost(sizes) > most:
                break
            if tiler.fits(sizes):
                return sizes
        if last is not None:
            grown = larger(own, last, tiler.pad)
            if grown is not None and cost(grown) <= most and tiler.fits(grown):
                own = grown
        known.append(own)
        return own


WASTE, SPARE = 2, 512
"""A program takes sizes that were compiled before if they cost at most this many times its own rows."""


def cost(sizes: Sizes) -> int:
    """Return what a program costs, in rows."""
    loops = sum(s.launches * (s.tile + OVERHEAD) for s in sizes.phases if isinstance(s, LoopSize))
    return loops + sum(s.rows for s in sizes.phases if isinstance(s, OnceSize)) + sum(sizes.blocks)


def larger(own: Sizes, last: Sizes, pad: bool) -> Sizes | None:
    """Return sizes that hold both, so that sizes only grow; None if tiles or results differ."""
    if own.groups != last.groups and not pad:
        return None
    phases: list[LoopSize | OnceSize] = []
    for a, b in zip(own.phases, last.phases, strict=True):
        if isinstance(a, OnceSize) and isinstance(b, OnceSize):
            phases.append(OnceSize(max(a.rows, b.rows), most_of(a.edges, b.edges)))
        elif isinstance(a, LoopSize) and isinstance(b, LoopSize) and a.tile == b.tile:
            edges = tuple(map(most_of, a.edges, b.edges))
            phases.append(
                LoopSize(a.tile, max(a.launches, b.launches), most_of(a.kernels, b.kernels), edges)
            )
        else:
            return None
    return Sizes(tuple(phases), most_of(own.blocks, last.blocks), most_of(own.groups, last.groups))


def covers(sizes: tuple[int, ...], needs: tuple[int, ...]) -> bool:
    """Return whether no need is larger than its size."""
    return all(size >= need for size, need in zip(sizes, needs, strict=True))


def most_of(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the larger of each pair."""
    return tuple(map(max, a, b))
