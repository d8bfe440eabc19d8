"""Recurrent cells in the form that `Fold.unroll` takes, whatever framework they are from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multifold.backend.arrays import Array


@dataclass(frozen=True, eq=False)
class Cell:
    """A recurrent cell in the one form that `Fold.unroll` knows, made by `Backend.cell`.

    Attributes
    ----------
    step : callable
        ``step(x, *states) -> (output, *new_states)``, all of shape ``(n, *s)``.
    begin : callable
        ``begin() -> (state, ...)``: the initial states, each of shape ``(1, *s)``.
    states : int
        The number of states.
    """

    step: Callable[..., tuple[Array, ...]]
    begin: Callable[[], tuple[Array, ...]]
    states: int


@dataclass(frozen=True, eq=False)
class Stack:
    """Cells on top of each other, the lowest first: each reads the outputs of the one before it."""

    layers: tuple[Cell | Stack | Bidirectional, ...]


@dataclass(frozen=True, eq=False)
class Bidirectional:
    """A cell that reads forwards, one that reads backwards, and what joins their outputs.

    ``join(forward, backward) -> output`` receives two arrays of shape ``(n, *s)``.
    """

    forward: Cell | Stack | Bidirectional
    backward: Cell | Stack | Bidirectional
    join: Callable[[Array, Array], Array]
