"""A graph as NumPy arrays: what scheduling and wiring read, made once for each run.

The columns of a `Graph` hold the operands of all calls one after the other. Here they become arrays,
with the position at which each call begins in each of them, so that the operands of any set of
calls are one vectorised look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, Integers, starts
from multifold._engine.record.graph import Graph, Part
from multifold._engine.record.kinds import COLUMNS, Kind
from multifold._engine.record.signature import Signature, Slot

# Most graphs have no ragged operands and no floats. All their empty columns are these three arrays.
NO_INTEGERS: Integers = np.zeros(0, np.int64)
NO_STARTS: Integers = np.zeros(1, np.int64)
NO_FLOATS = np.zeros(0)

Layouts = tuple[Integers, Integers, Integers, Integers]
"""Four arrays: the layouts of all signatures one after the other (`Signature.layout`), where each begins, 1
for each signature that is batched, and 1 for each with operands outside of its layout, as numbers."""


@dataclass(frozen=True)
class Columns:
    """The calls of a graph as arrays.

    Attributes
    ----------
    signatures : sequence of Signature
        The distinct signatures, by number.
    parts : sequence of Part
        The distinct parts of results, by number.
    signature : int64 array of shape ``(calls,)``
        The signature's number of each call.
    refs : int64 array
        References of all node operands.
    ints, floats : arrays
        The number operands.
    arrays, loose : sequences
        The leaf arrays, and the numbers and arrays inside ragged operands.
    lengths, members : int64 arrays
        Rows of each ragged operand, and the rows themselves.
    """

    signatures: Sequence[Signature]
    parts: Sequence[Part]
    signature: Integers
    refs: Integers
    ints: Integers
    floats: np.ndarray
    arrays: Sequence[Any]
    lengths: Integers
    members: Integers
    loose: Sequence[Any]
    _starts: dict[str, Integers] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, graph: Graph) -> Columns:
        """Return the columns of a graph: its integers and floats are copied into new arrays.

        ``arrays`` and ``loose`` are the graph's own lists, which grow with it.
        """
        return cls(
            signature=np.array(graph.signature, np.int64),
            refs=np.array(graph.refs, np.int64),
            lengths=np.array(graph.lengths, np.int64) if len(graph.lengths) else NO_INTEGERS,
            members=np.array(graph.members, np.int64) if len(graph.members) else NO_INTEGERS,
            **values_of(graph),
        )

    def of_form(self, graph: Graph) -> Columns:
        """Return new columns with the values of ``graph`` (`values_of`), and all else from these columns.

        The values are signatures, parts, numbers, arrays and loose values. The calls of the graph must have
        the same signatures by number, the same references and the same rows of ragged operands as these.
        """
        found = object.__new__(Columns)
        # With `vars(self)` come `_starts` and the cached properties, which hold for all calls of this form.
        vars(found).update(vars(self), **values_of(graph))
        return found

    def __len__(self) -> int:
        return len(self.signature)

    def form(self) -> Columns:
        """Return these columns with the `form` of each signature, zeros for numbers and no arrays."""
        return replace(
            self,
            signatures=tuple([signature.form for signature in self.signatures]),
            ints=np.zeros_like(self.ints),
            floats=np.zeros_like(self.floats),
            arrays=(),
            loose=(),
        )

    @classmethod
    def known(cls, starts_of: dict[str, Integers], **known: Any) -> Columns:
        """Return columns whose starts are known: of "refs", and of "ragged" if a call is ragged.

        ``starts_of`` has them by these names, ``known`` has the attributes by name. A round of awaited
        values and a merged minibatch know the starts, so nothing is computed here. The usual constructor of
        this frozen class would take longer than all else.
        """
        columns = object.__new__(cls)
        ragged = bool(len(known["lengths"]))
        reads = (
            known["refs"],
            starts_of["refs"],
            known["members"],
            starts(known["lengths"]) if ragged else NO_STARTS,
            starts_of["ragged"] if ragged else NO_INTEGERS,
        )
        # `reads` is a cached property. Whoever asks for it finds this entry, and nothing is computed.
        vars(columns).update(known, _starts=starts_of, reads=reads)
        return columns

    def starts(self, column: str) -> Integers:
        """Return where each call's entries in a column begin, and last where all end: ``(calls + 1,)``.

        It is an int64 array; ``column`` is one of `COLUMNS`. A column is counted when it is first asked
        for, and kept: most graphs have operands of two kinds only.
        """
        found = self._starts.get(column)
        if found is None:
            widths = np.array([getattr(s, column) for s in self.signatures], np.int64)
            found = self._starts[column] = starts(widths[self.signature])
        return found

    @cached_property
    def ref_starts(self) -> Integers:
        """Where each call's entries in ``refs`` begin, and last where all end: ``(calls + 1,)``."""
        return self.starts("refs")

    @cached_property
    def ragged_starts(self) -> Integers:
        """Where each call's entries in ``lengths`` begin, and last where all end: ``(calls + 1,)``."""
        return self.starts("ragged")

    @cached_property
    def member_starts(self) -> Integers:
        """Where the rows of each ragged operand begin in ``members``, and last where all end: int64."""
        return starts(self.lengths)

    def entries(self, slot: Slot, position: int, calls: Any) -> Any:
        """Return the index of an operand in the column of its kind; an array of these for several calls.

        Arguments as for `operand`. The kind must have a column; else `operand` finds the value in the slot.
        """
        return self.starts(slot.kind.column)[calls] + position  # type: ignore[arg-type]

    def operand(self, slot: Slot, position: int, calls: Any) -> Any:
        """Return what a call, or each of several, has for one operand of their signature.

        Parameters
        ----------
        slot, position
            One of `Signature.operands`.
        calls : int or int64 array
            Calls of that signature.

        Returns
        -------
        As the kind of the operand is:

        - nodes: their references, an int64 array,
        - numbers: an array of their type,
        - arrays: a list of them, or the array of one call,
        - ragged operands: their positions in ``lengths``, which `rows_of` takes,
        - any other: the one value that the signature holds.
        """
        kind = slot.kind
        if kind.column is None:
            return slot.value
        at = self.entries(slot, position, calls)
        if kind.number is not None:
            return self.numbers(kind, at)
        if kind.ragged:
            return at
        if kind.array:
            return [self.arrays[i] for i in at.tolist()] if at.ndim else self.arrays[at]
        return self.refs[at]

    def numbers(self, kind: Kind, at: Integers) -> np.ndarray:
        """Return the numbers at positions ``at`` of the column of ``kind``, which is INT, FLOAT or BOOL.

        The array is of int64, float64 or bool.
        """
        # Bools are recorded in the column of ints, as 0 and 1.
        found: np.ndarray = getattr(self, str(kind.column))[at]
        return found.astype(bool) if kind.number is bool else found

    def rows_of(self, ragged: int) -> Integers:
        """Return the rows of ragged operand number ``ragged``: references, or ``-1 - i`` for loose i."""
        return self.members[self.member_starts[ragged] : self.member_starts[ragged + 1]]

    @cached_property
    def reads(self) -> tuple[Integers, Integers, Integers, Integers, Integers]:
        """What calls read, for compiled code: refs, their starts, members, their starts, ragged starts.

        Without ragged operands the last is empty.
        """
        # Without ragged operands compiled code looks at no start, so an empty array saves counting them.
        ragged = self.ragged_starts if len(self.lengths) else self.lengths
        return self.refs, self.ref_starts, self.members, self.member_starts, ragged

    @cached_property
    def edges(self) -> tuple[Integers, Integers]:
        """Two int64 arrays, an entry for each read of one call by another: the read call, and its reader.

        They are ordered by reader, and for one reader in the order of its operands.
        """
        return compiled.edges(np.arange(len(self)), *self.reads)

    @cached_property
    def layouts(self) -> Layouts:
        """The `Layouts` of the signatures: which operands are rows of launches, for `compiled.plan`."""
        return layouts_of(self.signatures)

    def facts(self, asked: tuple[Integers, Integers]) -> tuple[Any, ...]:
        """Return arguments of `compiled.plan`, one tuple: `reads`, ``asked``, ``signature``, `layouts`.

        ``asked`` is what `wiring.joined` returns: the references of all groups, and the number in each.
        """
        return *self.reads, *asked, self.signature, *self.layouts

    @cached_property
    def sharing(self) -> list[int]:
        """The numbers of the signatures that have shared nodes among their operands, ascending."""
        return sharing_of(self.signatures)

    @cached_property
    def shared_calls(self) -> Integers:
        """The calls whose whole results other calls read, ascending: each is launched alone."""
        found = [self.shared_by(number)[1].ravel() for number in self.sharing]
        return np.unique(np.concatenate(found) & CALL_MASK) if found else NO_INTEGERS

    def shared_by(self, number: int) -> tuple[Integers, Integers]:
        """Return the calls of signature ``number``, and references to the shared nodes of each.

        The references have the shape ``(calls, shared nodes)``.
        """
        calls = np.flatnonzero(self.signature == number)
        return calls, self.refs[self.ref_starts[calls][:, None] + self.signatures[number].shared_refs]

    def ancestors(self, outputs: Integers) -> Integers:
        """Return the calls in ``outputs`` and all that they depend on, ascending: int64 both."""
        return compiled.ancestors(outputs, *self.reads)


def layouts_of(signatures: Sequence[Signature]) -> Layouts:
    """Return four int64 arrays, the `Layouts`: each `Signature.layout` in turn, and where each begins.

    The second has one entry more, the end of the last. Then 1 for each signature that is batched, and 1 for
    each with ragged operands or with others outside of its layout, as numbers; else 0.
    """
    layouts = [signature.layout for signature in signatures]
    return (
        np.array(list(chain.from_iterable(layouts)), np.int64),
        np.array([0, *accumulate(map(len, layouts))], np.int64),
        np.array([signature.batched for signature in signatures], np.int64),
        np.array([s.ragged > 0 or len(s.layout) < len(s.slots) for s in signatures], np.int64),
    )


def sharing_of(signatures: Sequence[Signature]) -> list[int]:
    """Return the numbers of the signatures that have shared nodes among their operands, ascending."""
    return [number for number, signature in enumerate(signatures) if len(signature.shared_refs)]


def taken_by(signatures: Sequence[Signature]) -> np.ndarray:
    """Return how many entries a call has in each column: int64, of shape ``(COLUMNS, signatures)``."""
    return np.array([[getattr(s, name) for s in signatures] for name in COLUMNS], np.int64)


def values_of(graph: Graph) -> dict[str, Any]:
    """Return the attributes of `Columns` that planning does not read, name -> value, from a graph.

    These are signatures, parts, numbers, arrays and loose values.
    """
    return {
        "signatures": tuple(graph.signatures),
        "parts": tuple(graph.parts),
        "ints": np.array(graph.ints, np.int64) if len(graph.ints) else NO_INTEGERS,
        "floats": np.array(graph.floats, np.float64) if len(graph.floats) else NO_FLOATS,
        "arrays": graph.arrays,
        "loose": graph.loose,
    }
