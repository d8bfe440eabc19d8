"""Small functions over arrays of integers, which this room and others call.

The operands of all calls lie end to end in one array. Of three calls with 2, 0 and 3 operands `starts` says
that theirs begin at 0, 2 and 2, and end at 5; `ranges` returns all positions of some of them.
"""

from __future__ import annotations

import numpy as np

Integers = np.ndarray
"""An array of int64."""

PART_BITS = 40
"""A reference is ``part << PART_BITS | call``."""

CALL_MASK = (1 << PART_BITS) - 1
"""Takes the call out of a reference."""

DENSE = 1 << 22
"""Pairs are told apart by a table of booleans, up to this size: 4 MB. Beyond it they are sorted."""


def starts(widths: Integers) -> Integers:
    """Return where each of some stretches of these widths begins, and where the last one ends, as int64.

    Examples
    --------
    >>> starts(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    ends = np.zeros(len(widths) + 1, np.int64)
    widths.cumsum(out=ends[1:])
    return ends


def ranges(begin: Integers, length: Integers) -> Integers:
    """Return the integers ``begin[i]``, ``begin[i] + 1`` and so on, ``length[i]`` of them, for each ``i``.

    They come one range after the other, as one int64 array.

    Examples
    --------
    >>> ranges(np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    # Position p of the result is in one range i and holds ``begin[i] + p - ends[i]``.
    ends = starts(length)
    return np.arange(ends[-1]) + np.repeat(begin - ends[:-1], length)


def by_launch(launch: Integers) -> tuple[Integers, Integers]:
    """Sort calls by the launch of each.

    Return the calls, and where each launch begins and the last one ends. The calls are positions in
    ``launch``. Those of one launch stay in their order.

    Examples
    --------
    >>> by_launch(np.array([1, 0, 1]))
    (array([1, 0, 2]), array([0, 1, 3]))
    """
    count = int(launch.max()) + 1 if len(launch) else 0
    small = launch.astype(np.uint16) if count < 1 << 16 else launch  # radix sort serves 16 bits
    # Stable, so that the calls of each launch stay in the order of recording.
    return np.argsort(small, kind="stable"), starts(np.bincount(launch, minlength=count))


def unique_pairs(first: Integers, second: Integers, count: int) -> tuple[Integers, Integers]:
    """Return the distinct pairs ``first[i], second[i]`` as two int64 arrays, in ascending order.

    All integers are from 0 to ``count - 1``.

    Examples
    --------
    >>> [column.tolist() for column in unique_pairs(np.array([1, 0, 1]), np.array([0, 2, 0]), 3)]
    [[0, 1], [2, 0]]
    """
    # One integer for each pair: what has to be distinct is one column then.
    codes = first * count + second
    if count * count <= DENSE:
        seen = np.zeros(count * count, bool)
        seen[codes] = True
        distinct = np.flatnonzero(seen)
    else:
        distinct = np.unique(codes)
    return distinct // max(count, 1), distinct % max(count, 1)


def strong_components(count: int, sources: Integers, targets: Integers) -> Integers:
    """Return the strongly connected component of each vertex (Tarjan 1972, without recursion).

    Vertices are 0 to ``count - 1``, and edge ``i`` leads from ``sources[i]`` to ``targets[i]``. Components
    are numbered from 0; each has a higher number than those that its edges lead to.

    Examples
    --------
    >>> strong_components(3, np.array([0, 1, 1]), np.array([1, 0, 2])).tolist()
    [1, 1, 0]
    """
    order = np.argsort(sources, kind="stable")
    begin = starts(np.bincount(sources, minlength=count)).tolist()
    flat = targets[order].tolist()
    # `index` counts from 1, and 0 says that a vertex was not met yet.
    index = [0] * count
    low = [0] * count
    component = [-1] * count
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
                # A target without a component is still on the stack, so there is a way back from it.
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
