"""Which nodes of a graph the user still holds, found through Python's garbage collector.

A result may be dropped when no node can ask for it any more, so `multifold._engine.rounds.store` has to
know which nodes are alive. There are two ways to know:

- Count the nodes of each call while they are made and deleted. Each recorded call would pay for that,
  and `Fold.apply` and traces too, where nothing is dropped before the end: making and deleting a node is a
  good part of recording a call.
- Ask the garbage collector when it matters. Each node refers to its graph, so ``gc.get_referrers(graph)``
  finds all nodes. It looks at every object that the collector tracks, however few nodes there are: tens of
  milliseconds in a process that has imported a framework.

This module does the second. `multifold._engine.rounds.store.Store.sweep` makes it rare: between two walks
lie 10,000 calls, which take many times as long to run, or results of 64 MB. A run of fewer and lighter
calls, as of most minibatches, never asks.
"""

from __future__ import annotations

import gc

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.record.graph import Graph
from multifold._engine.record.node import Node


class HeldNodes:
    """Finds the nodes of a graph that are alive.

    ``gc.freeze()`` hides objects from the collector. Servers call it before they fork; so nodes that were
    frozen can't be found, and `are_known` says whether there may be such nodes.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # Is frozen with the nodes of this graph, if any is; objects that were frozen before are no nodes
        # of it. Counting frozen objects in each run would walk all of them.
        self._witness: list[None] | None = None if len(graph.signature) else []

    @property
    def are_known(self) -> bool:
        """Whether `calls` would find all nodes: False if `gc.freeze` may have hidden some of them."""
        if self._witness is None:
            return gc.get_freeze_count() == 0
        return any(x is self._witness for x in gc.get_objects())

    def calls(self) -> Integers:
        """Return the calls of all nodes that are alive, as an int64 array in any order, with repeats.

        Python's collector is off meanwhile: ``gc.get_referrers`` goes through the collector's own lists,
        and some objects of TensorFlow allocate when they are asked what they refer to.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            nodes = [x for x in gc.get_referrers(self.graph) if isinstance(x, Node)]
        finally:
            if collects:
                gc.enable()
        return np.array([node._ref & CALL_MASK for node in nodes], np.int64)
