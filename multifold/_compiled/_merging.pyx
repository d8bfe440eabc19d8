# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Calls cut out of columns of int64 and put together anew: traces that become a minibatch, the calls of a round.

Bounds are checked everywhere. `multifold._compiled.reference.merging` has the same functions in NumPy,
and says what they do.
"""

cimport cython
from libc.stdint cimport int64_t

from multifold._compiled._columns cimport CALL_MASK, PART_BITS, Integers, Table, Writable, missing

import numpy as np

from multifold._compiled.reference import merging as reference

cdef object empty = np.empty, zeros = np.zeros, int64 = np.int64

# ---- traces --------------------------------------------------------------------------------------------

cdef enum:  # the columns of a trace in the order of `multifold._traces.trace.COUNTED`; its results follow
    SIGNATURE, REFS, INTS, LENGTHS, MEMBERS, NEEDED, LEVELS, PAIRS, HIGHEST, FLOATS, ARRAYS, LOOSE, RESULTS


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
        cdef int64_t loose = self.loose, least = 0 if number == REFS else -self.own_loose, last = -1
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
        elif number == SIGNATURE or number == PAIRS:  # signatures, or (signature, level) of both ends of an edge
            for i in range(count):
                x = values[i]
                if number == PAIRS and i & 1:
                    out[i] = x
                    continue
                if x < 0 or x >= named:
                    missing()
                out[i] = names[x]
        elif number == NEEDED:
            for i in range(count):
                if values[i] <= last or values[i] >= calls:  # they ascend, so each of them is run once
                    missing()
                last = values[i]
                out[i] = last + first
        elif number == LENGTHS:
            for i in range(count):
                if values[i] < 0 or values[i] > left:
                    missing()
                left -= values[i]
                out[i] = values[i]
            if left:
                missing()
        elif number == HIGHEST:  # one for each signature
            for i in range(count):
                if i >= named or names[i] < 0 or names[i] >= self.signature_count:
                    missing()
                out[names[i]] = max(out[names[i]], values[i])
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
        if self.integers[sizes + HIGHEST] != self.named or self.integers[sizes + PAIRS] % 4:
            missing()
        if self.integers[sizes + LEVELS] != self.integers[sizes + NEEDED]:
            missing()
        for number in range(filled.shape[0]):
            if not is_stored(number):
                continue
            size = self.integers[sizes + number]
            self.column(number, at, size, filled[number])
            filled[number] += 0 if number == HIGHEST else size
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
        total[HIGHEST] = taken.shape[1]
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


# ---- the calls of a round ------------------------------------------------------------------------------

cdef enum:  # the columns of multifold._record.kinds.COLUMNS
    AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED
    ROWS  # of ragged operands, found by way of AT_RAGGED
    WIDEST = 1 << 16  # integers that lie closer together are counted in a table; others are sorted


@cython.final
cdef class Window:
    """The columns of all calls, and the calls that were met so far."""

    cdef const int64_t[:, ::1] starts
    cdef Integers refs, members, member_starts, result
    cdef Writable seen, number, pending, given
    cdef int64_t stamp, count, given_count, low, high

    cdef int meet(self, int64_t call) except -1:
        """Note a call that is met for the first time in this round, as one to be run or as a given one."""
        if self.seen[call] == self.stamp:
            return 0
        self.seen[call] = self.stamp
        if self.result[call] > 0:
            if self.given_count == self.given.shape[0]:
                self.given = with_room(self.given)
            self.given[self.given_count] = call
            self.given_count += 1
        else:
            if self.count == self.pending.shape[0]:
                self.pending = with_room(self.pending)
            self.pending[self.count] = call
            self.count += 1
        return 0

    cdef int seek(self, int64_t call, int column) except -1:
        """Set `low` and `high`: between them a call has its entries in a column, or its rows of ragged operands."""
        cdef int at = min(column, AT_RAGGED)
        self.low, self.high = self.starts[call, at], self.starts[call + 1, at]
        if column == ROWS and self.low < self.high:
            self.low, self.high = self.member_starts[self.low], self.member_starts[self.high]
        return 0

    cdef int meet_sources(self, int64_t call) except -1:
        """Meet the calls that a call reads, by an operand or inside of a ragged one."""
        cdef int64_t i
        self.seek(call, AT_REFS)
        for i in range(self.low, self.high):
            self.meet(self.refs[i] & CALL_MASK)
        self.seek(call, ROWS)
        for i in range(self.low, self.high):
            if self.members[i] >= 0:
                self.meet(self.members[i] & CALL_MASK)
        return 0

    cdef object numbered(self, Integers met, int64_t count, int64_t first):
        """Return calls that were met in the order of recording, and number them from `first` on."""
        cdef int64_t i
        calls = empty(count, int64)
        cdef Writable ordered = calls
        for i in range(count):
            ordered[i] = met[i]
        calls.sort()
        for i in range(count):
            self.number[ordered[i]] = first + i
        return calls

    cdef object entries(self, Integers calls, int column, Integers values, bint are_refs):
        """Return what calls have in a column, one call after the other; of references the calls are renumbered."""
        cdef int64_t i, j, size = 0, at = 0
        for i in range(calls.shape[0]):
            self.seek(calls[i], column)
            size += max(self.high - self.low, 0)
        found = empty(size, int64)
        cdef Writable out = found
        for i in range(calls.shape[0]):
            self.seek(calls[i], column)
            for j in range(self.low, self.high):
                out[at] = self.renumbered(values[j]) if are_refs else values[j]
                at += 1
        return found

    cdef int64_t renumbered(self, int64_t ref) except? -1:
        """Return a reference to the number that a call has in this round; loose values stay as they are."""
        return ref if ref < 0 else ref & ~CALL_MASK | self.number[ref & CALL_MASK]


cdef object with_room(Integers values):
    """Return an array that begins with some values, of twice their length."""
    more = empty(2 * values.shape[0], int64)
    more[: values.shape[0]] = values
    return more


def window(
    Integers awaited not None, int64_t stamp, const int64_t[:, ::1] starts not None, Integers refs not None,
    Integers ints not None, Integers lengths not None, Integers members not None, Integers member_starts not None,
    Integers result not None, Writable seen not None, Writable number not None,
):
    """See `multifold._compiled.reference.merging.window`."""
    cdef Window it = Window.__new__(Window)
    cdef int64_t i, at = 0
    cdef Writable room = empty(512, int64)
    it.starts, it.refs, it.members, it.member_starts, it.result = starts, refs, members, member_starts, result
    it.seen, it.number, it.pending, it.given, it.stamp = seen, number, room[:256], room[256:], stamp
    if starts.shape[1] <= AT_RAGGED:
        missing()
    try:
        for i in range(awaited.shape[0]):
            it.meet(awaited[i])
        while at < it.count:  # grows while it is walked
            it.meet_sources(it.pending[at])
            at += 1
        given = it.numbered(it.given, it.given_count, 0)
        calls = it.numbered(it.pending, it.count, it.given_count)
        columns = (
            it.entries(calls, AT_REFS, refs, True), it.entries(calls, AT_INTS, ints, False),
            it.entries(calls, AT_RAGGED, lengths, False), it.entries(calls, ROWS, members, True),
        )
    except IndexError:
        missing()
    return calls, given, *columns


def distinct(Integers values not None):
    """See `multifold._compiled.reference.merging.distinct`."""
    cdef int64_t i, low = 0, high = 0, found = 0, count = values.shape[0]
    if count:
        low = high = values[0]
    for i in range(count):
        low, high = min(low, values[i]), max(high, values[i])
    if low < 0 or high - low >= WIDEST:
        return reference.distinct(np.asarray(values))
    cdef Table table = zeros((2, high - low + 1), int64)  # how often, and which
    for i in range(count):
        table[0, values[i] - low] += 1
    for i in range(high - low + 1):
        if table[0, i]:
            table[1, i] = found
            found += 1
    numbers, which, counts = empty(found, int64), empty(count, int64), empty(found, int64)
    cdef Writable number = numbers, place = which, often = counts
    for i in range(high - low + 1):
        if table[0, i]:
            number[table[1, i]], often[table[1, i]] = low + i, table[0, i]
    for i in range(count):
        place[i] = table[1, values[i] - low]
    return numbers, which, counts
