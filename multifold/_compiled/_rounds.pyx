# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Rounds of awaited values: the table of all calls, what a round cuts out of it, and where awaited rows are.

`multifold._compiled.reference.rounds` has `TableBase` and `distinct` in NumPy, and `reference.tasks` all else: read
them first, they have the docstrings and examples. Here bounds are checked everywhere.
"""

cimport cython
from libc.stdint cimport int64_t

from multifold._compiled._columns cimport AT_INTS, AT_RAGGED, AT_REFS
from multifold._compiled._columns cimport CALL_MASK, PART_BITS, Integers, Table, Writable, missing

import numpy as np

from multifold._compiled._rows import plan
from multifold._compiled.reference import rounds as reference

cdef object empty = np.empty, zeros = np.zeros, int64 = np.int64

cdef enum:
    ROWS = AT_RAGGED + 1  # of ragged operands, found by way of AT_RAGGED
    WIDEST = 1 << 16  # integers that lie closer together are counted in a table
    FEWEST = 8  # others are compared with each of so many, and sorted if there are more

cdef enum:  # what is known of each call: 64 bytes, as many as a cache line has
    RESULT, ROW, NUMBER
    STARTS  # of the columns, one after the other: where the call's entries begin; the next call's begin at their end
    FACTS = STARTS + AT_RAGGED + 1

cdef int64_t RANK = (<int64_t>1 << 32) - 1  # in the lower half of when a call runs; the round is in the upper one

cdef object nothing = zeros(0, int64)


cdef class TableBase:
    """The columns of a graph that is being recorded: where each call has its entries, and where its row is."""

    cdef readonly object graph, result, row
    cdef object columns  # an array with a line of facts for each call
    cdef int64_t* lines  # its memory
    cdef Writable member_starts  # where the rows of each ragged operand begin
    cdef Writable marks  # a bit for each call that a selection has met and not come to yet
    cdef Writable work  # room for the groups of a launch
    cdef Table met  # room for the calls that a selection meets: those that are run, and given ones
    cdef readonly int64_t pending  # calls that `frontier` has met last
    cdef int64_t size, ragged, room, given, lowest, low, high
    cdef Integers refs, ints, lengths, members

    def __cinit__(self, graph):
        self.graph, self.size, self.ragged, self.room = graph, 0, 0, 0
        self.member_starts, self.work = zeros(64, int64), zeros(64, int64)
        self.make_room(64)
        self.show()

    def __init__(self, graph):
        """Take what `__cinit__` has taken: Python calls both."""

    def __len__(self):
        return self.size

    cdef int make_room(self, int64_t room) except -1:
        """Make room for so many calls, and the line after the last of them."""
        cdef Table columns
        columns = made = zeros((room + 1, FACTS), int64)
        if self.size:
            made[: self.size + 1] = self.columns[: self.size + 1]
        self.columns, self.lines, self.room = made, &columns[0, 0], room
        self.marks, self.met = zeros((room >> 6) + 1, int64), empty((2, room), int64)
        return 0

    cdef int show(self) except -1:
        """Show the results and the rows of all calls as arrays."""
        self.result, self.row = self.columns[: self.size, RESULT], self.columns[: self.size, ROW]
        return 0

    @cython.final
    cdef inline int64_t* line(self, int64_t call) except NULL:
        """Return what is known of a call; refuse one that the table does not have."""
        if call < 0 or call >= self.size:
            missing()
        return self.lines + call * FACTS

    def reserve(self, int64_t calls):
        if calls > self.room:
            self.make_room(calls)
            self.show()

    def grow(self, Table widths not None):
        cdef Integers signature = self.graph.signature, lengths
        cdef int64_t call, i, column, calls = signature.shape[0]
        cdef int64_t* line
        cdef int64_t* width
        if calls <= self.size:
            return
        if widths.shape[1] != AT_RAGGED + 1:
            missing()
        if calls > self.room:
            self.make_room(max(calls, 2 * self.room))
        for call in range(self.size, calls):
            line, width = self.lines + call * FACTS, &widths[signature[call], 0]
            for column in range(AT_RAGGED + 1):
                line[FACTS + STARTS + column] = line[STARTS + column] + width[column]
        self.size = calls
        self.show()
        if len(self.graph.lengths) > self.ragged:
            lengths = self.graph.lengths
            if lengths.shape[0] + 1 > self.member_starts.shape[0]:
                before = self.member_starts
                self.member_starts = zeros(2 * lengths.shape[0] + 1, int64)
                self.member_starts[: before.shape[0]] = before
            for i in range(self.ragged, lengths.shape[0]):
                self.member_starts[i + 1] = self.member_starts[i] + lengths[i]
            self.ragged = lengths.shape[0]

    def store(self, Integers calls not None, int64_t result, Integers row not None):
        cdef int64_t i
        cdef int64_t* line
        if calls.shape[0] != row.shape[0]:
            missing()
        for i in range(calls.shape[0]):
            line = self.line(calls[i])
            line[RESULT], line[ROW] = result, row[i]

    def at(self, int64_t column, Integers calls not None):
        cdef int64_t i, j, size = 0, place = 0
        if column < 0 or column > AT_RAGGED:
            missing()
        for i in range(calls.shape[0]):
            self.seek(calls[i], <int>column)
            size += max(self.high - self.low, 0)
        found = empty(size, int64)
        cdef Writable out = found
        for i in range(calls.shape[0]):
            self.seek(calls[i], <int>column)
            for j in range(self.low, self.high):
                out[place] = j
                place += 1
        return found

    def members_of(self, Integers ragged not None):
        cdef int64_t i, j, size = 0, place = 0
        cdef Integers members = self.graph.members
        sizes = empty(ragged.shape[0], int64)
        cdef Writable lengths = sizes
        for i in range(ragged.shape[0]):
            if not 0 <= ragged[i] < self.ragged:
                missing()
            lengths[i] = max(self.member_starts[ragged[i] + 1] - self.member_starts[ragged[i]], 0)
            size += lengths[i]
        found = empty(size, int64)
        cdef Writable out = found
        for i in range(ragged.shape[0]):
            for j in range(lengths[i]):
                out[place] = members[self.member_starts[ragged[i]] + j]
                place += 1
        return found, sizes

    # ---- what a round runs and reads -------------------------------------------------------------------

    cdef int meet_all(self, Integers awaited, bint reads) except -1:
        """Find the calls that some calls need and that have not run; if `reads`, also the given ones that these read.

        A call comes after all that it reads. So one walk from the last call to the first meets each call before it
        comes to it, and finds them in their order. It skips 64 calls at a time where none of them was met.
        """
        cdef int64_t i, bit, word = -1
        self.refs, self.members = self.graph.refs, self.graph.members
        self.pending = self.given = 0
        self.lowest = self.marks.shape[0]
        try:
            for i in range(awaited.shape[0]):
                self.meet(awaited[i], self.size, reads)
                word = max(word, awaited[i] >> 6)
            while word >= self.lowest:  # which falls while they are walked
                if self.marks[word]:
                    for bit in range(63, -1, -1):
                        if self.marks[word] >> bit & 1:
                            self.come_to(word << 6 | bit, reads)
                    self.marks[word] = 0
                word -= 1
        except IndexError:
            self.marks[:] = 0
            raise
        return 0

    @cython.final
    cdef inline int meet(self, int64_t call, int64_t reader, bint reads) except -1:
        """Mark a call that another one reads, or somebody awaits, so that the walk comes to it."""
        if call >= reader:
            missing()
        if reads or self.line(call)[RESULT] <= 0:
            self.marks[call >> 6] |= <int64_t>1 << (call & 63)
            self.lowest = min(self.lowest, call >> 6)
        return 0

    @cython.final
    cdef inline int come_to(self, int64_t call, bint reads) except -1:
        """Note a call that was met, and meet those that it reads if it has to run."""
        cdef int64_t i
        cdef int64_t* line = self.line(call)
        if line[RESULT] > 0:
            self.given += 1
            self.met[1, self.room - self.given] = call
            return 0
        self.pending += 1
        self.met[0, self.room - self.pending] = call
        for i in range(line[STARTS + AT_REFS], line[FACTS + STARTS + AT_REFS]):
            self.meet(self.refs[i] & CALL_MASK, call, reads)
        self.seek(call, ROWS)
        for i in range(self.low, self.high):
            if self.members[i] >= 0:
                self.meet(self.members[i] & CALL_MASK, call, reads)
        return 0

    def window(self, Integers awaited not None, int64_t signatures):
        cdef int64_t i, first, count
        cdef Integers signature = self.graph.signature
        cdef Writable kept_calls, numbers
        try:
            self.meet_all(awaited, True)
            self.ints, self.lengths = self.graph.ints, self.graph.lengths
            first, count = self.given, self.given + self.pending
            found = empty((2, count), int64)
            kept = found[0]
            kept_calls, numbers = kept, found[1]
            kept_calls[:first], kept_calls[first:] = self.met[1, self.room - first :], self.met[0, self.room - self.pending :]
            for i in range(count):
                self.line(kept_calls[i])[NUMBER] = i
                numbers[i] = signature[kept_calls[i]] + (signatures if i < first else 0)
            refs, ref_starts = self.entries(kept_calls, AT_REFS, self.refs, True)
            ints, int_starts = self.entries(kept_calls, AT_INTS, self.ints, False)
            lengths, ragged_starts = self.entries(kept_calls, AT_RAGGED, self.lengths, False)
            members = self.entries(kept_calls, ROWS, self.members, True)[0]
            return kept, first, found[1], refs, ref_starts, ints, int_starts, lengths, ragged_starts, members
        except IndexError:
            missing()
        finally:
            self.refs = self.ints = self.lengths = self.members = None  # a column can't grow while it is read

    def frontier(self, Integers awaited not None, Integers rank not None, int64_t last, int64_t rounds=1):
        cdef int64_t i, call, at, ranks = rank.shape[0], slots = ranks * rounds
        cdef int64_t* line
        cdef Integers signature = self.graph.signature
        cdef Writable begin, calls
        try:
            for i in range(awaited.shape[0]):
                self.line(awaited[i])
                if signature[awaited[i]] >= ranks or rank[signature[awaited[i]]] < last:
                    return None
            self.meet_all(awaited, False)
            begin = begins = zeros(slots + 2, int64)  # while calls are counted, two places further on
            for i in range(self.room - self.pending, self.room):
                call = self.met[0, i]
                if signature[call] >= ranks:
                    return None
                if not 0 <= rank[signature[call]] < ranks:
                    missing()
                line = self.line(call)
                line[NUMBER] = self.slot_of(call, rank[signature[call]])
                at = (line[NUMBER] >> 32) * ranks + (line[NUMBER] & RANK)
                if at < slots:
                    begin[at + 2] += 1
            for i in range(slots):
                begin[i + 2] += begin[i + 1]
            calls = found = empty(begin[slots + 1], int64)
            for i in range(self.room - self.pending, self.room):
                call = self.met[0, i]
                line = self.line(call)
                at = (line[NUMBER] >> 32) * ranks + (line[NUMBER] & RANK)
                line[NUMBER] = (line[NUMBER] >> 32) + 1
                if at < slots:
                    calls[begin[at + 1]] = call
                    begin[at + 1] += 1
            return found, begins[:-1]
        except IndexError:
            missing()
        finally:
            self.refs = self.members = None  # a column can't grow while it is read

    @cython.final
    cdef inline int64_t slot_of(self, int64_t call, int64_t rank) except -1:
        """Return when a call of a rank runs, ``round << 32 | rank``: the first time after all that it reads."""
        cdef int64_t i, slot, last = -1
        cdef int64_t* line = self.line(call)
        for i in range(line[STARTS + AT_REFS], line[FACTS + STARTS + AT_REFS]):
            last = max(last, self.slot_read(self.refs[i]))
        self.seek(call, ROWS)
        for i in range(self.low, self.high):
            last = max(last, self.slot_read(self.members[i]))
        slot = max(last, 0) & ~RANK | rank
        return slot if slot > last else slot + RANK + 1

    @cython.final
    cdef inline int64_t slot_read(self, int64_t ref) except? -2:
        """Return when what a reference reads runs; -1 if that is there."""
        cdef int64_t* line
        if ref < 0:
            return -1
        line = self.line(ref & CALL_MASK)
        return -1 if line[RESULT] > 0 else line[NUMBER]

    def arrived(self, Integers refs not None, list sizes not None):
        cdef int64_t i, group, size, at = 0, end = 0
        cdef int64_t* line
        found, groups = empty((2, refs.shape[0]), int64), []
        cdef Table of_ref = found
        for group in range(len(sizes)):
            size = sizes[group]
            if size < 0 or end + size > refs.shape[0]:
                missing()
            for i in range(size):
                line = self.line(refs[end + i] & CALL_MASK)
                if line[RESULT] <= 0:
                    break
                of_ref[0, at + i], of_ref[1, at + i] = refs[end + i] & ~CALL_MASK | line[RESULT], line[ROW]
            else:
                groups.append(group)
                at += size
            end += size
        sources, which, _ = distinct(of_ref[0, :at])
        return groups, sources, which, found[1, :at]

    def launch_rows(self, Integers calls not None, list launches not None, Integers new not None):
        cdef int64_t begin = 0, at = 0, i, count, width, result, size = 0, widest = 0
        cdef int64_t* line
        cdef Integers refs = self.graph.refs
        for count, width, _ in launches:
            if not 0 <= count <= calls.shape[0] or not 0 <= width <= refs.shape[0]:
                missing()
            size, widest = size + (width + 1) * count, max(widest, width)
        ordered, rows, groups = empty(calls.shape[0], int64), empty(size, int64), []
        cdef Writable order = ordered, out = rows
        size = (calls.shape[0] + 1) * (widest + 2)
        if size > self.work.shape[0]:
            self.work = empty(2 * size, int64)
        for count, width, result in launches:
            if begin + count > calls.shape[0] or begin + count > new.shape[0]:
                missing()
            groups.append(self.grouped(calls, refs, begin, count, width, order, out, at))
            at += width * count
            for i in range(begin, begin + count):
                out[at] = new[i]
                at += 1
                if result:
                    line = self.line(order[i])
                    line[RESULT], line[ROW] = result, new[i]
            begin += count
        return ordered, rows, groups

    cdef tuple grouped(
        self, Integers calls, Integers refs, int64_t begin, int64_t count, int64_t width, Writable order, Writable out,
        int64_t at,
    ):
        """Fill in the calls of a launch by the sources that they read, and from ``at`` on the row of each operand."""
        cdef int64_t i, place, group, groups = 0
        cdef Writable own = self.work[:count], goes = self.work[count : 2 * count + 1], sources = self.work[2 * count + 1 :]
        for i in range(count):
            self.read(calls[begin + i], refs, width, i, count, at, sources, groups * width, out)
            own[i] = group = group_like(sources, groups, width)
            if group == groups:
                groups += 1
                goes[groups] = 0
            goes[group + 1] += 1
        goes[0] = 0
        for group in range(groups):
            goes[group + 1] += goes[group]
        begins = [goes[group] for group in range(groups + 1)]
        found = tuple([sources[i] for i in range(groups * width)])
        for i in range(count):
            place = goes[own[i]]
            goes[own[i]] += 1
            order[begin + place] = calls[begin + i]
            if groups > 1:
                self.read(calls[begin + i], refs, width, place, count, at, sources, 0, out)
        return found, begins

    @cython.final
    cdef inline int read(
        self, int64_t call, Integers refs, int64_t width, int64_t place, int64_t count, int64_t at, Writable sources,
        int64_t to, Writable out,
    ) except -1:
        """Note the sources of a call from `to` on, and their rows: those of the `place`-th of `count` calls."""
        cdef int64_t k, ref, first = self.line(call)[STARTS + AT_REFS]
        cdef int64_t* line
        for k in range(width):
            ref = refs[first + k]
            line = self.line(ref & CALL_MASK)
            sources[to + k] = ref & ~CALL_MASK | line[RESULT]
            out[at + k * count + place] = line[ROW]
        return 0

    @cython.final
    cdef inline int seek(self, int64_t call, int column) except -1:
        """Set `low` and `high`: between them a call has its entries in a column, or its rows of ragged operands."""
        cdef int64_t* at = self.line(call) + STARTS + min(column, AT_RAGGED)
        self.low, self.high = at[0], at[FACTS]
        if column == ROWS and self.low < self.high:
            self.low, self.high = self.member_starts[self.low], self.member_starts[self.high]
        return 0

    cdef tuple entries(self, Integers kept, int column, Integers values, bint are_refs):
        """Return what the calls that are run have in a column, one after the other, and where that of each begins.

        The given ones have nothing. Of references the calls are renumbered.
        """
        cdef int64_t i, j, size = 0, at = 0
        begins = zeros(kept.shape[0] + 1, int64)
        if not values.shape[0]:
            return nothing, begins
        cdef Writable begin = begins
        for i in range(self.given, kept.shape[0]):
            self.seek(kept[i], column)
            size += max(self.high - self.low, 0)
            begin[i + 1] = size
        found = empty(size, int64)
        cdef Writable out = found
        for i in range(self.given, kept.shape[0]):
            self.seek(kept[i], column)
            for j in range(self.low, self.high):
                out[at] = self.number_of(values[j]) if are_refs else values[j]
                at += 1
        return found, begins

    @cython.final
    cdef inline int64_t number_of(self, int64_t ref) except? -1:
        """Return a reference to the number that a call has in this round; loose values stay as they are."""
        if ref < 0:
            return ref
        return ref & ~CALL_MASK | self.line(ref & CALL_MASK)[NUMBER]

    def renumbered(self, Integers refs not None):
        cdef int64_t i
        found = empty(refs.shape[0], int64)
        cdef Writable numbers = found
        for i in range(refs.shape[0]):
            numbers[i] = self.number_of(refs[i])
        return found

    def place(self, Integers given not None, int64_t calls):
        cdef int64_t i, count = given.shape[0]
        cdef int64_t* line
        if calls < count or calls >= <int64_t>1 << 31:
            missing()
        found = zeros((2, max(calls, 1)), int64)
        cdef Table of_call = found
        for i in range(count):
            line = self.line(given[i])
            of_call[0, i], of_call[1, i] = line[RESULT], line[ROW]
        numbers, which, counts = distinct(of_call[0, :count])
        found[0, :count] = which
        of_call[0, count:] = -1
        return numbers, counts, found[0], found[1]


cdef inline int64_t group_like(Writable sources, int64_t groups, int64_t width) except -1:
    """Return which of some groups has the sources of the one after them; that one itself if none has."""
    cdef int64_t group, k
    for group in range(groups):
        for k in range(width):
            if sources[group * width + k] != sources[groups * width + k]:
                break
        else:
            return group
    return groups


cdef tuple few(Integers values):
    """Return the distinct ones of some integers as `distinct` does, however large they are; None if they are many."""
    cdef int64_t i, j, at, found = 0, count = values.shape[0]
    cdef int64_t[FEWEST] known, often
    places = empty(count, int64)
    cdef Writable place = places
    for i in range(count):
        at = 0
        while at < found and known[at] < values[i]:
            at += 1
        if at == found or known[at] != values[i]:
            if found == FEWEST:
                return None
            for j in range(found, at, -1):
                known[j], often[j] = known[j - 1], often[j - 1]
            for j in range(i):
                place[j] += place[j] >= at
            known[at], often[at] = values[i], 0
            found += 1
        place[i] = at
        often[at] += 1
    numbers, counts = empty(found, int64), empty(found, int64)
    for i in range(found):
        numbers[i], counts[i] = known[i], often[i]
    return numbers, places, counts


def distinct(Integers values not None):
    """See `multifold._compiled.reference.rounds.distinct`."""
    cdef int64_t i, low = 0, high = 0, found = 0, count = values.shape[0]
    if count:
        low = high = values[0]
    for i in range(count):
        low, high = min(low, values[i]), max(high, values[i])
    if low < 0 or high - low >= WIDEST or low == high:
        return few(values) or reference.distinct(np.asarray(values))
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


def located(Integers refs not None, Integers launch not None, Integers row not None, list rows not None):
    """See `multifold._compiled.reference.tasks.located`."""
    cdef int64_t i, call, launches = len(rows), count = refs.shape[0]
    cdef bint straight = True
    found = empty((2, count), int64)
    cdef Table of_ref = found
    for i in range(count):
        call = refs[i] & CALL_MASK
        if refs[i] < 0 or call >= launch.shape[0] or call >= row.shape[0] or launch[call] < 0 or launch[call] >= launches:
            missing()
        of_ref[0, i], of_ref[1, i] = (refs[i] >> PART_BITS) * launches + launch[call], row[call]
        straight &= of_ref[0, i] == of_ref[0, 0] and row[call] == i
    if straight and count and rows[of_ref[0, 0] % launches] == count:
        source = of_ref[0, 0] % launches, of_ref[0, 0] // launches, count
        of_ref[0, :] = 0
        return [source], found[0], found[1], True
    keys, which, counts = distinct(of_ref[0, :])
    found[0] = which
    sources = [(key % launches, key // launches, often) for key, often in zip(keys.tolist(), counts.tolist())]
    return sources, found[0], found[1], False


# ---- tasks ---------------------------------------------------------------------------------------------


cdef class Owners:
    """Which example has recorded each call, and how many calls each example under way has."""

    cdef object graph
    cdef readonly int64_t share, total, load
    cdef int64_t size
    cdef Writable owner, counts  # of each call; of each example, -1 for one that has ended

    def __cinit__(self, graph, int64_t share):
        self.graph, self.share, self.owner, self.counts = graph, share, nothing, nothing

    @property
    def of_calls(self):
        return np.asarray(self.owner[: self.size])

    cpdef note(self, int64_t example):
        cdef int64_t call, begin = self.size, size = len(self.graph.signature), before
        if size == begin:
            return
        self.reach(example)
        if size > self.owner.shape[0]:
            self.owner = np.append(self.owner, zeros(size, int64))
        for call in range(begin, size):
            self.owner[call] = example
        self.size, before = size, self.counts[example]
        if before >= 0:
            self.counts[example] += size - begin
            self.total += size - begin
            self.load += min(before + size - begin, self.share) - min(before, self.share)

    def end(self, int64_t example):
        self.reach(example)
        cdef int64_t count = max(self.counts[example], 0)
        self.counts[example] = -1
        self.total -= count
        self.load -= min(count, self.share)
        return count

    cdef int reach(self, int64_t example) except -1:
        """Have an entry for an example."""
        if example >= self.counts.shape[0]:
            self.counts = np.append(self.counts, zeros(example + 64, int64))
        return 0


def run_ready(ready, dict waits not None, type kind not None, graph, context, outside, Owners owners):
    """See `multifold._compiled.reference.tasks.run_ready`."""
    while ready:
        task, method, argument = ready.popleft()
        if task not in waits:
            continue
        error = request = None
        try:
            request = task.context.run(method, argument)
        except Exception as raised:
            error = raised
        if owners is not None:
            owners.note(task.example)
        if error is not None or (outside and context() != outside):
            return task, request, error
        if type(request) is not kind or request.graph is not graph or not request.nodes:
            return task, request, None
        waits[task] = request
    return None


def awaited(list waiting not None, type shared not None):
    """See `multifold._compiled.reference.tasks.awaited`."""
    cdef int64_t at = 0, example, count = 0
    for _, nodes in waiting:
        count += len(nodes)
    found, sizes, whole = empty((2, count), int64), [], []
    cdef Table of_ref = found
    for task, nodes in waiting:
        example = task.example
        sizes.append(len(nodes))
        for node in nodes:
            of_ref[0, at], of_ref[1, at] = node._ref, example
            if isinstance(node, shared):
                whole.append(at)
            at += 1
    return found[0], found[1], sizes, whole
