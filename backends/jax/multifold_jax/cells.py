"""The recurrent cells of Flax NNX and Equinox in the form that `Fold.unroll` knows.

Both libraries are optional: a cell of theirs can only exist once they are imported, so they are
looked up in ``sys.modules``.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

from multifold.backend import Bidirectional, Cell, Stack


def unrollable(cell: Any) -> Cell | Stack | Bidirectional | None:
    """Return a Flax NNX or Equinox cell as a `Cell` or `Bidirectional`, or None for anything else.

    An `nnx.RNN` counts as its cell, unless it is reversed.
    """
    nnx = sys.modules.get("flax.nnx")
    equinox = sys.modules.get("equinox")
    if nnx is not None:
        if isinstance(cell, nnx.RNNCellBase) and hasattr(cell, "in_features"):
            return _flax_cell(cell, nnx.Rngs)
        if isinstance(cell, nnx.RNN) and not cell.reverse:
            return unrollable(cell.cell)
        if isinstance(cell, nnx.Bidirectional):
            rnns = (cell.forward_rnn, cell.backward_rnn)
            forward, backward = (unrollable(rnn.cell) for rnn in rnns)
            if isinstance(forward, Cell) and isinstance(backward, Cell):
                return Bidirectional(forward, backward, cell.merge_fn)
    if equinox is not None and isinstance(cell, (equinox.nn.GRUCell, equinox.nn.LSTMCell)):
        return _equinox_cell(cell, states=2 if isinstance(cell, equinox.nn.LSTMCell) else 1)
    return None


def _flax_cell(cell: Any, rngs: Any) -> Cell:
    """Return a Flax NNX cell as a `Cell`, whose states are the leaves of the carry.

    The carry, an array or a tuple of arrays, is flattened before each call and rebuilt in it; the cell
    takes all rows at once.
    """

    def carry() -> Any:
        return cell.initialize_carry((1, cell.in_features), rngs=rngs(0))

    structure = jax.tree.structure(carry())

    def step(x: Any, *states: Any) -> tuple[Any, ...]:
        new, output = cell(structure.unflatten(states), x)
        return output, *jax.tree.leaves(new)

    step.__qualname__ = type(cell).__qualname__  # what tables and messages call it
    return Cell(step, lambda: tuple(jax.tree.leaves(carry())), structure.num_leaves)


def _equinox_cell(cell: Any, states: int) -> Cell:
    """Return an Equinox cell as a `Cell` that maps it over the rows by `jax.vmap`.

    A cell of Equinox is written for one example and returns only its new states, of which ``states`` is the
    number; the first of them is also the output.
    """

    def step(x: Any, *old: Any) -> tuple[Any, ...]:
        new = jax.vmap(cell)(x, old if states == 2 else old[0])
        new = new if states == 2 else (new,)
        return new[0], *new

    def begin() -> tuple[Any, ...]:
        return (jnp.zeros((1, cell.hidden_size), cell.weight_hh.dtype),) * states

    step.__qualname__ = type(cell).__qualname__  # what tables and messages call it
    return Cell(step, begin, states)
