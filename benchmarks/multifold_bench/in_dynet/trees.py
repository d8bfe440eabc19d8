"""Trees in DyNet, each a list of its nodes: "(7 8) 9" is ``[7, 8, "children", 9, "children"]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

State = tuple[Any, Any]


def binary(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify the root of a binary Tree-LSTM."""
    stack: list[State] = []
    for node in nodes:
        if isinstance(node, str):
            right = stack.pop()
            left = stack.pop()
            stack.append(phrase(net, left, right))
        else:
            stack.append(leaf(net, node))
    return [net.affine("output", stack[0][0])]


def leaf(net: Any, word: int) -> State:
    """Return the state of a word."""
    dy = net.dy
    x = net.look_up("embedding", word)
    take_in, out, candidate = gates(net, net.affine("word", x), 2)
    c = dy.cmult(take_in, candidate)
    return dy.cmult(out, dy.tanh(c)), c


def phrase(net: Any, left: State, right: State) -> State:
    """Return the state of a phrase from those of its parts."""
    dy = net.dy
    left_h, left_c = left
    right_h, right_c = right
    x = net.affine("compose", dy.concatenate([left_h, right_h]))
    take_in, keep_left, keep_right, out, candidate = gates(net, x, 4)
    c = dy.cmult(take_in, candidate) + dy.cmult(keep_left, left_c)
    c = c + dy.cmult(keep_right, right_c)
    return dy.cmult(out, dy.tanh(c)), c


def gates(net: Any, x: Any, count: int) -> list[Any]:
    """Cut gates apart: ``count`` between 0 and 1, and the candidate behind them."""
    dy = net.dy
    width = net.width
    opened = dy.logistic(dy.pick_range(x, 0, count * width))
    cut = [dy.pick_range(opened, i * width, (i + 1) * width) for i in range(count)]
    return [*cut, dy.tanh(dy.pick_range(x, count * width, (count + 1) * width))]


def mv_rnn(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify the root of an MV-RNN: each phrase has a vector and a matrix."""
    dy = net.dy
    square = (net.width, net.width)
    stack: list[Any] = []
    for node in nodes:
        if isinstance(node, str):
            right, right_matrix = stack.pop()
            left, left_matrix = stack.pop()
            changed = dy.concatenate([right_matrix * left, left_matrix * right])
            vector = dy.tanh(net.affine("compose", changed))
            matrix = net.whole("compose_matrices") * dy.concatenate([left_matrix, right_matrix])
            stack.append((vector, matrix))
        else:
            stack.append((net.look_up("vectors", node), net.look_up("matrices", node, square)))
    return [net.affine("output", stack[0][0])]
