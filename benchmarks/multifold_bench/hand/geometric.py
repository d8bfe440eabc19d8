"""PyTorch Geometric by hand: one pass of messages for each height of the trees, as its users write it.

A node of height k gets a message from its left child and one from its right child; each of the two is a
``MessagePassing`` along edges of its own. What a node computes is the benchmark's own model, so that the
results of all contenders can be compared.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from multifold.backend import Array
from multifold_bench.hand.torch import ready


@functools.cache
def carry_class() -> Any:
    """Return the class that brings states along edges; PyTorch Geometric is imported now."""
    from torch_geometric.nn import MessagePassing

    class Carry(MessagePassing):
        """Brings to each node the state of its one child along some edges."""

        def forward(self, states: Array, edges: Array, count: int) -> Array:
            """Return the rows of ``states`` that ``edges`` lead from, for ``count`` nodes."""
            return self.propagate(edges, x=(states, None), size=(len(states), count))

        def message(self, x_j: Array) -> Array:
            """Return the state of a child as it is."""
            return x_j

    return Carry


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    import torch

    (words, *pairs, roots), ends = ready(model, trees)
    carry = carry_class()(aggr="sum")
    like = next(model.parameters())
    h = like.new_empty(ends[-1], width)
    c = like.new_empty(ends[-1], width)
    h[: ends[1]], c[: ends[1]] = model.leaf(words)
    for begin, end, pair in zip(ends[1:], ends[2:], pairs, strict=False):
        nodes = torch.arange(end - begin, device=pair.device)
        edges = [torch.stack([rows, nodes]) for rows in pair.chunk(2)]
        left_h, right_h = (carry(h, side, end - begin) for side in edges)
        left_c, right_c = (carry(c, side, end - begin) for side in edges)
        h[begin:end], c[begin:end] = model.children(left_h, left_c, right_h, right_c)
    return model.logits(h.index_select(0, roots))
