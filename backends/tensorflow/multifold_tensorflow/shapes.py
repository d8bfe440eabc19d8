"""What the ops of a program return, found out before anything is drawn: each is traced on 2 and on 3 rows.

So the slabs have their shapes before a loop writes into them, and an op whose results depend on the number
of rows in any other way than "one row each" is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import optree
import tensorflow as tf

from multifold.backend import Ragged
from multifold.errors import LaunchError
from multifold.program import Form, Kernel, KernelOperand, check_rows, follow, mixed_rows, naming, no_rows
from multifold_tensorflow.backend import TensorflowBackend
from multifold_tensorflow.tensors import Parts

Row = tuple[tuple[int, ...], tf.DType]


class SlabClass(NamedTuple):
    """What the rows of a slab have in common: how they nest, and trailing shape and dtype of each array."""

    structure: Any
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in self.rows)


class Shapes:
    """The classes of all slabs and the values that are read whole.

    Attributes
    ----------
    slabs : dict of int to SlabClass
    wholes, results : dict of int to object
        Values, and what each kernel returns for a few rows, with a `tf.TensorSpec` in place of each tensor.
    """

    def __init__(self, ops: Sequence[Callable[..., Any]], form: Form, parts: Parts) -> None:
        self.ops = ops
        self.form = form
        self.parts = parts
        self.slabs: dict[int, SlabClass] = {}
        self.wholes: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        for source in form.sources:
            if source.kernel < 0:
                self.declare(source.slab, self.class_of(parts.blocks[source.given]))
        for phase in form.phases:
            self.learn(list(phase.kernels))

    def learn(self, pending: list[int]) -> None:
        """Find out what kernels return, each as soon as its operands are known."""
        while pending:
            ready = [number for number in pending if self.known(number)]
            if not ready and self.guess(pending):
                continue
            if not ready:
                raise LaunchError(
                    f"{naming(self.form.kernels[pending[0]])}, reads rows whose shape only its own results "
                    "would tell.",
                    "let the first of these rows come from another op, or from an array.",
                )
            for number in ready:
                self.probe(number)
            pending = [number for number in pending if number not in ready]

    def guess(self, pending: list[int]) -> bool:
        """Take rows of ragged operands to be as the recording says; return whether that helps a kernel."""
        for number in pending:
            operands = self.form.kernels[number].operands
            asked = [o for o in operands if o.role in ("rows", "ragged") and o.index >= 0]
            unknown = [o for o in asked if o.index not in self.slabs]
            if all(o.role == "ragged" and o.row_shape is not None for o in unknown):
                dtype = tf.as_dtype(TensorflowBackend().number_dtype(float))
                for operand in unknown:
                    row = (tuple(operand.row_shape or ()), dtype)
                    self.slabs.setdefault(operand.index, SlabClass(optree.tree_structure(0), (row,)))
                return True
        return False

    def known(self, number: int) -> bool:
        """Return whether the operands of a kernel are known."""
        operands = self.form.kernels[number].operands
        return all(o.index in self.slabs for o in operands if o.role in ("rows", "ragged") and o.index >= 0)

    def probe(self, number: int) -> None:
        """Trace an op, and note what it returns."""
        kernel = self.form.kernels[number]
        counts = (1,) if kernel.solo else (2, 3)
        results = [self.trace(number, count) for count in counts]
        self.results[number] = results[0]
        for place, (owner, steps) in enumerate(self.form.wholes):
            if owner == number:
                self.wholes[place] = follow(results[0], steps, kernel)
        for source in self.form.sources:
            if source.kernel == number:
                values = [follow(result, source.steps, kernel) for result in results]
                for value, count in zip(values, counts, strict=True):
                    for spec in optree.tree_leaves(value):
                        self.check(kernel, spec, count)
                first, last = (self.class_of(value) for value in (values[0], values[-1]))
                if first != last:
                    raise LaunchError(
                        f"{naming(kernel)}, returned rows of {first} for {counts[0]} rows, "
                        f"and of {last} for {counts[-1]}.",
                        "the shape of a row must not depend on how many rows there are.",
                    )
                self.declare(source.slab, first)

    def trace(self, number: int, rows: int) -> Any:
        """Return the result of an op on that many rows, with a `tf.TensorSpec` for each tensor."""
        kernel = self.form.kernels[number]
        pairs = zip(kernel.operands, self.parts.columns[number], strict=True)
        leaves = [self.operand(kernel, operand, column, rows) for operand, column in pairs]
        places = [i for i, operand in enumerate(kernel.operands) if operand.role != "static"]
        specs, structure = optree.tree_flatten([leaves[i] for i in places])
        seen: list[Any] = []

        def call(*tensors: tf.Tensor) -> None:
            for place, value in zip(places, optree.tree_unflatten(structure, tensors), strict=True):
                leaves[place] = value
            operands = leaves
            if kernel.structure is not None:
                operands = optree.tree_unflatten(kernel.structure, leaves)
            seen.append(optree.tree_map(spec_of, self.ops[number](*operands, **kernel.static)))

        try:
            tf.function(call, autograph=False).get_concrete_function(*specs)
        except Exception as error:
            raise no_trace(kernel, error) from error
        return seen[-1]

    def operand(self, kernel: Kernel, operand: KernelOperand, column: Any, rows: int) -> Any:
        """Return what stands for an operand of that many rows."""
        index = TensorflowBackend().number_dtype(int)
        if operand.role == "rows":
            return self.rows(operand.index, rows)
        if operand.role == "ragged":
            members = 2 * rows + 1
            if operand.index >= 0:
                values = self.rows(operand.index, members)
            elif operand.row_shape is not None:
                members = 0
                dtype = TensorflowBackend().number_dtype(float)
                values = tf.TensorSpec((0, *operand.row_shape), dtype)
            else:
                raise no_rows(kernel)
            return Ragged(values, tf.TensorSpec((rows,), index), tf.TensorSpec((members,), index))
        if operand.role == "whole":
            return self.wholes[operand.index]
        if operand.role == "shared":
            return spec_of(self.parts.shared[operand.index])
        if operand.role == "static":
            return operand.value
        return tf.TensorSpec((rows,), column.dtype)

    def rows(self, slab: int, rows: int) -> Any:
        """Return what stands for rows of a slab."""
        structure, classes = self.slabs[slab]
        return optree.tree_unflatten(structure, [tf.TensorSpec((rows, *s), dtype) for s, dtype in classes])

    def declare(self, slab: int, found: SlabClass) -> None:
        """Note the class of a slab, which all its rows have."""
        if self.slabs.setdefault(slab, found) != found:
            raise mixed_rows(self.form, slab, [self.slabs[slab], found])

    def class_of(self, value: Any) -> SlabClass:
        """Return the class of rows."""
        leaves, structure = optree.tree_flatten(value)
        return SlabClass(structure, tuple((tuple(x.shape[1:]), x.dtype) for x in leaves))

    def check(self, kernel: Kernel, spec: Any, rows: int) -> None:
        """Refuse a result whose rows are not known, or are other than one for each node."""
        shape = getattr(spec, "shape", None)
        if shape is None or shape.rank is None or None in shape[1:]:
            raise LaunchError(
                f"{naming(kernel)}, returned {spec}, in which the shape of a row is not known.",
                "tf.ensure_shape(x, (None, width)) says it.",
            )
        if not shape.rank or shape[0] is not None:
            check_rows(kernel, tuple(shape), rows)

    def leaves(self, kernel: Kernel, value: Any) -> list[tf.Tensor]:
        """Return the arrays of a result."""
        return [tf.convert_to_tensor(leaf) for leaf in optree.tree_leaves(value)]


def spec_of(x: Any) -> Any:
    """Return the `tf.TensorSpec` of an array; anything else as it is."""
    return tf.TensorSpec(x.shape, x.dtype) if tf.is_tensor(x) or hasattr(x, "dtype") else x


def no_trace(kernel: Kernel, error: Exception) -> LaunchError:
    """Return the error of an op that fails while it is traced."""
    text = str(error).strip().partition("\n")[0].rstrip(". ")
    return LaunchError(
        f"{naming(kernel)}, cannot be traced by a tf.function: {type(error).__name__}: {text}.",
        "an op of a program sees symbolic tensors: no .numpy(), no Python branches on values, and "
        "tf.shape(x)[0] for the number of rows.",
    )
