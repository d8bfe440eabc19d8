"""When each launch of a run was put together, called and cut: what `Fold.explain` splits time by.

Times are those of the host. Where a framework queues work for a device, they say how long queueing took.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from multifold.columns import Integers


class LaunchTimes(NamedTuple):
    """Moments of one launch, in seconds of `time.perf_counter`."""

    begin: float
    """When its operands began to be put together."""
    call: float
    """When the op was called."""
    cut: float
    """When it had returned, and its result began to be cut."""
    end: float
    """When the next launch could begin."""


@dataclass
class Timeline:
    """One run, without any of its arrays.

    Attributes
    ----------
    calls : list of int64 array
        The calls of each launch, in the order in which they ran.
    times : list of LaunchTimes
        The moments of each launch.
    seconds : dict of str to float
        Time by phase: ``record`` (from the first call to the run, the user's own code included),
        ``plan``, ``wiring``, ``upload``, ``gather`` (putting operands together and cutting results)
        and ``op``.
    divisions : int
        How often a launch had to be divided and the rest was scheduled again.
    """

    types: Integers
    calls: list[Integers] = field(default_factory=list)
    times: list[LaunchTimes] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    divisions: int = 0

    def finish(self) -> None:
        """Add up the phases of the launches."""
        self.seconds["gather"] = sum(t.call - t.begin + t.end - t.cut for t in self.times)
        self.seconds["op"] = sum(t.cut - t.call for t in self.times)
