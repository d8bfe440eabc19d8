"""Programs that begin with functions of weights, not with layers: these are recorded, too."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import multifold

torch.manual_seed(0)


class ByHand(nn.Module):
    """A recursive network with weights of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.left = nn.Parameter(torch.randn(10, 4)), nn.Parameter(torch.randn(4, 4) / 2)
        self.right, self.bias = nn.Parameter(torch.randn(4, 4) / 2), nn.Parameter(torch.zeros(4))
        self.register_buffer("scale", torch.full((4,), 0.5))

    def leaf(self, word):
        return functional.embedding(word, self.words)[0]

    def join(self, x, y):
        return torch.tanh(functional.linear(x, self.left, self.bias) + self.right @ y)

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(torch.tensor([tree]))
        return self.join(self.node(tree[0]), self.node(tree[1]))

    def forward(self, tree):
        return self.node(tree) * self.scale


def indexed(self, word):
    return self.words[word][0]


def indexed_by_a_number(self, word):
    return self.words[word[0]]


def by_keywords(self, word):
    one_hot = functional.one_hot(word, 10).float().squeeze(0)
    return functional.linear(input=one_hot, weight=self.words.t())


def sliced(self, word):
    return self.words[int(word)]


def of_rows(self, word):
    return functional.one_hot(word, 10).float().squeeze(0) @ self.words


def into_memory(self, word):
    return torch.mul(functional.embedding(word, self.words)[0], self.scale, out=torch.empty(4)).detach()


def changed(self, word):
    found = functional.embedding(word, self.words)[0] + 1
    found *= self.scale
    found[0] = 2.0
    return found


def reading(self, word):
    found = functional.embedding(word, self.words)[0]
    return found if found.sum() > 0 else -found


LEAVES = [None, indexed, indexed_by_a_number, by_keywords, sliced, of_rows, changed, reading]
TREES = [(1, 2), ((3, 4), (5, (6, 7))), 8, ((1, 1), 9), (((2, 3), 4), 5), (0, (1, 2)), (3, 3), (4, (5, 6))]


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda x: getattr(x, "__name__", "embedding"))
def test_a_model_with_weights_of_its_own_is_batched(leaf, as_loop):
    kind = ByHand if leaf is None else type("Other", (ByHand,), {"leaf": leaf})
    net = kind()
    run = multifold.batched(net, join="list")
    for _ in range(3):
        as_loop(net, TREES, parameters=[*net.parameters()], run=run)
    assert len(run.explain()) < len(run.run.fold) / 3


def test_its_straight_functions_are_recorded_whole():
    net = ByHand()
    run = multifold.batched(net)
    for _ in range(2):
        run(TREES)
    assert {text.split()[0] for text in run.explain().found} == {"ByHand.leaf", "ByHand.join"}


def test_what_is_written_into_memory_is_computed_at_once(as_loop):
    net = type("Other", (ByHand,), {"leaf": into_memory})().requires_grad_(False)
    as_loop(net, TREES)


def test_functions_of_weights_alone_and_of_no_weight_are_computed_at_once(as_loop):
    net, calls = ByHand(), []

    def program(x):
        own = net.left @ net.right
        calls.append(type(own) is torch.Tensor and type(x * 2) is torch.Tensor)
        return functional.linear(x * 2, net.left) + own.sum()

    run = as_loop(program, list(torch.randn(5, 4)), parameters=[*net.parameters()])
    assert all(calls) and len(run.fold)


def test_a_program_that_differentiates_by_itself_stays_a_loop(as_loop):
    net = ByHand()

    def program(x):
        (slope,) = torch.autograd.grad(functional.linear(x, net.left).sum(), [net.left], create_graph=True)
        return functional.linear(x, net.left - 0.1 * slope)

    run = multifold.batched(program, join="list")
    for _ in range(2):
        as_loop(program, list(torch.randn(5, 4)), parameters=[net.left], run=run)


def test_a_program_that_this_does_not_help_is_watched_no_more():
    run = multifold.batched(lambda x: x * 2)
    with pytest.warns(UserWarning, match="ran as a loop"):
        run(list(torch.randn(5, 4)))
    assert run.recorder.records_weights is False


def test_a_program_with_layers_whose_first_example_is_empty_is_watched_no_more():
    layer = nn.Linear(4, 4)
    run = multifold.batched(lambda xs: sum([layer(x) for x in xs], torch.zeros(4)))
    run([[], *[list(torch.randn(3, 4))] * 4])
    assert run.recorder.records_weights is False and len(run.explain())


def test_a_program_with_layers_is_not_watched():
    run = multifold.batched(nn.Linear(4, 4))
    run(list(torch.randn(5, 4)))
    assert run.run.recorder.records_weights is None
