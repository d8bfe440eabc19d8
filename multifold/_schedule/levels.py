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
from typing import Any

import numpy as np

from multifold import _compiled
from multifold._compiled import COUNTERS
from multifold._compiled.arrays import Integers

MOST_GROUPED = 12
"""How many types `Problem.tight_bound` puts into groups: the 66 pairs of these take most of its time."""

BUDGET = 1000
"""How many states the search for the fewest launches of a group may go on from: 0.1 to 0.6 µs a call."""

LARGEST_BUDGET = 20_000
"""Where all types are one group, it is two states for each call, up to this number: they take 16 MB."""

Group = tuple[int, ...]
"""Some types."""


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

    @classmethod
    def counted_as(cls, types: Integers, sources: Integers, readers: Integers, *counted: Any) -> Problem:
        """Return a problem of which `counted` is known."""
        found = cls(types, sources, readers)
        vars(found)["counted"] = counted
        return found

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
        """A bound that counts launches of groups of types, where the types read each other in a circle.

        A schedule without the launches of all other types is one of a group's types, where the others run
        for nothing. So the fewest launches of groups that share no type add up to a bound. If one chain has
        the types 0, 1 and another one 1, 0, each type needs one launch, and both together need three.

        Groups begin with a type each. The two that together need most launches more than alone become one,
        as long as there are such groups. Last, all types are one group, since three types may read each
        other where no two of them do. That takes 0.1 to 16 µs a call.
        """
        joint = np.flatnonzero(self.cycles > 1)
        first = joint[np.argsort(-self.bounds[joint], kind="stable")][:MOST_GROUPED].tolist()
        if not first:
            return self.lower_bound
        least: dict[Group, int] = {(type_,): int(self.bounds[type_]) for type_ in first}
        others = self.lower_bound - sum(least.values())
        more: dict[tuple[Group, Group], int] = {}
        while len(least) > 1:
            for one, other in combinations(least, 2):
                if (one, other) not in more:
                    more[one, other] = self._fewest(one + other, BUDGET) - least[one] - least[other]
            one, other = max(combinations(least, 2), key=more.__getitem__)
            if more[one, other] <= 0:
                break
            least[one + other] = least.pop(one) + least.pop(other) + more[one, other]
        budget = min(max(BUDGET, 2 * len(self)), LARGEST_BUDGET)
        return others + max(sum(least.values()), self._fewest(tuple(first), budget))

    def _fewest(self, group: Group, budget: int) -> int:
        """Return how many launches a group of types needs at least."""
        number = np.full(len(self.bounds), -1)
        number[list(group)] = np.arange(len(group))
        return _compiled.fewest(number[self.types], self.sources, self.readers, len(group), budget)
