"""The launcher: one loop over the launches of a plan.

For each launch its sections are put together to operands, the op runs once, what it returned is checked,
and its result becomes sections for the launches that read it. Nothing is read back from a device here, and
no index is computed: the wiring holds all integers.

All that the checks of a result ask follows from shapes, dtypes and devices. So what passed them is noted
(`multifold._run.outcome`), and the result of a later launch of the same signature, on rows of the same
classes, is only compared with that: of the 16 launches of ``children`` in a minibatch of trees the first is
looked at in full, which takes a third of the time beside its op. A result that does not fit is checked in
full.

Before a launch the classes of the results whose rows meet in an operand are compared, one query for a
result. Where they differ in trailing shape, dtype or device, the launcher stops, and `multifold._run.loop`
divides the launch.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from time import perf_counter
from typing import Any

from multifold._record.freezing import snapshot
from multifold._record.signature import Signature, Slot
from multifold._run.divide import agree
from multifold._run.hints import COLUMN, GUESSED, Failure, hint_for
from multifold._run.messages import listing, said
from multifold._run.outcome import Outcome, sizes_of
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold._run.trial import Trial, verify
from multifold._run.values import CONTAINERS, READ_WHOLE, counted, groups_differ, opened
from multifold._run.writes import Watch, refuse_changed
from multifold._wiring.wiring import (
    LaunchWiring,
    Leaves,
    Numbers,
    Operand,
    RaggedRows,
    Reading,
    Whole,
    Wiring,
)
from multifold.backend import Ragged
from multifold.errors import LaunchError, MultifoldError


class Launcher:
    """One wiring in progress: its uploaded numbers, and the sections that wait for their reader.

    Attributes
    ----------
    sections : dict of int to array or container
        The sections that wait for their reader, by number.
    plain : bool
        Whether no loose values are among the rows.
    stopped : bool
        Whether `Run.stop` has ended the run before its last launch.
    """

    def __init__(self, run: Run, wiring: Wiring) -> None:
        self.run = run
        self.wiring = wiring
        self.values = run.values
        self.backend = backend = run.values.backend
        self.columns = run.plan.columns
        self.signatures = self.columns.signatures
        self.rows = run.place.rows
        self.sections: dict[int | None, Any] = {}
        self.plain = not wiring.loose
        self.watches = backend.counts_changes or (run.debug and backend.writeable)
        self.counts = self.watches and not run.debug
        self.stopped = False
        self.no_rows: dict[Hashable, Any] = {}  # by the shape that they would have
        try:
            self.indices, self.numbers = run.values.upload_all(wiring, self.columns)
        except MultifoldError:
            raise
        except Exception as error:
            raise LaunchError(
                f"The numbers of a run could not be put on device {run.values.device!r}: {said(error)}.",
                "leave `device`, or a door's `cuda=True`, out: then numbers go to the device of the model.",
            ) from error

    def launch_all(self, keep: Container[int]) -> int:
        """Run the launches; return how many ran.

        Not all run if one has to be divided, or if `Run.stop` says so, and then ``stopped`` is set.
        ``keep`` names launches whose results stay after their last reader, because they are outputs.
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
            left = len(launches) - index - 1
            if run.stop is not None and left and run.stop(left):
                self.stopped = True
                return index + 1
        return len(launches)

    def launch(self, launch: LaunchWiring) -> None:
        """Run one launch, check its result unless it is like one before, and store what is read of it."""
        run = self.run
        signature = self.signatures[launch.signature]
        begin = perf_counter()
        leaves = self.operands(launch, signature)
        called = perf_counter()
        result = self.call(launch, signature, leaves)
        returned = perf_counter()
        classes = self.classes(launch)
        rows = self.rows[launch.number]
        known = run.outcomes.of(signature)
        outcome = known.get(classes)
        if outcome is None or not outcome.fits(self.backend, result, rows):
            self.check(launch, signature, leaves, result)
            batched = [x for slot, x in zip(signature.slots, leaves, strict=True) if slot.kind.batched]
            outcome = Outcome.of(self.backend, result, sizes_of(batched, result))
            if outcome.kinds and self.plain and not run.is_alone(launch.calls):
                known[classes] = outcome
        if outcome.sizes and rows > 1 and self.suspects(launch, signature, outcome.sizes):
            # As if a trial had come before the launch, which it must not make look slower.
            spent = self.verify(launch, signature, leaves, result, classes)
            begin, called, returned = begin + spent, called + spent, returned + spent
        # Nothing reads the operands again unless a gradient keeps them. Dropped before `store` allocates,
        # their memory, which is still in the cache, becomes that of the gathered sections.
        leaves.clear()
        run.results[launch.number] = result
        self.store(launch.number, launch.readings, result, outcome)
        # The tuple's own __new__: that of the class is a function of Python, of half a microsecond.
        run.timeline.times.append(tuple.__new__(LaunchTimes, (begin, called, returned, perf_counter())))

    # ---- operands ----------------------------------------------------------------------------

    def agree(self, launch: LaunchWiring) -> bool:
        """Return whether the rows of each operand may be concatenated."""
        operands = [x for x in launch.operands if len(x.sections) > 1 or not self.plain]
        mixed = [found for found in map(self.operand_classes, operands) if len(found) > 1]
        if mixed:
            # One query says that widths differ. That dtypes do may be right: then each call is asked.
            return None not in map(self.values.agreed, mixed) and agree(self.run, launch.calls)
        return not self.signatures[launch.signature].says_rows or self.rows_as_said(launch)

    def rows_as_said(self, launch: LaunchWiring) -> bool:
        """Return whether nodes without rows may share a launch with the rows of the others.

        ``ragged([], row_shape=(2,))`` runs apart from rows of shape (3,).
        """
        columns = self.columns
        operands = self.signatures[launch.signature].operands
        for (slot, position), wired in zip(operands, launch.slots, strict=True):
            if type(wired) is RaggedRows and wired.operand.rows:
                found = self.operand_classes(wired.operand)
                if not all(self.values.may_lack_rows(one, slot.value) for one in found):
                    numbers = columns.operand(slot, position, launch.calls)
                    if not columns.lengths[numbers].all():
                        return False
        return True

    def operand_classes(self, operand: Operand) -> list[Hashable]:
        """Return the distinct classes of the rows of an operand, in order: one query a section."""
        run = self.run
        classes = self.run.timeline.classes
        sources = self.wiring.sources
        if self.plain:  # equal classes of a run are one object, so their ids will do
            kept = [classes[sources[section]] for section in operand.sections]
            return kept[:1] if len({*map(id, kept)}) == 1 else list({id(x): x for x in kept}.values())
        found = dict[Hashable, None]()
        for section in operand.sections:
            if sources[section][0] >= 0:
                found[classes[sources[section]]] = None
            else:
                entries = self.wiring.loose[section]
                found.update((self.values.class_of_loose(run.plan.loose[entry]), None) for entry in entries)
        return list(found)

    def assemble(self, operand: Operand) -> Any:
        """Return the rows of an operand: its sections, one after the other, permuted if they must be."""
        take = self.sections.pop if self.plain else self.section
        sections = operand.sections
        if len(sections) == 1:  # most operands: no list of one is made for them
            value = take(sections[0])
        else:
            value = self.values.concat(list(map(take, sections)))
        if operand.permute is None:
            return value
        return self.values.gather(value, self.indices[operand.permute])

    def section(self, number: int) -> Any:
        """Return a section and forget it: each has one reader."""
        entries = self.wiring.loose.get(number)
        if entries is None:
            return self.sections.pop(number)
        return self.values.stack([self.run.plan.loose[entry] for entry in entries])

    def operand(self, launch: LaunchWiring, slot: Slot, wired: Any) -> Any:
        """Return what the op receives for a slot that holds neither rows nor numbers."""
        kind = type(wired)
        if kind is Whole:
            return self.values.protected(self.run.part(wired.launch, wired.part))
        if kind is Leaves:
            return self.values.stack(list(map(self.columns.arrays.__getitem__, wired.entries)))
        if kind is RaggedRows:
            rows = self.ragged_rows(launch, slot, wired.operand)
            ints = map(self.numbers[int].__getitem__, (wired.lengths, wired.segments))
            return Ragged(rows, *map(self.values.protected, ints))
        return self.run.shared(slot.value) if slot.kind.shared else snapshot(slot.value)

    def ragged_rows(self, launch: LaunchWiring, slot: Slot, operand: Operand) -> Any:
        """Return the values of a ragged operand, also if no node of the launch has a row."""
        if operand.rows:
            return self.assemble(operand)
        if slot.value is None:
            raise LaunchError(
                f"{self.naming(launch)}, has no row in a ragged operand, so the shape of a row is not "
                "known.",
                "say it when recording: multifold.ragged(items, row_shape=(width,)).",
            )
        if slot.key not in self.no_rows:  # nothing can be written to it, so all launches may have the same
            self.no_rows[slot.key] = self.values.no_rows(slot.value)
        return self.no_rows[slot.key]

    def operands(self, launch: LaunchWiring, signature: Signature) -> list[Any]:
        """Return what the op receives for each slot of its signature."""
        take = self.sections.pop if self.plain else self.section
        leaves = list[Any]()
        backend = self.backend
        try:
            for i, wired in enumerate(launch.slots):
                if type(wired) is Operand:  # as `assemble`, without the call of a function
                    _, sections, permute = wired
                    if len(sections) == 1:
                        value = take(sections[0])
                    else:
                        parts = list(map(take, sections))
                        value = (self.values if isinstance(parts[0], CONTAINERS) else backend).concat(parts)
                    if permute is not None:
                        values = self.values if isinstance(value, CONTAINERS) else backend
                        value = values.gather(value, self.indices[permute])
                elif type(wired) is Numbers:
                    value = self.numbers[wired.type][wired.upload]
                else:
                    value = self.operand(launch, signature.slots[i], wired)
                leaves.append(value)
            return leaves
        except MultifoldError:
            raise
        except self.backend.passes:
            raise
        except Exception as error:
            raise self.no_operands(launch, error) from error

    def no_operands(self, launch: LaunchWiring, error: Exception) -> LaunchError:
        """Return the error of a launch whose operands can't be put together."""
        return LaunchError(
            f"{self.naming(launch)}, could not get its operands: {said(error)}.",
            f"its arrays must be of a dtype that backend '{self.backend.name}' has.",
        )

    # ---- results -------------------------------------------------------------------------------

    def call(self, launch: LaunchWiring, signature: Signature, leaves: Sequence[Any]) -> Any:
        """Return what the op of a launch returns; refuse what it writes to its operands."""
        run = self.run
        backend = self.backend
        operands = leaves if signature.structure is None else signature.nested(leaves)
        op = run.ops[signature]
        static = signature.keywords() if signature.static else {}
        watch = None
        before = None
        if self.counts:  # what `Watch` does, without an object for each launch, where operands are arrays
            own = signature.recorded
            watched = leaves if len(own) == len(leaves) else [leaves[i] for i in own]
            before = backend.versions(watched)
        if self.watches and (before is None or len(before) < len(watched)):
            watch = Watch(backend, signature, leaves, debug=run.debug)
        try:
            if run.profile:
                rows = counted(self.rows[launch.number], "row")
                with backend.profile(f"multifold: {signature.name} ({rows})"):
                    result = backend.call(op, operands, static)
            else:
                result = backend.call(op, operands, static)
            if watch is not None:
                watch.refuse_changes()
            elif before is not None and before != (after := backend.versions(watched)):
                refuse_changed(own, before, after)
            return result
        except backend.passes:
            raise
        except Exception as error:
            raise self.failed(launch, signature, leaves, error) from error

    def failed(
        self, launch: LaunchWiring, signature: Signature, leaves: Sequence[Any], error: Exception
    ) -> LaunchError:
        """Return the error of a launch whose op has raised one."""
        run = self.run
        found = Failure(error, self.backend, run.ops[signature], run.model, signature, leaves)
        hint = hint_for(found._replace(rows=len(launch.calls), guessed=run.guessed))
        return self.error(launch, leaves, f"raised {said(error)}", hint)

    def check(self, launch: LaunchWiring, signature: Signature, leaves: Sequence[Any], result: Any) -> None:
        """Hold the result to the rule "one node is one row"."""
        run = self.run
        rows = self.rows[launch.number]
        read = result
        if run.is_alone(launch.calls):
            # A result that is read whole may have any shape; only parts that are read by rows count.
            if not launch.readings:
                return
            if isinstance(result, CONTAINERS):
                parts = [reading.part for reading in launch.readings]
                read = [run.part_of(result, launch.number, p) if p else result for p in parts]
        instead = self.values.mismatch(read, rows)
        if instead is None:
            return
        what = f"returned {instead.text}"
        hint = instead.hint
        if not instead.array:
            raise self.error(launch, leaves, what, GUESSED if run.guessed else hint)
        if len(launch.calls) == 1 or not signature.batched:
            hint += READ_WHOLE
        why = "" if signature.batched else " (no operand is batched)"
        raise self.error(launch, leaves, f"{what} for {counted(rows, 'row')}{why}", hint)

    def classes(self, launch: LaunchWiring) -> Hashable:
        """Return what tells launches of a signature apart that receive rows of other shapes or dtypes."""
        if self.run.uniform and self.plain:
            return self.run.common
        sources = self.wiring.sources
        classes = self.run.timeline.classes
        return tuple(
            [
                classes.get(sources[operand.sections[0]] if operand.sections else (-1, 0))
                for operand in launch.operands
            ]
        )

    def suspects(self, launch: LaunchWiring, signature: Signature, sizes: frozenset[int]) -> bool:
        """Return whether broadcasting may mix the rows of a launch; `verify` finds out."""
        if 1 in sizes or self.rows[launch.number] in sizes:
            return True
        ragged = launch.slots if signature.ragged else ()
        return any(type(wired) is RaggedRows and wired.operand.rows in sizes for wired in ragged)

    def verify(
        self,
        launch: LaunchWiring,
        signature: Signature,
        leaves: Sequence[Any],
        result: Any,
        classes: Hashable,
    ) -> float:
        """Refuse a result whose rows were mixed by broadcasting; return the seconds that a trial took."""
        run = self.run
        if (signature, classes) in run.passed:
            return 0.0
        began = perf_counter()
        pairs = zip(signature.slots, leaves, strict=True)
        trial = Trial(
            run.values,
            run.ops[signature],
            # The op may have changed its copies of static values.
            [leaf if slot.kind.batched or slot.kind.shared else slot.value for slot, leaf in pairs],
            self.rows[launch.number],
            [slot.kind.batched for slot in signature.slots],
            {
                i: self.wiring.numbers[int][wired.lengths]
                for i, wired in enumerate(launch.slots)
                if type(wired) is RaggedRows
            },
            signature.nested,
            signature.static,
            run.model,
        )
        what = verify(trial, signature, result)
        if what is not None:
            text = f"mixes its rows, and would return wrong values: {what.text}"
            raise self.error(launch, leaves, text, COLUMN) from what.error
        if trial.telling:
            run.passed.add((signature, classes))
        return run.timeline.add("verify", began) - began if trial.held else 0.0

    def error(
        self, launch: LaunchWiring, leaves: Sequence[Any], what: str, hint: str | None = None
    ) -> LaunchError:
        """Return an error that says which launch failed, on what, and where it was recorded."""
        operands = listing(self.signatures[launch.signature], leaves)
        return LaunchError(f"{self.naming(launch)}, {what}. Operands: {operands}.", hint)

    def naming(self, launch: LaunchWiring) -> str:
        """Return the beginning of an error: which launch, and where it was recorded."""
        nodes = counted(len(launch.calls), "node")
        site = self.run.plan.site(int(launch.calls.min()))
        name = self.signatures[launch.signature].name
        return f"The launch of op '{name}' for {nodes}, first recorded at {site}"

    # ---- sections ------------------------------------------------------------------------------

    def store(self, number: int, readings: Sequence[Reading], result: Any, outcome: Outcome | None) -> None:
        """Store the sections that are read of a result, of which ``outcome`` is known."""
        run = self.run
        values = []
        for reading in readings:
            part = reading.part
            at = None if outcome is None else outcome.place_of(part, run.steps)
            if outcome is None or at is None:
                value = run.part_of(result, number, part) if part else result
                if isinstance(value, CONTAINERS):
                    value = opened(value)
                elif value is None:
                    raise run.no_rows(number, part)
                run.note(number, part, self.values.class_of(value))
            else:
                value = result[at] if outcome.kind is tuple else result
                run.note(number, part, outcome.forms[at])
            values.append(value)
        self.cut(values, readings)

    def cut(self, values: Sequence[Any], readings: Sequence[Reading]) -> None:
        """Make sections of parts of a result, each as its reading says."""
        protects = self.backend.protects
        sections = self.sections
        for value, reading in zip(values, readings, strict=True):
            _, whole, sizes, slices, gathered_sizes, gathered, gather = reading
            backend: Any = self.values if isinstance(value, CONTAINERS) else self.backend
            if protects:
                value = backend.protected(value)
            for section in whole:
                sections[section] = value
            if slices:
                sections.update(zip(slices, backend.split(value, sizes), strict=True))
                sections.pop(None, None)  # rows that are gathered instead
            if gather is not None:
                value = backend.gather(value, self.indices[gather])
                if len(gathered) == 1:
                    sections[gathered[0]] = value
                else:
                    sections.update(zip(gathered, backend.split(value, gathered_sizes), strict=True))

    def outputs(self) -> list[Any]:
        """Return the value of each group that was asked for: its rows, or a whole result."""
        groups = self.run.timeline.plan.asked.groups
        rows = self.wiring.outputs
        with self.values.placed():
            found = list(map(self.group, rows))
            if len(rows) < len(groups):
                each = iter(found)
                found = [self.run.whole(x) if isinstance(x, int) else next(each) for x in groups]
        return list(map(self.values.unprotected, found)) if self.backend.protects else found

    def group(self, operand: Operand) -> Any:
        """Return the rows of one group of the outputs."""
        if not (self.run.uniform and self.plain):
            classes = self.operand_classes(operand)
            if len(classes) > 1 and self.values.agreed(classes) is None:
                raise groups_differ(classes)
        return self.assemble(operand)
