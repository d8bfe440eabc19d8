"""A state machine that plans at the price of a lookup: which type to launch for each set of ready types.

ED-Batch learns such a machine for each topology (Chen et al., ICML 2023, "ED-Batch: Efficient automatic
batching of dynamic neural networks via learned finite state machines"). Here it learns from the schedules
that ``"search"`` finds for some minibatches: for each set of types that have ready calls it launches the
type that these launched most often. It does not see how many calls are ready, nor how much depends on them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from multifold._compiled.arrays import by_launch
from multifold._record.signature import op_name
from multifold._schedule.levels import Problem
from multifold._schedule.policies import Launches, search
from multifold._schedule.schedule import Schedule, call_types, problem_of

LONGEST, EXAMPLES = 40, 64
"""Examples that are drawn from types alone have less than 40 calls each, and 64 make a minibatch."""


class NamedProblem(NamedTuple):
    """A problem, and a name of each type that is the same in every minibatch."""

    problem: Problem
    names: tuple[str, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> NamedProblem:
        """Return the problem that a schedule is a solution of."""
        columns, pending = schedule.columns, np.sort(schedule.calls)
        types = call_types(columns, columns.shared_calls)
        used = [columns.signatures[number] for number in np.unique(types[pending]).tolist()]
        names = (f"{op_name(x.op)} {len(x.slots)} {x.static}" for x in used)
        return cls(problem_of(columns, types, pending), tuple(names))


class Walk:
    """The launches of a problem, one type after the other: each runs all ready calls of its type."""

    def __init__(self, problem: Problem) -> None:
        self.types = problem.types.tolist()
        self.waiting = np.bincount(problem.readers, minlength=len(problem)).tolist()
        self.readers: list[list[int]] = [[] for _ in self.types]
        for source, reader in zip(problem.sources.tolist(), problem.readers.tolist(), strict=True):
            self.readers[source].append(reader)
        self.ready: dict[int, list[int]] = {}
        for call, count in enumerate(self.waiting):
            if not count:
                self.ready.setdefault(self.types[call], []).append(call)

    def launch(self, type_: int) -> list[int]:
        """Run all ready calls of a type, and return them."""
        calls = self.ready.pop(type_, [])
        for call in calls:
            for reader in self.readers[call]:
                self.waiting[reader] -= 1
                if not self.waiting[reader]:
                    self.ready.setdefault(self.types[reader], []).append(reader)
        return calls


@dataclass
class Machine:
    """What was launched most often for each set of ready types.

    Examples
    --------
    Two chains of the types a, b and b, a. With both ready, the machine has learned to launch a.

    >>> problem = Problem(np.array([0, 1, 1, 0]), np.array([0, 2]), np.array([1, 3]))
    >>> machine = Machine()
    >>> machine.learn([NamedProblem(problem, ("a", "b"))])
    >>> machine.chosen[frozenset("ab")]
    Counter({'a': 1})
    >>> order, bounds = machine.plan(NamedProblem(problem, ("a", "b")))
    >>> order.tolist(), bounds.tolist()
    ([0, 1, 2, 3], [0, 1, 3, 4])
    """

    chosen: dict[frozenset[str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def learn(self, minibatches: Iterable[NamedProblem]) -> None:
        """Count what schedules of some minibatches launch for each set of ready types."""
        for problem, names in minibatches:
            order, bounds = search(problem)
            walk = Walk(problem)
            for type_ in problem.types[order[bounds[:-1]]].tolist():
                if (
                    type_ in walk.ready
                ):  # else an earlier launch has run its calls, since it runs all ready ones
                    self.chosen[frozenset(names[x] for x in walk.ready)][names[type_]] += 1
                    walk.launch(type_)

    def plan(self, minibatch: NamedProblem) -> Launches:
        """Return the launches of a minibatch; of a set that is new to it, the type of most calls."""
        problem, names = minibatch
        walk, launch, number = Walk(problem), np.zeros(len(problem), np.int64), 0
        while walk.ready:
            seen = self.chosen.get(frozenset(names[x] for x in walk.ready), Counter())
            best = max(walk.ready, key=lambda x: (seen[names[x]], len(walk.ready[x]), -x))
            launch[walk.launch(best)] = number
            number += 1
        return by_launch(launch)


def drawn_from_types(known: NamedProblem, minibatches: int) -> list[NamedProblem]:
    """Draw minibatches that share with another one only which type reads which, and how many calls at most.

    Examples grow call by call. Each call reads some of the last two calls of each type that its own
    reads. The same types give the same minibatches.
    """
    problem, names = known
    pairs = set(
        zip(problem.types[problem.sources].tolist(), problem.types[problem.readers].tolist(), strict=True)
    )
    reads = {own: [a for a, b in sorted(pairs) if b == own] for own in range(len(names))}
    counts = np.bincount(problem.readers, minlength=len(problem))
    most = [int(counts[problem.types == own].max()) for own in range(len(names))]
    rng = np.random.default_rng(0)
    return [NamedProblem(one_drawn(rng, reads, most), names) for _ in range(minibatches)]


def one_drawn(rng: np.random.Generator, reads: dict[int, list[int]], most: Sequence[int]) -> Problem:
    """Draw a minibatch: see `drawn_from_types`."""
    types: list[int] = []
    edges: list[tuple[int, int]] = []
    for _ in range(EXAMPLES):
        last: dict[int, list[int]] = {}
        for _ in range(int(rng.integers(1, LONGEST))):
            fit = [own for own, sources in reads.items() if not sources or any(x in last for x in sources)]
            own = int(rng.choice(fit or list(reads)))  # in one chain even the first type reads a type
            places = [call for source in reads[own] for call in last.get(source, ())[-2:]]
            chosen = rng.permutation(places)[: most[own]] if places else ()
            edges += [(int(call), len(types)) for call in sorted(chosen)]
            last.setdefault(own, []).append(len(types))
            types.append(own)
    sources, readers = np.array(edges, np.int64).reshape(-1, 2).T
    return Problem(np.array(types, np.int64), sources.copy(), readers.copy())
