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
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled import COUNTERS
from multifold._engine.compiled.arrays import Integers


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
        """Return a problem whose `counted` is known and need not be computed.

        ``counted`` are three int64 arrays: `levels`, `cycles`, and the highest level of each type.
        """
        found = cls(types, sources, readers)
        vars(found)["counted"] = counted
        return found

    @cached_property
    def counted(self) -> tuple[Integers, Integers, Integers]:
        """Three int64 arrays: `levels`, `cycles`, and the highest level of each type."""
        return compiled.typed_levels(self.types, self.sources, self.readers)

    @property
    def levels(self) -> Integers:
        """The typed level of each call, from 1: how many calls of its type lie on the longest path to it.

        The call itself counts. It is an int64 array of shape ``(calls,)``.
        """
        return self.counted[0]

    @property
    def cycles(self) -> Integers:
        """For each type how many types lie on one cycle with it, itself included; 0 without a cycle."""
        return self.counted[1]

    @cached_property
    def depths(self) -> Integers:
        """The number of calls on the longest path to each call, itself included: ``(calls,)``, from 1."""
        # If all calls are of one type, a typed level counts every call on the path.
        one_type = np.zeros(len(self), np.int64)
        return Problem(one_type, self.sources, self.readers).levels

    @cached_property
    def bounds(self) -> Integers:
        """For each type the fewest launches that any schedule has of it: its calls on one path, int64."""
        # A cycle of more than COUNTERS types has one counter for all of them, so that its levels count the
        # calls of all its types. Then only one launch of each of these types is certain.
        return np.where(self.cycles > COUNTERS, 1, self.counted[2])

    @property
    def lower_bound(self) -> int:
        """The sum of `bounds`: no schedule has fewer launches.

        Where types read each other in a circle, a graph may need more launches: a chain of the types 0, 1
        and one of 1, 0 need three, and the bound is two.
        """
        return int(self.bounds.sum())
