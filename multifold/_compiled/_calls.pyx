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

COUNTERS = MOST_ON_A_CYCLE


def ancestors(
    Integers outputs not None, Integers refs not None, Integers ref_starts not None, Integers members not None,
    Integers member_starts not None, Integers ragged_starts not None,
):
    """See `multifold._compiled.reference.calls.ancestors`."""
    cdef int64_t i, call, source
    found = zeros(max(ref_starts.shape[0] - 1, 0), np.bool_)
    cdef unsigned char[::1] wanted = found
    try:
        for i in range(outputs.shape[0]):
            wanted[outputs[i]] = 1
        for call in range(wanted.shape[0] - 1, -1, -1):  # all readers of a call come before it
            if not wanted[call]:
                continue
            for i in range(ref_starts[call], ref_starts[call + 1]):
                source = refs[i] & CALL_MASK
                if source >= call:
                    missing()
                wanted[source] = 1
            if not members.shape[0]:
                continue
            for i in range(member_starts[ragged_starts[call]], member_starts[ragged_starts[call + 1]]):
                source = -1 if members[i] < 0 else members[i] & CALL_MASK
                if source >= call:
                    missing()
                if source >= 0:  # no loose value
                    wanted[source] = 1
    except IndexError:
        missing()
    return np.flatnonzero(found)


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


cdef int64_t write_edges(
    Integers pending, Integers refs, Integers ref_starts, Integers members, Integers member_starts,
    Integers ragged_starts, Writable number, Writable sources, Writable readers,
) except -1:
    """Write which pending calls read each other, by their positions in `pending`; return how many edges there are.

    `number` is room for the position of each call.
    """
    cdef int64_t i, j, call, source, count = 0
    number[:] = -1
    try:
        for i in range(pending.shape[0]):
            number[pending[i]] = i
        for i in range(pending.shape[0]):
            call = pending[i]
            for j in range(ref_starts[call], ref_starts[call + 1]):
                source = number[refs[j] & CALL_MASK]
                if source >= i:
                    missing()
                if source >= 0:
                    sources[count], readers[count] = source, i
                    count += 1
            if not members.shape[0]:
                continue
            for j in range(member_starts[ragged_starts[call]], member_starts[ragged_starts[call + 1]]):
                source = -1 if members[j] < 0 else number[members[j] & CALL_MASK]  # a loose value is no call
                if source >= i:
                    missing()
                if source >= 0:
                    sources[count], readers[count] = source, i
                    count += 1
    except IndexError:
        missing()
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


def typed_levels(Integers types not None, Integers sources not None, Integers readers not None):
    """See `multifold._compiled.reference.calls.typed_levels`."""
    cdef int64_t type_count = count_types(types, sources, readers)
    if type_count > MOST_TYPES:
        return reference.typed_levels(np.asarray(types), np.asarray(sources), np.asarray(readers))
    levels, found = empty(types.shape[0], int64), zeros((7, type_count), int64)
    count_levels(types, sources, readers, levels, found)
    return levels, found[0], found[1]


cdef int count_levels(Integers types, Integers sources, Integers readers, Writable levels, Table room) except -1:
    """Write the level of each call, and to the first rows of `room` the cycle and the highest level of each type.

    `room` has seven numbers of each type, 0 at first.
    """
    cdef int64_t i, own, size, type_count = room.shape[1]
    cdef Writable cycle = room[0], highest = room[1], component = room[2], members = room[3]
    cdef unsigned char[:, ::1] edge = zeros((type_count, type_count), np.uint8)
    mark_types(types, sources, readers, edge)
    cdef Components it = Components.__new__(Components)
    it.edge, it.component, it.index, it.low, it.stack = edge, component, room[4], room[5], room[6]
    component[:] = -1
    for own in range(type_count):
        if not it.index[own]:
            it.visit(own)
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


def bucket_levels(
    Integers signature not None, Integers needed not None, Integers levels not None, Integers pairs not None,
    Integers highest not None,
):
    """See `multifold._compiled.reference.calls.bucket_levels`."""
    cdef int64_t i, own, end = 0, calls = needed.shape[0], edges = pairs.shape[0] // 4, count = highest.shape[0]
    if levels.shape[0] != calls or pairs.shape[0] != 4 * edges:
        missing()
    cdef Writable room = empty(count + calls + 2 * edges, int64)
    cdef Writable first = room[:count], codes = room[count : count + calls]
    cdef Writable sources = room[count + calls : count + calls + edges], readers = room[count + calls + edges :]
    try:
        for i in range(count):
            if highest[i] < 0 or highest[i] > calls:
                missing()
            first[i] = end
            end += highest[i]
        for i in range(calls):
            own = signature[needed[i]]
            if levels[i] < 1 or levels[i] > highest[own]:
                missing()
            codes[i] = first[own] + levels[i] - 1
        for i in range(edges):
            sources[i] = first[pairs[4 * i]] + pairs[4 * i + 1]
            readers[i] = first[pairs[4 * i + 2]] + pairs[4 * i + 3]
    except IndexError:
        missing()
    return launches_of(codes, end, sources, readers, needed)


def schedule(
    Integers types not None, Integers pending not None, Integers refs not None, Integers ref_starts not None,
    Integers members not None, Integers member_starts not None, Integers ragged_starts not None,
):
    """See `multifold._compiled.reference.calls.schedule`."""
    cdef int64_t i, own, count = 0, present = 0, width = 0, bound = 0, calls = pending.shape[0]
    cdef int64_t recorded = max(ref_starts.shape[0] - 1, 0), most = refs.shape[0] + members.shape[0]
    for i in range(types.shape[0]):
        if types[i] < 0 or types[i] >= <int64_t>1 << 31:
            missing()
        width = max(width, types[i] + 1)
    cdef Writable room = empty(recorded + 2 * calls + 2 * most + width, int64)
    cdef Writable own_type = room[recorded : recorded + calls], rest = room[recorded + calls :]
    cdef Writable levels = rest[:calls], sources = rest[calls : calls + most], readers, number
    readers, number = rest[calls + most : calls + 2 * most], rest[calls + 2 * most :]
    try:
        count = write_edges(
            pending, refs, ref_starts, members, member_starts, ragged_starts, room[:recorded], sources, readers
        )
        sources, readers = sources[:count], readers[:count]
        for i in range(width):
            number[i] = 0
        for i in range(calls):
            number[types[pending[i]]] = 1
        for i in range(width):  # of the types that are there, as 0, 1, 2 and so on
            own, number[i] = number[i], present
            present += own
        for i in range(calls):
            own_type[i] = number[types[pending[i]]]
    except IndexError:
        missing()
    if present > MOST_TYPES:
        return reference.schedule(
            np.asarray(types), np.asarray(pending), np.asarray(refs), np.asarray(ref_starts),
            np.asarray(members), np.asarray(member_starts), np.asarray(ragged_starts),
        )
    cdef Table found = zeros((7, present), int64)
    cdef Writable first = found[2]
    count_levels(own_type, sources, readers, levels, found)
    width = 0
    for own in range(present):  # a bucket for each pair of a type and a level
        bound += 1 if found[0, own] > MOST_ON_A_CYCLE else found[1, own]
        first[own] = width
        width += found[1, own]
    for i in range(calls):
        levels[i] += first[own_type[i]] - 1
    for i in range(count):
        sources[i], readers[i] = levels[sources[i]], levels[readers[i]]
    launches = launches_of(levels, width, sources, readers, pending)
    return None if launches is None else (*launches, bound)


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
