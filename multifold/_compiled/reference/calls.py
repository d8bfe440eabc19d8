"""Scheduling over columns of integers: which calls are needed, what they read, and the launch of each.

Columns hold the operands of all calls, one call after the other. Call ``i`` has the references
``refs[ref_starts[i] : ref_starts[i + 1]]``; its ragged operands are numbered ``ragged_starts[i]`` to
``ragged_starts[i + 1]``, and ragged operand ``j`` has the rows ``members[member_starts[j] :
member_starts[j + 1]]``. A row below 0 is a loose value, which no call computes. Where there are no
members, the last three columns are not looked at.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from multifold._compiled.arrays import (
    CALL_MASK,
    DENSE,
    Integers,
    by_launch,
    ranges,
    starts,
    strong_components,
    unique_pairs,
)

COUNTERS = 64
"""Types on one cycle beyond which calls are counted by depth along the cycle, not type by type."""


def ancestors(
    outputs: Integers,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
) -> Integers:
    """Return the calls that the outputs need, themselves included, in the order of recording.

    Parameters
    ----------
    outputs : int64 array
        Calls whose values are wanted.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        The operands of all calls.

    Examples
    --------
    Call 2 reads call 0, and no call reads call 1.

    >>> none = np.zeros(0, np.int64)
    >>> ancestors(np.array([2]), np.array([0]), np.array([0, 0, 0, 1]), none, none, none)
    array([0, 2])
    """
    count = len(ref_starts) - 1
    sources, readers = edges(np.arange(count), refs, ref_starts, members, member_starts, ragged_starts)
    needed = np.zeros(count, bool)
    needed[outputs] = True
    read = needed.copy()
    read[sources] = True
    if read.all():  # every call has a reader, so every path ends at an output
        return np.arange(count)
    wanted = needed.tolist()
    for source, reader in zip(reversed(sources.tolist()), reversed(readers.tolist()), strict=True):
        wanted[source] = wanted[source] or wanted[reader]
    return np.flatnonzero(wanted)


def edges(
    pending: Integers,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
) -> tuple[Integers, Integers]:
    """Return which of the pending calls read each other, as sources and readers.

    Calls are numbered in the order of ``pending``. The edges come ordered by reader, and the edges of one
    reader in the order of its operands: first its references, then the rows of its ragged operands.

    Examples
    --------
    Call 2 reads calls 0 and 1, of which call 0 was run before.

    >>> none = np.zeros(0, np.int64)
    >>> edges(np.array([1, 2]), np.array([0, 1]), np.array([0, 0, 0, 2]), none, none, none)
    (array([0]), array([1]))
    """
    begin = ref_starts[pending]
    width = ref_starts[pending + 1] - ref_starts[pending]
    sources = refs[ranges(begin, width)] & CALL_MASK
    readers = np.repeat(np.arange(len(pending)), width)
    if len(members):
        begin = ragged_starts[pending]
        width = ragged_starts[pending + 1] - ragged_starts[pending]
        operands = ranges(begin, width)
        lengths = member_starts[operands + 1] - member_starts[operands]
        rows = members[ranges(member_starts[operands], lengths)]
        owners = np.repeat(np.repeat(np.arange(len(pending)), width), lengths)
        sources = np.concatenate([sources, rows[rows >= 0] & CALL_MASK])
        readers = np.concatenate([readers, owners[rows >= 0]])
        order = np.argsort(readers, kind="stable")
        sources = sources[order]
        readers = readers[order]
    number = np.full(len(ref_starts) - 1, -1)
    number[pending] = np.arange(len(pending))
    keep = number[sources] >= 0
    if (number[sources] >= readers).any():  # a call reads earlier ones only
        raise IndexError("A column of calls refers to what is not there.")
    return number[sources[keep]], readers[keep]


def typed_levels(
    types: Integers, sources: Integers, readers: Integers
) -> tuple[Integers, Integers, Integers]:
    """Return how many calls of its own type lie on the longest path to each call, and the cycles.

    Parameters
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, from 0.
    sources, readers : int64 arrays of shape ``(edges,)``
        Ordered by reader, and a source has a smaller number than its reader.

    Returns
    -------
    levels : int64 array of shape ``(calls,)``
        The typed level of each call, from 1.
    cycles : int64 array of shape ``(types,)``
        How many types lie on one cycle with each type, itself included; 0 without a cycle.
    highest : int64 array of shape ``(types,)``
        The highest level of each type.

    Examples
    --------
    Calls 0 and 1 are leaves; 2 is a cell that reads both, and 3 a cell that reads 2.

    >>> typed_levels(np.array([0, 0, 1, 1]), np.array([0, 1, 2]), np.array([2, 2, 3]))
    (array([1, 1, 1, 2]), array([0, 1]), array([1, 2]))
    """
    count = int(types.max()) + 1 if len(types) else 0
    pairs = unique_pairs(types[sources], types[readers], count)
    component = strong_components(count, *pairs)
    size = np.bincount(component, minlength=count)
    loops = np.zeros(count, np.int64)
    loops[component[pairs[0][pairs[0] == pairs[1]]]] = 1
    cycles = np.where(size > 1, size, loops)[component] if count else loops
    highest = np.zeros(count, np.int64)
    if not cycles.any():
        highest[types] = 1
        return np.ones(len(types), np.int64), cycles, highest
    within = component[types[sources]] == component[types[readers]]
    sources = sources[within]
    readers = readers[within]
    joint = (cycles > 1) & (cycles <= COUNTERS)
    counted = joint[types[readers]]
    levels = _depths(len(types), sources[~counted], readers[~counted])
    for number in np.unique(component[joint]):
        inside = component[types[readers]] == number
        _count_jointly(levels, types, sources[inside], readers[inside], np.flatnonzero(component == number))
    np.maximum.at(highest, types, levels)
    return levels, cycles, highest


def _count_jointly(
    levels: Integers, types: Integers, sources: Integers, readers: Integers, cycle: Integers
) -> None:
    """Fill in the levels of the calls whose types lie on one cycle, from the edges inside of it."""
    calls = np.flatnonzero(np.isin(types, cycle))
    number = np.zeros(len(types), np.int64)
    number[calls] = np.arange(len(calls))
    pairs = _distinct_edges(number[sources], number[readers])
    for counted in cycle:
        own = types[calls] == counted
        weight = own.astype(np.int64).tolist()
        counts = weight.copy()  # calls of this type on the best path to each call
        for source, reader in pairs:
            counts[reader] = max(counts[reader], counts[source] + weight[reader])
        levels[calls[own]] = np.array(counts, np.int64)[own]


def _depths(count: int, sources: Integers, readers: Integers) -> Integers:
    """Return the length of the longest path to each vertex; edges come ordered by reader."""
    depths = [1] * count
    for source, reader in _distinct_edges(sources, readers):
        depths[reader] = max(depths[reader], depths[source] + 1)
    return np.array(depths, np.int64)


def _distinct_edges(sources: Integers, readers: Integers) -> list[tuple[int, int]]:
    """Return edges as pairs, without those that repeat the one before."""
    keep = np.ones(len(sources), bool)
    keep[1:] = (sources[1:] != sources[:-1]) | (readers[1:] != readers[:-1])
    return list(zip(sources[keep].tolist(), readers[keep].tolist(), strict=True))


def bucket(codes: Integers, sources: Integers, readers: Integers) -> tuple[Integers, Integers] | None:
    """Make one launch of all calls of one code, in an order that respects the edges.

    Parameters
    ----------
    codes : int64 array of shape ``(calls,)``
        What the calls of one launch have in common, such as a type and a level, as a number from 0.
    sources, readers : int64 arrays of shape ``(edges,)``
        The codes that are read, and the codes that read them.

    Returns
    -------
    order, bounds : int64 arrays
        Launch ``i`` holds the calls ``order[bounds[i] : bounds[i + 1]]``; None where the codes read each
        other in a cycle.

    Examples
    --------
    Calls 1 and 2 read call 0, whose code is the highest one.

    >>> bucket(np.array([9, 4, 4]), np.array([9, 9]), np.array([4, 4]))
    (array([0, 1, 2]), array([0, 1, 3]))
    """
    if not len(codes):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    if int(codes.max()) < DENSE:
        distinct = np.flatnonzero(np.bincount(codes))
    else:
        distinct = np.unique(codes)
    number, *ends = (np.searchsorted(distinct, x) for x in (codes, sources, readers))
    rank = _topological(len(distinct), *ends)
    return None if rank is None else by_launch(rank[number])


def schedule(
    types: Integers,
    pending: Integers,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
) -> tuple[Any, ...]:
    """Make one launch of all pending calls of one type and typed level: the policy "auto" in one step.

    Parameters
    ----------
    types : int64 array
        The type of each call.
    pending : int64 array
        The calls to run, in ascending order.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        The operands of all calls.

    Returns
    -------
    calls, bounds : int64 arrays
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    lower_bound : int
        The launches that no schedule can go below.

    Where launches read each other in a cycle, what other policies need: the type of each pending call, the
    edges that `edges` returns, and what `typed_levels` says of them.
    """
    columns = refs, ref_starts, members, member_starts, ragged_starts
    sources, readers = edges(pending, *columns)
    own = np.unique(types[pending], return_inverse=True)[1].ravel()
    levels, cycles, highest = typed_levels(own, sources, readers)
    codes = starts(highest)[own] + levels - 1
    launches = bucket(codes, codes[sources], codes[readers])
    if launches is None:
        return own, sources, readers, levels, cycles, highest
    return pending[launches[0]], launches[1], int(np.where(cycles > COUNTERS, 1, highest).sum())


def _topological(count: int, sources: Integers, targets: Integers) -> Integers | None:
    """Return where each vertex is in a topological order, or None if there is a cycle (Kahn 1962)."""
    sources, targets = unique_pairs(sources, targets, count)
    begin = starts(np.bincount(sources, minlength=count)).tolist()
    waiting = np.bincount(targets, minlength=count).tolist()
    flat = targets.tolist()
    ready = deque(vertex for vertex in range(count) if not waiting[vertex])
    rank = [0] * count
    done = 0
    while ready:
        vertex = ready.popleft()
        rank[vertex] = done
        done += 1
        for target in flat[begin[vertex] : begin[vertex + 1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return np.array(rank, np.int64) if done == count else None
