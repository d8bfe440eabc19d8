"""Schedules that are kept by the kind of minibatch: its types, and which calls read which."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from multifold._schedule.levels import Problem
from multifold._schedule.policies import Launches, Policy

MOST_BYTES = 1 << 25
"""What the schedules of one fold may take: those of 50 minibatches of 64 lattices, 14,000 calls each."""

MOST_SCHEDULES = 1024
"""How many there may be: those of tiny minibatches take 2 kB more than what is counted of them."""


Solved = tuple[Launches, int]
"""The launches of a problem and its lower bound."""


def solve(policy: Policy, problem: Problem) -> Solved:
    """Return the launches of a problem under a policy, and its lower bound."""
    return policy(problem), problem.lower_bound


class KeptSchedules:
    """The last problems that were solved, found by all that a policy reads of them.

    A graph whose types read each other in a circle takes 0.1 to 1.2 µs a call to plan, and to find it
    here 0.03. Others are not kept, because their plan costs no more than that. Several threads may use one
    object.

    Attributes
    ----------
    hits : int
        How often a problem was found.

    Examples
    --------
    >>> import numpy as np
    >>> from multifold._schedule.policies import agenda
    >>> kept = KeptSchedules()
    >>> for _ in range(3):
    ...     launches, bound = kept.solve(agenda, Problem(np.array([0, 1]), np.array([0]), np.array([1])))
    >>> kept.hits, bound
    (2, 2)
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.bytes = self.hits = 0
        self._lock = Lock()
        self._found: OrderedDict[tuple[Policy, bytes, bytes, bytes], Solved] = OrderedDict()

    def __reduce__(self) -> tuple[type[KeptSchedules], tuple[int]]:
        """Let a copy, and what is pickled, begin without schedules."""
        return KeptSchedules, (self.most,)

    def __len__(self) -> int:
        return len(self._found)

    def solve(self, policy: Policy, problem: Problem) -> Solved:
        """Return the launches and the lower bound of a problem, found before or now."""
        # Python compares all bytes of keys of one hash, so no other problem is taken for this one.
        key = (policy, problem.types.tobytes(), problem.sources.tobytes(), problem.readers.tobytes())
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
                self.hits += 1
                return found
        solved = solve(policy, problem)
        for column in solved[0]:
            column.setflags(write=False)
        with self._lock:
            if key not in self._found:  # another thread may have been faster
                self._found[key] = solved
                self.bytes += size_of(key, solved)
            while self.bytes > self.most or len(self._found) > MOST_SCHEDULES:
                self.bytes -= size_of(*self._found.popitem(last=False))
        return solved


def size_of(key: tuple[Policy, bytes, bytes, bytes], solved: Solved) -> int:
    """Return the bytes that a problem and its launches take."""
    return sum(map(len, key[1:])) + sum(column.nbytes for column in solved[0])
