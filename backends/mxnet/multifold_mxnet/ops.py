"""The functions of `multifold.ops` for MXNet, on both of its kinds of arrays.

Two of its habits are met in one place, `defined`. An operator takes arrays of one kind, so all are
viewed as legacy ones. And an array without rows, which legacy operators take for one of unknown
size, is handled under NumPy's rules and off the tape, where its gradient would crash MXNet: what
has no rows has no gradient either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
from multifold.backend import Array, Ragged
from mxnet import autograd, nd


def defined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Define a function of legacy arrays for both kinds, and for arrays without rows."""

    @functools.wraps(function)
    def defined_function(*operands: Any) -> Any:
        first = operands[0][0] if isinstance(operands[0], (list, tuple)) else operands[0]
        if type(first) is mx.np.ndarray:
            return _map(as_numpy, defined_function(*[_map(as_legacy, x) for x in operands]))
        if first.shape[0]:
            return function(*operands)
        with mx.util.np_shape(), autograd.pause():
            return function(*operands)

    return defined_function


def as_legacy(x: Any) -> Any:
    """Return a view of an array as `mx.nd.NDArray`."""
    return x.as_nd_ndarray() if isinstance(x, nd.NDArray) else x


def as_numpy(x: Any) -> Any:
    """Return a view of an array as `mx.np.ndarray`."""
    return x.as_np_ndarray() if isinstance(x, nd.NDArray) else x


def _map(function: Callable[[Any], Any], x: Any) -> Any:
    if isinstance(x, Ragged):
        return Ragged(*map(function, x))
    return [function(part) for part in x] if isinstance(x, (list, tuple)) else function(x)


sigmoid = defined(nd.sigmoid)
tanh = defined(nd.tanh)
relu = defined(nd.relu)
exp = defined(nd.exp)
log = defined(nd.log)
zeros_like = defined(nd.zeros_like)
softmax = defined(lambda x, axis: nd.softmax(x, axis=axis))
log_softmax = defined(lambda x, axis: nd.log_softmax(x, axis=axis))
