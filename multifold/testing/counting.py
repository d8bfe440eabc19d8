"""A backend that counts what is asked of another one: launches, gathers, concatenations, copied rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, final

import numpy as np

from multifold._frameworks import registry
from multifold.backend import Backend, Bidirectional, Cell, Stack, TrainingKit


@final
class Counting(Backend):
    """Hands everything on to a backend and counts it in ``counts``.

    Attributes
    ----------
    counts : Counter
        ``"call"``, ``"gather"``, ``"concat"``, ``"split"``, ``"constant"`` and ``"to_numpy"`` count
        calls of those methods; ``"rows"`` counts the rows that gathers and concatenations copied.

    Examples
    --------
    >>> import multifold
    >>> counting = Counting("numpy")
    >>> fold = multifold.Fold(backend=counting)
    >>> fold.apply({"f": lambda x: x + 1}, [[fold.add("f", i) for i in range(3)]])
    [array([1, 2, 3])]
    >>> counting.counts["call"], counting.counts["gather"]
    (1, 0)
    """

    name = "counting"

    def __init__(self, backend: str | Backend) -> None:
        self.inner = backend if isinstance(backend, Backend) else registry.load_backend(backend)
        self.name = self.inner.name  # type: ignore[misc]
        self.tiles = self.inner.tiles  # type: ignore[misc]
        self.counts_changes = self.inner.counts_changes  # type: ignore[misc]
        self.pads = self.inner.pads  # type: ignore[misc]
        self.passes = self.inner.passes  # type: ignore[misc]
        self.counts: Counter[str] = Counter()

    @property
    def kit(self) -> TrainingKit:  # type: ignore[override]
        """The kit of the inner backend."""
        return self.inner.kit

    def owns(self, x: Any) -> bool:
        return self.inner.owns(x)

    def signature(self, x: Any) -> Hashable:
        return self.inner.signature(x)

    def rows(self, x: Any) -> int:
        return self.inner.rows(x)

    def constant(self, values: np.ndarray, device: Any) -> Any:
        self.counts["constant"] += 1
        return self.inner.constant(values, device)

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[Any]:
        self.counts["constant"] += 1
        return self.inner.constants(arrays, device)

    def concat(self, xs: Sequence[Any]) -> Any:
        self.counts["concat"] += 1
        self.counts["rows"] += sum(map(self.inner.rows, xs))
        return self.inner.concat(xs)

    def split(self, x: Any, sizes: Sequence[int]) -> Sequence[Any]:
        self.counts["split"] += 1
        return self.inner.split(x, sizes)

    def gather(self, x: Any, rows: Any) -> Any:
        self.counts["gather"] += 1
        self.counts["rows"] += self.inner.rows(rows)
        return self.inner.gather(x, rows)

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        self.counts["call"] += 1
        return self.inner.call(fn, operands, static)

    def hosts(self, model: Any) -> bool:
        return self.inner.hosts(model)

    def unwrap(self, model: Any) -> Any:
        return self.inner.unwrap(model)

    def device(self, model: Any) -> Any:
        return self.inner.device(model)

    def number_dtype(self, kind: type) -> np.dtype:
        return self.inner.number_dtype(kind)

    def padded_rows(self, rows: int) -> int:
        return self.inner.padded_rows(rows)

    def pieces(self, rows: int, device: Any) -> int:
        return self.inner.pieces(rows, device)

    def to_numpy(self, x: Any) -> np.ndarray:
        self.counts["to_numpy"] += 1
        return self.inner.to_numpy(x)

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        return self.inner.cell(cell)

    def gaps(self) -> dict[str, str]:
        return self.inner.gaps()

    def version(self, x: Any) -> int:
        return self.inner.version(x)

    def context(self) -> Hashable:
        return self.inner.context()

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        return self.inner.profile(label)

    def synchronize(self) -> None:
        self.inner.synchronize()
