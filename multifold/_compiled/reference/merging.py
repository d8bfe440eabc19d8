"""Traces over columns of integers: put together to a minibatch, and cut out of a graph of many examples."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers, ranges, starts

COLUMNS = ("signature", "refs", "ints", "lengths", "members")
"""The columns of integers of a trace, in their order."""

KEPT = ("floats", "arrays", "loose")
"""What a trace keeps outside of its integers; these say how much it is."""

SIZES = (*COLUMNS, *KEPT)
"""What the integers of a trace begin with."""

NO_FLOATS = np.zeros(0)
"""The floats of all traces that have none."""

TAKEN = ("refs", "ints", "floats", "arrays", "lengths")
"""Those of which calls take as many entries as their signatures say."""

REFS, INTS, FLOATS, ARRAYS, RAGGED = range(5)
"""Positions in `multifold._record.kinds.COLUMNS`."""


def merge(
    integers: Integers,
    signatures: Integers,
    signature_starts: Integers,
    parts: Integers,
    part_starts: Integers,
    vocabularies: Integers,
    taken: Integers,
    result_count: int,
) -> tuple[Integers, Integers, list[Integers]]:
    """Shift and rename the integers of traces, so that they are those of one graph.

    Parameters
    ----------
    integers : int64 array
        Of one trace after the other: the sizes of `COLUMNS`, of `KEPT` and of the results, and then
        the columns and the results.
    signatures, signature_starts : int64 arrays
        Signature ``n`` of vocabulary ``v`` becomes ``signatures[signature_starts[v] + n]``; there is
        a start behind the last one.
    parts, part_starts : int64 arrays
        Likewise for parts of results.
    vocabularies : int64 array of shape ``(traces,)``
        The vocabulary of each trace.
    taken : int64 array of shape ``(5, signatures)``
        How many entries of each of `TAKEN` a call of each signature in the end takes.
    result_count : int
        How many results each trace has.

    Returns
    -------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : int64 array of shape ``(traces, columns)``
        The sizes of each trace.
    columns : list of int64 array
        `COLUMNS` and the results, with the entries of all traces, one after the other.

    Raises
    ------
    IndexError
        If the integers are not those of such traces.
    """
    width = len(SIZES) + result_count
    stored = [n for n in range(width) if not len(COLUMNS) <= n < len(SIZES)]
    begins = begins_of(integers, len(vocabularies), width, stored)
    sizes = integers[np.array(begins)[:, None] + np.arange(width)]
    held = np.where(np.isin(np.arange(width), stored), sizes, 0)
    begin = np.array(begins)[:, None] + width + np.cumsum(held, axis=1) - held
    number = {name: n for n, name in enumerate(SIZES)}
    calls = starts(sizes[:, number["signature"]])
    loose = starts(sizes[:, number["loose"]])
    named_by = np.diff(signature_starts)[vocabularies]
    known = np.diff(part_starts)[vocabularies]

    def named(local: Integers, counts: Integers) -> Integers:
        refuse(((local < 0) | (local >= np.repeat(named_by, counts))).any())
        names = signatures[local + np.repeat(signature_starts[vocabularies], counts)]
        refuse(((names < 0) | (names >= taken.shape[1])).any())
        return names

    def shifted(refs: Integers, counts: Integers, least: Integers) -> Integers:
        ref = np.maximum(refs, 0)
        part = ref >> PART_BITS
        call = ref & CALL_MASK
        read = refs >= 0
        there = refs >= np.repeat(least, counts)
        there &= ~read | (call < np.repeat(np.diff(calls), counts)) & (part < np.repeat(known, counts))
        refuse(not there.all())
        refs = refs - np.repeat(loose[:-1], counts)
        call += np.repeat(calls[:-1], counts)
        part += np.repeat(part_starts[vocabularies], counts)
        refs[read] = parts[part[read]] << PART_BITS | call[read]
        return refs

    columns = []
    for n in stored:
        column = integers[ranges(begin[:, n], sizes[:, n])]
        counts = sizes[:, n]
        if n == number["signature"]:
            column = named(column, counts)
            refuse_other_counts(taken.T[column], calls, sizes[:, [number[name] for name in TAKEN]])
        elif n == number["lengths"]:
            refuse_lengths(column, counts, sizes[:, number["members"]])
        elif n in (number["refs"], number["members"]) or n >= len(number):
            own_loose = sizes[:, number["loose"]]
            column = shifted(column, counts, 0 * own_loose if n == number["refs"] else -own_loose)
        columns.append(column)
    return calls, sizes, columns


def begins_of(integers: Integers, traces: int, width: int, stored: list[int]) -> list[int]:
    """Return where the integers of each trace begin; its sizes say where the next trace begins."""
    begins = []
    at = 0
    for _ in range(traces):
        begins.append(at)
        own = integers[at : at + width]
        refuse(len(own) < width or (own < 0).any() or (own > 1 << 40).any())
        at += width + int(own[stored].sum())
    refuse(at != len(integers))
    return begins


def refuse_lengths(lengths: Integers, counts: Integers, members: Integers) -> None:
    """Refuse ragged operands that do not have the rows of their trace."""
    of_trace = np.repeat(np.arange(len(counts)), counts)
    rows = np.bincount(of_trace, np.clip(lengths, -1, 1 << 40), len(counts))
    refuse((lengths < 0).any() or (rows != members).any())


def refuse_other_counts(taken: Integers, calls: Integers, sizes: Integers) -> None:
    """Refuse a trace with more or fewer operands than its calls take."""
    before = np.concatenate([np.zeros((1, taken.shape[1]), np.int64), taken.cumsum(axis=0)])
    refuse((np.diff(before[calls], axis=0) != sizes).any())


def refuse(damaged: Any) -> None:
    """Raise what the compiled functions raise for integers that refer to what is not there."""
    if damaged:
        raise IndexError("A column of calls refers to what is not there.")


def cut(
    calls: list[int],
    loose: list[int],
    signature: Sequence[int],
    widths: Integers,
    refs: Sequence[int],
    ints: Sequence[int],
    lengths: Sequence[int],
    members: Sequence[int],
    parents: list[int],
    results: list[int],
    sizes: list[int],
    rows: array[int],
    codes: list[Any],
    instructions: Sequence[int],
    line_of: Callable[[Any, int], int],
) -> tuple[Integers, Integers, list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]]]:
    """Make the integers of traces from examples that were recorded on one graph, one after the other.

    Each example numbers its calls from 0, and likewise signatures and parts, in the order in which it meets
    them.

    Parameters
    ----------
    calls, loose : lists of int
        Where the calls of each example begin and the last ones end, and likewise the loose values inside
        ragged operands.
    signature, refs, ints, lengths, members, codes, instructions : columns
        Those of the graph.
    widths : int64 array of shape ``(signatures, 5)``
        How many entries a call of each signature has in the columns of `multifold._record.kinds.COLUMNS`.
    parents : list of int
        What each part is a part of; an example meets it before.
    results : list of int
        How many results each example has.
    sizes : list of int
        How many rows each result of each example has.
    rows : array of int64
        All these rows: references, or ``-1 - i`` for loose value ``i`` of the example.
    line_of : callable
        Returns the line of a code object and an instruction.

    Returns
    -------
    integers : int64 array
        Those of one trace after the other, as `merge` reads them.
    lines : int64 array
        The line of each call.
    ends : list of (int, int, int, tuple, tuple)
        Of each example where it ends in ``integers``, among the floats and among the arrays of the graph;
        and the numbers on the graph of the signatures and of the parts that it met.

    Raises
    ------
    IndexError
        If an example reads a call of another one.
    """
    out: list[int] = []
    ends: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]] = []
    ref, number, length, member, result, row, floats, arrays = [0] * 8
    for example, count in enumerate(results):
        first, end = calls[example : example + 2]
        signatures = Numbering(range(len(widths)), None)
        parts = Numbering(range(len(parents)), parents)
        parts.own_of(0)
        columns = [[signatures.own_of(x) for x in signature[first:end]]]
        wide = sum((widths[x] for x in signature[first:end]), np.zeros(5, np.int64)).tolist()
        columns.append(own_reads(refs[ref : ref + wide[REFS]], parts, first, end, 0))
        columns.append([*ints[number : number + wide[INTS]]])
        columns.append([*lengths[length : length + wide[RAGGED]]])
        own_members = members[member : member + sum(columns[-1])]
        columns.append(own_reads(own_members, parts, first, end, loose[example]))
        own_sizes = sizes[result : result + count]
        own_rows = rows[row : row + sum(own_sizes)].tolist()
        kept = wide[FLOATS], wide[ARRAYS], loose[example + 1] - loose[example]
        out += [*map(len, columns), *kept, *own_sizes, *chain(*columns)]
        out += own_reads(own_rows, parts, first, end, 0)
        ref = ref + wide[REFS]
        number = number + wide[INTS]
        length = length + wide[RAGGED]
        member = member + len(columns[4])
        result = result + len(own_sizes)
        row = row + sum(own_sizes)
        floats = floats + wide[FLOATS]
        arrays = arrays + wide[ARRAYS]
        ends.append((len(out), floats, arrays, tuple(signatures.own), tuple(parts.own)))
    lines = [line_of(*site) for site in zip(codes, instructions, strict=True)]
    return np.array(out, np.int64), np.array(lines, np.int64), ends


def traces_of(
    make: Any,
    recorded: Any,
    graph: Any,
    integers: Integers,
    lines: Integers,
    ends: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]],
) -> list[Any]:
    """Make the traces of examples that were recorded on one graph.

    Parameters
    ----------
    make : type
        `multifold._traces.trace.Trace`.
    recorded : RecordedExamples
        The examples.
    graph : Graph
        What they were recorded on.
    integers, lines, ends
        What `cut` returned.

    Returns
    -------
    list of Trace
        One for each example, in their order.
    """
    known = recorded.known
    calls = recorded.calls
    loose = recorded.loose
    made = []
    floats = np.array(graph.floats, np.float64) if len(graph.floats) else NO_FLOATS
    at = number = array = 0
    for i, (end, floats_end, arrays_end, *met) in enumerate(ends):
        key = recorded.structures[i], *met
        vocabulary, names = known.vocabularies.get(key) or known.vocabulary(*key)
        own = integers[at:end]
        own_loose = tuple(graph.loose[loose[i] : loose[i + 1]])
        if i in recorded.values:
            own_loose += recorded.values[i]
            own[SIZES.index("loose")] = len(own_loose)
        if names is not None:
            first = len(SIZES) + recorded.results[i]
            last = first + calls[i + 1] - calls[i]
            own[first:last] = names[own[first:last]]
        columns = own, floats[number:floats_end], tuple(graph.arrays[array:arrays_end]), own_loose
        made.append(make.of(vocabulary, *columns, lines[calls[i] : calls[i + 1]], recorded.kept.get(i, ())))
        at = end
        number = floats_end
        array = arrays_end
    return made


def own_reads(values: Sequence[int], parts: Numbering, first: int, end: int, shift: int) -> list[int]:
    """Return references that an example of the calls ``first`` to ``end`` reads, with its own numbers."""
    found = []
    for x in values:
        refuse(x >= 0 and not first <= x & CALL_MASK < end)
        own = x + shift if x < 0 else parts.own_of(x >> PART_BITS) << PART_BITS | (x & CALL_MASK) - first
        found.append(own)
    return found


class Numbering:
    """The numbers that an example meets, numbered from 0 in the order in which it meets them."""

    def __init__(self, known: range, parents: list[int] | None) -> None:
        self.known = known
        self.parents = parents
        self.own: dict[int, int] = {}

    def own_of(self, number: int) -> int:
        """Return the number that a number has in the example; its parent is met before it."""
        if number not in self.own:
            refuse(number not in self.known)
            if self.parents is not None and number:
                refuse(not 0 <= self.parents[number] < number)
                self.own_of(self.parents[number])
            self.own[number] = len(self.own)
        return self.own[number]
