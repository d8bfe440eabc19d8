"""Losses, written once over `multifold.ops`: sums over rows, each row with a weight.

A weight is one over the number of examples of the minibatch, or 0 for a row that only fills an array
up to a size that a compiler knows already; so a loss is a mean over examples of sums over their rows,
and does not depend on how a framework lays them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from multifold import ops
from multifold._engine.frameworks import registry
from multifold.backend import Array
from multifold_bench.train.settings import SettingsError

Objective = Callable[[Array, Array, Array], Array]
"""``objective(outputs, targets, weights)``: a scalar; MXNet's has shape ``(1,)``."""


def cross_entropy(logits: Array, targets: Array, weights: Array) -> Array:
    """Return the cross entropy of scores against distributions, both ``(n, classes)``.

    Examples
    --------
    >>> import numpy as np
    >>> one_hot = np.eye(2)[[0, 1]]
    >>> print(cross_entropy(np.zeros((2, 2)), one_hot, np.full(2, 0.5)).round(4))  # log(2)
    0.6931
    """
    refuse_other_rows(logits, targets)
    rows = ops.sum(ops.log_softmax(logits, axis=1) * targets, axis=1)
    return -ops.sum(rows * weights, axis=0)


def squared_error(values: Array, targets: Array, weights: Array) -> Array:
    """Return the squared differences between numbers, both of shape ``(n,)``.

    Examples
    --------
    >>> import numpy as np
    >>> print(squared_error(np.array([1.0, 3.0]), np.zeros(2), np.full(2, 0.5)))
    5.0
    """
    refuse_other_rows(values, targets)
    difference = values - targets
    return ops.sum(difference * difference * weights, axis=0)


def absolute_error(values: Array, targets: Array, weights: Array) -> Array:
    """Return the weighed differences between numbers ``(n,)`` and targets ``(n, 2)``: each and its weight.

    Of logarithms, they are logarithms of q-errors.

    Examples
    --------
    >>> import numpy as np
    >>> print(absolute_error(np.array([1.0, 3.0]), np.array([[2.0, 1.0], [0.0, 5.0]]), np.full(2, 0.5)))
    8.0
    """
    expected, important = ops.split(targets, 2, axis=1)
    difference = abs(values - ops.reshape(expected, ()))
    return ops.sum(difference * ops.reshape(important, ()) * weights, axis=0)


def squared_weights(model: Any, like: Array) -> Array:
    """Return the sum of the squares of all weights of a model of `multifold.models`.

    ``like`` is an array of the model's framework, which knows the weights of layers that the model holds.
    """
    sums = []
    weights = [attrgetter(name)(model) for name in model.names]
    backend = registry.owner(like) if getattr(model, "held", ()) else None
    if backend is not None:
        weights = list(backend.kit.parameters(model).values())
    for weight in weights:
        squares = weight * weight
        for _ in range(len(weight.shape)):
            squares = ops.sum(squares, axis=0)
        sums.append(squares)
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    return total


@dataclass(frozen=True)
class Loss:
    """``loss(model, outputs, targets, weights)``: an objective, and L2 where there is any.

    Compared by value, so that what was compiled for one serves an equal one.
    """

    objective: Objective
    l2: float

    def __call__(self, model: Any, outputs: Array, targets: Array, weights: Array) -> Array:
        """Return the loss, a scalar."""
        arrays = (outputs, targets, weights)
        try:
            value = self.objective(*arrays)
        except Exception as error:
            # Whatever it is: rows of another width than their targets are the usual reason.
            text = f"It raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise self.misfit(arrays, text) from error
        if shape_of(value) not in ((), (1,), None):
            raise self.misfit(arrays, f"Received an array of shape {shape_of(value)}.")
        return value + 0.5 * self.l2 * squared_weights(model, value) if self.l2 else value

    def misfit(self, arrays: Sequence[Array], received: str) -> SettingsError:
        """Return the error of an objective that does not fit what the task records."""
        name = getattr(self.objective, "__name__", "objective")
        shapes = map(str, map(shape_of, arrays))
        return SettingsError(
            f"Expected {name}(outputs, targets, weights) to return one number for arrays of shapes "
            f"{', '.join(shapes)}. {received}",
            "outputs are the rows of the nodes that the task records, targets the rows beside them, with a "
            "number for each class where there are classes. The losses of multifold_bench.train.objectives "
            "take such arrays, and a weight for each row.",
        )


def shape_of(x: Array) -> tuple[int | None, ...] | None:
    """Return the shape of an array; None where TensorFlow does not know it in a graph."""
    try:
        return tuple(x.shape)
    except ValueError:
        return None


def refuse_other_rows(outputs: Array, targets: Array) -> None:
    """Refuse rows that broadcasting would compare with targets of another shape."""
    rows = shape_of(outputs)
    expected = shape_of(targets)
    if rows is not None and expected is not None and None not in (*rows, *expected) and rows != expected:
        raise ValueError(f"the rows have shape {rows[1:]}, their targets {expected[1:]}")
