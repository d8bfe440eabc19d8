"""A program as tensors: what a `tf.function` takes as an argument, and `tf.data` as an element.

The one idea: all integers of a program go into a few buffers, one for each kind, so that handing a program
over is a few uploads, whatever the model; and their lengths are data, too. So programs of one form have one
type, and a `tf.function` is traced once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import tensorflow as tf

from multifold.program import Form, Program

COUNTS, INDEX, FLOAT, BOOL = "counts", "index", "float", "bool"
"""The buffers. Counts say where launches begin and end: TensorFlow keeps int32 on the host, where loops
are controlled. Whatever the ops receive is of another type, and goes to the device."""


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


class Parts(NamedTuple):
    """The arrays of a program; see `multifold.program.Program` for each of them."""

    starts: Any
    sizes: Any
    bounds: Any
    launches: Any
    columns: tuple[tuple[Any, ...], ...]
    groups: tuple[Any, ...]
    blocks: tuple[Any, ...]
    shared: tuple[Any, ...]


@final
class TensorProgram(tf.__internal__.CompositeTensor):
    """A program whose arrays are tensors; made by `as_tensors`.

    Attributes
    ----------
    form : Form
        What a `tf.function` is traced for.
    lengths : int32 tensor of shape ``(pieces,)``
        How long each piece of the buffers is.
    buffers : dict of str to tensor
        Pieces of arrays of one dimension, one after the other.
    blocks, shared : tuples of tensors
        Given rows and shared arrays.
    static : tuple of int or None
        Of a tiled program: ``lengths``, which never change.
    """

    def __init__(
        self,
        form: Form,
        lengths: tf.Tensor,
        buffers: dict[str, tf.Tensor],
        blocks: tuple[tf.Tensor, ...],
        shared: tuple[tf.Tensor, ...],
        static: tuple[int, ...] | None = None,
    ) -> None:
        self.form = form
        self.lengths = lengths
        self.buffers = buffers
        self.blocks = blocks
        self.shared = shared
        self.static = static

    @property
    def _type_spec(self) -> ProgramSpec:
        rows = None if self.static is None else -1  # -1: as it is
        return ProgramSpec(
            self.form,
            self.static,
            {name: x.dtype for name, x in self.buffers.items()},
            tuple(_spec(x, rows) for x in self.blocks),
            tuple(_spec(x, -1) for x in self.shared),
        )

    def parts(self) -> Parts:
        """Return the arrays of the program, cut out of the buffers."""
        pieces = iter(self._cut())
        counts = [next(pieces) for _ in range(4)]
        for x, count in zip(counts, _counts(self.form), strict=False):
            x.set_shape((count,))
        starts, sizes, bounds, launches = counts
        columns = tuple(
            tuple(
                RaggedTensors(*(next(pieces) for _ in range(4)))
                if operand.role == "ragged"
                else next(pieces)
                if operand.role in ("rows", "int", "float", "bool")
                else None
                for operand in kernel.operands
            )
            for kernel in self.form.kernels
        )
        groups = tuple(None if group.whole >= 0 else next(pieces) for group in self.form.groups)
        table = tf.reshape(launches, (-1, 3))
        return Parts(starts, sizes, bounds, table, columns, groups, self.blocks, self.shared)

    def _cut(self) -> Sequence[tf.Tensor]:
        """Return all pieces in their order."""
        owners = _owners(self.form)
        pieces: list[Any] = [None] * len(owners)
        for name, buffer in self.buffers.items():
            own = [i for i, owner in enumerate(owners) if owner == name]
            lengths = [self.static[i] for i in own] if self.static else tf.gather(self.lengths, own)
            for i, piece in zip(own, tf.split(buffer, lengths, num=len(own)), strict=True):
                pieces[i] = piece
        return pieces


@final
class ProgramSpec(tf.TypeSpec):
    """The type of `TensorProgram`: programs of one form have equal ones."""

    def __init__(
        self,
        form: Form,
        static: tuple[int, ...] | None,
        dtypes: dict[str, tf.DType],
        blocks: tuple[tf.TensorSpec, ...],
        shared: tuple[tf.TensorSpec, ...],
    ) -> None:
        self.key = form, static, tuple(dtypes.items()), blocks, shared

    @property
    def value_type(self) -> type:
        return TensorProgram

    @property
    def _component_specs(self) -> Any:
        form, static, dtypes, blocks, shared = self.key
        owners = _owners(form)

        def size(name: str) -> int | None:
            if static is None:
                return None
            return sum(n for n, owner in zip(static, owners, strict=True) if owner == name)

        buffers = {name: tf.TensorSpec((size(name),), dtype) for name, dtype in dtypes}
        return tf.TensorSpec((len(owners),), tf.int32), buffers, blocks, shared

    def _to_components(self, value: TensorProgram) -> Any:
        return value.lengths, value.buffers, value.blocks, value.shared

    def _from_components(self, components: Any) -> TensorProgram:
        lengths, buffers, blocks, shared = components
        return TensorProgram(self.key[0], lengths, buffers, blocks, shared, self.key[1])

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
    """Return a program as an argument of a `tf.function`: in a few uploads.

    Parameters
    ----------
    program : Program
        Made by `multifold.Fold.program`.

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
    pieces: list[np.ndarray] = [
        program.starts,
        program.sizes,
        program.bounds,
        np.reshape(program.launches, -1),
    ]
    for kernel, columns in zip(program.form.kernels, program.columns, strict=True):
        for operand, column in zip(kernel.operands, columns, strict=True):
            if operand.role == "ragged":
                pieces += [column.addresses, column.splits, column.segments, np.diff(column.splits)]
            elif column is not None:
                pieces.append(column)
    pieces += [rows for rows in program.groups if rows is not None]
    owners = _owners(program.form)
    buffers = {}
    for name, dtype in ((COUNTS, np.int32), (INDEX, np.int64), (FLOAT, None), (BOOL, None)):
        own = [piece for piece, owner in zip(pieces, owners, strict=True) if owner == name]
        if own:
            buffers[name] = tf.constant(np.concatenate(own, dtype=dtype))
    lengths = tuple(map(len, pieces))
    return TensorProgram(
        program.form,
        tf.constant(np.array(lengths, np.int32)),
        buffers,
        tuple(map(tf.convert_to_tensor, program.given)),
        tuple(map(tf.convert_to_tensor, program.shared)),
        lengths if program.form.tiled else None,
    )


def _owners(form: Form) -> list[str]:
    """Return the buffer of each piece, in the order of the pieces."""
    kinds = {"rows": [INDEX], "ragged": [INDEX, COUNTS, INDEX, INDEX], "int": [INDEX]}
    kinds |= {"float": [FLOAT], "bool": [BOOL]}
    owners = [COUNTS] * 4
    for kernel in form.kernels:
        for operand in kernel.operands:
            owners += kinds.get(operand.role, [])
    return owners + [INDEX for group in form.groups if group.whole < 0]


def _counts(form: Form) -> tuple[int, int, int]:
    """Return how many sources, slabs and bounds there are."""
    return len(form.sources), form.slabs, len(form.phases) + 1


def _spec(x: tf.Tensor, rows: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(x.shape if rows == -1 else (rows, *x.shape[1:]), x.dtype)
