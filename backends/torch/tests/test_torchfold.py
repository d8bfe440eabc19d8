"""Programs written for TorchFold run on PyTorch after their import line was changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multifold
from multifold_compat import torchfold


class Encoder(nn.Module):
    """Words, pairs of them, and scores against a table of all words."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.out = nn.Linear(12, 6)
        self.drop = nn.Dropout(0.5)

    def value(self, word):
        return self.embed(word)

    def concat(self, *rows):
        return torch.cat(rows)

    def pair(self, left, right):
        both = self.out(torch.cat([left, right], dim=1))
        return both.tanh(), both.sigmoid()

    def logits(self, row, table):
        return row @ table.t()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Encoder()


def scores(fold):
    """Compare the words of two small phrases with a table of 15; one program for fold and twin."""
    values = [fold.add("value", i % 10) for i in range(15)]
    table = fold.add("concat", *values).nobatch()
    left, right = fold.add("pair", values[1], values[2]).split(2)
    again, _ = fold.add("pair", left, right).split(2)
    return [fold.add("logits", x, table) for x in (again, left, values[3])]


def gradients(model, output):
    model.zero_grad()
    output.pow(2).sum().backward()
    return {name: x.grad for name, x in model.named_parameters()}


def test_values_and_gradients_of_fold_and_unfold_equal_those_of_direct_calls(model):
    rows = [model.value(torch.tensor([i])) for i in range(10)]
    table = model.concat(*(rows[i % 10] for i in range(15)))
    left, right = model.pair(rows[1], rows[2])
    queries = (model.pair(left, right)[0], left, rows[3])
    expected = torch.cat([model.logits(x, table) for x in queries])
    wanted = gradients(model, expected)
    for door in (torchfold.Fold(), torchfold.Unfold(model)):
        (got,) = door.apply(model, [scores(door)])
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(gradients(model, got), wanted)


def test_check_compares_gradients(model):
    fold = torchfold.Fold()
    fold.check(model, [scores(fold)])

    class Mixing(Encoder):
        def value(self, word):
            return super().value(word) - super().value(word).mean(0)

    with pytest.raises(multifold.MismatchError):
        fold.check(Mixing(), [scores(fold)])


def test_a_hundred_rows_meet_a_table_of_fifteen(model):
    fold = torchfold.Fold()
    values = [fold.add("value", i % 10) for i in range(15)]
    table = fold.add("concat", *values).nobatch()
    nodes = [fold.add("logits", values[i % 10], table) for i in range(100)]
    (result,) = fold.apply(model, [nodes])
    assert result.shape == (100, 15)
    assert [len(x) for x in fold.schedule([nodes]).launches] == [10, 1, 10]  # equal calls are one


def test_a_chain_of_two_thousand_calls_is_no_trouble(model):
    fold = torchfold.Fold()
    x = fold.add("value", 1)
    other = fold.add("value", 2)
    for _ in range(2000):
        x = fold.add("pair", x, other).split(2)[0]
    assert fold.apply(model, [[x]])[0].shape == (1, 6)


def test_sequences_of_different_lengths_share_their_steps():
    torch.manual_seed(0)

    class Sequences(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(5, 4)

        def encode(self, x, state):
            return self.cell(x, state)

    model = Sequences()
    fold = torchfold.Fold()
    states = []
    expected = []
    for length in (2, 3, 5):
        node = state = torch.rand(1, 4)
        for x in torch.rand(length, 1, 5):
            node = fold.add("encode", x, node)
            state = model.encode(x, state)
        states.append(node)
        expected.append(state)
    torch.testing.assert_close(fold.apply(model, [states])[0], torch.cat(expected))
    assert [len(x) for x in fold.schedule([states]).launches] == [3, 3, 2, 1, 1]


def test_integers_become_long_tensors_and_labels_do_so_too(model):
    class Types(nn.Module):
        def value(self, i):
            assert i.dtype is torch.int64
            return i

    fold = torchfold.Fold()
    values, labels = fold.apply(Types(), [[fold.add("value", 3)], [1, 0]])
    assert values.dtype is labels.dtype is torch.int64


def test_volatile_runs_without_gradients(model):
    for volatile in (False, True):
        fold = torchfold.Fold(volatile=volatile)
        (folded,) = fold.apply(model, [[fold.add("value", 1)]])
        unfold = torchfold.Unfold(model, volatile=volatile)
        node = unfold.add("value", 1)
        assert folded.requires_grad is node.tensor.requires_grad is not volatile


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_methods_are_found_inside_of_wrapped_modules(model, wrap):
    fold = torchfold.Fold()
    torch.testing.assert_close(
        fold.apply(wrap(model), [[fold.add("value", 1)]])[0], model.value(torch.tensor([1]))
    )


def test_dropout_is_shared_by_identical_calls_as_before_and_apart_where_wanted(model):
    x = torch.ones(1, 64)
    results = {}
    for cse in (True, False):
        fold = torchfold.Fold(cse=cse)
        results[cse] = fold.apply(model, [[fold.add("drop", x), fold.add("drop", x)]])[0]
    assert results[True][0].equal(results[True][1])
    assert not results[False][0].equal(results[False][1])


def test_cuda_is_where_numbers_are_put(model):
    doors = [torchfold.Fold(cuda=True), torchfold.Fold().cuda()]
    doors += [torchfold.Unfold(model, cuda=True), torchfold.Unfold(model).cuda()]
    assert {door._device for door in doors} == {"cuda"}
    assert torchfold.Fold()._device is None
