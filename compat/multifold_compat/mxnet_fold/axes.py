"""Batch axes: how operands and results move so that rows are on axis 0 outside of an op.

Examples
--------
An op takes rows along axis 1. Its operand of 2 rows has them on axis 0, and so has the result:

>>> import numpy as np
>>> def lengths(x):  # (3, n) -> (1, n)
...     return np.sqrt((x**2).sum(axis=0, keepdims=True))
>>> along = AlongAxis(lengths, axis=1, moves=(Move(1, 1),))
>>> along(np.array([[2.0, 2.0, 1.0], [0.0, 3.0, 4.0]]))
array([[3.],
       [5.]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from multifold._engine.record.signature import op_name
from multifold.errors import LaunchError


@dataclass(frozen=True)
class Move:
    """How the axes of an operand move before a call.

    Rows leave axis 0 for the axis where the op wants them.

    Attributes
    ----------
    origin : int
        The axis that stands at axis 0 while the core handles the rows.
    target : int
        The axis along which the op takes rows; ``origin`` for a whole value.
    """

    origin: int
    target: int

    def __call__(self, x: Any) -> Any:
        """Return an array, or a tuple or list of arrays, with its axes moved.

        Raises `LaunchError` if ``target`` has other than length 1.
        """
        if isinstance(x, (tuple, list)):
            return type(x)(map(self, x))
        # First back to where the op before it had its rows, then to where this op wants them.
        x = swap(x, 0, self.origin)
        if self.origin == self.target:
            return x
        if len(x.shape) <= self.target or x.shape[self.target] != 1:
            raise LaunchError(
                f"Expected rows along axis {self.origin} to have length 1 along batch axis "
                f"{self.target}. Received shape {tuple(x.shape)}.",
                "record both ops with the same batch_axis, or expand the axis inside of the op.",
            )
        return swap(x, self.origin, self.target)


Moves = Move | tuple[Any, ...]
"""How an operand moves; a tuple of these for a list of operands."""


def stays(move: Moves) -> bool:
    """Return whether a move leaves all axes where they are."""
    return all(map(stays, move)) if isinstance(move, tuple) else move == Move(0, 0)


def moved(x: Any, move: Moves) -> Any:
    """Return an operand, or a list of operands for a tuple of moves, with its axes moved."""
    if isinstance(move, tuple):
        return list(map(moved, x, move))
    return x if stays(move) else move(x)


def swap(x: Any, first: int, second: int) -> Any:
    """Return an array with two axes swapped, or as it is if it lacks one.

    Of a tuple or list, each array is swapped.
    """
    if first == second:
        return x
    if isinstance(x, (tuple, list)):
        return type(x)([swap(item, first, second) for item in x])
    return x.swapaxes(first, second) if len(x.shape) > max(first, second) else x


class AlongAxis:
    """Wraps an op whose rows are on ``axis``, as an op whose rows are on axis 0.

    Parameters
    ----------
    op : callable
        What is called, with rows along ``axis``.
    axis : int
        Where the op takes and returns rows.
    moves : tuple of Moves
        How each operand moves before the call.
    """

    def __init__(self, op: Callable[..., Any], axis: int, moves: tuple[Moves, ...]) -> None:
        self.op = op
        self.axis = axis
        self.moves = moves
        self.__qualname__ = f"{op_name(op)} (axis {axis})"

    def __call__(self, *operands: Any) -> Any:
        """Move the operands, call the op, and return its result with the rows on axis 0."""
        return swap(self.op(*map(moved, operands, self.moves)), 0, self.axis)
