"""Gathers: launches whose operands are put together from the rows of earlier ones, without a plan.

A round of one launch of each op has no schedule to find and no sections: each operand is some rows of the
results of earlier launches. So its launches are run here, one after the other:

1. order its calls by the results that they read, read the rows of each operand, and put numbers and arrays
   together,
2. hand them to the launcher, which calls the op and checks the result as that of any launch,
3. keep the result (`Store.put`).

A launch of three calls ``join(left, right)``. The left rows are rows 4 and 7 of result 1 and row 2 of
result 2, the right ones rows 5, 9 and 8 of result 1. Calls that read the same result as each operand are a
*group*: here the first two, and the third. Groups next to each other that read one result as an operand are
a *stretch* of that operand:

=======  ==================  ==================================
operand  stretches           row numbers of the gathers
=======  ==================  ==================================
left     result 1, result 2  4 7 and 2, which are put together
right    result 1            5 9 8
=======  ==================  ==================================

An operand of very many stretches would take as many gathers. Where rows may be written in place, what it
reads moves to a page first (`multifold._engine.rounds.pages`); else the round takes a plan, whose backward
pass touches only the rows that were read.

A framework that compiles for each number of rows (`Backend.pads`) gets few of them: the last call is
repeated up to a power of two, say, and what is put together for the launch has as many rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.ops.lookup import find
from multifold._engine.ops.values import Values
from multifold._engine.record.freezing import snapshot
from multifold._engine.record.kinds import NODE
from multifold._engine.record.signature import Signature
from multifold._engine.rounds.calls import ARRAYS, CallTable
from multifold._engine.rounds.pages import ResultRows
from multifold._engine.rounds.store import Leaf, Store
from multifold._engine.run.launch import PreparedLaunch
from multifold._engine.run.loop import Loop
from multifold._engine.run.report import LaunchTimes
from multifold.backend import Backend, Ragged
from multifold.marks import MIXING, mark_of

UNDIVIDED = 1024
"""Rows of a launch that is never divided into pieces."""

Launches = Sequence[tuple[int, int, int]]
"""The signature of each launch of a round, and where its calls begin and end among those of the round."""


class Stretch(NamedTuple):
    """Calls of a launch, next to each other, that read one array as an operand."""

    read: ResultRows
    leaf: int
    """The position of the array in ``read.leaves``."""
    begin: int
    end: int


class Operands(NamedTuple):
    """What the op of a launch receives, and what is known of it."""

    leaves: list[Any]
    classes: tuple[Hashable, ...]
    """What the rows of each operand have in common."""
    lengths: Mapping[int, np.ndarray]
    """The lengths of each ragged operand, by slot."""


@final
class Gathers:
    """Runs launches whose operands are rows of earlier results.

    Parameters
    ----------
    table : CallTable
        What is recorded.
    store : Store
        The results.
    """

    def __init__(self, table: CallTable, store: Store) -> None:
        self.table = table
        self.store = store

    def launch(self, loop: Loop, number: int, calls: Integers) -> tuple[Integers, LaunchTimes] | None:
        """Run the calls of signature ``number`` as one launch, and keep its result.

        Returns the calls, in the order of the launch, and when its steps took place; None, and nothing has
        run, if a plan is needed. The rows of the result are noted in the table.
        """
        begin = perf_counter()
        launcher = loop.launcher
        values = loop.values
        table = self.table
        signature = table.graph.signatures[number]
        count = size_of(launcher.backend, signature, len(calls)) if values.backend.pads else len(calls)
        if not self._may_run(loop, signature, calls) or (count > UNDIVIDED and loop.pieces(count) > 1):
            return None
        found = self._stretches(values, signature, calls)
        if found is None:
            return None
        calls, rows, stretches = found
        leaves = read_rows(values, stretches, rows, count)
        classes = tuple([read.classes[leaf] for (read, leaf, *_), *_ in stretches])
        lengths = NO_LENGTHS
        if not signature.nodes_only:
            operands = self._operands(values, signature, calls, leaves, classes, count - len(calls))
            if operands is None:
                return None
            leaves, classes, lengths = operands
        height = count if signature.batched else 1
        site = table.graph.site
        launched = launcher.launch(
            PreparedLaunch(signature, leaves, height, calls, site, classes, lambda: lengths)
        )
        leaves.clear()
        self.store.put(values, launched.result, launched.outcome, height, calls)
        return calls, launched.times(begin)

    def _may_run(self, loop: Loop, signature: Signature, calls: Integers) -> bool:
        """Return whether a launch of some calls of a signature needs no plan, as far as the signature says.

        It needs one where an operand is a shared node, or says how many rows there are, and where a result
        is read whole. A first launch needs one where no array has told on which device numbers are, and if
        the op is not found, is marked as mixing, or may be a function that is made for each call, since the
        plan warns of these or refuses them. An op that is found is noted.
        """
        if len(signature.shared_refs) or signature.says_rows or self.table.is_whole(calls):
            return False
        launcher = loop.launcher
        if signature in launcher.ops:
            return True
        if loop.values.device is None and not signature.nodes_only:
            return False
        if not isinstance(signature.op, str) and len(calls) == 1:
            return False
        op = find(launcher.backend, launcher.model, signature.op)
        if not callable(op) or mark_of(op) == MIXING:
            return False
        launcher.ops[signature] = op
        return True

    def _stretches(
        self, values: Values, signature: Signature, calls: Integers
    ) -> tuple[Integers, list[Integers], list[list[Stretch]]] | None:
        """Return which rows the node operands of a launch are, after moving results that are too many.

        These are the calls in the order of the launch, and for each operand its row numbers and the
        stretches that have these rows. None if a plan is needed: if an operand is no array of a flat
        result, if its rows differ in trailing shape, dtype or device, or if there are too many stretches
        or too sparse ones, and nothing can be moved.
        """
        width = signature.refs
        if not width:
            return calls, [], []
        while True:
            ordered, rows, sources, begins = self.table.launch_rows(calls, width)
            leaves: list[Any] = [self.store.leaf(source, values) for source in sources]
            if None not in leaves:
                if len(leaves) == width and self.store.in_place:  # nearly always
                    wholes = [[Stretch(read, leaf, 0, len(calls))] for read, leaf in leaves]
                    return ordered, [*rows.reshape(width, -1)], wholes
                found = [stretches_of(leaves[i::width], begins) for i in range(width)]
                if all(map(self._are_few, found)):
                    alike = len(leaves) == width or all(map(is_of_one_class, found))
                    return (ordered, [*rows.reshape(width, -1)], found) if alike else None
            if not self.store.move_all({source & CALL_MASK for source in sources}, values):
                return None

    def _are_few(self, stretches: Sequence[Stretch]) -> bool:
        """Return whether an operand is put together from these stretches without moving what they read."""
        one_page = len(stretches) == 1 and self.store.in_place
        return one_page or self.store.reads_well([(x.read, x.end - x.begin) for x in stretches])

    def _operands(
        self,
        values: Values,
        signature: Signature,
        calls: Integers,
        nodes: Sequence[Any],
        classes: tuple[Hashable, ...],
        surplus: int,
    ) -> Operands | None:
        """Return what the op of a launch receives, with classes and lengths; None if a plan is needed.

        ``nodes`` has the rows of its node operands, and ``classes`` what the rows of each have in common
        (`Values.class_of`). Other operands are made here by ``values``. The last call is repeated
        ``surplus`` times, so that the launch is padded. A plan is needed if `_ragged` returns None.
        """
        if surplus:
            calls = np.append(calls, np.repeat(calls[-1:], surplus))
        leaves: list[Any] = []
        common: list[Hashable] = []
        lengths: dict[int, np.ndarray] = {}
        table = self.table
        for slot, position in signature.operands:
            kind = slot.kind
            value = slot.value
            if kind is NODE:
                value = nodes[position]
                common.append(classes[position])
            elif kind.number is not None:
                numbers = table.numbers(str(kind.column), calls, position)
                numbers = numbers.astype(bool) if kind.number is bool else numbers
                value = values.upload([numbers], kind.number)[0]
            elif kind.array:
                at = table.places(ARRAYS, calls, position)
                value = values.stack([table.graph.arrays[i] for i in at.tolist()])
            elif kind.ragged:
                found = self._ragged(values, calls, position, surplus)
                if found is None:
                    return None
                value, own, lengths[len(leaves)] = found
                common.append(own)
            elif kind.shared:
                value = values.shared(value) if isinstance(value, np.ndarray) else value
            else:
                value = snapshot(value)
            leaves.append(value)
        return Operands(leaves, tuple(common), lengths)

    def _ragged(
        self, values: Values, calls: Integers, position: int, surplus: int
    ) -> tuple[Ragged, Hashable, np.ndarray] | None:
        """Return a ragged operand of some calls, the class of its rows, and how many each call has.

        None if there are no rows, some are loose, or `_read` returns None.
        ``position`` counts the ragged operands. ``calls`` ends with ``surplus`` calls that pad: the last of
        these gets the padding rows, and the others none.
        """
        table = self.table
        members, lengths = table.ragged_rows(calls[: len(calls) - surplus], position)
        if not len(members) or members.min() < 0:
            return None
        size = len(members)
        if surplus:
            size = values.backend.padded_rows(size)
            lengths = np.append(lengths, np.zeros(surplus, np.int64))
            lengths[-1] = size - len(members)
        found = self._read(values, members, size)
        if found is None:
            return None
        segments = np.repeat(np.arange(len(lengths)), lengths)
        return Ragged(found[0], *values.upload([lengths, segments], int)), found[1], lengths

    def rows(self, values: Values, refs: Integers, *, alone: bool) -> Any:
        """Return the rows of some references as one array, in their order; a new one unless ``alone``.

        ``alone`` says that nothing else is read of these results. None if a plan is needed: if a result
        nests, or the rows are of several classes (`Values.class_of`).
        """
        found = self._read(values, refs, len(refs))
        if found is None:
            return None
        rows = values.unprotected(found[0])
        if not alone and found[2]:
            return values.gather(rows, values.indices(np.arange(len(refs))))
        return rows

    def _read(self, values: Values, refs: Integers, size: int) -> tuple[Any, Hashable, bool] | None:
        """Return the rows of some references as one array, in their order, and the class of these rows.

        The last row is repeated up to ``size`` rows. At last comes whether it is the array of a result, and
        no copy. None if a plan is needed, as in `_stretches`.
        """
        while True:
            _, told, which, rows = self.table.arrived(refs, [len(refs)])
            sources = told.tolist()
            leaves: list[Any] = [self.store.leaf(source, values) for source in sources]
            if None not in leaves:
                ends = [len(refs)] if len(leaves) == 1 else np.cumsum(np.bincount(which)).tolist()
                found = [
                    Stretch(leaf[0], leaf[1], begin, end)
                    for leaf, begin, end in zip(leaves, [0, *ends], ends, strict=False)
                ]
                if self._are_few(found):
                    break
            if not self.store.move_all({source & CALL_MASK for source in sources}, values):
                return None
        if not is_of_one_class(found):
            return None
        read, leaf, *_ = found[0]
        is_all = len(found) == 1 and not values.backend.pads and read.is_all(rows)
        return read_mixed(values, found, which, rows, size), read.classes[leaf], is_all


NO_LENGTHS: Mapping[int, np.ndarray] = {}
"""The lengths of the ragged operands of a launch that has none."""


def size_of(backend: Backend, signature: Signature, count: int) -> int:
    """Return in how many rows ``count`` calls of a signature run if the backend pads.

    It is `Backend.padded_rows` of ``count``, or of one more if an operand is ragged: padding rows need
    a call.
    """
    # A ragged operand is padded by rows, too, and these rows need a padding call that they belong to.
    return backend.padded_rows(count + bool(signature.ragged))


def stretches_of(leaves: Sequence[Leaf], begins: Sequence[int]) -> list[Stretch]:
    """Return the stretches of an operand; ``leaves`` has what each group of calls reads.

    ``begins`` has where each group begins, and at last how many calls there are.
    """
    if len(leaves) == 1:  # nearly always
        (read, leaf), *_ = leaves
        return [Stretch(read, leaf, 0, begins[1])]
    found: list[Stretch] = []
    group = 0
    for (read, leaf), same in groupby(leaves):
        begin = begins[group]
        group += len([*same])
        found.append(Stretch(read, leaf, begin, begins[group]))
    return found


def is_of_one_class(stretches: Sequence[Stretch]) -> bool:
    """Return whether the rows of all stretches agree in trailing shape, dtype and device."""
    return len(stretches) == 1 or len({read.classes[leaf] for read, leaf, *_ in stretches}) == 1


def read_rows(
    values: Values, operands: Sequence[Sequence[Stretch]], rows: Sequence[Integers], size: int
) -> list[Any]:
    """Return an array for each operand, with the rows of its stretches one after the other.

    ``rows`` has the row numbers of each operand. If the backend pads, the last row of each is repeated up
    to ``size`` rows. All row numbers that the framework reads by go to the device in one upload.
    """
    backend = values.backend
    if backend.pads:
        return [
            read_mixed(
                values, own, np.repeat(np.arange(len(own)), [x.end - x.begin for x in own]), at, size
            )
            for own, at in zip(operands, rows, strict=True)
        ]
    found: list[list[Any]] = []
    asked: list[Integers] = []
    places: list[tuple[list[Any], int, Any]] = []  # where a piece goes that the framework gathers
    for own, at in zip(operands, rows, strict=True):
        pieces: list[Any] = []
        for read, leaf, begin, end in own:
            piece = read.at_once(leaf, at[begin:end])
            if piece is None:
                places.append((pieces, len(pieces), read.leaves[leaf]))
                asked.append(at[begin:end])
            pieces.append(piece)
        found.append(pieces)
    if asked:
        for (pieces, i, array), index in zip(places, values.upload(asked, int), strict=True):
            pieces[i] = backend.gather(array, index)
    return [pieces[0] if len(pieces) == 1 else backend.concat(pieces) for pieces in found]


def read_mixed(
    values: Values, stretches: Sequence[Stretch], which: Integers, rows: Integers, size: int
) -> Any:
    """Return rows as one array: as row ``i``, row ``rows[i]`` of the array of ``stretches[which[i]]``.

    If the backend pads, the last row is repeated up to ``size`` rows. Rows in two arrays are gathered from
    each, and then from both. If the size is 4, row 5 of the one and row 7 of the other (``which`` is
    ``0 1``) are rows ``5 7 7 7`` of each, and ``0 5 5 5`` of these eight.
    """
    backend = values.backend
    arrays = [read.leaves[leaf] for read, leaf, *_ in stretches]
    if backend.pads:
        at = np.minimum(np.arange(size), len(rows) - 1)
        if len(arrays) == 1:
            return backend.gather(arrays[0], values.upload([rows[at]], int)[0])
        own = [np.minimum(rows, read.rows - 1)[at] for read, *_ in stretches]
        *each, last = values.upload([*own, at + size * which[at]], int)
        return backend.gather(backend.concat(list(map(backend.gather, arrays, each))), last)
    if len(arrays) == 1:
        return read_rows(values, [stretches], [rows], size)[0]
    order = np.argsort(which, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    found = read_rows(values, [stretches], [rows[order]], size)[0]
    return backend.gather(found, values.upload([back], int)[0])
