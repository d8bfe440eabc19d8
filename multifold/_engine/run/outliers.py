"""The odd ones out: whose calls an error is about, where their rows differ from those of other calls.

An op that takes rows of width 16 fails on a row of width 15, which runs in a launch of its own. So the
error says, besides what it has received, what the other calls of the op have:

>>> import numpy as np
>>> import multifold
>>> rows = [np.ones((1, 16)), np.ones((1, 15))]
>>> try:
...     fold = multifold.Fold(backend="numpy")
...     fold.run({"mean": lambda x: x @ np.ones(16)}, rows, lambda fold, x: fold.add("mean", x))
... except multifold.LaunchError as error:
...     for note in error.__notes__:
...         print(note)
Raised by example 1 of fold.run.
Other calls of 'mean' have rows of shape (16,) as operand 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS
from multifold._engine.ops.messages import places
from multifold._engine.record.signature import Signature
from multifold._engine.run.divide import ComputedRows, classes_of
from multifold.errors import MultifoldError
from multifold.operands import MissingRows

FEW = 3
"""How many shapes of other calls a note lists. An op whose rows have more of them is meant to take any."""

Shape = tuple[int, ...]


def other_shapes(met: ComputedRows, call: int) -> str:
    """Return a sentence on the row shapes of other calls where those of ``call`` differ; "" if none do.

    Other calls are those of ops of one name on operands of the same kinds. Operands with more than `FEW`
    other shapes are left out.
    """
    columns = met.plan.columns
    signature = columns.signatures[columns.signature[call]]
    own = shapes_of(met, signature, call)
    others: list[set[Shape]] = [set() for _ in own]
    kinds = [slot.kind for slot in signature.slots]
    for number, other in enumerate(columns.signatures):
        if other.name == signature.name and [slot.kind for slot in other.slots] == kinds:
            # None stands for the signature itself, which says the shapes of arrays that the caller has
            # recorded.
            for one in [*np.flatnonzero(columns.signature == number).tolist(), None]:
                for found, shape in zip(others, shapes_of(met, other, one), strict=True):
                    found.update([] if shape is None else [shape])
    told = []
    for place, shape, found in zip(places(signature, kinds), own, others, strict=True):
        found.discard(shape)
        # With many other shapes the op is meant to take any, and a list of them would explain nothing.
        if shape is not None and found and len(found) <= FEW:
            told.append(f"rows of shape {' or '.join(sorted(map(str, found)))} as operand {place}")
    return f"Other calls of '{signature.name}' have {' and '.join(told)}." if told else ""


def shapes_of(met: ComputedRows, signature: Signature, call: int | None) -> list[Shape | None]:
    """Return the trailing shape of the operand of each slot, in order; None if unknown or without one.

    The shapes are those of ``call``, or, if that is None, what the signature alone says, of arrays that
    were recorded.
    """
    try:
        rows = iter(() if call is None else classes_of(met, call, {}))
    except MultifoldError:  # of a ragged operand whose rows differ
        # The error of the launch is under way already, and the note must not replace it.
        rows = iter(())
    return [shape_in(next(rows, None) if slot.kind.rows else slot.key) for slot in signature.slots]


def shape_in(found: Hashable) -> Shape | None:
    """Return the trailing shape in a class of rows (`Values.class_of`) or in the key of a slot; else None.

    >>> shape_in(((16,), "float32")), shape_in(("numpy", (15,), "float64")), shape_in(None)
    ((16,), (15,), None)
    """
    if not isinstance(found, tuple) or not found or isinstance(found, MissingRows):
        return None
    shape = found[1] if found[0] == "numpy" else found[0]
    return tuple(shape) if isinstance(shape, tuple) else None


def odd_ones(met: ComputedRows, refs: Sequence[int]) -> list[int]:
    """Return the calls among ``refs``, references of rows, whose rows are not of the most frequent class.

    A class is structure, trailing shapes, dtypes and devices (`Values.class_of`). The calls are in the
    order of ``refs``, and may come twice; loose values, ``-1 - i``, belong to no call, and all have the
    class None.
    """
    classes = [
        None if ref < 0 else met.classes.get((int(met.place.launch[ref & CALL_MASK]), ref >> PART_BITS))
        for ref in refs
    ]
    usual = Counter(classes).most_common(1)[0][0]
    return [ref & CALL_MASK for ref, own in zip(refs, classes, strict=True) if ref >= 0 and own != usual]
