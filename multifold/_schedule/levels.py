"""Typed levels: how many calls of its own type lie on the longest path to a call.

Two calls of equal type and equal typed level are never ordered, so they may share a launch; and the
number of distinct (type, typed level) pairs is the *lower bound*: no schedule has fewer launches,
because every launch holds calls of one type that are not ordered among each other. Only types that
lie on a cycle of the type graph need a counter, and only counters of types on the same cycle can
influence each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from multifold import _compiled
from multifold._compiled import COUNTERS
from multifold._compiled.arrays import Integers

MOST_PAIRED = 12
"""How many types `Problem.tight_bound` pairs: each of the 66 pairs of these takes 0.1 to 1 µs a call."""

ROOM = 24
"""How many partial schedules of two types are kept; where there are more, the bound may be lower."""


@dataclass(frozen=True)
class Problem:
    """The calls to schedule and what they need of each other, as integers only.

    Attributes
    ----------
    types : int64 array of shape ``(calls,)``
        The type of each call, from 0; only calls of one type may share a launch.
    sources, readers : int64 arrays of shape ``(edges,)``
        Call ``sources[i]`` must be run before ``readers[i]``; ordered by reader, and a source has a
        smaller number than its reader.
    """

    types: Integers
    sources: Integers
    readers: Integers

    def __len__(self) -> int:
        return len(self.types)

    @cached_property
    def counted(self) -> tuple[Integers, Integers, Integers]:
        """The typed level of each call, the width of the cycle of each type, and its highest level."""
        return _compiled.typed_levels(self.types, self.sources, self.readers)

    @property
    def levels(self) -> Integers:
        """The typed level of each call, from 1."""
        return self.counted[0]

    @property
    def cycles(self) -> Integers:
        """How many types lie on one cycle with each type, itself included; 0 without a cycle."""
        return self.counted[1]

    @cached_property
    def heights(self) -> Integers:
        """The typed level of each call counted from the sinks."""
        # Levels need only that an edge comes behind all edges to its source, as it does here backwards.
        last = len(self) - 1
        columns = self.types, last - self.readers, last - self.sources
        backwards = Problem(*(np.ascontiguousarray(column[::-1]) for column in columns))
        return np.ascontiguousarray(backwards.levels[::-1])

    @cached_property
    def depths(self) -> Integers:
        """The number of calls on the longest path to each call, itself included."""
        one_type = np.zeros(len(self), np.int64)
        return Problem(one_type, self.sources, self.readers).levels

    @cached_property
    def bounds(self) -> Integers:
        """How many calls of each type lie on one path: no schedule launches it less often."""
        # A cycle of more than COUNTERS types has one counter for all of them, so that its levels count the
        # calls of all its types. Then only one launch of each of these types is certain.
        return np.where(self.cycles > COUNTERS, 1, self.counted[2])

    @property
    def lower_bound(self) -> int:
        """The sum of the bounds of all types."""
        return int(self.bounds.sum())

    @cached_property
    def tight_bound(self) -> int:
        """A bound that counts launches of pairs of types, where the types read each other in a circle.

        A schedule without the launches of all other types is one of these two, where the others run for
        nothing. So the fewest launches of pairs that share no type add up to a bound. If one chain has the
        types 0, 1 and another one 1, 0, each type needs one launch, and both together need three.
        """
        joint = np.flatnonzero((self.cycles > 1) & (self.cycles <= COUNTERS))
        first = joint[np.argsort(-self.bounds[joint], kind="stable")][:MOST_PAIRED].tolist()
        more = []
        for one, other in combinations(first, 2):
            types = np.where(self.types == one, 0, np.where(self.types == other, 1, -1))
            fewest = _compiled.fewest(types, self.heights, self.sources, self.readers, ROOM)
            more.append((int(self.bounds[one] + self.bounds[other]) - fewest, one, other))
        found, paired = self.lower_bound, set[int]()
        for less, one, other in sorted(more):
            if not paired & {one, other}:
                paired |= {one, other}
                found -= less
        return found
