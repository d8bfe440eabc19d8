"""Packed sequences: of a minibatch that an example makes, each sequence is a call of its own.

A recurrent layer takes sequences of several lengths as one `PackedSequence`: of the sequences ``abc`` and
``de`` that is the tensor ``a d b e c``, with the numbers ``2 2 1`` of sequences that have a first, second
and third entry. A layer that gets one with pending tensors is called for each sequence, ``abc`` and ``de``.
So they share launches with sequences of their lengths in other examples, and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from multifold.lazy.current import recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold_torch.lazy.pending import Pending, record
from multifold_torch.lazy.written import is_pending


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


def takes_packed(
    layer: nn.RNNBase, sequences: Any = None, hx: Any = None, *more: Any, **others: Any
) -> bool:
    """Return whether `call_of_each` takes these: pending entries, and states of the right shapes."""
    if more or others or type(sequences) is not PackedSequence or not is_pending(sequences.data):
        return False
    sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size]
    axes = layer.num_layers * (1 + layer.bidirectional)
    shapes = [(axes, int(sequences.batch_sizes[0]), size) for size in sizes]
    if not isinstance(layer, nn.LSTM):
        return hx is None or getattr(hx, "shape", None) == shapes[0]
    is_pair = type(hx) in (tuple, list) and len(hx) == 2
    return hx is None or (is_pair and [getattr(x, "shape", None) for x in hx] == shapes)


def call_of_each(layer: nn.RNNBase, sequences: PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    """Call a recurrent layer for each of some packed sequences; return what it returns for all of them.

    The states ``hx`` have a column for each sequence, in the order before they were sorted by length.
    """
    refuse_draws(layer.dropout, layer.training)
    data, sizes, by_length, back = sequences
    places = places_of(sizes)
    numbers = range(len(places)) if by_length is None else by_length.tolist()
    found = []
    for number, own in zip(numbers, places, strict=True):
        begin = optree.tree_map(lambda h, i=number: h[:, i], hx)
        found.append(layer(chosen(data, own), *([] if begin is None else [begin])))
    outputs = in_order([output for output, _ in found], places)
    ordered = found if back is None else [found[i] for i in back.tolist()]
    last = optree.tree_map(lambda *columns: torch.stack(columns, 1), *[own for _, own in ordered])
    return PackedSequence(outputs, sizes, by_length, back), last


def of_packed(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers ``func``, which recurrent layers call, as `torch.lstm`.

    Given packed sequences, it is called for each. Layers come here that may be more than their class, since
    they have hooks or are of a class of the program, and those whose states alone are pending.
    """

    def answer(*given: Any, **by_name: Any) -> Any:
        is_packed = len(given) > 8 and isinstance(given[1], Tensor) and given[1].dtype == torch.int64
        if not is_packed:  # the second is the state, and the sequences have one length
            return record(func, *given, **by_name)
        data, sizes, *args = given
        state, weights, has_biases, layers, dropout, training, both_ways = args
        refuse_draws(dropout, training)
        places = places_of(sizes)
        found = []
        for i, own in enumerate(places):
            begin = optree.tree_map(lambda h, i=i: h[:, i : i + 1], state)
            options = weights, has_biases, layers, dropout, training, both_ways, False
            found.append(func(chosen(data, own)[:, None], begin, *options))
        outputs, *last = zip(*found, strict=True)
        together = in_order([x[:, 0] for x in outputs], places)
        return together, *[torch.cat(columns, 1) for columns in last]

    return answer


def refuse_draws(dropout: float, training: bool) -> None:
    """Raise `RecordError` if sequences draw numbers one by one where a seed promises those of the loop."""
    if dropout and training and recording_of().seed is not None:
        raise refusal(
            "A recurrent layer draws dropout for packed sequences one by one, so it would be another than "
            "that of the loop with this seed.",
            "call the layer for each sequence, or leave out seed= where the numbers may be others.",
        )


def in_order(found: Sequence[Any], places: Sequence[Tensor]) -> Any:
    """Return the entries of some sequences as one packed tensor, where each is at its places."""
    if len(found) == 1:
        return found[0]
    joined = torch.cat([*places])
    order = torch.empty_like(joined)
    order[joined] = torch.arange(len(order))
    return chosen(torch.cat([*found]), order)


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


RECURRENT_FUNCTIONS: Sequence[Any] = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""What recurrent layers call, with one padded minibatch or with packed sequences."""
