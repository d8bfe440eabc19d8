"""Which rows go where: splits, gathers and concatenations between the results of launches, as integers.

The obvious executor gathers each operand straight from the results that it reads. Its backward pass then
fills a gradient as large as the whole result once for every launch that reads it: for 8,192 rows of width
256 that 256 launches read, 153 ms with PyTorch and 827 ms with MXNet. Read as below, the same takes 11 and
74 ms, since every row is copied once or twice in either direction, whatever the number of launches.

So each result is read once. One split, after at most one gather of the rows that a split cannot reach,
makes *sections* of it: one section for each (reading launch, operand). An operand is one concatenation of
its sections and at most one permuting gather.

The rows of a launch are ordered by (first launch that reads them, operand, row in it). So rows which one
operand reads lie side by side, and most sections are plain slices. The launches are therefore ordered from
the last one to the first. That can leave operands of the launch itself to be permuted. Where these are more
than the parts of its result that are read, its rows are ordered by the launches that they read from
instead: then its operands are plain concatenations, and each part of its result is gathered once.

An operand that is permuted anyway takes the rows of each section as they lie in the result. Say that it
reads ``b1 a0 b0 a1`` of two launches with two rows each. In the order of its reads, ``b1 b0`` would be
gathered before ``b1 b0 a0 a1`` is permuted. As they lie, ``b`` and ``a`` are read whole, and one gather
permutes ``b0 b1 a0 a1``. A tagger of two layers had 86 such gathers in 195 launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from multifold import _compiled
from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers, ReadingColumns
from multifold._record.kinds import NUMBERS, Kind
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns
from multifold._schedule.schedule import Schedule
from multifold._wiring.place import Place


class Operand(NamedTuple):
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
    """A batch of Python numbers: which of the uploaded arrays of their type (int, float or bool)."""

    type: type
    upload: int


class Entries(NamedTuple):
    """Recorded numbers that a launch receives: where they are uploaded, their kind and their entries."""

    numbers: Numbers
    kind: Kind
    at: Integers


@dataclass(slots=True)
class Leaves:
    """Leaf arrays to be stacked: their entries in the column of arrays, in the order of the rows."""

    entries: list[int]


@dataclass(slots=True)
class Whole:
    """The whole value of a part of a launch's result."""

    launch: int
    part: int


class Reading(NamedTuple):
    """How a part of a launch's result is read: by slices of one split, and by one gather.

    Attributes
    ----------
    part : int
        Which part of the result.
    whole : tuple of int
        Sections that are the whole part.
    sizes, slices : tuples
        Sizes of the split of the part, and the section that each slice is (None for rows that are
        gathered instead).
    gathered_sizes, gathered : tuples
        Sizes of the split of the gathered rows, and the section that each slice is.
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


Wired = Operand | RaggedRows | Numbers | Leaves | Whole | None
"""How a launch gets the operand of one slot; None if the value in the signature is the operand."""


class LaunchWiring(NamedTuple):
    """One launch: what goes in, and how its result is read.

    Attributes
    ----------
    number : int
        The number of the launch in the run.
    signature : Signature
        The signature of its calls.
    calls : int64 array
        Its calls, in the order of its rows.
    slots : list
        How each slot of the signature gets its operand.
    operands : list of Operand
        The operands whose rows come from launches, in the order of their slots.
    readings : list of Reading
        How the parts of its result are read.
    last_read : sequence of int
        The launches whose results no later launch reads: they can be dropped after this one.
    """

    number: int
    signature: Signature
    calls: Integers
    slots: Sequence[Wired]
    operands: Sequence[Operand]
    readings: Sequence[Reading]
    last_read: Sequence[int]


# A wiring has a few of these for each launch. The classes' own __new__ are functions of Python; with the
# tuple's, a map makes all of them without one, in a third of the time.
OPERAND = partial(tuple.__new__, Operand)
READING = partial(tuple.__new__, Reading)
LAUNCH = partial(tuple.__new__, LaunchWiring)


@dataclass(slots=True)
class Before:
    """What a run of a wiring leaves for the next one.

    Attributes
    ----------
    ran : bool
        Whether there was one, so that more may follow.
    results : object or None
        What its results were, without their values: `multifold._run.outcome.PastRun`.
    """

    ran: bool = False
    results: Any = None

    def note(self, results: Any) -> None:
        """Note that a run came to its end, and what its results were, where the run has noted that."""
        self.ran, self.results = True, results


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
        How the results of launches that had run before are read.
    sources : list of (int, int)
        The launch and part that each section is read from; launch -1 stands for loose values.
    numbers : dict of type to list of arrays
        The arrays of int, float and bool: those of one type are uploaded at once. Index arrays are ints.
    loose : dict of int to list of int
        Sections that are made of loose values, and which values these are.
    entries : list of Entries
        Where the recorded numbers among ``numbers`` are in the columns.
    before : Before
        What the last run of this wiring left for the next one.
    """

    place: Place
    launches: list[LaunchWiring]
    outputs: Sequence[Operand]
    given: dict[int, list[Reading]]
    sources: Sequence[tuple[int, int]]
    numbers: dict[type, list[np.ndarray]]
    loose: dict[int, list[int]]
    entries: Sequence[Entries]
    before: Before = field(default_factory=Before)
    _latest: tuple[Sequence[Signature], list[LaunchWiring], Before] | None = None

    def of(self, columns: Columns) -> Wiring:
        """Return the wiring of other calls whose columns have the same form."""
        numbers = {number: list(arrays) for number, arrays in self.numbers.items()}
        for wired, kind, at in self.entries:
            numbers[wired.type][wired.upload] = columns.numbers(kind, at)
        latest = self._latest
        if latest is not None and latest[0] == columns.signatures:
            return self._with(latest[1], numbers, latest[2])
        launches: list[LaunchWiring] = [
            LAUNCH((number, columns.signatures[columns.signature[calls[0]]], calls, *rest))
            for number, _, calls, *rest in self.launches
        ]
        before = Before(ran=True)
        if all(signature.outlives_reset for signature in columns.signatures):
            self._latest = columns.signatures, launches, before
        return self._with(launches, numbers, before)

    def _with(
        self, launches: list[LaunchWiring], numbers: dict[type, list[np.ndarray]], before: Before
    ) -> Wiring:
        """Return the wiring with other launches of the same form."""
        return Wiring(
            self.place, launches, self.outputs, self.given, self.sources, numbers, self.loose, self.entries,
            before,
        )  # fmt: skip


NO_ROWS: Integers = np.zeros(0, np.int64)
"""The rows that are gathered of a result which splits alone can reach."""


def wire(
    columns: Columns,
    schedule: Schedule,
    place: Place,
    outputs: Sequence[Integers],
    keeps: bool = False,
) -> Wiring:
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
    keeps : bool
        Whether all results stay, so that no launch is the last one that reads a result.
    """
    first = len(place.rows)
    ran, sizes, sections, permutes, sources, results = _compiled.wire(
        schedule.calls,
        schedule.bounds,
        columns.signature,
        *columns.layouts,
        *columns.reads,
        outputs[0] if len(outputs) == 1 else np.concatenate([NO_ROWS, *outputs]),
        np.array(list(map(len, outputs)), np.int64) if outputs else NO_ROWS,
        place.launch,
        place.row,
        place.rows,
        len(columns.parts),
    )
    numbers: dict[type, list[np.ndarray]] = {number: [] for number in NUMBERS}
    entries: list[Entries] = []
    permuted: list[int | None] = [None] * len(sizes)
    for number, rows in permutes:
        permuted[number] = _keep(numbers[int], rows)
    operands: list[Operand] = list(map(OPERAND, zip(sizes, sections, permuted, strict=True)))
    readings, loose = _readings(
        results, place, columns, ran, operands[len(sizes) - len(outputs) :], numbers[int]
    )
    # Operands are listed by launch, and after them the outputs: each launch takes its own in turn.
    wired, taken = [], 0
    for number, calls in ran:
        signature = columns.signatures[number]
        own = operands[taken : taken + len(signature.layout)]
        taken += len(own)
        slots: Sequence[Wired] = own
        # Most launches have nodes as operands only, as `add("join", left, right)` does: nothing to look up.
        if len(own) < len(signature.slots) or signature.ragged:
            slots = _slots(columns, place, signature, calls, own, numbers, entries)
        wired.append((signature, calls, slots, own))
    groups = operands[taken:]
    last_read = {} if keeps else _last_reads(wired, groups, sources)
    launches: list[LaunchWiring] = [
        LAUNCH((number, *known, readings.pop(number, ()), last_read.get(number - first, ())))
        for number, known in enumerate(wired, first)
    ]
    # What is left in `readings` is read of launches before `first`.
    return Wiring(place, launches, groups, readings, sources, numbers, loose, entries)


def _keep(uploads: list[np.ndarray], array: np.ndarray) -> int:
    """Append an array to the ones that are uploaded together and return its number."""
    uploads.append(array)
    return len(uploads) - 1


def _readings(
    results: Sequence[tuple[tuple[int, int], ReadingColumns, Integers]],
    place: Place,
    columns: Columns,
    ran: Sequence[tuple[int, Integers]],
    outputs: Sequence[Operand],
    indices: list[Integers],
) -> tuple[dict[int, list[Reading]], dict[int, list[int]]]:
    """Return how the results of each launch are read, and the loose values of sections made of them."""
    first = len(place.rows) - len(ran)
    readings: dict[int, list[Reading]] = {}
    loose: dict[int, list[int]] = {}
    for (number, part), reading, rows in results:
        if number < 0:
            # Loose values are in no result. When the operand is put together they are stacked, each
            # number as it stands in the user's list.
            entries = iter(rows.tolist())
            loose.update((s, list(islice(entries, n))) for n, s in zip(*reading[3:], strict=True))
            continue
        if len(reading[0]) > 1:
            # Several readers take the whole part as one array. Where one row stands for several calls, as
            # the zeros do that a recurrent net begins with, each reader but the first gets a copy of its
            # own: an op may write to its operand. So does each output, since the caller may write to it.
            solo = number < first or not columns.signatures[ran[number - first][0]].batched
            asked = {section for operand in outputs for section in operand.sections}
            readers = reading[0] if solo and place.rows[number] == 1 else asked.intersection(reading[0])
            copies = sorted(readers)[1:]
            if copies:
                height = np.arange(place.rows[number])
                reading = _with_copies(reading, copies, len(height))
                rows = np.concatenate([rows, np.tile(height, len(copies))])
        gather = _keep(indices, rows) if len(rows) else None
        readings.setdefault(number, []).append(READING((part, *reading, gather)))
    return readings, loose


def _with_copies(columns: ReadingColumns, copies: Sequence[int], rows: int) -> ReadingColumns:
    """Return how a part is read if some of its sections that are all of it are gathered instead."""
    whole, sizes, slices, gathered_sizes, gathered = columns
    return (
        tuple(section for section in whole if section not in copies),
        sizes,
        slices,
        (*gathered_sizes, *[rows] * len(copies)),
        (*gathered, *copies),
    )


def _slots(
    columns: Columns,
    place: Place,
    signature: Signature,
    calls: Integers,
    operands: Sequence[Operand],
    numbers: dict[type, list[np.ndarray]],
    entries: list[Entries],
) -> Sequence[Wired]:
    """Return how a launch gets the operand of each slot; ``operands`` are those with rows of launches."""
    rest = iter(operands)
    slots: list[Wired] = []
    for slot, position in signature.operands:
        kind = slot.kind
        wired: Wired = None
        if kind.number is not None:
            at = columns.entries(slot, position, calls)
            wired = Numbers(kind.number, _keep(numbers[kind.number], columns.numbers(kind, at)))
            entries.append(Entries(wired, kind, at))
        elif kind.array:
            wired = Leaves(columns.entries(slot, position, calls).tolist())
        elif kind.ragged:
            # ``ragged([a, b]), ragged([c])`` in one launch: lengths 2, 1 and segment ids 0, 0, 1.
            lengths = columns.lengths[columns.operand(slot, position, calls)]
            segments = np.repeat(np.arange(len(calls)), lengths)
            wired = RaggedRows(next(rest), _keep(numbers[int], lengths), _keep(numbers[int], segments))
        elif kind.rows:
            wired = next(rest)
        elif kind.ref:
            ref = int(columns.operand(slot, position, calls[0]))
            wired = Whole(int(place.launch[ref & CALL_MASK]), ref >> PART_BITS)
        slots.append(wired)
    return slots


def _last_reads(
    wired: Sequence[tuple[Signature, Integers, Sequence[Wired], Sequence[Operand]]],
    outputs: Sequence[Operand],
    sources: Sequence[tuple[int, int]],
) -> dict[int, list[int]]:
    """Return the launches whose results are read for the last time, by the launch that reads them.

    ``wired`` holds the signature, calls, slots and operands of each launch, counted from 0. Results that
    the outputs read are not in what is returned: they stay until the end.
    """
    # Launches are visited in the order in which they run, so the last entry that stays is the last read.
    last: dict[int, int] = {}
    for index, (_, _, slots, operands) in enumerate(wired):
        if slots is not operands:
            last.update((wire.launch, index) for wire in slots if isinstance(wire, Whole))
        for operand in operands:
            for section in operand.sections:
                last[sources[section][0]] = index
    for operand in outputs:
        for section in operand.sections:
            last.pop(sources[section][0], None)
    last.pop(-1, None)  # loose values are no result
    found: dict[int, list[int]] = {}
    for number, index in last.items():
        found.setdefault(index, []).append(number)
    return found
