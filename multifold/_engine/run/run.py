"""A run of a plan: what was computed so far and where it is, and the sections that wait for their reader.

Before each launch its sections are put together to operands, and after it its result becomes sections for
the launches that read it. Nothing is read back from a device here, and no index is computed: the wiring
holds all integers.

Before a launch the classes of the results whose rows meet in an operand are compared, one query for a
result. Where they differ in trailing shape, dtype or device, the run stops, and
`multifold._engine.run.loop` divides the launch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.ops.messages import error_text, note, raised_by
from multifold._engine.ops.values import (
    CONTAINERS,
    PARTS_HINT,
    Steps,
    counted,
    follow,
    groups_differ,
    opened,
    steps_to,
)
from multifold._engine.plan.plan import Plan
from multifold._engine.plan.wiring import (
    LaunchWiring,
    Leaves,
    Numbers,
    Operand,
    Place,
    RaggedRows,
    Reading,
    Whole,
    Wiring,
)
from multifold._engine.record.freezing import snapshot
from multifold._engine.record.signature import Signature, Slot
from multifold._engine.run.divide import ComputedRows, agree
from multifold._engine.run.launch import Outcome, PreparedLaunch, naming
from multifold._engine.run.launcher import Launcher
from multifold._engine.run.outliers import odd_ones, other_shapes
from multifold._engine.run.report import Notes, Report
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, MultifoldError


@dataclass
class Run:
    """The state of one run.

    Attributes
    ----------
    launcher : Launcher
        What runs the launches, and knows the backend, the model and its ops.
    plan : Plan
        The calls that are computed, their launches and their wiring.
    notes : Notes
        What `Fold.explain` tells of the run: when each launch ran, and the class of each part of a result
        that is read by rows.
    place : Place
        The launch and row of each call that was run.
    alone : frozenset of int
        Calls whose whole result is wanted: it may have any number of rows.
    stop : callable or None
        Asked between two launches whether the run ends there. A server has other calls to run then, and
        plans again for what is left.
    results : dict of int to object
        The results of launches that still have readers.
    uniform : bool
        Whether all rows that were read so far are of one class, as in most models of one width.
    common : Hashable
        The first class of rows that the run has met: the only one, where it is uniform. A class is what
        rows must share to be concatenated, such as ``((3,), float32)``; see `Values.class_of`.
    _shared : dict of int to array
        The ``id`` of a shared NumPy array -> the same array on the device.
    _steps : dict of int to Steps
        The number of a part -> the keys that lead there.
    """

    launcher: Launcher
    plan: Plan
    notes: Notes
    place: Place
    alone: frozenset[int] = frozenset()
    stop: Callable[[], bool] | None = None
    results: dict[int, Any] = field(default_factory=dict)
    uniform: bool = True
    common: Hashable = None
    _shared: dict[int, Any] = field(default_factory=dict)
    _steps: dict[int, Steps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = self.launcher.values

    @property
    def backend(self) -> Backend:
        """The backend of the launches."""
        return self.values.backend

    def report(self) -> Report:
        """Return a new report of the run, which must have ended.

        Calls have the numbers of the plan, which must be those of its graph, as outside of rounds.
        """
        plan = self.plan
        return Report(
            notes=self.notes,
            graph=plan.schedule.graph,
            backend=self.backend,
            policy=plan.schedule.policy,
            site=plan.site,
            alone=plan.alone,
            planned=plan.schedule,
            untried=self.launcher.trials.untried,
        )

    def is_alone(self, calls: Integers) -> bool:
        """Return whether the first of ``calls``, those of a launch, is one whose whole result is wanted.

        Such a call has its launch to itself.
        """
        return bool(self.alone) and int(calls[0]) in self.alone

    def part(self, launch: int, part: int) -> Any:
        """Return a part of the result of a launch that has run, both by number; part 0 is the whole result.

        Raises `LaunchError` if the result has no such part.
        """
        value = self.results[launch]
        return value if part == 0 else self.part_of(value, launch, part)

    def part_of(self, result: Any, launch: int, part: int) -> Any:
        """Return a part, by number, of ``result``, which launch number ``launch`` returned.

        Raises `LaunchError`, which names the launch, if the result has no such part.
        """
        return follow(result, self.steps(part), self.no_part, launch)

    def steps(self, part: int) -> Steps:
        """Return the keys that lead to a part, by its number; they are remembered for the run.

        For ``[1]["c"]`` they are ``((1, None), ("c", None))``.
        """
        # A model has few parts, such as [0] and [1] of an LSTM's state, and each launch reads them again.
        if part not in self._steps:
            self._steps[part] = steps_to(self.plan.columns.parts, part)
        return self._steps[part]

    def rows(self, launch: int, part: int) -> Any:
        """Return a part of a launch's result, both by number, in containers of plain types (`opened`)."""
        return opened(self.part(launch, part))

    def whole(self, ref: int) -> Any:
        """Return the whole result, or part of one, that a reference names; its call must have run."""
        return self.part(int(self.place.launch[ref & CALL_MASK]), ref >> PART_BITS)

    def check_rows(self, launch: int, part: int) -> None:
        """Raise `LaunchError` if a part of a result has another number of rows than its launch has.

        Results of launches of several rows were held to that rule when they ran, so of these only None is
        refused.
        """
        value = self.part(launch, part)
        # Only a launch of one call may be read whole, and is not held to the rule when it runs.
        if self.place.rows[launch] > 1 and value is not None:
            return
        instead = self.values.mismatch(opened(value), self.place.rows[launch])
        if instead is not None:
            raise self.no_part(launch, f"has {instead.text}, where one row a node is read")

    def no_rows(self, launch: int, part: int) -> LaunchError:
        """Return the error of a launch whose result is None at a part, where rows are to be read."""
        path = "".join(f"[{key!r}]" for key in self.plan.columns.parts[part].path)
        return self.no_part(launch, f"is None at {path}, which has no rows")

    def no_part(self, launch: int, what: str) -> LaunchError:
        """Return the error of a launch whose result lacks a part; ``what`` ends "The result of ..."."""
        calls = np.flatnonzero(self.place.launch == launch)
        columns = self.plan.columns
        name = columns.signatures[columns.signature[calls[0]]].name
        nodes = counted(len(calls), "node")
        where = self.plan.site(int(calls[0]))
        return LaunchError(
            f"The result of op '{name}' for {nodes}, first recorded at {where}, {what}.", PARTS_HINT
        )

    def note(self, launch: int, part: int, found: Hashable) -> None:
        """Note the class ``found`` (`Values.class_of`) of the rows of a part of a launch's result.

        It is stored in ``notes.classes``. The first one becomes ``common``, and one that differs from that
        sets ``uniform`` to False.
        """
        if self.common is None:
            self.common = found
        # Two classes are compared faster than one is hashed, and many are one object.
        elif self.uniform and found is not self.common:
            self.uniform = found == self.common
        self.notes.classes[launch, part] = found

    def shared(self, value: Any) -> Any:
        """Return a shared value; for a NumPy array one of the backend, made once in this run.

        Anything else is returned as it is. See `Values.shared`.
        """
        if not isinstance(value, np.ndarray):
            return value
        # A table of embeddings may be shared by every launch: it goes to the device once.
        if id(value) not in self._shared:
            self._shared[id(value)] = self.values.shared(value)
        return self._shared[id(value)]

    @property
    def computed(self) -> ComputedRows:
        """What the run has computed so far: a new `ComputedRows` of its plan, places and classes."""
        return ComputedRows(self.values, self.plan, self.place, self.notes.classes)

    def forget_after(self, launches: int, pending: Integers) -> None:
        """Drop the places of the calls ``pending``, which did not run yet and will be scheduled again.

        ``launches`` is how many launches have run, with those that were given; the new ones are numbered
        from there. In a copy of ``place`` the launch of these calls becomes -1, and the rows of later
        launches are cut off. The plan keeps the places of its wiring, since another model may use it again.
        """
        self.place = self.place.copy()
        del self.place.rows[launches:]
        self.place.launch[pending] = -1


class Sections:
    """One wiring while it runs: its numbers on the device, and the sections that wait for their reader.

    A section is a stretch of rows of one result that one operand reads; wirings number them. Making this
    uploads the numbers.

    Attributes
    ----------
    waiting : dict of int to array or container
        Number of a section -> its rows, until its reader takes them.
    plain : bool
        Whether no loose values are among the rows.
    stopped : bool
        Whether `Run.stop` has ended the run before its last launch.
    """

    def __init__(self, run: Run, wiring: Wiring) -> None:
        self.run = run
        self.wiring = wiring
        self.launcher = run.launcher
        self.values = run.values
        self.backend = run.values.backend
        self.columns = run.plan.columns
        self.site = run.plan.site
        self.signatures = self.columns.signatures
        self.rows = run.place.rows
        self.waiting: dict[int | None, Any] = {}
        self.plain = not wiring.loose
        self.stopped = False
        self.no_rows: dict[Hashable, Any] = {}  # values of ragged operands without rows, by `Slot.key`
        self.indices, self.numbers = run.values.upload_all(wiring, self.columns)
        # A framework that pads compiles for each size, so to cut what was sent costs more than to send it.
        self.arrays = self.sent_arrays() if self.columns.arrays and not self.backend.pads else {}

    def arrays_of(self, wired: Leaves) -> list[Any]:
        """Return the recorded arrays of an operand, in the order of its rows."""
        return [self.columns.arrays[i] for i in wired.entries]

    def sent_arrays(self) -> dict[int, Any]:
        """Put NumPy's arrays that several operands read on the device, in one copy for each form of them.

        Return the ``id`` of each such `Leaves` -> what the op receives. Arrays that the backend refuses are
        left to their launch, whose error names it.
        """
        groups: dict[Hashable, list[Leaves]] = {}
        for launch in self.wiring.launches:
            for wired in launch.slots:
                if type(wired) is Leaves:
                    first = self.columns.arrays[wired.entries[0]]
                    if type(first) is np.ndarray and not self.backend.owns(first):
                        groups.setdefault((first.dtype, first.shape[1:]), []).append(wired)
        found: dict[int, Any] = {}
        for group in groups.values():
            if len(group) > 1:
                with suppress(Exception):
                    rows = self.values.stack([x for wired in group for x in self.arrays_of(wired)])
                    parts = self.backend.split(rows, [len(wired.entries) for wired in group])
                    found.update(zip(map(id, group), parts, strict=True))
        return found

    def launch_all(self, keep: Container[int]) -> int:
        """Run the launches in order; return how many ran.

        Not all run if the next one has to be divided, or if `Run.stop` says so, and then ``stopped`` is
        set. ``keep`` names launches whose results stay after their last reader, because they are outputs.
        Raises `LaunchError` if a launch fails.
        """
        run = self.run
        for number, readings in self.wiring.given.items():
            for reading in readings:
                run.check_rows(number, reading.part)
            self.store(number, readings, run.results[number], None)
        launches = self.wiring.launches
        for index, launch in enumerate(launches):
            # Most models have one width, so most runs ask each result once and no launch at all.
            alike = run.uniform and self.plain and not self.signatures[launch.signature].says_rows
            if not alike and not self.agree(launch):
                return index
            self.launch(launch)
            # Without a gradient, memory is free as soon as its last reader ran: a chain of 1,000 steps
            # then holds two results at a time.
            for number in launch.last_read:
                if number not in keep:
                    run.results.pop(number, None)
            if run.stop is not None and index + 1 < len(launches) and run.stop():
                self.stopped = True
                return index + 1
        return len(launches)

    def launch(self, launch: LaunchWiring) -> None:
        """Run one launch: take its operands, call its op, and store the result and its sections.

        The result is put into ``run.results``, its sections into ``waiting``, and its calls and times into
        the notes. Raises `LaunchError` if it fails.
        """
        run = self.run
        signature = self.signatures[launch.signature]
        begin = perf_counter()
        leaves = self.operands(launch, signature)
        alone = run.is_alone(launch.calls)
        prepared = PreparedLaunch(
            signature,
            leaves,
            self.rows[launch.number],
            launch.calls,
            self.site,
            # Outcomes are remembered by the classes of rows. Loose values have none in the notes, and a
            # result that is read whole may have any form, so for these nothing is remembered.
            self.classes(launch) if self.plain and not alone else None,
            lambda: self.lengths(launch),
            (lambda result: self.parts_read(launch, result)) if alone else None,
            run.plan.frame.whose,
        )
        try:
            launched = self.launcher.launch(prepared)
        except LaunchError as error:
            self.tell_odd_ones(launch, error)
            raise
        # Nothing reads the operands again unless a gradient keeps them. Dropped before `store` allocates,
        # their memory, which is still in the cache, becomes that of the gathered sections.
        leaves.clear()
        run.results[launch.number] = launched.result
        self.store(launch.number, launch.readings, launched.result, launched.outcome)
        run.notes.launched(launch.calls, launched.times(begin))

    def tell_odd_ones(self, launch: LaunchWiring, error: LaunchError) -> None:
        """Add notes to the error of a launch: whose calls it has, and the row shapes of other calls.

        Nothing is added if other calls of the op have the same shapes. The first note is left out if the
        error has a note already, or if no example is known.
        """
        run = self.run
        others = other_shapes(run.computed, int(launch.calls[0]))
        whose = run.plan.frame.whose
        # The launcher has named the example already if it found the one row that fails.
        if others and whose is not None and not getattr(error, "__notes__", ()):
            note(error, raised_by(np.unique(launch.calls).tolist(), whose))
        note(error, others)

    def classes(self, launch: LaunchWiring) -> tuple[Hashable, ...]:
        """Return the class (`Values.class_of`) of the rows of each of ``launch.operands``, in order.

        In a uniform run all have ``run.common``, also operands without rows; else these have None, and each
        other one has that of its first section.
        """
        if self.run.uniform:
            return (self.run.common,) * len(launch.operands)
        sources = self.wiring.sources
        classes = self.run.notes.classes
        return tuple(
            [
                # An operand without rows has no section and no class. Nothing is noted for (-1, 0), which
                # stands for loose values, so `get` returns None.
                classes.get(sources[operand.sections[0]] if operand.sections else (-1, 0))
                for operand in launch.operands
            ]
        )

    def lengths(self, launch: LaunchWiring) -> Mapping[int, np.ndarray]:
        """Return the lengths of ragged operands: position of a slot -> array, an entry for each node.

        The arrays are NumPy's, those of the wiring; slots of other kinds are left out.
        """
        return {
            i: self.wiring.numbers[int][wired.lengths]
            for i, wired in enumerate(launch.slots)
            if type(wired) is RaggedRows
        }

    def parts_read(self, launch: LaunchWiring, result: Any) -> Any:
        """Return the parts of a result that are read by rows, in a list; of an array the array itself.

        These must have one row for each node. The same result is also read whole (`Node.no_batch`), so its
        other parts may have any shape.
        """
        if not isinstance(result, CONTAINERS):
            return result if launch.readings else ()
        parts = [reading.part for reading in launch.readings]
        return [self.run.part_of(result, launch.number, p) if p else result for p in parts]

    def agree(self, launch: LaunchWiring) -> bool:
        """Return whether the rows of each operand of a launch fit together; else it has to be divided.

        They do if all are of one class (`Values.class_of`), or of several that the framework promotes to
        one for each call as for the launch (`agree`). Missing rows of ragged operands must fit, too
        (`rows_as_said`).
        """
        mixed = []
        for operand in launch.operands:
            # Rows of one section come from one result and have its class; only loose values may differ.
            if len(operand.sections) > 1 or not self.plain:
                found = self.operand_classes(operand)
                if len(found) > 1:
                    mixed.append(found)
        if mixed:
            # Classes that nothing brings together settle it at once. If they can be promoted, as two dtypes
            # can, each call is asked whether it would be promoted alone, too.
            return None not in map(self.values.agreed, mixed) and agree(self.run.computed, launch.calls)
        return not self.signatures[launch.signature].says_rows or self.rows_as_said(launch)

    def rows_as_said(self, launch: LaunchWiring) -> bool:
        """Return whether the nodes without rows in ragged operands may share the launch with the others.

        They may if the rows of the others are as was said of the missing ones:
        ``ragged([], row_shape=(2,))`` runs apart from rows of shape (3,).
        """
        for slot, wired in zip(self.signatures[launch.signature].slots, launch.slots, strict=True):
            if type(wired) is RaggedRows and wired.lacks and wired.operand.rows:
                found = self.operand_classes(wired.operand)
                if not all(self.values.may_lack_rows(one, slot.value) for one in found):
                    return False
        return True

    def operand_classes(self, operand: Operand) -> list[Hashable]:
        """Return the distinct classes of the rows of an operand, in the order of the rows.

        A class is what rows must share to be concatenated (`Values.class_of`). Loose values, numbers or
        arrays among the rows, have that of `Values.class_of_loose`.
        """
        run = self.run
        classes = self.run.notes.classes
        sources = self.wiring.sources
        if self.plain:
            kept = [classes[sources[section]] for section in operand.sections]
            # Launches of one op have one object for a class, which need not be compared with itself.
            distinct = list({id(x): x for x in kept}.values())
            return distinct if len(distinct) == 1 else list(dict.fromkeys(distinct))
        # A dict and no set, so that the error of classes that differ names them in the order of the rows.
        found: dict[Hashable, None] = {}
        for section in operand.sections:
            if sources[section][0] >= 0:
                found[classes[sources[section]]] = None
            else:
                entries = self.wiring.loose[section]
                found.update((self.values.class_of_loose(run.plan.loose[entry]), None) for entry in entries)
        return list(found)

    def assemble(self, operand: Operand) -> Any:
        """Return the rows of an operand: its sections one after the other, permuted if the wiring says so.

        The sections are taken out of ``waiting``.
        """
        # Taken out of `waiting`, a section is free as soon as it is concatenated or read.
        take = self.waiting.pop if self.plain else self.section
        sections = operand.sections
        if len(sections) == 1:  # most operands: no list of one is made for them
            value = take(sections[0])
        else:
            value = self.values.concat(list(map(take, sections)))
        if operand.permute is None:
            return value
        return self.values.gather(value, self.indices[operand.permute])

    def section(self, number: int) -> Any:
        """Take a section, by its number, out of ``waiting``; make one of loose values. Return it."""
        entries = self.wiring.loose.get(number)
        if entries is None:
            return self.waiting.pop(number)
        return self.values.stack([self.run.plan.loose[entry] for entry in entries])

    def operand(self, slot: Slot, wired: Any) -> Any:
        """Return what the op receives for a slot, unless that is made of rows only or of numbers.

        ``wired`` is the slot's entry of the wiring: `Whole`, `Leaves`, `RaggedRows`, or None for a shared
        value or a static one, which is copied.
        """
        kind = type(wired)
        if kind is Whole:
            return self.values.protected(self.run.part(wired.launch, wired.part))
        if kind is Leaves:
            sent = self.arrays.pop(id(wired), None)
            return sent if sent is not None else self.values.stack(self.arrays_of(wired))
        if kind is RaggedRows:
            rows = self.ragged_rows(slot, wired.operand)
            lengths = self.numbers[int][wired.lengths]
            segments = self.numbers[int][wired.segments]
            return Ragged(rows, self.backend.protected(lengths), self.backend.protected(segments))
        # An op may change a list that it is given. The recorded one is for all runs, so each launch gets a
        # copy.
        return self.run.shared(slot.value) if slot.kind.shared else snapshot(slot.value)

    def ragged_rows(self, slot: Slot, operand: Operand) -> Any:
        """Return the ``values`` of a ragged operand; without any row, arrays of shape ``(0, *s)``."""
        if operand.rows:
            return self.assemble(operand)
        if slot.key not in self.no_rows:  # nothing can be written to it, so all launches may have the same
            self.no_rows[slot.key] = self.values.no_rows(slot.value)
        return self.no_rows[slot.key]

    def operands(self, launch: LaunchWiring, signature: Signature) -> list[Any]:
        """Return a new list of what the op receives, one operand for each slot of its signature.

        Sections are taken out of ``waiting``. Raises `LaunchError` if an operand cannot be made.
        """
        leaves: list[Any] = []
        try:
            for i, wired in enumerate(launch.slots):
                if type(wired) is Operand:
                    value = self.assemble(wired)
                elif type(wired) is Numbers:
                    value = self.numbers[wired.type][wired.upload]
                else:
                    value = self.operand(signature.slots[i], wired)
                leaves.append(value)
            return leaves
        except MultifoldError:
            raise
        except self.backend.passes:
            raise
        except Exception as error:
            raise self.no_operands(launch, error) from error

    def no_operands(self, launch: LaunchWiring, error: Exception) -> LaunchError:
        """Return the error of a launch whose operands can't be put together because of ``error``."""
        return LaunchError(
            f"{self.naming(launch)}, could not get its operands: {error_text(error)}.",
            f"its arrays must be of a dtype that backend '{self.backend.name}' has.",
        )

    def naming(self, launch: LaunchWiring) -> str:
        """Return the beginning of an error: which launch, and where it was recorded; see `naming`."""
        return naming(self.signatures[launch.signature], launch.calls, self.site)

    def store(self, number: int, readings: Sequence[Reading], result: Any, outcome: Outcome | None) -> None:
        """Put into ``waiting`` the sections of the parts of a result that are read, and note their classes.

        ``number`` is that of the launch; classes (`Values.class_of`) go to `Run.note`. ``outcome`` is what
        the launcher knows of the result, which saves to ask for them; None if nothing. Raises `LaunchError`
        if the result lacks a part, or has None there.
        """
        run = self.run
        values = []
        for reading in readings:
            part = reading.part
            # What the launcher knows of a result saves a query of the framework for each part.
            read = None if outcome is None else outcome.read(result, part, run.steps)
            if read is None:
                value = run.part_of(result, number, part) if part else result
                if isinstance(value, CONTAINERS):
                    value = opened(value)
                elif value is None:
                    raise run.no_rows(number, part)
                form = self.values.class_of(value)
            else:
                value, form = read
            run.note(number, part, form)
            values.append(value)
        self.cut(values, readings)

    def cut(self, values: Sequence[Any], readings: Sequence[Reading]) -> None:
        """Put into ``waiting`` the sections of ``values``, parts of a result, each as its reading says.

        A `Reading` names the sections that are all of the part, those that are stretches of its rows, and
        those that are stretches of rows gathered from it. The arrays are protected first, if the backend
        can.
        """
        protects = self.backend.protects
        waiting = self.waiting
        for value, reading in zip(values, readings, strict=True):
            _, whole, sizes, slices, gathered_sizes, gathered, gather = reading
            backend: Any = self.values if isinstance(value, CONTAINERS) else self.backend
            if protects:
                # Protected before it is cut: one view for all sections, which are read-only as views of it.
                value = backend.protected(value)
            for section in whole:
                waiting[section] = value
            if slices:
                waiting.update(zip(slices, backend.split(value, sizes), strict=True))
                # `split` also returns the stretches between the slices, under the number None. Their rows
                # are gathered, or not read at all.
                waiting.pop(None, None)
            if gather is not None:
                value = backend.gather(value, self.indices[gather])
                if len(gathered) == 1:
                    waiting[gathered[0]] = value
                else:
                    waiting.update(zip(gathered, backend.split(value, gathered_sizes), strict=True))

    def outputs(self) -> list[Any]:
        """Return the value of each group that was asked for, in order: its rows, or a whole result.

        Sections of groups are taken out of ``waiting``, so this works once. Raises `LaunchError` if the
        rows of a group can't be concatenated.
        """
        groups = self.run.plan.asked.groups
        rows = self.wiring.outputs
        # The caller asks for outputs after the run, outside of the context in which the launches ran.
        with self.values.placed():
            found = [*map(self.group, rows, (x for x in groups if not isinstance(x, int)))]
            if len(rows) < len(groups):
                each = iter(found)
                found = [self.run.whole(x) if isinstance(x, int) else next(each) for x in groups]
        return list(map(self.values.unprotected, found)) if self.backend.protects else found

    def group(self, operand: Operand, refs: Integers) -> Any:
        """Return the rows of one group of the outputs; ``refs`` are their references, for the error.

        Raises `LaunchError` if their classes differ and the framework does not promote them to one.
        """
        if not (self.run.uniform and self.plain):
            classes = self.operand_classes(operand)
            if len(classes) > 1 and self.values.agreed(classes) is None:
                error = groups_differ(classes)
                whose = self.run.plan.frame.whose
                if whose is not None:
                    note(error, raised_by(odd_ones(self.run.computed, refs.tolist()), whose))
                raise error
        return self.assemble(operand)
