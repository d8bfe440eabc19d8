"""What earlier rounds computed, and the calls of the next round cut out of all that was recorded.

A round must cost what it runs, not what was recorded before it. So the columns grow with the
recording, and the calls of a round become a small graph of their own: first the *given* calls, which
earlier rounds computed and this one reads, then those that it runs, renumbered from 0. To scheduling,
wiring and execution the given calls are launches that ran already.

The backward pass of a read fills the gradient of the whole block that is read, so a block that many
rounds read a few rows of would cost rounds times rows. Such a block is cut into pieces once, and
again into smaller pieces where the reads are sparser than that: a round then touches a fixed
multiple of the rows that it reads. The other way round, rows that are read together often lie in many
small blocks, one for each round before; those are put together, since each block that is read costs a
gather.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifold.columns import Columns, Integers, ranges
from multifold.errors import RecordError
from multifold.execute import Run
from multifold.graph import CALL_MASK, Graph, Node
from multifold.signature import WIDTHS, Signature
from multifold.wiring import Place

REFS, INTS, FLOATS, ARRAYS, RAGGED = (
    WIDTHS.index(name) for name in ("refs", "ints", "floats", "arrays", "ragged")
)

SPARSE = 8
"""A block is cut when a round reads less than one row in so many, into as many pieces."""

SMALL = 4096
"""Rows of a block that is not worth cutting: reading each piece by itself takes longer than that."""

PAGE = 1024
"""Rows of a block that small ones are put together to."""

MANY = 10_000
"""Calls that are recorded before it is looked which blocks can still be asked for."""


class Growing:
    """An array that rows are appended to; room is doubled, so that a row costs a constant."""

    __slots__ = ("_room", "size")

    def __init__(self, dtype: Any = np.int64, width: tuple[int, ...] = (), size: int = 0) -> None:
        self._room = np.zeros((64, *width), dtype)
        self.size = size

    @property
    def values(self) -> np.ndarray:
        """What was appended: a view."""
        return self._room[: self.size]

    def extend(self, values: np.ndarray) -> None:
        """Append values."""
        first = self.size
        self.grow(len(values))
        self._room[first : self.size] = values

    def grow(self, count: int) -> None:
        """Append zeros."""
        self.size += count
        if self.size > len(self._room):
            room = np.zeros((max(self.size, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype)
            room[: len(self._room)] = self._room
            self._room = room


@dataclass(slots=True)
class Block:
    """The result of a launch, or a piece of one, of so many rows; and where those of calls are.

    Several calls have one row in a launch of an op without batched operands, and rows that only fill
    a launch up are of no call.
    """

    value: Any
    rows: int
    calls: Integers
    row: Integers
    kind: Hashable = None
    """What blocks must have in common to be put together; found out when it is asked for."""


@dataclass(slots=True)
class Window:
    """The calls of one round as a small graph.

    Attributes
    ----------
    columns : Columns
        The given calls, then those that are run.
    calls : int64 array
        What the graph calls each of them.
    given : int
        How many are given.
    place : Place
        Where the given calls are; launch ``i`` is block ``blocks[i]`` of the history.
    blocks : list of int
        The blocks that are read.
    alone : int64 array
        The calls to be run that others read whole, by their numbers here.
    """

    columns: Columns
    calls: Integers
    given: int
    place: Place
    blocks: list[int]
    alone: Integers


class History:
    """All calls of a run so far, and the blocks that hold the rows of those that were computed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.blocks: dict[int, Block] = {}
        self._next = 1
        self._signature = Growing()
        self._values = {
            "refs": Growing(), "ints": Growing(), "floats": Growing(np.float64),
            "lengths": Growing(), "members": Growing(),
        }  # fmt: skip
        self._widths = np.zeros((0, len(WIDTHS)), np.int64)  # of each signature
        self._starts = Growing(width=(len(WIDTHS),), size=1)  # where the entries of each call begin
        self._member_starts = Growing(size=1)
        self._block = Growing()  # 1 + the block of each call, 0 for those that were not run
        self._row = Growing()
        self._whole = Growing(bool)  # whether the whole result of a call is read
        self._number = Growing()  # the number of a call in the last window that had it
        self._seen = Growing(bool)  # scratch
        self._reads_whole: list[int] = []  # signatures with shared nodes
        self._swept = 0

    def __len__(self) -> int:
        return self._signature.size

    # ---- the columns ---------------------------------------------------------------------------

    def extend(self) -> None:
        """Take in what was recorded since."""
        graph, first = self.graph, len(self)
        kinds = np.array(graph.signature[first:], np.int64)
        if not len(kinds):
            return
        self._signature.extend(kinds)
        for name, column in self._values.items():
            values = getattr(graph, name)
            if len(values) > column.size:
                column.extend(np.array(values[column.size :], column.values.dtype))
        if len(self._widths) < len(graph.signatures):
            widths = [[getattr(s, name) for name in WIDTHS] for s in graph.signatures]
            self._widths = np.array(widths, np.int64)
            self._reads_whole = [i for i, s in enumerate(graph.signatures) if len(s.shared_refs)]
        self._starts.extend(self._starts.values[-1] + np.cumsum(self._widths[kinds], axis=0))
        lengths = self._values["lengths"].values[self._member_starts.size - 1 :]
        if len(lengths):
            self._member_starts.extend(self._member_starts.values[-1] + np.cumsum(lengths))
        for column in (self._block, self._row, self._number, self._whole, self._seen):
            column.grow(len(kinds))
        for number in self._reads_whole:
            calls = first + np.flatnonzero(kinds == number)
            at = self._starts.values[calls, REFS][:, None] + graph.signatures[number].shared_refs
            self._whole.values[self._values["refs"].values[at] & CALL_MASK] = True

    def _at(self, column: int, calls: Integers) -> Integers:
        """Return where the entries of some calls are in a column, one of `WIDTHS`."""
        begin = self._starts.values[calls, column]
        return ranges(begin, self._starts.values[calls + 1, column] - begin)

    def _entries(self, name: str, column: int, calls: Integers) -> np.ndarray:
        """Return the entries of some calls in a column."""
        values = self._values[name].values
        return values[self._at(column, calls)] if len(values) else values

    def _members(self, calls: Integers) -> Integers:
        """Return the rows of the ragged operands of some calls."""
        values = self._values["members"].values
        if not len(values):
            return values
        at = self._at(RAGGED, calls)
        begin = self._member_starts.values
        return values[ranges(begin[at], begin[at + 1] - begin[at])]

    def _sources(self, calls: Integers) -> Integers:
        """Return the calls that some calls read, with repeats."""
        refs, members = self._entries("refs", REFS, calls), self._members(calls)
        if len(members):
            refs = np.concatenate([refs, members[members >= 0]])
        return refs & CALL_MASK

    # ---- the next round ------------------------------------------------------------------------

    def pending(self, calls: Integers) -> Integers:
        """Return which of some calls and their ancestors were not run yet, in the order of recording."""
        block, seen = self._block.values, self._seen.values
        waves = []
        wave = np.unique(calls)
        wave = wave[block[wave] == 0]
        while len(wave):
            seen[wave] = True
            waves.append(wave)
            sources = self._sources(wave)
            wave = np.unique(sources[(block[sources] == 0) & ~seen[sources]])
        found = np.sort(np.concatenate(waves)) if waves else np.zeros(0, np.int64)
        seen[found] = False
        return found

    def window(self, calls: Integers, read: Integers, last: Run | None) -> Window:
        """Return the calls of a round as a small graph.

        Parameters
        ----------
        calls : int64 array
            The calls to be run, in the order of recording.
        read : int64 array
            Other calls whose rows are wanted; those that were computed are given.
        last : Run or None
            The round before, which knows how to cut blocks and to put them together.
        """
        reads = np.concatenate([self._sources(calls), read])
        reads = reads[self._block.values[reads] > 0]
        if last is not None:
            self._cut_sparse(reads, last)
            self._put_together(reads, last)
        given = np.unique(reads)
        kept = np.concatenate([given, calls])
        number = self._number.values
        number[kept] = np.arange(len(kept))
        signatures: list[Signature] = list(self.graph.signatures)
        kinds, stubs = np.unique(self._signature.values[given], return_inverse=True)
        kind = np.concatenate([len(signatures) + stubs, self._signature.values[calls]])
        signatures += [without_operands(signatures[i]) for i in kinds.tolist()]
        members = self._members(calls)
        columns = Columns(
            signatures=tuple(signatures),
            parts=tuple(self.graph.parts),
            signature=kind,
            refs=self.renumbered(self._entries("refs", REFS, calls)),
            ints=self._entries("ints", INTS, calls),
            floats=self._entries("floats", FLOATS, calls),
            arrays=[self.graph.arrays[i] for i in self._at(ARRAYS, calls).tolist()]
            if self.graph.arrays
            else [],
            lengths=self._entries("lengths", RAGGED, calls),
            members=self.renumbered(members) if len(members) else members,
            loose=self.graph.loose,
        )
        blocks, launch = np.unique(self._block.values[given], return_inverse=True)
        place = Place.nowhere(len(kept))
        place.launch[: len(given)] = launch
        place.row[: len(given)] = self._row.values[given]
        place.rows += [self.blocks[block].rows for block in blocks.tolist()]
        self._refuse_batched(columns, place, kept)
        alone = len(given) + np.flatnonzero(self._whole.values[calls])
        return Window(columns, kept, len(given), place, blocks.tolist(), alone)

    def renumbered(self, refs: Integers) -> Integers:
        """Return references with the numbers that calls have in the last window."""
        loose = refs < 0
        if not loose.any():
            return refs & ~CALL_MASK | self._number.values[refs & CALL_MASK]
        known = np.where(loose, 0, refs)
        return np.where(loose, refs, self.renumbered(known))

    def _refuse_batched(self, columns: Columns, place: Place, calls: Integers) -> None:
        """Refuse to read a result whole that was computed in a launch with others."""
        for call in columns.shared_calls.tolist():
            if place.launch[call] >= 0:
                self.refuse_batched(int(calls[call]))

    def read_whole(self, calls: Integers) -> None:
        """Note that the whole results of some calls are wanted."""
        for call in calls.tolist():
            self.refuse_batched(call)
        self._whole.values[calls] = True

    def refuse_batched(self, call: int) -> None:
        """Refuse a computed call whose whole result is wanted, if it shares a launch with others."""
        block = int(self._block.values[call])
        if block and self.blocks[block].rows > 1:
            raise RecordError(
                f"The result of {Node(self.graph, call)!r}, recorded at {self.graph.site(call)}, is read "
                "through no_batch(), but it was computed in a launch with others, for a value that was "
                "awaited before.",
                "call no_batch(), and pass it on, before anything that needs the node is awaited.",
            )

    def _cut_sparse(self, reads: Integers, last: Run) -> None:
        """Cut the blocks of which few rows are read, until what is read of each piece is dense."""
        while True:
            blocks, counts = np.unique(self._block.values[reads], return_counts=True)
            sparse = [
                number
                for number, count in zip(blocks.tolist(), counts.tolist(), strict=True)
                if self.blocks[number].rows > max(SMALL, SPARSE * count)
            ]
            if not sparse:
                return
            for number in sparse:
                block = self.blocks.pop(number)
                bounds = np.linspace(0, block.rows, SPARSE + 1).astype(np.int64)
                sizes = np.diff(bounds).tolist()
                values = last.split(block.value, sizes)
                begin = np.searchsorted(block.row, bounds).tolist()
                for i, value in enumerate(values):
                    mine = slice(begin[i], begin[i + 1])
                    self._keep(value, sizes[i], block.calls[mine], block.row[mine] - bounds[i])

    def _put_together(self, reads: Integers, last: Run) -> None:
        """Put small blocks that are read together, and whose rows fit together, into one."""
        if last.backend.padded_rows(PAGE - 1) != PAGE - 1:
            return  # it compiles for each number of rows, and these would be new in every round
        groups: dict[Hashable, list[int]] = {}
        for number in np.unique(self._block.values[reads]).tolist():
            block = self.blocks[number]
            if block.rows <= PAGE // 2 and not self._whole.values[block.calls[0]]:
                if block.kind is None:
                    block.kind = last.value_class(block.value)
                groups.setdefault(block.kind, []).append(number)
        for kind, numbers in groups.items():
            ends = np.cumsum([self.blocks[number].rows for number in numbers])
            fitting = numbers[: int(np.searchsorted(ends, PAGE, side="right"))]
            if len(fitting) < 2:
                continue
            blocks = [self.blocks.pop(number) for number in fitting]
            rows = [block.row + end - block.rows for block, end in zip(blocks, ends.tolist(), strict=False)]
            value = last.concat([block.value for block in blocks])
            calls = np.concatenate([block.calls for block in blocks])
            self._keep(value, int(ends[len(fitting) - 1]), calls, np.concatenate(rows), kind)

    # ---- what was computed ---------------------------------------------------------------------

    def keep(self, window: Window, place: Place, blocks: dict[int, Any]) -> None:
        """Keep the results of a round that was run: a block for each of its launches."""
        first = len(window.blocks)
        order = np.lexsort((place.row[window.given :], place.launch[window.given :]))
        launch = place.launch[window.given :][order]
        row = place.row[window.given :][order]
        calls = window.calls[window.given :][order]
        bounds = np.searchsorted(launch, np.arange(first, len(place.rows) + 1)).tolist()
        for number, low, high in zip(range(first, len(place.rows)), bounds[:-1], bounds[1:], strict=True):
            if number in blocks:
                self._keep(blocks[number], place.rows[number], calls[low:high], row[low:high])

    def _keep(self, value: Any, rows: int, calls: Integers, row: Integers, kind: Hashable = None) -> None:
        self.blocks[self._next] = Block(value, rows, calls, row, kind)
        self._block.values[calls] = self._next
        self._row.values[calls] = row
        self._next += 1

    def sweep(self) -> None:
        """Drop the blocks that no node can ask for any more, now and then.

        A block is read again only through a node that the user still holds, or through a call
        that such a node needs. Nodes are not counted while recording: the garbage collector knows
        them, as what refers to the graph. Asking it takes time with all objects of the process, so many
        calls lie between two times.
        """
        if len(self) - self._swept < MANY:
            return
        self._swept = len(self)
        nodes = [x for x in gc.get_referrers(self.graph) if isinstance(x, Node)]
        calls = np.unique(np.array([node._ref & CALL_MASK for node in nodes], np.int64))
        calls = calls[calls < len(self)]
        read = np.concatenate([calls, self._sources(self.pending(calls))])
        alive = set(np.unique(self._block.values[read]).tolist())
        self.blocks = {number: block for number, block in self.blocks.items() if number in alive}


def without_operands(signature: Signature) -> Signature:
    """Return what stands for a signature where a call is given: its name, and no operands."""
    return Signature(signature.op, (), None, {})
