"""Gluon's recurrent cells in the form that `Fold.unroll` knows, equal to their own ``unroll``."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import rnn

from multifold.backend import Array, Bidirectional, Cell, Stack
from multifold.errors import BackendError


def cell_of(cell: rnn.RecurrentCell) -> Any:
    """Return a Gluon cell as a `Cell`, or as the `Stack` or `Bidirectional` of the cells inside it.

    Raises `BackendError` for a cell that `refuse_memory` refuses.
    """
    if isinstance(cell, (rnn.SequentialRNNCell, rnn.HybridSequentialRNNCell)):
        return Stack(tuple(cell_of(cell[i]) for i in range(len(cell))))
    if isinstance(cell, rnn.BidirectionalCell):
        forward, backward = map(cell_of, cell._children.values())
        return Bidirectional(forward, backward, side_by_side)
    cell.apply(refuse_memory)

    def step(x: Array, *states: Array) -> tuple[Array, ...]:
        output, states = cell(x, list(states))
        return output, *states

    def begin() -> tuple[Array, ...]:
        first = next(iter(cell.collect_params().values()), None)
        where = {} if first is None else {"ctx": first.list_ctx()[0], "dtype": first.dtype}
        return tuple(cell.begin_state(batch_size=1, func=mx.nd.zeros, **where))

    step.__qualname__ = type(cell).__qualname__  # what tables and messages call it
    return Cell(step, begin, len(cell.state_info(1)))


def side_by_side(forward: Array, backward: Array) -> Array:
    """Return the outputs of both directions, ``(n, a)`` and ``(n, b)``, joined to ``(n, a + b)``."""
    return mx.nd.concat(forward, backward, dim=1)


def refuse_memory(block: gluon.Block) -> None:
    """Raise `BackendError` for a cell that remembers the rows of its last call or cannot be stepped alone.

    The first are a ZoneoutCell that drops outputs and a VariationalDropoutCell, the second is a
    BidirectionalCell.
    """
    if isinstance(block, rnn.BidirectionalCell):
        raise BackendError(
            "Expected a cell that can be stepped. Received a BidirectionalCell inside of another cell.",
            "unroll the BidirectionalCell by itself, and record what is around it as ops.",
        )
    zoneout = isinstance(block, rnn.ZoneoutCell) and block.zoneout_outputs
    if zoneout or isinstance(block, gluon.contrib.rnn.VariationalDropoutCell):
        raise BackendError(
            f"Expected a cell without memory to unroll. Received a {type(block).__qualname__}.",
            "use a DropoutCell, or zoneout of the states only.",
        )
