"""Traces of plain programs: the code of each example runs once, for many epochs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]


class TreeRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.join = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)

    def compose(self, left, right):
        return torch.tanh(self.join(torch.cat([left, right])))

    def forward(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        return self.compose(self(tree[0]), self(tree[1]))


@pytest.mark.parametrize("ops", [(), (TreeRNN.compose,)], ids=["as it stands", "with a cell"])
def test_traces_compute_what_the_loop_computes_in_each_epoch(ops):
    model = TreeRNN()
    run = multifold.batched(model, ops=ops)
    made = run.traces(TREES)
    for _ in range(3):
        gradients = []
        for found in (run.replay(made), torch.stack([model(tree) for tree in TREES])):
            model.zero_grad()
            found.square().sum().backward()
            gradients.append([x.grad.clone() for x in model.parameters()])
            values = found
        torch.testing.assert_close(run.replay(made), values)
        torch.testing.assert_close(*gradients)
        torch.optim.SGD(model.parameters(), 0.1).step()


def test_the_code_of_a_traced_example_runs_once():
    calls = []

    def program(x):
        calls.append(x)
        return LIN(x), "a word", {"twice": LIN(x) * 2}

    run = multifold.batched(program, join="list")
    made = run.traces(XS)
    results = [run.replay(made[:2]), run.replay(made[::-1])]
    assert len(calls) == len(XS) and [len(result) for result in results] == [2, len(XS)]
    for (x, word, parts), own in zip(results[1], XS[::-1], strict=True):
        assert word == "a word"
        torch.testing.assert_close([x, parts["twice"]], [LIN(own), LIN(own) * 2])


LIN = nn.Linear(4, 4)
XS = [torch.randn(4) for _ in range(3)]


def test_dropout_of_traces_is_drawn_anew():
    model = TreeRNN()
    run = multifold.batched(lambda tree: model.drop(model(tree)))
    made = run.traces(TREES)
    assert not torch.equal(run.replay(made), run.replay(made))


def test_launches_of_traces_are_those_of_the_run():
    run = multifold.batched(TreeRNN())
    run(TREES)
    launches = len(run.explain())
    run.replay(run.traces(TREES))
    assert len(run.explain()) == launches


def test_a_program_that_reads_makes_no_traces():
    with pytest.raises(RecordError, match="reads a computed value"):
        multifold.batched(lambda x: LIN(x).sum().item()).traces(XS)


def test_traces_are_replayed_in_their_modes():
    run = multifold.batched(TreeRNN())
    with torch.no_grad():
        made = run.traces(TREES)
        assert not run.replay(made).requires_grad
    with pytest.raises(RecordError, match="modes in which they were made"):
        run.replay(made)


def test_other_traces_are_refused():
    with pytest.raises(RecordError, match=r"that run\.traces"):
        multifold.batched(TreeRNN()).replay([1])


def test_a_tensor_that_needs_a_gradient_is_no_operand_of_a_trace():
    weight = torch.ones(4, requires_grad=True)
    with pytest.raises(RecordError, match="needs a gradient"):
        multifold.batched(lambda x: LIN(x) * weight).traces(XS)


def test_a_cell_of_traces_reads_what_its_module_has_when_it_runs():
    class Scaled(TreeRNN):
        scale = 1

        @multifold.op
        def compose(self, left, right):
            return super().compose(left, right) * self.scale

    model = Scaled()
    run = multifold.batched(model)
    made = run.traces(TREES)
    run.replay(made)
    model.scale = 2
    torch.testing.assert_close(run.replay(made), torch.stack([model(tree) for tree in TREES]))
