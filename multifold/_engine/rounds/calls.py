"""The table of all calls of a run: columns that grow with the recording, and what a round cuts out of them.

A round must cost what it runs, not what was recorded before it. So nothing here is made anew for a round:
`CallTable.extend` takes in what was recorded since, and `CallTable.select` follows the operands of the
awaited calls back to calls that earlier rounds computed, and no further. The calls that it meets become a
small graph of their own: first the *given* calls, which were computed and are read, then those that the
round runs, renumbered from 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled import TableBase
from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.plan.columns import NO_FLOATS, NO_INTEGERS, Columns, layouts_of
from multifold._engine.plan.outputs import Outputs
from multifold._engine.plan.wiring import Place
from multifold._engine.record.graph import Graph
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.signature import Signature

REFS, INTS, FLOATS, ARRAYS, RAGGED = range(len(COLUMNS))
"""The positions in `COLUMNS`."""

NO_LAYOUTS = layouts_of(())
"""The layouts of no signatures."""


class Selection(NamedTuple):
    """What a round runs and reads, as `multifold._engine.compiled` finds it.

    Attributes
    ----------
    kept : int64 array
        All calls of the round by their numbers in the table; the position is the number in the round.
    first : int
        How many of them were computed and are read: they come first.
    signature : int64 array
        The signature's number of each call.
    refs, ref_starts, ints, int_starts, lengths, ragged_starts, members : int64 arrays
        The operands of the calls that are run, and where those of each call begin.
    """

    kept: Integers
    first: int
    signature: Integers
    refs: Integers
    ref_starts: Integers
    ints: Integers
    int_starts: Integers
    lengths: Integers
    ragged_starts: Integers
    members: Integers

    @property
    def given(self) -> Integers:
        """The calls that this round reads and earlier ones ran: their numbers in the table, ascending."""
        return self.kept[: self.first]

    @property
    def calls(self) -> Integers:
        """The calls that this round runs: their numbers in the table, ascending."""
        return self.kept[self.first :]


class CallTable(TableBase):
    """All calls of a run so far, and where the rows of those that were computed are.

    Attributes
    ----------
    result : int64 array
        The number of the stored result that holds the row of each call; 0 where no round has run it.
    row : int64 array
        Which row of its result each call has.
    """

    graph: Graph

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._widths = np.zeros((0, len(COLUMNS)), np.int64)  # of each signature
        self._whole: set[int] = set()  # calls whose whole result is read, through `Node.no_batch`
        # For plans: the graph's signatures, then for each of them one without operands, that of a given
        # call; and the layouts of all.
        self._signatures: tuple[Signature, ...] = ()
        self._bare: list[Signature] = []
        self._layouts = NO_LAYOUTS
        self._reads_whole: list[int] = []  # the signatures with shared nodes
        self._awaited = set[int]()  # the signatures of calls that examples have waited for
        self.order: list[int] = []  # in which signatures run in a round of one launch of each
        # The place of each signature in `order`, and the place of the first one that examples wait for.
        self._rank = NO_INTEGERS
        self._last = 0

    def read_whole(self, calls: Integers) -> None:
        """Note for `is_whole` that the whole results of these calls are wanted, by `Node.no_batch`."""
        if len(calls):
            self._whole.update(calls.tolist())

    def is_whole(self, calls: Integers) -> bool:
        """Return whether `read_whole` or `extend` has noted one of these calls, or more, as read whole."""
        return bool(self._whole) and not self._whole.isdisjoint(calls.tolist())

    def alone(self, selection: Selection) -> Integers:
        """Return the calls that a round runs and whose whole results are read, as an int64 array.

        They have their numbers in the round, which count the given calls first.
        """
        if not self._whole:
            return NO_INTEGERS
        whole = [i for i, call in enumerate(selection.kept.tolist()) if call in self._whole]
        return np.array([i for i in whole if i >= selection.first], np.int64)

    def note_signatures(self) -> None:
        """Take in the signatures that the graph has got since the last time."""
        known = len(self._widths)
        new = self.graph.signatures[known:]
        self._widths = np.concatenate([self._widths, np.array([s.widths for s in new], np.int64)])
        self._reads_whole += [i for i, s in enumerate(new, known) if len(s.shared_refs)]

    def extend(self) -> None:
        """Append the calls that the graph has recorded since the last time.

        Calls whose whole results they have as operands are noted, for `is_whole`.
        """
        graph = self.graph
        first = len(self)
        if first == len(graph.signature):
            return
        if len(self._widths) < len(graph.signatures):
            self.note_signatures()
        self.grow(self._widths)
        for number in self._reads_whole:
            calls = first + np.flatnonzero(np.asarray(graph.signature[first:]) == number)
            if len(calls):
                at = self.at(REFS, calls).reshape(len(calls), -1)[:, graph.signatures[number].shared_refs]
                self._whole.update([graph.refs[i] & CALL_MASK for i in at.ravel().tolist()])

    def signature_of(self, calls: Integers) -> Integers:
        """Look up the signature of each of these calls; return its number in `Graph.signatures`.

        The numbers are an int64 array in the order of ``calls``.
        """
        found: Integers = np.asarray(self.graph.signature)[calls]
        return found

    def places(self, column: int, calls: Integers, position: int) -> Integers:
        """Return for each of these calls where its operand ``position`` stands in a column of the graph.

        It is an int64 array of indices into that column, in the order of the calls, which all have one
        signature. ``column`` is `REFS`, `INTS`, `FLOATS`, `ARRAYS` or `RAGGED`; ``position`` counts
        operands of that column only.
        """
        return np.ascontiguousarray(self.at(column, calls).reshape(len(calls), -1)[:, position])

    def numbers(self, name: str, calls: Integers, position: int) -> np.ndarray:
        """Return the numbers that these calls have as operand ``position`` of a column, in their order.

        All calls have one signature. ``name``, the column, is ``"ints"`` or ``"floats"``; ``position``
        counts operands of that column only.
        """
        found: np.ndarray = np.asarray(getattr(self.graph, name))[
            self.places(COLUMNS.index(name), calls, position)
        ]
        return found

    def ragged_rows(self, calls: Integers, position: int) -> tuple[Integers, Integers]:
        """Return the rows of ragged operand ``position`` of these calls, and how many each call has.

        All calls have one signature, and ``position`` counts its ragged operands. The rows are references,
        call after call, or negative for loose values; both are int64 arrays.
        """
        return self.members_of(self.places(RAGGED, calls, position))

    def next_launches(self, awaited: Integers) -> tuple[Integers, list[tuple[int, int, int]]]:
        """Return the calls that may run next for ``awaited``, launch after launch, and the launches.

        A launch is (number of the signature, where its calls begin, where they end). There is one at most
        for each signature, in `order`, in which signatures that examples wait for come last. Then an
        example passes from one value that it waits for to the next in one round, if between them it needs
        one launch of each op. Appends new calls to the table first, and brings `order` up to date.
        """
        self.extend()
        # None says that `order` is out of date: a signature is new, or is awaited for the first time.
        while (found := self.frontier(awaited, self._rank, self._last)) is None:
            self._awaited.update(self.signature_of(awaited).tolist())
            count = len(self.graph.signatures)
            self.order = sorted(range(count), key=lambda number: (number in self._awaited, number))
            self._rank = np.empty(count, np.int64)
            self._rank[self.order] = np.arange(count)
            self._last = count - len(self._awaited)
        ready, begins = found
        bounds = zip(self.order, pairwise(begins.tolist()), strict=True)
        return ready, [(number, begin, end) for number, (begin, end) in bounds if begin < end]

    def select(self, read: Integers) -> Selection:
        """Find what has to run for the calls ``read`` and what that reads, and number these calls from 0.

        The table keeps the numbers until the next selection: `columns`, `outputs` and `renumbered` use
        them.
        """
        return Selection(*self.window(read, len(self.graph.signatures)))

    def given(self, selection: Selection, store: Any, last: Any) -> tuple[Integers, Place]:
        """Return the numbers of the results that a round reads, and the place of each of its calls.

        The places say which of these results, by its position, and which row of it; -1 for calls that are
        to run. Before, the store may divide the results, join them or move them to pages (`Store.settle`),
        and notes that in the table.

        Parameters
        ----------
        selection : Selection
            The calls of the round.
        store : Store
            What holds the results.
        last : Values or None
            What has put values together in the last round; None before the first one.
        """
        given = selection.given
        count = len(selection.kept)
        numbers, counts, launch, row = self.place(given, count)
        # Rows that have moved are in other results now, so they are looked up once more.
        if len(given) and store.settle(numbers, counts, given, last):
            numbers, _, launch, row = self.place(given, count)
        return numbers, Place(launch, row, store.rows(numbers))

    def outputs(self, asked: Outputs) -> Outputs:
        """Return ``asked`` with references that have the calls' numbers in the last selection (`select`).

        Its groups and loose values are taken over, and nothing else of it.
        """
        groups: list[Integers | int] = []
        for group in asked.groups:
            refs = self.renumbered(np.atleast_1d(group))
            groups.append(int(refs[0]) if isinstance(group, int) else refs)
        return Outputs(groups=groups, loose=asked.loose)

    def columns(self, selection: Selection) -> Columns:
        """Return the columns of the last selection: its given calls without operands, then the others.

        References have the numbers of the round, which count the given calls first.
        """
        graph = self.graph
        signatures = graph.signatures
        if len(self._bare) < len(signatures):
            self._bare += [signature.bare for signature in signatures[len(self._bare) :]]
            self._signatures = (*signatures, *self._bare)
            self._layouts = layouts_of(self._signatures)
        floats = NO_FLOATS
        arrays: list[Any] = []
        if len(graph.floats):
            floats = np.array([graph.floats[i] for i in self.at(FLOATS, selection.calls).tolist()])
        if graph.arrays:
            arrays = [graph.arrays[i] for i in self.at(ARRAYS, selection.calls).tolist()]
        _, _, signature, refs, ref_starts, ints, int_starts, lengths, ragged_starts, members = selection
        return Columns.known(
            {"refs": ref_starts, "ints": int_starts, "ragged": ragged_starts},
            signatures=self._signatures,
            parts=tuple(graph.parts),
            signature=signature,
            refs=refs,
            ints=ints,
            floats=floats,
            arrays=arrays,
            lengths=lengths,
            members=members,
            loose=graph.loose,
            sharing=self._reads_whole,
            layouts=self._layouts,
        )
