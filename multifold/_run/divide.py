"""Dividing a launch whose operands turn out to differ in trailing shape, dtype or device.

Shapes of what the user's ops return are unknown while recording, so a schedule first assumes that
calls of one signature fit together. When blocks that meet in an operand differ, the types of all
pending calls are refined by the classes of their operands, as far as they are known: from the blocks
that were computed, and from launches of the same refined type that have already shown what
they return. What was run stays, the rest is scheduled again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._run.run import Run
from multifold._run.values import ragged_rows_differ


def divide(run: Run, types: Integers, pending: Integers) -> Integers:
    """Return types of the pending calls that tell calls on different classes of rows apart.

    Raises
    ------
    LaunchError
        If rows of different classes meet inside one ragged operand of one call.
    """
    columns, place = run.columns, run.place
    predicted: dict[int, int] = {}  # pending call -> a launch that shows what it will return
    shown: dict[Hashable, int] = {}  # (type, classes of operands) -> such a launch
    numbers: dict[Hashable, int] = {}
    refined = types.copy()

    def row_class(ref: int) -> Hashable | None:
        if ref < 0:
            return run.values.class_of_loose(run.loose[-1 - ref])
        call = ref & CALL_MASK
        launch = int(place.launch[call])
        if launch < 0:
            launch = predicted.get(call, -1)
        return run.classes.get((launch, ref >> PART_BITS))

    def key(call: int) -> Hashable:
        classes: list[Hashable | None] = []
        for refs in batched_refs(run, call):
            distinct = {row_class(ref): None for ref in refs}
            distinct.pop(None, None)
            if len(distinct) > 1:
                name = columns.signatures[columns.signature[call]].name
                raise ragged_rows_differ(distinct, f"of op '{name}' recorded at {run.site(call)}")
            classes.append(next(iter(distinct), None))
        return int(types[call]), tuple(classes)

    for call in np.flatnonzero(place.launch >= 0).tolist():
        shown.setdefault(key(call), int(place.launch[call]))
    for call in pending.tolist():
        known = key(call)
        refined[call] = numbers.setdefault(known, len(numbers))
        if known in shown:
            predicted[call] = shown[known]
    return refined


def batched_refs(run: Run, call: int) -> Iterator[list[int]]:
    """Yield the references of each batched operand of a call: one, or those of its ragged rows."""
    columns = run.columns
    signature = columns.signatures[columns.signature[call]]
    for slot, position in signature.operands:
        if slot.kind.rows:
            found = columns.operand(slot, position, call)
            yield columns.rows_of(found).tolist() if slot.kind.ragged else [int(found)]
