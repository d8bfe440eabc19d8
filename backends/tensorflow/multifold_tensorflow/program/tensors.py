"""A program as tensors: what a `tf.function` takes as an argument, and `tf.data` as an element.

The one idea: all integers of a program go into a few buffers, one for each dtype, so that handing a program
over is a few uploads, whatever the model. The length of each stretch of a buffer is data, too. So programs
of one form have one type, and a `tf.function` is traced once for all of them. A program whose two columns
are ``[0, 2, 3]`` and ``[1, 4]`` has the buffer ``[0, 2, 3, 1, 4]`` and the lengths ``[3, 2]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import tensorflow as tf

from multifold.program import Form, Program, refuse_no_program

COUNTS = "counts"
INDEX = "index"
FLOAT = "float"
BOOL = "bool"
"""The buffers. Counts say where launches begin and end: TensorFlow keeps int32 on the host, where it
controls loops. Everything that ops receive has another dtype, and goes to the device."""

BUFFERS = {
    "rows": [INDEX],
    "ragged": [INDEX, COUNTS, INDEX, INDEX],
    "int": [INDEX],
    "float": [FLOAT],
    "bool": [BOOL],
}
"""Role of an operand -> the buffers of its arrays; other roles have none."""


class RaggedTensors(NamedTuple):
    """A ragged operand of all calls of a kernel.

    Attributes
    ----------
    addresses, segments : int64 tensors of shape ``(members,)``
        See `multifold.program.RaggedColumn`.
    splits : int32 tensor of shape ``(rows + 1,)``
        The same.
    lengths : int64 tensor of shape ``(rows,)``
        The differences of ``splits``.
    """

    addresses: Any
    splits: Any
    segments: Any
    lengths: Any


class ProgramTensors(NamedTuple):
    """The arrays of a program as tensors, named as in `multifold.program.Program`."""

    starts: Any
    sizes: Any
    bounds: Any
    launches: Any
    columns: tuple[tuple[Any, ...], ...]
    groups: tuple[Any, ...]
    given: tuple[Any, ...]
    shared: tuple[Any, ...]


@final
class TensorProgram(tf.__internal__.CompositeTensor):
    """A program whose arrays are tensors; made by `as_tensors`.

    It is a `CompositeTensor`: `tf.function`, `tf.data` and `tf.distribute` take it apart into its tensors,
    and put it together again, by way of `ProgramSpec`.

    Attributes
    ----------
    form : Form
        What a `tf.function` is traced for.
    lengths : int32 tensor of shape ``(stretches,)``
        How long each stretch of the buffers is.
    buffers : dict of str to tensor
        Arrays of one dimension, one after the other.
    given, shared : tuples of tensors
        Given rows and shared arrays.
    static : tuple of int or None
        Of a tiled program: ``lengths``, which never change.
    """

    def __init__(
        self,
        form: Form,
        lengths: tf.Tensor,
        buffers: dict[str, tf.Tensor],
        given: tuple[tf.Tensor, ...],
        shared: tuple[tf.Tensor, ...],
        static: tuple[int, ...] | None = None,
    ) -> None:
        self.form = form
        self.lengths = lengths
        self.buffers = buffers
        self.given = given
        self.shared = shared
        self.static = static

    @property
    def _type_spec(self) -> ProgramSpec:
        rows = None if self.static is None else -1  # -1: as it is
        return ProgramSpec(
            self.form,
            self.static,
            {name: x.dtype for name, x in self.buffers.items()},
            tuple(_spec(x, rows) for x in self.given),
            tuple(_spec(x, -1) for x in self.shared),
        )

    @property
    def device(self) -> str:
        """The name of the device of ``lengths``, as `tf.distribute` asks of a value of one replica."""
        return str(self.lengths.device)

    def arrays(self) -> ProgramTensors:
        """Return the arrays of the program, cut out of the buffers.

        The array ``launches`` gets the shape ``(launches, 3)``.
        """
        found = iter(self._stretches())
        # Lengths are data, but the form knows the numbers of sources, slabs and phases: tell TensorFlow.
        counts = list(islice(found, 4))
        for x, count in zip(counts, _counts(self.form), strict=False):
            x.set_shape((count,))
        starts, sizes, bounds, launches = counts

        def column(role: str) -> Any:
            arrays = list(islice(found, len(BUFFERS.get(role, ()))))
            return RaggedTensors(*arrays) if role == "ragged" else arrays[0] if arrays else None

        columns = tuple(tuple(column(o.role) for o in kernel.operands) for kernel in self.form.kernels)
        groups = tuple(None if group.whole >= 0 else next(found) for group in self.form.groups)
        table = tf.reshape(launches, (-1, 3))
        return ProgramTensors(starts, sizes, bounds, table, columns, groups, self.given, self.shared)

    def _stretches(self) -> Sequence[tf.Tensor]:
        """Return all stretches of the buffers, in the order of ``lengths``."""
        owners = _owners(self.form)
        found: list[Any] = [None] * len(owners)
        for name, buffer in self.buffers.items():
            own = [i for i, owner in enumerate(owners) if owner == name]
            # XLA wants lengths that are constants; otherwise they are data, so that one trace serves all.
            lengths = [self.static[i] for i in own] if self.static else tf.gather(self.lengths, own)
            for i, stretch in zip(own, tf.split(buffer, lengths, num=len(own)), strict=True):
                found[i] = stretch
        return found


@final
class ProgramSpec(tf.TypeSpec):
    """The type of a `TensorProgram` for TensorFlow; equal for programs of one form."""

    def __init__(
        self,
        form: Form,
        static: tuple[int, ...] | None,
        dtypes: dict[str, tf.DType],
        given: tuple[tf.TensorSpec, ...],
        shared: tuple[tf.TensorSpec, ...],
    ) -> None:
        self.key = form, static, tuple(dtypes.items()), given, shared

    @property
    def value_type(self) -> type:
        return TensorProgram

    @property
    def _component_specs(self) -> Any:
        form, static, dtypes, given, shared = self.key
        owners = _owners(form)

        def size(name: str) -> int | None:
            if static is None:
                return None
            return sum(n for n, owner in zip(static, owners, strict=True) if owner == name)

        buffers = {name: tf.TensorSpec((size(name),), dtype) for name, dtype in dtypes}
        return tf.TensorSpec((len(owners),), tf.int32), buffers, given, shared

    def _to_components(self, value: TensorProgram) -> Any:
        return value.lengths, value.buffers, value.given, value.shared

    def _from_components(self, components: Any) -> TensorProgram:
        lengths, buffers, given, shared = components
        return TensorProgram(self.key[0], lengths, buffers, given, shared, self.key[1])

    def empty(self) -> TensorProgram:
        """Return a new program of this form without any call: that of a minibatch without examples.

        `tf.distribute` gives it to a replica whose data set ends before another replica's.
        """
        form, static, dtypes, given, shared = self.key
        owners = _owners(form)
        # Even where there is no call, it is said where each source, slab, phase and ragged operand begins.
        lengths = static or (*_counts(form), 0, *_begins(form))
        sizes = dict.fromkeys(dict(dtypes), 0)
        for owner, length in zip(owners, lengths, strict=True):
            sizes[owner] += length
        return TensorProgram(
            form,
            tf.constant(lengths, tf.int32),
            {name: tf.zeros((sizes[name],), dtype) for name, dtype in dtypes},
            tuple(tf.zeros([n or 0 for n in spec.shape], spec.dtype) for spec in given),
            tuple(tf.zeros(spec.shape, spec.dtype) for spec in shared),
            static,
        )

    def _create_empty_value(self) -> TensorProgram:
        return self.empty()

    def _serialize(self) -> Any:
        return self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramSpec) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def is_subtype_of(self, other: Any) -> bool:
        return self == other

    def most_specific_common_supertype(self, others: Sequence[Any]) -> ProgramSpec | None:
        return self if all(self == other for other in others) else None

    def is_compatible_with(self, other: Any) -> bool:
        return self == (other._type_spec if isinstance(other, TensorProgram) else other)

    def most_specific_compatible_type(self, other: Any) -> ProgramSpec:
        if self != other:
            raise ValueError("Expected two programs of one form.")
        return self

    def _without_tensor_names(self) -> ProgramSpec:
        return self

    def __repr__(self) -> str:
        return f"ProgramSpec({', '.join(kernel.name for kernel in self.key[0].kernels)})"


def as_tensors(program: Program | TensorProgram) -> TensorProgram:
    """Return a program as a `TensorProgram`, an argument of a `tf.function`; that of one as it is.

    Parameters
    ----------
    program : Program
        Made by `multifold.Fold.program`.

    Raises
    ------
    RecordError
        For anything else, as traces.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> nodes = [fold.add("double", fold.add("double", i)) for i in (1, 2)]
    >>> sorted(as_tensors(fold.program([nodes])).buffers)
    ['counts', 'index']
    """
    if isinstance(program, TensorProgram):
        return program
    refuse_no_program(program)
    arrays = [program.starts, program.sizes, program.bounds, np.reshape(program.launches, -1)]
    for kernel, columns in zip(program.form.kernels, program.columns, strict=True):
        for operand, column in zip(kernel.operands, columns, strict=True):
            if operand.role == "ragged":
                arrays += [*column, np.diff(column.splits)]
            elif column is not None:
                arrays.append(column)
    arrays += [rows for rows in program.groups if rows is not None]
    owners = _owners(program.form)
    buffers = {}
    for name, dtype in ((COUNTS, np.int32), (INDEX, np.int64), (FLOAT, None), (BOOL, None)):
        own = [array for array, owner in zip(arrays, owners, strict=True) if owner == name]
        if own:
            buffers[name] = tf.constant(np.concatenate(own, dtype=dtype))
    lengths = tuple(map(len, arrays))
    return TensorProgram(
        program.form,
        tf.constant(np.array(lengths, np.int32)),
        buffers,
        tuple(map(tf.convert_to_tensor, program.given)),
        tuple(map(tf.convert_to_tensor, program.shared)),
        lengths if program.form.tiled else None,
    )


def _owners(form: Form) -> list[str]:
    """Return the names of the buffers of the stretches, one for each, in their order.

    They are starts, sizes, bounds, launches, all columns, and the rows of groups.
    """
    operands = [operand for kernel in form.kernels for operand in kernel.operands]
    columns = [name for operand in operands for name in BUFFERS.get(operand.role, ())]
    return [COUNTS] * 4 + columns + [INDEX for group in form.groups if group.whole < 0]


def _begins(form: Form) -> list[int]:
    """Return the length that each stretch of a column or group has in a minibatch without calls: 0 or 1."""
    roles = [operand.role for kernel in form.kernels for operand in kernel.operands]
    # Of a ragged operand `splits` is one longer than there are calls: see `RaggedTensors`.
    columns = [
        int(role == "ragged" and i == 1) for role in roles for i in range(len(BUFFERS.get(role, ())))
    ]
    return columns + [0 for group in form.groups if group.whole < 0]


def _counts(form: Form) -> tuple[int, int, int]:
    """Return the lengths of starts, sizes and bounds: how many sources, slabs and phases + 1 a form has."""
    return len(form.sources), form.slabs, len(form.phases) + 1


def _spec(x: tf.Tensor, rows: int | None) -> tf.TensorSpec:
    """Return the spec of tensors like ``x`` with ``rows`` rows.

    None means any number of rows, -1 as many as ``x`` has.
    """
    return tf.TensorSpec(x.shape if rows == -1 else (rows, *x.shape[1:]), x.dtype)
