"""A multilayer perceptron, fed one row at a time: all examples have one structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, linear
from multifold.models.model import Model


@final
class MLP(Model):
    """Classifies rows of numbers.

    Parameters
    ----------
    inputs : int
        How many numbers a row has.
    hidden : sequence of int
        The widths of the layers in between.
    classes : int
        The number of classes.
    seed, dtype
        Of the initial values.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> model = MLP(inputs=64, hidden=(32, 16), classes=10)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = [model.classify(fold, image) for image in np.zeros((3, 1, 64), "float32")]
    >>> fold.apply(model, [nodes])[0].shape, len(fold.schedule().launches)
    ((3, 10), 3)
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], classes: int, *, seed: int = 0, dtype: str = "float32"
    ) -> None:
        initial = Initial(seed, dtype)
        parameters: dict[str, np.ndarray] = {}
        for index, width in enumerate(hidden):
            parameters |= initial.linear(f"layers.{index}", inputs, width)
            inputs = width
        super().__init__(parameters | initial.linear("output", inputs, classes), depth=len(hidden))

    def layer(self, x: Array, index: int) -> Array:
        """Return the outputs ``(n, width)`` of hidden layer ``index``, from 0, for rows ``(n, inputs)``.

        The rows may be of any dtype; ``index`` is a static argument.
        """
        group = getattr(self.layers, str(index))
        return ops.relu(linear(group, ops.cast(x, group.weight)))

    def logits(self, x: Array) -> Array:
        """Return the logits of the classes, ``(n, classes)``, from rows of the last hidden layer."""
        return linear(self.output, ops.cast(x, self.output.weight))

    def classify(self, fold: Any, row: Any) -> Any:
        """Record one example, an array of shape ``(1, inputs)``; return the node of its `logits`."""
        for index in range(self.depth):
            row = fold.add("layer", row, index=index)
        return fold.add("logits", row)
