"""Fused functions in terms of the others: what they mean, and what runs where nothing is quicker.

A fused function does in one step what a model would write in several. An adapter that gains by it brings a
function of the same name in its module ``ops``. All others run these, and the tests
compare every adapter's with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold.backend import Array


def affine(table: Any, xs: Sequence[Array], weight: Array, bias: Array | None) -> Array:
    """Return ``concat(xs, 1) @ weight + bias`` by the functions of ``table``, which is a module ``ops``.

    `multifold.ops.affine` says more of the arguments.
    """
    x = xs[0] if len(xs) == 1 else table.concat(xs, len(xs[0].shape) - 1)
    if bias is None:
        return table.matmul(x, weight)
    return table.linear(x, weight, bias)


def lstm_state(table: Any, gates: Array, cells: Sequence[Array], kept: Array | None) -> tuple[Array, Array]:
    """Return the next state ``(h, c)`` of an LSTM by the functions of ``table``, which is a module ``ops``.

    `multifold.ops.lstm_state` says more of the arguments.
    """
    # All gates lie side by side before the candidate, so one sigmoid serves them all.
    count = 2 + len(cells)
    width = gates.shape[1] // (count + 1)
    before, candidate = table.split(gates, [count * width, width], 1)
    take_in, *keep, out = table.split(table.sigmoid(before), count, 1)
    c = take_in * table.tanh(candidate)
    for gate, cell in zip(keep, cells, strict=True):
        c = c + gate * cell
    if kept is not None:
        c = c + kept
    return out * table.tanh(c), c
