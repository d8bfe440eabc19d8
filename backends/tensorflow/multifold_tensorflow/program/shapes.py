"""What the ops of a program return, found out before anything is drawn: each is traced on 2 and on 3 rows.

A `tf.while_loop` needs the shapes of its slabs before it writes into them. Two counts of rows tell more
than one: an op that returns ``(2, 2)`` for 2 rows and ``(3, 3)`` for 3 mixes rows, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
import tensorflow as tf

from multifold.backend import Ragged
from multifold.errors import LaunchError
from multifold.program import (
    Form,
    Kernel,
    KernelOperand,
    MissingRows,
    RowsSpec,
    SlabClass,
    SlabClasses,
    check_rows,
    follow,
    hint_of,
    naming,
    received,
    verify_rows,
)
from multifold_tensorflow.backend import TensorflowBackend
from multifold_tensorflow.program.tensors import ProgramTensors


class ResultSpecs:
    """What each kernel of a form returns, as shapes: found by tracing each op once it is made.

    Attributes
    ----------
    classes : SlabClasses
        The class of each slab.
    wholes, results : dict of int to object
        Values, and what each kernel returns for a few rows, with a `tf.TensorSpec` in place of each tensor.
    """

    def __init__(self, ops: Sequence[Callable[..., Any]], form: Form, arrays: ProgramTensors) -> None:
        self.ops = ops
        self.form = form
        self.arrays = arrays
        self.classes = SlabClasses(form)
        self.wholes: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        for source in form.sources:
            if source.kernel < 0:
                self.classes.declare(source.slab, class_of(arrays.given[source.given]))
        for phase in form.phases:
            for number in self.classes.in_order(phase.kernels, plain):
                self.probe(number)

    def probe(self, number: int) -> None:
        """Trace the op of kernel ``number`` on 2 and 3 rows, and keep what it returns in the attributes.

        A solo kernel is traced on 1 row. Raises `LaunchError` if the shape of a row depends on their
        number, or as `check` and `verify` do.
        """
        kernel = self.form.kernels[number]
        # A solo kernel never has more than one row. Any other is traced on two counts, so that a result
        # which depends on the count shows itself.
        counts = (1,) if kernel.solo else (2, 3)
        results = [self.trace(number, count) for count in counts]
        self.results[number] = results[0]
        for whole, steps in self.form.wholes_of(number):
            self.wholes[whole] = follow(results[0], steps, kernel)
        for _, source in self.form.sources_of(number):
            values = [follow(result, source.steps, kernel) for result in results]
            for value, count in zip(values, counts, strict=True):
                for spec in optree.tree_leaves(value):
                    self.check(kernel, spec, count)
            first = class_of(values[0])
            last = class_of(values[-1])
            if first != last:
                raise LaunchError(
                    f"{naming(kernel)}, returned rows of {first} for {counts[0]} rows, "
                    f"and of {last} for {counts[-1]}.",
                    "the shape of a row must not depend on how many rows there are. Of a number operand, "
                    "an array of shape (n,), s[:, None] makes a column.",
                )
            self.classes.declare(source.slab, first)
        self.verify(number)

    def verify(self, number: int) -> None:
        """Raise `LaunchError` if the op of kernel ``number`` lets a row change another.

        The op runs on drawn numbers, outside of the graph. One that reads tensors of the graph cannot: only
        its shapes are compared, by `probe`.
        """
        kernel = self.form.kernels[number]
        if kernel.solo:
            return
        rows = 16  # the launches of one program have many numbers of rows
        pairs = zip(kernel.operands, self.arrays.columns[number], strict=True)
        leaves = [self.operand(kernel, operand, column, rows) for operand, column in pairs]
        entries = [i for i, operand in enumerate(kernel.operands) if operand.role != "static"]
        specs = []
        structures = []
        for i in entries:
            leaf = leaves[i]
            flat, structure = optree.tree_flatten(leaf.values if isinstance(leaf, Ragged) else leaf)
            if not all(isinstance(x, tf.TensorSpec) for x in flat):
                return
            structures.append(structure)
            arrays = [(tuple(x.shape), np.dtype(x.dtype.as_numpy_dtype)) for x in flat]
            batched = kernel.operands[i].role not in ("whole", "shared")
            members, index = None, np.dtype(np.int64)
            if isinstance(leaf, Ragged):
                members, index = leaf.segment_ids.shape[0], np.dtype(leaf.lengths.dtype.as_numpy_dtype)
            specs.append(RowsSpec(arrays, batched, members, index))

        def op(*operands: Any) -> Any:
            for i, structure, found in zip(entries, structures, operands, strict=True):
                ragged = isinstance(found, Ragged)
                value = optree.tree_unflatten(structure, found.values if ragged else found)
                leaves[i] = found._replace(values=value) if ragged else value
            return self.ops[number](*received(TensorflowBackend(), kernel, list(leaves)), **kernel.static)

        # Leaves the graph that is being drawn, so that the op can run on numbers.
        with tf.init_scope():
            if tf.executing_eagerly():
                verify_rows(TensorflowBackend(), kernel, op, specs, rows, self.ops[number])

    def trace(self, number: int, rows: int) -> Any:
        """Return what the op of kernel ``number`` returns for ``rows`` rows, as `tf.TensorSpec`."""
        kernel = self.form.kernels[number]
        pairs = zip(kernel.operands, self.arrays.columns[number], strict=True)
        leaves = [self.operand(kernel, operand, column, rows) for operand, column in pairs]
        # Static operands are no tensors: they are in `leaves` when the op is called.
        entries = [i for i, operand in enumerate(kernel.operands) if operand.role != "static"]
        specs, structure = optree.tree_flatten([leaves[i] for i in entries])
        seen: list[Any] = []

        def call(*tensors: tf.Tensor) -> None:
            for entry, value in zip(entries, optree.tree_unflatten(structure, tensors), strict=True):
                leaves[entry] = value
            # A `tf.function` returns tensors of its graph, which dies with it: keep their specs only.
            operands = received(TensorflowBackend(), kernel, leaves)
            seen.append(optree.tree_map(spec_of, self.ops[number](*operands, **kernel.static)))

        try:
            tf.function(call, autograph=False).get_concrete_function(*specs)
        except Exception as error:
            raise no_trace(kernel, error) from error
        return seen[-1]

    def operand(self, kernel: Kernel, operand: KernelOperand, column: Any, rows: int) -> Any:
        """Return an operand of ``rows`` rows with a `tf.TensorSpec` in place of each tensor."""
        index = TensorflowBackend().number_dtype(int)
        if operand.role == "rows":
            return self.rows(operand.index, rows)
        if operand.role == "ragged":
            # Other than the number of rows and of any multiple: an op that takes members for rows shows it.
            members = 2 * rows + 1
            if operand.reads:
                values = self.rows(operand.index, members)
            else:
                members = 0
                values = operand.missing.made(missing_spec)
            return Ragged(values, tf.TensorSpec((rows,), index), tf.TensorSpec((members,), index))
        if operand.role == "whole":
            return self.wholes[operand.index]
        if operand.role == "shared":
            return spec_of(self.arrays.shared[operand.index])
        if operand.role == "static":
            return operand.value
        return tf.TensorSpec((rows,), column.dtype)

    def rows(self, slab: int, rows: int) -> Any:
        """Return ``rows`` rows of a slab, in its structure, each leaf a `tf.TensorSpec`."""
        structure, leaves = self.classes[slab]
        return optree.tree_unflatten(structure, [tf.TensorSpec((rows, *s), dtype) for s, dtype in leaves])

    def check(self, kernel: Kernel, spec: Any, rows: int) -> None:
        """Raise `LaunchError` if ``spec``, a result, has an unknown row shape or other than ``rows`` rows.

        A number of rows that is not known is let through.
        """
        shape = getattr(spec, "shape", None)
        if shape is None or shape.rank is None or None in shape[1:]:
            raise LaunchError(
                f"{naming(kernel)}, returned {spec}, in which the shape of a row is not known.",
                "tf.ensure_shape(x, (None, width)) says it.",
            )
        if not shape.rank or shape[0] is not None:
            check_rows(kernel, tuple(shape), rows)


def class_of(value: Any) -> SlabClass:
    """Return the class (structure, shapes, dtypes) of rows, tensors or their specs of shape ``(n, *s)``."""
    leaves, structure = optree.tree_flatten(value)
    return SlabClass.of(structure, leaves)


def plain(missing: MissingRows) -> SlabClass:
    """Return the class (structure, shapes, dtypes) of rows that no call of the form makes."""
    return class_of(missing.made(missing_spec))


def missing_spec(shape: tuple[int, ...], dtype: str) -> tf.TensorSpec:
    """Return the spec of a tensor without rows: ``(0, *shape)`` of the dtype of that name."""
    return tf.TensorSpec((0, *shape), dtype_of(dtype))


def dtype_of(name: str) -> tf.DType:
    """Return the dtype of a name, as ``"float32"``.

    The names ``"float"`` and ``"int"`` mean the backend's defaults.
    """
    number = {"float": float, "int": int}.get(name)
    return tf.as_dtype(name if number is None else TensorflowBackend().number_dtype(number))


def spec_of(x: Any) -> Any:
    """Return the `tf.TensorSpec` of an array; anything else as it is."""
    return tf.TensorSpec(x.shape, x.dtype) if tf.is_tensor(x) or hasattr(x, "dtype") else x


def no_trace(kernel: Kernel, error: Exception) -> LaunchError:
    """Return, but do not raise, the `LaunchError` of a kernel whose op raised ``error`` while traced."""
    text = str(error).strip().partition("\n")[0].rstrip(". ")
    return LaunchError(
        f"{naming(kernel)}, cannot be traced by a tf.function: {type(error).__name__}: {text}.",
        hint_of(
            kernel,
            error,
            "an op of a program sees symbolic tensors: no .numpy(), no Python branches on values, and "
            "tf.shape(x)[0] for the number of rows.",
        ),
    )
