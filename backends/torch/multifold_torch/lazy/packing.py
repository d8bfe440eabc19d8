"""Packed sequences: of a minibatch that an example makes, each sequence is a call of its own.

A recurrent layer takes sequences of several lengths as one `PackedSequence`: of the sequences ``abc`` and
``de`` that is the tensor ``a d b e c``, with the numbers ``2 2 1`` of sequences that have a first, second
and third entry. A layer that gets one with pending tensors is called for each sequence, ``abc`` and ``de``.
So they share launches with sequences of their lengths in other examples, and nothing is padded.
"""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multifold.lazy.pending_array import with_reads
from multifold_torch.lazy.pending import Pending, record


def packed(x: Any, lengths: Tensor, batch_first: bool) -> tuple[Any, Tensor]:
    """Answer what `torch.nn.utils.rnn.pack_padded_sequence` calls: entries in order, and sizes of steps."""
    lengths = with_reads(lengths)
    if not isinstance(x, Pending):
        found: tuple[Any, Tensor] = torch._VF._pack_padded_sequence(x, lengths, batch_first)
        return found
    shape = x.form.shape
    places = torch.arange(shape[:2].numel()).reshape(*shape[:2], 1)
    order, sizes = torch._VF._pack_padded_sequence(places, lengths, batch_first)
    return chosen(x.flatten(0, 1), order[:, 0]), sizes


def padded(
    data: Any, sizes: Tensor, batch_first: bool, padding: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Answer what `torch.nn.utils.rnn.pad_packed_sequence` calls: a padded minibatch, and lengths."""
    places = places_of(sizes)
    lengths = torch.tensor([*map(len, places)])
    count = len(data)
    index = torch.full((len(places), steps), count)  # of the row that pads
    for row, own in zip(index, places, strict=True):
        row[: len(own)] = own
    if index.numel() > count:
        data = torch.cat([data, data.new_full((1, *data.shape[1:]), padding)])
    order = index if batch_first else index.t()
    return chosen(data, order.flatten()).unflatten(0, tuple(order.shape)), lengths


def call_of_each(layer: nn.RNNBase, sequences: PackedSequence, state: Any = None) -> tuple[Any, Any]:
    """Call a recurrent layer for each of some packed sequences; return what it returns for all of them.

    ``state``, if there is one, has a column for each sequence, in the order before they were sorted by
    length.
    """
    data, sizes, by_length, back = sequences
    places = places_of(sizes)
    numbers = range(len(places)) if by_length is None else by_length.tolist()
    found = []
    for number, own in zip(numbers, places, strict=True):
        begin = optree.tree_map(lambda h, i=number: h[:, i], state)
        found.append(layer(chosen(data, own), *([] if begin is None else [begin])))
    order = torch.empty(len(data), dtype=torch.int64)
    order[torch.cat(places)] = torch.arange(len(order))
    outputs = chosen(torch.cat([output for output, _ in found]) if len(found) > 1 else found[0][0], order)
    ordered = found if back is None else [found[i] for i in back.tolist()]
    last = optree.tree_map(lambda *columns: torch.stack(columns, 1), *[own for _, own in ordered])
    return PackedSequence(outputs, sizes, by_length, back), last


def places_of(sizes: Tensor) -> list[Tensor]:
    """Return where the entries of each sequence are, the longest first, from the sizes of all steps.

    >>> places_of(torch.tensor([2, 2, 1]))
    [tensor([0, 2, 4]), tensor([1, 3])]
    """
    begins = sizes.cumsum(0) - sizes
    return [begins[: int((sizes > i).sum())] + i for i in range(int(sizes[0]))]


def chosen(x: Any, rows: Tensor) -> Any:
    """Return some rows of a pending tensor; the tensor itself if these are all, in their order."""
    if len(rows) == len(x) and bool((rows == torch.arange(len(rows))).all()):
        return x
    return record(torch.index_select, x, 0, rows)
