"""Dividing a launch whose operands turn out to differ in trailing shape, dtype or device.

A type is a number: only calls of one type may share a launch. Say that calls 3, 4 and 5 have type 0, and
call 3 turns out to read a row of shape (2,), the other two a row of (5,). Then the pending calls get new
types, one for each pair of (old type, classes of the rows that are read), here 0, 1, 1, and are scheduled
again.

What a call that has not run yet will return is often known all the same: if a call of the same type on rows
of the same classes has run, both return rows of one class. So a chain whose first step is divided need not
be divided again at each further step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.ops.messages import note, raised_by
from multifold._engine.ops.values import Values, ragged_rows_differ
from multifold._engine.plan.plan import Plan
from multifold._engine.plan.wiring import Place
from multifold._engine.record.signature import Slot
from multifold.operands import MissingRows


class ComputedRows(NamedTuple):
    """What a run has computed so far.

    Attributes
    ----------
    values : Values
        What knows whether rows may be put together.
    plan : Plan
        The calls.
    place : Place
        The launch of each call that has run.
    classes : dict of (launch, part) to Hashable
        The class of the rows of each part of a result that was read (`Values.class_of`).
    """

    values: Values
    plan: Plan
    place: Place
    classes: Mapping[tuple[int, int], Hashable]


Known = tuple[int, tuple[Hashable, ...]]
"""The type of a call, and the class of the rows of each batched operand; None for a class not known yet."""


def divide(met: ComputedRows, types: Integers, pending: Integers) -> Integers:
    """Return a copy of ``types`` with new types for the calls ``pending``: equal ones may share a launch.

    ``types`` has a type for each call of the plan. New types are numbered from 0; two pending calls have
    one if they had one before and read rows of the same classes (trailing shapes, dtypes and devices), as
    far as these are known. Calls that lack rows in ragged operands join others by `may_go_with`.

    Raises
    ------
    LaunchError
        If rows of different classes meet inside one ragged operand of one call.
    """
    place = met.place
    predicted: dict[int, int] = {}  # pending call -> a launch of a call that returned the like
    shown: dict[Hashable, int] = {}  # (type, classes of operands) -> such a launch
    numbers: dict[Known, int] = {}
    # A copy: `key` goes on to read the old types while the new ones are written.
    refined = types.copy()

    def key(call: int) -> Known:
        return int(types[call]), classes_of(met, call, predicted)

    # Calls are numbered as they were recorded, so the calls that one reads come before it in both loops.
    for call in np.flatnonzero(place.launch >= 0).tolist():
        shown.setdefault(key(call), int(place.launch[call]))
    for call in pending.tolist():
        known = key(call)
        refined[call] = numbers.setdefault(known, len(numbers))
        if known in shown:
            predicted[call] = shown[known]
    # Nodes without rows go with the first others of their type that have rows as they were said to be.
    goes_with = np.arange(len(numbers))
    for known, number in numbers.items():
        if any(type(one) is MissingRows for one in known[1]):
            fitting = (other for other in numbers if may_go_with(met.values, known, other))
            goes_with[number] = numbers[next(fitting, known)]
    refined[pending] = goes_with[refined[pending]]
    return refined


def agree(met: ComputedRows, calls: Integers) -> bool:
    """Return whether calls of one signature, whose operands are all computed, may share a launch.

    They may if all have the same class (`classes_of`) in each operand; ragged operands without rows fit
    those that have what was said of the missing ones. In a launch the framework promotes the rows of all
    calls, in the loop those of one: so calls that read bfloat16 alone run apart from calls that read
    float32 besides.
    """
    for column in zip(*(classes_of(met, call, {}) for call in calls.tolist()), strict=True):
        # Ragged operands without rows have no class: what they are said to lack must match the others'.
        missing = {one for one in column if type(one) is MissingRows}
        known = set(column) - missing
        if len(known) > 1 or not all(met.values.may_lack_rows(x, y) for x in known for y in missing):
            return False
    return True


def classes_of(met: ComputedRows, call: int, predicted: Mapping[int, int]) -> tuple[Hashable | None, ...]:
    """Return the class (`Values.class_of`) of the rows in each node or ragged operand of a call, in order.

    It is None if unknown, and that of the promoted rows where a ragged operand has several
    (`Values.agreed`). A ragged operand without rows has the `MissingRows` that its caller said, or None, in
    the place of a class. ``predicted`` is a pending call -> a launch that has run and returned rows of the
    same classes.

    Raises
    ------
    LaunchError
        If rows of classes that can't be concatenated meet inside one ragged operand.
    """
    columns = met.plan.columns
    found: list[Hashable | None] = []

    def row_class(ref: int) -> Hashable | None:
        if ref < 0:
            return met.values.class_of_loose(met.plan.loose[-1 - ref])
        launch = int(met.place.launch[ref & CALL_MASK])
        if launch < 0:
            launch = predicted.get(ref & CALL_MASK, -1)
        # None if nothing shows what this call returns. A later division tells more, if one is needed.
        return met.classes.get((launch, ref >> PART_BITS))

    for slot, refs in batched_refs(met, call):
        if not refs:
            found.append(slot.value)
            continue
        distinct = {row_class(ref): None for ref in refs}
        # Rows whose class is not known yet may turn out to fit, so they are no reason to refuse.
        distinct.pop(None, None)
        one = met.values.agreed(distinct) if distinct else None
        if distinct and one is None:
            name = columns.signatures[columns.signature[call]].name
            error = ragged_rows_differ(distinct, f"of op '{name}' recorded at {met.plan.site(call)}")
            whose = met.plan.frame.whose
            if whose is not None:
                note(error, raised_by([call], whose))
            raise error
        found.append(one)
    return tuple(found)


def may_go_with(values: Values, empty: Known, other: Known) -> bool:
    """Return whether calls like ``empty``, whose ragged operands lack rows, may join calls like ``other``.

    Both are (type, what `classes_of` returned). They may if both are of one type, ``other`` has rows in all
    operands, operands that ``empty`` has rows in are of equal classes, and the others are as it says of its
    missing rows, or of a class that is not known.
    """
    return empty[0] == other[0] and all(
        type(b) is not MissingRows
        and (a == b or (type(a) is MissingRows and (b is None or values.may_lack_rows(b, a))))
        for a, b in zip(empty[1], other[1], strict=True)
    )


def batched_refs(met: ComputedRows, call: int) -> Iterator[tuple[Slot, list[int]]]:
    """Yield for each operand of a call that is made of rows its slot and its references.

    A node has one reference, a ragged operand one for each of its rows; ``-1 - i`` is loose value ``i``.
    """
    columns = met.plan.columns
    signature = columns.signatures[columns.signature[call]]
    for slot, position in signature.operands:
        if slot.kind.rows:
            found = columns.operand(slot, position, call)
            yield slot, columns.rows_of(found).tolist() if slot.kind.ragged else [int(found)]
