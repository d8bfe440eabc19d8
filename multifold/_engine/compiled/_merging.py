# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Traces over columns of integers: put together to a minibatch, and cut out of a graph of many examples.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multifold._engine.compiled import columns
from multifold._engine.compiled.arrays import Integers

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython

# The columns of a trace, in the order of `multifold._engine.traces.trace.COUNTED`; its results follow.
# Floats, arrays and loose values are kept outside of its integers.
SIGNATURE, REFS, INTS, LENGTHS, MEMBERS, FLOATS, ARRAYS, LOOSE, RESULTS = range(9)

# The columns of `multifold._engine.record.kinds.COLUMNS`.
AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED, WIDTHS = range(6)

MOST_ENTRIES = 1 << 40
"""No column of a trace is longer, or the trace is damaged. So sums over 8 million traces do not wrap."""

NO_FLOATS = np.zeros(0)
"""The floats of all traces that have none."""


@cython.cfunc
@cython.inline
def is_stored(number: columns.Int) -> columns.Bool:
    """Return whether column ``number`` of a trace is one of integers, and so lies in its ``integers``."""
    return number < FLOATS or number >= RESULTS


@cython.final
@cython.cclass
class TraceMerge:
    """What the numbers of the trace that is merged become: its own columns, and where they go."""

    integers: columns.Read
    signatures: columns.Read
    parts: columns.Read
    taken: columns.Read  # what calls of each signature take of each column, column after column
    out: columns.Write
    occurs: columns.Write  # how often the trace has each signature of its vocabulary
    signature_count: columns.Int
    signature_start: columns.Int
    part_start: columns.Int
    named: columns.Int  # how many signatures and parts the vocabulary has
    known: columns.Int
    call: columns.Int  # how many calls and loose values earlier traces have, and this one
    calls: columns.Int
    loose: columns.Int
    own_loose: columns.Int

    @cython.cfunc
    def begin(
        self,
        integers: columns.Read,
        signatures: columns.Read,
        parts: columns.Read,
        taken: columns.Read,
        out: columns.Write,
        occurs: columns.Write,
    ) -> columns.Int:
        """Set the columns to read from and to write to, before the first trace; nothing was merged yet.

        `integers`, `signatures`, `parts` and `taken` are what `merge` takes, `out` gets the merged columns,
        and `occurs` counts how often a trace has each signature of its vocabulary.
        """
        self.integers = integers
        self.signatures = signatures
        self.parts = parts
        self.taken = taken
        self.out = out
        self.occurs = occurs
        self.signature_count = len(taken) // WIDTHS
        self.call = 0
        self.loose = 0
        return 0

    @cython.cfunc
    def take_vocabulary(
        self,
        signature_start: columns.Int,
        signature_end: columns.Int,
        part_start: columns.Int,
        part_end: columns.Int,
    ) -> columns.Int:
        """Set where the vocabulary of the next trace lies in `signatures` and in `parts`.

        Raises IndexError if that is outside of them.
        """
        if not 0 <= signature_start <= signature_end <= len(self.signatures):
            columns.missing()
        if not 0 <= part_start <= part_end <= len(self.parts):
            columns.missing()
        self.signature_start = signature_start
        self.named = signature_end - signature_start
        self.part_start = part_start
        self.known = part_end - part_start
        return 0

    # `count_entries` found that all entries of a column are there, and `out` has room for as many, so no
    # index is checked here. Each number and reference in them is checked on its own.

    @cython.cfunc
    def references(
        self, begin: columns.Int, count: columns.Int, at: columns.Int, least: columns.Int
    ) -> columns.Int:
        """Write `count` references of a trace, from `begin` on, to `at`, renumbered for the merged graph.

        Loose values are below 0; raises IndexError for one below `least`, or for a call or part that is not
        there.
        """
        integers: columns.RawRead = columns.raw_read(self.integers)
        parts: columns.RawRead = columns.raw_read(self.parts)
        out: columns.Raw = columns.raw(self.out)
        mask = columns.CALL_MASK
        bits = columns.PART_BITS
        calls = self.calls
        known = self.known
        start = self.part_start
        first = self.call
        loose = self.loose
        shift = at - begin
        for i in range(begin, begin + count):
            ref = integers[i]
            if ref < 0:  # a loose value
                if ref < least:
                    columns.missing()
                out[shift + i] = ref - loose
                continue
            call = ref & mask
            part = ref >> bits
            if call >= calls or part >= known:
                columns.missing()
            out[shift + i] = parts[start + part] << bits | call + first
        return 0

    @cython.cfunc
    def numbers(self, begin: columns.Int, count: columns.Int, at: columns.Int) -> columns.Int:
        """Write the signatures of `count` calls, from `begin` on, to `at`; count how often each occurs."""
        integers: columns.RawRead = columns.raw_read(self.integers)
        signatures: columns.RawRead = columns.raw_read(self.signatures)
        occurs: columns.Raw = columns.raw(self.occurs)
        out: columns.Raw = columns.raw(self.out)
        named = self.named
        start = self.signature_start
        for i in range(named):
            if not 0 <= signatures[start + i] < self.signature_count:
                columns.missing()
            occurs[i] = 0
        shift = at - begin
        for i in range(begin, begin + count):
            own = integers[i]
            if not 0 <= own < named:
                columns.missing()
            occurs[own] += 1
            out[shift + i] = signatures[start + own]
        return 0

    @cython.cfunc
    def lengths(
        self, begin: columns.Int, count: columns.Int, at: columns.Int, members: columns.Int
    ) -> columns.Int:
        """Write `count` lengths of ragged operands, from `begin` on, to `at`.

        Raises IndexError if their sum is not `members`.
        """
        for i in range(count):
            length = self.integers[begin + i]
            if not 0 <= length <= members:
                columns.missing()
            members -= length
            self.out[at + i] = length
        if members:
            columns.missing()
        return 0

    @cython.cfunc
    def refuse_other_counts(self, column: columns.Int, size: columns.Int) -> columns.Int:
        """Raise IndexError unless the trace's calls take ``size`` entries of a column in all."""
        begin = column * self.signature_count
        for i in range(self.named):
            size -= self.occurs[i] * self.taken[begin + self.signatures[self.signature_start + i]]
        if size:
            columns.missing()
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def trace(self, sizes: columns.Int, filled: columns.Write) -> columns.Int:
        """Write the trace whose sizes begin at `sizes`, each column from `filled` on.

        Return where the trace ends. `filled` is raised by what each column got.
        """
        at = sizes + len(filled)
        self.calls = self.integers[sizes + SIGNATURE]
        self.own_loose = self.integers[sizes + LOOSE]
        for number in range(len(filled)):
            if not is_stored(number):
                continue
            size = self.integers[sizes + number]
            if number == REFS:
                # The operands in REFS are nodes, while a row of a ragged operand, or of a result, may be a
                # loose value.
                self.references(at, size, filled[number], 0)
            elif number == MEMBERS or number >= RESULTS:
                self.references(at, size, filled[number], -self.own_loose)
            elif number == SIGNATURE:
                self.numbers(at, size, filled[number])
            elif number == LENGTHS:
                self.lengths(at, size, filled[number], self.integers[sizes + MEMBERS])
            else:
                columns.copy(self.out, filled[number], self.integers, at, size)
            filled[number] += size
            at += size
        self.refuse_other_counts(AT_REFS, self.integers[sizes + REFS])
        self.refuse_other_counts(AT_INTS, self.integers[sizes + INTS])
        self.refuse_other_counts(AT_FLOATS, self.integers[sizes + FLOATS])
        self.refuse_other_counts(AT_ARRAYS, self.integers[sizes + ARRAYS])
        self.refuse_other_counts(AT_RAGGED, self.integers[sizes + LENGTHS])
        self.loose += self.own_loose
        self.call += self.calls
        return at


def merge(
    integers: columns.Read,
    signatures: columns.Read,
    signature_starts: columns.Read,
    parts: columns.Read,
    part_starts: columns.Read,
    vocabularies: columns.Read,
    taken: Integers,
    result_count: columns.Int,
) -> tuple[Integers, Integers, list[Integers]]:
    """Shift and rename the integers of traces, so that they are those of one graph.

    Parameters
    ----------
    integers : int64 array
        Of one trace after the other: the sizes of its columns, those named by
        `multifold._engine.traces.trace.COUNTED`, and of its results; then its columns of integers and its
        results.
    signatures, signature_starts : int64 arrays
        Signature ``n`` of vocabulary ``v`` becomes ``signatures[signature_starts[v] + n]``; there is
        a start after the last one.
    parts, part_starts : int64 arrays
        Likewise for parts of results.
    vocabularies : int64 array of shape ``(traces,)``
        The vocabulary of each trace.
    taken : int64 array of shape ``(5, signatures)``
        How many entries a call of each signature of the merged graph has in each of
        `multifold._engine.record.kinds.COLUMNS`.
    result_count : int
        How many results each trace has.

    Returns
    -------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : int64 array of shape ``(traces, columns)``
        The sizes of each trace.
    columns : list of int64 array
        Signatures, references, ints, lengths and members, and then each result, with the entries of all
        traces, one after the other.

    Raises
    ------
    IndexError
        If a column is too short for what another one says, or refers to what is not there: then the columns
        are damaged, or they are no traces.
    """
    traces = len(vocabularies)
    width = RESULTS + result_count
    if not 0 <= result_count <= len(integers) or len(taken) != WIDTHS:
        columns.missing()
    made = columns.array_of_zeros(traces + 1)
    sizes = np.empty((traces, width), np.int64)
    flat = sizes.ravel()
    calls: columns.Write = columns.fresh(made)
    size: columns.Write = columns.fresh(flat)
    entries: columns.Read = columns.opened(integers)
    own_signatures: columns.Read = columns.opened(signatures)
    own_parts: columns.Read = columns.opened(parts)
    own_taken: columns.Read = columns.opened(taken.ravel())
    which: columns.Read = columns.opened(vocabularies)
    first_signature: columns.Read = columns.opened(signature_starts)
    first_part: columns.Read = columns.opened(part_starts)
    room: columns.Write = columns.zeros(3 * width + 1 + len(own_signatures))
    total: columns.Write = columns.part(room, 0, width)
    filled: columns.Write = columns.part(room, width, 2 * width)
    begin: columns.Write = columns.part(room, 2 * width, 3 * width + 1)
    occurs: columns.Write = columns.part(room, 3 * width + 1, 3 * width + 1 + len(own_signatures))
    at: columns.Int = 0
    it = TraceMerge()
    try:
        count_entries(entries, size, total, traces)
        for number in range(width):
            filled[number] = begin[number]
            begin[number + 1] = begin[number] + (total[number] if is_stored(number) else 0)
        out = columns.array(begin[width])
        write: columns.Write = columns.fresh(out)
        it.begin(entries, own_signatures, own_parts, own_taken, write, occurs)
        for trace in range(traces):
            own = which[trace]
            if not 0 <= own < min(len(first_signature), len(first_part)) - 1:
                columns.missing()
            it.take_vocabulary(
                first_signature[own], first_signature[own + 1], first_part[own], first_part[own + 1]
            )
            at = it.trace(at, filled)
            calls[trace + 1] = it.call
    except IndexError:
        columns.missing()
    columns.closed(made, calls)
    columns.closed(flat, size)
    columns.closed(out, write)
    return made, sizes, [out[begin[n] : begin[n + 1]] for n in range(width) if is_stored(n)]


@cython.cfunc
def count_entries(
    integers: columns.Read, sizes: columns.Write, total: columns.Write, traces: columns.Int
) -> columns.Int:
    """Write how many entries each trace has in each column, and their sums, to `sizes` and `total`.

    Raises IndexError for traces that do not fill their integers.
    """
    width = len(total)
    most: columns.Int = MOST_ENTRIES
    at: columns.Int = 0
    for trace in range(traces):
        begin = at
        at += width
        if at > len(integers):
            columns.missing()
        for number in range(width):
            size = integers[begin + number]
            if not 0 <= size <= most:
                columns.missing()
            sizes[trace * width + number] = size
            total[number] += size
            if is_stored(number):
                if size > len(integers) - at:
                    columns.missing()
                at += size
    if at != len(integers):
        columns.missing()
    return 0


@cython.final
@cython.cclass
class OwnNumbers:
    """The signatures, or parts, that an example meets, numbered from 0 in the order in which it meets them.

    `stamp` says which example has met a number last. So no column is cleared between two examples.
    """

    parents: list  # what each number comes after, or None
    in_order: list  # the numbers of the example, in the order in which it has them
    own: columns.Write  # of each number: its number in the example that met it last, and which that was
    stamp: columns.Write
    example: columns.Int
    count: columns.Int

    @cython.cfunc
    def begin(self, parents: Any, size: columns.Int) -> columns.Int:
        """Set what each number comes after (None for nothing), and make room for ``size`` numbers."""
        self.parents = parents
        self.own = columns.zeros(size)
        self.stamp = columns.zeros(size)
        self.example = 0
        return 0

    @cython.cfunc
    def begin_example(self) -> columns.Int:
        """Begin with the next example, which has met no number."""
        self.example += 1
        self.count = 0
        self.in_order = []
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def own_of(self, number: columns.Int) -> columns.Int:
        """Return the example's own number for a number of the graph.

        One that the example has not met gets the next number, after all that it comes after (`parents`)
        have theirs. Raises IndexError for a number that is not there.
        """
        if not 0 <= number < len(self.stamp):
            columns.missing()
        if self.stamp[number] != self.example:
            if self.parents is not None and number:
                parent: columns.Int = self.parents[number]
                if not 0 <= parent < number:
                    columns.missing()
                self.own_of(parent)
            self.stamp[number] = self.example
            self.own[number] = self.count
            self.in_order.append(number)
            self.count += 1
        return self.own[number]


@cython.cfunc
@cython.exceptval(-1, check=True)
def write_reads(
    out: columns.Write,
    at: columns.Int,
    parts: OwnNumbers,
    values: columns.Read,
    low: columns.Int,
    high: columns.Int,
    first: columns.Int,
    end: columns.Int,
    shift: columns.Int,
) -> columns.Int:
    """Write the references ``values[low:high]`` from `at` on, as an example numbers its calls and parts.

    Returns where the next integers go. The calls of the example are `first` to ``end - 1``; raises
    IndexError for another one. `shift` is added to loose values.
    """
    mask = columns.CALL_MASK
    bits = columns.PART_BITS
    if low < 0 or high > len(values):
        columns.missing()
    for i in range(low, high):
        ref = values[i]
        if ref < 0:  # a loose value
            out[at] = ref + shift
        else:
            call = ref & mask
            if not first <= call < end:
                columns.missing()
            out[at] = parts.own_of(ref >> bits) << bits | call - first
        at += 1
    return at


def cut(
    calls: list,
    loose: list,
    signature: columns.Read,
    widths: Integers,
    refs: columns.Read,
    ints: columns.Read,
    lengths: columns.Read,
    members: columns.Read,
    parents: list,
    results: list,
    sizes: list,
    rows: columns.Read,
    codes: list,
    instructions: columns.Read,
    line_of: Any,
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
        How many entries a call of each signature has in the columns of
        `multifold._engine.record.kinds.COLUMNS`.
    parents : list of int
        The number of the part that each part is a part of.
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
        For each example where it ends in ``integers``, among the floats and among the arrays of the graph,
        and the graph's numbers of the signatures and of the parts that it uses, in its own order.

    Raises
    ------
    IndexError
        If an example reads a call of another example.
    """
    count: columns.Int = len(widths)
    if widths.shape[1] != WIDTHS:
        columns.missing()
    made = columns.array(
        RESULTS * len(results)
        + len(sizes)
        + len(signature)
        + len(refs)
        + len(ints)
        + len(lengths)
        + len(members)
        + len(rows)
    )
    lines = columns.array(len(signature))
    ends: list = []
    write: columns.Write = columns.fresh(made)
    line: columns.Write = columns.fresh(lines)
    own_signature: columns.Read = columns.opened(signature)
    own_refs: columns.Read = columns.opened(refs)
    own_ints: columns.Read = columns.opened(ints)
    own_lengths: columns.Read = columns.opened(lengths)
    own_members: columns.Read = columns.opened(members)
    own_rows: columns.Read = columns.opened(rows)
    own_instructions: columns.Read = columns.opened(instructions)
    width: columns.Read = columns.opened(widths.ravel())
    named = OwnNumbers()
    parts = OwnNumbers()
    named.begin(None, count)
    parts.begin(parents, len(parents))
    # `line_of` runs Python code. Most calls of a signature were recorded at one line, so its last is kept.
    last_code: list = [None] * count
    last: columns.Write = columns.zeros(count)
    last_line: columns.Write = columns.zeros(count)
    wide: columns.Write = columns.zeros(WIDTHS)
    at: columns.Int = 0
    result: columns.Int = 0
    row: columns.Int = 0
    ref: columns.Int = 0
    number: columns.Int = 0
    length: columns.Int = 0
    member: columns.Int = 0
    floats: columns.Int = 0
    arrays: columns.Int = 0
    first: columns.Int
    end: columns.Int
    result_count: columns.Int
    for example in range(len(results)):
        named.begin_example()
        parts.begin_example()
        # Part 0 is the whole result, and has number 0 in each vocabulary.
        parts.own_of(0)
        for k in range(WIDTHS):
            wide[k] = 0
        head = at
        first = calls[example]
        end = calls[example + 1]
        result_count = results[example]
        at += RESULTS + result_count
        for i in range(first, end):
            own = own_signature[i]
            write[at] = named.own_of(own)
            at += 1
            for k in range(WIDTHS):
                wide[k] += width[own * WIDTHS + k]
            if codes[i] is not last_code[own] or own_instructions[i] != last[own]:
                last_code[own] = codes[i]
                last[own] = own_instructions[i]
                last_line[own] = line_of(codes[i], own_instructions[i])
            line[i] = last_line[own]
        write[head + SIGNATURE] = end - first
        write[head + REFS] = wide[AT_REFS]
        write[head + INTS] = wide[AT_INTS]
        write[head + LENGTHS] = wide[AT_RAGGED]
        write[head + FLOATS] = wide[AT_FLOATS]
        write[head + ARRAYS] = wide[AT_ARRAYS]
        write[head + LOOSE] = loose[example + 1] - loose[example]
        at = write_reads(write, at, parts, own_refs, ref, ref + wide[AT_REFS], first, end, 0)
        ref += wide[AT_REFS]
        columns.copy(write, at, own_ints, number, wide[AT_INTS])
        at += wide[AT_INTS]
        number += wide[AT_INTS]
        low = member
        for i in range(length, length + wide[AT_RAGGED]):
            write[at] = own_lengths[i]
            at += 1
            member += own_lengths[i]
        length += wide[AT_RAGGED]
        write[head + MEMBERS] = member - low
        at = write_reads(write, at, parts, own_members, low, member, first, end, loose[example])
        low = row
        for i in range(head + RESULTS, head + RESULTS + result_count):
            write[i] = sizes[result]
            row += write[i]
            result += 1
        at = write_reads(write, at, parts, own_rows, low, row, first, end, 0)
        floats += wide[AT_FLOATS]
        arrays += wide[AT_ARRAYS]
        ends.append((at, floats, arrays, tuple(named.in_order), tuple(parts.in_order)))
    columns.closed(made, write)
    columns.closed(lines, line)
    return made, lines, ends


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
        `multifold._engine.traces.trace.Trace`.
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
    calls: list = recorded.calls
    loose: list = recorded.loose
    structures: list = recorded.structures
    results: list = recorded.results
    values: dict = recorded.values
    kept: dict = recorded.kept
    vocabularies: dict = recorded.known.vocabularies
    loose_values = graph.loose
    all_arrays = graph.arrays
    all_floats = np.array(graph.floats, np.float64) if len(graph.floats) else None
    of = make.of
    made = []
    at = 0
    number = 0
    array = 0
    for i, (end, floats_end, arrays_end, signatures, parts) in enumerate(ends):
        key = structures[i], signatures, parts
        vocabulary, names = vocabularies.get(key) or recorded.known.vocabulary(*key)
        own = integers[at:end]
        own_loose = tuple(loose_values[loose[i] : loose[i + 1]]) if loose_values else ()
        # Values that the example returned, and did not record, come after those of its ragged operands.
        if i in values:
            own_loose += values[i]
            own[LOOSE] = len(own_loose)
        # A signature that leaves the shape of ragged rows open has become one with another that says it.
        if names is not None:
            first = RESULTS + results[i]
            last = first + calls[i + 1] - calls[i]
            own[first:last] = names[own[first:last]]
        floats = NO_FLOATS if all_floats is None else all_floats[number:floats_end]
        arrays = tuple(all_arrays[array:arrays_end]) if all_arrays else ()
        own_lines = lines[calls[i] : calls[i + 1]]
        made.append(of(vocabulary, own, floats, arrays, own_loose, own_lines, kept.get(i, ())))
        at = end
        number = floats_end
        array = arrays_end
    return made
