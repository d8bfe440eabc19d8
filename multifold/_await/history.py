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
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multifold._compiled.choice import kernels
from multifold._record.graph import Graph
from multifold._record.kinds import COLUMNS
from multifold._record.node import CALL_MASK, PART_BITS, Node
from multifold._record.signature import Signature
from multifold._run.run import Run
from multifold._run.values import PARTS_HINT, follow, leaves_of, opened, steps_to
from multifold._schedule.columns import Columns, Integers, ranges
from multifold._wiring.wiring import Place
from multifold.errors import LaunchError, RecordError

REFS, INTS, FLOATS, ARRAYS, RAGGED = (
    COLUMNS.index(name) for name in ("refs", "ints", "floats", "arrays", "ragged")
)

SPARSE = 8
"""A block is cut when a round reads less than one row in that many, into as many pieces."""

SMALL = 4096
"""Rows of a block that is not worth cutting: reading each piece by itself takes longer than that."""

PAGE = 1024
"""Rows of a block that small ones are put together to."""

MANY = 10_000
"""Calls that are recorded before it is looked which blocks can still be asked for."""

HEAVY = 1 << 24
"""The same in numbers that the blocks hold: 64 MB of float32."""


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

    def catch_up(self, values: Any) -> None:
        """Append those of more values, a column of a graph, that are not here yet."""
        first = self.size
        if len(values) > first:
            self.grow(len(values) - first)
            self._room[first : self.size] = values[first:]

    def grow(self, count: int) -> None:
        """Append zeros."""
        self.size += count
        if self.size > len(self._room):
            room = np.zeros((max(self.size, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype)
            room[: len(self._room)] = self._room
            self._room = room


@dataclass(slots=True)
class Block:
    """The result of a launch, or a piece of one, with its number of rows; and where those of calls are.

    Several calls have one row in a launch of an op without batched operands, and rows that only fill
    a launch up are of no call.
    """

    value: Any
    rows: int
    calls: Integers
    row: Integers
    kind: Hashable = None
    """What blocks must have in common to be put together; found out when it is asked for."""


class Selection(NamedTuple):
    """What a round runs and reads.

    Attributes
    ----------
    calls, given : int64 arrays
        The calls to be run, and those that were computed and are read, in the order of recording.
    refs, ints, lengths, members : int64 arrays
        The operands of the calls that are run; references count the given calls first.
    """

    calls: Integers
    given: Integers
    refs: Integers
    ints: Integers
    lengths: Integers
    members: Integers


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
        self._widths = np.zeros((0, len(COLUMNS)), np.int64)  # of each signature
        self._starts = Growing(width=(len(COLUMNS),), size=1)  # where the entries of each call begin
        self._member_starts = Growing(size=1)
        self._block = Growing()  # 1 + the block of each call, 0 for those that were not run
        self._row = Growing()
        self._whole = Growing(bool)  # whether the whole result of a call is read
        self._number = Growing()  # the number of a call in the last window that had it
        self._seen = Growing()  # the last selection that met a call
        self._selections = 0
        self._signatures: tuple[Signature, ...] = ()  # of the graph, and a stub for each of them
        self._reads_whole: list[int] = []  # signatures with shared nodes
        self._swept = 0
        self._frozen = 0 if len(graph.signature) else gc.get_freeze_count()
        self._held = self._held_before = 0  # numbers in blocks since the last sweep, and right behind it

    def __len__(self) -> int:
        return self._signature.size

    # ---- the columns ---------------------------------------------------------------------------

    def extend(self) -> None:
        """Take in what was recorded since."""
        graph, first = self.graph, len(self)
        if first == len(graph.signature):
            return
        self._signature.catch_up(graph.signature)
        for name, column in self._values.items():
            column.catch_up(getattr(graph, name))
        kinds = self._signature.values[first:]
        if len(self._widths) < len(graph.signatures):
            widths = [[getattr(s, name) for name in COLUMNS] for s in graph.signatures]
            self._widths = np.array(widths, np.int64)
            self._signatures = (*graph.signatures, *map(without_operands, graph.signatures))
            self._reads_whole = [i for i, s in enumerate(graph.signatures) if len(s.shared_refs)]
        self._starts.grow(len(kinds))
        starts = self._starts.values[first:]
        if kernels is None:
            starts[1:] = starts[0] + np.cumsum(self._widths[kinds], axis=0)
        else:
            kernels.extend(kinds, self._widths, starts)
        ends, lengths = self._member_starts, self._values["lengths"]
        if ends.size <= lengths.size:
            last = ends.size - 1
            ends.grow(lengths.size - last)
            ends.values[last + 1 :] = ends.values[last] + lengths.values[last:].cumsum()
        for column in (self._block, self._row, self._number, self._whole, self._seen):
            column.grow(len(kinds))
        for number in self._reads_whole:
            calls = first + np.flatnonzero(kinds == number)
            at = self._starts.values[calls, REFS][:, None] + graph.signatures[number].shared_refs
            self._whole.values[self._values["refs"].values[at] & CALL_MASK] = True

    def _at(self, column: int, calls: Integers) -> Integers:
        """Return where the entries of some calls are in a column, one of `COLUMNS`."""
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

    def select(self, read: Integers) -> Selection:
        """Return what has to be run for some calls, and what that reads; number these calls."""
        self._selections += 1
        values = self._values
        if kernels is None:
            return self._select_in_numpy(read)
        found = kernels.window(
            np.ascontiguousarray(read),
            np.array([self._selections]),
            self._starts.values,
            values["refs"].values,
            values["ints"].values,
            values["lengths"].values,
            values["members"].values,
            self._member_starts.values,
            self._block.values,
            self._seen.values,
            self._number.values,
        )
        return Selection(*[np.frombuffer(column, np.int64) for column in found])

    def _select_in_numpy(self, read: Integers) -> Selection:
        """Select by NumPy: the reference for the kernel."""
        block, seen, stamp = self._block.values, self._seen.values, self._selections
        waves = [np.zeros(0, np.int64)]
        wave = np.unique(read)
        wave = wave[block[wave] == 0]
        while len(wave):
            seen[wave] = stamp
            waves.append(wave)
            sources = self._sources(wave)
            wave = np.unique(sources[(block[sources] == 0) & (seen[sources] != stamp)])
        calls = np.sort(np.concatenate(waves))
        reads = np.concatenate([self._sources(calls), read])
        given = np.unique(reads[block[reads] > 0])
        kept = np.concatenate([given, calls])
        self._number.values[kept] = np.arange(len(kept))
        return Selection(
            calls,
            given,
            self.renumbered(self._entries("refs", REFS, calls)),
            self._entries("ints", INTS, calls),
            self._entries("lengths", RAGGED, calls),
            self.renumbered(self._members(calls)),
        )

    def window(self, read: Integers, last: Run | None) -> Window:
        """Return the calls of a round as a small graph.

        Parameters
        ----------
        read : int64 array
            The calls whose rows are wanted: those that were not run yet are run, the others given.
        last : Run or None
            The round before, which knows how to cut blocks and to put them together.
        """
        selection, graph = self.select(read), self.graph
        calls, given = selection.calls, selection.given
        blocks, launch, counts = distinct(self._block.values[given])
        if last is not None and self._tidy(blocks, counts, given, last):
            blocks, launch, _ = distinct(self._block.values[given])
        kept = np.concatenate([given, calls])
        kind = self._signature.values[kept]
        kind[: len(given)] += len(graph.signatures)
        columns = Columns(
            signatures=self._signatures,
            parts=tuple(graph.parts),
            signature=kind,
            refs=selection.refs,
            ints=selection.ints,
            floats=self._entries("floats", FLOATS, calls),
            arrays=[graph.arrays[i] for i in self._at(ARRAYS, calls).tolist()] if graph.arrays else [],
            lengths=selection.lengths,
            members=selection.members,
            loose=graph.loose,
        )
        place = Place.nowhere(len(kept))
        place.launch[: len(given)] = launch
        place.row[: len(given)] = self._row.values[given]
        numbers = blocks.tolist()
        place.rows += [self.blocks[block].rows for block in numbers]
        self._refuse_batched(columns, place, kept)
        alone = len(given) + self._whole.values[calls].nonzero()[0]
        return Window(columns, kept, len(given), place, numbers, alone)

    def renumbered(self, refs: Integers) -> Integers:
        """Return references with the numbers that calls have in the last window."""
        nodes = refs >= 0
        if nodes.all():
            return refs & ~CALL_MASK | self._number.values[refs & CALL_MASK]
        found = refs.copy()
        found[nodes] = self.renumbered(refs[nodes])
        return found

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
                "call no_batch(), and pass it on, before anything that needs the node is awaited; with "
                "cse=True an equal call is the same node.",
            )

    def _tidy(self, blocks: Integers, counts: Integers, given: Integers, last: Run) -> bool:
        """Cut and put together the blocks that a round reads; return whether any was."""
        before = self._next
        while True:  # no walrus: AutoGraph would rewrite such a loop into one that fails
            sparse = [
                number
                for number, count in zip(blocks.tolist(), counts.tolist(), strict=True)
                if self.blocks[number].rows > max(SMALL, SPARSE * count)
            ]
            if not sparse:
                break
            for number in sparse:
                self._cut(number, last)
            blocks, _, counts = distinct(self._block.values[given])
        self._put_together(blocks.tolist(), last)
        return self._next != before

    def _cut(self, number: int, last: Run) -> None:
        """Cut a block into pieces."""
        block = self.blocks.pop(number)
        bounds = np.linspace(0, block.rows, SPARSE + 1).astype(np.int64)
        sizes = np.diff(bounds).tolist()
        begin = np.searchsorted(block.row, bounds).tolist()
        for i, value in enumerate(last.values.split(block.value, sizes)):
            mine = slice(begin[i], begin[i + 1])
            self._keep(value, sizes[i], block.calls[mine], block.row[mine] - bounds[i])

    def _put_together(self, read: list[int], last: Run) -> None:
        """Put small blocks that are read together, and whose rows fit together, into one."""
        if last.backend.pads:
            return  # it compiles for each number of rows, and these would be new in every round
        groups: dict[Hashable, dict[int, Block]] = {}
        heights: dict[Hashable, int] = {}
        for number in read:
            block = self.blocks[number]
            if block.rows > PAGE // 2 or (block.rows == 1 and self._whole.values[block.calls].any()):
                continue
            if block.kind is None:
                block.kind = last.values.class_of(block.value)
            height = heights.get(block.kind, 0) + block.rows
            if height <= PAGE:
                heights[block.kind] = height
                groups.setdefault(block.kind, {})[number] = block
        for kind, blocks in groups.items():
            if len(blocks) < 2:
                continue
            end, rows = 0, []
            for number, block in blocks.items():
                del self.blocks[number]
                rows.append(block.row + end)
                end += block.rows
            calls = np.concatenate([block.calls for block in blocks.values()])
            value = last.values.concat([block.value for block in blocks.values()])
            self._keep(value, end, calls, np.concatenate(rows), kind)

    # ---- what was computed ---------------------------------------------------------------------

    def keep(self, window: Window, run: Run, launches: Sequence[Integers]) -> None:
        """Keep the results of a round that was run: a block for the calls of each launch."""
        first, place = len(window.blocks), run.place
        for number, calls in enumerate(launches, start=first):
            if number in run.results:
                kept = window.calls[calls]
                value = run.results[number]
                if place.rows[number] > 1 or not self._whole.values[kept].any():
                    value = opened(value)
                self._keep(value, place.rows[number], kept, place.row[calls])

    def _keep(self, value: Any, rows: int, calls: Integers, row: Integers, kind: Hashable = None) -> None:
        self.blocks[self._next] = Block(value, rows, calls, row, kind)
        self._block.values[calls] = self._next
        self._row.values[calls] = row
        self._next += 1
        self._held += numbers_in(value)

    def sources(self, refs: Integers) -> list[Any]:
        """Return the blocks, or their parts, that the rows behind some references lie in, each once."""
        blocks, parts = self._block.values[refs & CALL_MASK].tolist(), (refs >> PART_BITS).tolist()
        return [opened(self.part_of(*place)) for place in dict.fromkeys(zip(blocks, parts, strict=True))]

    def part_of(self, number: int, part: int) -> Any:
        """Return a part of a block; refuse one that is not there, or holds nothing."""
        call = int(self.blocks[number].calls[0])

        def refuse(what: str) -> LaunchError:
            result = f"The result of {Node(self.graph, call)!r}, recorded at {self.graph.site(call)}"
            return LaunchError(f"{result}, {what}.", PARTS_HINT)

        value = follow(self.blocks[number].value, steps_to(self.graph.parts, part), refuse)
        if value is None:
            raise refuse("holds nothing in a part that is read")
        return value

    def sweep(self) -> None:
        """Drop the blocks that no node can ask for any more, now and then.

        A block is read again only through a node that the user still holds, or through a call
        that such a node needs. Nodes are not counted while recording: the garbage collector knows
        them, as what refers to the graph. Asking it takes time with all objects of the process, so many
        calls lie between two times, or results of twice as many numbers as were left the last time.
        """
        heavy = self._held > max(HEAVY, 2 * self._held_before)
        if (len(self) - self._swept < MANY and not heavy) or gc.get_freeze_count() != self._frozen:
            return  # nodes that were frozen since are not found
        self._swept = len(self)
        nodes = nodes_of(self.graph)
        calls = np.unique(np.array([node._ref & CALL_MASK for node in nodes], np.int64))
        calls = calls[calls < len(self)]
        alive = set(self._block.values[self.select(calls).given].tolist())
        self.blocks = {number: block for number, block in self.blocks.items() if number in alive}
        self._held = self._held_before = sum(numbers_in(block.value) for block in self.blocks.values())


def nodes_of(graph: Graph) -> list[Node]:
    """Return the nodes of a graph that anybody holds.

    Meanwhile nothing may be collected: the garbage collector goes through its own lists here, and some
    objects of TensorFlow allocate when they are asked what they refer to.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return [x for x in gc.get_referrers(graph) if isinstance(x, Node)]
    finally:
        if collects:
            gc.enable()


def numbers_in(value: Any) -> int:
    """Return how many numbers the arrays of a value hold; 0 where no shape is known."""
    try:
        return sum(math.prod(getattr(leaf, "shape", (0,))) for leaf in leaves_of(value))
    except (TypeError, ValueError):  # while TensorFlow draws a graph
        return 0


def distinct(values: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the distinct ones of some integers, which of them each is, and how often each of them occurs.

    Examples
    --------
    >>> [column.tolist() for column in distinct(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 1], [1, 2]]
    """
    columns = None if kernels is None else kernels.distinct(values)
    if columns is None:
        found, place, counts = np.unique(values, return_inverse=True, return_counts=True)
        return found, place.reshape(-1), counts
    found, place, counts = [np.frombuffer(column, np.int64) for column in columns]
    return found, place, counts


def without_operands(signature: Signature) -> Signature:
    """Return what stands for a signature where a call is given: its name, and no operands."""
    return Signature(signature.op, (), None, {})
