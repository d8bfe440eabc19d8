"""Lattices in DyNet: an LSTM along each arc, and sums where arcs meet.

For each character there is its id, and of each word that ends there the place where it begins, and its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def lattice_lstm(net: Any, places: Sequence[Any]) -> list[Any]:
    """Tag the characters of a lattice of LSTMs."""
    state = net.whole("begin.h"), net.whole("begin.c")
    states: list[Any] = []
    for character, words in places:
        arcs = [cell(net, "character", net.look_up("characters", character), *state)]
        arcs += [cell(net, "word", net.look_up("words", word), *states[first]) for first, word in words]
        h, c = (net.dy.esum(list(parts)) if words else parts[0] for parts in zip(*arcs, strict=True))
        state = h, c
        states.append(state)
    return [net.affine("output", h) for h, _ in states]


def cell(net: Any, name: str, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return the next state of an LSTM."""
    dy = net.dy
    take_in, keep, out = (dy.logistic(net.affine(name, x, h, gate=gate)) for gate in range(3))
    c = dy.cmult(take_in, dy.tanh(net.affine(name, x, h, gate=3))) + dy.cmult(keep, c)
    return dy.cmult(out, dy.tanh(c)), c
