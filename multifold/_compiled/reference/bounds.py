"""How few launches a few types need, whatever the order: a bound from a few paths of a graph.

No schedule runs a path in fewer launches than it has calls, nor several paths in fewer than the shortest
sequence of types that has each of them in it, with others in between: their shortest common supersequence.
A handful of paths is enough to show that a graph needs many launches, and small enough to be searched to
the end. So we begin with the path of most calls for each type, find a shortest sequence, and launch the
types of the whole graph in its order. As long as that leaves calls over, the longest path to one of them
joins the others.

Three chains have the types 0, 1, 0, then 1, 0 and 0, 0, 1. The first has most calls of type 0, and the
launches 0, 1, 0 run it. They run the second chain as well, and not the third. That one joins, and a
sequence for both has four launches, such as 0, 1, 0, 1. It runs all three chains, so four is the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from multifold._compiled.arrays import Integers

PATHS = 12
"""How many paths are searched together at most."""

LONGEST = 1000
"""How many calls of a path count: the first ones."""

COMPARED = 64
"""With how many states of a layer, the best ones, each other one is compared."""

Path = tuple[int, ...]
"""The types along a path, or of launches."""


class Reached(NamedTuple):
    """What a sequence of launches has run; the best states come first in order.

    Attributes
    ----------
    total : int
        How many calls have run on all paths, with a minus sign.
    at : tuple of int
        How many of them are on each path.
    before : int
        The number of the state before its last launch.
    type : int
        What that was.
    """

    total: int
    at: Path
    before: int
    type: int


def fewest(types: Integers, sources: Integers, readers: Integers, kinds: int, budget: int) -> int:
    """Return how many launches some types need at least, where the calls of others run for nothing.

    Parameters
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, from 0 to ``kinds - 1``; -1 for the others.
    sources, readers : int64 arrays of shape ``(edges,)``
        Which calls are read, and which read them; ordered by reader, and a source has a smaller number.
    kinds : int
        How many types there are, from 1 to 12.
    budget : int
        How many states the search may go on from in all, below a million; the bound is lower if they do not
        suffice.

    Examples
    --------
    Two chains have the types 0, 1, and 1, 0. No launch of one of these types serves both chains.

    >>> types = np.array([0, 1, 1, 0])
    >>> fewest(types, np.array([0, 2]), np.array([1, 3]), 2, 100)
    3
    """
    if (
        len(sources) != len(readers)
        or not (1 <= kinds <= PATHS and 1 <= budget < 1 << 20)
        or ((types < -1) | (types >= kinds)).any()
        or ((sources < 0) | (sources >= readers) | (readers >= len(types))).any()
        or (np.diff(readers) < 0).any()
    ):
        raise IndexError("A column of calls refers to what is not there.")
    reads: list[list[int]] = [[] for _ in types]
    for source, reader in zip(sources.tolist(), readers.tolist(), strict=True):
        reads[reader].append(source)
    new = [unserved(types.tolist(), reads, (), only) for only in range(kinds)]
    paths: list[Path] = []
    found = 0
    while any(new) and len(paths) < PATHS:
        paths += filter(None, new)
        found = max(found, left(paths, [0] * len(paths), kinds))
        sequence, budget = grow(paths, kinds, found, budget)
        while sequence is None and budget >= 0:
            found += 1
            sequence, budget = grow(paths, kinds, found, budget)
        new = [] if sequence is None else [unserved(types.tolist(), reads, sequence)]
    return found


def unserved(types: list[int], reads: list[list[int]], sequence: Path, only: int | None = None) -> Path:
    """Return the longest path that the launches of a sequence do not run to its end, () if they run all.

    With ``only``, the calls of other types run for nothing, and do not make a path longer.
    """
    never = len(sequence) + 1
    rank: list[tuple[int, int]] = []  # after how many launches a call has run, and the length of its path
    before: list[int] = []
    for type_, sources in zip(types, reads, strict=True):
        before.append(max(sources, key=rank.__getitem__, default=-1))
        late, length = rank[before[-1]] if sources else (0, 0)
        if type_ >= 0 and only in (None, type_):
            late = next((i + 1 for i in range(late, never - 1) if sequence[i] == type_), never)
            length += 1
        rank.append((late, length))
    call = max(range(len(types)), key=rank.__getitem__, default=-1)
    path: list[int] = []
    while call >= 0 and (path or rank[call][0] == never):
        path.append(types[call])
        call = before[call]
    return tuple(type_ for type_ in reversed(path) if type_ >= 0)[:LONGEST]


def left(paths: Sequence[Path], at: Sequence[int], kinds: int) -> int:
    """Return how many launches a state needs at least: of each type, the most on one path."""
    rests = [path[i:] for path, i in zip(paths, at, strict=True)]
    return sum(max(rest.count(type_) for rest in rests) for type_ in range(kinds))


def grow(paths: Sequence[Path], kinds: int, most: int, budget: int) -> tuple[Path | None, int]:
    """Return a sequence of ``most`` launches at most that runs all paths, and what is left of the budget.

    None says that there is none; or that the budget did not suffice, of which less than 0 is left then.
    """
    states = [Reached(0, (0,) * len(paths), 0, 0)]
    total = -sum(map(len, paths))
    begin = 0
    for number in range(1, most + 1):
        end = len(states)
        layer = []
        for i in range(begin, end):
            budget -= 1
            if budget < 0:
                return None, budget
            for type_ in range(kinds):
                places = zip(paths, states[i].at, strict=True)
                at = tuple(place + (path[place : place + 1] == (type_,)) for path, place in places)
                if at == states[i].at or number + left(paths, at, kinds) > most:
                    continue
                layer.append(Reached(-sum(at), at, i, type_))
                if layer[-1].total == total:
                    return sequence_to(layer[-1], states), budget
        begin = end
        states += ahead(sorted(layer))
    return None, budget


def ahead(layer: list[Reached]) -> list[Reached]:
    """Return the states of an ordered layer that are behind none of the best ones."""
    kept: list[Reached] = []
    for state in layer:
        # Equal states are neighbours, so the last one that was kept is looked at as well.
        others = [*kept[-1:], *kept[:COMPARED]]
        if not any(all(a <= b for a, b in zip(state.at, other.at, strict=True)) for other in others):
            kept.append(state)
    return kept


def sequence_to(state: Reached, states: list[Reached]) -> Path:
    """Return the types of the launches that lead to a state."""
    found = [state.type]
    while state.before:
        state = states[state.before]
        found.append(state.type)
    return tuple(reversed(found))
