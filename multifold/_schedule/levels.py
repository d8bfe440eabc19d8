"""Typed levels: how many calls of its own type lie on the longest path to a call.

Two calls of equal type and equal typed level are never ordered, so they may share a launch; and the
number of distinct (type, typed level) pairs is the *lower bound*: no schedule has fewer launches,
because every launch holds calls of one type that are not ordered among each other. Only types that
lie on a cycle of the type graph need a counter, and only counters of types on the same cycle can
influence each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from multifold._compiled.choice import kernels
from multifold._schedule.columns import Integers, starts

DENSE = 1 << 22
"""Sets of pairs are kept as a table of booleans up to this size, and sorted beyond it."""

COUNTERS = 64
"""Types on one cycle beyond which calls are counted by depth along the cycle, not type by type."""


@dataclass(frozen=True)
class Problem:
    """What is to be scheduled, as integers only.

    Attributes
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, from 0; only calls of one type may share a launch.
    sources, readers : int64 arrays of shape ``(edges,)``
        Call ``sources[i]`` must be run before ``readers[i]``; ordered by reader, and a source has a
        smaller number than its reader.
    """

    types: Integers
    sources: Integers
    readers: Integers

    def __len__(self) -> int:
        return len(self.types)

    @cached_property
    def type_count(self) -> int:
        """The number of types."""
        return int(self.types.max()) + 1 if len(self.types) else 0

    @cached_property
    def counted(self) -> tuple[Integers, Integers]:
        """The typed level of each call, and how many types lie on one cycle with each type."""
        return typed_levels(self)

    @property
    def levels(self) -> Integers:
        """The typed level of each call, from 1."""
        return self.counted[0]

    @property
    def cycles(self) -> Integers:
        """How many types lie on one cycle with each type, itself included; 0 without a cycle."""
        return self.counted[1]

    @cached_property
    def heights(self) -> Integers:
        """The typed level of each call counted from the sinks."""
        last = len(self) - 1
        order = np.argsort(self.sources, kind="stable")[::-1]
        backwards = Problem(self.types[::-1], last - self.readers[order], last - self.sources[order])
        return backwards.levels[::-1]

    @cached_property
    def depths(self) -> Integers:
        """The number of calls on the longest path to each call, itself included."""
        return chain_levels(len(self), self.sources, self.readers)

    @cached_property
    def bounds(self) -> Integers:
        """How many calls of each type lie on one path: no schedule launches it less often."""
        longest = np.zeros(self.type_count, np.int64)
        np.maximum.at(longest, self.types, self.levels)
        # On a wide cycle levels count the calls of all its types: only one launch is certain.
        return np.where(self.cycles > COUNTERS, 1, longest)

    @property
    def lower_bound(self) -> int:
        """The sum of the bounds of all types."""
        return int(self.bounds.sum())


def unique_pairs(first: Integers, second: Integers, count: int) -> tuple[Integers, Integers]:
    """Return the distinct pairs of integers below ``count``, in ascending order."""
    codes = first * count + second
    if count * count <= DENSE:
        seen = np.zeros(count * count, bool)
        seen[codes] = True
        distinct = np.flatnonzero(seen)
    else:
        distinct = np.unique(codes)
    return distinct // max(count, 1), distinct % max(count, 1)


def number_pairs(first: Integers, second: Integers) -> tuple[int, Integers]:
    """Return how many distinct pairs of small integers there are, and the number of each pair.

    Pairs are numbered in ascending order, without gaps.

    Examples
    --------
    >>> number_pairs(np.array([0, 1, 0, 0]), np.array([5, 2, 9, 5]))
    (3, array([0, 2, 1, 0]))
    """
    width = int(second.max()) + 1
    codes = first * width + second
    if (int(first.max()) + 1) * width <= DENSE:
        seen = np.zeros(int(codes.max()) + 1, np.int64)
        seen[codes] = 1
        numbers = np.cumsum(seen)
        return int(numbers[-1]), numbers[codes] - 1
    distinct, number = np.unique(codes, return_inverse=True)
    return len(distinct), number


def strong_components(count: int, sources: Integers, targets: Integers) -> Integers:
    """Return the strongly connected component of each vertex (Tarjan 1972, without recursion)."""
    order = np.argsort(sources, kind="stable")
    begin = starts(np.bincount(sources, minlength=count)).tolist()
    flat = targets[order].tolist()
    index, low, component = [0] * count, [0] * count, [-1] * count
    position = begin[:-1]
    stack: list[int] = []
    counter = found = 0
    for root in range(count):
        path = [] if index[root] else [root]
        while path:
            vertex = path[-1]
            if not index[vertex]:
                counter += 1
                index[vertex] = low[vertex] = counter
                stack.append(vertex)
            while position[vertex] < begin[vertex + 1]:
                target = flat[position[vertex]]
                position[vertex] += 1
                if not index[target]:
                    path.append(target)
                    break
                if component[target] < 0:
                    low[vertex] = min(low[vertex], index[target])
            else:
                path.pop()
                if path:
                    low[path[-1]] = min(low[path[-1]], low[vertex])
                if low[vertex] == index[vertex]:
                    while component[vertex] < 0:
                        component[stack.pop()] = found
                    found += 1
    return np.array(component, np.int64)


def chain_levels(count: int, sources: Integers, readers: Integers) -> Integers:
    """Return the length of the longest path to each vertex; edges come ordered by reader."""
    if kernels is not None:
        found = np.empty(count, np.int64)
        kernels.levels(np.ascontiguousarray(sources), np.ascontiguousarray(readers), found)
        return found
    levels = [1] * count
    for source, reader in distinct_edges(sources, readers):
        if levels[source] >= levels[reader]:
            levels[reader] = levels[source] + 1
    return np.array(levels, np.int64)


def distinct_edges(sources: Integers, readers: Integers) -> list[tuple[int, int]]:
    """Return edges as pairs, without those that repeat the one before."""
    keep = np.ones(len(sources), bool)
    keep[1:] = (sources[1:] != sources[:-1]) | (readers[1:] != readers[:-1])
    return list(zip(sources[keep].tolist(), readers[keep].tolist(), strict=True))


def typed_levels(problem: Problem) -> tuple[Integers, Integers]:
    """Return how many calls of its own type lie on the longest path to each call, and `Problem.cycles`."""
    if kernels is not None:
        cycles, levels = np.empty(problem.type_count, np.int64), np.empty(len(problem), np.int64)
        columns = map(np.ascontiguousarray, (problem.types, problem.sources, problem.readers))
        if kernels.typed_levels(*columns, cycles, levels):
            return levels, cycles
    return typed_levels_in_numpy(problem)


def typed_levels_in_numpy(problem: Problem) -> tuple[Integers, Integers]:
    """Count by NumPy and Python: the reference for the kernel, and what serves very many types."""
    types, sources, readers = problem.types, problem.sources, problem.readers
    pairs = unique_pairs(types[sources], types[readers], problem.type_count)
    component = strong_components(problem.type_count, *pairs)
    size = np.bincount(component, minlength=problem.type_count)
    loops = np.zeros(problem.type_count, np.int64)
    loops[component[pairs[0][pairs[0] == pairs[1]]]] = 1
    cycle = np.where(size > 1, size, loops)[component]
    if not cycle.any():
        return np.ones(len(types), np.int64), cycle
    within = component[types[sources]] == component[types[readers]]
    sources, readers = sources[within], readers[within]
    joint = (cycle > 1) & (cycle <= COUNTERS)
    counted = joint[types[readers]]
    levels = chain_levels(len(types), sources[~counted], readers[~counted])
    for number in np.unique(component[joint]):
        members = np.flatnonzero(component[types] == number)  # the calls on this cycle of types
        place = np.zeros(len(types), np.int64)
        place[members] = np.arange(len(members))
        inside = component[types[readers]] == number
        edges = distinct_edges(place[sources[inside]], place[readers[inside]])
        for kind in np.flatnonzero(component == number):
            own = types[members] == kind
            weight = own.astype(np.int64).tolist()
            counts = weight.copy()  # calls of this type on the best path to each call
            for source, reader in edges:
                count = counts[source] + weight[reader]
                if count > counts[reader]:
                    counts[reader] = count
            levels[members[own]] = np.array(counts, np.int64)[own]
    return levels, cycle
