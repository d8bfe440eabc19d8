# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Traces over columns of int64: put together to a minibatch, and cut out of the graph of many examples.

Bounds are checked everywhere. `multifold._compiled.reference.merging` has the same functions in NumPy,
and says what they do.
"""

cimport cython
from libc.stdint cimport int64_t

from multifold._compiled._columns cimport AT_ARRAYS, AT_FLOATS, AT_INTS, AT_RAGGED, AT_REFS
from multifold._compiled._columns cimport CALL_MASK, PART_BITS, Integers, Table, Writable, missing

from zlib import crc32 as _crc32

import numpy as np

from multifold._compiled.reference import merging as reference

cdef object empty = np.empty, zeros = np.zeros, int64 = np.int64, crc32 = _crc32

# ---- traces --------------------------------------------------------------------------------------------

cdef enum:  # the columns of a trace in the order of `multifold._traces.trace.COUNTED`; its results follow
    SIGNATURE, REFS, INTS, LENGTHS, MEMBERS, FLOATS, ARRAYS, LOOSE, RESULTS


cdef inline bint is_stored(int64_t number) noexcept:
    """Return whether a column is one of integers: floats, arrays and loose values are kept elsewhere."""
    return number < FLOATS or number >= RESULTS


@cython.final
cdef class Merge:
    """What the numbers of the trace that is merged become: its own columns, and where they go."""

    cdef Integers integers, signatures, parts
    cdef const int64_t[:, ::1] taken
    cdef Writable out
    cdef int64_t signature_count, signature_start, part_start, named, known, members, call, calls, loose, own_loose

    # `count_entries` found that all entries of the column are there, and `out` has room for as many. So pointers
    # will do for these; each number and reference in them is checked on its own.
    @cython.boundscheck(False)
    cdef int column(self, int64_t number, int64_t begin, int64_t count, int64_t at) except -1:
        """Write a column of the trace, which begins at ``begin``, to where it goes on in the minibatch."""
        cdef const int64_t* values = &self.integers[begin]
        cdef const int64_t* names = &self.signatures[self.signature_start]
        cdef const int64_t* parts = &self.parts[self.part_start]
        cdef int64_t* out = &self.out[at]
        cdef int64_t i, x, named = self.named, known = self.known, first = self.call, calls = self.calls
        cdef int64_t loose = self.loose, least = 0 if number == REFS else -self.own_loose
        cdef int64_t left = self.members
        if number == REFS or number == MEMBERS or number >= RESULTS:
            for i in range(count):
                x = values[i]
                if x < 0:  # a loose value
                    if x < least:
                        missing()
                    out[i] = x - loose
                    continue
                if x & CALL_MASK >= calls or x >> PART_BITS >= known:
                    missing()
                out[i] = parts[x >> PART_BITS] << PART_BITS | ((x & CALL_MASK) + first)
        elif number == SIGNATURE:
            for i in range(count):
                x = values[i]
                if x < 0 or x >= named or names[x] < 0 or names[x] >= self.signature_count:
                    missing()
                out[i] = names[x]
        elif number == LENGTHS:
            for i in range(count):
                if values[i] < 0 or values[i] > left:
                    missing()
                left -= values[i]
                out[i] = values[i]
            if left:
                missing()
        else:
            for i in range(count):
                out[i] = values[i]
        return 0

    @cython.boundscheck(False)  # as above; `filled` has an entry for each column
    cdef int64_t trace(self, int64_t sizes, Writable filled) except -1:
        """Write the trace whose sizes begin there to where its columns go on; return where the next one begins."""
        cdef int64_t i, number, size, left, at = sizes + filled.shape[0]
        cdef const int64_t* taken
        cdef const int64_t* names = &self.out[filled[SIGNATURE]]
        cdef int64_t[5] columns = [REFS, INTS, FLOATS, ARRAYS, LENGTHS]
        self.calls, self.members = self.integers[sizes + SIGNATURE], self.integers[sizes + MEMBERS]
        self.own_loose = self.integers[sizes + LOOSE]
        for number in range(filled.shape[0]):
            if not is_stored(number):
                continue
            size = self.integers[sizes + number]
            self.column(number, at, size, filled[number])
            filled[number] += size
            at += size
        # `column` found that each signature is one of those in `taken`.
        for number in range(5):
            taken, left = &self.taken[number, 0], self.integers[sizes + columns[number]]
            for i in range(self.calls):
                left -= taken[names[i]]
            if left:  # it has more or fewer operands than its calls take
                missing()
        self.loose += self.own_loose
        self.call += self.calls
        return at


def merge(
    Integers integers not None, Integers signatures not None, Integers signature_starts not None,
    Integers parts not None, Integers part_starts not None, Integers vocabularies not None,
    const int64_t[:, ::1] taken not None, int64_t result_count,
):
    """See `multifold._compiled.reference.merging.merge`."""
    cdef Merge it = Merge.__new__(Merge)
    cdef int64_t trace, number, own, at = 0, traces = vocabularies.shape[0], width = RESULTS + result_count
    if result_count < 0 or taken.shape[0] != 5 or result_count > integers.shape[0]:
        missing()
    starts, sizes = zeros(traces + 1, int64), empty((traces, width), int64)
    cdef Table size = sizes
    cdef Writable calls = starts, room = zeros(3 * width + 1, int64)
    cdef Writable begin = room[: width + 1], filled = room[width + 1 : 2 * width + 1], total = room[2 * width + 1 :]
    it.integers, it.signatures, it.parts, it.taken, it.signature_count = integers, signatures, parts, taken, taken.shape[1]
    try:
        count_entries(integers, size, total)
        for number in range(width):
            filled[number] = begin[number]
            begin[number + 1] = begin[number] + (total[number] if is_stored(number) else 0)
        out = zeros(begin[width], int64)
        it.out = out
        for trace in range(traces):
            own = vocabularies[trace]
            it.signature_start, it.named = signature_starts[own], signature_starts[own + 1]
            it.part_start, it.known = part_starts[own], part_starts[own + 1]
            if it.signature_start < 0 or it.named < it.signature_start or it.named > signatures.shape[0]:
                missing()
            if it.part_start < 0 or it.known < it.part_start or it.known > parts.shape[0]:
                missing()
            it.named -= it.signature_start
            it.known -= it.part_start
            at = it.trace(at, filled)
            calls[trace + 1] = it.call
    except IndexError:
        missing()
    columns = [out[begin[number] : begin[number + 1]] for number in range(width) if is_stored(number)]
    return starts, sizes, columns


cdef int count_entries(Integers integers, Table sizes, Writable total) except -1:
    """Count the entries of each trace in each column; refuse traces that do not fill their integers."""
    cdef int64_t trace, number, size, at = 0, begin
    for trace in range(sizes.shape[0]):
        begin, at = at, at + total.shape[0]
        for number in range(total.shape[0]):
            size = integers[begin + number]
            if size < 0 or size > <int64_t>1 << 40 or (is_stored(number) and size > integers.shape[0] - at):
                missing()
            sizes[trace, number] = size
            total[number] += size
            at += size if is_stored(number) else 0
    if at != integers.shape[0]:
        missing()
    return 0


# ---- examples ------------------------------------------------------------------------------------------


@cython.final
cdef class Numbering:
    """The numbers that an example meets, numbered from 0 in the order in which it meets them."""

    cdef list parents, met  # what each number comes after, or None; the numbers that were met
    cdef Writable own, stamp  # of each number: its number in the example that met it last, and which that was
    cdef int64_t example, count

    cdef int64_t own_of(self, int64_t number) except -1:
        """Return the number that a number has in the example."""
        if self.stamp[number] != self.example:
            if self.parents is not None and number:
                if not 0 <= <int64_t>self.parents[number] < number:
                    missing()
                self.own_of(self.parents[number])
            self.stamp[number], self.own[number] = self.example, self.count
            self.met.append(number)
            self.count += 1
        return self.own[number]

    cdef int begin(self, int64_t example) except -1:
        """Begin with an example; they count from 1."""
        self.example, self.count, self.met = example, 0, []
        return 0


cdef Numbering numbers_of(Writable room, int64_t count, list parents):
    """Return the numbering of numbers below `count`, in room for twice as many, which is 0 at first."""
    cdef Numbering it = Numbering.__new__(Numbering)
    it.parents, it.own, it.stamp = parents, room[:count], room[count : 2 * count]
    return it


cdef int64_t write_reads(
    Writable out, int64_t at, Numbering parts, Integers values, int64_t low, int64_t high, int64_t first, int64_t end,
    int64_t shift,
) except -1:
    """Write references that an example reads, with its own numbers; return where the next integers go."""
    cdef int64_t i, x
    for i in range(low, high):
        x = values[i]
        if x < 0:  # a loose value
            out[at] = x + shift
        elif not first <= x & CALL_MASK < end:
            missing()
        else:
            out[at] = parts.own_of(x >> PART_BITS) << PART_BITS | (x & CALL_MASK) - first
        at += 1
    return at


def cut(
    list calls not None, list loose not None, Integers signature not None, Table widths not None,
    Integers refs not None, Integers ints not None, Integers lengths not None, Integers members not None,
    list parents not None, list results not None, list sizes not None, Integers rows not None,
    list codes not None, Integers instructions not None, line_of,
):
    """See `multifold._compiled.reference.merging.cut`."""
    cdef int64_t count = widths.shape[0], example, i, k, own, head, at = 0, first, end, result = 0, low
    cdef int64_t row = 0, ref = 0, number = 0, length = 0, member = 0, floats = 0, arrays = 0
    cdef int64_t[5] wide
    cdef Writable room = zeros(4 * count + 2 * len(parents), int64), last = room[2 * count : 4 * count]
    cdef Numbering named = numbers_of(room, count, None), parts = numbers_of(room[4 * count :], len(parents), parents)
    cdef list last_code = [None] * count  # the line of the last call of a signature is that of most others
    out, lines, ends = empty(
        RESULTS * len(results) + len(sizes) + signature.shape[0] + refs.shape[0] + ints.shape[0] + lengths.shape[0]
        + members.shape[0] + rows.shape[0], int64,
    ), empty(signature.shape[0], int64), []
    cdef Writable write = out, line = lines
    if widths.shape[1] != 5:
        missing()
    for example in range(len(results)):
        named.begin(example + 1)
        parts.begin(example + 1)
        parts.own_of(0)
        wide[:] = [0, 0, 0, 0, 0]
        head, first, end, at = at, calls[example], calls[example + 1], at + RESULTS + <int64_t>results[example]
        for i in range(first, end):
            own = signature[i]
            write[at] = named.own_of(own)
            at += 1
            for k in range(5):
                wide[k] += widths[own, k]
            if codes[i] is not last_code[own] or instructions[i] != last[own]:
                last_code[own], last[own], last[count + own] = codes[i], instructions[i], line_of(codes[i], instructions[i])
            line[i] = last[count + own]
        write[head + SIGNATURE], write[head + REFS], write[head + INTS] = end - first, wide[AT_REFS], wide[AT_INTS]
        write[head + LENGTHS], write[head + FLOATS] = wide[AT_RAGGED], wide[AT_FLOATS]
        write[head + ARRAYS], write[head + LOOSE] = wide[AT_ARRAYS], loose[example + 1] - loose[example]
        at = write_reads(write, at, parts, refs, ref, ref + wide[AT_REFS], first, end, 0)
        ref += wide[AT_REFS]
        for i in range(number, number + wide[AT_INTS]):
            write[at] = ints[i]
            at += 1
        number += wide[AT_INTS]
        low = member
        for i in range(length, length + wide[AT_RAGGED]):
            write[at] = lengths[i]
            at += 1
            member += lengths[i]
        length += wide[AT_RAGGED]
        write[head + MEMBERS] = member - low
        at = write_reads(write, at, parts, members, low, member, first, end, loose[example])
        low = row
        for i in range(head + RESULTS, head + RESULTS + <int64_t>results[example]):
            write[i] = sizes[result]
            row += write[i]
            result += 1
        at = write_reads(write, at, parts, rows, low, row, first, end, 0)
        floats += wide[AT_FLOATS]
        arrays += wide[AT_ARRAYS]
        ends.append((at, floats, arrays, tuple(named.met), tuple(parts.met)))
    return out, lines, ends


def traces_of(make, recorded, graph, integers, lines, list ends not None):
    """See `multifold._compiled.reference.merging.traces_of`."""
    cdef Py_ssize_t i, end, floats_end, arrays_end, call, last, first, at = 0, number = 0, array = 0
    cdef list calls = recorded.calls, loose = recorded.loose, structures = recorded.structures, made = []
    cdef list arrays = graph.arrays, loose_values = graph.loose
    cdef dict vocabularies = recorded.known.vocabularies, values = recorded.values, kept = recorded.kept
    new, floats = make.__new__, np.array(graph.floats, np.float64) if len(graph.floats) else None
    for i in range(len(ends)):
        end, floats_end, arrays_end, signatures, parts = ends[i]
        key = structures[i], signatures, parts
        vocabulary, names = vocabularies.get(key) or recorded.known.vocabulary(*key)
        call, last, own = calls[i], calls[i + 1], integers[at:end]
        own_loose = tuple(loose_values[<Py_ssize_t>loose[i] : <Py_ssize_t>loose[i + 1]]) if loose_values else ()
        if i in values:
            own_loose += values[i]
            own[LOOSE] = len(own_loose)
        if names is not None:
            first = RESULTS + <Py_ssize_t>recorded.results[i]
            own[first : first + last - call] = names[own[first : first + last - call]]
        trace = new(make)  # `Trace.of` does the same, and a call of it would take as long as all of this
        trace.vocabulary, trace.integers, trace.loose, trace.lines = vocabulary, own, own_loose, lines[call:last]
        trace.floats = reference.NO_FLOATS if floats is None else floats[number:floats_end]
        trace.arrays, trace.kept = tuple(arrays[array:arrays_end]) if arrays else (), kept.get(i, ())
        trace.digest = crc32(own) if floats is None else crc32(trace.floats, crc32(own))
        made.append(trace)
        at, number, array = end, floats_end, arrays_end
    return made
