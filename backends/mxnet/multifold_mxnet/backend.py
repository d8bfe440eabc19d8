"""MXNet Gluon behind the seam of multifold: blocks, hybridized or not, and both kinds of arrays.

One idea: an eager MXNet operation costs tens of microseconds, so each method is one operation or
none. Legacy (`mx.nd`) and NumPy-like (`mx.np`) arrays are two views of one buffer, and an operator
takes one kind only: where indices are of another kind than the rows they are viewed, never copied.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold.backend import (
    Array,
    Backend,
    Bidirectional,
    Cell,
    Stack,
    StateSlot,
    TrainingKit,
    cached_pieces,
)

if np.lib.NumpyVersion(np.__version__) >= "1.24.0":
    raise ImportError(f"MXNet 1.9.1 needs numpy<1.24, and this environment has numpy {np.__version__}")
with warnings.catch_warnings():  # MXNet warns of the NumPy names that it uses itself
    warnings.simplefilter("ignore")
    import mxnet as mx
    from mxnet import autograd, gluon

    from multifold_mxnet.cells import cell_of
    from multifold_mxnet.kit import MxnetKit, constant, entries, like
    from multifold_mxnet.trials import apart, slots

BRANCHES = 4
"""Slices of one source; each is a gradient as large as it, and fewer mean a deeper tree."""


def cut(x: Array, sizes: Sequence[int]) -> list[Array]:
    """Return views of ``x``: its first ``sizes[0]`` rows, the next ``sizes[1]`` rows, and so on."""
    ends = itertools.accumulate(sizes)
    # x[a:b] ends in the same `_slice`, after it asked for the shape twice.
    return [x._slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def balanced(sizes: Sequence[int]) -> list[list[int]]:
    """Return ``sizes`` in lists of neighbours, each of which has at most a quarter of all rows.

    A size larger than that stands alone. The largest sections are then slices of the whole array, and only
    small groups are sliced again.

    Examples
    --------
    >>> balanced([50, 2, 20, 3, 1, 4])
    [[50], [2], [20], [3, 1, 4]]
    """
    share = sum(sizes) / BRANCHES
    held = 0
    groups: list[list[int]] = []
    for size in sizes:
        if not groups or held + size > share:
            groups.append([])
            held = 0
        groups[-1].append(size)
        held += size
    return groups


@final
class MxnetBackend(Backend):
    """Batched calls on MXNet arrays, op by op or in hybridized blocks.

    Parameters
    ----------
    hybridizer : callable, optional
        ``hybridizer(op, operands, static)`` runs the launches: a `Hybridizer`.
    """

    name: ClassVar[str] = "mxnet"
    kit: ClassVar[TrainingKit] = MxnetKit()

    def __init__(self, hybridizer: Callable[..., Any] | None = None) -> None:
        self.hybridizer = hybridizer

    def owns(self, x: Any) -> bool:
        return isinstance(x, mx.nd.NDArray)  # mx.np.ndarray is a subclass of it

    def signature(self, x: Array) -> Hashable:
        return x.shape[1:], x.dtype, x.ctx, type(x)

    def rows(self, x: Array) -> int:
        return x.shape[0]

    def rows_and_signature(self, x: Array) -> tuple[int, Hashable]:
        shape = x.shape  # asked once, since MXNet is asked through ctypes
        return shape[0], (shape[1:], x.dtype, x.ctx, type(x))

    def constant(self, values: np.ndarray, device: Any) -> Array:
        return constant(values, device)

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[Array]:
        # Constants are not on the tape, so no slice gets a gradient as large as its source, and the tree of
        # views that `split` makes is not needed.
        return cut(constant(np.concatenate(arrays), device), [len(array) for array in arrays])

    def concat(self, xs: Sequence[Array]) -> Array:
        if any(isinstance(x, mx.np.ndarray) for x in xs):
            return mx.np.concatenate([x.as_np_ndarray() for x in xs])
        return mx.nd.concat(*xs, dim=0)

    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        """Return views, one for each of ``sizes``; while gradients are recorded, views of views.

        MXNet has no linear way. The gradient of a slice is as large as its whole source, and
        `split_v2` searches all sections for every element. `autograd.Function` ignores
        ``grad_req="add"`` and can hang at exit, when its Python callback comes too late.
        """
        if len(sizes) <= BRANCHES or not x.shape[0] or not autograd.is_recording():
            return cut(x, sizes)
        groups = balanced(sizes)
        wholes = cut(x, [sum(group) for group in groups])
        return [
            section
            for whole, group in zip(wholes, groups, strict=True)
            for section in ([whole] if len(group) == 1 else self.split(whole, group))
        ]

    def gather(self, x: Array, rows: Array) -> Array:
        if not rows.shape[0]:
            return x[:0]  # the backward of `take` with no rows writes uninitialised memory
        # `take` clips what is out of range; "raise" costs the same, but raises late and elsewhere.
        return like(x, mx.nd.take(x.as_nd_ndarray(), rows.as_nd_ndarray()))

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        if self.hybridizer is not None:
            return self.hybridizer(fn, operands, static)
        return fn(*operands, **static)

    def context(self) -> Hashable:
        return autograd.is_recording(), autograd.is_training()

    def hosts(self, model: Any) -> bool:
        values = model.values() if isinstance(model, Mapping) else ()
        return any(isinstance(x, (gluon.Block, mx.nd.NDArray)) for x in (model, *values))

    def device(self, model: Any) -> Any:
        """Return the context of an array, or of a model's first array or initialised parameter, or None."""
        if isinstance(model, mx.nd.NDArray):
            return model.ctx
        for entry in entries(model).values():
            if isinstance(entry, mx.nd.NDArray):
                return entry.ctx
            with contextlib.suppress(RuntimeError):  # a parameter that is not initialised has no context
                return entry.list_ctx()[0]
        return None

    def pieces(self, rows: int, device: Any) -> int:
        """Return into how many pieces to divide a launch of ``rows`` rows: 1 unless ``device`` is a CPU.

        A CPU computes very many rows faster in pieces that its caches hold.
        """
        # A user's own context manager is a device here too; it has no device_type.
        context = mx.current_context() if device is None else device
        return cached_pieces(rows) if getattr(context, "device_type", None) == "cpu" else 1

    def number_dtype(self, kind: type) -> np.dtype:
        # take and Embedding read int64 exactly; float32, MXNet's habit, merges rows beyond 2**24.
        return np.dtype({int: np.int64, float: np.float32, bool: np.bool_}[kind])

    def cast(self, x: Array, dtype: str) -> Array:
        # What casts arrays knows none without rows.
        return x.astype(dtype) if x.shape[0] else constant(np.zeros(x.shape, dtype), x.ctx)

    def to_numpy(self, x: Array) -> np.ndarray:
        return x.asnumpy()

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        if isinstance(cell, gluon.rnn.RecurrentCell):
            return cell_of(cell)
        return super().cell(cell)

    @contextlib.contextmanager
    def profile(self, label: str) -> Iterator[None]:
        event = mx.profiler.Event(label)
        event.start()
        try:
            yield
        finally:
            event.stop()

    def slots(self, owners: Sequence[Any]) -> Iterator[StateSlot]:
        return slots(owners)

    def reserved(self, owner: Any) -> Collection[str]:
        if not isinstance(owner, gluon.Block):
            return ()
        return [name for name in vars(owner) if name.startswith("_")]

    def apart(self, owners: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        return apart(owners)

    def like(self, x: Array, values: np.ndarray) -> Array:
        if not values.size and x.shape == values.shape:
            return x
        found = like(x, constant(values, x.ctx))
        return found if found.dtype == x.dtype else found.astype(x.dtype)

    def copy(self, x: Array) -> Array:
        return x.copy()

    def modes(self, owners: Sequence[Any]) -> Hashable:
        return autograd.is_training()

    def lazy_recorder(self, fn: Callable[..., Any]) -> Any:
        from multifold_mxnet.lazy import MxnetRecorder

        return MxnetRecorder(fn)

    def synchronize(self) -> None:
        mx.nd.waitall()
