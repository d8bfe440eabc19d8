# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Schedules where types read each other in a circle: a beam of partial schedules that are made side by side.

`multifold._engine.compiled.reference.covers` has the same functions in Python, and says what they do. They check all
integers before the first loop over them, so the other loops check nothing.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memset

from multifold._engine.compiled.columns cimport Read as Integers, Write as Writable, missing

import numpy as np

from multifold._engine.compiled._calls import COUNTERS, bucket, typed_levels
from multifold._engine.compiled.reference import covers as reference

cdef object empty = np.empty, int64 = np.int64
cdef int64_t most_counted = COUNTERS

cdef enum:
    MOST_WEIGHED = 1024  # a longer path than this one is scaled down to it, so that no sum of weights overflows
    MOST_IN_A_BYTE = 255
    FEW_CELLS = 24
    MOST_NUMBERED = 1 << 30  # calls, edges and links have numbers of 32 bits

cdef struct Call:  # what is looked up when a call becomes ready: few bytes, since the calls fill the cache
    int32_t cell
    int32_t path  # the longest one to a sink

cdef struct Link:  # a ready call, and the link of the one that became ready before it
    int32_t call, before

cdef struct Facts:
    int64_t left, weight
    uint64_t hash
    int32_t done, path

cdef struct State:  # where the parts of a partial schedule are
    Facts *facts
    int64_t *weights  # of the ready calls of each type
    uint64_t *hashes
    int32_t *head  # the last link of each type, -1 if none of its calls is ready
    int32_t *tallest  # the last cell of each type that holds calls which have not run
    int32_t *ready_in  # of each cell
    int32_t *unrun_in
    int32_t *waiting_long  # of each call: how many edges it waits for
    unsigned char *waiting

cdef struct Option:  # a state and the type that it may launch next
    int64_t left, weight
    int32_t type, state


cdef void *taken(list kept, int64_t size) except NULL:
    """Return `size` bytes of memory, which live as long as the list `kept` does."""
    block = PyByteArray_FromStringAndSize(NULL, size)
    kept.append(block)
    return PyByteArray_AS_STRING(block)


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
    """Some partial schedules of one problem, called states. Each state is a row of bytes.

    Ready calls of a type are a chain of links. A launch drops a whole chain, and a call that becomes ready gets a
    link in front, so states share links, and the copy of a state takes one byte for each call, which says for how
    many edges it waits; or four, if some call has more than 255. A cell is a pair of a type and a height, and cells
    are numbered by type and then by height.
    """

    cdef list kept
    cdef int64_t calls, types, cells, width, size
    cdef int64_t links, most_links, many_links
    cdef bint bytewise
    cdef Call *call
    cdef Link *link
    cdef Link *spare  # room for as many, once it was needed
    cdef int32_t *begin  # of the readers of each call
    cdef int32_t *reader
    cdef int32_t *waits  # how many edges each call waits for at first
    cdef int32_t *height  # of each cell
    cdef int32_t *type  # of each cell
    cdef int32_t *first  # cell of each type
    cdef unsigned char *rows

    cdef int set_up(
        self, Integers types, Integers heights, Integers sources, Integers readers, bint backwards, int64_t width,
    ) except -1:
        """Read a problem; backwards, each edge is turned round, and the last launch comes first."""
        cdef int64_t i, calls = types.shape[0], edges = sources.shape[0], most = 0
        self.kept, self.calls, self.width = [], calls, width
        self.call = <Call *>taken(self.kept, calls * sizeof(Call))
        self.waits = <int32_t *>taken(self.kept, calls * sizeof(int32_t))
        self.reader = <int32_t *>taken(self.kept, (edges + calls + 2) * sizeof(int32_t))
        self.begin = self.reader + edges
        memset(self.begin, 0, (calls + 2) * sizeof(int32_t))
        for i in range(calls):
            self.call[i].path, self.waits[i] = 1, 0
            self.types = max(self.types, types[i] + 1)
        if backwards:
            self.chain_readers(readers, sources, 0, 1)
        else:
            self.chain_readers(sources, readers, edges - 1, -1)
        for i in range(calls):
            most = max(most, self.waits[i])
        self.bytewise = most <= MOST_IN_A_BYTE
        self.most_links = 2 * calls + 2
        self.link = <Link *>taken(self.kept, self.most_links * sizeof(Link))
        self.number_cells(types, heights, <int32_t *>self.link)
        self.size = sizeof(Facts) + 24 * self.types + 8 * self.cells + calls * (1 if self.bytewise else 4)
        self.size = (self.size + 7) // 8 * 8
        self.rows = <unsigned char *>taken(self.kept, width * self.size)
        return 0

    cdef void chain_readers(self, Integers sources, Integers readers, int64_t at, int64_t step) noexcept:
        """Order the readers by source, and find the longest path from each call to a sink.

        From edge `at` on, in steps of 1 or -1, all edges from a call come before those to it.
        """
        cdef int64_t i, source, longest = 1, calls = self.calls, edges = sources.shape[0]
        for i in range(edges):
            source = sources[at]
            self.call[source].path = max(self.call[source].path, self.call[readers[at]].path + 1)
            # A counting sort: counted two places further on, `begin[call + 1]` is where the next reader of
            # a call goes, and in the end where its readers end.
            self.begin[source + 2] += 1
            self.waits[readers[at]] += 1
            at += step
        for i in range(calls):
            longest = max(longest, self.call[i].path)
            self.begin[i + 2] += self.begin[i + 1]
        for i in range(edges):
            self.reader[self.begin[sources[i] + 1]] = readers[i]
            self.begin[sources[i] + 1] += 1
        if longest > MOST_WEIGHED:
            for i in range(calls):
                self.call[i].path = 1 + <int64_t>self.call[i].path * MOST_WEIGHED // longest

    cdef int number_cells(self, Integers types, Integers heights, int32_t *order) except -1:
        """Number the pairs of type and height that there are. `order` is room for four numbers of each call."""
        cdef int64_t i, call, own, before = -1, calls = self.calls
        self.height = <int32_t *>taken(self.kept, (2 * calls + self.types + 1) * sizeof(int32_t))
        self.type = self.height + calls
        self.first = self.type + calls
        memset(self.first, 0, (self.types + 1) * sizeof(int32_t))
        for i in range(calls):
            order[i] = i
        # Both sorts are stable, so in the end calls are in the order of their types, and in each type of
        # their heights.
        sort_by(&heights[0], order, calls)
        sort_by(&types[0], order, calls)
        for i in range(calls):
            call = order[i]
            own = types[call]
            if before < 0 or own != types[before] or heights[call] != heights[before]:
                self.height[self.cells], self.type[self.cells] = heights[call], own
                self.cells += 1
            self.call[call].cell = self.cells - 1
            self.first[own + 1] = self.cells
            before = call
        for i in range(self.types):
            self.first[i + 1] = max(self.first[i + 1], self.first[i])
        return 0

    cdef State state(self, int64_t slot) noexcept:
        """Return pointers to the parts of the state in row `slot`."""
        cdef State it
        it.facts = <Facts *>(self.rows + slot * self.size)
        it.weights = <int64_t *>(it.facts + 1)
        it.hashes = <uint64_t *>(it.weights + self.types)
        it.head = <int32_t *>(it.hashes + self.types)
        it.tallest = it.head + self.types
        it.ready_in = it.tallest + self.types
        it.unrun_in = it.ready_in + self.cells
        it.waiting_long = it.unrun_in + self.cells
        it.waiting = <unsigned char *>it.waiting_long
        return it

    cdef void start(self) noexcept:
        """Write the state in which no call has run to row 0."""
        cdef int64_t i, own
        cdef State it = self.state(0)
        memset(self.rows, 0, self.size)
        self.links, self.many_links, it.facts.path = 0, self.calls, -1
        for own in range(self.types):
            it.head[own] = -1
            it.tallest[own] = self.first[own + 1] - 1
            if self.first[own] < self.first[own + 1]:
                it.facts.left += self.height[it.tallest[own]]
        for i in range(self.calls):
            it.unrun_in[self.call[i].cell] += 1
            it.facts.weight += weight_of(self.call[i])
            if self.bytewise:
                it.waiting[i] = <unsigned char>self.waits[i]
            else:
                it.waiting_long[i] = self.waits[i]
            if not self.waits[i]:
                open(it, self.call[i], self.type, i, self.link, self.links)
                self.links += 1

    cdef int reserve(self, int64_t more) except -1:
        """Make room for `more` links after those that there are."""
        cdef Link *link = self.link
        if self.links + more > self.most_links:
            self.most_links = 2 * (self.links + more)
            self.link, self.spare = <Link *>taken(self.kept, self.most_links * sizeof(Link)), NULL
            memcpy(self.link, link, self.links * sizeof(Link))
        return 0

    cdef int leave_out(self, const int64_t *slots, int64_t states) except -1:
        """Keep only the links of some states: most others are of calls that have run, and fresh memory is slow."""
        cdef int64_t i, own, at, new = 0
        cdef Link *old = self.link
        cdef State it
        for i in range(states):
            new += self.ready(self.state(slots[i]))
        # Done again only when there are twice as many links, this costs a fixed share of making them.
        self.many_links = 2 * max(new, self.links) + self.calls
        if new > self.most_links:  # states share links no longer, once each has its own
            return 0
        if not self.spare:
            self.spare = <Link *>taken(self.kept, self.most_links * sizeof(Link))
        new = 0
        for i in range(states):
            it = self.state(slots[i])
            for own in range(self.types):
                at, it.head[own] = it.head[own], -1
                while at >= 0:
                    self.spare[new] = Link(old[at].call, it.head[own])
                    it.head[own] = new
                    new += 1
                    at = old[at].before
        self.link, self.spare, self.links, self.many_links = self.spare, old, new, 2 * new + self.calls
        return 0

    cdef int64_t ready(self, State it) noexcept:
        """Return how many calls are ready in a state: they wait for no other call, and have not run."""
        cdef int64_t i, count = 0
        for i in range(self.cells):
            count += it.ready_in[i]
        return count

    cdef int run(self, State it, int64_t own) except -1:
        """Launch all ready calls of type `own`: this changes the state."""
        self.reserve(self.calls - it.facts.done)
        # Local pointers, since the compiler takes a byte that is written for a part of any other object.
        cdef Call *calls = self.call
        cdef Link *links = self.link
        cdef int32_t *readers = self.reader
        cdef int32_t *begin = self.begin
        cdef int32_t *types = self.type
        cdef int64_t i, end, link = it.head[own], at = link, tallest = it.tallest[own], new = self.links
        cdef int64_t reader, done = 0
        cdef bint bytewise = self.bytewise
        it.facts.weight -= it.weights[own]
        it.facts.hash ^= it.hashes[own]
        it.head[own], it.weights[own], it.hashes[own] = -1, 0, 0
        # A type of few cells is counted cell by cell; with many cells it is quicker to go through its ready
        # calls. Both come before any call is opened, since that one may be of this type.
        if tallest - self.first[own] < FEW_CELLS:
            for i in range(self.first[own], tallest + 1):
                done += it.ready_in[i]
                it.unrun_in[i] -= it.ready_in[i]
                it.ready_in[i] = 0
            at = -1
        while at >= 0:
            i = calls[links[at].call].cell
            it.ready_in[i] = 0
            it.unrun_in[i] -= 1
            done += 1
            at = links[at].before
        it.facts.done += done
        while link >= 0:
            i, end = begin[links[link].call], begin[links[link].call + 1]
            link = links[link].before
            while i < end:
                reader = readers[i]
                i += 1
                if bytewise:
                    it.waiting[reader] -= 1
                    if it.waiting[reader]:
                        continue
                else:
                    it.waiting_long[reader] -= 1
                    if it.waiting_long[reader]:
                        continue
                open(it, calls[reader], types, reader, links, new)
                new += 1
        self.links = new
        it.facts.left -= self.height[tallest]
        while tallest >= self.first[own] and not it.unrun_in[tallest]:
            tallest -= 1
        it.tallest[own] = tallest
        if tallest >= self.first[own]:
            it.facts.left += self.height[tallest]
        return 0

    cdef int64_t options(self, State it, int64_t state, Option *found) noexcept:
        """Write an option to `found` for each type that has ready calls; return how many there are."""
        cdef int64_t own, count = 0, tallest
        for own in range(self.types):
            if it.head[own] < 0:
                continue
            tallest = it.tallest[own]
            found[count].left = it.facts.left - (it.ready_in[tallest] == it.unrun_in[tallest])
            found[count].weight = it.facts.weight - it.weights[own]
            found[count].type, found[count].state = own, state
            count += 1
        return count

    cdef int follow(self, list path, Writable launch) except -1:
        """Write the launch of each call, from 0, where `path` has the type of each launch."""
        cdef int64_t own, at, number = 0
        cdef State it = self.state(0)
        self.start()
        for own in path:
            at = it.head[own]
            while at >= 0:
                launch[self.link[at].call] = number
                at = self.link[at].before
            self.run(it, own)
            number += 1
        return 0


cdef inline int64_t weight_of(Call call) noexcept:
    return <int64_t>call.path * call.path * call.path


cdef inline void open(State it, Call call, int32_t *types, int64_t number, Link *links, int64_t new) noexcept:
    """Let call `number` be ready: link `new` goes to the front of the chain of its type."""
    cdef int64_t own = types[call.cell]
    links[new] = Link(number, it.head[own])
    it.head[own] = new
    it.ready_in[call.cell] += 1
    it.weights[own] += weight_of(call)
    it.hashes[own] ^= mixed(number)


cdef void sort_by(const int64_t *keys, int32_t *order, int64_t calls) noexcept:
    """Order calls by a key of each, from 0 to the number of calls, and keep the order of equal ones.

    After them there is room for as many, and for two numbers more than there are calls.
    """
    cdef int64_t i
    cdef int32_t *old = order + calls
    cdef int32_t *place = old + calls
    memcpy(old, order, calls * sizeof(int32_t))
    memset(place, 0, (calls + 2) * sizeof(int32_t))
    for i in range(calls):
        place[keys[i] + 1] += 1
    for i in range(calls + 1):
        place[i + 1] += place[i]
    for i in range(calls):
        order[place[keys[old[i]]]] = old[i]
        place[keys[old[i]]] += 1


cdef int64_t choose(Beam beam, Option *options, int64_t count, int64_t limit, int64_t *slots, uint64_t *hashes) noexcept:
    """Move the best options that lead to different states to the front, in order; return how many there are.

    At most as many are chosen as the beam is wide. Most options are no better than the last one of so many, which
    one comparison shows: so they are not sorted.
    """
    cdef int64_t i, j, chosen = 0, most = beam.width
    cdef uint64_t hash
    cdef State state
    cdef Option option
    for i in range(count):
        option = options[i]
        # Left out: an option after which too many launches are left, and one that is worse than a full beam.
        if option.left > limit or (chosen == most and compare(&option, &options[most - 1]) > 0):
            continue
        state = beam.state(slots[option.state])
        hash = state.facts.hash ^ state.hashes[option.type]
        j = 0
        while j < chosen and hashes[j] != hash:
            j += 1
        if j == chosen:
            chosen = min(chosen + 1, most)
            j = chosen - 1  # if it is taken, then by the worst one
        elif compare(&option, &options[j]) > 0:
            continue
        while j and compare(&option, &options[j - 1]) < 0:
            options[j], hashes[j] = options[j - 1], hashes[j - 1]
            j -= 1
        options[j], hashes[j] = option, hash
    return chosen


cdef list grow(Beam it, int64_t most):
    """Launch until a state has run all calls; return the type of each launch, None if there are more than `most`."""
    cdef int64_t i, k, number, count, chosen, states = 1, width = it.width, spare = width - 1, used = 0
    cdef int64_t *slots = <int64_t *>taken(it.kept, 5 * width * sizeof(int64_t))
    cdef int64_t *after = slots + width
    cdef int64_t *free = after + width
    cdef int64_t *wanted = free + width
    cdef uint64_t *hashes = <uint64_t *>(wanted + width)
    cdef Option *options = <Option *>taken(it.kept, width * it.types * sizeof(Option))
    cdef int32_t *path_type = <int32_t *>taken(it.kept, 2 * width * most * sizeof(int32_t))
    cdef int32_t *path_before = path_type + width * most
    cdef State state
    it.start()
    slots[0] = 0
    for i in range(width):
        free[i] = width - 1 - i
    for number in range(most):
        if it.links > it.many_links:
            it.leave_out(slots, states)
        count = 0
        for i in range(states):
            count += it.options(it.state(slots[i]), i, options + count)
            wanted[i] = 0
        chosen = choose(it, options, count, most - number - 1, slots, hashes)
        for i in range(chosen):
            wanted[options[i].state] += 1
        for i in range(states):
            if not wanted[i]:
                free[spare] = slots[i]
                spare += 1
        for k in range(chosen):
            i = options[k].state
            after[k] = slots[i]
            wanted[i] -= 1
            if wanted[i]:  # the last one that goes on from a state takes its place, the others a copy
                spare -= 1
                after[k] = free[spare]
                memcpy(it.rows + after[k] * it.size, it.rows + slots[i] * it.size, it.size)
            state = it.state(after[k])
            it.run(state, options[k].type)
            # A state knows its last step only, and a step the one before it: no state copies its path.
            path_type[used], path_before[used] = options[k].type, state.facts.path
            state.facts.path = used
            if state.facts.done == it.calls:
                return path_to(used, path_type, path_before)
            used += 1
        slots, after, states = after, slots, chosen
    return None


cdef list path_to(int64_t end, int32_t *path_type, int32_t *path_before):
    """Return the types that were launched up to step `end`, the first one first."""
    path = []
    while end >= 0:
        path.append(path_type[end])
        end = path_before[end]
    return path[::-1]


cdef bint check(Integers types, Integers heights, Integers sources, Integers readers, int64_t width) except -1:
    """Refuse columns that refer to what is not there; return whether 32 bits can number the calls."""
    cdef int64_t i, calls = types.shape[0], edges = sources.shape[0]
    if heights.shape[0] != calls or readers.shape[0] != edges or width < 1:
        missing()
    for i in range(calls):
        if not 0 <= types[i] < calls or not 1 <= heights[i] <= calls:
            missing()
    for i in range(edges):
        if not 0 <= sources[i] < readers[i] < calls:
            missing()
    return max(calls, edges) < MOST_NUMBERED


def beam(
    Integers types not None, Integers heights not None, Integers sources not None, Integers readers not None,
    int64_t width, int64_t most,
):
    """See `multifold._engine.compiled.reference.covers.beam`."""
    cdef Beam it = Beam.__new__(Beam)
    cdef bint small = check(types, heights, sources, readers, width)
    if most < 1:
        missing()
    if not small:
        return reference.beam(*map(np.asarray, (types, heights, sources, readers)), width, most)
    launch = empty(types.shape[0], int64)
    if not types.shape[0]:
        return launch
    it.set_up(types, heights, sources, readers, False, width)
    path = grow(it, most)
    if path is None:
        return None
    it.follow(path, launch)
    return launch


def cover(
    Integers types not None, Integers levels not None, Integers cycles not None, Integers sources not None,
    Integers readers not None, int64_t width, int64_t bound, int64_t most,
):
    """See `multifold._engine.compiled.reference.covers.cover`."""
    cdef int64_t i, count = 0, edges = 0, others, calls = types.shape[0]
    cdef bint small = check(types, levels, sources, readers, width)
    for i in range(calls):
        if types[i] >= cycles.shape[0]:
            missing()
    if not small:
        return reference.cover(*map(np.asarray, (types, levels, cycles, sources, readers)), width, bound, most)
    # What is in a circle: the number of each call, -1 for others; and the columns of such a problem.
    codes, room = empty(calls, int64), empty(3 * calls + 2 * sources.shape[0], int64)
    cdef Writable code = codes, number = room, own, level, source, reader, kind = np.zeros(2 * cycles.shape[0], int64)
    own, level = number[calls:], number[2 * calls :]
    source = number[3 * calls :]
    reader = source[sources.shape[0] :]
    others = number_types(types, levels, cycles, kind)
    for i in range(calls):
        number[i], code[i] = -1, kind[types[i]] + levels[i] - 1
        if cycles[types[i]] > 1:
            own[count], level[count], number[i] = kind[types[i]], levels[i], count
            count += 1
    for i in range(sources.shape[0]):
        if number[sources[i]] >= 0 and number[readers[i]] >= 0:
            source[edges], reader[edges] = number[sources[i]], number[readers[i]]
            edges += 1
    most = min(most, count_by_depth(types, sources, readers) - 1) - others
    launch = both_ways(own[:count], level[:count], source[:edges], reader[:edges], width, bound - others, most)
    if launch is None:
        return None
    cdef Writable launches = launch
    for i in range(calls):
        if number[i] >= 0:
            code[i] = others + launches[number[i]]
    return bucket(codes, codes[np.asarray(sources)], codes[np.asarray(readers)])


cdef int64_t number_types(Integers types, Integers levels, Integers cycles, Writable kind) noexcept:
    """Number the types that are in a circle, and the levels of all others; return how many levels these have.

    `kind` has two numbers of each type, 0 at first: it gets the number of the type, or of its first level.
    """
    cdef int64_t i, own, circles = 0, others = 0, width = cycles.shape[0]
    for i in range(types.shape[0]):
        kind[width + types[i]] = max(kind[width + types[i]], levels[i])
    for own in range(width):
        if cycles[own] > 1:
            kind[own] = circles
            circles += kind[width + own] > 0
        else:
            kind[own] = others
            others += kind[width + own]
    return others


cdef object both_ways(
    Integers types, Writable levels, Integers sources, Integers readers, int64_t width, int64_t bound, int64_t most,
):
    """Return the launch of each call in the shorter one of the schedules that two beams find, None if none does."""
    cdef int64_t i, calls = types.shape[0]
    cdef Beam it
    if not calls:
        return None
    heights, launch, found = empty(calls, int64), empty(calls, int64), None
    cdef Writable launches = launch
    count_heights(types, sources, readers, levels, heights)
    check(types, levels, sources, readers, width)
    for backwards in range(2):
        # No schedule has fewer launches than the bound, so one of `most` launches is not there to be found.
        if most < max(bound, 1):
            break
        it = Beam.__new__(Beam)
        it.set_up(types, levels if backwards else heights, sources, readers, backwards, width)
        path = grow(it, most)
        if path is not None:
            # The second search has to find a shorter one.
            found, most = launch, len(path) - 1
            it.follow(path, launches)
            if backwards:
                for i in range(calls):
                    launches[i] = most - launches[i]
        it = None  # so that the next one gets its memory
    return found


cdef int count_heights(Integers types, Integers sources, Integers readers, Writable levels, Writable heights) except -1:
    """Write the typed levels counted from the sinks: those of the turned problem, whose first call is the last one.

    Types of a cycle of very many are counted jointly, which is no bound of each. Their levels and heights become 1.
    """
    cdef int64_t i, calls = types.shape[0], edges = sources.shape[0], last = calls - 1
    turned = empty(calls + 2 * edges, int64)
    cdef Writable numbers = turned
    for i in range(calls):
        numbers[i] = types[last - i]
    for i in range(edges):
        numbers[calls + i] = last - readers[edges - 1 - i]
        numbers[calls + edges + i] = last - sources[edges - 1 - i]
    found = typed_levels(turned[:calls], turned[calls : calls + edges], turned[calls + edges :])
    cdef Integers height = found[0], cycles = found[1]
    for i in range(calls):
        heights[i] = height[last - i]
        if cycles[types[i]] > most_counted:
            levels[i], heights[i] = 1, 1
    return 0


cdef int64_t count_by_depth(Integers types, Integers sources, Integers readers) except -1:
    """Return how many pairs of a type and a depth there are."""
    cdef list kept = []
    cdef int64_t i, own, count = 0, calls = types.shape[0]
    cdef int64_t *depth = <int64_t *>taken(kept, 4 * (calls + 1) * sizeof(int64_t))
    cdef int64_t *seen = depth + calls
    cdef int32_t *order = <int32_t *>(seen + calls)
    for i in range(calls):
        depth[i], seen[i], order[i] = 0, -1, i
    for i in range(sources.shape[0]):
        depth[readers[i]] = max(depth[readers[i]], depth[sources[i]] + 1)
    sort_by(depth, order, calls)
    for i in range(calls):
        own = types[order[i]]
        count += seen[own] != depth[order[i]]
        seen[own] = depth[order[i]]
    return count
