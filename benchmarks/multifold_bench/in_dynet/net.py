"""Weights of a model in DyNet's layout, made when a program first asks for them.

A model of multifold has the gates of a cell in one matrix, of shape ``(inputs + width, 4 * width)`` for an
LSTM, with rows on its left. DyNet's users have columns on the right, and a matrix for each gate and each
operand. So `Net.affine` cuts these out of the weight, and `Net.gradients` puts their gradients together
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Cut = tuple[str, slice, slice]
"""A part of a weight: its name, the rows, which are of an operand, and the columns, which are of a gate."""


class Net:
    """The weights of a model by name, as parameters of DyNet.

    Parameters
    ----------
    dy : module
        DyNet.
    weights : dict of str to float32 array
        As `multifold.models.Model.weights` gives them.
    """

    def __init__(self, dy: Any, weights: dict[str, np.ndarray]) -> None:
        self.dy = dy
        self.weights = weights
        self.width = weights["output.weight"].shape[0]
        self.parameters = dy.ParameterCollection()
        self.tables: dict[str, Any] = {}
        self.cuts: list[tuple[Cut, Any]] = []
        self.wholes: dict[str, Any] = {}
        self.maps: dict[tuple[str, int, int | None], list[Any]] = {}

    def look_up(self, name: str, row: int, shape: Sequence[int] = ()) -> Any:
        """Return a row of a table, as a matrix if it has a shape."""
        if name not in self.tables:
            rows = self.weights[name]
            rows = rows.reshape(len(rows), *shape) if shape else rows
            self.tables[name] = self.parameters.lookup_parameters_from_numpy(rows)
        return self.dy.lookup(self.tables[name], row)

    def whole(self, name: str) -> Any:
        """Return a weight as one matrix, or as a vector if it has one row."""
        if name not in self.wholes:
            self.wholes[name] = self.part((name, slice(None), slice(None)))
        return self.wholes[name]

    def affine(self, name: str, *xs: Any, gate: int | None = None) -> Any:
        """Apply an affine map, or one gate of it.

        Parameters
        ----------
        name : str
            The map has the weights ``<name>.weight`` and ``<name>.bias``.
        *xs : expressions
            Its operands; each has a matrix of its own.
        gate : int, optional
            Which gate, each as wide as the model's states; all of them together by default.
        """
        key = (name, len(xs), gate)
        parts = self.maps.get(key) or self.cut(name, xs, gate)
        operands = [parts[0]]
        for matrix, x in zip(parts[1:], xs, strict=True):
            operands += [matrix, x]
        return self.dy.affine_transform(operands)

    def cut(self, name: str, xs: Sequence[Any], gate: int | None) -> list[Any]:
        """Return the bias of a gate and a matrix for each operand."""
        columns = slice(None) if gate is None else slice(gate * self.width, (gate + 1) * self.width)
        found = [self.part((f"{name}.bias", slice(None), columns))]
        begin = 0
        for x in xs:
            rows = slice(begin, begin := begin + x.dim()[0][0])
            found.append(self.part((f"{name}.weight", rows, columns)))
        self.maps[name, len(xs), gate] = found
        return found

    def part(self, cut: Cut) -> Any:
        """Make a parameter of a part of a weight."""
        name, rows, columns = cut
        weight = self.weights[name]
        value = weight[columns] if weight.ndim == 1 else weight[rows, columns].T
        value = value[:, 0] if value.ndim == 2 and value.shape[1] == 1 else value
        made = self.parameters.parameters_from_numpy(np.ascontiguousarray(value))
        self.cuts.append((cut, made))
        return made

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients by the names of the weights, and set them to zero."""
        found = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        for name, table in self.tables.items():
            gradient = table.grad_as_array()
            if gradient.ndim == 3:  # its matrices lie column by column
                gradient = gradient.swapaxes(1, 2)
            found[name] += gradient.reshape(found[name].shape)
            table.scale_gradient(0)
        for (name, rows, columns), parameter in self.cuts:
            gradient = parameter.grad_as_array().T
            if self.weights[name].ndim == 1:
                found[name][columns] += gradient
            else:
                found[name][rows, columns] += gradient
            parameter.scale_gradient(0)
        return found
