"""Unrolling a recurrent cell over one example, as calls that batch with those of other examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from multifold.backend import Bidirectional, Cell, Stack
from multifold.errors import RecordError
from multifold.graph import Node

if TYPE_CHECKING:
    from multifold.fold import FrameworkRecorder

LAYOUTS = {"NTC": 1, "TNC": 0}
"""Layout -> the axis of time."""


def unroll(
    fold: FrameworkRecorder,
    cell: Any,
    length: int,
    inputs: Any,
    begin_state: Any = None,
    layout: str = "NTC",
) -> tuple[list[Node], Any]:
    """Unroll a recurrent cell over one example of ``length`` steps.

    Parameters
    ----------
    fold : Fold or Unfold
        Records a call for each step; those of many examples share launches.
    cell : object
        A recurrent cell of the fold's framework, a list of cells on top of each other, or a
        `multifold.Cell`, `Stack` or `Bidirectional`.
    length : int
        The number of steps, at least 1.
    inputs : list of Node or arrays, or array
        One node or array of shape ``(1, C)`` a step; or an array of shape ``(1, length, C)`` for
        layout NTC, ``(length, 1, C)`` for TNC.
    begin_state : optional
        The states before the first step, nodes or arrays of shape ``(1, *s)``: one state or a list of
        them for a cell, a list with an entry for each layer of a stack, a pair for both directions.
        By default what the cell begins with.
    layout : str
        ``"NTC"`` or ``"TNC"``.

    Returns
    -------
    outputs : list of Node
        The output of each step.
    states : list
        The last states, nested like ``begin_state``.

    Raises
    ------
    RecordError
        If the inputs do not have ``length`` steps of one row.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> total = multifold.Cell(lambda x, s: (s + x, s + x), lambda: (np.zeros((1, 2)),), 1)
    >>> fold = multifold.Fold(backend="numpy")
    >>> outputs, states = fold.unroll(total, 3, np.arange(6.0).reshape(1, 3, 2))
    >>> fold([outputs])
    [array([[0., 1.],
           [2., 4.],
           [6., 9.]])]
    """
    steps = time_steps(fold, length, inputs, layout)
    return run(fold, known_cell(fold, cell), steps, begin_state)


def known_cell(fold: FrameworkRecorder, cell: Any) -> Cell | Stack | Bidirectional:
    """Return the cell as multifold's; the same object for the same cell, so that calls batch."""
    if isinstance(cell, (Cell, Stack, Bidirectional)):
        return cell
    kept = fold.__dict__.setdefault("_cells", {})
    parts = tuple(cell) if isinstance(cell, (list, tuple)) else None
    key = tuple(map(id, parts)) if parts is not None else id(cell)
    if key not in kept:
        if parts is not None:
            made: Any = Stack(tuple(known_cell(fold, part) for part in parts))
        else:
            made = fold._backend_of(cell).cell(cell)
        kept[key] = (cell, made)  # the cell stays alive, so that its id is not used again
    result: Cell | Stack | Bidirectional = kept[key][1]
    return result


def time_steps(fold: FrameworkRecorder, length: int, inputs: Any, layout: str) -> Sequence[Any]:
    """Return the inputs as one operand a step."""
    if layout not in LAYOUTS:
        raise RecordError(f"Expected layout 'NTC' or 'TNC'. Received layout={layout!r}.")
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise RecordError(f"Expected a length of at least 1 step. Received length={length!r}.")
    if isinstance(inputs, (list, tuple)):
        if len(inputs) != length:
            raise RecordError(f"Expected inputs of {length} steps. Received {len(inputs)}.")
        return inputs
    shape = tuple(getattr(inputs, "shape", ()))
    time = LAYOUTS[layout]
    if len(shape) < 2 or shape[time] != length or shape[1 - time] != 1:
        expected = f"(1, {length}, C)" if time else f"({length}, 1, C)"
        raise RecordError(
            f"Expected inputs of shape {expected} for layout {layout}. Received shape {shape}.",
            "one example has one row a step: unroll each example by itself, and they will batch.",
        )
    return [inputs[:, t] if time else inputs[t] for t in range(length)]


def run(
    fold: FrameworkRecorder, cell: Cell | Stack | Bidirectional, steps: Sequence[Any], begin: Any
) -> tuple[list[Node], Any]:
    """Unroll a cell of any form over operands."""
    if isinstance(cell, Stack):
        lasts = []
        for i, layer in enumerate(cell.layers):
            steps, last = run(fold, layer, steps, None if begin is None else begin[i])
            lasts.append(last)
        return list(steps), lasts
    if isinstance(cell, Bidirectional):
        starts = (None, None) if begin is None else begin
        there, last = run(fold, cell.forward, steps, starts[0])
        back, first = run(fold, cell.backward, list(reversed(steps)), starts[1])
        pairs = zip(there, reversed(back), strict=True)
        return [fold.add(cell.join, x, y) for x, y in pairs], [last, first]
    states = begin_states(fold, cell, begin)
    outputs = []
    for x in steps:
        output, *states = fold.add(cell.step, x, *states).split(1 + cell.states)
        outputs.append(output)
    return outputs, states


def begin_states(fold: FrameworkRecorder, cell: Cell, begin: Any) -> list[Any]:
    """Return the states before the first step; those that a cell begins with are one shared call."""
    if begin is None:
        call: Callable[[], Any] = cell.begin
        return list(fold.add(call).split(cell.states))
    states = list(begin) if isinstance(begin, (list, tuple)) else [begin]
    if len(states) != cell.states:
        raise RecordError(f"Expected {cell.states} states. Received {len(states)}.")
    return states
