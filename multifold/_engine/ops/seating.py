"""Calls of modules of one form become calls of their population, where names have become modules.

A recorder that is handed a module finds its seat (`multifold._engine.record.population`). A name is a
module only where there is a model, and a trace has no backend to ask. So before a run, the ops of its calls
are looked up, and those of several modules of one form are replaced. The two calls

    call 0: "nets.0.last" (x)      call 1: "nets.1.last" (y)

become two calls of one signature, ``population(x, 0)`` and ``population(y, 1)``. References and the numbers
of calls stay as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optree

from multifold._engine.ops.lookup import find
from multifold._engine.plan.columns import Columns
from multifold._engine.record import kinds
from multifold._engine.record.freezing import freeze
from multifold._engine.record.population import SEATS, Population, Seat, seat_of
from multifold._engine.record.signature import Signature, Slot
from multifold.backend import Backend

MODULE = Slot(kinds.INT)
"""The last operand of a call of a population: the number of a module."""


def seated(columns: Columns, backend: Backend, model: Any) -> tuple[Columns, list[Any]] | None:
    """Return the columns with calls of populations for those of modules with a seat, and these modules.

    None if nothing is replaced. The caller keeps the modules until the calls have run: a population does
    not keep its modules alive, and to look a name up may make the module that it returns.

    Parameters
    ----------
    columns : Columns
        The calls of a run.
    backend : Backend
        The framework, which says which modules have equal forms.
    model : object
        Where names are looked up. What it does not have is left as it is.
    """
    seats, kept = seats_of(columns.signatures, backend, model)
    if len(seats) < 2:
        return None
    alike: dict[Hashable, list[int]] = {}
    for number, (population, _) in seats.items():
        key: Any = columns.signatures[number].key  # `Recorder._understand` has made it, the op first
        alike.setdefault((population, *key[1:]), []).append(number)
    signatures = list(columns.signatures)
    numbers = np.arange(len(signatures))
    modules = np.full(len(signatures), -1)
    for same in alike.values():
        if len(same) > 1:  # the calls of one module share launches as they are
            numbers[same] = len(signatures)
            modules[same] = [seats[number][1] for number in same]
            signatures.append(of_population(signatures[same[0]], seats[same[0]][0]))
    if len(signatures) == len(numbers):
        return None
    calls = np.flatnonzero(modules[columns.signature] >= 0)
    found = replace(
        columns,
        signatures=tuple(signatures),
        signature=numbers[columns.signature],
        ints=np.insert(columns.ints, columns.starts("ints")[calls + 1], modules[columns.signature[calls]]),
    )
    return found, kept


def seats_of(
    signatures: Sequence[Signature], backend: Backend, model: Any
) -> tuple[dict[int, Seat], list[Any]]:
    """Return the seats of ops by number of signature, where an op has one; and all ops looked up."""
    if not backend.has_forms or backend.is_traced():
        return {}, []
    known: dict[str, Any] = {}
    ops = {i: find(backend, model, x.op, known) for i, x in enumerate(signatures) if takes_number(x)}
    found = {i: SEATS.get(id(op)) or seat_of(backend, op) for i, op in ops.items()}
    # The first module of a form gets its seat only when the second one is asked for.
    seats = {i: own for i, seat in found.items() if (own := seat or SEATS.get(id(ops[i]))) is not None}
    return seats, [*ops.values()]


def takes_number(signature: Signature) -> bool:
    """Return whether calls of a signature may get the number of a module: no operand is shared or ragged.

    A call whose operands all calls of a launch share runs once for all of them, so it has no row for a
    number. A call of a population has a number already.
    """
    may_share = signature.batched and type(signature.op) is not Population
    return may_share and not any(slot.kind.shared or slot.kind.ragged for slot in signature.slots)


def of_population(signature: Signature, population: Population) -> Signature:
    """Return the signature of the same calls of a population, which takes the number of a module last."""
    slots = *signature.slots, MODULE
    structure = signature.structure
    if structure is not None:
        operands = optree.tree_unflatten(structure, range(len(signature.slots)))
        structure = optree.tree_structure([*operands, len(signature.slots)], none_is_leaf=True)
    key: Any = signature.key
    key = freeze(population), structure, key[2], slots, key[4]
    return replace(signature, op=population, slots=slots, structure=structure, key=key)
