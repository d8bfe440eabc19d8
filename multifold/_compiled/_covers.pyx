# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Schedules where types read each other in a circle: a beam of partial schedules that are made side by side.

`multifold._compiled.reference.covers` has the same function in Python, and says what it does. It checks all
integers before the first loop over them, so the other loops check nothing.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from multifold._compiled._columns cimport Integers, Writable, missing

import numpy as np

from multifold._compiled.reference import covers as reference

cdef object empty = np.empty, zeros = np.zeros, int32 = np.int32, int64 = np.int64

cdef enum:  # what the first columns of `Beam.wide` hold of a state
    LEFT, WEIGHT, HASH, DONE, PATH, FACTS

cdef enum:
    MOST_WEIGHED = 1024  # a longer path than this one is scaled down to it, so that no sum of weights overflows

cdef struct Option:  # a state and the type that it may launch next
    int64_t left, weight
    int32_t type, state


cdef inline int compare(const Option *a, const Option *b) noexcept:
    """Order two options: fewer launches left, then less weight, then the lower type and the better state."""
    if a.left != b.left:
        return -1 if a.left < b.left else 1
    if a.weight != b.weight:
        return -1 if a.weight < b.weight else 1
    if a.type != b.type:
        return -1 if a.type < b.type else 1
    return -1 if a.state < b.state else <int>(a.state > b.state)


cdef inline uint64_t mixed(uint64_t call) noexcept:
    """Return 64 bits for a call that look random (SplitMix64; Steele, Lea and Flood 2014)."""
    call = (call + 1) * <uint64_t>0x9E3779B97F4A7C15
    call = (call ^ (call >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    call = (call ^ (call >> 27)) * <uint64_t>0x94D049BB133111EB
    return call ^ (call >> 31)


@cython.final
cdef class Beam:
    """Some partial schedules of one problem. Each of them, a state, is a row of `narrow` and one of `wide`.

    The ready calls of a type are chained in a state. A cell is a pair of a type and a height, and cells are
    numbered by type and then by height. The other members are those of the state that is looked at.
    """

    cdef int64_t calls, types, cells
    cdef Integers type_of
    cdef Writable launch, weight
    cdef int32_t[::1] begin, reader  # the readers of each call
    cdef int32_t[::1] cell, height, first  # of each call; of each cell; the first cell of each type
    cdef int32_t[:, ::1] narrow
    cdef int64_t[:, ::1] wide

    cdef int32_t *waiting
    cdef int32_t *following
    cdef int32_t *head
    cdef int32_t *tallest
    cdef int32_t *ready_in
    cdef int32_t *unrun_in
    cdef int64_t *facts
    cdef int64_t *weights
    cdef uint64_t *hashes

    cdef int chain_readers(self, Integers sources, Integers readers) except -1:
        """Order the readers by source, and weigh each call by its longest path to a sink."""
        cdef int64_t i, longest = 1, calls = self.calls, edges = sources.shape[0]
        self.begin, self.reader = zeros(calls + 2, int32), empty(edges, int32)
        self.weight = np.ones(calls, int64)
        for i in range(edges - 1, -1, -1):  # all readers of a reader come behind it
            self.weight[sources[i]] = max(self.weight[sources[i]], self.weight[readers[i]] + 1)
            self.begin[sources[i] + 2] += 1
        for i in range(calls):
            longest = max(longest, self.weight[i])
            self.begin[i + 2] += self.begin[i + 1]
        for i in range(edges):
            self.reader[self.begin[sources[i] + 1]] = readers[i]
            self.begin[sources[i] + 1] += 1
        for i in range(calls):
            if longest > MOST_WEIGHED:
                self.weight[i] = 1 + self.weight[i] * MOST_WEIGHED // longest
            self.weight[i] = self.weight[i] * self.weight[i] * self.weight[i]
        return 0

    cdef int number_cells(self, Integers heights) except -1:
        """Number the pairs of type and height that there are."""
        cdef int64_t i, call, before = -1, calls = self.calls
        order = np.arange(calls, dtype=int64)
        cdef Writable ordered = order
        sort_by(heights, order)
        sort_by(self.type_of, order)
        self.cell, self.height = empty(calls, int32), empty(calls, int32)
        self.first = zeros(self.types + 1, int32)
        for i in range(calls):
            call = ordered[i]
            if before < 0 or self.type_of[call] != self.type_of[before] or heights[call] != heights[before]:
                self.height[self.cells] = heights[call]
                self.cells += 1
            self.cell[call] = self.cells - 1
            self.first[self.type_of[call] + 1] = self.cells
            before = call
        for i in range(self.types):
            self.first[i + 1] = max(self.first[i + 1], self.first[i])
        return 0

    cdef void look_at(self, int64_t slot) noexcept:
        """Make the members those of one state."""
        self.waiting = &self.narrow[slot, 0]
        self.following = self.waiting + self.calls
        self.head = self.following + self.calls
        self.tallest = self.head + self.types
        self.ready_in = self.tallest + self.types
        self.unrun_in = self.ready_in + self.cells
        self.facts = &self.wide[slot, 0]
        self.weights = self.facts + FACTS
        self.hashes = <uint64_t *>self.weights + self.types

    cdef void start(self) noexcept:
        """Make state 0 one in which no call has run."""
        cdef int64_t i, own
        self.narrow[0, :] = 0
        self.wide[0, :] = 0
        self.look_at(0)
        self.facts[PATH] = -1
        for own in range(self.types):
            self.head[own] = -1
            self.tallest[own] = self.first[own + 1] - 1
            if self.first[own] < self.first[own + 1]:
                self.facts[LEFT] += self.height[self.tallest[own]]
        for i in range(self.calls):
            self.unrun_in[self.cell[i]] += 1
            self.facts[WEIGHT] += self.weight[i]
        for i in range(self.reader.shape[0]):
            self.waiting[self.reader[i]] += 1
        for i in range(self.calls):
            if not self.waiting[i]:
                self.open(i)

    cdef void open(self, int64_t call) noexcept:
        """Let a call be ready."""
        cdef int64_t own = self.type_of[call]
        self.following[call] = self.head[own]
        self.head[own] = call
        self.ready_in[self.cell[call]] += 1
        self.weights[own] += self.weight[call]
        self.hashes[own] ^= mixed(call)

    cdef void run(self, int64_t own, int64_t number) noexcept:
        """Launch all ready calls of a type as launch `number`."""
        cdef int64_t i, call = self.head[own], tallest = self.tallest[own]
        self.facts[WEIGHT] -= self.weights[own]
        self.facts[HASH] ^= <int64_t>self.hashes[own]
        self.head[own], self.weights[own], self.hashes[own] = -1, 0, 0
        i = call
        while i >= 0:  # before any call is opened: it may be of this type
            self.ready_in[self.cell[i]] = 0
            self.unrun_in[self.cell[i]] -= 1
            i = self.following[i]
        while call >= 0:
            self.launch[call] = number
            self.facts[DONE] += 1
            for i in range(self.begin[call], self.begin[call + 1]):
                self.waiting[self.reader[i]] -= 1
                if not self.waiting[self.reader[i]]:
                    self.open(self.reader[i])
            call = self.following[call]
        self.facts[LEFT] -= self.height[tallest]
        while tallest >= self.first[own] and not self.unrun_in[tallest]:
            tallest -= 1
        self.tallest[own] = tallest
        if tallest >= self.first[own]:
            self.facts[LEFT] += self.height[tallest]

    cdef int64_t options(self, int64_t state, Option *found) noexcept:
        """Write what the state that is looked at may launch next; return how many types that are."""
        cdef int64_t own, count = 0, tallest
        for own in range(self.types):
            if self.head[own] < 0:
                continue
            tallest = self.tallest[own]
            found[count].left = self.facts[LEFT] - (self.ready_in[tallest] == self.unrun_in[tallest])
            found[count].weight = self.facts[WEIGHT] - self.weights[own]
            found[count].type, found[count].state = own, state
            count += 1
        return count


cdef int sort_by(Integers keys, object order) except -1:
    """Order calls by a key of each, from 0 to the number of calls, and keep the order of equal ones."""
    cdef int64_t i, calls = keys.shape[0]
    cdef Writable old = order.copy(), new = order, place = zeros(calls + 2, int64)
    for i in range(calls):
        place[keys[i] + 1] += 1
    for i in range(calls + 1):
        place[i + 1] += place[i]
    for i in range(calls):
        new[place[keys[old[i]]]] = old[i]
        place[keys[old[i]]] += 1
    return 0


cdef int64_t choose(Option *options, int64_t count, int64_t limit, Beam it, Integers slots, Writable hashes) noexcept:
    """Move the best options that lead to different states to the front, in order; return how many there are.

    `slots` are the slots of the states, one for each that may be chosen. Most options are no better than the last
    one of so many, which takes one comparison; to sort all took twice as long.
    """
    cdef int64_t i, j, state, chosen = 0, most = slots.shape[0]
    cdef Option option
    for i in range(count):
        option = options[i]
        if option.left > limit or (chosen == most and compare(&option, &options[most - 1]) > 0):
            continue
        it.look_at(slots[option.state])
        state = it.facts[HASH] ^ <int64_t>it.hashes[option.type]
        j = 0
        while j < chosen and hashes[j] != state:
            j += 1
        if j == chosen:
            chosen = min(chosen + 1, most)
            j = chosen - 1  # if it is taken, then by the worst one
        elif compare(&option, &options[j]) > 0:
            continue
        while j and compare(&option, &options[j - 1]) < 0:
            options[j], hashes[j] = options[j - 1], hashes[j - 1]
            j -= 1
        options[j], hashes[j] = option, state
    return chosen


cdef int64_t grow(Beam it, int64_t width, int64_t most, Writable path_type, Writable path_before) except -2:
    """Launch until a state has run all calls; return the end of its path, -1 if it takes more than `most` launches."""
    cdef int64_t i, k, slot, number, count, chosen, states = 1, spare = width - 1, used = 0
    cdef Writable hashes = empty(width, int64), slots = zeros(width, int64), after = empty(width, int64)
    cdef Writable free = np.arange(width - 1, -1, -1), wanted = empty(width, int64)
    cdef unsigned char[::1] room = empty(width * it.types * sizeof(Option), np.uint8)
    cdef Option *options = <Option *>&room[0]
    for number in range(most):
        count = 0
        for i in range(states):
            it.look_at(slots[i])
            count += it.options(i, options + count)
        chosen = choose(options, count, most - number - 1, it, slots, hashes)
        wanted[:states] = 0
        for i in range(chosen):
            wanted[options[i].state] += 1
        for i in range(states):
            if not wanted[i]:
                free[spare] = slots[i]
                spare += 1
        for k in range(chosen):
            i = options[k].state
            slot = slots[i]
            wanted[i] -= 1
            if wanted[i]:  # the last one that goes on from a state takes its place, the others a copy
                spare -= 1
                memcpy(&it.narrow[free[spare], 0], &it.narrow[slot, 0], it.narrow.shape[1] * sizeof(int32_t))
                memcpy(&it.wide[free[spare], 0], &it.wide[slot, 0], it.wide.shape[1] * sizeof(int64_t))
                slot = free[spare]
            it.look_at(slot)
            it.run(options[k].type, number)
            path_type[used], path_before[used] = options[k].type, it.facts[PATH]
            it.facts[PATH] = used
            after[k] = slot
            if it.facts[DONE] == it.calls:
                return used
            used += 1
        slots, after, states = after, slots, chosen
    return -1


cdef list path_to(int64_t end, Integers path_type, Integers path_before):
    """Return the types on a path, the last one first."""
    path = []
    while end >= 0:
        path.append(path_type[end])
        end = path_before[end]
    return path


def beam(
    Integers types not None, Integers heights not None, Integers sources not None, Integers readers not None,
    int64_t width, int64_t most,
):
    """See `multifold._compiled.reference.covers.beam`."""
    cdef int64_t i, end, calls = types.shape[0], edges = sources.shape[0]
    cdef Beam it = Beam.__new__(Beam)
    if heights.shape[0] != calls or readers.shape[0] != edges or width < 1 or most < 1:
        missing()
    if max(calls, edges) >= <int64_t>1 << 30:  # 32 bits number the calls
        return reference.beam(*map(np.asarray, (types, heights, sources, readers)), width, most)
    for i in range(calls):
        if not 0 <= types[i] < calls or not 1 <= heights[i] <= calls:
            missing()
        it.types = max(it.types, types[i] + 1)
    for i in range(edges):
        if not 0 <= sources[i] < readers[i] < calls:
            missing()
    launch = empty(calls, int64)
    if not calls:
        return launch
    it.calls, it.type_of, it.launch = calls, types, launch
    it.chain_readers(sources, readers)
    it.number_cells(heights)
    it.narrow = empty((width, 2 * (calls + it.types + it.cells)), int32)
    it.wide = empty((width, FACTS + 2 * it.types), int64)
    it.start()
    cdef Writable path_type = empty(width * most, int64), path_before = empty(width * most, int64)
    end = grow(it, width, most, path_type, path_before)
    if end < 0:
        return None
    if width > 1:  # other states have written to `launch` as well
        it.start()
        for i, own in enumerate(reversed(path_to(end, path_type, path_before))):
            it.run(own, i)
    return launch
