"""What is asked of a predecessor's fold: groups, each a batch of rows or one whole value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multifold.errors import RecordError
from multifold.graph import SharedNode


def as_outputs(groups: Iterable[Iterable[Any]]) -> list[Any]:
    """Return groups as the outputs of `multifold.Fold.apply`.

    A group of one node that is not batched stands for that node's whole value, however often the
    node is repeated; `multifold.Fold.apply` spells this without the brackets.

    Raises
    ------
    RecordError
        If a group mixes nodes that are not batched with others.
    """
    outputs: list[Any] = []
    for group in map(list, groups):
        whole = [x for x in group if isinstance(x, SharedNode)]
        if whole and (len(whole) < len(group) or any(x != whole[0] for x in whole)):
            raise RecordError(
                "Expected a group of rows, or one node that is not batched. "
                f"Received {len(whole)} such nodes among {len(group)}.",
                "ask for each whole value in a group of its own.",
            )
        outputs.append(whole[0] if whole else group)
    return outputs
