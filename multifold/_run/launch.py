"""Launches: sections are put together to operands, the op runs once, its result becomes sections.

Nothing is read back from a device here, and no index is computed: the wiring holds all integers. Before a
launch its executor compares the classes of the results whose rows meet in an operand, one query for a
result. Where they differ in trailing shape, dtype or device, it stops, and `multifold._run.loop` divides
the launch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import Any

from multifold._record.freezing import snapshot
from multifold._record.signature import Slot
from multifold._run.divide import agree
from multifold._run.hints import COLUMN, GUESSED, Failure, hint_for
from multifold._run.messages import listing, said
from multifold._run.outcome import Outcome, PastRun
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold._run.trial import Trial, may_meet, may_mix, shapes_of, trailing, verify
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


class Executor:
    """One wiring in progress: its uploaded numbers, and the sections that wait for their reader."""

    def __init__(self, run: Run, wiring: Wiring) -> None:
        self.run = run
        self.wiring = wiring
        self.values = run.values
        self.sections: dict[int | None, Any] = {}
        self.apart = run.met.apart
        self.sizes = run.met.sizes
        self.outcomes = run.met.outcomes
        self.tried: set[Hashable] = set()  # classes of launches that were put to a trial
        self.backend = backend = run.values.backend
        self.rows = run.place.rows
        self.plain = not wiring.loose  # no loose values are among the rows
        self.watches = backend.counts_changes or (run.debug and backend.writeable)
        self.counts = self.watches and not run.debug
        # Loose values may be others in each run, and results of rounds before come from other plans.
        self.stopped = False  # whether `run.stop` has ended it before its last launch
        self.learns = self.plain and wiring.before.ran and not (wiring.given or run.alone or run.debug)
        self.known: PastRun | None = wiring.before.results if self.learns and not run.profile else None
        self.found: dict[int, Outcome | None] = {}
        self.trusts = self.plain and not (run.alone or run.debug or run.profile)
        self.no_rows: dict[Hashable, Any] = {}  # by the shape that they would have
        try:
            self.indices, self.numbers = run.values.upload_all(wiring)
        except MultifoldError:
            raise
        except Exception as error:
            raise LaunchError(
                f"The numbers of a run could not be put on device {run.values.device!r}: {said(error)}.",
                "leave `device`, or a door's `cuda=True`, out: then numbers go to the device of the model.",
            ) from error

    def expected(self, launch: LaunchWiring) -> Outcome | None:
        """Return what one like it has shown of the result of a launch; None if it has to be looked at."""
        if not self.outcomes:
            return None
        uniform = self.run.uniform and self.plain  # then `classes` need not be called
        classes = (launch.signature, self.run.common) if uniform else self.classes(launch)
        outcome = self.outcomes.get(classes)
        if outcome is None or not outcome.has(launch.readings):
            return None
        # Most launches are known to be apart, and nothing else is asked of them.
        return outcome if classes in self.apart or not self.suspects(launch, classes) else None

    def stops(self, left: int) -> bool:
        """Return whether the run ends here, with so many launches left; see `Run.stop`."""
        self.stopped = self.run.stop is not None and self.run.stop(left)
        return self.stopped

    def end(self) -> None:
        """Leave what the next run of this wiring may expect: all launches have run."""
        if self.learns and self.known is None:
            self.known = PastRun(self.found, self.run.timeline.classes, self.run.distinct)
        self.wiring.before.note(self.known)

    # ---- operands ----------------------------------------------------------------------------

    def agree(self, launch: LaunchWiring) -> bool:
        """Return whether the rows of each operand may be concatenated."""
        operands = [x for x in launch.operands if len(x.sections) > 1 or not self.plain]
        mixed = [found for found in map(self.operand_classes, operands) if len(found) > 1]
        if mixed:
            self.learns = False  # what a framework promotes may depend on more than classes, as on autocast
            # One query says that widths differ. That dtypes do may be right: then each call is asked.
            return None not in map(self.values.agreed, mixed) and agree(self.run, launch.calls)
        return not launch.signature.says_rows or self.rows_as_said(launch)

    def rows_as_said(self, launch: LaunchWiring) -> bool:
        """Return whether nodes without rows may share a launch with the rows of the others.

        ``ragged([], row_shape=(2,))`` runs apart from rows of shape (3,).
        """
        columns = self.run.plan.columns
        for (slot, position), wired in zip(launch.signature.operands, launch.slots, strict=True):
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
            return self.values.stack(list(map(self.run.plan.columns.arrays.__getitem__, wired.entries)))
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

    # ---- launches and their results ------------------------------------------------------------

    def launch(self, launch: LaunchWiring) -> None:
        """Run one launch and store what is read of its result."""
        begin = perf_counter()
        leaves = self.operands(launch)
        called = perf_counter()
        result = self.call(launch, leaves)
        self.finish(launch, leaves, result, (begin, called, perf_counter()))

    def call(self, launch: LaunchWiring, leaves: Sequence[Any]) -> Any:
        """Return what the op of a launch returns; refuse what it writes to its operands."""
        run = self.run
        signature = launch.signature
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
            raise self.failed(launch, leaves, error) from error

    def finish(
        self, launch: LaunchWiring, leaves: list[Any], result: Any, times: tuple[float, float, float]
    ) -> None:
        """Check the result of a launch, and store what is read of it; ``leaves`` are forgotten then."""
        self.check(launch, leaves, result)
        if self.suspects(launch, self.classes(launch)):
            # As if a trial had come before the launch, which it must not make look slower.
            spent = self.verify(launch, leaves, result)
            times = times[0] + spent, times[1] + spent, times[2] + spent
        outcome = self.outcome(launch, result) if self.trusts or self.learns else None
        # Nothing reads the operands again unless a gradient keeps them. Dropped before `store` allocates,
        # their memory, which is still in the cache, becomes that of the gathered sections.
        leaves.clear()
        self.run.results[launch.number] = result
        self.store(launch.number, launch.readings)
        if self.known is None and self.learns:
            fits = outcome is not None and outcome.has(launch.readings)
            self.found[launch.number] = outcome if fits else None
        # The tuple's own __new__: that of the class is a function of Python, of half a microsecond.
        self.run.timeline.times.append(tuple.__new__(LaunchTimes, (*times, perf_counter())))

    def outcome(self, launch: LaunchWiring, result: Any) -> Outcome | None:
        """Return what later launches may expect of the result of one like it; None if nothing."""
        classes = self.classes(launch)
        if classes in self.tried:  # a trial is held for an op, not for shapes alone
            return None
        if self.trusts and classes not in self.outcomes and not self.learns:
            self.outcomes[classes] = None  # most launches of a round of awaited values have none like them
            return None
        found = Outcome.of(self.backend, result, self.run.plan.columns.parts)
        if found is not None:
            forms = tuple(map(self.run.one_object, found.forms))
            found = Outcome(found.kind, found.kinds, forms, found.at)
        if self.trusts:
            self.outcomes[classes] = found
        return found

    def distrust(self, known: PastRun) -> None:
        """Look at all results in full from now on, since one is not what it was before."""
        self.found = {**known.results, **self.found}
        self.known = None

    def operands(self, launch: LaunchWiring) -> list[Any]:
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
                    value = self.operand(launch, launch.signature.slots[i], wired)
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

    def failed(self, launch: LaunchWiring, leaves: Sequence[Any], error: Exception) -> LaunchError:
        """Return the error of a launch whose op has raised one."""
        run = self.run
        signature = launch.signature
        found = Failure(error, self.backend, run.ops[signature], run.model, signature, leaves)
        hint = hint_for(found._replace(rows=len(launch.calls), guessed=run.guessed))
        return self.error(launch, leaves, f"raised {said(error)}", hint)

    def check(self, launch: LaunchWiring, leaves: Sequence[Any], result: Any) -> None:
        """Hold the result to the rule "one node is one row"."""
        run = self.run
        rows = self.rows[launch.number]
        read = result
        if run.alone and int(launch.calls[0]) in run.alone:
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
        if len(launch.calls) == 1 or not launch.signature.batched:
            hint += READ_WHOLE
        why = "" if launch.signature.batched else " (no operand is batched)"
        raise self.error(launch, leaves, f"{what} for {counted(rows, 'row')}{why}", hint)

    def suspects(self, launch: LaunchWiring, classes: Hashable) -> bool:
        """Return whether broadcasting may mix the rows of a launch of some class; `verify` finds out."""
        rows = self.rows[launch.number]
        if rows < 2 or classes in self.apart:  # it mixes no rows where there is one
            return False
        sizes = self.sizes.get(classes)
        if not sizes:
            return sizes is None
        if 1 in sizes or rows in sizes:
            return True
        ragged = launch.slots if launch.signature.ragged else ()
        return any(type(wired) is RaggedRows and wired.operand.rows in sizes for wired in ragged)

    def classes(self, launch: LaunchWiring) -> Hashable:
        """Return what tells launches apart that receive rows of other shapes or dtypes."""
        if self.run.uniform and self.plain:
            return launch.signature, self.run.common
        found: list[Any] = [launch.signature]
        for operand in launch.operands:
            source = self.wiring.sources[operand.sections[0]] if operand.sections else (-1, 0)
            found.append(self.run.timeline.classes.get(source))
        return tuple(found)

    def verify(self, launch: LaunchWiring, leaves: Sequence[Any], result: Any) -> float:
        """Refuse a result whose rows were mixed by broadcasting; return the seconds that a trial took."""
        run = self.run
        signature = launch.signature
        began = perf_counter()
        batched = [x for slot, x in zip(signature.slots, leaves, strict=True) if slot.kind.batched]
        if not may_meet(batched):
            self.apart.add(self.classes(launch))
            return 0.0
        shapes = shapes_of(batched)
        sizes = trailing(shapes, result)
        if not may_mix(self.rows[launch.number], shapes, sizes):
            self.sizes[self.classes(launch)] = sizes
            return 0.0
        self.tried.add(self.classes(launch))
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
        what, self.sizes[self.classes(launch)] = verify(trial, signature, result)
        if what is not None:
            text = f"mixes its rows, and would return wrong values: {what.text}"
            raise self.error(launch, leaves, text, COLUMN) from what.error
        return run.timeline.add("verify", began) - began if trial.held else 0.0

    def error(
        self, launch: LaunchWiring, leaves: Sequence[Any], what: str, hint: str | None = None
    ) -> LaunchError:
        """Return an error that says which launch failed, on what, and where it was recorded."""
        operands = listing(launch.signature, leaves)
        return LaunchError(f"{self.naming(launch)}, {what}. Operands: {operands}.", hint)

    def naming(self, launch: LaunchWiring) -> str:
        """Return the beginning of an error: which launch, and where it was recorded."""
        nodes = counted(len(launch.calls), "node")
        site = self.run.plan.site(int(launch.calls.min()))
        return f"The launch of op '{launch.signature.name}' for {nodes}, first recorded at {site}"

    # ---- sections ------------------------------------------------------------------------------

    def store(self, number: int, readings: Sequence[Reading]) -> None:
        """Store the sections that are read of a launch's result."""
        run = self.run
        result = self.run.results[number]
        values = []
        for reading in readings:
            value = run.part_of(result, number, reading.part) if reading.part else result
            if isinstance(value, CONTAINERS):
                value = opened(value)
            elif value is None:
                raise run.no_rows(number, reading.part)
            found = run.note_class(number, reading.part, value)
            values.append(value)
            if self.known is not None and found != self.known.classes[number, reading.part]:
                self.distrust(self.known)
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
