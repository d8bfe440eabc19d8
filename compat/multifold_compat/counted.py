"""What the predecessors' users read off a fold: ``total_nodes``, ``steps`` and ``cached_nodes``.

One idea: the three are views of the recorded calls, made when they are read, so recording pays nothing for
them. They show what was recorded; what runs together is `Fold.schedule`'s to say. An override that made
nodes by itself needs more than they show, and is told to go.
"""

from __future__ import annotations

from typing import Any, NoReturn

import multifold
from multifold._engine.record.misuse import NoAttributeError
from multifold._engine.record.node import Node
from multifold.errors import RecordError

REMOVE = "remove the override that makes nodes, as the predecessor's own `add` did: multifold's does."
"""What to do where a subclass goes on as the predecessor did inside of its fold."""

REPLACED = {
    **dict.fromkeys(("op", "step", "index", "args", "split_idx", "depth"), REMOVE),
    "batch": "pass on the view that node.no_batch() returns: its readers get the whole result.",
    "get": "ask for the value as an output: (value,) = fold.apply(model, [[node]]).",
}
"""The attributes of the predecessors' nodes, and what to do instead."""


class PredecessorNode(Node):
    """A node that raises `NoAttributeError` with a remedy for the attributes of the predecessors' nodes."""

    __slots__ = ()

    def __init__(self, graph: Any, ref: Any, *more: Any) -> None:
        if more:
            raise RecordError(f"Expected nodes that the fold makes. Received Node({graph!r}, ...).", REMOVE)
        super().__init__(graph, ref)

    def _lacks(self, name: str) -> Any:
        if name in REPLACED:
            raise NoAttributeError(
                f"A {self!r} has no attribute '{name}': it only names a recorded call.", REPLACED[name]
            )
        return super()._lacks(name)

    def _refuse_batch(self, _: Any) -> None:
        self._lacks("batch")

    batch = property(None, _refuse_batch)  # one without a getter: `_lacks` is asked


class Recorded(dict[Any, Any]):
    """A dictionary that raises `RecordError` for a key that is not there.

    The predecessors made an entry for it.
    """

    def __missing__(self, key: Any) -> NoReturn:
        raise RecordError(f"Expected a key that recorded calls have. Received {key!r}.", REMOVE)


class Counted(multifold.Fold):
    """A fold with the predecessors' ``total_nodes``, ``steps`` and ``cached_nodes``, to be read only."""

    @property
    def total_nodes(self) -> int:
        """The number of recorded calls, ``len(fold)``: merged calls count once.

        Raises `RecordError` when set.
        """
        return len(self)

    @total_nodes.setter
    def total_nodes(self, count: int) -> None:
        raise RecordError(
            f"Expected fold.total_nodes, the number of recorded calls, to be read only. Received {count}.",
            "remove the override that counts, as TorchFold's own `add` did; multifold's counts by itself.",
        )

    @property
    def steps(self) -> dict[int, dict[Any, list[Node]]]:
        """The nodes by height and op, ``steps[height][op]``: a list; a call that reads none has height 0.

        Examples
        --------
        >>> from multifold_compat import torchfold
        >>> fold = torchfold.Fold(backend="numpy")
        >>> leaves = [fold.add("leaf", i) for i in (1, 2, 1)]
        >>> root = fold.add("join", *leaves)
        >>> {height: {op: len(nodes) for op, nodes in ops.items()} for height, ops in fold.steps.items()}
        {0: {'leaf': 2}, 1: {'join': 1}}
        """
        found = Recorded()
        heights = [0] * len(self)
        # `schedule` of a fold without calls is that of the traces that it ran last.
        sources, readers = self.schedule().columns.edges if heights else ((), ())
        # Calls read only earlier calls, and edges are ordered by reader, so one pass finds all heights.
        for source, reader in zip(sources, readers, strict=True):
            heights[reader] = max(heights[reader], heights[source] + 1)
        for call, height in enumerate(heights):
            ops = found.setdefault(height, Recorded())
            ops.setdefault(self._op_of(call), []).append(self._node_type(self._graph, call))
        return Recorded(sorted(found.items()))

    @property
    def cached_nodes(self) -> dict[Any, dict[int, Node]]:
        """The nodes by op and number of their calls: ``cached_nodes[op][number]``."""
        found = Recorded()
        for call in range(len(self)):
            found.setdefault(self._op_of(call), Recorded())[call] = self._node_type(self._graph, call)
        return found

    def _op_of(self, call: int) -> Any:
        """Return the op of call number ``call`` as it was recorded: a name or a callable."""
        return self._graph.signatures[self._graph.signature[call]].op
