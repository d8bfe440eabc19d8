"""Compiled ops: a handful of graphs, the answers of the ops as written, and a warning beyond the budget.

Also what a device sees: one upload of integers for a whole run, and nothing that waits for it.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from multifold_torch import Compiler, TorchBackend

import multifold
from multifold.models import BinaryTreeLSTM
from multifold.testing import Counting

TREES = [((1, 2), 3), ((1, (2, 3)), ((4, 1), (2, (3, 4)))), (1, 2), 4]


def encode(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree).split(2)
    (left_h, left_c), (right_h, right_c) = (encode(fold, child) for child in tree)
    return fold.add("children", left_h, left_c, right_h, right_c).split(2)


def record(fold, tree):
    return fold.add("logits", encode(fold, tree)[0])


def traced(trees):
    return [multifold.trace(record, tree) for tree in trees]


def loss_and_gradients(model, backend, trees):
    model.zero_grad()
    loss = multifold.Fold(backend=backend).run(model, traced(trees)).square().sum()
    loss.backward()
    return [loss.detach(), *(x.grad for x in model.parameters())]


@pytest.fixture
def model():
    torch._dynamo.reset()
    return BinaryTreeLSTM(5, 4, 3).on("torch")


@pytest.mark.filterwarnings("error:The op")
def test_compiled_ops_have_the_gradients_of_ops_as_written_and_structures_compile_nothing(model):
    compiler = Compiler(backend="eager")
    for trees in (TREES, TREES[:2], TREES[1:], 3 * TREES):
        got = loss_and_gradients(model, TorchBackend(compiler=compiler), trees)
        torch.testing.assert_close(got, loss_and_gradients(model, "torch", trees))
    graphs = dict(compiler.graphs)
    assert set(graphs) == {"leaf", "children", "logits"}
    loss_and_gradients(model, TorchBackend(compiler=compiler), [*TREES[:3], (TREES[1], TREES[0])])
    assert compiler.graphs == graphs


def test_inductor_compiles_the_ops_that_are_named(model):
    compiler = Compiler(ops=["logits"])
    with torch.no_grad():
        got = multifold.Fold(backend=TorchBackend(compiler=compiler)).run(model, traced(TREES))
        torch.testing.assert_close(got, multifold.Fold(backend="torch").run(model, traced(TREES)))
    assert compiler.graphs == {"logits": 1}


def scaled(x, by):
    return x * by if by < 5 else x * (by + 1)


def test_an_op_beyond_its_budget_is_named_and_runs_as_written():
    torch._dynamo.reset()
    compiler = Compiler(backend="eager", budget=2)

    def step(dimensions):
        fold = multifold.Fold(backend=TorchBackend(compiler=compiler))
        return fold(fold.add(scaled, torch.ones((1, *[2] * dimensions)), by=3)).sum()

    assert [step(1), step(2)] == [6, 12]
    with pytest.warns(UserWarning, match=r"The op 'scaled' .* needs graph 3 of a budget of 2, for \(.*2\)"):
        assert step(3) == 24
    assert step(4) == 48
    assert compiler.graphs["scaled"] == 3


def refused(graph, inputs):
    raise RuntimeError("no compiler here")


def test_an_op_that_cannot_be_compiled_is_named_and_runs_as_written():
    torch._dynamo.reset()
    fold = multifold.Fold(backend=TorchBackend(compiler=Compiler(backend=refused)))
    with pytest.warns(UserWarning, match="The op 'scaled' .* cannot be compiled: .*no compiler here"):
        assert fold(fold.add(scaled, torch.ones((1, 2)), by=2)).tolist() == [[2.0, 2.0]]


def test_a_step_uploads_its_integers_once_whatever_the_number_of_launches(model):
    for trees in (TREES[:1], TREES):
        counting = Counting("torch")
        multifold.Fold(backend=counting).run(model, traced(trees))
        assert counting.counts["constant"] == 1
        assert counting.counts["to_numpy"] == 0
        assert counting.counts["call"] >= 4


class Copied(torch.nn.Module):
    """A model with a fold of its own, as users copy for averages of weights."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.fold = multifold.Fold(backend=TorchBackend(compiler=Compiler(backend="eager")))

    def cell(self, x):
        return self.linear(x)

    def forward(self, xs):
        self.fold.reset()
        return self.fold.apply(self, [[self.fold.add("cell", x) for x in xs]])[0]


def test_a_copy_of_a_model_runs_on_its_own_weights():
    model = Copied()
    xs = [torch.ones(1, 2)]
    model(xs)
    model.fold.reset()
    copied = copy.deepcopy(model)
    torch.nn.init.zeros_(copied.linear.weight)
    torch.testing.assert_close(copied(xs), copied.cell(xs[0]))
    copied(xs).sum().backward()
    assert copied.linear.weight.grad is not None and model.linear.weight.grad is None


@pytest.mark.filterwarnings("error:The op")
def test_ops_of_one_name_have_a_budget_each():
    compiler = Compiler(backend="eager", budget=3)
    model = torch.nn.ModuleDict()
    model.update({name: torch.nn.Linear(2, 2) for name in "abcde"})
    fold = multifold.Fold(backend=TorchBackend(compiler=compiler))
    fold.apply(model, [[fold.add(name, torch.ones(1, 2)) for _ in range(3)] for name in "abcde"])
    assert compiler.graphs == {"Linear": 5}


@pytest.mark.parametrize(("first", "second"), [(0.0, -0.0), (1, 1.0), ([1.0], [2.0])])
def test_partials_of_other_values_are_compiled_apart(first, second):
    def op(value, x):
        return x + 1 / torch.as_tensor(value)

    backend = TorchBackend(compiler=Compiler(backend="eager"))
    for value in (first, second):
        fold = multifold.Fold(backend=backend)
        got = fold(fold.add(functools.partial(op, value), torch.zeros(1, 1)))
        torch.testing.assert_close(got, op(value, torch.zeros(1, 1)))


def test_steps_of_a_cell_are_compiled_once_for_all_folds():
    compiler = Compiler(backend="eager")
    cell = torch.nn.GRUCell(2, 3)
    for _ in range(4):
        fold = multifold.Fold(backend=TorchBackend(compiler=compiler))
        fold([fold.unroll(cell, 3, torch.ones(1, 3, 2))[0]])
    assert len(compiler.compiled) == 2 and compiler.graphs["step_cell"] <= 3
