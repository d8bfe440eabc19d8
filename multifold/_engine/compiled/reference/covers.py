"""Schedules where types read each other in a circle: a beam of partial schedules, made side by side.

All ready calls of a type may as well run when one of them does, so a schedule is a sequence of types, and a
partial schedule is known by the set of calls that it has run. Calls of types that are in no circle need no
search: one launch for each of their types and levels fits into any schedule of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from multifold._engine.compiled import _calls as calls
from multifold._engine.compiled.arrays import Integers, starts

LONGEST = 1024
"""A longer path than this one is scaled down to it before it is cubed, for the integers of 64 bits."""


class State(NamedTuple):
    """A partial schedule.

    Attributes
    ----------
    waiting : list of int
        How many edges each call still waits for.
    ready : dict
        Type -> the calls that may run.
    unrun : list of dict
        Type -> height -> how many calls have not run.
    left : int
        How many launches the rest needs at least: the sum of the greatest heights of all types.
    weight : int
        Of the calls that have not run, less that of all calls: it only ranks states.
    done : int
        The calls that have run, as bits.
    chosen : tuple of int
        The types that were launched.
    """

    waiting: list[int]
    ready: dict[int, list[int]]
    unrun: list[dict[int, int]]
    left: int
    weight: int
    done: int
    chosen: tuple[int, ...]


def beam(
    types: Integers, heights: Integers, sources: Integers, readers: Integers, width: int, most: int
) -> Integers | None:
    """Return the launch of each call in the shortest schedule that a beam search finds.

    Each step launches one more type in each of the ``width`` best partial schedules. The best ones are
    those whose rest needs the fewest launches at least; then those whose calls left to run weigh the least.
    A call weighs the third power of the number of calls on the longest path from it, so that long examples
    do not fall behind. With a width of 1 this is a greedy rule.

    Parameters
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, less than the number of calls.
    heights : int64 array of shape ``(calls,)``
        The typed level of each call, counted from the sinks.
    sources, readers : int64 arrays of shape ``(edges,)``
        Which calls are read, and which read them; ordered by reader, and a source has a smaller number.
    width : int
        How many partial schedules go on from each step.
    most : int
        How many launches the schedule may have.

    Returns
    -------
    int64 array of shape ``(calls,)``, or None if the beam finds no schedule of ``most`` launches.

    Examples
    --------
    Of two chains, 0 and 1 have the types 0 and 1, and 2 to 4 the types 1, 0 and 1. One more launch of type
    1 at first lets the rest of both run together.

    >>> types, heights = np.array([0, 1, 1, 0, 1]), np.array([1, 1, 2, 1, 1])
    >>> beam(types, heights, np.array([0, 2, 3]), np.array([1, 3, 4]), 1, 5)
    array([1, 2, 0, 1, 2])
    """
    check(types, heights, sources, readers, min(width, most))
    if not len(types):
        return np.zeros(0, np.int64)
    graph = Weighed(types, heights, sources, readers)
    chosen = graph.grow(width, most)
    return None if chosen is None else graph.launches(chosen)


def check(types: Integers, heights: Integers, sources: Integers, readers: Integers, least: int) -> None:
    """Raise IndexError for columns that refer to what is not there, and if ``least`` is below 1."""
    count = len(types)
    if (
        len(heights) != count
        or len(sources) != len(readers)
        or least < 1
        or ((types < 0) | (types >= count) | (heights < 1) | (heights > count)).any()
        or ((sources < 0) | (sources >= readers) | (readers >= count)).any()
    ):
        raise IndexError("A column of calls refers to what is not there.")


def cover(
    types: Integers,
    levels: Integers,
    cycles: Integers,
    sources: Integers,
    readers: Integers,
    width: int,
    bound: int,
    most: int,
) -> tuple[Integers, Integers] | None:
    """Return the shorter one of the schedules that a beam finds from the first launch and from the last.

    Only calls of types that read each other in a circle are searched. No call of another type lies between
    two of one circle, since its type would be in the circle as well. So the launches of the others, one for
    each type and level, are put in where they belong, and cost the circle none.

    Examples that differ in how they begin and end alike are easier from the last launch: 64 plans of
    TPC-H's queries, which end in a few sorts and aggregates, take 30 launches so, and 31.5 from the first.

    Parameters
    ----------
    types, sources, readers, width
        As for `beam`.
    levels : int64 array of shape ``(calls,)``
        The typed level of each call.
    cycles : int64 array
        How many types lie on one cycle with each type, as `typed_levels` returns it.
    bound : int
        A lower bound on the launches of any schedule: one that has as few ends the search.
    most : int
        How many launches the schedule may have. It has fewer than one launch for each type and depth.

    Returns
    -------
    order, bounds : int64 arrays
        Launch ``i`` holds the calls ``order[bounds[i] : bounds[i + 1]]``; None where neither beam finds a
        schedule.

    Examples
    --------
    The two chains of `beam`, whose types are in a circle, and call 5 of type 2, which reads call 1.

    >>> types, levels = np.array([0, 1, 1, 0, 1, 2]), np.array([1, 1, 1, 1, 2, 1])
    >>> sources, readers = np.array([0, 2, 3, 1]), np.array([1, 3, 4, 5])
    >>> cover(types, levels, np.array([2, 2, 0]), sources, readers, 8, 4, 6)
    (array([2, 0, 3, 1, 4, 5]), array([0, 1, 3, 5, 6]))
    """
    check(types, levels, sources, readers, width)
    if (types >= len(cycles)).any():
        raise IndexError("A column of calls refers to what is not there.")
    highest = np.zeros(len(cycles), np.int64)
    np.maximum.at(highest, types, levels)
    first = starts(np.where(cycles > 1, 0, highest))  # the launches of types in no circle
    others = int(first[-1])
    codes = first[types] + levels - 1
    number = np.cumsum((cycles > 1) & (highest > 0)) - 1
    circle = cycles[types] > 1
    place = np.cumsum(circle) - 1
    within = circle[sources] & circle[readers]
    part = number[types[circle]], levels[circle], place[sources[within]], place[readers[within]]
    # With one type for all calls, the typed level is the depth.
    depths = calls.typed_levels(0 * types, sources, readers)[0]
    most = min(most, len(np.unique(np.stack([types, depths]), axis=1).T) - 1) - others
    launch = both_ways(*part, width, bound - others, most)
    if launch is None:
        return None
    codes[circle] = others + launch
    return calls.bucket(codes, codes[sources], codes[readers])


def both_ways(
    types: Integers,
    levels: Integers,
    sources: Integers,
    readers: Integers,
    width: int,
    bound: int,
    most: int,
) -> Integers | None:
    """Return the launch of each call in the shorter of two schedules, one found from each end.

    None if none is.
    """
    found = None
    last = len(types) - 1
    of_last = np.ascontiguousarray(types[::-1])  # the last call first
    turned = of_last, np.ascontiguousarray(last - readers[::-1]), np.ascontiguousarray(last - sources[::-1])
    heights, cycles, _ = calls.typed_levels(*turned)
    # On a cycle of very many types, levels count the calls of all of them. One type's bound is only 1.
    counted = cycles[types] <= calls.COUNTERS if len(types) else cycles  # the others are counted jointly
    levels = np.where(counted, levels, 1)
    heights = np.where(counted, heights[::-1], 1)
    if len(types) and most >= max(bound, 1):
        found = beam(types, heights, sources, readers, width, most)
        most = most if found is None else int(found.max())
        if most >= max(bound, 1):
            launch = beam(turned[0], levels[::-1], *turned[1:], width, most)
            found = found if launch is None else launch.max() - launch[::-1]
    return found


class Weighed:
    """The calls of a problem with their weights and readers."""

    def __init__(self, types: Integers, heights: Integers, sources: Integers, readers: Integers) -> None:
        self.types = types.tolist()
        self.heights = heights.tolist()
        self.waiting = np.bincount(readers, minlength=len(types)).tolist()
        self.readers: list[list[int]] = [[] for _ in self.types]
        paths = [1] * len(types)
        for source, reader in zip(reversed(sources.tolist()), reversed(readers.tolist()), strict=True):
            self.readers[source].append(reader)
            paths[source] = max(paths[source], paths[reader] + 1)  # the path from a reader is known by now
        longest = max(paths)
        if longest > LONGEST:
            paths = [1 + path * LONGEST // longest for path in paths]
        self.weights = [path**3 for path in paths]

    def start(self) -> State:
        """Make the state in which no call has run."""
        unrun: list[dict[int, int]] = [{} for _ in self.types]  # there are no more types than calls
        for type_, height in zip(self.types, self.heights, strict=True):
            unrun[type_][height] = unrun[type_].get(height, 0) + 1
        ready = self.by_type(call for call, count in enumerate(self.waiting) if not count)
        return State(self.waiting.copy(), ready, unrun, sum(max(x, default=0) for x in unrun), 0, 0, ())

    def by_type(self, calls: Iterable[int]) -> dict[int, list[int]]:
        """Return type -> the calls of that type, in their order."""
        found: dict[int, list[int]] = {}
        for call in calls:
            found.setdefault(self.types[call], []).append(call)
        return found

    def served(self, waiting: list[int], call: int) -> list[int]:
        """Count down what the readers of a call wait for, in ``waiting``.

        Return those that now wait for nothing.
        """
        for reader in self.readers[call]:
            waiting[reader] -= 1
        return list(dict.fromkeys(reader for reader in self.readers[call] if not waiting[reader]))

    def grow(self, width: int, most: int) -> tuple[int, ...] | None:
        """Search for a schedule.

        Return the types that it launches, in order, None if ``most`` launches don't suffice. Each step
        keeps the ``width`` best states. The first state to run all calls is returned.
        """
        states = [self.start()]
        for number in range(1, most + 1):
            options = sorted(self.option(x, type_, i) for i, x in enumerate(states) for type_ in x.ready)
            found: dict[int, State] = {}
            for left, _, type_, i in options:
                # Options are sorted by what is left, so all after one that is too long are too long.
                if len(found) == width or number + left > most:
                    break
                # Two orders of the same launches lead to one set of calls, which is kept once.
                done = states[i].done | sum(1 << call for call in states[i].ready[type_])
                if done not in found:
                    state = found[done] = self.after(states[i], type_, done)
                    if not state.ready:
                        return state.chosen
            states = list(found.values())
        return None

    def option(self, state: State, type_: int, number: int) -> tuple[int, int, int, int]:
        """Return the rank of launching type ``type_`` next in state ``number`` of the beam.

        The lowest is best. The rank is (launches left at least, weight left, type, number).
        """
        ready = state.ready[type_]
        tallest = max(state.unrun[type_])
        # The rest needs a launch less only if all calls of the greatest height of the type are ready: else
        # one of them is left, and still needs as many.
        critical = sum(self.heights[call] == tallest for call in ready) == state.unrun[type_][tallest]
        return state.left - critical, state.weight - sum(self.weights[x] for x in ready), type_, number

    def after(self, state: State, type_: int, done: int) -> State:
        """Make the state after a launch of all ready calls of a type; ``state`` itself stays as it is.

        ``done`` has the calls that have run after that launch, as bits.
        """
        waiting = state.waiting.copy()
        unrun = state.unrun.copy()
        counts = unrun[type_] = state.unrun[type_].copy()
        calls: list[int] = []
        for call in state.ready[type_]:
            counts[self.heights[call]] -= 1
            if not counts[self.heights[call]]:
                del counts[self.heights[call]]
            calls += self.served(waiting, call)
        ready = {key: calls for key, calls in state.ready.items() if key != type_}
        for key, more in self.by_type(calls).items():
            ready[key] = ready.get(key, []) + more
        left = state.left - max(state.unrun[type_]) + max(counts, default=0)
        weight = state.weight - sum(self.weights[call] for call in state.ready[type_])
        return State(waiting, ready, unrun, left, weight, done, (*state.chosen, type_))

    def launches(self, chosen: tuple[int, ...]) -> Integers:
        """Return the launch of each call, from 0; ``chosen`` has the type of each launch, in order."""
        launch = np.zeros(len(self.types), np.int64)
        state = self.start()
        for number, type_ in enumerate(chosen):
            launch[state.ready[type_]] = number
            state = self.after(state, type_, state.done)
        return launch
