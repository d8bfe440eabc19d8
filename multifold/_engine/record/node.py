"""Nodes: what the caller holds of a recorded call.

A *reference* to a value is one integer, the call and the part of its result: ``part << PART_BITS | call``,
so that the whole result of a call is the call's own number.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from multifold._engine.compiled import NodeBase
from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS
from multifold._engine.record.entry import RowEntry
from multifold._engine.record.misuse import AWAIT, COMPARISONS, Uncomputed, refusing
from multifold.errors import RecordError


class Node(NodeBase, Uncomputed):
    """One recorded call, or a part of its result. Immutable and hashable.

    `split` and ``[...]`` name the parts of a tuple, list or dictionary; `no_batch` gives a view whose
    consumers get the whole result.
    """

    __slots__ = ()

    def _offsets(self, n: int) -> tuple[int, ...]:
        """Return ``n`` integers: what to add to this node's reference to get those of its ``n`` parts.

        The graph makes the parts if it has none (`Graph.offsets`).

        Raises
        ------
        RecordError
            If ``n`` is no integer of Python or NumPy of at least 1; True is refused, too.
        """
        # True is an int to Python, and more likely a mistake than one part.
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise RecordError(
                f"Expected split(n) with n of at least 1. Received n={n!r}.",
                "n is the number of entries of the tuple or list that the op returns.",
            )
        offsets: tuple[int, ...] = self._graph.offsets(self._ref >> PART_BITS, int(n))
        return offsets

    def __getitem__(self, key: int | str | slice) -> Node:
        """Return a node for the part ``key`` of a result that is a tuple, list or dictionary.

        Raises
        ------
        RecordError
            If ``key`` is no int, str or slice of ints. Whether the result has that part shows in the run.
        """
        if isinstance(key, bool) or not isinstance(key, (int, str, slice, np.integer)):
            raise RecordError(
                f"Expected an int, a str or a slice in node[...]. Received {key!r}.",
                "node[...] names a part of a tuple, list or dict result; index arrays inside an op.",
            )
        if isinstance(key, slice):
            key = checked_slice(key)
        elif isinstance(key, np.integer):
            key = int(key)
        part = self._graph.part(self._ref >> PART_BITS, key)
        # The part gets the node's own class, since a part of a `SharedNode` is shared, too.
        return type(self)(self._graph, part << PART_BITS | self._ref & CALL_MASK)

    def _entry(self, index: int) -> Node:
        """Return a node for ``rows[:, index]``: an entry of each row, along the first axis of a row."""
        part = self._graph.part(self._ref >> PART_BITS, RowEntry(index))
        return type(self)(self._graph, part << PART_BITS | self._ref & CALL_MASK)

    def no_batch(self) -> Node:
        """Return a view whose consumers get the whole result, once for the whole launch.

        The call runs in a launch of its own, and its result may have any shape. Two such calls are two
        launches, and so are their readers: record a table once for all examples.

        Examples
        --------
        >>> import multifold, numpy as np
        >>> fold = multifold.Fold(backend="numpy")
        >>> table = fold.add(lambda *rows: np.concatenate(rows), 5, 6, 7).no_batch()
        >>> fold([[fold.add(lambda t, i: t[i], table, i) for i in (2, 0)]])
        [array([7, 5])]
        """
        return SharedNode(self._graph, self._ref)

    # Not in `Uncomputed`: the compiled `NodeBase` comes before it and has all six comparisons, of which
    # only `==` and `!=` mean something.
    __lt__, __le__, __gt__, __ge__ = (refusing(f"node {symbol} x", AWAIT) for symbol in COMPARISONS)

    def __iter__(self) -> NoReturn:
        raise RecordError(
            f"A {self!r} can't be iterated: how many parts its result has is not known yet.",
            "use .split(n), as in `h, c = node.split(2)`.",
        )

    def __contains__(self, item: object) -> NoReturn:
        iter(self)

    def __bool__(self) -> NoReturn:
        raise RecordError(
            f"A {self!r} has no truth value: it stands for a result that was not computed yet.",
            "compare with None (`if node is not None`), decide on the input, or `await fold.value(node)`.",
        )

    def __repr__(self) -> str:
        call = self._ref & CALL_MASK
        path = "".join(f"[{key!r}]" for key in self._graph.parts[self._ref >> PART_BITS].path)
        name = self._graph.signatures[self._graph.signature[call]].name
        return f"<node {call} of {name}{path}{self._flag}>"

    def __str__(self) -> str:
        """Return ``<node 3 of op>``, and in an eager twin, where calls run at once, the value, too."""
        value_of = getattr(self._graph, "value_of", None)
        return repr(self) if value_of is None else f"{self!r}: {value_of(self._ref)!r}"

    _flag = ""


def checked_slice(key: slice) -> slice:
    """Return a slice whose ends and step are Python ints or None, from one of ints of Python or NumPy.

    Raises
    ------
    RecordError
        If one of them is no integer, or the step is 0.
    """
    ends = key.start, key.stop, key.step
    if key.step == 0 or not all(x is None or isinstance(x, (int, np.integer)) for x in ends):
        said = ":".join("" if x is None else repr(x) for x in ends)
        raise RecordError(
            f"Expected integers and a step other than 0 in a slice of a node. Received node[{said}].",
            "node[a:b] is a part of a tuple or list result; slice rows inside an op.",
        )
    return slice(*[None if x is None else int(x) for x in ends])


class SharedNode(Node):
    """A view of a node whose consumers get the whole result; made by `Node.no_batch`."""

    __slots__ = ()
    _flag = ".no_batch()"
