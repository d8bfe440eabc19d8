# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Rounds of awaited values: the table of all calls, what a round cuts out of it, and where awaited rows are.

`multifold._compiled.reference.rounds` has the same class and functions in NumPy: read it first, it has the
docstrings and an example. Here bounds are checked everywhere.
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

cdef enum:  # what is known of each call
    RESULT, ROW, NUMBER, SEEN, FACTS

cdef object nothing = zeros(0, int64)


cdef class TableBase:
    """The columns of a graph that is being recorded: where each call has its entries, and where its row is."""

    cdef readonly object graph
    cdef Table starts  # where the entries of each call begin in each column
    cdef Table facts
    cdef Writable member_starts  # where the rows of each ragged operand begin
    cdef Writable met  # room for the calls that a selection meets: those that are run, and from the end given ones
    cdef readonly int64_t size, ragged, stamp, pending, given, low, high  # `pending` calls were met last
    cdef readonly tuple selected  # what `window` has returned to the last round
    cdef Integers refs, ints, lengths, members

    def __cinit__(self, graph):
        self.graph, self.size, self.ragged, self.stamp = graph, 0, 0, 0
        self.starts, self.facts = zeros((64, AT_RAGGED + 1), int64), zeros((FACTS, 64), int64)
        self.member_starts, self.met = zeros(64, int64), empty(64, int64)

    def __init__(self, graph):
        """Take what `__cinit__` has taken: Python calls both."""

    def __len__(self):
        return self.size

    @property
    def result(self):
        return np.asarray(self.facts[RESULT, : self.size])

    @property
    def row(self):
        return np.asarray(self.facts[ROW, : self.size])

    def grow(self, Table widths not None):
        cdef Integers signature = self.graph.signature, lengths
        cdef int64_t call, i, column, calls = signature.shape[0], room = self.facts.shape[1]
        if calls <= self.size:
            return
        if widths.shape[1] != AT_RAGGED + 1:
            missing()
        if calls + 1 > room:
            facts, starts, room = self.facts, self.starts, max(calls + 1, 2 * room)
            self.facts, self.starts = zeros((FACTS, room), int64), zeros((room, AT_RAGGED + 1), int64)
            self.facts[:, : facts.shape[1]] = facts
            self.starts[: starts.shape[0]] = starts
        for call in range(self.size, calls):
            for column in range(AT_RAGGED + 1):
                self.starts[call + 1, column] = self.starts[call, column] + widths[signature[call], column]
        self.size = calls
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
        if calls.shape[0] != row.shape[0]:
            missing()
        for i in range(calls.shape[0]):
            self.refuse(calls[i])
            self.facts[RESULT, calls[i]], self.facts[ROW, calls[i]] = result, row[i]

    cdef int refuse(self, int64_t call) except -1:
        """Refuse a call that the table does not have."""
        if call < 0 or call >= self.size:
            missing()
        return 0

    def at(self, int64_t column, Integers calls not None):
        cdef int64_t i, j, size = 0, place = 0
        if column < 0 or column > AT_RAGGED:
            missing()
        for i in range(calls.shape[0]):
            self.refuse(calls[i])
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

    # ---- what a round runs and reads -------------------------------------------------------------------

    cdef int meet_all(self, Integers awaited) except -1:
        """Meet the calls that some calls need, as far as they have not run, and the given ones that these read."""
        cdef int64_t i, at = 0
        self.refs, self.ints = self.graph.refs, self.graph.ints
        self.lengths, self.members = self.graph.lengths, self.graph.members
        self.stamp += 1
        self.pending = self.given = 0
        if self.met.shape[0] < self.size:
            self.met = empty(self.facts.shape[1], int64)
        for i in range(awaited.shape[0]):
            self.meet(awaited[i])
        while at < self.pending:  # grows while it is walked
            self.meet_sources(self.met[at])
            at += 1
        np.asarray(self.met[: self.pending]).sort()  # so sources come before those that read them
        return 0

    def window(self, Integers awaited not None, int64_t signatures):
        cdef int64_t i, first, count
        cdef Integers signature = self.graph.signature
        cdef Writable kept_calls, numbers
        try:
            self.meet_all(awaited)
            first, count = self.given, self.given + self.pending
            found = empty((2, count), int64)
            kept_calls, numbers = found[0], found[1]
            kept_calls[:first], kept_calls[first:] = self.met[self.met.shape[0] - first :], self.met[: self.pending]
            kept = found[0]
            kept[:first].sort()
            for i in range(count):
                self.facts[NUMBER, kept_calls[i]] = i
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

    def frontier(self, Integers awaited not None, Integers rank not None, int64_t rounds=1):
        cdef int64_t i, call, own, ranks = rank.shape[0]
        cdef Integers signature = self.graph.signature
        cdef Writable begins = zeros(ranks * rounds + 1, int64), goes, calls
        try:
            self.meet_all(awaited)
            for i in range(self.pending):
                call = self.met[i]
                own = rank[signature[call]]
                if not 0 <= own < ranks:
                    missing()
                self.facts[NUMBER, call] = self.round_of(call, own, rank, signature)
                if self.facts[NUMBER, call] <= rounds:
                    begins[(self.facts[NUMBER, call] - 1) * ranks + own + 1] += 1
            for i in range(ranks * rounds):
                begins[i + 1] += begins[i]
            goes, calls = begins.copy(), empty(begins[ranks * rounds], int64)
            for i in range(self.pending):
                call = self.met[i]
                if self.facts[NUMBER, call] <= rounds:
                    own = (self.facts[NUMBER, call] - 1) * ranks + rank[signature[call]]
                    calls[goes[own]] = call
                    goes[own] += 1
            return np.asarray(calls), np.asarray(begins)
        except IndexError:
            missing()
        finally:
            self.refs = self.ints = self.lengths = self.members = None

    def round(
        self, Table widths not None, Integers awaited not None, Integers asked not None, Integers groups not None, store,
        last, int64_t most, tuple described not None, tuple wants not None,
    ):
        self.grow(widths)
        self.selected = self.window(awaited, len(described[0]) // 2)
        kept, first, signature, refs, ref_starts, _, _, lengths, ragged_starts, members = self.selected
        given, count, planned, placed = kept[:first], len(kept), None, None
        numbers, counts, launch, row = self.place(given, count)
        if first and store.settle(numbers, counts, given, last):
            numbers, _, launch, row = self.place(given, count)
        rows = store.rows(numbers)
        if count <= most:
            begins = zeros(len(lengths) + 1, int64)
            lengths.cumsum(out=begins[1:])
            placed = launch.copy(), row.copy(), rows.copy()
            planned = plan(
                np.arange(first, count), refs, ref_starts, members, begins, ragged_starts, self.renumbered(asked),
                groups, signature, *described, *placed, *wants)
        return numbers, launch, row, rows, placed, planned

    cdef int64_t round_of(self, int64_t call, int64_t own, Integers rank, Integers signature) except -1:
        """Return in which round a call runs, from 1 on: as early as all calls that it reads allow."""
        cdef int64_t i, found = 1
        self.seek(call, AT_REFS)
        for i in range(self.low, self.high):
            found = max(found, self.round_after(self.refs[i] & CALL_MASK, own, rank, signature))
        self.seek(call, ROWS)
        for i in range(self.low, self.high):
            if self.members[i] >= 0:
                found = max(found, self.round_after(self.members[i] & CALL_MASK, own, rank, signature))
        return found

    cdef int64_t round_after(self, int64_t call, int64_t own, Integers rank, Integers signature) except -1:
        """Return in which round a launch of a rank can read a call: the call's own if that comes before it."""
        if self.facts[RESULT, call] > 0:
            return 1
        return self.facts[NUMBER, call] + (rank[signature[call]] >= own)

    def rows_of(self, Integers refs not None):
        cdef int64_t i, call
        found = empty((2, refs.shape[0]), int64)
        cdef Table of_ref = found
        for i in range(refs.shape[0]):
            call = refs[i] & CALL_MASK
            self.refuse(call)
            of_ref[0, i], of_ref[1, i] = refs[i] & ~CALL_MASK | self.facts[RESULT, call], self.facts[ROW, call]
        sources, which, _ = distinct(of_ref[0, :])
        return sources, which, found[1]

    def arrived(self, list waiting not None):
        cdef int64_t ref, call, size = 0, first, at = 0
        for _, nodes in waiting:
            size += len(nodes)
        found, there = empty((2, size), int64), []
        cdef Table of_ref = found
        for one in waiting:
            first = at
            for node in one[1]:
                ref = node._ref
                call = ref & CALL_MASK
                self.refuse(call)
                if self.facts[RESULT, call] <= 0:
                    at = first
                    break
                of_ref[0, at], of_ref[1, at] = ref & ~CALL_MASK | self.facts[RESULT, call], self.facts[ROW, call]
                at += 1
            else:
                there.append(one)
        sources, which, _ = distinct(of_ref[0, :at])
        return there, sources, which, found[1, :at]

    def launch_rows(self, Integers calls not None, list launches not None, Integers new not None):
        cdef int64_t begin = 0, at = 0, end, i, count, width, result, size = 0
        for count, width, _ in launches:
            if not 0 <= count <= calls.shape[0] or not 0 <= width <= len(self.graph.refs):
                missing()
            size += (width + 1) * count
        ordered, rows, groups = empty(calls.shape[0], int64), empty(size, int64), []
        cdef Writable order = ordered, out = rows
        for count, width, result in launches:
            end = begin + count
            if end > calls.shape[0] or end > new.shape[0]:
                missing()
            groups.append(self.grouped(calls[begin:end], width, order[begin:end], out[at : at + width * count]))
            at += width * count
            for i in range(begin, end):
                out[at + i - begin] = new[i]
                if result:
                    self.facts[RESULT, order[i]], self.facts[ROW, order[i]] = result, new[i]
            at, begin = at + count, end
        return ordered, rows, groups

    cdef tuple grouped(self, Integers calls, int64_t width, Writable order, Writable out):
        """Fill in the calls of a launch by the sources that they read, and the row of each operand."""
        cdef int64_t i, k, ref, group, groups = 0, count = calls.shape[0]
        cdef Integers refs = self.graph.refs
        all_sources, all_begins = empty((count + 1, width), int64), zeros(count + 1, int64)
        cdef Table sources = all_sources
        cdef Writable begins = all_begins, own = empty(count, int64), goes
        for i in range(count):
            self.refuse(calls[i])
            for k in range(width):
                ref = refs[self.starts[calls[i], AT_REFS] + k]
                self.refuse(ref & CALL_MASK)
                sources[groups, k] = ref & ~CALL_MASK | self.facts[RESULT, ref & CALL_MASK]
            own[i] = group = self.group_like(sources, groups, width)
            groups += group == groups
            begins[group + 1] += 1
        for group in range(groups):
            begins[group + 1] += begins[group]
        goes = begins.copy()
        for i in range(count):
            order[goes[own[i]]] = calls[i]
            for k in range(width):
                out[k * count + goes[own[i]]] = self.facts[ROW, refs[self.starts[calls[i], AT_REFS] + k] & CALL_MASK]
            goes[own[i]] += 1
        return all_sources[:groups], all_begins[: groups + 1]

    cdef int64_t group_like(self, Table sources, int64_t groups, int64_t width) except -1:
        """Return which of some groups has the sources of the one after them; that one itself if none has."""
        cdef int64_t group, k
        for group in range(groups):
            for k in range(width):
                if sources[group, k] != sources[groups, k]:
                    break
            else:
                return group
        return groups

    cdef int meet(self, int64_t call) except -1:
        """Note a call that is met for the first time in this round, as one to be run or as a given one."""
        self.refuse(call)
        if self.facts[SEEN, call] == self.stamp:
            return 0
        self.facts[SEEN, call] = self.stamp
        if self.facts[RESULT, call] > 0:
            self.given += 1
            self.met[self.met.shape[0] - self.given] = call
        else:
            self.met[self.pending] = call
            self.pending += 1
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

    cdef int64_t number_of(self, int64_t ref) except? -1:
        """Return a reference to the number that a call has in this round; loose values stay as they are."""
        if ref < 0:
            return ref
        self.refuse(ref & CALL_MASK)
        return ref & ~CALL_MASK | self.facts[NUMBER, ref & CALL_MASK]

    def renumbered(self, Integers refs not None):
        cdef int64_t i
        found = empty(refs.shape[0], int64)
        cdef Writable numbers = found
        for i in range(refs.shape[0]):
            numbers[i] = self.number_of(refs[i])
        return found

    def place(self, Integers given not None, int64_t calls):
        cdef int64_t i, count = given.shape[0]
        if calls < count or calls >= <int64_t>1 << 31:
            missing()
        found = zeros((2, max(calls, 1)), int64)
        cdef Table of_call = found
        for i in range(count):
            self.refuse(given[i])
            of_call[0, i], of_call[1, i] = self.facts[RESULT, given[i]], self.facts[ROW, given[i]]
        numbers, which, counts = distinct(of_call[0, :count])
        found[0, :count] = which
        of_call[0, count:] = -1
        return numbers, counts, found[0], found[1]


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
    found, whole = empty((2, count), int64), []
    cdef Table of_ref = found
    for task, nodes in waiting:
        example = task.example
        for node in nodes:
            of_ref[0, at], of_ref[1, at] = node._ref, example
            if isinstance(node, shared):
                whole.append(at)
            at += 1
    return found[0], found[1], whole
