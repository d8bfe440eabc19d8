"""What a run leaves behind for `Fold.explain`: its rounds, and who waited for what in each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._record.graph import Graph
from multifold._run.timeline import Timeline


class Wait(NamedTuple):
    """What one example waited for."""

    example: int
    names: tuple[str, ...]
    """The ops of what was awaited, with the paths to its parts, as ``logits[0]``."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round, in a few arrays: a run of 1,000 rounds keeps a thousand of these.

    Attributes
    ----------
    timeline : Timeline
        How it ran.
    graph : Graph
        What its calls were recorded in.
    examples, refs : int64 arrays
        Which example waited for which reference; empty in the last round, which runs what the results
        need. No nodes are kept, since a node would keep the result of its call alive.
    numbers : int64 array
        The number that each call of the round has in the graph, ascending.
    """

    timeline: Timeline
    graph: Graph
    examples: Integers
    refs: Integers
    numbers: Integers

    @property
    def launched(self) -> int:
        """How many launches ran."""
        return len(self.timeline.calls)

    def told(self) -> Round:
        """Return the round as `multifold.explain` shows it."""
        return self

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Who waited for what."""
        pairs = zip(self.examples.tolist(), self.refs.tolist(), strict=True)
        return tuple(
            Wait(example, tuple(described(self.graph, ref) for _, ref in mine))
            for example, mine in groupby(pairs, key=itemgetter(0))
        )


def described(graph: Graph, ref: int) -> str:
    """Return the op of a reference, with the path to its part, as ``logits[0]``."""
    path = "".join(f"[{key!r}]" for key in graph.parts[ref >> PART_BITS].path)
    return graph.signatures[graph.signature[ref & CALL_MASK]].name + path
