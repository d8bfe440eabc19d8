"""An MV-RNN in DyNet: each phrase has a vector and a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def mv_rnn(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify the root of a tree, which is given as in `trees`."""
    dy = net.dy
    square = (net.width, net.width)
    stack: list[Any] = []
    for node in nodes:
        if isinstance(node, str):
            (right, right_matrix) = stack.pop()
            (left, left_matrix) = stack.pop()
            changed = dy.concatenate([right_matrix * left, left_matrix * right])
            vector = dy.tanh(net.affine("compose", changed))
            matrix = net.whole("compose_matrices") * dy.concatenate([left_matrix, right_matrix])
            stack.append((vector, matrix))
        else:
            stack.append((net.look_up("vectors", node), net.look_up("matrices", node, square)))
    return [net.affine("output", stack[0][0])]
