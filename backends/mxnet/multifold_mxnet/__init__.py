"""MXNet Gluon behind the seam of multifold: blocks, hybridized or not, and both kinds of arrays.

One idea: an eager MXNet operation costs 20 microseconds or more, so each method is one operation or
none. Legacy (`mx.nd`) and NumPy-like (`mx.np`) arrays are two views of one buffer, and an operator
takes one kind only: where indices are of another kind than the rows they are viewed, never copied.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold.backend import Array, Backend, Bidirectional, Cell, Stack, TrainingKit

if np.lib.NumpyVersion(np.__version__) >= "1.24.0":
    raise ImportError(
        f"MXNet 1.9.1 needs numpy<1.24, and this environment has numpy {np.__version__}"
    )
with warnings.catch_warnings():  # MXNet warns of the NumPy names that it uses itself
    warnings.simplefilter("ignore")
    import mxnet as mx
    from mxnet import autograd, gluon

    from multifold_mxnet.cells import cell_of
    from multifold_mxnet.kit import MxnetKit, constant, entries, like

__all__ = ["MxnetBackend", "MxnetKit"]

FEW = 3
"""Up to so many sections the gradients of slices cost less than the 0.3 ms of a Function."""


@final
class MxnetBackend(Backend):
    """Batched calls on MXNet arrays, op by op or in hybridized blocks."""

    name: ClassVar[str] = "mxnet"
    kit: ClassVar[TrainingKit] = MxnetKit()

    def owns(self, x: Any) -> bool:
        return isinstance(x, mx.nd.NDArray)  # mx.np.ndarray is a subclass of it

    def signature(self, x: Array) -> Hashable:
        return x.shape[1:], x.dtype, x.ctx, type(x)

    def rows(self, x: Array) -> int:
        return x.shape[0]

    def constant(self, values: np.ndarray, device: Any) -> Array:
        return constant(values, device)

    def concat(self, xs: Sequence[Array]) -> Array:
        if any(isinstance(x, mx.np.ndarray) for x in xs):
            return mx.np.concatenate([x.as_np_ndarray() for x in xs])
        return mx.nd.concat(*xs, dim=0)

    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        if len(sizes) <= FEW or not autograd.is_recording():
            return _slices(x, sizes)
        if x.grad is not None:
            x = x.reshape(x.shape)  # a Function ignores grad_req="add"; this view honours it
        # MXNet takes a length of 0 for an unknown one, so empty sections stay off the tape.
        filled = [size for size in sizes if size]
        sections = iter(_Sections(filled)(x) if filled else ())
        return [next(sections) if size else x[:0] for size in sizes]

    def gather(self, x: Array, rows: Array) -> Array:
        if not rows.shape[0]:
            return x[:0]  # the backward of `take` with no rows writes uninitialised memory
        # `take` clips what is out of range; "raise" costs the same, but raises late and elsewhere.
        return like(x, mx.nd.take(x.as_nd_ndarray(), rows.as_nd_ndarray()))

    def call(
        self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]
    ) -> Any:
        return fn(*operands, **static)

    def hosts(self, model: Any) -> bool:
        values = model.values() if isinstance(model, Mapping) else ()
        return any(isinstance(x, (gluon.Block, mx.nd.NDArray)) for x in (model, *values))

    def device(self, model: Any) -> Any:
        """Return the context of an array, or of the first parameter that has one."""
        if isinstance(model, mx.nd.NDArray):
            return model.ctx
        for entry in entries(model).values():
            if isinstance(entry, mx.nd.NDArray):
                return entry.ctx
            with contextlib.suppress(RuntimeError):  # not initialised: it has no context yet
                return entry.list_ctx()[0]
        return None

    def number_dtype(self, kind: type) -> np.dtype:
        # take and Embedding read int64 exactly; float32, MXNet's habit, merges rows beyond 2**24.
        return np.dtype({int: np.int64, float: np.float32, bool: np.bool_}[kind])

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

    def synchronize(self) -> None:
        mx.nd.waitall()


def _slices(x: Array, sizes: Sequence[int]) -> list[Array]:
    ends = itertools.accumulate(sizes)
    return [x[end - size : end] for size, end in zip(sizes, ends, strict=True)]


class _Sections(autograd.Function):
    """Cut rows into views; the gradient is one concatenation.

    MXNet's own operators are not linear here: the backward of a slice fills the whole source with
    zeros for every section, and `split_v2` searches all sections for every element (8,192 x 256
    in 256 sections, forward and backward: slices 840 ms, split_v2 167, this 9).
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Array) -> list[Array]:
        """Return the views."""
        return _slices(x, self.sizes)

    def backward(self, *gradients: Array) -> Array:
        """Return the gradient of all rows; MXNet passes zeros for a section that nobody used."""
        return mx.nd.concat(*gradients, dim=0)
