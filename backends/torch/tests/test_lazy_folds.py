"""`multifold.plain` in PyTorch: on folds, in servers and of traces values are those of the loop."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import multifold
from multifold import LaunchError, RecordError
from multifold.lazy.current import CURRENT

torch.manual_seed(0)
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5)), (7, (8, 9))]


class TreeRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.join = nn.Linear(8, 4)

    def compose(self, left, right):
        return torch.tanh(self.join(torch.cat([left, right])))

    def forward(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        return self.compose(self(tree[0]), self(tree[1]))


class Searching(TreeRNN):
    """Joins what has the larger sum first."""

    def forward(self, tree):
        if isinstance(tree, int):
            return super().forward(tree)
        left, right = self(tree[0]), self(tree[1])
        return self.compose(left, right) if left.sum() > right.sum() else self.compose(right, left)


MODEL, SEARCHING = TreeRNN(), Searching()


def same(found, wanted):
    torch.testing.assert_close(torch.as_tensor(found), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("model", [MODEL, SEARCHING])
@pytest.mark.parametrize("cells", [(), (TreeRNN.compose,)])
@pytest.mark.parametrize("options", [{"backend": "torch"}, {}])
def test_a_fold_runs_a_model_as_it_stands(model, cells, options, comparing):
    fold, (outcome, _) = multifold.Fold(**options), comparing
    weights = [*model.parameters()]
    found = outcome(lambda: fold.run(None, TREES, multifold.plain(model, cells)), weights)
    wanted = outcome(lambda: torch.stack([model(tree) for tree in TREES]), weights)
    same(found[0].detach(), wanted[0].detach())
    [same(x, y) for x, y in zip(found[1], wanted[1], strict=True)]


def test_a_server_answers_with_the_values_of_the_loop():
    wanted = [SEARCHING(tree).detach() for tree in TREES]
    with multifold.Server(None, multifold.plain(SEARCHING), backend="torch") as server:
        for _ in range(3):
            requests = [server.submit(tree) for tree in TREES]
            for request, value in zip(requests, wanted, strict=True):
                same(request.result(60)[0], value)
    assert nn.Module.__call__.__module__.startswith("torch") and CURRENT.recording is None


def test_weights_may_change_where_a_server_rests():
    model = Searching()
    with multifold.Server(None, multifold.plain(model), backend="torch") as server:
        for _ in range(3):
            same(server.submit(TREES[3]).result(60)[0], model(TREES[3]).detach())
            with torch.no_grad():
                model.join.weight.add_(0.1)


def test_traces_are_trained_on():
    model = TreeRNN()
    traces = multifold.traces(multifold.plain(model, [TreeRNN.compose]), TREES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        found = multifold.Fold(backend="torch").run(model, traces)
        same(found.detach(), torch.stack([model(tree) for tree in TREES]).detach())
        optimizer.zero_grad()
        found.square().sum().backward()
        optimizer.step()


def test_a_parameter_that_an_example_changes_in_place_is_refused():
    model = TreeRNN()

    def fn(tree):
        found = model(tree)
        with torch.no_grad():
            model.join.weight.mul_(2)
        return found

    with pytest.raises((RecordError, LaunchError), match="changed in place during the run"):
        multifold.Fold(backend="torch").run(None, TREES[:2], multifold.plain(fn))


def test_folds_in_several_threads_run_models():
    found = {}

    def work(number, model):
        program = multifold.plain(model)
        for _ in range(4):
            found[number] = multifold.Fold(backend="torch").run(None, TREES, program)

    models = [MODEL, SEARCHING] * 2
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(models)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number, model in enumerate(models):
        same(found[number].detach(), torch.stack([model(tree) for tree in TREES]).detach())


def test_a_program_on_a_fold_has_found_cells():
    fold = multifold.Fold(backend="torch")
    for cells in (None, ()):
        fold.run(None, TREES, multifold.plain(TreeRNN(), cells))
        found = {op.name for op in fold.explain().ops}
        assert ("TreeRNN.compose" in found or "compose" in found) == (cells is None)
