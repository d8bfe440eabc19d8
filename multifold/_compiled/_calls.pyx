# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=False
"""Scheduling over columns of int64: which calls are needed, which read each other, and in which launch each is.

Bounds are checked wherever this file does not say otherwise. `multifold._compiled.reference.calls` has the
same functions in NumPy, and says what they do.
"""

cimport cython
from libc.stdint cimport int64_t, uint64_t

from multifold._compiled._columns cimport CALL_MASK, Integers, Table, Writable, missing

import numpy as np

from multifold._compiled.reference import calls as reference

cdef object empty = np.empty, zeros = np.zeros, int64 = np.int64

cdef enum:
    MOST_TYPES = 1024  # a table of all pairs of these takes 1 MB; the reference serves more types
    MOST_ON_A_CYCLE = 64
    TABLE = 1 << 16  # bytes of a table of all pairs of buckets: 256 of them; more are chained

COUNTERS = MOST_ON_A_CYCLE


def ancestors(
    Integers outputs not None, Integers refs not None, Integers ref_starts not None, Integers members not None,
    Integers member_starts not None, Integers ragged_starts not None,
):
    """See `multifold._compiled.reference.calls.ancestors`."""
    found = zeros(max(ref_starts.shape[0] - 1, 0), np.bool_)
    mark_ancestors(found, outputs, refs, ref_starts, members, member_starts, ragged_starts)
    return found.nonzero()[0]  # the method is C, the function four of Python


# Here and in `write_edges` each index is compared with its array by hand, once: a call's entries of a column are
# looked up by where they begin and end, and each source of a call must come before it.


@cython.boundscheck(False)
cdef int mark_ancestors(
    unsigned char[::1] wanted, Integers outputs, Integers refs, Integers ref_starts, Integers members,
    Integers member_starts, Integers ragged_starts,
) except -1:
    """Mark the calls that `outputs` need."""
    cdef int64_t i, call, source, low, high, calls = wanted.shape[0]
    for i in range(outputs.shape[0]):
        if <uint64_t>outputs[i] >= <uint64_t>calls:
            missing()
        wanted[outputs[i]] = 1
    for call in range(calls - 1, -1, -1):  # all readers of a call come before it
        if not wanted[call]:
            continue
        low, high = ref_starts[call], ref_starts[call + 1]
        if low < 0 or high > refs.shape[0]:
            missing()
        for i in range(low, high):
            source = refs[i] & CALL_MASK
            if source >= call:
                missing()
            wanted[source] = 1
        if not members.shape[0]:
            continue
        low = rows_begin(call, member_starts, ragged_starts)
        high = rows_begin(call + 1, member_starts, ragged_starts)
        if low < 0 or high > members.shape[0]:
            missing()
        for i in range(low, high):
            source = -1 if members[i] < 0 else members[i] & CALL_MASK
            if source >= call:
                missing()
            if source >= 0:  # no loose value
                wanted[source] = 1
    return 0


@cython.boundscheck(False)
cdef inline int64_t rows_begin(int64_t call, Integers member_starts, Integers ragged_starts) except? -1:
    """Return where the rows of a call's ragged operands begin."""
    if call >= ragged_starts.shape[0] or <uint64_t>ragged_starts[call] >= <uint64_t>member_starts.shape[0]:
        missing()
    return member_starts[ragged_starts[call]]


def edges(
    Integers pending not None, Integers refs not None, Integers ref_starts not None, Integers members not None,
    Integers member_starts not None, Integers ragged_starts not None,
):
    """See `multifold._compiled.reference.calls.edges`."""
    found = empty((2, refs.shape[0] + members.shape[0]), int64)
    cdef Table columns = found
    cdef Writable number = empty(max(ref_starts.shape[0] - 1, 0), int64)
    cdef int64_t count = write_edges(
        pending, refs, ref_starts, members, member_starts, ragged_starts, number, columns[0], columns[1],
    )
    return found[0, :count], found[1, :count]


@cython.boundscheck(False)
cdef inline int64_t position_of(int64_t ref, Writable number, int64_t reader) except -2:
    """Return the position of the call that is read, -1 if it is not pending."""
    if ref & CALL_MASK >= number.shape[0] or number[ref & CALL_MASK] >= reader:
        missing()
    return number[ref & CALL_MASK]


@cython.boundscheck(False)
cdef int64_t write_edges(
    Integers pending, Integers refs, Integers ref_starts, Integers members, Integers member_starts,
    Integers ragged_starts, Writable number, Writable sources, Writable readers,
) except -1:
    """Write which pending calls read each other, by their positions in `pending`; return how many edges there are.

    `number` is room for the position of each call.
    """
    cdef int64_t i, j, call, source, low, high, count = 0, calls = number.shape[0]
    number[:] = -1
    for i in range(pending.shape[0]):
        if <uint64_t>pending[i] >= <uint64_t>calls:
            missing()
        number[pending[i]] = i
    for i in range(pending.shape[0]):
        call = pending[i]
        low, high = ref_starts[call], ref_starts[call + 1]
        if low < 0 or high > refs.shape[0] or high - low > sources.shape[0] - count:
            missing()
        for j in range(low, high):
            source = position_of(refs[j], number, i)
            if source >= 0:
                sources[count], readers[count] = source, i
                count += 1
        if not members.shape[0]:
            continue
        low = rows_begin(call, member_starts, ragged_starts)
        high = rows_begin(call + 1, member_starts, ragged_starts)
        if low < 0 or high > members.shape[0] or high - low > sources.shape[0] - count:
            missing()
        for j in range(low, high):
            source = -1 if members[j] < 0 else position_of(members[j], number, i)  # a loose value is no call
            if source >= 0:
                sources[count], readers[count] = source, i
                count += 1
    return count


cdef int64_t count_types(Integers types, Integers sources, Integers readers) except -1:
    """Return how many types there are. Refuse edges of calls that are not there: who calls this relies on it."""
    cdef int64_t i, calls = types.shape[0], count = 0
    if sources.shape[0] != readers.shape[0]:
        missing()
    for i in range(calls):
        if types[i] < 0 or types[i] >= <int64_t>1 << 31:
            missing()
        count = max(count, types[i] + 1)
    for i in range(sources.shape[0]):
        if <uint64_t>sources[i] >= <uint64_t>calls or <uint64_t>readers[i] >= <uint64_t>calls:
            missing()
    return count


# ---- typed levels --------------------------------------------------------------------------------------


@cython.final
cdef class Components:
    """The strongly connected components of types, numbered as Tarjan (1972) finds them."""

    cdef unsigned char[:, ::1] edge
    cdef Writable component, index, low, stack
    cdef int64_t counter, height, found

    cdef int visit(self, int64_t own) except -1:
        """Number the components that a type leads to, and its own; visits nest at most MOST_TYPES deep."""
        cdef int64_t other
        self.counter += 1
        self.index[own] = self.low[own] = self.counter
        self.stack[self.height] = own
        self.height += 1
        for other in range(self.edge.shape[0]):
            if not self.edge[own, other]:
                continue
            if not self.index[other]:
                self.visit(other)
                self.low[own] = min(self.low[own], self.low[other])
            elif self.component[other] < 0:
                self.low[own] = min(self.low[own], self.index[other])
        if self.low[own] == self.index[own]:
            while self.component[own] < 0:
                self.height -= 1
                self.component[self.stack[self.height]] = self.found
            self.found += 1
        return 0


cdef Components components_of(unsigned char[:, ::1] edge):
    """Return the components of types, of which some read each other."""
    cdef int64_t own, count = edge.shape[0]
    cdef Components it = Components.__new__(Components)
    cdef Writable room = zeros(4 * count, int64)
    it.edge, it.component, it.index = edge, room[:count], room[count : 2 * count]
    it.low, it.stack = room[2 * count : 3 * count], room[3 * count :]
    it.component[:] = -1
    for own in range(count):
        if not it.index[own]:
            it.visit(own)
    return it


def typed_levels(Integers types not None, Integers sources not None, Integers readers not None):
    """See `multifold._compiled.reference.calls.typed_levels`."""
    cdef int64_t type_count = count_types(types, sources, readers)
    if type_count > MOST_TYPES:
        return reference.typed_levels(np.asarray(types), np.asarray(sources), np.asarray(readers))
    levels, found = empty(types.shape[0], int64), zeros((3, type_count), int64)
    count_levels(types, sources, readers, levels, found)
    return levels, found[0], found[1]


cdef int count_levels(Integers types, Integers sources, Integers readers, Writable levels, Table room) except -1:
    """Write the level of each call, and to the first rows of `room` the cycle and the highest level of each type.

    `room` has three numbers of each type, 0 at first.
    """
    cdef int64_t own, size, type_count = room.shape[1]
    cdef Writable cycle = room[0], highest = room[1], members = room[2]
    cdef unsigned char[:, ::1] edge = zeros((type_count, type_count), np.uint8)
    mark_types(types, sources, readers, edge)
    cdef Writable component = components_of(edge).component
    for own in range(type_count):
        members[component[own]] += 1
    cdef bint any_cycle = False, joint = False
    for own in range(type_count):
        size = members[component[own]]
        cycle[own] = size if size > 1 else edge[own, own]
        any_cycle |= cycle[own] > 0
        joint |= 1 < size <= MOST_ON_A_CYCLE
    levels[:] = 1
    if any_cycle:
        count_alone(types, sources, readers, component, cycle, levels)
    if joint:
        count_jointly(types, sources, readers, component, cycle, levels)
    raise_highest(types, levels, highest)
    return 0


# Each loop over edges below is inside its arrays: count_types refused other calls and other types.


@cython.boundscheck(False)
cdef void mark_types(Integers types, Integers sources, Integers readers, unsigned char[:, ::1] edge) noexcept:
    """Mark which types read each other."""
    cdef int64_t i
    for i in range(sources.shape[0]):
        edge[types[sources[i]], types[readers[i]]] = 1


@cython.boundscheck(False)
cdef void raise_highest(Integers types, Integers levels, Writable highest) noexcept:
    """Find the highest level of each type."""
    cdef int64_t i
    for i in range(types.shape[0]):
        highest[types[i]] = max(highest[types[i]], levels[i])


@cython.boundscheck(False)
cdef void count_alone(
    Integers types, Integers sources, Integers readers, Integers component, Integers cycle, Writable levels,
) noexcept:
    """Count the calls on a path within one cycle: that of a type with itself, or one of very many types."""
    cdef int64_t i, source, reader, own
    for i in range(sources.shape[0]):
        source, reader = sources[i], readers[i]
        own = types[reader]
        if component[types[source]] != component[own] or 1 < cycle[own] <= MOST_ON_A_CYCLE:
            continue
        levels[reader] = max(levels[reader], levels[source] + 1)


cdef int count_jointly(
    Integers types, Integers sources, Integers readers, Integers component, Integers cycle, Writable levels,
) except -1:
    """Count type by type on each cycle of several types."""
    cdef int64_t i, own, count = 0
    cdef Writable within = empty(sources.shape[0], int64)  # the edges inside of such cycles
    cdef Writable counts = zeros(types.shape[0], int64)
    for i in range(sources.shape[0]):
        own = types[readers[i]]
        if component[types[sources[i]]] == component[own] and 1 < cycle[own] <= MOST_ON_A_CYCLE:
            within[count] = i
            count += 1
    for own in range(cycle.shape[0]):
        if 1 < cycle[own] <= MOST_ON_A_CYCLE:
            count_type(types, sources, readers, component, within[:count], own, counts, levels)
    return 0


@cython.boundscheck(False)
cdef void count_type(
    Integers types, Integers sources, Integers readers, Integers component, Integers within, int64_t own,
    Writable counts, Writable levels,
) noexcept:
    """Count the calls of one type over the edges of its cycle; `counts` is room for a number of each call.

    An edge comes after all edges to its source, so `counts` of the source is final then. A call that no
    edge has reached yet has its own weight.
    """
    cdef int64_t i, source, reader
    for i in range(within.shape[0]):
        counts[sources[within[i]]] = types[sources[within[i]]] == own
        counts[readers[within[i]]] = types[readers[within[i]]] == own
    for i in range(within.shape[0]):
        source, reader = sources[within[i]], readers[within[i]]
        if component[types[reader]] != component[own]:  # on another cycle
            continue
        counts[reader] = max(counts[reader], counts[source] + (types[reader] == own))
        if types[reader] == own:
            levels[reader] = counts[reader]


# ---- launches ------------------------------------------------------------------------------------------


def bucket(Integers codes not None, Integers sources not None, Integers readers not None):
    """See `multifold._compiled.reference.calls.bucket`."""
    cdef int64_t i, width = 0
    for i in range(codes.shape[0]):
        if codes[i] < 0 or codes[i] >= <int64_t>1 << 62:
            missing()
        width = max(width, codes[i] + 1)
    if width > 8 * codes.shape[0] + 65536:  # a table of all codes would be larger than what is read
        return reference.bucket(np.asarray(codes), np.asarray(sources), np.asarray(readers))
    return launches_of(codes, width, sources, readers, None)


def schedule(
    Integers types not None, Integers pending not None, Integers refs not None, Integers ref_starts not None,
    Integers members not None, Integers member_starts not None, Integers ragged_starts not None,
):
    """See `multifold._compiled.reference.calls.schedule`."""
    cdef int64_t own, count, bound = 0, width = width_of(types), calls = pending.shape[0], present
    cdef int64_t recorded = max(ref_starts.shape[0] - 1, 0), most = refs.shape[0] + members.shape[0]
    if types.shape[0] < recorded:
        missing()
    cdef Writable room = empty(recorded + 2 * calls + 2 * most + width, int64)
    cdef Writable own_type = room[recorded : recorded + calls], rest = room[recorded + calls :]
    cdef Writable levels = rest[:calls], sources = rest[calls : calls + most], readers
    readers = rest[calls + most : calls + 2 * most]
    cdef Plain plain = Plain.__new__(Plain)
    if width <= MOST_TYPES:
        plain.find_levels(types, pending, refs, ref_starts, members, member_starts, ragged_starts, width, sources, readers)
        if plain.number_buckets(pending):
            return plain.launches(pending)
    count = write_edges(
        pending, refs, ref_starts, members, member_starts, ragged_starts, room[:recorded], sources, readers
    )
    sources, readers = sources[:count], readers[:count]
    present = number_types(types, pending, rest[calls + 2 * most :], own_type)
    if present > MOST_TYPES:
        return reference.schedule(
            *map(np.asarray, (types, pending, refs, ref_starts, members, member_starts, ragged_starts)))
    cdef Table found = zeros((3, present), int64)
    count_levels(own_type, sources, readers, levels, found)
    width = 0
    for own in range(present):  # a bucket for each pair of a type and a level
        bound += 1 if found[0, own] > MOST_ON_A_CYCLE else found[1, own]
        found[2, own] = width
        width += found[1, own]
    cdef Writable codes = empty(calls + 2 * count, int64)
    number_buckets(own_type, found[2], levels, sources, readers, codes)
    launches = launches_of(codes[:calls], width, codes[calls : calls + count], codes[calls + count :], pending)
    if launches is None:
        return tuple(map(np.asarray, (own_type, sources, readers, levels, found[0], found[1])))
    return (*launches, bound)


@cython.final
cdef class Plain:
    """Launches of calls whose types read each other in no circle, but for those that read themselves.

    Then the level of a call is one more than the highest level among its sources of its own type. So one pass over
    the calls finds their levels, and which types read each other.
    """

    cdef Integers types
    cdef Writable room, levels  # of each recorded call, 0 if it is not pending
    cdef Writable highest, first  # level of each type, and its first bucket
    cdef Writable sources, readers
    cdef unsigned char[:, ::1] reads  # whether calls of a type read those of another one
    cdef int64_t buckets

    @cython.boundscheck(False)
    cdef int find_levels(
        self, Integers types, Integers pending, Integers refs, Integers ref_starts, Integers members,
        Integers member_starts, Integers ragged_starts, int64_t width, Writable sources, Writable readers,
    ) except -1:
        """Find the levels of pending calls, which ascend, and write which of them read each other."""
        cdef int64_t i, j, call, ref, source, own, low, high, end, level, deepest, last = -1, count = 0
        cdef int64_t recorded = max(ref_starts.shape[0] - 1, 0), most = sources.shape[0]
        self.room = zeros(recorded + 2 * width, int64)
        self.reads = zeros((width, width), np.uint8)
        # Pointers, since each array that is open takes a register.
        cdef const int64_t* values
        cdef const int64_t* type_of = &types[0]
        cdef int64_t* levels = &self.room[0]
        cdef int64_t* highest = levels + recorded
        cdef unsigned char* reads = &self.reads[0, 0]
        cdef unsigned char* read_by
        cdef bint ragged
        for i in range(pending.shape[0]):
            call = pending[i]
            if call <= last or call >= recorded:
                missing()
            last, own, deepest = call, type_of[call], 0
            read_by = reads + own * width
            for ragged in range(2 if members.shape[0] else 1):
                if ragged:
                    low, end, values = rows_begin(call, member_starts, ragged_starts), members.shape[0], &members[0]
                    high = rows_begin(call + 1, member_starts, ragged_starts)
                else:
                    low, high, end, values = ref_starts[call], ref_starts[call + 1], refs.shape[0], &refs[0]
                if low < 0 or high > end or high - low > most - count:
                    missing()
                for j in range(low, high):
                    ref = values[j]
                    source = ref & CALL_MASK
                    if source >= call:
                        if ragged and ref < 0:  # a loose value
                            continue
                        missing()
                    level = levels[source]
                    if not level:
                        continue
                    sources[count], readers[count] = source, call
                    count += 1
                    read_by[type_of[source]] = 1
                    if type_of[source] == own and level > deepest:
                        deepest = level
            deepest += 1
            levels[call] = deepest
            if deepest > highest[own]:
                highest[own] = deepest
        self.types, self.levels, self.highest = types, self.room[:recorded], self.room[recorded : recorded + width]
        self.first = self.room[recorded + width :]
        self.sources, self.readers = sources[:count], readers[:count]
        return 0

    @cython.boundscheck(False)
    cdef bint number_buckets(self, Integers pending) except -1:
        """Number a bucket for each type and level in place of levels; return False where other ways are needed."""
        cdef int64_t i, own, width = self.highest.shape[0]
        cdef Integers types = self.types, first = self.first
        cdef Writable levels = self.levels
        for own in range(width):
            self.first[own] = self.buckets
            self.buckets += self.highest[own]
        if self.buckets * self.buckets > TABLE or components_of(self.reads).found < width:
            return False
        for i in range(pending.shape[0]):
            levels[pending[i]] += first[types[pending[i]]] - 1
        return True

    @cython.boundscheck(False)
    cdef object launches(self, Integers pending):
        """Return the calls by launch and the bounds of launches, None if buckets read each other in a circle."""
        cdef int64_t i, end, start, buckets = self.buckets, count = 0, done = 0
        cdef unsigned char[:, ::1] reads = zeros((buckets, buckets), np.uint8)
        cdef Integers bucket = self.levels, sources = self.sources, readers = self.readers
        cdef Writable room = zeros(3 * buckets, int64)
        cdef Writable waiting = room[:buckets], ready = room[buckets : 2 * buckets], goes = room[2 * buckets :]
        for i in range(sources.shape[0]):
            reads[bucket[sources[i]], bucket[readers[i]]] = 1
        for start in range(buckets):
            for end in range(buckets):
                waiting[end] += reads[start, end]
        for i in range(buckets):
            if not waiting[i]:
                ready[count] = i
                count += 1
        while done < count:  # a bucket comes after those that it reads (Kahn 1962)
            start = ready[done]
            done += 1
            for end in range(buckets):
                if reads[start, end]:
                    waiting[end] -= 1
                    if not waiting[end]:
                        ready[count] = end
                        count += 1
        if done < buckets:
            return None
        order, bounds = empty(pending.shape[0], int64), zeros(buckets + 1, int64)
        cdef Writable ordered = order, begin = bounds
        for i in range(pending.shape[0]):
            goes[bucket[pending[i]]] += 1
        for i in range(buckets):
            begin[i + 1] = begin[i] + goes[ready[i]]
            goes[ready[i]] = begin[i]
        for i in range(pending.shape[0]):
            end = bucket[pending[i]]
            ordered[goes[end]] = pending[i]
            goes[end] += 1
        return order, bounds, buckets


@cython.boundscheck(False)
cdef int64_t width_of(Integers types) except -1:
    """Return one more than the largest type."""
    cdef int64_t i, width = 0
    for i in range(types.shape[0]):
        if types[i] < 0 or types[i] >= <int64_t>1 << 31:
            missing()
        width = max(width, types[i] + 1)
    return width


# `write_edges` found that pending calls are recorded and that edges are between them, `width_of` how large types are.


@cython.boundscheck(False)
cdef int64_t number_types(Integers types, Integers pending, Writable number, Writable own_type) noexcept:
    """Number the types of pending calls as 0, 1, 2 and so on, in their order; return how many they are."""
    cdef int64_t i, own, present = 0
    number[:] = 0
    for i in range(pending.shape[0]):
        number[types[pending[i]]] = 1
    for i in range(number.shape[0]):
        own, number[i] = number[i], present
        present += own
    for i in range(pending.shape[0]):
        own_type[i] = number[types[pending[i]]]
    return present


@cython.boundscheck(False)
cdef void number_buckets(
    Integers types, Integers first, Integers levels, Integers sources, Integers readers, Writable codes,
) noexcept:
    """Write the bucket of each call and of both ends of each edge; type ``i`` has those from ``first[i]`` on."""
    cdef int64_t i, calls = types.shape[0], edges = sources.shape[0]
    for i in range(calls):
        codes[i] = levels[i] + first[types[i]] - 1
    for i in range(edges):
        codes[calls + i], codes[calls + edges + i] = codes[sources[i]], codes[readers[i]]


# Both functions below index by codes, which callers keep below `width`, and by buckets, which these number. The
# codes of edges are checked first: a damaged edge may name a code that no call has.


@cython.boundscheck(False)
cdef object launches_of(Integers codes, int64_t width, Integers sources, Integers readers, Integers names):
    """Return the calls by launch and the bounds of the launches, None if codes below `width` read each other in a cycle.

    Call ``i`` is named ``names[i]``, and ``i`` where `names` is None.
    """
    cdef int64_t i, code, calls = codes.shape[0], edges = sources.shape[0], buckets = 0, end = 0, size_of
    if readers.shape[0] != edges or (names is not None and names.shape[0] != calls):
        missing()
    # One allocation, in slices: each array that NumPy makes takes half a microsecond, small ones as well.
    cdef Writable room = empty(width + 6 * calls + 3 * edges, int64)
    cdef Writable number = room[:width], rank, size = room[width : width + calls], left = room[width + calls :]
    number[:] = -1
    size[:] = 0
    for i in range(calls):
        number[codes[i]] = 0
    for code in range(width):
        if number[code] == 0:
            number[code] = buckets
            buckets += 1
    for i in range(calls):
        size[number[codes[i]]] += 1
    for i in range(edges):
        if <uint64_t>sources[i] >= <uint64_t>width or <uint64_t>readers[i] >= <uint64_t>width:
            missing()
        if number[sources[i]] < 0 or number[readers[i]] < 0:
            missing()
    rank = left[:buckets]
    if rank_buckets(number, sources, readers, rank, left[buckets:]) < buckets:
        return None
    order, bounds = empty(calls, int64), zeros(buckets + 1, int64)
    cdef Writable ordered = order, begin = bounds
    for i in range(buckets):
        begin[rank[i]] = size[i]
    for i in range(buckets + 1):  # where the next call of each launch goes
        size_of = begin[i]
        begin[i] = end
        end += size_of
    for i in range(calls):
        code = rank[number[codes[i]]]
        ordered[begin[code]] = i if names is None else names[i]
        begin[code] += 1
    for i in range(buckets, 0, -1):
        begin[i] = begin[i - 1]
    if buckets:
        begin[0] = 0
    return order, bounds


@cython.boundscheck(False)
cdef int64_t rank_buckets(
    Integers number, Integers sources, Integers readers, Writable rank, Writable room,
) except -1:
    """Rank buckets so that each comes after those that it reads (Kahn 1962); return how many have a rank.

    Most edges repeat one before. So the edges to each bucket are chained, and then, from the last bucket to
    the first, what leaves each bucket: each of these chains is in ascending order, and an edge that repeats
    another one finds it at the head. `room` is for four numbers of a bucket and three of an edge.
    """
    cdef int64_t i, edge, start, end, count = 0, done = 0, buckets = rank.shape[0], edges = sources.shape[0]
    if room.shape[0] < 4 * buckets + 3 * edges:
        missing()
    cdef Writable into = room[:buckets], leaving = room[buckets : 2 * buckets]  # heads of the chains
    cdef Writable waiting = room[2 * buckets : 3 * buckets], ready = room[3 * buckets : 4 * buckets]
    cdef Writable chain = room[4 * buckets : 4 * buckets + edges], target, following
    target = room[4 * buckets + edges : 4 * buckets + 2 * edges]
    following = room[4 * buckets + 2 * edges : 4 * buckets + 3 * edges]
    into[:] = -1
    leaving[:] = -1
    waiting[:] = 0
    for i in range(edges):
        end = number[readers[i]]
        chain[i] = into[end]
        into[end] = i
    for end in range(buckets - 1, -1, -1):
        i = into[end]
        while i >= 0:
            start = number[sources[i]]
            edge = leaving[start]
            if edge < 0 or target[edge] != end:
                target[count], following[count] = end, edge
                leaving[start] = count
                waiting[end] += 1
                count += 1
            i = chain[i]
    count = 0
    for i in range(buckets):
        if not waiting[i]:
            ready[count] = i
            count += 1
    while done < count:
        rank[ready[done]] = done
        edge = leaving[ready[done]]
        while edge >= 0:
            end = target[edge]
            waiting[end] -= 1
            if not waiting[end]:
                ready[count] = end
                count += 1
            edge = following[edge]
        done += 1
    return done
