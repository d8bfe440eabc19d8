# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""How few launches a few types need, whatever the order: the loops of `multifold._compiled.reference.bounds`.

The reference says what they do, with an example. All integers are checked before the first loop over them.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport qsort
from libc.string cimport memset

from multifold._compiled._columns cimport Integers, missing

import numpy as np

from multifold._compiled.reference import bounds as reference

cdef int64_t compared = reference.COMPARED, longest = reference.LONGEST
cdef object empty = np.empty, int32 = np.int32

cdef enum:
    MOST = 12  # as many paths as `reference.PATHS`

cdef struct State:  # how many calls of each path a sequence of launches has run, and of all paths
    int32_t at[MOST]
    int32_t total, before, type


cdef int compare(const void *one, const void *other) noexcept nogil:
    """Order two states: more calls first, then by paths, by what was before, and by the type."""
    cdef const State *a = <const State *>one
    cdef const State *b = <const State *>other
    cdef int i
    if a.total != b.total:
        return -1 if a.total > b.total else 1
    for i in range(MOST):
        if a.at[i] != b.at[i]:
            return -1 if a.at[i] < b.at[i] else 1
    if a.before != b.before:
        return -1 if a.before < b.before else 1
    return -1 if a.type < b.type else <int>(a.type > b.type)


@cython.final
cdef class Search:
    """The calls, the paths that were found in them, and the states of a search for a common sequence."""

    cdef Integers types, sources, readers
    cdef int64_t kinds, paths, budget
    cdef int32_t[:, ::1] path  # the types along each path
    cdef int32_t[:, :, ::1] rest  # how many calls of each type a path has from each place on
    cdef int32_t[::1] size, before
    cdef int64_t[::1] rank
    cdef State *states

    cdef int64_t unserved(self, list sequence, int64_t only):
        """Return the last call of a path that the launches of a sequence do not run, -1 if they run all."""
        cdef int64_t call, edge = 0, edges = self.sources.shape[0], type_, latest, end = -1, i, done = len(sequence)
        cdef int64_t rank  # after how many launches a call has run, and in its lower half the length of its path
        cdef int32_t[:, ::1] following = np.full((self.kinds, done + 2), done + 1, int32)
        for i in range(done - 1, -1, -1):
            for type_ in range(self.kinds):
                following[type_, i] = i + 1 if sequence[i] == type_ else following[type_, i + 1]
        for call in range(self.types.shape[0]):
            latest = -1
            while edge < edges and self.readers[edge] == call:
                i = self.sources[edge]
                if latest < 0 or self.rank[i] > self.rank[latest]:
                    latest = i
                edge += 1
            type_ = self.types[call]
            self.before[call] = latest
            rank = 0 if latest < 0 else self.rank[latest]
            if type_ >= 0 and (only < 0 or type_ == only):
                rank = (<int64_t>following[type_, rank >> 32] << 32) + (rank & 0xFFFFFFFF) + 1
            self.rank[call] = rank
            if rank >> 32 > done and (end < 0 or rank > self.rank[end]):
                end = call
        return end

    cdef int add(self, int64_t call) except -1:
        """Add the path to a call."""
        cdef int64_t i, new = self.paths
        found = []
        while call >= 0:
            if self.types[call] >= 0:
                found.append(self.types[call])
            call = self.before[call]
        found = found[:-longest - 1:-1]
        self.size[new] = len(found)
        self.rest[new, self.size[new]] = 0
        for i in range(self.size[new] - 1, -1, -1):
            self.path[new, i] = found[i]
            self.rest[new, i] = self.rest[new, i + 1]
            self.rest[new, i, self.path[new, i]] += 1
        self.paths += 1
        return 0

    cdef int64_t left(self, State *state) noexcept:
        """Return how many launches a state needs at least: of each type, the most on one path."""
        cdef int64_t type_, i, most, total = 0
        for type_ in range(self.kinds):
            most = 0
            for i in range(self.paths):
                most = max(most, self.rest[i, state.at[i], type_])
            total += most
        return total

    cdef bint behind(self, State *one, State *other) noexcept:
        """Return whether a state has run no call that another one has not."""
        cdef int64_t i
        for i in range(self.paths):
            if one.at[i] > other.at[i]:
                return False
        return True

    cdef int64_t ahead(self, int64_t begin, int64_t end) noexcept:
        """Order a layer of states, and keep those that are behind none of the best ones; return their end."""
        cdef int64_t i, j, new = begin
        cdef State *states = self.states
        qsort(&states[begin], end - begin, sizeof(State), compare)
        for i in range(begin, end):
            if new > begin and self.behind(&states[i], &states[new - 1]):  # equal states are neighbours
                continue
            for j in range(begin, min(new, begin + compared)):
                if self.behind(&states[i], &states[j]):
                    break
            else:
                states[new] = states[i]
                new += 1
        return new

    cdef int64_t grow(self, int64_t most) noexcept:
        """Return the number of a state after all paths in `most` launches; -1 if none is, -2 if that took too long."""
        cdef int64_t number, i, k, type_, begin = 0, end = 1, new, total = 0
        cdef State *state
        for i in range(self.paths):
            total += self.size[i]
        for number in range(1, most + 1):
            new = end
            for i in range(begin, end):
                if not self.budget:
                    return -2
                self.budget -= 1
                for type_ in range(self.kinds):
                    state = &self.states[new]
                    state[0] = self.states[i]
                    for k in range(self.paths):
                        if state.at[k] < self.size[k] and self.path[k, state.at[k]] == type_:
                            state.at[k] += 1
                            state.total += 1
                    if state.total == self.states[i].total or number + self.left(state) > most:
                        continue
                    state.before, state.type = i, type_
                    if state.total == total:
                        return new
                    new += 1
            begin, end = end, self.ahead(end, new)
        return -1


def fewest(Integers types not None, Integers sources not None, Integers readers not None, int64_t kinds, int64_t budget):
    """See `multifold._compiled.reference.bounds.fewest`."""
    cdef int64_t i, only, end, found = 0, calls = types.shape[0], state = -1
    if readers.shape[0] != sources.shape[0] or not 1 <= kinds <= MOST or not 1 <= budget < 1 << 20 or calls >> 30:
        missing()
    for i in range(calls):
        if not -1 <= types[i] < kinds:
            missing()
    for i in range(sources.shape[0]):
        if not 0 <= sources[i] < readers[i] < calls or (i and readers[i - 1] > readers[i]):
            missing()
    cdef Search it = Search.__new__(Search)
    it.types, it.sources, it.readers, it.kinds, it.budget = types, sources, readers, kinds, budget
    it.size, it.before, it.rank = empty(MOST, int32), empty(calls, int32), empty(calls, np.int64)
    it.path = empty((MOST, min(calls, longest)), int32)
    it.rest = empty((MOST, min(calls, longest) + 1, kinds), int32)
    cdef unsigned char[::1] room = empty((1 + (kinds + 1) * budget) * sizeof(State), np.uint8)
    it.states = <State *>&room[0]
    memset(it.states, 0, sizeof(State))
    for only in range(kinds):
        end = it.unserved([], only)
        if end >= 0:
            it.add(end)
    while it.paths:
        found = max(found, it.left(it.states))
        state = it.grow(found)
        while state == -1:
            found += 1
            state = it.grow(found)
        if state == -2:
            break
        sequence = []
        while state:
            sequence.append(it.states[state].type)
            state = it.states[state].before
        end = it.unserved(sequence[::-1], -1)
        if end < 0 or it.paths == MOST:
            break
        it.add(end)
    return found
