"""Reading and writing rows of slabs so that gradients cost what is read, not what the slab holds.

The one idea: a slab is used once. Reading it returns the rows *and* the slab, and the next read or write
takes the slab from there. So the gradient of a slab is one buffer, too, that goes back along the same
thread: the gradient of a read is added into it, and the gradient of a write is read from it. With ordinary
gathers each launch of a loop would make a gradient as large as the slab.

A buffer on such a thread has one user at a time, and no row is written twice, so slabs and their gradients
are changed in place. TensorFlow's `tensor_scatter_nd_add` copies the whole slab on a CPU, for each launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import tensorflow as tf


@final
class Threads:
    """Reads and writes rows of slabs, tensors of shape ``(n, *s)``.

    Each slab is used once: reading or writing returns the slab to go on with.

    Parameters
    ----------
    in_place : bool
        Whether to write into the buffers. Needs a CPU: on a GPU rows that are read twice would be added to
        at the same time, and XLA, which writes in place by itself, does not know these operations.
    """

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place

    def read(self, slab: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return rows of a slab, and the slab to go on with.

        Parameters
        ----------
        slab : tensor of shape ``(n, *s)``
        rows : integer tensor of shape ``(m,)``

        Returns
        -------
        values : tensor of shape ``(m, *s)``
        slab : tensor of shape ``(n, *s)``

        Examples
        --------
        >>> values, slab = Threads(False).read(tf.constant([1.0, 2.0, 3.0]), tf.constant([2, 0, 2]))
        >>> values.numpy()
        array([3., 1., 3.], dtype=float32)
        """
        if not differentiable(slab):
            return tf.gather(slab, rows), slab
        # `rows` may belong to the graph of a loop's body. The gradient of the loop's gradient is drawn into
        # another graph, which reaches only tensors of this one.
        rows = tf.identity(rows)

        @tf.custom_gradient
        def threaded(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., Any]]:
            def gradient(of_values: tf.Tensor, of_slab: tf.Tensor) -> tf.Tensor:
                return self.add(of_slab, rows, of_values)

            return (tf.raw_ops.GatherV2(params=x, indices=rows, axis=0), tf.identity(x)), gradient

        values, slab = threaded(slab)
        return values, slab

    def write(self, slab: tf.Tensor, begin: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return a slab with ``values`` in its rows from ``begin`` on.

        Each row of a slab may be written once.

        Examples
        --------
        >>> Threads(False).write(tf.zeros(3), 1, tf.constant([5.0, 6.0])).numpy()
        array([0., 5., 6.], dtype=float32)
        """
        count = values.shape[0]
        rows = begin + tf.range(tf.shape(values)[0] if count is None else count)

        def put(x: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            if self.in_place:
                return tf.raw_ops.InplaceUpdate(x=x, i=rows, v=new)
            return tf.tensor_scatter_nd_update(x, rows[:, None], new)

        if not differentiable(slab):
            return put(slab, values)

        @tf.custom_gradient
        def threaded(x: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            def gradient(of_slab: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                # No operand read these rows before they were written, so their gradients may stay in
                # `of_slab`: nothing uses them any more.
                of_new, of_slab = self.read(of_slab, rows)
                return of_slab, of_new

            return put(x, new), gradient

        return threaded(slab, values)

    def add(self, slab: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        """Return a slab with ``values[i]`` added to its row ``rows[i]``; a row may come several times."""
        rows = tf.identity(rows)

        @tf.custom_gradient
        def threaded(x: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            def gradient(of_slab: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                of_new, of_slab = self.read(of_slab, rows)
                return of_slab, of_new

            if self.in_place:
                return tf.raw_ops.InplaceAdd(x=x, i=tf.cast(rows, tf.int32), v=new), gradient
            return tf.tensor_scatter_nd_add(x, rows[:, None], new), gradient

        return threaded(slab, values)

    def end(self, results: Sequence[tf.Tensor], slabs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return ``results`` so that gradients of ``slabs`` begin as zeros, each in a buffer of its own.

        ``slabs`` are the slabs after their last use; they are not returned.
        """
        results = list(results)
        slabs = [slab for slab in slabs if differentiable(slab)]
        if not (self.in_place and slabs and any(map(differentiable, results))):
            return results

        @tf.custom_gradient
        def joined(*given: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
            shapes = [tf.shape(slab) for slab in given[len(results) :]]

            def gradient(*of_results: tf.Tensor) -> list[Any]:
                return [*of_results, *map(zeros, shapes, slabs)]

            return [tf.identity(x) for x in given[: len(results)]], gradient

        return list(joined(*results, *slabs))


def empty(rows: tf.Tensor | int, shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    """Return a tensor of shape ``(rows, *shape)`` whose values are not set."""
    return _known(tf.raw_ops.Empty(shape=[rows, *shape], dtype=dtype), shape)


def zeros(shape: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return zeros of a shape, of the dtype of ``like``, in a buffer that no other tensor shares.

    Two equal `tf.zeros` may become one buffer.
    """
    return _known(tf.raw_ops.Empty(shape=shape, dtype=like.dtype, init=True), like.shape[1:])


def differentiable(x: tf.Tensor) -> bool:
    """Return whether a tensor is of floats or complex numbers, so that gradients go through it."""
    return x.dtype.is_floating or x.dtype.is_complex


def _known(slab: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Return ``slab``, of which a graph then knows the shape ``(?, *shape)``."""
    return slab if tf.executing_eagerly() else tf.ensure_shape(slab, (None, *shape))
