"""What a request waits for, and its result as soon as all of it is there.

`multifold.Fold.apply` plans how the rows of its outputs are put together, as for any operand. A server
would do that for each request, so it reads rows from the results of launches instead: one copy to the host
for all requests that end together, and one small array for each group of each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from multifold._engine.plan.outputs import Outputs, put_together, take_apart
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.record.recorder import Recorder
from multifold._engine.rounds.fetch import LEAF, HostRows


@dataclass(frozen=True, slots=True)
class Answer:
    """What the function of one request returned, and the nodes that have to run before its answer.

    Attributes
    ----------
    example : int
        The number of the example, from 0, that has returned it.
    value : object
        What the function returned.
    nodes : list of Node
        The nodes that ``value`` consists of, with a row or a whole result each.
    asked : Outputs or None
        The value as references, from `take_apart`; None if it is one node.
    plain : bool
        Whether it consists of rows only: it has no numbers or arrays of its own, and reads no result whole.
    """

    example: int
    value: Any
    nodes: list[Node]
    asked: Outputs | None
    plain: bool

    @classmethod
    def of(cls, recorder: Recorder, example: int, value: Any) -> Answer:
        """Make the answer of an example from ``value``, which its function returned: nodes, nested or one.

        A single node, as most return, is not taken apart. Raise a `RecordError` for what can't be an
        output.
        """
        graph = recorder._graph
        if type(value) is graph.node_type and value._graph is graph:
            return cls(example, value, [value], None, plain=True)
        asked = take_apart(recorder, value, 0)
        nodes: list[Node] = []
        for group in asked.groups:
            if isinstance(group, int):
                nodes.append(SharedNode(graph, group))
            else:
                nodes += [Node(graph, ref) for ref in group.tolist() if ref >= 0]
        whole = any(isinstance(group, int) for group in asked.groups)
        return cls(example, value, nodes, asked, plain=not whole and not asked.loose)


def results_of(answers: Sequence[Answer], found: HostRows) -> dict[int, Any]:
    """Return the result of each answer as NumPy arrays, by the number of its example.

    An answer is left out if one of its groups has rows of different shapes, dtypes or structures. Whether
    such rows fit together is for the framework to say.

    Parameters
    ----------
    answers : sequence of Answer
        Answers with ``plain``, which consist of rows only.
    found : HostRows
        The row of each of their nodes, in the order of the answers and of ``nodes``.
    """
    results: dict[int, Any] = {}
    row = 0
    sources = found.source.tolist()
    at = found.at.tolist()
    for one in answers:
        if one.asked is None:
            results[one.example] = row_of(found, sources[row], at[row])
            row += 1
            continue
        values: list[Any] = []
        for group in one.asked.groups:
            count = np.size(group)
            values.append(group_of(found, slice(row, row + count)))
            row += count
        if not any(value is None for value in values):
            results[one.example] = put_together(one.asked, values)
    return results


def row_of(found: HostRows, source: int, at: int) -> Any:
    """Return one row of a source, a part of an op's result, as arrays of shape ``(1, *s)``, nested alike.

    It is row ``at`` of source number ``source``. The arrays are copies: a view would keep the rows of all
    other requests in memory.
    """
    structure = found.structures[source]
    leaves = found.leaves[source]
    if structure is LEAF:
        return leaves[0][at : at + 1].copy()
    return optree.tree_unflatten(structure, [x[at : at + 1].copy() for x in leaves])


def group_of(found: HostRows, rows: slice) -> Any:
    """Return the rows of one group, a slice of ``found``, as arrays of shape ``(n, *s)``.

    None if there are no rows, or if they differ in structure, dtype or shape.
    """
    sources = found.source[rows]
    at = found.at[rows]
    if not len(at):
        return None
    distinct = set(sources.tolist())
    # All rows come from one launch, so each leaf is indexed once.
    if len(distinct) == 1:
        (source,) = distinct
        leaves = [leaf[at] for leaf in found.leaves[source]]
        return optree.tree_unflatten(found.structures[source], leaves)
    # Rows of several launches are stacked only if they agree in structure, dtypes and shapes.
    forms = {(found.structures[i], *[(x.dtype, x.shape[1:]) for x in found.leaves[i]]) for i in distinct}
    if len(forms) > 1:
        return None
    pairs = list(zip(sources.tolist(), at.tolist(), strict=True))
    columns = range(len(found.leaves[pairs[0][0]]))
    leaves = [np.stack([found.leaves[source][leaf][i] for source, i in pairs]) for leaf in columns]
    return optree.tree_unflatten(found.structures[pairs[0][0]], leaves)


def own(x: Any) -> Any:
    """Return a copy of a NumPy array, and anything else as it is."""
    return x.copy() if isinstance(x, np.ndarray) else x
