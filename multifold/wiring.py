"""Which rows go where: row orders, gathers, splits and concatenations between blocks, as integers.

The obvious executor gathers each operand straight from its source block; its backward pass fills the
gradient of the whole source once for every launch that reads it. Here every block is read once: cut by
one split into *sections*, one for each (reading launch, operand), after at most one gather of the rows
that a split cannot reach. An operand is one concatenation of its sections and at most one permuting
gather. The rows of a launch are ordered by (first reading launch, operand, row in it), so that
most sections are plain slices. Where that would leave more operands to permute than the launch has
parts that are read, its rows are ordered by the launches that they read from instead: then its operands
are plain concatenations of runs, and its own block is gathered once. Cost: every row is copied once or
twice in either direction, whatever the number of launches.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from multifold.columns import Columns, Integers, ranges, starts
from multifold.graph import CALL_MASK, PART_BITS
from multifold.schedule import Schedule
from multifold.signature import Signature


@dataclass(slots=True)
class Place:
    """Where the calls of a run are: the launch and the row of each, and the rows of each launch."""

    launch: Integers
    row: Integers
    rows: list[int]

    @classmethod
    def nowhere(cls, calls: int) -> Place:
        """Return the places before anything was run."""
        size = max(calls, 1)  # loose values are looked up as if they were rows of call 0
        return cls(np.full(size, -1), np.zeros(size, np.int64), [])

    def copy(self) -> Place:
        """Return places that can be changed without changing these."""
        return Place(self.launch.copy(), self.row.copy(), self.rows.copy())


@dataclass(slots=True)
class Operand:
    """How a batched operand is put together: concatenate sections, then permute.

    Attributes
    ----------
    rows : int
        The number of rows.
    sections : list of int
        Numbers of the sections, in the order of concatenation.
    sources : list of (int, int)
        (launch, part) of each section; launch -1 stands for loose values.
    permute : int or None
        Which index array permutes the concatenated rows.
    """

    rows: int
    sections: list[int] = field(default_factory=list)
    sources: list[tuple[int, int]] = field(default_factory=list)
    permute: int | None = None


@dataclass(slots=True)
class RaggedRows:
    """A ragged operand: its rows, and the index arrays of lengths and segment ids."""

    operand: Operand
    lengths: int
    segments: int


@dataclass(slots=True)
class Numbers:
    """A batch of Python numbers: which array of its kind (``"int"``, ``"float"``, ``"bool"``)."""

    kind: str
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
class Cut:
    """How a part of a launch's result is read: by slices of one split, and by one gather.

    Attributes
    ----------
    part : int
        Which part of the result.
    whole : list of int
        Sections that are the whole block.
    sizes, slices : lists
        Sizes of the split of the block, and the section that each piece is (None for rows that are
        read otherwise).
    gather : int or None
        Which index array gathers the remaining sections.
    gathered_sizes, gathered : lists
        The split of the gathered rows, and the section that each piece is.
    """

    part: int
    whole: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    slices: list[int | None] = field(default_factory=list)
    gather: int | None = None
    gathered_sizes: list[int] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LaunchWiring:
    """One launch: its calls in the order of its rows, its operands, and how its result is read.

    ``slots`` has an entry for each slot of the signature, None where the slot itself says all.
    ``last_read`` names the launches whose blocks nobody reads after this one.
    """

    number: int
    signature: Signature
    calls: Integers
    slots: list[Operand | RaggedRows | Numbers | Leaves | Whole | None]
    cuts: list[Cut] = field(default_factory=list)
    last_read: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Wiring:
    """The wiring of a schedule.

    Attributes
    ----------
    launches : list of LaunchWiring
        In the order in which they run.
    outputs : list of Operand
        The groups that were asked for.
    given : dict of int to list of Cut
        How the blocks of launches that had run before are read.
    indices, floats, bools : list of arrays
        All index arrays and numbers: uploaded at once, and referred to by position.
    loose : dict of int to list of int
        Sections that are made of loose values, and the places of those.
    """

    launches: list[LaunchWiring]
    outputs: list[Operand]
    given: dict[int, list[Cut]]
    indices: list[Integers]
    floats: list[np.ndarray]
    bools: list[np.ndarray]
    loose: dict[int, list[int]]


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
    plan = Wiring([], [], {}, [], [], [], {})
    reads, sizes = order_rows(columns, schedule, place, outputs)
    for calls in reads.calls:
        plan.launches.append(_launch(columns, plan, first + len(plan.launches), calls, place))
    operands: list[Operand] = []
    for launch in plan.launches:
        slots = zip(launch.signature.slots, launch.slots, strict=True)
        for slot, wired in slots:
            if slot.kind == "node":
                operands.append(wired)  # type: ignore[arg-type]
            elif isinstance(wired, RaggedRows):
                operands.append(wired.operand)
    plan.outputs = [Operand(len(group)) for group in outputs]
    operands += plan.outputs
    _cut(plan, operands, reads, outputs, sizes, place, first, columns)
    _free(plan)
    return plan


@dataclass(slots=True)
class Reads:
    """What the launches read.

    Attributes
    ----------
    calls : list of int64 array
        The calls of each launch, in the order of its rows.
    refs : list of int64 array
        The references that each launch reads, by (operand, row).
    by_source : list of bool
        Whether the rows of a launch are ordered by what they read.
    """

    calls: list[Integers]
    refs: list[Integers]
    by_source: list[bool]


def order_rows(
    columns: Columns, schedule: Schedule, place: Place, outputs: Sequence[Integers]
) -> tuple[Reads, list[int]]:
    """Order the rows of each launch, from the last launch to the first.

    Returns what each launch reads, and the number of rows of each operand.
    """
    first = len(place.rows)
    place.launch[schedule.calls] = first + np.repeat(np.arange(len(schedule)), schedule.sizes)
    parts = parts_read(columns, place, first + len(schedule))
    after = len(columns.refs) + len(columns.members) + sum(map(len, outputs))
    reader = np.full(len(columns), after)  # position of the first read of each call
    position = after

    def read(refs: Integers) -> None:
        nonlocal position
        position -= len(refs)
        if len(refs) and refs.min() < 0:
            nodes = refs >= 0
            at, sources = position + np.flatnonzero(nodes), refs[nodes] & CALL_MASK
        else:
            at, sources = np.arange(position, position + len(refs)), refs & CALL_MASK
        reader[sources[::-1]] = at[::-1]  # of several reads of one call the first is written last

    for group in reversed(outputs):
        read(group)
    reads = Reads([], [], [])
    sizes: list[list[int]] = [[len(group)] for group in outputs][::-1]
    for index in range(len(schedule) - 1, -1, -1):
        calls = schedule.members(index)
        signature = columns.signatures[columns.signature[calls[0]]]
        sources = None
        if signature.batched:
            sources = source_order(columns, signature, calls, place, parts[first + index], reader[calls])
            order = np.argsort(reader[calls], kind="stable") if sources is None else sources
            calls = calls[order]
            place.row[calls] = np.arange(len(calls))
        refs, lengths = operand_refs(columns, signature, calls)
        read(refs)
        reads.calls.append(calls)
        reads.refs.append(refs)
        reads.by_source.append(sources is not None)
        sizes.append(lengths)
    for backwards in (reads.calls, reads.refs, reads.by_source):
        backwards.reverse()
    for calls in reads.calls:
        batched = columns.signatures[columns.signature[calls[0]]].batched
        place.rows.append(len(calls) if batched else 1)
    return reads, [size for launch in reversed(sizes) for size in launch]


def parts_read(columns: Columns, place: Place, launches: int) -> list[int]:
    """Return how many parts of the result of each launch are read by other calls."""
    refs = columns.refs
    if len(columns.members):
        refs = np.concatenate([refs, columns.members[columns.members >= 0]])
    launch, count = place.launch[refs & CALL_MASK], len(columns.parts)
    seen = np.zeros(launches * count, bool)
    seen[(launch * count + (refs >> PART_BITS))[launch >= 0]] = True
    found: list[int] = seen.reshape(launches, count).sum(axis=1).tolist()
    return found


def source_order(
    columns: Columns,
    signature: Signature,
    calls: Integers,
    place: Place,
    parts: int,
    reader: Integers,
) -> Integers | None:
    """Return the order of the rows of a launch by (launches that they read from, first reader).

    None where the order of the readers is the better one: where no more operands would have to be
    permuted than the launch has parts that are read, or where the runs would be too short.
    """
    if signature.ragged or len(signature.batched_refs) <= parts:
        return None
    at = columns.ref_starts[calls] + signature.batched_refs[:, None]
    launch = place.launch[columns.refs[at] & CALL_MASK]
    mixed = launch[(launch != launch[:, :1]).any(axis=1)]
    if len(mixed) <= parts:
        return None
    distinct = mixed[np.append(True, (mixed[1:] != mixed[:-1]).any(axis=1))]
    key, span = distinct[0], len(place.rows) + int(launch.max()) + 1
    if span ** len(distinct) >= 1 << 62:
        return None
    for row in distinct[1:]:
        key = key * span + row
    order = np.lexsort((reader, key))
    runs = 1 + np.count_nonzero(np.diff(key[order]))
    sources = np.count_nonzero(np.bincount(distinct.ravel() - distinct.min()))
    return order if runs <= 4 * sources else None


def operand_refs(columns: Columns, signature: Signature, calls: Integers) -> tuple[Integers, list[int]]:
    """Return what a launch reads, by (operand, row), and the number of rows of each operand."""
    if not signature.ragged:
        at = columns.ref_starts[calls] + signature.batched_refs[:, None]
        return columns.refs[at].ravel(), [len(calls)] * len(signature.batched_refs)
    found = [np.zeros(0, np.int64)]
    for slot, position in zip(signature.slots, signature.positions, strict=True):
        if slot.kind == "node":
            found.append(columns.refs[columns.ref_starts[calls] + position])
        elif slot.kind == "ragged":
            at = columns.ragged_starts[calls] + position
            found.append(columns.members[ranges(columns.member_starts[at], columns.lengths[at])])
    return np.concatenate(found), [len(refs) for refs in found[1:]]


def _launch(columns: Columns, plan: Wiring, number: int, calls: Integers, place: Place) -> LaunchWiring:
    """Return a launch with everything but the sections of its operands."""
    signature = columns.signatures[columns.signature[calls[0]]]
    launch = LaunchWiring(number, signature, calls, [])
    for slot, position in zip(signature.slots, signature.positions, strict=True):
        wired: Operand | RaggedRows | Numbers | Leaves | Whole | None = None
        if slot.kind == "node":
            wired = Operand(len(calls))
        elif slot.kind == "shared node":
            ref = int(columns.refs[columns.ref_starts[calls[0]] + position])
            wired = Whole(int(place.launch[ref & CALL_MASK]), ref >> PART_BITS)
        elif slot.kind == "ragged":
            lengths = columns.lengths[columns.ragged_starts[calls] + position]
            segments = np.repeat(np.arange(len(calls)), lengths)
            wired = RaggedRows(
                Operand(len(segments)), _keep(plan.indices, lengths), _keep(plan.indices, segments)
            )
        elif slot.kind == "int":
            values = columns.ints[columns.int_starts[calls] + position]
            wired = Numbers("int", _keep(plan.indices, values))
        elif slot.kind == "bool":
            values = columns.ints[columns.int_starts[calls] + position].astype(bool)
            wired = Numbers("bool", _keep(plan.bools, values))
        elif slot.kind == "float":
            values = columns.floats[columns.float_starts[calls] + position]
            wired = Numbers("float", _keep(plan.floats, values))
        elif slot.kind == "array":
            wired = Leaves((columns.array_starts[calls] + position).tolist())
        launch.slots.append(wired)
    return launch


def _keep(pieces: list[np.ndarray], piece: np.ndarray) -> int:
    """Append an array to the ones that are uploaded together and return its number."""
    pieces.append(piece)
    return len(pieces) - 1


def _cut(
    plan: Wiring,
    operands: list[Operand],
    reads: Reads,
    outputs: Sequence[Integers],
    sizes: list[int],
    place: Place,
    first: int,
    columns: Columns,
) -> None:
    """Group all reads into sections, and write them into operands and cuts."""
    count = sum(sizes)
    if not count:
        return
    refs = np.concatenate([*reads.refs, *outputs])
    operand = np.repeat(np.arange(len(sizes)), sizes)
    loose = refs < 0
    call = np.where(loose, 0, refs & CALL_MASK)
    parts = len(columns.parts)
    block = np.where(loose, len(place.rows), place.launch[call]) * parts
    block += np.where(loose, 0, refs >> PART_BITS)
    row = place.row[call]
    # Radix sort serves integers of 16 bits; most minibatches have that few blocks.
    small = block.astype(np.uint16) if (len(place.rows) + 1) * parts < 1 << 16 else block
    order = np.argsort(small, kind="stable")
    block, owner, row = block[order], operand[order], row[order]
    opens = np.ones(count, bool)
    opens[1:] = (block[1:] != block[:-1]) | (owner[1:] != owner[:-1])
    if any(reads.by_source):  # there a section is a run of rows, which need no permutation
        lengths = [len(r) for r in (*reads.refs, *outputs)]
        runs = np.repeat([*reads.by_source, *[False] * len(outputs)], lengths)
        opens[1:] |= runs[order[1:]] & (order[1:] != order[:-1] + 1)
    begin = np.flatnonzero(opens)
    size = np.diff(np.append(begin, count))
    jumps = np.zeros(count, np.int64)
    jumps[1:] = row[1:] != row[:-1] + 1
    jumps[begin] = 0
    solid = np.add.reduceat(jumps, begin) == 0
    # Sections of an operand are concatenated by their first rows: rows that come in runs stay put.
    by_operand = np.argsort(order[begin], kind="stable")
    offset = np.empty(len(begin), np.int64)
    offset[by_operand] = starts(size[by_operand])[:-1]
    position = np.empty(count, np.int64)
    position[order] = np.repeat(offset - begin, size) + np.arange(count)
    moved = starts(position != np.arange(count))
    bounds = starts(np.array(sizes, np.int64))
    permuted = moved[bounds[1:]] > moved[bounds[:-1]]
    for number in np.flatnonzero(permuted).tolist():
        low, high = bounds[number], bounds[number + 1]
        operands[number].permute = _keep(plan.indices, position[low:high] - low)
    source, part = np.divmod(block[begin], parts)
    source[source == len(place.rows)] = -1
    owners = owner[begin]
    sources = list(zip(source.tolist(), part.tolist(), strict=True))
    for section, number in zip(by_operand.tolist(), owners[by_operand].tolist(), strict=True):
        operands[number].sections.append(section)
        operands[number].sources.append(sources[section])
    blocks = np.flatnonzero(np.diff(block[begin], prepend=-1)).tolist()
    begins, size_list, solids = begin.tolist(), size.tolist(), solid.tolist()
    row_at = row[begin].tolist()
    for low, high in zip(blocks, [*blocks[1:], len(begins)], strict=True):
        number, part_number = sources[low]
        if number < 0:
            for section in range(low, high):
                at = order[begins[section] : begins[section] + size_list[section]]
                plan.loose[section] = (-1 - refs[at]).tolist()
            continue
        cut = Cut(part_number)
        spans = [
            (section, row_at[section], size_list[section], solids[section]) for section in range(low, high)
        ]
        remaining = _slices(cut, spans, place.rows[number])
        if remaining:
            rows = [row[begins[s] : begins[s] + size_list[s]] for s in remaining]
            cut.gather = _keep(plan.indices, np.concatenate(rows))
            cut.gathered = remaining
            cut.gathered_sizes = [size_list[s] for s in remaining]
        if number < first:
            plan.given.setdefault(number, []).append(cut)
        else:
            plan.launches[number - first].cuts.append(cut)


def _slices(cut: Cut, spans: list[tuple[int, int, int, bool]], rows: int) -> list[int]:
    """Give sections that are disjoint ranges of rows to one split; return the others."""
    remaining = []
    taken: list[tuple[int, int, int]] = []
    for section, start, size, solid in spans:
        if not solid:
            remaining.append(section)
        elif size == rows:
            cut.whole.append(section)
        else:
            at = bisect.bisect_left(taken, (start, 0, 0))
            before = at == 0 or taken[at - 1][1] <= start
            if before and (at == len(taken) or start + size <= taken[at][0]):
                taken.insert(at, (start, start + size, section))
            else:
                remaining.append(section)
    end = 0
    for start, stop, section in taken:
        if start > end:
            cut.sizes.append(start - end)
            cut.slices.append(None)
        cut.sizes.append(stop - start)
        cut.slices.append(section)
        end = stop
    if taken and end < rows:
        cut.sizes.append(rows - end)
        cut.slices.append(None)
    return remaining


def _free(plan: Wiring) -> None:
    """Note after which launch each block is read for the last time; outputs are read at the end."""
    last: dict[int, int] = {}
    for index, launch in enumerate(plan.launches):
        for wired in launch.slots:
            if isinstance(wired, Whole):
                last[wired.launch] = index
            elif isinstance(wired, (Operand, RaggedRows)):
                operand = wired.operand if isinstance(wired, RaggedRows) else wired
                for number, _ in operand.sources:
                    last[number] = index
    for operand in plan.outputs:
        for number, _ in operand.sources:
            last.pop(number, None)
    last.pop(-1, None)
    for number, index in last.items():
        plan.launches[index].last_read.append(number)
