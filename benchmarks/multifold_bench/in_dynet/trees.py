"""Trees in DyNet, each a list of its nodes: "(7 8) 9" is ``[7, 8, "children", 9, "children"]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

State = tuple[Any, Any]


def binary(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify the root of a binary Tree-LSTM."""
    states = encode(net, nodes, {"children": "compose"})
    return [net.affine("output", states[-1][0])]


def double_typed(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify each node of a Tree-LSTM of two cells."""
    states = encode(net, nodes, {"first": "one", "second": "other"})
    return [net.affine("output", h) for h, _ in states]


def encode(net: Any, nodes: Sequence[Any], cells: dict[str, str]) -> list[State]:
    """Return the states of all nodes; ``cells`` has the name of the weights for each sort of node."""
    states: list[State] = []
    stack: list[State] = []
    for node in nodes:
        if isinstance(node, str):
            right = stack.pop()
            left = stack.pop()
            stack.append(phrase(net, cells[node], left, right))
        else:
            stack.append(leaf(net, node))
        states.append(stack[-1])
    return states


def leaf(net: Any, word: int) -> State:
    """Return the state of a word."""
    dy = net.dy
    x = net.look_up("embedding", word)
    take_in, out, candidate = gates(net, net.affine("word", x), 2)
    c = dy.cmult(take_in, candidate)
    return dy.cmult(out, dy.tanh(c)), c


def phrase(net: Any, cell: str, left: State, right: State) -> State:
    """Return the state of a phrase from those of its parts."""
    dy = net.dy
    (left_h, left_c) = left
    (right_h, right_c) = right
    x = net.affine(cell, dy.concatenate([left_h, right_h]))
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


def tree_gru(net: Any, nodes: Sequence[Any]) -> list[Any]:
    """Classify each node of a Tree-GRU."""
    states: list[Any] = []
    stack: list[Any] = []
    for node in nodes:
        if isinstance(node, str):
            right = stack.pop()
            left = stack.pop()
            stack.append((unit(net, "left", left) + unit(net, "right", right)) / 2)
        else:
            stack.append(unit(net, "word", net.look_up("embedding", node)))
        states.append(stack[-1])
    return [net.affine("output", h) for h in states]


def unit(net: Any, name: str, h: Any) -> Any:
    """Return what a gated recurrent unit keeps of a state, and what it adds."""
    dy = net.dy
    reset, keep = (dy.logistic(net.affine(f"{name}_gates", h, gate=gate)) for gate in (0, 1))
    new = dy.tanh(net.affine(f"{name}_candidate", dy.cmult(reset, h)))
    return dy.cmult(keep, h) + dy.cmult(-keep + 1, new)  # a number minus an expression is not known
