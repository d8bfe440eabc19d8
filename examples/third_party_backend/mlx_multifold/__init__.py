"""MLX as a backend of multifold: what an author outside the project writes, and all of it.

MLX has one memory for all its devices and no storage to view, so the adapter is thin: each method
is one call of ``mlx.core``. MLX computes when asked to; a whole schedule reaches it as one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar, final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from multifold.backend import Backend, TrainingKit, unsupported

__all__ = ["MlxBackend"]

WIDTHS = {int: np.int32, float: np.float32, bool: np.bool_}
"""What ``mx.array([1])`` and its like hold."""


@final
class MlxKit(TrainingKit):
    """Gradients of the trainable parameters of an `mlx.nn.Module`, or of a dictionary's arrays."""

    def variable(self, values: np.ndarray, device: Any = None) -> mx.array:
        return mx.array(values)

    def parameters(self, model: Any) -> dict[str, mx.array]:
        tree = model.trainable_parameters() if isinstance(model, nn.Module) else model
        return {name: leaf for name, leaf in tree_flatten(tree) if _trainable(leaf)}

    def value_and_grad(
        self, fn: Callable[[Any], mx.array], model: Any
    ) -> tuple[mx.array, dict[str, mx.array]]:
        parameters = self.parameters(model)

        def of_module(values: dict[str, mx.array]) -> mx.array:
            return fn(model.update(tree_unflatten(list(values.items()))))

        def of_dictionary(values: dict[str, mx.array]) -> mx.array:
            return fn(tree_unflatten(list({**dict(tree_flatten(model)), **values}.items())))

        if not isinstance(model, nn.Module):
            return mx.value_and_grad(of_dictionary)(parameters)
        try:
            return mx.value_and_grad(of_module)(parameters)
        finally:
            model.update(tree_unflatten(list(parameters.items())))  # it still holds the tracers

    def dot(self, x: mx.array, weights: np.ndarray) -> mx.array:
        return (x * mx.array(weights).astype(x.dtype)).sum()


@final
class MlxBackend(Backend):
    """Batched calls on `mlx.core.array`, differentiable by `mlx.core.grad`."""

    name: ClassVar[str] = "mlx"
    kit = MlxKit()
    cell = unsupported(
        "mlx.nn has layers over whole sequences, not cells; "
        "pass a multifold.Cell(step, begin, states) built around your own step"
    )

    def owns(self, x: Any) -> bool:
        return isinstance(x, mx.array)

    def signature(self, x: mx.array) -> Hashable:
        return x.shape[1:], x.dtype

    def rows(self, x: mx.array) -> int:
        return x.shape[0]

    def constant(self, values: np.ndarray, device: Any) -> mx.array:
        return mx.array(values)  # float64 becomes float32, as everywhere in MLX

    def concat(self, xs: Sequence[mx.array]) -> mx.array:
        return mx.concatenate(xs, axis=0)

    def split(self, x: mx.array, sizes: Sequence[int]) -> Sequence[mx.array]:
        return mx.split(x, list(accumulate(sizes))[:-1], axis=0)

    def gather(self, x: mx.array, rows: mx.array) -> mx.array:
        return mx.take(x, rows, axis=0)

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands, **static)

    def hosts(self, model: Any) -> bool:
        if isinstance(model, nn.Module):
            return True
        values = model.values() if isinstance(model, Mapping) else ()
        return any(isinstance(value, (mx.array, nn.Module)) for value in values)

    def cast(self, x: mx.array, dtype: str) -> mx.array:
        return x.astype(getattr(mx, dtype))

    def number_dtype(self, kind: type) -> np.dtype:
        return np.dtype(WIDTHS[kind])

    def to_numpy(self, x: mx.array) -> np.ndarray:
        return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)

    def synchronize(self) -> None:
        mx.synchronize()


def _trainable(leaf: Any) -> bool:
    return isinstance(leaf, mx.array) and mx.issubdtype(leaf.dtype, mx.floating)
