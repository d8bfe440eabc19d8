"""Constants and variables, and the gradients of Gluon blocks and of dictionaries of arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from multifold.backend import Array, TrainingKit, Transfers

WIDER = {"int16": "int32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""The integer dtypes that MXNet lacks, and those that hold their values."""

WAITS = ("asnumpy", "asscalar", "item", "tolist", "wait_to_read", "wait_to_write")
"""Methods of an array that wait until its values are there."""


def constant(values: np.ndarray, device: Any) -> Array:
    """Return ``values`` as an array on ``device``, of `mx.np` if the user switched to it, else of `mx.nd`.

    Integer dtypes that MXNet lacks become wider ones, as uint16 becomes int32.
    """
    # By its name: where C has two integers of one size, NumPy has two dtypes, of which MXNet knows one.
    dtype = WIDER.get(values.dtype.name, values.dtype.name)
    array = mx.np.array(values, dtype=dtype, ctx=context_of(device))
    return array if mx.util.is_np_array() else array.as_nd_ndarray()


def context_of(device: Any) -> Any:
    """Return the context of MXNet that a name means, ``"cpu"`` or ``"gpu(1)"``; another value as it is.

    Raises `ValueError` for a name that MXNet does not know.
    """
    if not isinstance(device, str):
        return device
    kind, _, number = device.rstrip(")").replace(":", "(").partition("(")
    if kind not in mx.Context.devstr2type:
        raise ValueError(f"expected one of {', '.join(mx.Context.devstr2type)}, received {kind!r}")
    return mx.Context(kind, int(number or 0))


def like(x: Array, legacy: Array) -> Array:
    """Return ``legacy``, an `mx.nd` array, as a view of the kind of ``x``: `mx.np`, or `mx.nd` itself."""
    return legacy.as_np_ndarray() if isinstance(x, mx.np.ndarray) else legacy


def entries(model: Any) -> dict[str, Any]:
    """Return the Gluon parameters of a block, or those and the arrays of a mapping, by name.

    The values are parameters and arrays. In a mapping of blocks or mappings, the inner names follow the
    outer ones: ``"encoder.weight"``. Anything else has no entries.
    """
    if isinstance(model, gluon.Block):
        return dict(model.collect_params().items())
    found: dict[str, Any] = {}
    for name, value in model.items() if isinstance(model, Mapping) else ():
        if isinstance(value, (mx.nd.NDArray, gluon.Parameter)):
            found[str(name)] = value
        found |= {f"{name}.{inner}": entry for inner, entry in entries(value).items()}
    return found


@final
class MxnetKit(TrainingKit):
    """Gradients by `mx.autograd.grad`, which leaves the ``.grad`` buffers of the user alone."""

    def variable(self, values: np.ndarray, device: Any = None) -> Array:
        array = constant(values, device)
        array.attach_grad()
        return array

    def parameters(self, model: Any) -> dict[str, Array]:
        """Return name -> array, for arrays with a gradient buffer and parameters that are trained.

        Of a parameter on many contexts it is the first array.
        """
        found = {}
        for name, entry in entries(model).items():
            if isinstance(entry, mx.nd.NDArray):
                if entry.grad is not None:
                    found[name] = entry
            elif entry.grad_req != "null":
                found[name] = entry.list_data()[0]
        return found

    def value_and_grad(self, fn: Callable[[Any], Array], model: Any) -> tuple[Array, dict[str, Array]]:
        """Return ``fn(model)`` and its gradients, name -> array, named as by `parameters`.

        Blocks are in training mode only if the caller is inside of `autograd.train_mode()`.
        """
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
            name: like(variable, gradient)
            for (name, variable), gradient in zip(variables.items(), gradients, strict=True)
        }

    def dot(self, x: Array, weights: np.ndarray) -> Array:
        cast = constant(weights, x.ctx).as_nd_ndarray().astype(x.dtype)
        return (x * like(x, cast)).sum()

    @contextlib.contextmanager
    def transfers(self) -> Iterator[Transfers]:
        """Return a context that counts calls that wait for an array, as ``x.asnumpy()``, in a `Transfers`.

        MXNet has no public hook, so the methods named in `WAITS` and ``waitall`` are replaced inside of it.
        """
        seen = Transfers()
        kinds = (mx.nd.NDArray, mx.np.ndarray)
        places = [(kind, name) for kind in kinds for name in WAITS if name in vars(kind)]
        places += [(module, "waitall") for module in (mx.nd, mx.npx) if hasattr(module, "waitall")]
        with contextlib.ExitStack() as stack:
            for owner, name in places:
                stack.enter_context(mock.patch.object(owner, name, counted(seen, getattr(owner, name))))
            yield seen


def counted(seen: Transfers, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``wait`` as a function that first adds 1 to ``seen.waits``."""

    def counting(*args: Any, **kwargs: Any) -> Any:
        seen.waits += 1
        return wait(*args, **kwargs)

    return counting
