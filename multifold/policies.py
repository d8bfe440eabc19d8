"""Scheduling policies: from a `Problem` of integers to the launch of each call.

``"auto"`` buckets calls by (type, typed level). If the graph of buckets has no cycle, any topological
order of it is a schedule with as many launches as the lower bound. Otherwise calls are covered
greedily, always preferring the launch that is most certain to lower the bound. ``"depth"`` is what
TensorFlow Fold, TorchFold and mxnet-jit-batch do, ``"agenda"`` is DyNet's rule (Neubig et al. 2017,
"On-the-fly operation batching in dynamic computation graphs", section 3.2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from multifold.columns import Integers, starts
from multifold.levels import Problem, number_pairs, unique_pairs

Policy = Callable[[Problem], Integers]
"""Returns the number of the launch of each call; launches run in ascending order."""


def auto(problem: Problem) -> Integers:
    """Bucket by typed level where that is a schedule, else cover greedily."""
    return bucketed(problem, problem.levels, cyclic=critical_cover)


def depth(problem: Problem) -> Integers:
    """Bucket by depth: the rule of the predecessors."""
    return bucketed(problem, problem.depths, cyclic=critical_cover)


def bucketed(problem: Problem, levels: Integers, cyclic: Policy) -> Integers:
    """Make one launch of each (type, level), in an order that respects the edges."""
    if not len(problem):
        return np.zeros(0, np.int64)
    count, bucket = number_pairs(problem.types, levels)  # a type may have no call at some level
    rank = topological(count, bucket[problem.sources], bucket[problem.readers])
    return cyclic(problem) if rank is None else rank[bucket]


def topological(count: int, sources: Integers, targets: Integers) -> Integers | None:
    """Return each vertex's place in a topological order, or None if there is a cycle (Kahn 1962)."""
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


def critical_cover(problem: Problem) -> Integers:
    """Always launch the type whose ready calls are the most likely to lower the bound.

    Among types with ready calls take the largest of (share of the calls at the type's greatest
    remaining height that are ready, share of its calls that are ready, that height). Where the first
    is 1 the launch lowers the bound by exactly one.
    """
    heights = problem.heights.tolist()
    frontier = Frontier(problem)
    types = frontier.types
    unrun: list[dict[int, int]] = [{} for _ in range(problem.type_count)]
    for kind, height in zip(types, heights, strict=True):
        unrun[kind][height] = unrun[kind].get(height, 0) + 1
    tallest = [max(counts) for counts in unrun]
    ready: list[dict[int, int]] = [{} for _ in range(problem.type_count)]
    for calls in frontier.ready.values():
        for call in calls:
            kind = types[call]
            ready[kind][heights[call]] = ready[kind].get(heights[call], 0) + 1

    def score(kind: int) -> tuple[float, float, int, int]:
        height = tallest[kind]
        critical = ready[kind].get(height, 0) / unrun[kind][height]
        return critical, len(frontier.ready[kind]) / frontier.unrun[kind], height, -kind

    while frontier.ready:
        kind = max(frontier.ready, key=score)
        calls, opened = frontier.run(kind)
        ready[kind] = {}
        for call in calls:
            unrun[kind][heights[call]] -= 1
        while tallest[kind] and not unrun[kind].get(tallest[kind]):
            tallest[kind] -= 1
        for call in opened:
            other = types[call]
            ready[other][heights[call]] = ready[other].get(heights[call], 0) + 1
    return np.array(frontier.launch, np.int64)


def agenda(problem: Problem) -> Integers:
    """Always launch the type whose unrun calls have the least average depth."""
    depths = problem.depths.tolist()
    frontier = Frontier(problem)
    total = np.bincount(problem.types, problem.depths, minlength=problem.type_count).tolist()
    while frontier.ready:
        kind = min(frontier.ready, key=lambda kind: (total[kind] / frontier.unrun[kind], kind))
        calls, _ = frontier.run(kind)
        total[kind] -= sum(depths[call] for call in calls)
    return np.array(frontier.launch, np.int64)


POLICIES: dict[str, Policy] = {"auto": auto, "depth": depth, "agenda": agenda}
"""The names that ``Fold(schedule=...)`` takes."""
