"""Which rows go where: splits, gathers and concatenations between the results of launches, as integers.

The obvious executor gathers each operand straight from the results that it reads. Its backward pass then
fills a gradient as large as the whole result once for every launch that reads it. Read as below, every row
is copied once or twice in either direction, whatever the number of launches.

So each part of a result is read at most twice: by one split, whose slices are *sections*, and by one gather
of the rows that no slice has in the right order, which a second split divides into further sections. There
is a section for each (reading launch, operand). An operand is one concatenation of its sections, and at
most one gather that permutes it.

The rows of a launch are ordered by (first launch that reads them, operand, row in it). So rows which one
operand reads lie side by side, and most sections are plain slices. This order has to be known of the
readers first, so the order of the last launch's rows is chosen first, and that of the first launch's last.
It can leave operands of the launch itself to be permuted. Where these are more than the parts of its result
that are read, its rows are ordered by the launches that they read from instead: then its operands are plain
concatenations, and each part of its result is gathered once.

An operand that is permuted anyway takes the rows of each section as they lie in the result. Say that it
reads ``b1 a0 b0 a1`` of two launches with two rows each:

===========================  =================================  ==============================
sections                     gathers of sections                gather that permutes
===========================  =================================  ==============================
in the order of its reads    ``b1 b0`` out of ``b0 b1``         ``0 2 1 3`` of ``b1 b0 a0 a1``
as their rows lie            none: ``b`` and ``a`` are whole    ``1 2 0 3`` of ``b0 b1 a0 a1``
===========================  =================================  ==============================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.schedule import Schedule
from multifold._engine.record.kinds import NUMBERS, Kind


@dataclass(slots=True)
class Place:
    """Where the calls of a run are: the launch and the row of each, and the rows of each launch.

    Each row of a result belongs to a call, or to several that share it: an op without batched operands runs
    once, so all calls of its launch are in one row.

    Examples
    --------
    >>> place = Place.nowhere(calls=3)
    >>> place.launch.tolist(), place.rows  # no call has run
    ([-1, -1, -1], [])
    """

    launch: Integers
    row: Integers
    rows: list[int]

    @classmethod
    def nowhere(cls, calls: int) -> Place:
        """Return the places of so many calls before any has run: launch -1 for each, and no launches."""
        size = max(calls, 1)  # loose values are looked up as if they were rows of call 0
        launch = np.empty(size, np.int64)
        launch.fill(-1)
        return cls(launch, np.zeros(size, np.int64), [])

    @property
    def columns(self) -> tuple[Integers, Integers, list[int]]:
        """``(launch, row, rows)`` as a tuple: arguments of `multifold._engine.compiled`."""
        return self.launch, self.row, self.rows

    def copy(self) -> Place:
        """Return a copy whose arrays and list can be changed without changing these."""
        return Place(self.launch.copy(), self.row.copy(), self.rows.copy())


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
    """A ragged operand of a launch: its rows, and two of the uploaded int arrays, by their numbers.

    ``lengths`` is the number of the array that has how many rows each node has, ``segments`` of the one
    that has the node of each row. ``lacks`` says whether a node of the launch has no row.
    """

    operand: Operand
    lengths: int
    segments: int
    lacks: bool


@dataclass(slots=True)
class Numbers:
    """A batch of Python numbers: array number ``upload`` of the arrays that are uploaded for ``type``.

    ``type`` is int, float or bool.
    """

    type: type
    upload: int


class Entries(NamedTuple):
    """Where the recorded numbers of an operand of a launch are: positions ``at`` in the column of ``kind``.

    ``numbers`` says which of the uploaded arrays they become.
    """

    numbers: Numbers
    kind: Kind
    at: Integers


@dataclass(slots=True)
class Leaves:
    """Leaf arrays to be stacked: their positions in the column of arrays, in the order of the rows."""

    entries: list[int]


@dataclass(slots=True)
class Whole:
    """An operand that is the whole value of part number ``part`` of the result of launch ``launch``."""

    launch: int
    part: int


class Reading(NamedTuple):
    """How a part of a launch's result is read: whole, by slices of one split, and by one gather.

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
    """The wiring of one launch: how it gets its operands, and how its result is read.

    Attributes
    ----------
    number : int
        The number of the launch in the run.
    signature : int
        The number of the signature of its calls, in the columns of the calls that are run.
    calls : int64 array
        Its calls, in the order of its rows.
    slots : list
        How each slot of the signature gets its operand.
    operands : list of Operand
        The operands whose rows come from launches, in the order of their slots.
    readings : list of Reading
        How the parts of its result are read.
    last_read : sequence of int
        The launches whose results this launch is the last to read: they can be dropped after it.
    """

    number: int
    signature: int
    calls: Integers
    slots: Sequence[Wired]
    operands: Sequence[Operand]
    readings: Sequence[Reading]
    last_read: Sequence[int]


# A wiring has a few of these for each launch. The classes' own __new__ are functions of Python; with the
# tuple's, compiled code makes all of them without one.
MAKERS = tuple(partial(tuple.__new__, kind) for kind in (Operand, Reading, LaunchWiring))


@dataclass(slots=True)
class Wiring:
    """The wiring of a schedule: how rows go between its launches, and to the outputs.

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
    indices : list of int64 array
        The index arrays, in one piece of memory.
    numbers : dict of type to list of arrays
        The operands of int, float and bool: those of one type are uploaded at once, ints after the indices.
        Lengths and segment ids of ragged operands are among the ints; recorded numbers are not, since calls
        of the same form have others: `numbers_of` fills them in.
    loose : dict of int to list of int
        Sections that are made of loose values, and which values these are.
    entries : list of Entries
        Where the recorded numbers among ``numbers`` are in the columns.
    """

    place: Place
    launches: list[LaunchWiring]
    outputs: Sequence[Operand]
    given: dict[int, list[Reading]]
    sources: Sequence[tuple[int, int]]
    loose: dict[int, list[int]]
    indices: list[Integers]
    numbers: dict[type, list[np.ndarray]]
    entries: Sequence[Entries]

    def numbers_of(self, columns: Columns) -> dict[type, list[np.ndarray]]:
        """Return a copy of ``numbers`` in which the numbers of the calls of ``columns`` are filled in.

        The keys are int, float and bool, the values lists of arrays, in the order of their uploads.
        """
        numbers = {number: list(arrays) for number, arrays in self.numbers.items()}
        for wired, kind, at in self.entries:
            numbers[wired.type][wired.upload] = columns.numbers(kind, at)
        return numbers


class Planned(NamedTuple):
    """The schedule and the wiring that one compiled call has made."""

    schedule: Schedule
    wiring: Wiring
    scheduled: float
    """When the schedule was known, in seconds of `time.perf_counter`."""


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
    slots = SlotFiller(columns)
    facts = *columns.facts(joined(outputs)), *place.columns, *slots.last_arguments(keeps)
    return slots.wiring(place, compiled.wire(schedule.calls, schedule.bounds, *facts))


def plan_and_wire(
    columns: Columns,
    graph: Any,
    outputs: Sequence[Integers],
    place: Place,
    pending: Integers | None,
    keeps: bool = False,
) -> Planned | tuple[Integers, ...]:
    """Return the schedule "auto" of pending calls and its wiring; a call's type is its signature.

    ``place`` is extended by the launches. ``pending`` is None where all that the outputs need is to run. If
    types read each other in a circle, a policy has to choose the launches; then the arrays returned are the
    pending calls, and what `Problem.counted_as` takes.
    """
    slots = SlotFiller(columns)
    facts = *columns.facts(joined(outputs)), *place.columns, *slots.last_arguments(keeps)
    return slots.planned(graph, place, compiled.plan(pending, *facts))


def joined(outputs: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Return the references of all groups, one group after the other, and the number in each: int64."""
    if len(outputs) == 1:  # as most traces have: a copy less
        return outputs[0], np.array([len(outputs[0])], np.int64)
    # The empty array stands in front since NumPy refuses to concatenate no arrays at all.
    return np.concatenate([NO_INTEGERS, *outputs]), np.array(list(map(len, outputs)), np.int64)


class SlotFiller:
    """Finds what each slot of a launch gets: leaf arrays, whole values, numbers, collected for upload.

    Compiled code calls it while it wires a launch. Most launches have nodes as operands only, as
    ``add("join", left, right)`` does; of these it does not ask.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.numbers: dict[type, list[np.ndarray]] = {number: [] for number in NUMBERS}
        self.entries: list[Entries] = []

    def last_arguments(self, keeps: bool) -> tuple[Any, ...]:
        """Return the last arguments of `compiled.wire`: number of parts, ``keeps``, `MAKERS`, itself."""
        return len(self.columns.parts), keeps, MAKERS, self

    def planned(self, graph: Any, place: Place, found: tuple[Any, ...]) -> Planned | tuple[Integers, ...]:
        """Return what `compiled.plan` has returned, ``found``, as a `Planned` if it has five entries.

        Else a policy has to choose the launches, and ``found`` itself is returned (`plan_and_wire`).
        ``graph`` is what the launches' nodes belong to, and ``place`` has been extended by the launches.
        """
        # Without a schedule these are the pending calls, and what `Problem.counted_as` takes.
        if len(found) != 5:
            return found
        calls, bounds, lower_bound, scheduled, wired = found
        schedule = Schedule(self.columns, graph, calls, bounds, lower_bound, "auto")
        return Planned(schedule, self.wiring(place, wired), scheduled)

    def wiring(self, place: Place, wired: tuple[Any, ...]) -> Wiring:
        """Return a `Wiring` of what `compiled.wire` has returned, with the numbers collected here."""
        launches, groups, given, sources, loose, indices = wired
        return Wiring(place, launches, groups, given, sources, loose, indices, self.numbers, self.entries)

    def keep(self, number: type, values: np.ndarray) -> Numbers:
        """Append an array to those that are uploaded for a type, int, float or bool; return where it is."""
        # Index arrays are not among them: compiled code lays these out, and counts them by itself.
        self.numbers[number].append(values)
        return Numbers(number, len(self.numbers[number]) - 1)

    def __call__(
        self, number: int, calls: Integers, operands: Sequence[Operand], launch: Integers
    ) -> tuple[Sequence[Wired], Sequence[int]]:
        """Return what a launch of signature ``number`` gets in each slot, and what it reads whole.

        ``calls`` are its calls in the order of its rows, ``operands`` those with rows of launches in the
        order of their slots, and ``launch`` has the launch of each call of the columns.
        """
        columns = self.columns
        taken = 0
        slots: list[Wired] = []
        for slot, position in columns.signatures[number].operands:
            kind = slot.kind
            wired: Wired = None
            if kind.number is not None:
                at = columns.entries(slot, position, calls)
                # Without the numbers: a plan is kept for other runs, and `Wiring.numbers_of` brings theirs.
                wired = self.keep(kind.number, NO_INTEGERS)
                self.entries.append(Entries(wired, kind, at))
            elif kind.array:
                wired = Leaves(columns.entries(slot, position, calls).tolist())
            elif kind.ragged:
                # ``ragged([a, b]), ragged([c])`` in one launch: lengths 2, 1 and segment ids 0, 0, 1.
                lengths = columns.lengths[columns.operand(slot, position, calls)]
                segments = np.repeat(np.arange(len(calls)), lengths)
                at_lengths = self.keep(int, lengths).upload
                at_segments = self.keep(int, segments).upload
                wired = RaggedRows(operands[taken], at_lengths, at_segments, not lengths.all())
                taken += 1
            elif kind.rows:
                wired = operands[taken]
                taken += 1
            elif kind.ref:
                # Calls with other shared nodes have another type, so the first call speaks for all.
                ref = int(columns.operand(slot, position, calls[0]))
                wired = Whole(int(launch[ref & CALL_MASK]), ref >> PART_BITS)
            slots.append(wired)
        # A result that is read whole stays until this launch has run, though no section is read of it.
        return slots, [wired.launch for wired in slots if isinstance(wired, Whole)]
