"""The functions of `multifold.ops` for NumPy: the reference that frameworks are compared with."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Ragged
from multifold.ops import fused

concat = np.concatenate
stack = np.stack
zeros_like = np.zeros_like
matmul = np.matmul
tanh = np.tanh
exp = np.exp
log = np.log
sum = np.sum
mean = np.mean
max = np.max
where = np.where


def split(x: np.ndarray, sections: int | Sequence[int], axis: int) -> Sequence[np.ndarray]:
    if isinstance(sections, int):
        return np.split(x, sections, axis)
    ends = np.cumsum(sections)
    # `np.split` takes no last end, so a last section of a wrong size would go unnoticed.
    if ends[-1] != x.shape[axis]:
        raise ValueError(f"Sections of {list(sections)} do not cover an axis of {x.shape[axis]}.")
    return np.split(x, ends[:-1], axis)


def take(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return x[rows]


def reshape(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return x.reshape(len(x), *shape)


def cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    return x.astype(dtype if isinstance(dtype, str) else dtype.dtype, copy=False)


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return x @ weight + bias


def sigmoid(x: np.ndarray) -> np.ndarray:
    # Where exp overflows, 1 / (1 + inf) is the 0 that is right. To avoid it by exp(-abs(x)) and a choice of
    # signs takes more than twice as many passes over x.
    with np.errstate(over="ignore"):
        powers = np.exp(-x)
    powers += 1
    return 1 / powers


def lstm_state(
    gates: np.ndarray, cells: Sequence[np.ndarray], kept: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    terms = list(cells) if kept is None else [*cells, kept]
    width = gates.shape[1] // (3 + len(cells))
    shape = (len(gates), width)
    dtype = gates.dtype
    if dtype.kind != "f" or any(x.shape != shape or x.dtype != dtype for x in terms):
        return fused.lstm_state(sys.modules[__name__], gates, cells, kept)  # which promotes and broadcasts
    # Only arrays that were made here are written to. The plain ops take a new one for each result.
    opened = sigmoid(gates[:, :-width])
    c = np.tanh(gates[:, -width:])
    c *= opened[:, :width]
    for place, cell in enumerate(cells, 1):
        gate = opened[:, place * width : (place + 1) * width]
        gate *= cell
        c += gate
    if kept is not None:
        c += kept
    h = np.tanh(c)
    h *= opened[:, -width:]
    return h, c


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def segment_sum(values: np.ndarray, segments: Ragged) -> np.ndarray:
    return _reduce(np.add, values, segments.lengths)


def segment_mean(values: np.ndarray, segments: Ragged) -> np.ndarray:
    lengths = np.maximum(segments.lengths, 1).astype(values.dtype)
    return segment_sum(values, segments) / lengths.reshape(-1, *[1] * (values.ndim - 1))


def segment_max(values: np.ndarray, segments: Ragged) -> np.ndarray:
    return _reduce(np.maximum, values, segments.lengths)


def segment_softmax(values: np.ndarray, segments: Ragged) -> np.ndarray:
    powers = np.exp(values - segment_max(values, segments)[segments.segment_ids])
    return powers / segment_sum(powers, segments)[segments.segment_ids]


def _reduce(ufunc: np.ufunc, values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Reduce each of the stretches of rows that follow each other in ``values``, of ``lengths`` rows.

    Returns an array of shape ``(len(lengths), *s)``. A stretch of no rows gives 0, which
    `numpy.ufunc.reduceat` does not support.
    """
    result = np.zeros((len(lengths), *values.shape[1:]), values.dtype)
    filled = lengths > 0
    if filled.any():
        starts = np.cumsum(lengths) - lengths
        # `reduceat` takes each stretch up to the next start. An empty stretch has no rows of its own, so
        # without its start the others keep their ends.
        result[filled] = ufunc.reduceat(values, starts[filled], axis=0, dtype=values.dtype)
    return result
