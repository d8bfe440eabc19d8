"""MXNet Gluon behind the seam of multifold: blocks, hybridized or not, and both kinds of arrays.

One idea: an eager MXNet operation costs 20 microseconds or more, so each method is one operation or
none. Legacy (`mx.nd`) and NumPy-like (`mx.np`) arrays are two views of one buffer: where indices
are of another kind than the rows they are viewed, never copied, and the result is like the rows.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold.backend import Array, Backend, Bidirectional, Cell, Stack, TrainingKit
from multifold.errors import BackendError

if np.lib.NumpyVersion(np.__version__) >= "1.24.0":
    raise ImportError(
        f"MXNet 1.9.1 needs numpy<1.24, and this environment has numpy {np.__version__}"
    )
with warnings.catch_warnings():  # MXNet warns of the NumPy names that it uses itself
    warnings.simplefilter("ignore")
    import mxnet as mx
    from mxnet import autograd, gluon

__all__ = ["MxnetBackend", "MxnetKit"]

WIDER: dict[np.dtype, type] = {
    np.dtype(np.int16): np.int32,
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
    np.dtype(np.uint64): np.int64,
}
"""The integer dtypes that MXNet lacks, and the ones that hold their values."""


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
        ends = itertools.accumulate(self.sizes)
        return [x[end - size : end] for size, end in zip(self.sizes, ends, strict=True)]

    def backward(self, *gradients: Array) -> Array:
        return mx.nd.concat(*gradients, dim=0)


def _entries(model: Any) -> dict[str, Any]:
    """Return the Gluon parameters and the arrays of a block, or of a mapping of such, by name."""
    if isinstance(model, gluon.Block):
        return dict(model.collect_params().items())
    found = {}
    for name, value in model.items() if isinstance(model, Mapping) else ():
        if isinstance(value, (mx.nd.NDArray, gluon.Parameter)):
            found[str(name)] = value
        found |= {f"{name}.{inner}": entry for inner, entry in _entries(value).items()}
    return found


@final
class MxnetKit(TrainingKit):
    """Gradients by `mx.autograd.grad`, which leaves the ``.grad`` buffers of the user alone."""

    def variable(self, values: np.ndarray, device: Any = None) -> Array:
        array = MxnetBackend().constant(values, device)
        array.attach_grad()
        return array

    def parameters(self, model: Any) -> dict[str, Array]:
        """Return the arrays with a gradient buffer; of a parameter on many contexts, the first."""
        found = {}
        for name, entry in _entries(model).items():
            if isinstance(entry, mx.nd.NDArray):
                if entry.grad is not None:
                    found[name] = entry
            elif entry.grad_req != "null":
                found[name] = entry.list_data()[0]
        return found

    def value_and_grad(
        self, fn: Callable[[Any], Array], model: Any
    ) -> tuple[Array, dict[str, Array]]:
        """Return value and gradients; in training mode only inside of `autograd.train_mode()`."""
        training = autograd.is_training()
        with autograd.record(train_mode=training):
            value = fn(model)
            variables = self.parameters(model)  # after the call: it ends a deferred initialisation
            # MXNet refuses to differentiate by what the heads do not reach; these reach everything.
            zeros = [variable * 0 for variable in variables.values()]
        if not variables:
            return value, {}
        gradients = autograd.grad([value, *zeros], [*variables.values()], train_mode=training)
        return value, {
            name: _kind_of(variable, gradient)
            for (name, variable), gradient in zip(variables.items(), gradients, strict=True)
        }

    def dot(self, x: Array, weights: np.ndarray) -> Array:
        constant = mx.np.array(weights, dtype=weights.dtype, ctx=x.ctx).astype(x.dtype)
        return (x * _kind_of(x, constant.as_nd_ndarray())).sum()


def _kind_of(x: Array, legacy: Array) -> Array:
    """Return a legacy array as a view of the kind of ``x``."""
    return legacy.as_np_ndarray() if isinstance(x, mx.np.ndarray) else legacy


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
        """Return an `mx.np` array where the user switched MXNet to them, else an `mx.nd` one."""
        array = mx.np.array(values, dtype=WIDER.get(values.dtype, values.dtype), ctx=device)
        return array if mx.util.is_np_array() else array.as_nd_ndarray()

    def concat(self, xs: Sequence[Array]) -> Array:
        if any(isinstance(x, mx.np.ndarray) for x in xs):
            return mx.np.concatenate([x.as_np_ndarray() for x in xs])
        return mx.nd.concat(*xs, dim=0)

    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        if autograd.is_recording() and x.grad is not None:
            x = x.reshape(x.shape)  # a Function ignores grad_req='add'; a view honours it
        # MXNet takes a length of 0 for an unknown one, so empty sections stay off the tape.
        filled = [size for size in sizes if size]
        sections = iter(_Sections(filled)(x) if filled else ())
        return [next(sections) if size else x[:0] for size in sizes]

    def gather(self, x: Array, rows: Array) -> Array:
        if not rows.shape[0]:
            return x[:0]  # the backward of `take` with no rows writes uninitialised memory
        return _kind_of(x, mx.nd.take(x.as_nd_ndarray(), rows.as_nd_ndarray()))

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
        for entry in _entries(model).values():
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
        """Return a Gluon cell, equal to its own ``unroll``; one that keeps state is refused."""
        if isinstance(cell, (gluon.rnn.SequentialRNNCell, gluon.rnn.HybridSequentialRNNCell)):
            return Stack(tuple(self.cell(cell[i]) for i in range(len(cell))))
        if isinstance(cell, gluon.rnn.BidirectionalCell):
            forward, backward = cell._children.values()
            return Bidirectional(self.cell(forward), self.cell(backward), _side_by_side)
        if not isinstance(cell, gluon.rnn.RecurrentCell):
            return super().cell(cell)
        cell.apply(_refuse_memory)

        def step(x: Array, *states: Array) -> tuple[Array, ...]:
            output, states = cell(x, list(states))
            return output, *states

        def begin() -> tuple[Array, ...]:
            like = next(iter(cell.collect_params().values()), None)
            where = {} if like is None else {"ctx": like.list_ctx()[0], "dtype": like.dtype}
            return tuple(cell.begin_state(batch_size=1, func=mx.nd.zeros, **where))

        return Cell(step, begin, len(cell.state_info(1)))

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


def _side_by_side(forward: Array, backward: Array) -> Array:
    return mx.nd.concat(forward, backward, dim=1)


def _refuse_memory(block: gluon.Block) -> None:
    """Raise for a cell that remembers the rows of its last call, which may be other examples."""
    zoneout = isinstance(block, gluon.rnn.ZoneoutCell) and block.zoneout_outputs
    if zoneout or isinstance(block, gluon.contrib.rnn.VariationalDropoutCell):
        raise BackendError(
            f"Backend 'mxnet' cannot unroll a {type(block).__name__}: it keeps arrays for later.",
            "use a DropoutCell, or zoneout of the states only.",
        )
