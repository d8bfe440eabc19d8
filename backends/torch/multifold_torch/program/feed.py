"""The arrays of a program as tensors: all of one dtype in one buffer, so that a step is handed few of them.

What a tile reads is data, and so is where its gradient goes. A tile that has no call in this minibatch runs
nevertheless, and may read rows that are not computed yet: then its gradient may be anything, and goes to a
row after the last one of the slab, which no tile reads. So each read has two columns, *addresses* and
*sinks*.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, final

import numpy as np
import optree
import torch

from multifold.backend import Backend
from multifold.program import KernelOperand, Program, RaggedColumn


class RowReads(NamedTuple):
    """What a kernel reads for one operand, a row of a slab for each of its calls.

    Attributes
    ----------
    addresses, sinks : int64 tensors of shape ``(rows,)``
        The rows that are read, and those that their gradients are added to.
    """

    addresses: Any
    sinks: Any


class RaggedReads(NamedTuple):
    """What a kernel reads for one ragged operand, for all of its calls.

    Attributes
    ----------
    addresses, sinks : int64 tensors of shape ``(members,)``
        As for `RowReads`.
    lengths : int64 tensor of shape ``(rows,)``
        How many members each call has.
    segments : int64 tensor of shape ``(members,)``
        The row of its tile that each member belongs to.
    """

    addresses: Any
    sinks: Any
    lengths: Any
    segments: Any


class ProgramData(NamedTuple):
    """The arrays that the tiles of a program read; see `multifold.program.Program`.

    Attributes
    ----------
    columns : tuple of tuples
        For each kernel and operand a `RowReads`, a `RaggedReads`, numbers of shape ``(rows,)`` or None.
    real : bool tensor of shape ``(tiles,)``
        Whether each tile has a call, or repeats one: see `TileSpan.real`.
    groups, given, shared : tuples of tensors
        As in the program.
    """

    columns: tuple[tuple[Any, ...], ...]
    real: Any
    groups: tuple[Any, ...]
    given: tuple[Any, ...]
    shared: tuple[Any, ...]


@final
class Feed:
    """The arrays of one program, joined to one NumPy array for each dtype.

    Attributes
    ----------
    flat : dict of dtype to array
        What goes into the buffers.
    layout : tuple
        Where each array lies in them: equal for programs that may use the same buffers.
    tensors : list
        What the user has recorded as tensors: they are in no buffer.
    """

    def __init__(self, program: Program) -> None:
        leaves, self.structure = optree.tree_flatten(data_of(program))
        parts: dict[np.dtype, list[np.ndarray]] = {}
        sizes: dict[np.dtype, int] = {}
        entries: list[tuple[Any, int, tuple[int, ...]]] = []
        self.tensors: list[torch.Tensor] = []
        for leaf in leaves:
            if isinstance(leaf, np.ndarray):
                begin = sizes.setdefault(leaf.dtype, 0)
                entries.append((leaf.dtype, begin, leaf.shape))
                parts.setdefault(leaf.dtype, []).append(leaf.ravel())
                sizes[leaf.dtype] += leaf.size
            else:
                entries.append((None, len(self.tensors), ()))
                self.tensors.append(leaf)
        self.flat = {dtype: np.concatenate(own) for dtype, own in parts.items()}
        self.layout: tuple[Hashable, ...] = (tuple(entries), self.structure)

    def buffers(self, backend: Backend, device: Any) -> dict[np.dtype, torch.Tensor]:
        """Return dtype -> tensor on ``device``, made of ``flat`` by one upload each."""
        return {dtype: backend.constant(flat, device) for dtype, flat in self.flat.items()}

    def views(self, buffers: Mapping[np.dtype, torch.Tensor]) -> ProgramData:
        """Return the arrays as views of ``buffers``, made by `buffers` of a feed of equal layout."""
        entries: Any = self.layout[0]
        leaves = [
            self.tensors[begin]
            if dtype is None
            else buffers[dtype][begin : begin + int(np.prod(shape))].view(shape)
            for dtype, begin, shape in entries
        ]
        data: ProgramData = optree.tree_unflatten(self.structure, leaves)
        return data


def data_of(program: Program) -> ProgramData:
    """Return a `ProgramData` of NumPy arrays; what users have recorded as tensors stays as it is."""
    form = program.form
    real = program.launches[[span.real for span in form.tiles()], 2] > 0
    rows_real = [np.zeros(kernel.rows or 0, bool) for kernel in form.kernels]
    for span in form.tiles():
        rows_real[span.kernel][span.first : span.first + span.rows] = real[span.number]
    # The size of a slab is the number of the row after its last one, which is its sink.
    blanks = form.stretches[1]

    def column(operand: KernelOperand, own: Any, real: np.ndarray) -> Any:
        if operand.role == "rows":
            addresses = own.astype(np.int64)
            return RowReads(addresses, np.where(real, addresses, blanks[operand.index]))
        if isinstance(own, RaggedColumn):
            lengths = np.diff(own.splits).astype(np.int64)
            addresses = own.addresses.astype(np.int64)
            # Where no call reads a row, there is no slab, and no sink is needed.
            blank = blanks[operand.index] if operand.reads else 0
            sinks = np.where(np.repeat(real, lengths), addresses, blank)
            return RaggedReads(addresses, sinks, lengths, own.segments.astype(np.int64))
        return own

    return ProgramData(
        columns=tuple(
            tuple(column(*pair, real_rows) for pair in zip(kernel.operands, columns, strict=True))
            for kernel, columns, real_rows in zip(form.kernels, program.columns, rows_real, strict=True)
        ),
        real=real,
        groups=tuple(None if rows is None else rows.astype(np.int64) for rows in program.groups),
        given=program.given,
        shared=program.shared,
    )
