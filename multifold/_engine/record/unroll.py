"""Unrolling a recurrent cell over one example: each step is a call, which batches with other examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multifold._engine.record.node import Node
from multifold._engine.record.recorder import Recorder
from multifold.backend import Bidirectional, Cell, Stack
from multifold.errors import RecordError, type_of

LAYOUTS = {"NTC": 1, "TNC": 0}
"""Layout -> the axis of time."""


def time_steps(
    length: int, inputs: Any, layout: str, split: Callable[[Any, list[int]], Sequence[Any]]
) -> Sequence[Any]:
    """Return a sequence of ``length`` operands, one for each step: ``inputs`` if they are a list or tuple.

    Else ``inputs`` is an array of shape ``(1, length, C)`` for layout NTC, ``(length, 1, C)`` for TNC,
    which ``split(rows, sizes)`` cuts into rows of shape ``(1, C)``.

    Raises
    ------
    RecordError
        For an unknown layout, a length below 1, or inputs that do not have ``length`` steps of one row.
    """
    if layout not in LAYOUTS:
        raise RecordError(
            f"Expected layout 'NTC' or 'TNC'. Received layout={layout!r}.",
            "N is the one row of the example, T the time, C the features.",
        )
    if isinstance(length, bool) or not isinstance(length, (int, np.integer)) or length < 1:
        raise RecordError(
            f"Expected a length of at least 1 step. Received length={length!r}.",
            "length is the number of steps of this one example.",
        )
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != length:
            raise RecordError(
                f"Expected inputs of {length} steps. Received {len(inputs)}.",
                "a list of inputs has one node or array of shape (1, C) for each step.",
            )
        return inputs
    shape = tuple(getattr(inputs, "shape", ()))
    time = LAYOUTS[layout]
    if len(shape) < 2 or shape[time] != length or shape[1 - time] != 1:
        expected = f"(1, {length}, C)" if time else f"({length}, 1, C)"
        raise RecordError(
            f"Expected inputs of shape {expected} for layout {layout}. Received shape {shape}.",
            "one example has one row a step: unroll each example by itself, and they will batch.",
        )
    rows = inputs[0] if time else inputs[:, 0]
    # One split has one gradient. Were each step a slice, the gradient of each slice would be an array as
    # large as the whole input.
    return split(rows, [1] * length)


def unroll(
    fold: Recorder, cell: Cell | Stack | Bidirectional, steps: Sequence[Any], begin: Any
) -> tuple[list[Node], Any]:
    """Record the calls of a cell over ``steps``, one operand for each; return ``(outputs, last states)``.

    ``begin`` are the states before the first step, None for those that the cell begins with; see
    `Fold.unroll`, which says how they nest.

    Raises
    ------
    RecordError
        If ``begin`` has another number of states, layers or directions than the cell.
    """
    if isinstance(cell, (Stack, Bidirectional)) and begin is not None:
        count = len(cell.layers) if isinstance(cell, Stack) else 2
        if not isinstance(begin, (list, tuple)) or len(begin) != count:
            received = len(begin) if isinstance(begin, (list, tuple)) else type_of(begin)
            raise RecordError(
                f"Expected the states of {count} {'layers' if isinstance(cell, Stack) else 'directions'}. "
                f"Received {received}.",
                "begin_state is a list with an entry for each layer, a pair for both directions.",
            )
    if isinstance(cell, Stack):
        lasts = []
        for i, layer in enumerate(cell.layers):
            # The outputs of one layer are the inputs of the next, so each step waits for the same step
            # below it only.
            steps, last = unroll(fold, layer, steps, None if begin is None else begin[i])
            lasts.append(last)
        return list(steps), lasts
    if isinstance(cell, Bidirectional):
        starts = (None, None) if begin is None else begin
        there, last = unroll(fold, cell.forward, steps, starts[0])
        # The backward cell reads the last step first. Its outputs are turned round again, so that pair
        # ``i`` belongs to step ``i``, and its last state is that of the first step.
        back, first = unroll(fold, cell.backward, list(reversed(steps)), starts[1])
        pairs = zip(there, reversed(back), strict=True)
        return [fold.add(cell.join, x, y) for x, y in pairs], [last, first]
    states = begin_states(fold, cell, begin)
    outputs = []
    for x in steps:
        output, *states = fold.add(cell.step, x, *states).split(1 + cell.states)
        outputs.append(output)
    return outputs, states


def named_cell(op: str, begin: Any) -> Cell:
    """Return a `Cell` whose step is the op named ``op``, with as many states as ``begin`` has.

    Raises
    ------
    RecordError
        If ``begin`` is None.
    """
    if begin is None:
        raise RecordError(
            f"Expected begin_state for a cell that is the op '{op}' of the model. Received none.",
            "pass the states before the first step: fold.unroll('cell', length, inputs, [h, c]).",
        )
    states = list(begin) if isinstance(begin, (list, tuple)) else [begin]
    return Cell(op, tuple, len(states))  # type: ignore[arg-type]  # `begin` is never called


def begin_states(fold: Recorder, cell: Cell, begin: Any) -> list[Any]:
    """Return the states before the first step: ``begin`` as a list, by default those of a new call.

    By default ``cell.begin`` is recorded as a call, whose parts they are; a cell without states has none.

    Raises
    ------
    RecordError
        If ``begin`` has other than ``cell.states`` states.
    """
    if begin is None:
        if not cell.states:  # as a dropout cell inside a stack
            return []
        return list(fold.add(cell.begin).split(cell.states))
    states = list(begin) if isinstance(begin, (list, tuple)) else [begin]
    if len(states) != cell.states:
        raise RecordError(
            f"Expected {cell.states} states. Received {len(states)}.",
            "begin_state has one node or array of shape (1, *s) for each state of the cell.",
        )
    return states
