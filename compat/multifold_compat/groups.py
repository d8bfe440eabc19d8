"""Outputs as the predecessors spell them: groups of nodes, each a batch of rows or one whole value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multifold._engine.record.node import Node, SharedNode
from multifold.errors import RecordError


def as_outputs(groups: Iterable[Any]) -> Any:
    """Return the groups of nodes of a predecessor as the outputs of `multifold.Fold.apply`.

    A group of one node that is not batched stands for that node's whole value, however often the
    node is repeated; `multifold.Fold.apply` spells this without the brackets. What only multifold
    knows how to ask for, a node or a dictionary, is left as it is.

    Raises
    ------
    RecordError
        If a group mixes nodes that are not batched with others.
    """
    if isinstance(groups, (Node, dict)):
        return groups
    return [group if isinstance(group, (Node, dict)) else as_output(group) for group in groups]


def as_output(group: Iterable[Any]) -> Any:
    """Return one group as a list of its rows, or as the one node, not batched, that it stands for.

    Bools become integers. Raises `RecordError` if such a node is among others.
    """
    rows = list(group)
    whole = [x for x in rows if isinstance(x, SharedNode)]
    if whole and (len(whole) < len(rows) or any(x != whole[0] for x in whole)):
        raise RecordError(
            "Expected a group of rows, or one node that is not batched. "
            f"Received {len(whole)} such nodes among {len(rows)}.",
            "ask for each whole value in a group of its own.",
        )
    # To the predecessors a truth value is the integer 0 or 1.
    return whole[0] if whole else [int(x) if isinstance(x, bool) else x for x in rows]
