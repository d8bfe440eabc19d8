"""What the predecessors' users read off a fold: ``total_nodes``, ``steps`` and ``cached_nodes``.

One idea: the three are views of the recorded calls, made when they are read, so recording pays nothing for
them. They show what was recorded; what runs together is `Fold.schedule`'s to say.
"""

from __future__ import annotations

from typing import Any

import multifold
from multifold._record.node import Node
from multifold.errors import RecordError


class Counted(multifold.Fold):
    """A fold with the predecessors' three attributes, to be read only."""

    @property
    def total_nodes(self) -> int:
        """How many calls are recorded, those that were merged counted once: ``len(fold)``."""
        return len(self)

    @total_nodes.setter
    def total_nodes(self, count: int) -> None:
        raise RecordError(
            f"Expected fold.total_nodes, the number of recorded calls, to be read only. Received {count}.",
            "remove the override that counts, as TorchFold's own `add` did; multifold's counts by itself.",
        )

    @property
    def steps(self) -> dict[int, dict[Any, list[Node]]]:
        """The nodes of each op at each height, ``steps[height][op]``; a call that reads none has height 0.

        Examples
        --------
        >>> from multifold.compat import torchfold
        >>> fold = torchfold.Fold(backend="numpy")
        >>> leaves = [fold.add("leaf", i) for i in (1, 2, 1)]
        >>> root = fold.add("join", *leaves)
        >>> {height: {op: len(nodes) for op, nodes in ops.items()} for height, ops in fold.steps.items()}
        {0: {'leaf': 2}, 1: {'join': 1}}
        """
        found: dict[int, dict[Any, list[Node]]] = {}
        heights = [0] * len(self)
        # `schedule` of a fold without calls is that of the traces that it ran last.
        sources, readers = self.schedule().columns.edges if heights else ((), ())
        for source, reader in zip(sources, readers, strict=True):
            heights[reader] = max(heights[reader], heights[source] + 1)
        for call, height in enumerate(heights):
            ops = found.setdefault(height, {})
            ops.setdefault(self._op_of(call), []).append(self._node_type(self._graph, call))
        return dict(sorted(found.items()))

    @property
    def cached_nodes(self) -> dict[Any, dict[int, Node]]:
        """The nodes of each op, by the numbers of their calls: ``cached_nodes[op][number]``."""
        found: dict[Any, dict[int, Node]] = {}
        for call in range(len(self)):
            found.setdefault(self._op_of(call), {})[call] = self._node_type(self._graph, call)
        return found

    def _op_of(self, call: int) -> Any:
        """Return the op of a call, as it was recorded."""
        return self._graph.signatures[self._graph.signature[call]].op
