"""How far the lower bound and schedules of small graphs are from the fewest launches, by all schedules.

A state is the set of calls that have run. From each state a launch runs all ready calls of one type: no
fewest schedule needs to leave one out, since a call that is ready stays ready. Many orders of launches lead
to one state, so 16 calls have a few hundred.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from multifold._compare.results import Row
from multifold._schedule import policies
from multifold._schedule.levels import Problem

CALLS, TYPES = (4, 16), (2, 4)
"""The fewest and the most calls and types of a graph."""


class SmallGraph(NamedTuple):
    """A typed graph: the type of each call, and the calls that each of them reads."""

    types: list[int]
    reads: list[list[int]]

    @property
    def problem(self) -> Problem:
        """The graph as the scheduler sees it."""
        pairs = [(source, reader) for reader, sources in enumerate(self.reads) for source in sources]
        sources, readers = np.array(pairs, np.int64).reshape(len(pairs), 2).T
        return Problem(np.array(self.types, np.int64), sources.copy(), readers.copy())


def small_graph(rng: random.Random) -> SmallGraph:
    """Return a random graph: each call reads none, one or two of those before it."""
    calls, types = rng.randint(*CALLS), rng.randint(*TYPES)
    drawn = [rng.randrange(types) for _ in range(calls)]
    reads = [sorted(rng.sample(range(i), min(i, rng.choice((0, 1, 1, 2))))) for i in range(calls)]
    return SmallGraph(np.unique(drawn, return_inverse=True)[1].tolist(), reads)


def fewest_launches(graph: SmallGraph) -> int:
    """Return the fewest launches of a graph, by all schedules.

    Examples
    --------
    >>> fewest_launches(SmallGraph([0, 1, 0, 1], [[], [], [1], [0]]))  # a, b, then a of b and b of a
    3
    """
    calls = range(len(graph.types))
    masks = [sum(1 << i for i in calls if graph.types[i] == one) for one in set(graph.types)]
    needs = [sum(1 << source for source in sources) for sources in graph.reads]
    states, launches, everything = {0}, 0, (1 << len(calls)) - 1
    while everything not in states:
        reached: set[int] = set()
        for state in states:
            ready = sum(1 << i for i in calls if not state >> i & 1 and needs[i] & state == needs[i])
            reached |= {state | (ready & mask) for mask in masks if ready & mask}
        states = reached
        launches += 1
    return launches


def measure_gap(
    graphs: int, *, seed: int = 0, advance: Callable[[str], object] = lambda what: None
) -> list[Row]:
    """Compare the lower bound and policies with the fewest launches of random graphs; a row for each.

    Parameters
    ----------
    graphs : int
        How many.
    seed : int
        Of the graphs.
    advance : callable
        Told after each graph.

    Returns
    -------
    list of dict
        ``name``; ``gaps``, how many graphs are how many launches off: the bound below the fewest, a
        policy above; ``exact``, the part of all graphs that are not; ``graphs``; ``circles``, the number of
        those whose types meet in a circle; and ``launches``, the sum of the fewest.

    Examples
    --------
    >>> [(row["name"], row["exact"]) for row in measure_gap(20) if row["name"] in ("auto", "bound")]
    [('bound', 0.75), ('auto', 1.0)]
    """
    rng, gaps = random.Random(seed), {name: Counter[int]() for name in NAMES}
    circles = launches = 0
    for _ in range(graphs):
        graph = small_graph(rng)
        problem, fewest = graph.problem, fewest_launches(graph)
        circles += policies.bucketed(problem, problem.levels) is None
        launches += fewest
        found = [fewest - problem.lower_bound]
        found += [policies.length(policies.POLICIES[name](problem)) - fewest for name in POLICIES]
        for name, gap in zip(NAMES, found, strict=True):
            gaps[name][gap] += 1
        advance("graphs")
    return [
        {
            "name": name,
            "gaps": dict(sorted(gaps[name].items())),
            "exact": gaps[name][0] / graphs,
            "graphs": graphs,
            "circles": circles,
            "launches": launches,
        }
        for name in NAMES
    ]


POLICIES: Sequence[str] = ("auto", "search", "depth", "agenda")
NAMES = ("bound", *POLICIES)
"""The lower bound, and policies."""
