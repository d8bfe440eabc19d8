"""Neutral functions over arrays: with them a model is written once and runs on every framework.

Each function looks at the type of its first array and calls the framework's own function, which is looked
up once for each type. Arrays are never wrapped, so everything else that they can do (``+``, ``*``, ``abs``)
stays the framework's. Rows are axis 0, and the caller always names an axis. The set is small on purpose:
a model computes the rest from what is here. Gradients cost as much as values. `affine` and `lstm_state`
are fused: several of the others in one step, where a framework has a quicker way.

`multifold.Ragged` operands meet here too: the ``segment_*`` functions reduce the rows of each node.
Adapters bring their side as a module ``ops`` in their package, with the names of ``__all__``.

Examples
--------
An op that scores three pairs of rows; on tensors of PyTorch the same lines run `torch.cat`,
`torch.addmm` and `torch.sigmoid`:

>>> left, right = np.array([[1.0], [2.0], [3.0]]), np.array([[0.0], [1.0], [2.0]])
>>> weight, bias = np.array([[1.0], [-1.0]]), np.array([-1.0])
>>> sigmoid(linear(concat([left, right], axis=1), weight, bias))
array([[0.5],
       [0.5],
       [0.5]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold.ops import fused
from multifold.ops.tables import table

__all__ = [
    "affine",
    "cast",
    "concat",
    "exp",
    "linear",
    "log",
    "log_softmax",
    "lstm_state",
    "matmul",
    "max",
    "mean",
    "relu",
    "reshape",
    "segment_max",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "sigmoid",
    "softmax",
    "split",
    "stack",
    "sum",
    "take",
    "tanh",
    "where",
    "zeros_like",
]


def concat(xs: Sequence[Array], axis: int) -> Array:
    """Return arrays of one dtype joined along an axis, in order.

    Parameters
    ----------
    xs : sequence of arrays
        At least one; their shapes agree in all axes but this one.
    axis : int
        The axis that grows: 0 for more rows, 1 for more columns.

    Examples
    --------
    >>> concat([np.array([[1, 2]]), np.array([[3]])], axis=1)
    array([[1, 2, 3]])
    """
    return table(xs[0]).concat(xs, axis)


def stack(xs: Sequence[Array], axis: int) -> Array:
    """Return arrays of one shape and dtype side by side along a new axis, which gets position ``axis``.

    Examples
    --------
    >>> stack([np.array([1, 2]), np.array([3, 4])], axis=1)
    array([[1, 3],
           [2, 4]])
    """
    return table(xs[0]).stack(xs, axis)


def split(x: Array, sections: int | Sequence[int], axis: int) -> Sequence[Array]:
    """Return the sections of an array along an axis.

    Parameters
    ----------
    x : array
    sections : int or sequence of int
        How many sections of equal size, or the size of each; they cover the whole axis.
    axis : int
        The axis that is cut.

    Raises
    ------
    ValueError
        If the axis cannot be cut into that many equal sections.

    Examples
    --------
    >>> split(np.array([[1, 2, 3]]), [1, 2], axis=1)
    [array([[1]]), array([[2, 3]])]
    """
    return table(x).split(x, sections, axis)


def take(x: Array, rows: Array) -> Array:
    """Return rows of an array, repeats allowed: ``(m, *s)`` and ``(n,)`` give ``(n, *s)``.

    Parameters
    ----------
    x : array of shape ``(m, *s)``
    rows : integer array of shape ``(n,)``
        From 0 to ``m - 1``. Most frameworks do not check that: what lies outside is undefined.

    Examples
    --------
    >>> take(np.array([[10, 11], [20, 21]]), np.array([1, 1, 0]))
    array([[20, 21],
           [20, 21],
           [10, 11]])
    """
    return table(x).take(x, rows)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Return the rows of an array in another shape: ``(n, *s)`` gives ``(n, *shape)``.

    Examples
    --------
    >>> reshape(np.array([[1, 2, 3, 4]]), (2, 2))
    array([[[1, 2],
            [3, 4]]])
    """
    return table(x).reshape(x, shape)


def where(condition: Array, x: Array, y: Array) -> Array:
    """Return the elements of ``x`` where the condition holds, and elsewhere the elements of ``y``.

    Parameters
    ----------
    condition : bool array
        Of the shape of ``x``, or of one that broadcasts to it, such as ``(n, 1)``.
    x, y : arrays of one shape and dtype

    Examples
    --------
    >>> where(np.array([[True], [False]]), np.ones((2, 2)), np.zeros((2, 2)))
    array([[1., 1.],
           [0., 0.]])
    """
    return table(x).where(condition, x, y)


def zeros_like(x: Array) -> Array:
    """Return zeros of the shape, dtype and device of ``x``; no gradient flows through them to ``x``."""
    return table(x).zeros_like(x)


def cast(x: Array, dtype: Any) -> Array:
    """Return an array in another dtype; the same array where it has that dtype already.

    Parameters
    ----------
    x : array
    dtype : str, NumPy dtype or array
        The dtype by NumPy's name for it, or an array of the framework whose dtype is meant: that of
        a parameter, for one, since users may change it.

    Examples
    --------
    >>> cast(np.array([True, False]), "float32")
    array([1., 0.], dtype=float32)
    """
    # An adapter gets a name or an array of its own, so it needs no table of NumPy's dtypes.
    if isinstance(dtype, (np.dtype, type)):
        dtype = np.dtype(dtype).name
    return table(x).cast(x, dtype)


def matmul(a: Array, b: Array) -> Array:
    """Return the matrix product of rows with one matrix, or with a matrix for each row.

    Parameters
    ----------
    a : array of shape ``(n, k)`` or ``(n, r, k)``
    b : array of shape ``(k, m)``, or ``(n, k, m)`` where ``a`` has three axes
        Shared by all rows, or one for each row.

    Returns
    -------
    array of shape ``(n, m)`` or ``(n, r, m)``

    Examples
    --------
    >>> matmul(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]))
    array([[11.]])
    """
    return table(a).matmul(a, b)


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """Return ``x @ weight + bias``, in one step where the framework has one.

    Parameters
    ----------
    x : array of shape ``(n, inputs)``
    weight : array of shape ``(inputs, outputs)``
    bias : array of shape ``(outputs,)``

    Returns
    -------
    array of shape ``(n, outputs)``

    Examples
    --------
    >>> linear(np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]]), np.array([0.5]))
    array([[11.5]])
    """
    return table(x).linear(x, weight, bias)


def affine(xs: Sequence[Array], weight: Array, bias: Array | None = None) -> Array:
    """Return ``x @ weight + bias``, where ``x`` is all operands ``xs`` side by side.

    The same as ``linear(concat(xs, axis=1), weight, bias)``, fused: where each row has a matrix, PyTorch
    adds up a product for each operand, which takes less time than to copy them side by side.

    Parameters
    ----------
    xs : sequence of arrays of shape ``(n, inputs_i)``, or ``(n, r, inputs_i)`` without a bias
        One or more.
    weight : array of shape ``(inputs, outputs)``
        With a row for each column of the operands, in their order.
    bias : array of shape ``(outputs,)``, optional

    Returns
    -------
    array of shape ``(n, outputs)`` or ``(n, r, outputs)``

    Examples
    --------
    The states of two phrases, and the gates of one that consists of both:

    >>> left, right = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    >>> affine([left, right], np.array([[1.0], [0.0], [0.0], [1.0]]), np.array([0.5]))
    array([[5.5]])
    """
    found = table(xs[0])
    own = getattr(found, "affine", None)
    return fused.affine(found, xs, weight, bias) if own is None else own(xs, weight, bias)


def lstm_state(gates: Array, cells: Sequence[Array] = (), kept: Array | None = None) -> tuple[Array, Array]:
    """Return the next state ``(h, c)`` of an LSTM from the sums that enter its gates.

    Fused: ``c = sigmoid(take_in) * tanh(candidate) + sigmoid(keep) * cell + ... + kept``, with a gate for
    each earlier cell, and ``h = sigmoid(out) * tanh(c)``.

    Parameters
    ----------
    gates : floating array of shape ``(n, (3 + len(cells)) * width)``
        Side by side take in, a gate to keep each of the cells, out, and the candidate, which is last.
    cells : sequence of arrays of shape ``(n, width)``
        The earlier ``c``: none for a leaf, one for a chain, two for a binary tree.
    kept : array of shape ``(n, width)``, optional
        What is kept without a gate here, such as a sum over children that have been gated already.

    Returns
    -------
    h, c : arrays of shape ``(n, width)``

    Raises
    ------
    ValueError
        If the columns of ``gates`` cannot be divided among the gates.

    Examples
    --------
    Nothing enters, and all of the earlier cell is kept and shown:

    >>> shut, wide, nothing = -50.0, 50.0, 0.0
    >>> h, c = lstm_state(np.array([[shut, wide, wide, nothing]]), [np.array([[2.0]])])
    >>> c.round(3), h.round(3)
    (array([[2.]]), array([[0.964]]))
    """
    found = table(gates)
    count = 3 + len(cells)
    columns = gates.shape[1]
    # A graph of TensorFlow may not know how many columns there are.
    if columns is not None and columns % count:
        raise ValueError(f"{columns} columns cannot be divided among {count} gates.")
    own = getattr(found, "lstm_state", None)
    return fused.lstm_state(found, gates, cells, kept) if own is None else own(gates, cells, kept)


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` of each element of a float array; no ``x`` makes it overflow."""
    return table(x).sigmoid(x)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent of each element of a float array, in an array of its shape."""
    return table(x).tanh(x)


def relu(x: Array) -> Array:
    """Return ``x`` with 0 in the place of each negative element."""
    return table(x).relu(x)


def exp(x: Array) -> Array:
    """Return e to the power of each element of a float array, in an array of its shape."""
    return table(x).exp(x)


def log(x: Array) -> Array:
    """Return the natural logarithm of each element of a float array, in an array of its shape."""
    return table(x).log(x)


def softmax(x: Array, axis: int) -> Array:
    """Return ``exp(x)`` divided by its sum along an axis, without overflow, in the shape of ``x``.

    Examples
    --------
    >>> softmax(np.array([[1000.0, 1000.0]]), axis=1)
    array([[0.5, 0.5]])
    """
    return table(x).softmax(x, axis)


def log_softmax(x: Array, axis: int) -> Array:
    """Return the logarithm of `softmax`, in the shape of ``x``: finite even where `softmax` is 0.

    Examples
    --------
    >>> log_softmax(np.array([[0.0, 1000.0]]), axis=1)
    array([[-1000.,     0.]])
    """
    return table(x).log_softmax(x, axis)


def sum(x: Array, axis: int) -> Array:
    """Return the sums along an axis, which disappears.

    Legacy arrays of MXNet have an axis at least, so the sum of ``(n,)`` is ``(1,)`` there.

    Examples
    --------
    >>> sum(np.array([[1, 2], [3, 4]]), axis=1)
    array([3, 7])
    """
    return table(x).sum(x, axis)


def mean(x: Array, axis: int) -> Array:
    """Return the means of a float array along an axis, which disappears.

    Examples
    --------
    >>> mean(np.array([[1.0, 2.0], [3.0, 5.0]]), axis=1)
    array([1.5, 4. ])
    """
    return table(x).mean(x, axis)


def max(x: Array, axis: int) -> Array:
    """Return the largest elements along an axis, which disappears.

    Where several are equal, how the gradient is divided among them is the framework's choice.

    Examples
    --------
    >>> max(np.array([[1, 2], [4, 3]]), axis=1)
    array([2, 4])
    """
    return table(x).max(x, axis)


def segment_sum(values: Array, segments: Ragged) -> Array:
    """Return the sum of each node's rows: ``(total, *s)`` gives ``(n, *s)``; 0 for a node without rows.

    Parameters
    ----------
    values : floating array of shape ``(total, *s)``
        ``segments.values``, or what was computed from them row by row.
    segments : Ragged
        Whose rows these are; its ``lengths`` and ``segment_ids`` are read, its ``values`` are not.

    Examples
    --------
    >>> rows = Ragged(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 2]), np.array([0, 2, 2]))
    >>> segment_sum(10 * rows.values, rows)
    array([10.,  0., 50.])
    """
    return table(values).segment_sum(values, segments)


def segment_mean(values: Array, segments: Ragged) -> Array:
    """Return the mean of each node's rows, ``(n, *s)``; 0 for a node without rows. See `segment_sum`.

    Examples
    --------
    >>> rows = Ragged(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 2]), np.array([0, 2, 2]))
    >>> segment_mean(rows.values, rows)
    array([1. , 0. , 2.5])
    """
    return table(values).segment_mean(values, segments)


def segment_max(values: Array, segments: Ragged) -> Array:
    """Return the largest of each node's rows, element by element, ``(n, *s)``. See `segment_sum`.

    A node without rows gets 0, as from `segment_sum` and `segment_mean`, and not the least number that
    there is: what reads the result stays finite. Where several rows are equal, each gets an equal part of
    the gradient.

    Examples
    --------
    >>> rows = Ragged(np.array([1.0, -2.0, -3.0]), np.array([1, 0, 2]), np.array([0, 2, 2]))
    >>> segment_max(rows.values, rows)
    array([ 1.,  0., -2.])
    """
    return table(values).segment_max(values, segments)


def segment_softmax(values: Array, segments: Ragged) -> Array:
    """Return the softmax over the rows of each node, element by element, in the shape of ``values``.

    For the parameters see `segment_sum`.

    Examples
    --------
    >>> rows = Ragged(np.array([5.0, 1000.0, 1000.0]), np.array([1, 0, 2]), np.array([0, 2, 2]))
    >>> segment_softmax(rows.values, rows)
    array([1. , 0.5, 0.5])
    """
    return table(values).segment_softmax(values, segments)
