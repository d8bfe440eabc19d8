"""A schedule explained."""

from __future__ import annotations

from dataclasses import dataclass

from multifold.graph import Graph
from multifold.schedule import Schedule


@dataclass(frozen=True)
class Explanation:
    """What a schedule does with the calls of each op, and what kept them apart."""

    schedule: Schedule
    graph: Graph

    @classmethod
    def of(cls, schedule: Schedule, graph: Graph) -> Explanation:
        """Return the explanation of a schedule."""
        return cls(schedule, graph)

    def __str__(self) -> str:
        return str(self.schedule)
