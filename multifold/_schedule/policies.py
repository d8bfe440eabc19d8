"""Scheduling policies: from a `Problem` of integers to the launch of each call.

``"auto"`` buckets calls by (type, typed level). If the graph of buckets has no cycle, any topological
order of it is a schedule with as many launches as the lower bound. Otherwise calls are covered
greedily, always preferring the launch that is most certain to lower the bound. ``"depth"`` is what
TensorFlow Fold, TorchFold and mxnet-jit-batch do, ``"agenda"`` is DyNet's rule (Neubig et al. 2017,
"On-the-fly operation batching in dynamic computation graphs", section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from multifold import _compiled
from multifold._compiled.arrays import Integers, by_launch, ranges, starts
from multifold._schedule.levels import Problem

Launches = tuple[Integers, Integers]
"""The calls ordered by launch, and where each launch begins in them."""

Policy = Callable[[Problem], Launches]
"""Makes the launches of a problem."""


def auto(problem: Problem) -> Launches:
    """Bucket by typed level where that is a schedule; else the best of two greedy covers and depth."""
    found = bucketed(problem, problem.levels)
    if found is not None:
        return found
    found = critical_cover(problem, critical_first)
    if length(found) == problem.lower_bound:
        return found
    return min(found, critical_cover(problem, certain_first), depth(problem), key=length)


def depth(problem: Problem) -> Launches:
    """Bucket by depth: the rule of the predecessors."""
    found = bucketed(problem, problem.depths)
    # Every reader is deeper than what it reads, so the buckets have no cycle and `found` is never None;
    # the cover is here for the type checker.
    return critical_cover(problem) if found is None else found


def length(launches: Launches) -> int:
    """Return the number of launches."""
    return len(launches[1]) - 1


def bucketed(problem: Problem, levels: Integers) -> Launches | None:
    """Make one launch of each (type, level) in an order that respects the edges; None if none does."""
    codes = problem.types * (int(levels.max()) + 1) + levels if len(levels) else levels
    return _compiled.bucket(codes, codes[problem.sources], codes[problem.readers])


class Frontier:
    """The state of a greedy schedule: which calls are ready, by type."""

    def __init__(self, problem: Problem) -> None:
        self.types = problem.types.tolist()
        order = np.argsort(problem.sources, kind="stable")
        self.begin = starts(np.bincount(problem.sources, minlength=len(problem))).tolist()
        self.readers = problem.readers[order].tolist()
        self.waiting = np.bincount(problem.readers, minlength=len(problem)).tolist()
        self.ready: dict[int, list[int]] = {}
        self.unrun = np.bincount(problem.types, minlength=problem.type_count).tolist()
        self.launch = [0] * len(problem)
        self.launches = 0
        for call in np.flatnonzero(np.array(self.waiting, np.int64) == 0).tolist():
            self.ready.setdefault(self.types[call], []).append(call)

    def run(self, chosen: int) -> tuple[list[int], list[int]]:
        """Launch all ready calls of a type; return them and the calls that became ready."""
        calls = self.ready.pop(chosen)
        self.unrun[chosen] -= len(calls)
        opened = []
        for call in calls:
            self.launch[call] = self.launches
            for reader in self.readers[self.begin[call] : self.begin[call + 1]]:
                self.waiting[reader] -= 1
                if not self.waiting[reader]:
                    opened.append(reader)
                    self.ready.setdefault(self.types[reader], []).append(reader)
        self.launches += 1
        return calls, opened


Rank = Callable[[float, float, int], tuple[float, ...]]
"""Orders types by what launching them would do: see `critical_cover`."""


def critical_first(critical: float, share: float, height: int) -> tuple[float, ...]:
    """Prefer the type whose launch comes nearest to lowering the bound."""
    return critical, share, height


def certain_first(critical: float, share: float, height: int) -> tuple[float, ...]:
    """Prefer a type whose launch surely lowers the bound, then one with a large share of calls ready."""
    return critical == 1, share, critical, height


def critical_cover(problem: Problem, rank: Rank = critical_first) -> Launches:
    """Always launch the type whose ready calls are the most likely to lower the bound.

    The height of a call is its typed level counted from the end. Of each type, only the calls of the
    greatest height that is left keep the bound up. Types are ranked by three figures: which share of these
    calls is ready (``critical``), which share of all calls of the type is ready (``share``), and that
    height. If 2 of 3 such calls are ready, ``critical`` is 2/3; at 1 the launch lowers the bound by exactly
    one. Neither `critical_first` nor `certain_first` is better on all graphs.
    """
    heights = problem.heights.tolist()
    frontier = Frontier(problem)
    types = frontier.types
    unrun: list[dict[int, int]] = [{} for _ in range(problem.type_count)]
    for type_, height in zip(types, heights, strict=True):
        unrun[type_][height] = unrun[type_].get(height, 0) + 1
    tallest = [max(counts) for counts in unrun]
    ready: list[dict[int, int]] = [{} for _ in range(problem.type_count)]
    for calls in frontier.ready.values():
        for call in calls:
            type_ = types[call]
            ready[type_][heights[call]] = ready[type_].get(heights[call], 0) + 1

    def score(type_: int) -> tuple[float, ...]:
        height = tallest[type_]
        critical = ready[type_].get(height, 0) / unrun[type_][height]
        share = len(frontier.ready[type_]) / frontier.unrun[type_]
        return *rank(critical, share, height), -type_

    while frontier.ready:
        type_ = max(frontier.ready, key=score)
        calls, opened = frontier.run(type_)
        ready[type_] = {}
        for call in calls:
            unrun[type_][heights[call]] -= 1
        while tallest[type_] and not unrun[type_].get(tallest[type_]):
            tallest[type_] -= 1
        for call in opened:
            other = types[call]
            ready[other][heights[call]] = ready[other].get(heights[call], 0) + 1
    return by_launch(np.array(frontier.launch, np.int64))


def agenda(problem: Problem) -> Launches:
    """Always launch the type whose calls have the least average depth, as DyNet does."""
    frontier = Frontier(problem)
    total = np.bincount(problem.types, problem.depths, minlength=problem.type_count)
    average = (total / np.bincount(problem.types, minlength=problem.type_count)).tolist()
    while frontier.ready:
        frontier.run(min(frontier.ready, key=lambda type_: (average[type_], type_)))
    return by_launch(np.array(frontier.launch, np.int64))


@dataclass(frozen=True, eq=False)
class State:
    """A partial schedule of `search`: which calls have run, and a bound on the launches of the rest.

    Attributes
    ----------
    waiting : int32 array of shape ``(calls,)``
        How many sources each call still waits for.
    ready : bool array of shape ``(calls,)``
        Which calls may run.
    unrun : int32 array of shape ``(types, heights)``
        How many calls of each type and height have not run.
    done : int
        How many calls have run.
    chosen : tuple or None
        The ``chosen`` of the state before, and the type that was launched last. Many states of a beam
        have one beginning, and a linked list shares it.
    """

    waiting: Integers
    ready: np.ndarray
    unrun: Integers
    done: int
    chosen: tuple[Any, int] | None

    @cached_property
    def left(self) -> int:
        """How many launches the rest needs at least: the sum of the greatest heights of all types."""
        tall = self.unrun.shape[1] - 1 - np.argmax(self.unrun[:, ::-1] > 0, axis=1)
        return int(tall[self.unrun.any(axis=1)].sum())


def search(problem: Problem, width: int = 24) -> Launches:
    """Keep the ``width`` best partial schedules, ranked by how many launches the rest needs at least.

    A beam search, for graphs that are run often enough to be worth seconds. Never worse than ``auto``.
    """
    best = auto(problem)
    if length(best) <= problem.lower_bound:
        return best
    types, heights = problem.types, problem.heights
    order = np.argsort(problem.sources, kind="stable")
    readers = problem.readers[order]
    begin = starts(np.bincount(problem.sources, minlength=len(problem)))
    waiting = np.bincount(problem.readers, minlength=len(problem)).astype(np.int32)
    unrun = np.zeros((problem.type_count, int(heights.max()) + 1), np.int32)
    np.add.at(unrun, (types, heights), 1)

    def after(state: State, type_: int) -> State:
        calls = np.flatnonzero(state.ready & (types == type_))
        opened = readers[ranges(begin[calls], begin[calls + 1] - begin[calls])]
        waiting, ready, unrun = state.waiting.copy(), state.ready.copy(), state.unrun.copy()
        np.subtract.at(waiting, opened, 1)
        ready[calls] = False
        ready[opened[waiting[opened] == 0]] = True
        np.subtract.at(unrun[type_], heights[calls], 1)
        return State(waiting, ready, unrun, state.done + len(calls), (state.chosen, type_))

    beam = [State(waiting, waiting == 0, unrun, 0, None)]
    for launches in range(1, length(best)):
        found: dict[bytes, State] = {}
        for state in beam:
            for type_ in np.unique(types[state.ready]).tolist():
                grown = after(state, type_)
                found.setdefault(grown.unrun.tobytes() + np.packbits(grown.ready).tobytes(), grown)
        beam = sorted(found.values(), key=lambda state: (state.left, -state.done))[:width]
        beam = [state for state in beam if launches + state.left < length(best)]
        if not beam:
            return best
        if beam[0].done == len(problem):
            break
    frontier = Frontier(problem)
    chosen, chosen_types = beam[0].chosen, []
    while chosen is not None:
        chosen, type_ = chosen
        chosen_types.append(type_)
    for type_ in reversed(chosen_types):
        frontier.run(type_)
    return by_launch(np.array(frontier.launch, np.int64))


POLICIES: dict[str, Policy] = {"auto": auto, "depth": depth, "agenda": agenda, "search": search}
"""The names that ``Fold(schedule=...)`` takes."""
