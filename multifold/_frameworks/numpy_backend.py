"""NumPy as a backend: the embedded default, and the reference that the others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold.backend import Backend, cached_pieces, unsupported


@final
class NumpyBackend(Backend):
    """Batched calls on `numpy.ndarray`; values only."""

    name: ClassVar[str] = "numpy"
    protects: ClassVar[bool] = True
    kit = unsupported(
        "NumPy has no gradients; record the same calls with backend='torch' or another framework"
    )

    def owns(self, x: Any) -> bool:
        return isinstance(x, (np.ndarray, np.generic))

    def signature(self, x: np.ndarray) -> Hashable:
        return x.shape[1:], x.dtype

    def rows(self, x: np.ndarray) -> int:
        return x.shape[0]

    def constant(self, values: np.ndarray, device: Any) -> np.ndarray:
        return values

    def concat(self, xs: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(xs)

    def split(self, x: np.ndarray, sizes: Sequence[int]) -> Sequence[np.ndarray]:
        ends = np.cumsum(sizes).tolist()
        return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def gather(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return x[rows]

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands, **static)

    def protected(self, x: np.ndarray) -> np.ndarray:
        if not isinstance(x, np.ndarray):
            return x  # a scalar
        view = x.view()
        view.setflags(write=False)
        return view

    def unprotected(self, x: np.ndarray) -> np.ndarray:
        if x.flags.writeable or not isinstance(x, np.ndarray):
            return x
        # A view of all of a result was made by `protected` or by an op that returned its operand.
        owner = x.base
        if isinstance(owner, np.ndarray) and owner.flags.writeable and same_memory(owner, x):
            return owner
        return x.copy()

    def hosts(self, model: Any) -> bool:
        return False

    def pieces(self, rows: int, device: Any) -> int:
        return cached_pieces(rows)


def same_memory(array: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays are the same numbers in the same places.

    Examples
    --------
    >>> rows = np.zeros((3, 2))
    >>> same_memory(rows, rows.view()), same_memory(rows, rows[:2]), same_memory(rows, rows.copy())
    (True, False, False)
    """
    start, layout = array.ctypes.data, (array.shape, array.strides, array.dtype)
    return start == other.ctypes.data and layout == (other.shape, other.strides, other.dtype)
