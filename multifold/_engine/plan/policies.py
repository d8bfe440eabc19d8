"""Scheduling policies: from a `Problem` of integers to the launch of each call.

``"auto"`` buckets calls by (type, typed level). If the graph of buckets has no cycle, any topological
order of it is a schedule with as many launches as the lower bound. Otherwise the calls whose types
read each other in a circle are searched by a small beam, which launches first what lowers the bound of the
rest, and then what much depends on: once from the first launch to the last, and once backwards.
``"search"`` goes on with beams that are as wide as its budget allows. ``"depth"`` is what TensorFlow Fold,
TorchFold and mxnet-jit-batch do, ``"agenda"`` is DyNet's rule (Neubig et al. 2017, "On-the-fly operation
batching in dynamic computation graphs", section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers, by_launch, starts
from multifold._engine.plan.levels import Problem

WIDTH = 12
"""How many partial schedules ``auto`` keeps: its time grows with them, and more seldom save a launch."""

EXPANSIONS = 8
"""How many launches ``search`` may try for each call: some microseconds a call."""

LARGEST = 1 << 21
"""How many calls the partial schedules of ``search`` may have in all: each takes 8 bytes or more."""

Launches = tuple[Integers, Integers]
"""The calls ordered by launch, and where each launch begins in them."""

Policy = Callable[[Problem], Launches]
"""Makes the launches of a problem."""


def auto(problem: Problem) -> Launches:
    """Return a launch for each type and level where these can be ordered; else what a small search finds.

    Launches are ``(calls, bounds)``: launch ``i`` is ``calls[bounds[i] : bounds[i + 1]]``. Where types read
    each other in a circle, they are the shorter of what a beam of width `WIDTH` and `depth` find.
    """
    found = bucketed(problem, problem.levels)
    return without_buckets(problem) if found is None else found


def without_buckets(problem: Problem) -> Launches:
    """Return what "auto" finds for a problem in which a launch for each type and level is no schedule."""
    return shorter(problem, WIDTH, len(problem)) or depth(problem)


def search(problem: Problem, expansions: int | None = None) -> Launches:
    """Return the launches that `auto` finds, or fewer ones from beams as wide as a budget allows.

    Parameters
    ----------
    problem : Problem
        The calls.
    expansions : int, optional
        How many launches the search may try in all; by default eight for each call, and at least 2,000.
        More of them take longer, and nearly always find a schedule that is at least as short; it is never
        longer than that of ``auto``.
    """
    found = auto(problem)
    if length(found) <= problem.lower_bound:
        return found
    if expansions is None:
        expansions = max(EXPANSIONS * len(problem), 2000)
    # Two beams, one forwards and one backwards, each try ``width`` launches in every step of a schedule.
    width = min(expansions // (2 * length(found)), LARGEST // len(problem))
    return shorter(problem, max(width, 1), length(found) - 1) or found


def shorter(problem: Problem, width: int, most: int) -> Launches | None:
    """Return the best launches of two beams of that width, at most ``most``; None if they find none.

    One beam searches from the first launch, and one from the last. What they find is also shorter than
    `depth`.
    """
    columns = problem.types, problem.levels, problem.cycles, problem.sources, problem.readers
    return compiled.cover(*columns, width, problem.lower_bound, most)


def depth(problem: Problem) -> Launches:
    """Return a launch for each type and depth, as TensorFlow Fold, TorchFold and mxnet-jit-batch do."""
    # Every reader is deeper than what it reads, so the buckets have no cycle and `bucketed` finds a
    # schedule; the other one is here for the type checker.
    return bucketed(problem, problem.depths) or by_launch(np.arange(len(problem)))


def length(launches: Launches) -> int:
    """Return how many launches ``(calls, bounds)`` has: one less than its bounds."""
    return len(launches[1]) - 1


def bucketed(problem: Problem, levels: Integers) -> Launches | None:
    """Return a launch for each pair of type and level, each after those that it reads; else None.

    ``levels`` has a level for each call, from 1. It is None if launches would read each other in a cycle.
    Launch ``i`` of ``(calls, bounds)`` is ``calls[bounds[i] : bounds[i + 1]]``.
    """
    # Levels begin at 1, so with 5 levels type 0 has the codes 1 to 5, and type 1 the codes 6 to 10.
    codes = problem.types * int(levels.max()) + levels if len(levels) else levels
    return compiled.bucket(codes, codes[problem.sources], codes[problem.readers])


def agenda(problem: Problem) -> Launches:
    """Return launches as DyNet makes them: each has all ready calls of the type of least mean depth.

    A call is ready when all that it reads are launched, and the mean is over all calls of the type. Of two
    types with one mean the smaller number goes first.
    """
    types = problem.types.tolist()
    # ``readers[begin[call] : begin[call + 1]]`` are the calls that read a call.
    order = np.argsort(problem.sources, kind="stable")
    begin = starts(np.bincount(problem.sources, minlength=len(problem))).tolist()
    readers = problem.readers[order].tolist()
    waiting = np.bincount(problem.readers, minlength=len(problem)).tolist()
    # No division by zero: `problem_of` numbers types without gaps.
    total = np.bincount(problem.types, problem.depths)
    average = (total / np.bincount(problem.types)).tolist()
    ready: dict[int, list[int]] = {}
    for call, type_ in enumerate(types):
        if not waiting[call]:
            ready.setdefault(type_, []).append(call)
    launch = np.zeros(len(types), np.int64)
    launches = 0
    while ready:
        # Of two types of equal depth the smaller number goes first, so that each run has the same schedule.
        calls = ready.pop(min(ready, key=lambda type_: (average[type_], type_)))
        launch[calls] = launches
        launches += 1
        for call in calls:
            for reader in readers[begin[call] : begin[call + 1]]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.setdefault(types[reader], []).append(reader)
    return by_launch(launch)


POLICIES: dict[str, Policy] = {"auto": auto, "depth": depth, "agenda": agenda, "search": search}
"""The names that ``Fold(schedule=...)`` takes."""
