"""Which rows go where: row orders, gathers, splits and concatenations between blocks, as integers.

The obvious executor gathers each operand straight from its source block; its backward pass fills the
gradient of the whole source once for every launch that reads it. Here every block is read once: cut by
one split into *sections*, one for each (reading launch, operand), after at most one gather of the rows
that a split cannot reach. An operand is one concatenation of its sections and at most one permuting
gather. The rows of a launch lie so that most sections are plain slices (`multifold._wiring.order`). Cost:
every row is copied once or twice in either direction, whatever the number of launches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from multifold._record.kinds import NUMBERS
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns, Integers, starts
from multifold._schedule.schedule import Schedule
from multifold._wiring.order import Place, Reads, order_rows
from multifold._wiring.sections import group, plan_reads

__all__ = [
    "LaunchWiring",
    "Leaves",
    "Numbers",
    "Operand",
    "Place",
    "RaggedRows",
    "Reading",
    "Whole",
    "Wiring",
    "wire",
]


@dataclass(slots=True)
class Operand:
    """How a batched operand is put together: concatenate sections, then permute.

    Attributes
    ----------
    rows : int
        The number of rows.
    sections : tuple of int
        Numbers of the sections, in the order of concatenation.
    permute : int or None
        Which index array permutes the concatenated rows.
    """

    rows: int
    sections: tuple[int, ...] = ()
    permute: int | None = None


@dataclass(slots=True)
class RaggedRows:
    """A ragged operand: its rows, and the index arrays of lengths and segment ids."""

    operand: Operand
    lengths: int
    segments: int


@dataclass(slots=True)
class Numbers:
    """A batch of Python numbers: which of the arrays of their type (int, float or bool)."""

    type: type
    piece: int


@dataclass(slots=True)
class Leaves:
    """Leaf arrays to be stacked: their places in the column of arrays, in the order of the rows."""

    places: list[int]


@dataclass(slots=True)
class Whole:
    """The whole value of a part of a launch's result."""

    launch: int
    part: int


@dataclass(slots=True)
class Reading:
    """How a part of a launch's result is read: by slices of one split, and by one gather.

    Attributes
    ----------
    part : int
        Which part of the result.
    whole : tuple of int
        Sections that are the whole block.
    sizes, slices : tuples
        Sizes of the split of the block, and the section that each piece is (None for rows that are
        read otherwise).
    gathered_sizes, gathered : tuples
        The split of the gathered rows, and the section that each piece is.
    gather : int or None
        Which index array gathers the rows of those sections.
    """

    part: int
    whole: tuple[int, ...]
    sizes: tuple[int, ...]
    slices: tuple[int | None, ...]
    gathered_sizes: tuple[int, ...]
    gathered: tuple[int, ...]
    gather: int | None


@dataclass(slots=True)
class LaunchWiring:
    """One launch: its calls in the order of its rows, its operands, and how its result is read.

    ``slots`` has an entry for each slot of the signature, None where the slot itself says all; ``operands``
    are those that are rows of launches, in their order. ``last_read`` names the launches whose blocks
    nobody reads after this one.
    """

    number: int
    signature: Signature
    calls: Integers
    slots: list[Operand | RaggedRows | Numbers | Leaves | Whole | None]
    operands: list[Operand]
    readings: list[Reading] = field(default_factory=list)
    last_read: tuple[int, ...] = ()


@dataclass(slots=True)
class Wiring:
    """The wiring of a schedule.

    Attributes
    ----------
    place : Place
        Where each call is when all have run.
    launches : list of LaunchWiring
        In the order in which they run.
    outputs : list of Operand
        The groups that were asked for.
    given : dict of int to list of Reading
        How the blocks of launches that had run before are read.
    sources : list of (int, int)
        The block that each section is read from, (launch, part); launch -1 stands for loose values.
    numbers : dict of type to list of arrays
        The arrays of int, float and bool: each type is uploaded at once, and referred to by position.
    loose : dict of int to list of int
        Sections that are made of loose values, and the places of those.
    """

    place: Place
    launches: list[LaunchWiring]
    outputs: list[Operand]
    given: dict[int, list[Reading]]
    sources: list[tuple[int, int]]
    numbers: dict[type, list[np.ndarray]]
    loose: dict[int, list[int]]

    @property
    def indices(self) -> list[Integers]:
        """All index arrays: they are uploaded together with the ints that calls have as operands."""
        return self.numbers[int]


def wire(columns: Columns, schedule: Schedule, place: Place, outputs: Sequence[Integers]) -> Wiring:
    """Return the wiring of a schedule; ``place`` is extended by the launches of the schedule.

    Parameters
    ----------
    columns : Columns
        The recorded calls.
    schedule : Schedule
        The launches; their numbers continue those of ``place``.
    place : Place
        Where calls that have run before are.
    outputs : sequence of int64 arrays
        The references of each group that is asked for; ``-1 - i`` stands for loose value ``i``.
    """
    first = len(place.rows)
    plan = Wiring(place, [], [], {}, [], {number: [] for number in NUMBERS}, {})
    reads = order_rows(columns, schedule, place, outputs)
    operands, blocks = _operands(plan, reads, len(columns.parts))
    rest = iter(operands)
    numbers = range(first, len(place.rows))
    for number, signature, calls in zip(numbers, reads.signatures, reads.calls, strict=True):
        plan.launches.append(_launch(columns, plan, number, signature, calls, rest))
    plan.outputs = list(rest)
    asked = {section for operand in plan.outputs for section in operand.sections}
    for number, read in blocks:
        launch = plan.launches[number - first] if number >= first else None
        if len(read.whole) > 1:
            one_row = place.rows[number] == 1 and not (launch and launch.signature.batched)
            _part(plan, read, read.whole if one_row else asked.intersection(read.whole), place.rows[number])
        readings = plan.given.setdefault(number, []) if launch is None else launch.readings
        readings.append(read)
    _free(plan)
    return plan


def _operands(plan: Wiring, reads: Reads, parts: int) -> tuple[list[Operand], list[tuple[int, Reading]]]:
    """Return the operands of all launches and the outputs, and how each block is read: (launch, cut)."""
    if not len(reads.refs):
        return [Operand(0) for _ in reads.sizes], []
    sections = group(reads, plan.place, parts)
    pieces = plan_reads(sections, plan.place.rows, parts, len(reads.sizes))
    plan.sources = pieces.sources
    operands = list(map(Operand, reads.sizes.tolist(), pieces.sections))
    bounds = starts(reads.sizes)
    for operand in np.flatnonzero(sections.moved).tolist():
        low, high = bounds[operand], bounds[operand + 1]
        operands[operand].permute = _keep(plan.indices, sections.position[low:high] - low)
    blocks: list[tuple[int, Reading]] = []
    for (number, part), low, high, reading in pieces.blocks:
        if number >= 0:
            gather = _keep(plan.indices, pieces.rows[low:high]) if high > low else None
            blocks.append((number, Reading(part, *reading, gather)))
            continue
        for section in reading[-1]:
            begin = sections.begin[section]
            plan.loose[section] = sections.rows[begin : begin + sections.size[section]].tolist()
    return operands, blocks


def _launch(
    columns: Columns,
    plan: Wiring,
    number: int,
    signature: Signature,
    calls: Integers,
    operands: Iterator[Operand],
) -> LaunchWiring:
    """Return a launch, which takes its operands from the front of all that are left."""
    rows = list(islice(operands, len(signature.layout)))
    launch = LaunchWiring(number, signature, calls, [], rows)
    if len(rows) == len(signature.slots) and not signature.ragged:
        launch.slots += rows
        return launch
    operands = iter(rows)
    for slot, position in signature.operands:
        kind = slot.kind
        wired: Operand | RaggedRows | Numbers | Leaves | Whole | None = None
        if kind.number is not None:
            values = columns.operand(slot, position, calls)
            wired = Numbers(kind.number, _keep(plan.numbers[kind.number], values))
        elif kind.array:
            wired = Leaves(columns.entries(slot, position, calls).tolist())
        elif kind.rows:
            wired = next(operands)
            if kind.ragged:
                lengths = columns.lengths[columns.operand(slot, position, calls)]
                segments = np.repeat(np.arange(len(calls)), lengths)
                wired = RaggedRows(wired, _keep(plan.indices, lengths), _keep(plan.indices, segments))
        elif kind.ref:
            ref = int(columns.operand(slot, position, calls[0]))
            wired = Whole(int(plan.place.launch[ref & CALL_MASK]), ref >> PART_BITS)
        launch.slots.append(wired)
    return launch


def _keep(pieces: list[np.ndarray], piece: np.ndarray) -> int:
    """Append an array to the ones that are uploaded together and return its number."""
    pieces.append(piece)
    return len(pieces) - 1


def _part(plan: Wiring, read: Reading, readers: Collection[int], rows: int) -> None:
    """Let each of the sections ``readers``, which are all of a block, but the first have a copy of it.

    An op may write to the one row that stands for several calls, as to zeros that one example begins
    with, and a person to what was asked for.
    """
    copies = sorted(readers)[1:]
    if not copies:
        return
    index = np.tile(np.arange(rows), len(copies))
    if read.gather is None:
        read.gather = _keep(plan.indices, index)
    else:
        plan.indices[read.gather] = np.concatenate([plan.indices[read.gather], index])
    read.whole = tuple(section for section in read.whole if section not in copies)
    read.gathered_sizes += (rows,) * len(copies)
    read.gathered += tuple(copies)


def _free(plan: Wiring) -> None:
    """Note after which launch each block is read for the last time; outputs are read at the end."""
    last: dict[int, int] = {}
    for index, launch in enumerate(plan.launches):
        if len(launch.signature.shared_refs):
            last.update((wired.launch, index) for wired in launch.slots if isinstance(wired, Whole))
        for operand in launch.operands:
            for section in operand.sections:
                last[plan.sources[section][0]] = index
    for operand in plan.outputs:
        for section in operand.sections:
            last.pop(plan.sources[section][0], None)
    last.pop(-1, None)
    for number, index in last.items():
        plan.launches[index].last_read += (number,)
