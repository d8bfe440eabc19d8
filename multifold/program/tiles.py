"""From a ragged program to a tiled one: every size is one of few, so that few programs are compiled.

All launches of a loop become *tiles* of the same number of rows. `multifold.program.packing` fills them:
not launch by launch, but so that there are as few tiles as possible. What pads a tile repeats a real row
of it. So an op sees no value there that it does not see elsewhere, the values and gradients are finite
where those of real rows are, and no operand and no result reads them.

The rows of a kernel are numbered anew, tile by tile. Three calls and five calls that read them, in tiles
of four rows, are rows ``[0 1 2 -1]`` and ``[0 1 2 3 | 4 -1 -1 -1]`` of the ragged program; -1 pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import Integers, ranges, starts
from multifold.program.layout import KernelOperand, Phase, Program, RaggedColumn, stretches
from multifold.program.packing import LoopCalls, Packing, SlabOwners, ragged_lengths, rows_of, turns_like
from multifold.program.sizes import (
    CLOSE,
    FEWEST,
    NARROW,
    OVERHEAD,
    WIDTHS,
    PhaseSize,
    Sizes,
    bucket,
    covers,
    members_of,
    most_of,
)  # fmt: skip


class KernelTiles(NamedTuple):
    """The rows of a kernel in tiles.

    Attributes
    ----------
    rows : int64 array
        The row of the ragged program that each row is, -1 for padding.
    tile : int
        How many rows each launch has.
    edges : tuple of int
        For each ragged operand the members of each launch.
    """

    rows: Integers
    tile: int
    edges: tuple[int, ...]


class MovedRows(NamedTuple):
    """Where the rows of slabs are in the tiled program.

    Attributes
    ----------
    rows : dict of int to int32 array
        For each slab the new row of each old one.
    starts, slabs, sizes : int64 arrays
        The first row of each source in its slab, the rows of each slab, and the rows of each source.
    """

    rows: dict[int, np.ndarray]
    starts: Integers
    slabs: Integers
    sizes: Integers


class Tiler:
    """A ragged program in the course of being tiled.

    Parameters
    ----------
    program : Program
        Ragged.
    pad : bool
        Pad the results, too: by repeating the first row of each.
    cycles : bool
        Have the kernels of each loop take turns in a fixed cycle; see `Phase`.
    """

    def __init__(self, program: Program, *, pad: bool = False, cycles: bool = False) -> None:
        self.program = program
        self.pad = pad
        self.cycles = cycles
        self.form = program.form
        self.owners = SlabOwners(program)
        self.packings: dict[tuple[Any, ...], Packing] = {}
        self.launches = [program.launches[low:high] for low, high in pairwise(program.bounds.tolist())]

    def packed(
        self, phase: int, tile: int, edges: tuple[tuple[int, ...], ...], turn: tuple[int, ...] = ()
    ) -> Packing:
        """Return the calls of a phase in tiles of ``tile`` rows and ``edges`` members.

        Each packing is made once. ``phase`` is a number, ``edges`` has for each kernel and ragged operand
        the members of a tile, and ``turn`` is that of `LoopCalls.packed`.
        """
        # The same packing is asked for when sizes are chosen, when they are compared, and when rows are
        # laid out.
        key = phase, tile, edges, turn
        if key not in self.packings:
            if self.form.phases[phase].loop:
                loop = LoopCalls(self.owners, phase, self.launches[phase], tile, edges)
                self.packings[key] = loop.packed(turn)
            else:
                # Outside of a loop a kernel has one phase, and all its rows are there.
                count = int(self.launches[phase][:, 2].sum())
                rows = padded(count, tile * (count > 0))
                self.packings[key] = Packing(np.zeros(int(count > 0), np.int64), [rows], [1])
        return self.packings[key]

    def lengths(self, phase: int, entry: int) -> list[Integers]:
        """Return for each ragged operand of a kernel how many members each row has that a phase computes.

        ``entry`` is the position of the kernel in `Phase.kernels`.
        """
        low, high = rows_of(self.launches[phase], entry)
        lengths = ragged_lengths(self.program, self.form.phases[phase].kernels[entry])
        return [own[low:high] for own in lengths]

    def own(self, like: Sizes | None = None) -> Sizes:
        """Choose sizes that fit this program.

        A loop keeps the width of tiles and the turn that it has in ``like`` if these cost less than `CLOSE`
        times the best ones.
        """
        phases = [
            self.loop_size(i, *((like.phases[i].tile, like.phases[i].turn) if like is not None else ()))
            if phase.loop
            else self.once_size(i)
            for i, phase in enumerate(self.form.phases)
        ]
        return Sizes(tuple(phases), self.given, self.groups)

    def within(self, sizes: Sizes) -> Sizes:
        """Choose sizes of this program in the tiles of ``sizes``, with at least as many members in each."""
        phases = [
            self.packed_size(i, size.tile, size.edges, size.turn)
            if size.loop
            else self.once_size(i, size.tile)
            for i, size in enumerate(sizes.phases)
        ]
        return Sizes(tuple(phases), self.given, self.groups)

    @cached_property
    def given(self) -> tuple[int, ...]:
        """The number of rows of each array of `Program.given`, rounded up.

        Arrays of a framework keep theirs.
        """
        return tuple(
            bucket(len(rows)) if isinstance(rows, np.ndarray) else rows.shape[0]
            for rows in self.program.given
        )

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The number of rows of each result, in their order; rounded up if results are padded."""
        counts = [0 if rows is None else len(rows) for rows in self.program.groups]
        return tuple(bucket(count) if self.pad and count else count for count in counts)

    def once_size(self, number: int, least: int = 0) -> PhaseSize:
        """Return the sizes of phase ``number``, which is no loop: one tile.

        It has the phase's rows, and one more for padding if there are ragged operands, rounded up by
        `bucket`; or ``least``, if that is more. Members are padded and rounded up as well. A solo kernel,
        whose launches make one row, has a tile of 1 and its members as they are.
        """
        edges = [int(lengths.sum()) for lengths in self.lengths(number, 0)]
        # A solo kernel makes one row of what it is given, and padding would change it: all sizes are exact.
        if self.form.kernels[self.form.phases[number].kernels[0]].solo:
            return PhaseSize(False, 1, 1, (1,), (tuple(edges),))
        rows = int(self.launches[number][:, 2].sum())
        size = max(bucket(rows + bool(edges)), least)  # members that pad need a row that pads
        return PhaseSize(False, size, 1, (1,), (tuple(bucket(edge + size - rows) for edge in edges),))

    def loop_size(self, number: int, before: int | None = None, turn: tuple[int, ...] = ()) -> PhaseSize:
        """Choose the sizes of loop ``number``: the cheapest width of tiles, then as few tiles as fit.

        The width ``before`` is kept if it costs less than `CLOSE` times the cheapest, and ``turn`` if it
        needs less than `CLOSE` times the launches of the best turn.
        """
        kernels = self.form.phases[number].kernels
        launches = self.launches[number]
        counts = [high - low for low, high in (rows_of(launches, e) for e in range(len(kernels)))]
        others = [set(phase.kernels) for i, phase in enumerate(self.form.phases) if i != number]
        divided = any(set(kernels) & other for other in others)

        def expected(tile: int) -> int:
            # A loop has at least as many tiles as the longest path has calls, and as its rows fill.
            return max(len(launches), sum(-(-count // tile) for count in counts)) * (tile + OVERHEAD)

        tile = min(NARROW if divided else WIDTHS, key=expected)
        if before is not None and expected(before) < CLOSE * expected(tile):
            tile = before
        return self.packed_size(number, tile, turn=turn)

    def packed_size(
        self,
        number: int,
        tile: int,
        least: tuple[tuple[int, ...], ...] | None = None,
        turn: tuple[int, ...] = (),
    ) -> PhaseSize:
        """Return the sizes of loop ``number`` in tiles of ``tile`` rows: as few tiles as fit, rounded up.

        A tile has at least the members ``least``, given for each kernel and ragged operand. Where kernels
        take turns (``cycles``), they do so as in ``turn``, if that has a tile for all that is called,
        unless other turns need far fewer tiles.
        """
        lengths = [ragged_lengths(self.program, kernel) for kernel in self.form.phases[number].kernels]
        edges = tuple(tuple(members_of(tile, x) for x in own) for own in lengths)
        if least is not None:
            edges = tuple(map(most_of, edges, least))
        packing = self.packed(number, tile, edges)
        tiles = tuple(bucket(count, FEWEST) for count in packing.counts)
        free = PhaseSize(True, tile, bucket(len(packing.kernel), FEWEST), tiles, edges)
        if not self.cycles:
            return free
        own = min((self.in_turns(number, free, one) for one in turns_like(packing)), key=launches_of)
        if self.calls_only(number, turn):
            kept = self.in_turns(number, free, turn)
            own = kept if kept.launches < CLOSE * own.launches else own
        return own

    def in_turns(self, number: int, size: PhaseSize, turn: tuple[int, ...]) -> PhaseSize:
        """Return ``size`` of loop ``number`` with the tiles that it needs if its kernels take ``turn``."""
        count = -(-len(self.packed(number, size.tile, size.edges, turn).kernel) // len(turn))
        count = bucket(count, -(-FEWEST // len(turn)))
        tiles = tuple(count * turn.count(entry) for entry in range(len(size.kernels)))
        return size._replace(launches=count * len(turn), kernels=tiles, turn=turn)

    def calls_only(self, number: int, turn: tuple[int, ...]) -> bool:
        """Return whether ``turn`` has a tile for every kernel that loop ``number`` calls.

        False for ``()``.
        """
        return set(self.launches[number][:, 0].tolist()) <= set(turn) and bool(turn)

    def freed(self, sizes: Sizes) -> Sizes:
        """Return ``sizes`` with as many launches as each loop needs when its kernels take no turns."""
        phases = [
            size._replace(launches=bucket(len(self.packed(i, size.tile, size.edges).kernel), FEWEST))
            if size.turn
            else size
            for i, size in enumerate(sizes.phases)
        ]
        return sizes._replace(phases=tuple(phases))

    def fits(self, sizes: Sizes) -> bool:
        """Return whether this program fits into ``sizes``, those of a program of the same form.

        All of its phases, given rows and results must fit. Results that are not padded must have exactly
        the rows of ``sizes``, and a solo phase, whose launch makes one row, exactly its sizes.
        """
        if not (self.pad or sizes.groups == self.groups):
            return False
        if not covers(sizes.groups, self.groups) or not covers(sizes.given, self.given):
            return False
        return all(
            self.loop_fits(number, size) if size.loop else self.once_fits(number, size)
            for number, size in enumerate(sizes.phases)
        )

    def once_fits(self, number: int, size: PhaseSize) -> bool:
        """Return whether phase ``number``, which is no loop, fits into ``size``."""
        if self.form.kernels[self.form.phases[number].kernels[0]].solo:
            return size == self.once_size(number)
        rows = int(self.launches[number][:, 2].sum())
        # Each row that pads has at least one member, too.
        need = tuple(int(x.sum()) + size.tile - rows for x in self.lengths(number, 0))
        return size.tile >= rows + bool(need) and covers(size.edges[0], need)

    def loop_fits(self, number: int, size: PhaseSize) -> bool:
        """Return whether loop ``number`` fits into ``size``, by its tiles and by the members of each."""
        for entry, edges in enumerate(size.edges):
            longest = [int(x.max(initial=0)) for x in self.lengths(number, entry)]
            # The longest call must fit into a tile in which all other rows pad, with a member each.
            if any(edge < most + size.tile - 1 for edge, most in zip(edges, longest, strict=True)):
                return False
        if size.turn and not self.calls_only(number, size.turn):
            return False
        packing = self.packed(number, size.tile, size.edges, size.turn)
        return len(packing.kernel) <= size.launches and covers(size.kernels, tuple(packing.counts))

    def tiled(self, sizes: Sizes) -> Program:
        """Return a new program in ``sizes``, which this one must fit into (`fits`).

        This program stays as it is.
        """
        form = self.form
        program = self.program
        tiles = [KernelTiles(np.zeros(0, np.int64), 0, ()) for _ in form.kernels]
        tables = [np.zeros((0, 3), np.int64)]
        phases = []
        for number, size in enumerate(sizes.phases):
            phase, table, own = self.phase_tiles(number, size, tiles)
            for kernel, more in own.items():
                tiles[kernel] = more._replace(rows=np.concatenate([tiles[kernel].rows, more.rows]))
            phases.append(phase)
            tables.append(table)
        moved = self.move(tiles, sizes)
        found = [self.column_tiles(number, own, moved) for number, own in enumerate(tiles)]
        made = replace(
            form,
            kernels=tuple(
                replace(kernel, operands=tuple(operand for operand, _ in pairs), rows=len(own.rows))
                for kernel, pairs, own in zip(form.kernels, found, tiles, strict=True)
            ),
            sources=tuple(s._replace(rows=int(n)) for s, n in zip(form.sources, moved.sizes, strict=True)),
            phases=tuple(phases),
            groups=tuple(g._replace(rows=n) for g, n in zip(form.groups, sizes.groups, strict=True)),
        )
        return replace(
            program,
            form=made,
            starts=moved.starts.astype(np.int32),
            sizes=moved.slabs.astype(np.int32),
            bounds=starts(np.array([len(table) for table in tables[1:]])).astype(np.int32),
            launches=np.concatenate(tables).astype(np.int32),
            columns=tuple(tuple(column for _, column in pairs) for pairs in found),
            groups=tuple(
                rows if rows is None else resized(moved.rows[group.slab][rows], n)
                for group, rows, n in zip(form.groups, program.groups, sizes.groups, strict=True)
            ),
            given=tuple(resized(x, n) for x, n in zip(program.given, sizes.given, strict=True)),
        )

    def phase_tiles(
        self, number: int, size: PhaseSize, before: Sequence[KernelTiles]
    ) -> tuple[Phase, Integers, dict[int, KernelTiles]]:
        """Return phase ``number`` in tiles, its lines of `Program.launches`, and its kernels' rows.

        There are ``size.launches`` lines; those that are left over are idle: 0 rows of one past the last
        kernel, or in turns of the kernel whose turn it is. The rows are a dictionary: kernel -> its rows in
        tiles. ``before`` has the rows that earlier phases compute, for each kernel.
        """
        phase = self.form.phases[number]
        tile = size.tile
        packing = self.packed(number, tile, size.edges, size.turn)
        used = len(packing.kernel)
        table = np.zeros((size.launches, 3), np.int64)
        table[:used, 0] = packing.kernel
        # What is left is idle: one past the last kernel, or in turns whatever kernel comes next.
        table[used:, 0] = len(phase.kernels)
        if size.turn:
            table[:, 0] = np.resize(size.turn, size.launches)
        own = {}
        for entry, (kernel, tiles) in enumerate(zip(phase.kernels, size.kernels, strict=True)):
            launches = np.flatnonzero(table[:, 0] == entry)
            table[launches, 1] = len(before[kernel].rows) + tile * np.arange(len(launches))
            rows = np.full(tiles * tile, -1)
            rows[: len(packing.rows[entry])] = packing.rows[entry]
            # The rows of a tile come before its padding, so a tile that begins with -1 is idle: 0 rows.
            table[launches, 2] = tile * (rows[: len(launches) * tile : tile] >= 0)
            own[kernel] = KernelTiles(rows, tile, size.edges[entry])
        counts = tuple(tile * tiles for tiles in size.kernels)
        loop_tile = tile if phase.loop else None
        made = phase._replace(tile=loop_tile, launches=size.launches, rows=counts, turn=size.turn)
        return made, table, own

    def column_tiles(
        self, kernel: int, tiles: KernelTiles, moved: MovedRows
    ) -> list[tuple[KernelOperand, Any]]:
        """Return a pair (operand, column in tiles) for each operand of a kernel.

        ``tiles`` are the kernel's rows, and ``moved`` says where rows of slabs are now. A column may be
        None.
        """
        found: list[tuple[KernelOperand, Any]] = []
        edges = iter(tiles.edges)
        pairs = zip(self.form.kernels[kernel].operands, self.program.columns[kernel], strict=True)
        for operand, column in pairs:
            if operand.role == "ragged":
                edge = next(edges) if operand.reads else 0
                ragged = ragged_tiles(column, tiles._replace(edges=(edge,)), moved.rows.get(operand.index))
                found.append((replace(operand, edges=edge), ragged))
            elif column is None:
                found.append((operand, None))
            else:
                column = moved.rows[operand.index][column] if operand.reads else column
                found.append((operand, repeated(column, tiles.rows, tiles.tile)))
        return found

    def move(self, tiles: Sequence[KernelTiles], sizes: Sizes) -> MovedRows:
        """Find where each row of the slabs of the ragged program lies in the slabs of the tiled one.

        ``tiles`` has the rows of each kernel in all phases.
        """
        form = self.form
        program = self.program
        count = np.array(
            [len(tiles[s.kernel].rows) if s.kernel >= 0 else sizes.given[s.given] for s in form.sources],
            np.int64,
        )
        begin, slabs = stretches(form.sources, count)
        rows = {number: np.zeros(int(n), np.int32) for number, n in enumerate(program.sizes)}
        for number, source in enumerate(form.sources):
            low = int(program.starts[number])
            if source.kernel < 0:
                old = new = np.arange(len(program.given[source.given]))
            else:
                new = np.flatnonzero(tiles[source.kernel].rows >= 0)
                old = tiles[source.kernel].rows[new]
            rows[source.slab][low + old] = begin[number] + new
        return MovedRows(rows, begin, slabs, count)


def launches_of(size: PhaseSize) -> int:
    """Return ``size.launches``; a key for `min`."""
    return size.launches


def padded(count: int, size: int) -> Integers:
    """Return an int64 array of length ``size``: ``0 .. count - 1``, and then -1 for padding.

    Examples
    --------
    >>> padded(3, 5).tolist()
    [0, 1, 2, -1, -1]
    """
    rows = np.full(size, -1)
    rows[:count] = np.arange(count)
    return rows


def resized(rows: Any, size: int) -> Any:
    """Repeat the first row of a NumPy array until it has ``size`` rows, which is no less than it has.

    An empty array gets zeros, or 0.5 for floats. Arrays of a framework stay as they are.
    """
    fits = not isinstance(rows, np.ndarray) or len(rows) == size
    return rows if fits else repeated(rows, padded(len(rows), size), size)


def repeated(column: np.ndarray, rows: Integers, tile: int) -> np.ndarray:
    """Return ``column[rows]``, where -1 in ``rows`` is padding and repeats the first row of its tile.

    A tile that is all padding repeats row 0 of the column. Of an empty column come zeros, or 0.5 for
    floats.

    Examples
    --------
    >>> repeated(np.array([5, 6, 7]), np.array([0, 1, 2, -1]), 2).tolist()
    [5, 6, 7, 7]
    """
    if not len(column):
        # No operand reads the rows of such a kernel. But its op may run on them, and `log` or `1 / x` has
        # no derivative at zero, while few functions are singular at a half.
        half = 0.5 if column.dtype.kind == "f" else 0
        return np.full((len(rows), *column.shape[1:]), half, column.dtype)
    first = np.repeat(rows[::tile], tile)
    # An idle tile has no first row to repeat, and repeats row 0 of the kernel.
    return column[np.maximum(np.where(rows < 0, first, rows), 0)]


def ragged_tiles(column: RaggedColumn, tiles: KernelTiles, moved: np.ndarray | None) -> RaggedColumn:
    """Return a ragged column in tiles, each with as many members as ``tiles.edges`` says.

    ``moved`` says where the rows of its slab are now, None if they have not moved. Members that pad a tile
    belong to the rows that pad it, in equal shares, and repeat its first member.
    """
    rows, tile, (edges,) = tiles
    count = len(rows) // tile
    begin = np.arange(count) * edges  # of the members of each tile
    real = np.flatnonzero(rows >= 0)
    lengths = np.zeros(len(rows), np.int64)
    lengths[real] = np.diff(column.splits)[rows[real]]
    used = lengths.reshape(count, tile).sum(axis=1)
    spare = (rows < 0).reshape(count, tile).sum(axis=1)
    addresses, segments = np.zeros((2, count * edges), np.int32)
    values = column.addresses if moved is None else moved[column.addresses]
    # Real members come first in each tile.
    at = ranges(begin, used)
    addresses[at] = values[ranges(column.splits[rows[real]].astype(np.int64), lengths[real])]
    segments[at] = np.repeat(real % tile, lengths[real])
    surplus = edges - used
    at = ranges(begin + used, surplus)
    first = values[0] if len(values) else 0
    addresses[at] = np.repeat(np.where(used > 0, addresses[begin] if edges else 0, first), surplus)
    # Of `surplus` members the i-th goes to padding row `i * spare // surplus`, counted from the first one.
    share = ranges(np.zeros(count, np.int64), surplus) * np.repeat(spare, surplus)
    segments[at] = np.repeat(tile - spare, surplus) + share // np.repeat(surplus, surplus)
    counts = np.bincount(np.repeat(np.arange(count) * tile, edges) + segments, minlength=len(rows))
    return RaggedColumn(addresses, starts(counts).astype(np.int32), segments)
