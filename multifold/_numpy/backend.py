"""NumPy as a backend: the embedded default, and the reference that the others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, final

import numpy as np

from multifold.backend import Backend, cached_pieces, promoted, unsupported


@final
class NumpyBackend(Backend):
    """The backend whose arrays are `numpy.ndarray`; it computes no gradients."""

    name: ClassVar[str] = "numpy"
    protects: ClassVar[bool] = True
    puts: ClassVar[bool] = True
    kit = unsupported(
        "NumPy has no gradients; record the same calls with backend='torch' or another framework"
    )

    def owns(self, x: Any) -> bool:
        return isinstance(x, (np.ndarray, np.generic))

    def signature(self, x: np.ndarray) -> Hashable:
        return x.shape[1:], x.dtype

    def rows(self, x: np.ndarray) -> int:
        return x.shape[0]

    def are_like(self, xs: Sequence[np.ndarray], rows: int, signatures: Sequence[Any]) -> bool:
        for x, (tail, dtype) in zip(xs, signatures, strict=True):
            if x.shape != (rows, *tail) or x.dtype != dtype:
                return False
        return True

    def constant(self, values: np.ndarray, device: Any) -> np.ndarray:
        return values

    def concat(self, xs: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(xs)

    def split(self, x: np.ndarray, sizes: Sequence[int]) -> Sequence[np.ndarray]:
        return [x[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]

    def gather(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        # For few rows `take` is quicker than x[rows]. But it copies all of an array that is not contiguous.
        return x.take(rows, 0) if x.flags.c_contiguous else x[rows]

    def put(self, x: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        x[rows] = values
        return x

    def host_view(self, x: np.ndarray) -> np.ndarray:
        return x

    def from_host(self, values: np.ndarray) -> np.ndarray:
        return values

    def like(self, x: np.ndarray, values: np.ndarray) -> np.ndarray:
        return values

    def copy(self, x: np.ndarray) -> np.ndarray:
        return x.copy()

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands, **static)

    def promoted(self, signatures: Sequence[Hashable]) -> Hashable | None:
        # The bfloat16 of the package ml_dtypes is no float to NumPy, but promotes like one.
        return promoted(
            signatures,
            lambda dtype: dtype.kind in "fc" or "float" in dtype.name,
            lambda dtypes: np.result_type(*dtypes),
        )

    def protected(self, x: np.ndarray) -> np.ndarray:
        if not isinstance(x, np.ndarray):
            return x  # a scalar, or what is no array
        view = x.view()
        view.setflags(write=False)
        return view

    def unprotected(self, x: np.ndarray) -> np.ndarray:
        if not isinstance(x, np.ndarray) or x.flags.writeable:
            return x
        # A view of all of a result was made by `protected` or by an op that returned its operand.
        owner = x.base
        if isinstance(owner, np.ndarray) and owner.flags.writeable and is_all_of(x, owner):
            return owner
        return x.copy()

    def hosts(self, model: Any) -> bool:
        return False

    def pieces(self, rows: int, device: Any) -> int:
        return cached_pieces(rows)

    def lazy_recorder(self, fn: Any) -> Any:
        # Imported late: few folds run code as it stands.
        from multifold._numpy.lazy.recorder import NumpyRecorder

        return NumpyRecorder(fn)


def is_all_of(view: np.ndarray, array: np.ndarray) -> bool:
    """Return whether a view shows all of an array, in the same order.

    A contiguous array has no room for another view of its own shape and strides.

    Examples
    --------
    >>> rows = np.zeros((3, 2))
    >>> is_all_of(rows.view(), rows), is_all_of(rows[:2], rows), is_all_of(rows[::-1], rows)
    (True, False, False)
    """
    same = view.shape == array.shape and view.strides == array.strides and view.dtype == array.dtype
    return same and array.flags.forc
