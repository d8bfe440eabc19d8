"""Keras' recurrent cells and layers in the form that `Fold.unroll` knows.

The one idea: a step calls the user's own cell, as `keras.layers.RNN` does, so a cell that is not
built yet is built by its first launch, and shares its weights with the layer.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from multifold.backend import Bidirectional, Cell, Stack
from multifold.errors import BackendError

JOINS = {
    "concat": lambda forward, backward: tf.concat([forward, backward], -1),
    "sum": lambda forward, backward: forward + backward,
    "mul": lambda forward, backward: forward * backward,
    "ave": lambda forward, backward: (forward + backward) / 2,
}


def unrollable(cell: Any) -> Cell | Stack | Bidirectional | None:
    """Return a cell, RNN layer or `Bidirectional` of Keras as a `Cell`, `Stack` or `Bidirectional`.

    For anything else return None.

    Raises
    ------
    BackendError
        If the layer does more than its cell: it reads backwards by itself, keeps its state, drops
        out, or leaves the two directions apart.

    Examples
    --------
    >>> unrollable(keras.layers.LSTMCell(4)).states
    2
    """
    if isinstance(cell, keras.layers.Bidirectional):
        if cell.merge_mode is None:
            raise _beyond(cell, "joins the outputs of both directions")
        forward = _layer(cell.forward_layer)
        backward = _layer(cell.backward_layer, backwards=True)
        return Bidirectional(forward, backward, JOINS[cell.merge_mode])
    if isinstance(cell, keras.layers.RNN):
        return _layer(cell)
    return _steps(cell, cell) if getattr(cell, "state_size", None) is not None else None


def _layer(layer: Any, backwards: bool = False) -> Cell | Stack:
    if layer.stateful or layer.go_backwards is not backwards:
        raise _beyond(layer, f"is not stateful, with go_backwards={backwards}")
    return _steps(layer, layer.cell)


def _steps(owner: Any, cell: Any) -> Cell | Stack:
    """Return a cell of Keras as a `Cell`, or stacked cells as a `Stack`.

    ``owner`` is the cell itself or the layer around it, and makes the initial state. Raises `BackendError`
    for a cell with dropout.
    """
    if isinstance(cell, keras.layers.StackedRNNCells):
        return Stack(tuple(_steps(part, part) for part in cell.cells))
    if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
        # Keras draws one mask for a batch of sequences; a launch is a batch of single steps.
        raise _beyond(cell, "has no dropout")

    def step(x: tf.Tensor, *states: tf.Tensor) -> tuple[tf.Tensor, ...]:
        output, new_states = cell(x, list(states))
        return output, *_tuple(new_states)

    def begin() -> tuple[tf.Tensor, ...]:
        if hasattr(owner, "get_initial_state"):
            return _tuple(owner.get_initial_state(batch_size=1))
        # A cell needs no more than `state_size` and `call`; then `keras.layers.RNN` begins with zeros, too.
        return tuple(tf.zeros((1, *_tuple(size)), cell.compute_dtype) for size in _tuple(owner.state_size))

    step.__qualname__ = type(cell).__qualname__  # what tables and messages call it
    return Cell(step, begin, len(_tuple(owner.state_size)))


def _tuple(states: Any) -> tuple[Any, ...]:
    return tuple(states) if isinstance(states, (list, tuple)) else (states,)


def _beyond(cell: Any, expected: str) -> BackendError:
    return BackendError(
        f"Expected a cell that {expected}. Received {cell.name}, a {type(cell).__name__}.",
        "change that setting, or pass a multifold.Cell(step, begin, states) built around it.",
    )
