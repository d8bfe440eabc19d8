"""Recurrent layers of plain programs get packed sequences: each sequence is a call of its own."""

from __future__ import annotations

import optree
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)

import multifold
from multifold.errors import RecordError

torch.manual_seed(0)
WORDS = nn.Embedding(20, 3)
LENGTHS = [[3], [2, 4, 1], [4, 2], [2]]
XS = [torch.randint(20, (len(own), max(own))) for own in LENGTHS]
LAYERS = {
    "rnn": nn.RNN(3, 5),
    "gru": nn.GRU(3, 5, num_layers=2, batch_first=True),
    "lstm": nn.LSTM(3, 5, bidirectional=True),
    "projected": nn.LSTM(3, 5, proj_size=2, batch_first=True),
}


def encoded(name, ids, lengths, state=None):
    layer = LAYERS[name]
    x = WORDS(ids) if layer.batch_first else WORDS(ids).transpose(0, 1)
    both = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False)
    found, last = layer(both) if state is None else layer(both, state)
    return *pad_packed_sequence(found, layer.batch_first, -1.0, total_length=6), last


def leaves_and_gradients(run, *arguments):
    layers = [WORDS, *LAYERS.values(), OWN, HOOKED]
    for layer in layers:
        layer.zero_grad()
    leaves = optree.tree_leaves(run(*arguments))
    sum(x.sum() for x in leaves if x.requires_grad).backward()
    parameters = [x for layer in layers for x in layer.parameters()]
    return [x.detach() for x in leaves], [x.grad.clone() for x in parameters if x.grad is not None]


def assert_as_loop(fn, *arguments):
    run = multifold.batched(fn, join="list", backend="torch")
    torch.testing.assert_close(
        leaves_and_gradients(run, *arguments), leaves_and_gradients(run.loop, *arguments)
    )
    return run


@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences_are_those_of_the_loop(name):
    run = assert_as_loop(lambda ids, lengths: encoded(name, ids, lengths), XS, LENGTHS)
    kind = type(LAYERS[name]).__name__
    rows = [len(launch) for launch in run.explain().launches if launch.op == kind]
    assert sorted(rows) == [1, 1, 2, 3]  # of sequences with 1, 3, 4 and 2 entries


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_states_are_sorted_with_their_sequences(name):
    layer = LAYERS[name]
    axes = layer.num_layers * (1 + layer.bidirectional)
    states = [torch.randn(axes, len(own), 5) for own in LENGTHS]
    pairs = [(x, x + 1) if name == "lstm" else x for x in states]
    assert_as_loop(lambda *given: encoded(name, *given), XS, LENGTHS, pairs)


def test_sequences_that_are_sorted_and_packed_at_once():
    def fn(ids):
        sequences = sorted([WORDS(row[: i + 1]) for i, row in enumerate(ids)], key=len, reverse=True)
        found, last = LAYERS["rnn"](pack_sequence(sequences))
        return found.data * 2, PackedSequence(found.data + 1, found.batch_sizes).data.sum(), last

    assert_as_loop(fn, XS)


def test_padding_alone_puts_back_what_was_packed():
    def fn(ids, lengths):
        both = pack_padded_sequence(torch.tanh(WORDS(ids)), lengths, True, False)
        return pad_packed_sequence(both, batch_first=True)

    assert_as_loop(fn, XS, LENGTHS)


class OwnGRU(nn.GRU):
    """A layer of a class of the program, which may do more than PyTorch's."""


OWN = OwnGRU(3, 5)
HOOKED = nn.LSTM(3, 5, num_layers=2)
HOOKED.register_forward_hook(lambda layer, args, found: (found[0], found[1][0] * 2))
ALSO_CALLED = {
    "by a class of the program": lambda both, first: OWN(both),
    "with hooks": lambda both, first: HOOKED(both),
    "with states by keyword": lambda both, first: LAYERS["rnn"](both, hx=first),
    "with computed entries": lambda both, first: LAYERS["rnn"](
        both._replace(data=torch.ones(len(both.data), 3)), first
    ),
}


@pytest.mark.parametrize("call", ALSO_CALLED.values(), ids=ALSO_CALLED)
def test_layers_that_are_called_otherwise_get_packed_sequences_too(call):
    def fn(ids, lengths):
        x = WORDS(ids)
        both = pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        found, last = call(both, torch.cat([x[:, 0], x[:, 0]], 1)[None, :, :5].contiguous())
        return found.data, last

    assert_as_loop(fn, XS, LENGTHS)


def test_states_for_other_sequences_are_the_error_of_the_loop():
    def fn(ids):
        return LAYERS["rnn"](pack_sequence([WORDS(ids[0])]), torch.zeros(1, 2, 5))

    with pytest.raises(RuntimeError, match="Expected hidden size"):
        multifold.batched(fn, join="list", backend="torch")(XS)


def test_dropout_of_packed_sequences_is_refused_where_a_seed_promises_that_of_the_loop():
    layer = nn.GRU(3, 5, num_layers=2, dropout=0.5)
    run = multifold.batched(
        lambda ids: layer(pack_sequence([WORDS(ids[0])])), join="list", backend="torch", seed=0
    )
    with pytest.raises(RecordError, match="dropout for packed sequences"):
        run(XS)
