# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False, cdivision=True
"""Wiring over columns of int64: the order of the rows of each launch, and the sections that operands read.

Bounds are checked wherever this file does not say otherwise. `multifold._compiled.reference.rows` has the
same functions in NumPy, and says what they do.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from multifold._compiled._columns cimport CALL_MASK, PART_BITS, Integers, Table, Writable, missing

from time import perf_counter as _now

import numpy as np

from multifold._compiled._calls import ancestors, schedule

cdef object empty = np.empty, zeros = np.zeros, int64 = np.int64

cdef enum:
    IS_GATHERED, IS_SLICE, IS_WHOLE
    FEW = 24  # rows that are sorted by insertion: below it a radix sort takes longer


@cython.boundscheck(False)  # more pairs than there is room for are refused first
cdef int sort_pairs(Table pairs, int64_t count) except -1:
    """Sort the first pairs of (key, value) by key, stably; rows 2 and 3 of `pairs` are room to sort in."""
    if count < 0 or pairs.shape[0] < 4 or count > pairs.shape[1]:
        missing()
    cdef int64_t* keys = &pairs[0, 0]
    cdef int64_t* values = &pairs[1, 0]
    cdef int64_t* other_keys = &pairs[2, 0]
    cdef int64_t* other_values = &pairs[3, 0]
    cdef int64_t i, j, key, value, at, shift = 0
    cdef uint64_t differing = 0, digit
    cdef int64_t[257] begin
    if count <= FEW:
        for i in range(1, count):
            key, value, j = keys[i], values[i], i
            while j > 0 and keys[j - 1] > key:
                keys[j], values[j] = keys[j - 1], values[j - 1]
                j -= 1
            keys[j], values[j] = key, value
        return 0
    for i in range(1, count):
        differing |= <uint64_t>(keys[i] ^ keys[0])
    while shift < 64 and differing >> shift:  # by digits of 8 bits, of those that differ (keys are not negative)
        if differing >> shift & 255:
            for i in range(257):
                begin[i] = 0
            for i in range(count):
                begin[(<uint64_t>keys[i] >> shift & 255) + 1] += 1
            for i in range(256):
                begin[i + 1] += begin[i]
            for i in range(count):
                digit = <uint64_t>keys[i] >> shift & 255
                at = begin[digit]
                begin[digit] += 1
                other_keys[at], other_values[at] = keys[i], values[i]
            keys, other_keys = other_keys, keys
            values, other_values = other_values, values
        shift += 8
    if keys != &pairs[0, 0]:
        for i in range(count):
            other_keys[i], other_values[i] = keys[i], values[i]
    return 0


# ---- the order of rows ---------------------------------------------------------------------------------


@cython.final
cdef class Order:
    """The state of `order`: its columns, and what is known of the launches that were ordered so far."""

    cdef Integers bounds
    cdef Writable layout, layout_starts, batched, numbers  # of each launch; its signature is the last one
    cdef Integers refs, ref_starts, members, member_starts, ragged_starts
    cdef Writable launch, row, calls, sizes, by_source
    cdef Writable reads  # all that is read; what is known begins at `position`
    cdef Writable first_read  # of each call
    cdef Writable parts_read  # how many parts of each launch are read
    cdef Writable stamp  # the launch that looked at each launch last
    cdef Writable sources  # room for the launches that the operands of one launch are read from
    cdef Table pairs  # room to sort the rows of one launch
    cdef unsigned char[:, ::1] seen
    cdef int64_t before, launches, parts, position

    cdef int look_up(self, Integers signature, Integers layouts, Integers layout_starts, Integers batched) except -1:
        """Find the signature of each launch, its operands, and whether it has rows."""
        cdef int64_t index, number, i, at = 0, size = 0, count = self.bounds.shape[0] - 1
        if count < 0 or layout_starts.shape[0] != batched.shape[0] + 1:
            missing()
        cdef Writable room = empty(3 * count + 1, int64)
        self.numbers, self.batched, self.layout_starts = room[:count], room[count : 2 * count], room[2 * count :]
        for index in range(count):
            number = signature[self.calls[self.bounds[index]]]
            self.numbers[index], self.batched[index] = number, batched[number]
            if layout_starts[number] > layout_starts[number + 1]:
                missing()
            self.layout_starts[index] = size
            size += layout_starts[number + 1] - layout_starts[number]
        self.layout_starts[count] = size
        self.layout = empty(size, int64)
        for index in range(count):
            number = self.numbers[index]
            for i in range(layout_starts[number], layout_starts[number + 1]):
                self.layout[at] = layouts[i]
                at += 1
        return 0

    cdef int prepare(self) except -1:
        """Check the bounds of all launches, say in which launch each call is, and make room."""
        cdef int64_t index, i, rows, operands, longest = 0, most = 0, count = self.bounds.shape[0] - 1
        if self.before < 0 or self.parts < 0 or self.row.shape[0] != self.launch.shape[0]:
            missing()
        if self.bounds[0] < 0 or self.bounds[count] > self.calls.shape[0]:
            missing()
        self.launches = self.before + count
        for index in range(count):
            rows = self.bounds[index + 1] - self.bounds[index]
            operands = self.layout_starts[index + 1] - self.layout_starts[index]
            if rows < 0:
                missing()
            longest, most = max(longest, rows), max(most, rows * operands)
            for i in range(self.bounds[index], self.bounds[index + 1]):
                if self.calls[i] >= self.ref_starts.shape[0] - 1:
                    missing()
                self.launch[self.calls[i]] = self.before + index
        for i in range(self.layout.shape[0]):
            if self.layout[i] >= <int64_t>1 << 31 or self.layout[i] < -(<int64_t>1 << 31):
                missing()
        # Few allocations, in slices: each array that NumPy makes takes half a microsecond, small ones as well.
        cdef Writable noted = zeros(count + self.launches, int64), room = empty(self.launch.shape[0] + most, int64)
        self.parts_read, self.stamp = noted[:count], noted[count:]
        self.first_read, self.sources = room[: self.launch.shape[0]], room[self.launch.shape[0] :]
        self.seen = zeros((count, max(self.parts, 1)), np.uint8)
        self.pairs = empty((4, longest), int64)
        return 0

    cdef int64_t count_reads(self, int64_t index) except -1:
        """Write how many rows each operand of a launch has; return their sum."""
        cdef int64_t slot, i, at, size, total = 0, low = self.bounds[index], high = self.bounds[index + 1]
        for slot in range(self.layout_starts[index], self.layout_starts[index + 1]):
            size = high - low
            if self.layout[slot] < 0:
                size = 0
                for i in range(low, high):
                    at = self.ragged_starts[self.calls[i]] - 1 - self.layout[slot]
                    if not 0 <= self.member_starts[at] <= self.member_starts[at + 1] <= self.members.shape[0]:
                        missing()
                    size += self.member_starts[at + 1] - self.member_starts[at]
            self.sizes[slot] = size
            total += size
        return total

    # `prepare` found that all calls are there, and `count_reads` how much they read, which the loops below rely
    # on. Each reference is checked on its own.
    @cython.boundscheck(False)
    cdef int note_reads(self, int64_t count, int64_t launches) except -1:
        """Note who reads the first `count` reads that are known: in reverse order, so that the first read wins.

        They are read by launch ``launches``, which comes after all that it reads.
        """
        cdef int64_t i, own, call, part
        cdef Integers launch = self.launch
        cdef Writable reads = self.reads, first_read = self.first_read
        for i in range(self.position + count - 1, self.position - 1, -1):
            if reads[i] < 0:  # a loose value
                continue
            call, part = reads[i] & CALL_MASK, reads[i] >> PART_BITS
            if call >= launch.shape[0] or part >= self.parts:
                missing()
            own = launch[call]
            if own < 0 or own >= launches:
                missing()
            first_read[call] = i
            own -= self.before
            if own >= 0 and not self.seen[own, part]:
                self.seen[own, part] = 1
                self.parts_read[own] += 1
        return 0

    @cython.boundscheck(False)
    cdef int write_reads(self, int64_t index) except -1:
        """Write what a launch reads before what is known, and note who reads it."""
        cdef int64_t slot, i, j, position, at, total = 0
        cdef Integers refs = self.refs, ref_starts = self.ref_starts
        cdef Writable reads = self.reads, calls = self.calls
        for slot in range(self.layout_starts[index], self.layout_starts[index + 1]):
            total += self.sizes[slot]
        self.position -= total
        at = self.position
        for slot in range(self.layout_starts[index], self.layout_starts[index + 1]):
            position = self.layout[slot]
            if position >= 0:
                for i in range(self.bounds[index], self.bounds[index + 1]):
                    j = ref_starts[calls[i]] + position
                    if <uint64_t>j >= <uint64_t>refs.shape[0]:
                        missing()
                    reads[at] = refs[j]
                    at += 1
                continue
            for i in range(self.bounds[index], self.bounds[index + 1]):
                j = self.ragged_starts[calls[i]] - 1 - position
                for j in range(self.member_starts[j], self.member_starts[j + 1]):
                    reads[at] = self.members[j]
                    at += 1
        return self.note_reads(total, self.before + index)

    cdef int64_t columns_of_sources(self, int64_t index, int64_t count) except -1:
        """Put the launches that operands are read from side by side; return how many columns there are.

        Left out: an operand that is read from one launch, and one that repeats the operand before. 0 where no
        more operands are read from several launches than the launch has parts that are read.
        """
        cdef int64_t slot, i, source, position, at, mixed = 0, kept = 0, begin = self.bounds[index]
        cdef bint is_mixed, is_new
        cdef Integers refs = self.refs, ref_starts = self.ref_starts
        cdef Writable sources = self.sources, launch = self.launch, calls = self.calls
        cdef int64_t low = self.layout_starts[index], high = self.layout_starts[index + 1]
        if high - low <= self.parts_read[index]:
            return 0
        for slot in range(low, high):
            is_mixed, is_new, position, at = False, not kept, self.layout[slot], kept * count
            if position < 0:
                return 0
            for i in range(count):
                source = launch[refs[ref_starts[calls[begin + i]] + position] & CALL_MASK]
                if source < 0 or source >= self.launches:
                    missing()
                sources[at + i] = source
                is_mixed |= source != sources[at]
                is_new |= at > 0 and source != sources[at - count + i]
            mixed += is_mixed
            kept += is_mixed and is_new
        return kept if mixed > self.parts_read[index] else 0

    cdef int64_t key_by_source(self, int64_t index, int64_t count) except -1:
        """Give each row of a launch the launches that it reads from as its key; return how many those are.

        0 where the order of the readers is the better one. ``pairs[1]`` holds the calls.
        """
        cdef int64_t i, column, low = self.launches, high = -1, distinct = 0, room = <int64_t>1 << 62
        cdef int64_t columns = self.columns_of_sources(index, count)
        cdef Writable sources = self.sources, stamp = self.stamp
        for i in range(columns * count):
            low, high = min(low, sources[i]), max(high, sources[i])
            distinct += stamp[sources[i]] != index + 1
            stamp[sources[i]] = index + 1
        for column in range(columns):
            room //= high - low + 1
        if not columns or not room:
            return 0
        for i in range(count):
            self.pairs[0, i] = 0
            for column in range(columns):
                self.pairs[0, i] = self.pairs[0, i] * (high - low + 1) + sources[column * count + i] - low
        return distinct

    @cython.boundscheck(False)
    cdef int order_launch(self, int64_t index) except -1:
        """Put the rows of a launch into their order."""
        cdef int64_t i, stretches = 1, begin = self.bounds[index], count = self.bounds[index + 1] - begin
        cdef Table pairs = self.pairs
        cdef Writable calls = self.calls
        for i in range(count):
            pairs[0, i] = self.first_read[calls[begin + i]]
            pairs[1, i] = calls[begin + i]
        sort_pairs(pairs, count)
        for i in range(count):
            calls[begin + i] = pairs[1, i]
        cdef int64_t distinct = self.key_by_source(index, count)
        if distinct:
            sort_pairs(pairs, count)
            for i in range(1, count):
                stretches += pairs[0, i] != pairs[0, i - 1]
            if stretches <= 4 * distinct:  # else the stretches are too short to be worth it
                for i in range(count):
                    calls[begin + i] = pairs[1, i]
                for i in range(self.layout_starts[index], self.layout_starts[index + 1]):
                    self.by_source[i] = 1
        for i in range(count):
            self.row[calls[begin + i]] = i
        return 0

    cdef int run(self, Integers asked, Integers groups) except -1:
        """Order the rows of all launches, and write all that is read."""
        cdef int64_t index, total = asked.shape[0], operands = self.layout.shape[0]
        cdef Table of_operands = zeros((2, operands + groups.shape[0]), int64)
        self.sizes, self.by_source = of_operands[0], of_operands[1]
        self.sizes[operands:] = groups
        self.prepare()
        for index in range(self.bounds.shape[0] - 1):
            total += self.count_reads(index)
        self.reads, self.position = empty(total, int64), total - asked.shape[0]
        self.reads[self.position :] = asked
        self.first_read[:] = total  # what is read by none comes last
        self.note_reads(asked.shape[0], self.launches)
        for index in range(self.bounds.shape[0] - 2, -1, -1):
            if self.batched[index]:
                self.order_launch(index)
            self.write_reads(index)
        return 0

    cdef list take_heights(self, list rows):
        """Append the rows of each launch to those of the launches before; return these of all launches."""
        cdef int64_t index
        for index in range(self.bounds.shape[0] - 1):
            rows.append(self.bounds[index + 1] - self.bounds[index] if self.batched[index] else 1)
        return rows


# ---- sections ------------------------------------------------------------------------------------------


@cython.final
cdef class Sections:
    """What operands read of results; `multifold._compiled.reference.rows.group` says what the columns are."""

    cdef Table columns  # result, owner, begin, size, first, how, by_operand
    cdef Writable rows, position, moved, heights
    cdef int64_t end  # of what is written to the index arrays

    cdef int group(self, Order it, list rows) except -1:
        """Group what is read into sections; `rows` are those of all launches."""
        cdef int64_t i, j, count = it.reads.shape[0], operands = it.sizes.shape[0], found, longest = 0, end = 0
        cdef int64_t most = <int64_t>1 << 31, parts = it.parts
        cdef Writable heights = empty(len(rows), int64)
        for i in range(heights.shape[0]):
            heights[i] = rows[i]
            longest = max(longest, heights[i])
        self.heights = heights
        if count >= most or parts >= most or heights.shape[0] >= most or heights.shape[0] * parts >= most:
            missing()
        # Integers of 32 bits serve all of these; they take half of the time that 64 bits do.
        cdef int[:, ::1] room = empty((5, count), np.int32)
        cdef int[::1] result = room[0], at = room[1], operand = room[2], order = room[3], section = room[4]
        cdef Writable begins = zeros(heights.shape[0] * parts + 2 + longest, int64)
        cdef Writable taken = begins[heights.shape[0] * parts + 2 :]
        begins = begins[: heights.shape[0] * parts + 2]
        for i in range(operands):
            if it.sizes[i] < 0 or it.sizes[i] > count - end:
                missing()
            for j in range(end, end + it.sizes[i]):
                operand[j] = <int>i
            end += it.sizes[i]
        if end != count:
            missing()
        locate(it.reads, it.launch, it.row, heights, parts, result, at, begins)
        cdef Table columns = empty((2, count), int64)
        self.rows, self.position, self.moved = columns[0], columns[1], zeros(operands, int64)
        found = open_sections(result, at, operand, it.by_source, begins, order, section, self.rows)
        self.columns = empty((7, found), int64)
        fill_sections(result, operand, order, section, self.columns, self.position, self.moved)
        sort_sections(order, self.rows, self.columns, self.position, self.moved)
        choose(self.columns, heights, parts, taken)
        self.copy(it)
        return 0

    cdef int copy(self, Order it) except -1:
        """Let sections that are all of a part be gathered where they must not be one array; see the reference."""
        cdef int64_t s, number, own, met = -1
        cdef Integers result = self.columns[0], owner = self.columns[1]
        cdef Writable how = self.columns[5]
        for s in range(how.shape[0]):
            if how[s] != IS_WHOLE:
                continue
            own = result[s] // it.parts
            solo = self.heights[own] == 1 and (own < it.before or not it.batched[own - it.before])
            if not solo and owner[s] < it.layout.shape[0]:
                continue
            if result[s] == met:
                how[s] = IS_GATHERED
            met = result[s]
        return 0

    cdef object room_for_indices(self, Order it):
        """Return room for all index arrays."""
        cdef int64_t i, size = 0
        for i in range(self.moved.shape[0]):
            size += it.sizes[i] if self.moved[i] else 0
        for i in range(self.columns.shape[1]):
            if self.columns[5, i] == IS_GATHERED and self.columns[0, i] < self.heights.shape[0] * it.parts:
                size += self.columns[3, i]
        return empty(size, int64)

    cdef list operands(self, Order it, make, room, list indices):
        """Return the operands; write what permutes some of them."""
        cdef int64_t own, i, at = 0, begin = 0, end = 0, count = self.columns.shape[1]
        cdef Integers owner = self.columns[1], by_operand = self.columns[6]
        cdef Writable rows = room
        found = []
        for own in range(self.moved.shape[0]):
            sections, permute = [], None
            while at < count and owner[by_operand[at]] == own:
                sections.append(by_operand[at])
                at += 1
            if self.moved[own]:  # rows lie so that few operands are left to permute
                permute = len(indices)
                indices.append(room[end : end + it.sizes[own]])
                for i in range(begin, begin + it.sizes[own]):
                    rows[end] = self.position[i] - begin
                    end += 1
            begin += it.sizes[own]
            found.append(make((it.sizes[own], tuple(sections), permute)))
        self.end = end
        return found

    cdef tuple readings(self, int64_t parts, make, room, list indices):
        """Return what each section is read from, how results are read, and loose values; write what gathers."""
        cdef int64_t i, own, height, low = 0, high, end, count = self.columns.shape[1]
        cdef Integers result = self.columns[0], begin = self.columns[2], size = self.columns[3], how = self.columns[5]
        cdef Table pairs = empty((4, count), int64)
        cdef Writable rows = room
        sources, found, loose = [], {}, {}
        while low < count and result[low] < self.heights.shape[0] * parts:
            own, high, end = result[low], low, self.end
            source, height = (own // parts, own % parts), self.heights[own // parts]
            while high < count and result[high] == own:
                if how[high] == IS_GATHERED:
                    for i in range(begin[high], begin[high] + size[high]):
                        rows[self.end] = self.rows[i]
                        self.end += 1
                sources.append(source)
                high += 1
            gather = None
            if self.end > end:
                gather = len(indices)
                indices.append(room[end : self.end])
            columns = reading(low, high, height, size, self.columns[4], how, pairs)
            found.setdefault(source[0], []).append(make((source[1], *columns, gather)))
            low = high
        for low in range(low, count):  # of loose values, which are in no result
            sources.append((-1, 0))
            loose[low] = np.asarray(self.rows[begin[low] : begin[low] + size[low]]).tolist()
        return sources, found, loose

    cdef Writable last_reads(self, Order it):
        """Return which launch reads each result last; outputs are read after all of them."""
        cdef int64_t s, own, index = 0, count = it.bounds.shape[0] - 1
        cdef Integers result = self.columns[0], owner = self.columns[1], by_operand = self.columns[6]
        cdef Writable last = empty(self.heights.shape[0], int64)
        last[:] = -1
        for s in range(by_operand.shape[0]):  # by operand, and these by launch
            own = owner[by_operand[s]]
            while index < count and own >= it.layout_starts[index + 1]:
                index += 1
            if result[by_operand[s]] < last.shape[0] * it.parts:
                last[result[by_operand[s]] // it.parts] = index
        return last

    cdef tuple wired(self, Order it, Integers others, bint keeps, tuple makers, slots_of):
        """Return all that `wire` returns."""
        cdef int64_t index, i, count = it.bounds.shape[0] - 1
        room, indices, calls = self.room_for_indices(it), [], np.asarray(it.calls)
        operands = self.operands(it, makers[0], room, indices)
        sources, readings, loose = self.readings(it.parts, makers[1], room, indices)
        cdef Writable last = self.last_reads(it)
        known, ended, launches = [], {}, []
        for index in range(count):
            number, mine = it.numbers[index], calls[it.bounds[index] : it.bounds[index + 1]]
            slots = own = operands[it.layout_starts[index] : it.layout_starts[index + 1]]
            if others[number]:
                slots, whole = slots_of(number, mine, own, np.asarray(it.launch))
                for i in whole:
                    if i >= it.before + index:
                        missing()
                    last[i] = max(last[i], index)
            known.append((number, mine, slots, own))
        if not keeps:
            for i in range(last.shape[0]):
                ended.setdefault(last[i], []).append(i)
        for index in range(count):
            i = it.before + index
            launches.append(makers[2]((i, *known[index], readings.pop(i, ()), ended.get(index, ()))))
        return launches, operands[it.layout.shape[0] :], readings, sources, loose, indices


@cython.boundscheck(False)  # all columns of reads are of one length; calls, parts and launches are checked here
cdef int locate(
    Integers reads, Integers launch, Integers row, Integers heights, int64_t parts, int[::1] result, int[::1] at,
    Writable begins,
) except -1:
    """Write the part of a result that each read is of, and its row there; count the reads of each."""
    cdef int64_t i, own, call, part, place, loose = heights.shape[0] * parts
    for i in range(reads.shape[0]):
        own, place = loose, -1 - reads[i]  # the row of a loose value is its place among them
        if reads[i] >= 0:
            call, part = reads[i] & CALL_MASK, reads[i] >> PART_BITS
            if call >= launch.shape[0] or part >= parts:
                missing()
            own, place = launch[call], row[call]
            if own < 0 or own >= heights.shape[0] or place < 0 or place >= heights[own]:
                missing()
            own = own * parts + part
        if place >= <int64_t>1 << 31:
            missing()
        result[i], at[i] = <int>own, <int>place
        begins[own + 1] += 1
    return 0


@cython.boundscheck(False)  # `order` is a permutation of the reads, by the counts that `locate` made
cdef int64_t open_sections(
    const int[::1] result, const int[::1] at, const int[::1] operand, Integers by_source, Writable begins,
    int[::1] order, int[::1] section, Writable rows,
) noexcept:
    """Order the reads by result and mark those that a section begins with; return how many sections there are."""
    cdef int64_t i, found = 0, count = order.shape[0]
    cdef int read, last = -1
    for i in range(begins.shape[0] - 1):
        begins[i + 1] += begins[i]
    for i in range(count):
        order[begins[result[i]]] = <int>i
        begins[result[i]] += 1
    for i in range(count):
        read = order[i]
        rows[i] = at[read]
        section[read] = last < 0 or result[read] != result[last] or operand[read] != operand[last]
        if not section[read] and by_source[operand[read]]:
            section[read] = read != last + 1
        found += section[read]
        last = read
    return found


@cython.boundscheck(False)  # there are as many sections as `open_sections` marked, and they divide the reads
cdef void fill_sections(
    const int[::1] result, const int[::1] operand, const int[::1] order, int[::1] section, Table columns,
    Writable position, Writable moved,
) noexcept:
    """Fill in the columns of `Sections`, but for ``first`` and ``how``."""
    cdef int64_t i, j, s = -1, found = 0, offset = 0
    cdef Writable begin = columns[2], size = columns[3]
    cdef int read
    for i in range(order.shape[0]):
        read = order[i]
        if section[read]:
            s += 1
            columns[0, s], columns[1, s], begin[s], size[s] = result[read], operand[read], i, 1
            section[read] = <int>(s + 1)
        else:
            size[s] += 1
    # The sections of an operand are concatenated by their first reads, so that rows in stretches stay put.
    for i in range(section.shape[0]):
        if not section[i]:
            continue
        s = section[i] - 1
        columns[6, found] = s
        found += 1
        for j in range(begin[s], begin[s] + size[s]):
            position[order[j]] = offset
            moved[columns[1, s]] |= offset != order[j]
            offset += 1


cdef int sort_sections(int[::1] order, Writable rows, Table columns, Writable position, Integers moved) except -1:
    """Let operands that are permuted anyway take rows as they lie; fill in ``first``, and ``how`` as whether rows follow."""
    cdef int64_t s, i, begin, end, place
    cdef Table pairs = empty((4, order.shape[0]), int64)
    for s in range(columns.shape[1]):
        begin, end = columns[2, s], columns[2, s] + columns[3, s]
        if moved[columns[1, s]]:
            place = position[order[begin]] - begin
            for i in range(begin, end):
                pairs[0, i - begin], pairs[1, i - begin] = rows[i], order[i]
            sort_pairs(pairs, end - begin)
            for i in range(begin, end):
                rows[i], order[i] = pairs[0, i - begin], <int>pairs[1, i - begin]
                position[order[i]] = place + i
        columns[4, s], columns[5, s] = rows[begin], 1
        for i in range(begin + 1, end):
            columns[5, s] &= rows[i] == rows[i - 1] + 1
    return 0


cdef int choose(Table columns, Integers heights, int64_t parts, Writable taken) except -1:
    """Say how each section is read: of ranges that overlap the first one is the slice.

    `taken` holds for each row of a result 1 + the result that was sliced there last.
    """
    cdef int64_t s, row, end, solid, own
    cdef Writable result = columns[0], size = columns[3], first = columns[4], how = columns[5]
    for s in range(columns.shape[1]):
        own, row, end, solid = result[s], first[s], first[s] + size[s], how[s]
        how[s] = IS_GATHERED
        if not solid or own == heights.shape[0] * parts:
            continue
        if size[s] == heights[own // parts]:
            how[s] = IS_WHOLE
            continue
        while row < end and taken[row] != own + 1:
            row += 1
        if row == end:
            how[s] = IS_SLICE
            for row in range(first[s], end):
                taken[row] = own + 1
    return 0


# ---- how results are read ------------------------------------------------------------------------------


cdef tuple reading(int64_t low, int64_t high, int64_t height, Integers size, Integers first, Integers how, Table pairs):
    """Return how the sections ``low`` .. ``high`` of one part of a result are read."""
    cdef int64_t s, i, end = 0, slices = 0
    whole, sizes, numbers, gathered_sizes, gathered = [], [], [], [], []
    for s in range(low, high):
        if how[s] == IS_WHOLE:
            whole.append(s)
        elif how[s] == IS_SLICE:
            if first[s] < 0:
                missing()
            pairs[0, slices], pairs[1, slices] = first[s], s
            slices += 1
        else:
            gathered_sizes.append(size[s])
            gathered.append(s)
    sort_pairs(pairs, slices)
    for i in range(slices):
        s = pairs[1, i]
        if first[s] > end:  # rows that are read otherwise
            sizes.append(first[s] - end)
            numbers.append(None)
        sizes.append(size[s])
        numbers.append(s)
        end = first[s] + size[s]
    if slices and end < height:
        sizes.append(height - end)
        numbers.append(None)
    return tuple(whole), tuple(sizes), tuple(numbers), tuple(gathered_sizes), tuple(gathered)


# ---- all of it -----------------------------------------------------------------------------------------


def wire(
    Integers calls not None, Integers bounds not None, Integers refs not None, Integers ref_starts not None,
    Integers members not None, Integers member_starts not None, Integers ragged_starts not None,
    Integers asked not None, Integers groups not None, Integers signature not None,
    Integers layouts not None, Integers layout_starts not None, Integers batched not None, Integers others not None,
    Writable launch not None, Writable row not None, list rows not None, int64_t parts, bint keeps,
    tuple makers not None, slots_of,
):
    """See `multifold._compiled.reference.plans.wire`."""
    cdef Order it = Order.__new__(Order)
    cdef Sections sections = Sections.__new__(Sections)
    it.calls, it.bounds, it.before, it.parts = empty(calls.shape[0], int64), bounds, len(rows), parts
    it.calls[:] = calls
    it.refs, it.ref_starts, it.members, it.member_starts = refs, ref_starts, members, member_starts
    it.ragged_starts, it.launch, it.row = ragged_starts, launch, row
    try:
        it.look_up(signature, layouts, layout_starts, batched)
        it.run(asked, groups)
        sections.group(it, it.take_heights(rows))
        return sections.wired(it, others, keeps, makers, slots_of)
    except IndexError:
        missing()


def plan(
    Integers pending, Integers refs not None, Integers ref_starts not None, Integers members not None,
    Integers member_starts not None, Integers ragged_starts not None, Integers asked not None,
    Integers groups not None, Integers signature not None, *wiring,
):
    """See `multifold._compiled.reference.plans.plan`."""
    cdef int64_t i, count = 0
    cdef Writable sources
    if pending is None:
        sources = empty(asked.shape[0], int64)
        for i in range(asked.shape[0]):
            if asked[i] >= 0:  # no loose value
                sources[count] = asked[i] & CALL_MASK
                count += 1
        pending = ancestors(sources[:count], refs, ref_starts, members, member_starts, ragged_starts)
    found = schedule(signature, pending, refs, ref_starts, members, member_starts, ragged_starts)
    if len(found) != 3:
        return np.asarray(pending), *found
    scheduled, (calls, bounds, least) = _now(), found
    return calls, bounds, least, scheduled, wire(
        calls, bounds, refs, ref_starts, members, member_starts, ragged_starts, asked, groups, signature, *wiring)
