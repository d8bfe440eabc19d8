"""Telling calls of one type apart by the shapes that they read, before their program is laid out.

A program has one kernel for each type of call, so all calls of a type must agree in the classes of their
rows: structure, trailing shapes, dtypes. Types are those of the schedule, which knows nothing of shapes. A
fold finds out while it runs that ``f`` meets rows of width 2 and rows of width 3. A program must know it
before, so `refine` runs one call for each type and classes of operands, on rows that other such calls gave.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.ops.hints import shapes_hint
from multifold._engine.ops.lookup import resolve
from multifold._engine.ops.reach import owners_of
from multifold._engine.ops.state import aside
from multifold._engine.ops.trial import Trial
from multifold._engine.ops.values import Values, is_container, ragged_rows_differ, sizes_of, steps_to
from multifold._engine.ops.verdicts import key_of, ranks_of
from multifold._engine.plan.plan import Plan
from multifold._engine.plan.schedule import make_schedule
from multifold._engine.record.signature import Signature, Slot
from multifold._twin.replay import Replay
from multifold.backend import Backend
from multifold.program.checks import Named, follow, has_passed, raised, refuse_mixed
from multifold.program.kernels import Promoted


def refine(
    plan: Plan, backend: Backend, model: Any, policy: str
) -> tuple[Plan, dict[int, Hashable], Promoted]:
    """Return a plan in which calls that read rows of different classes have different types.

    A class is what rows have in common: structure, trailing shapes and dtypes. The plan is returned as it
    is if no type has to be divided, else with a new schedule by ``policy``. The second value maps a type to
    the class of each row operand, None if that has no row. The third is `Samples.promoted`.
    """
    samples = Samples(plan, backend, model)
    schedule = plan.schedule
    # In one context for all: TensorFlow draws what runs in there into a graph of its own, where the samples
    # of one launch are operands of the next.
    with samples.aside():
        for launch in range(len(schedule)):
            samples.take(schedule.members(launch))
    types, classes = samples.divided()
    if types is plan.types:
        return plan, classes, samples.promoted
    # The types have changed, so the launches are chosen anew for the same calls.
    pending = np.sort(schedule.calls)
    schedule = make_schedule(plan.columns, schedule.graph, types, pending, policy)
    return replace(plan, types=types, schedule=schedule), classes, samples.promoted


class Samples(Replay):
    """The results of a few calls, which stand for those of all calls that are like them.

    It runs calls as the eager twin does, on rows that stand for their own, and leaves the model as it was:
    running means do not move, and no random number counts as drawn.

    Attributes
    ----------
    results : list
        What one call of each (type, classes) returned.
    result : int64 array of shape ``(calls,)``
        Which of the results stands for each call.
    classes : dict of Hashable to int
        The number of each class of values.
    """

    def __init__(self, plan: Plan, backend: Backend, model: Any) -> None:
        recorded: Any = SimpleNamespace(loose=plan.loose, site=plan.site)
        super().__init__(recorded, model, Values(backend, None), debug=False)
        self.plan = plan
        self.columns = plan.columns
        self.results: list[Any] = []
        self.numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self.result = np.full(max(len(plan.columns), 1), -1)  # loose values look up call 0
        self.classes: dict[Hashable, int] = {}

    def class_of(self, value: Any) -> int:
        """Return the number of a value's class, from 0; a new class gets the next number.

        A class is what values have in common if their rows can be put together: structure, trailing shapes,
        dtypes.
        """
        return self.classes.setdefault(self.arrays.class_of(value), len(self.classes))

    def value(self, ref: int) -> Any:
        """Return one row that stands for what a reference, ``part << 40 | call``, reads.

        It is that part of the call's sample, the result of a call like it (`take`). Raises `LaunchError` if
        there is no such part.
        """
        call = ref & CALL_MASK
        steps = steps_to(self.columns.parts, ref >> PART_BITS)
        return follow(self.results[self.result[call]], steps, self.named(call))

    row = value  # whether it is one row shows when the program runs

    def classes_of(self, refs: Integers) -> Integers:
        """Return the number of the class of each reference's row, as an int64 array in their order."""
        # Calls with the same sample return alike, so one look for each sample and part will do.
        result = self.result[np.where(refs < 0, 0, refs & CALL_MASK)]
        codes = np.where(refs < 0, refs, result | refs >> PART_BITS << PART_BITS)
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        found = list(map(self.class_of, self.rows(refs[first].tolist(), self.plan.loose)))
        return np.array(found, np.int64)[inverse.ravel()]

    def promoted(self, refs: Integers) -> tuple[tuple[Any, ...], Integers]:
        """Return the dtypes that the rows of ``refs`` are promoted to, and which of them are converted.

        There is a dtype for each leaf of a row, and the second value is a bool array with an entry for each
        reference. Where all rows are of one class (`class_of`), or the framework does not promote them, the
        dtypes are ``()`` and the second value is ``refs``.
        """
        numbers = self.classes_of(refs)
        distinct = set(numbers.tolist())
        names = list(self.classes)
        some = [names[number] for number in distinct]
        found: Any = self.arrays.agreed(some) if len(distinct) > 1 else None
        if found is None:
            return (), refs  # of one class; or no framework promotes them, and the slab refuses them
        dtypes = tuple(leaf[1] for leaf in (found[1:] if is_container(found) else (found,)))
        return dtypes, numbers != self.classes.get(found, -1)

    def take(self, calls: Integers) -> None:
        """Give each call of one launch a sample: the result of a call like it, which runs if it is new.

        All calls that these ``calls`` read must have samples. Raises `LaunchError` if an op fails or mixes
        rows.
        """
        table = []
        for slot, position in self.signature(calls[0]).operands:
            if slot.kind.ref or slot.kind.ragged:
                found = self.columns.operand(slot, position, calls)
                if slot.kind.ragged:
                    table.append(np.array([self.ragged_class(number) for number in found.tolist()]))
                else:
                    table.append(self.classes_of(found))
        # Calls with one column of classes return alike: run the first of them for all.
        distinct, first, inverse = np.unique(
            np.array(table, np.int64).reshape(len(table), len(calls)),
            axis=1,
            return_index=True,
            return_inverse=True,
        )
        own_type = int(self.plan.types[calls[0]])
        numbers = []
        like = inverse.ravel()
        for i, (column, call) in enumerate(zip(distinct.T.tolist(), calls[first].tolist(), strict=True)):
            key = own_type, tuple(column)
            if key not in self.numbers:
                self.numbers[key] = len(self.results)
                self.results.append(self.run(call))
                # A call that runs alone has no other rows in its launch to mix with. The op is tried on
                # three rows, and on the same ones again if there are fewer calls.
                together = np.setdiff1d(calls[like == i], self.plan.alone)
                if len(together):
                    self.verify(np.resize(together, 3).tolist())
            numbers.append(self.numbers[key])
        self.result[calls] = np.array(numbers)[like]

    def ragged_class(self, number: int) -> int:
        """Return the number of the class of the rows of ragged operand ``number``; -1 if it has no row.

        Rows of several classes have the class that they are promoted to. Raises `LaunchError` if there is
        none.
        """
        members = self.columns.rows_of(number)
        if not len(members):
            return -1
        numbers = sorted(set(self.classes_of(members).tolist()))
        if len(numbers) == 1:
            return numbers[0]
        names = list(self.classes)
        classes = [names[other] for other in numbers]
        found = self.arrays.agreed(classes)
        if found is None:
            call = int(np.searchsorted(self.columns.ragged_starts, number, side="right")) - 1
            raise ragged_rows_differ(classes, f"recorded at {self.plan.site(call)}")
        return self.classes.setdefault(found, len(self.classes))

    def run(self, call: int) -> Any:
        """Run the op of one call on samples of the rows that it reads, and return what the op returned."""
        return self.launch(self.signature(call), self.leaves_of(call), call)

    def launch(self, signature: Signature, leaves: list[Any], call: int) -> Any:
        """Run the op of one call on ``leaves``, and return what it returned.

        If the op raises, this raises the `LaunchError` of a program, which names the op and its line.
        """
        named = self.named(call)
        fn = self.op_of(call)
        try:
            return self.result_of(fn, signature, leaves)
        except Exception as error:
            raise raised(named, error) from error

    def aside(self) -> AbstractContextManager[object]:
        """Return a context manager: what ops of the plan change inside of it is undone.

        That is the state of the model, as running means, and that of random numbers.
        """
        backend = self.arrays.backend
        schedule = self.plan.schedule
        first = [int(schedule.members(launch)[0]) for launch in range(len(schedule))]
        ops = {id(fn): fn for fn in map(self.op_of, first)}
        owners = [x for fn in ops.values() for x in owners_of(backend, self.model, fn)]
        return aside(backend, list({id(x): x for x in owners}.values()))

    def op_of(self, call: int) -> Callable[..., Any]:
        """Return the function that a call runs; `LaunchError` if the model has none of that name."""
        return resolve(self.arrays.backend, self.model, self.signature(call).op, self.named(call).site)

    def leaves_of(self, call: int) -> list[Any]:
        """Return the operands of a call, leaf by leaf, with samples in the place of rows.

        Floats are cast to the dtype of arrays, as a launch casts them.
        """
        signature = self.signature(call)
        leaves = [self.operand_of(call, *operand) for operand in signature.operands]
        return [*self.arrays.narrowed(leaves, signature.beside)] if signature.beside else leaves

    def verify(self, calls: list[int]) -> None:
        """Run the op on the rows of three calls, and raise `LaunchError` if it mixes them, or raises.

        An op that passes is remembered (`has_passed`). Ops without batched operands are not tried, nor ops
        with ragged ones: executors try these themselves, where they know the rows of each launch.
        """
        call = calls[0]
        signature = self.signature(calls[0])
        batched = [slot.kind.batched for slot in signature.slots]
        if not any(batched) or any(slot.kind.ragged for slot in signature.slots):
            return
        leaves: Sequence[Any] = [
            self.arrays.concat([self.operand_of(own, slot, position) for own in calls])
            if slot.kind.batched
            else self.operand_of(call, slot, position)
            for slot, position in signature.operands
        ]
        if signature.beside:
            leaves = self.arrays.narrowed(leaves, signature.beside)
        named = self.named(call)
        fn = self.op_of(call)
        rows = [leaf for leaf, own in zip(leaves, batched, strict=True) if own]
        key = key_of(signature), ranks_of(rows), 3 in sizes_of(rows)
        if has_passed(self.arrays.backend, fn, key):
            return
        trial = Trial(
            self.arrays, fn, leaves, 3, batched, nested=signature.nested, static=signature.static,
            model=self.model,
        )  # fmt: skip
        result = trial.launch()
        if isinstance(result, Exception):
            raise raised(named, result, shapes_hint(result, trial.meets)) from result
        refuse_mixed(named, trial, key, result)

    def operand_of(self, call: int, slot: Slot, position: int) -> Any:
        """Return what a call receives for one pair (slot, position) of `Signature.operands`."""
        entry = self.columns.operand(slot, position, call)
        if slot.kind.ref:
            entry = int(entry)
        elif slot.kind.ragged:
            entry = self.columns.rows_of(entry).tolist()
        return self.operand(slot, entry)

    def signature(self, call: int) -> Signature:
        """Look up the signature of a call in the columns of the plan."""
        return self.columns.signatures[self.columns.signature[call]]

    def named(self, call: int) -> Named:
        """Return the name of a call's op and the line that recorded the call, for errors."""
        return Named(self.signature(call).name, self.plan.site(call))

    def divided(self) -> tuple[Integers, dict[int, Hashable]]:
        """Return the type of each call, divided where classes differ, and the classes of each type.

        The second maps a type to the class of each of its row operands, None where one has no row. The
        types are ``plan.types`` itself if none is divided. Calls without ragged rows get the sample of
        calls of their type that have some.
        """
        by_type: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for (own_type, column), number in self.numbers.items():
            by_type.setdefault(own_type, []).append((column, number))
        types = self.plan.types
        classes: dict[int, Hashable] = {}
        names: dict[int, Hashable] = {number: key for key, number in self.classes.items()}
        fresh = int(types.max(initial=-1)) + 1
        for own_type, found in by_type.items():
            # An empty ragged operand, of class -1, goes with any other.
            columns = zip(*(column for column, _ in found), strict=True)
            known = [sorted({c for c in column if c >= 0}) for column in columns]
            if all(len(distinct) <= 1 for distinct in known) and self.missing_rows_agree(
                own_type, found, known
            ):
                classes[own_type] = tuple(names[distinct[0]] if distinct else None for distinct in known)
                # In the launches of calls with rows, calls without any return what those return.
                full = next((number for column, number in found if -1 not in column), None)
                if full is not None:
                    self.result[np.isin(self.result, [number for _, number in found])] = full
                continue
            types = types.copy() if types is self.plan.types else types
            for column, number in found:
                types[self.result == number] = fresh
                classes[fresh] = tuple(names.get(c) for c in column)
                fresh += 1
        return types, classes

    def missing_rows_agree(self, own_type: int, found: list[Any], known: list[list[int]]) -> bool:
        """Return whether calls of a type that lack ragged rows may share launches with those that don't.

        ``found`` has pairs (number of the class of each row operand, -1 without a row; number of the
        sample), and ``known`` a list of the classes of each row operand, without -1. False if a call lacks
        rows whose shape was recorded (``row_shape``), and that is another than that of the other calls'
        rows.
        """
        signature = self.signature(int(np.flatnonzero(self.plan.types == own_type)[0]))
        if not signature.says_rows:
            return True
        names = list(self.classes)
        slots = [slot for slot in signature.slots if slot.kind.ref or slot.kind.ragged]
        return all(
            not (slot.kind.ragged and distinct and any(column[i] < 0 for column, _ in found))
            or self.arrays.may_lack_rows(names[distinct[0]], slot.value)
            for i, (slot, distinct) in enumerate(zip(slots, known, strict=True))
        )
