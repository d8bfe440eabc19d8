"""Cells whose functions have rules for rows run as a sequence of these, without vmap."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)
XS = [*torch.randn(6, 4)]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates, self.inner = nn.Linear(8, 8), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0, 1.0]))
        self.factor, self.seen = 1.0, {}

    def step(self, x, y):
        one, other = self.gates(torch.cat([x, y])).chunk(2)
        return torch.sigmoid(one) * self.factor + other.tanh() * self.mask

    def constants(self, x, y):
        return x + torch.arange(4.0) * self.weight.softmax(0), torch.ones(2), self.weight

    def entries(self, x, y):
        first, *rest = torch.stack([x, y])
        return first[1:] * rest[0][0], x[-1]

    def modes(self, x, y):
        with torch.no_grad():
            scale = self.inner(x)
        return scale * x + y.detach()

    def in_place(self, x, y):
        z = x * y
        z += 1
        return z.relu_()

    def structure(self, x, y):
        return {"sum": (x + y, [x]), "none": self.inner(y)}

    def embedded(self, x, y):
        return nn.functional.embedding(x.argmax(0), self.gates.weight) + y.sum(0)

    def caches(self, x, y):
        if "mask" not in self.seen:
            self.seen["mask"] = torch.ones(4)
        return x * self.seen["mask"] + y

    def draws(self, x, y):
        return x * y + torch.rand(4)


@pytest.fixture
def model():
    return Gated()


@pytest.fixture
def vmaps(monkeypatch):
    """Return a list that gets an entry for each call of vmap."""
    calls, vmap = [], torch.func.vmap
    monkeypatch.setattr(
        torch.func, "vmap", lambda *args, **kwargs: calls.append(1) or vmap(*args, **kwargs)
    )
    return calls


@pytest.mark.parametrize(
    "name", ["step", "constants", "entries", "modes", "in_place", "structure", "embedded"]
)
def test_a_cell_runs_as_a_sequence_of_functions_on_rows(name, model, vmaps, as_loop):
    cell = multifold.cell(getattr(model, name))
    as_loop(lambda x: cell(model.inner(x), x), XS, parameters=[*model.parameters()])
    assert not vmaps


@pytest.mark.parametrize("name", ["caches", "draws"])
def test_a_cell_that_keeps_or_draws_runs_by_vmap(name, model, vmaps):
    cell = multifold.cell(getattr(model, name))
    run = multifold.batched(lambda x: cell(model.inner(x), x), backend="torch")
    found = run([XS[0]] * 6)
    assert vmaps and len({*found[:, 0].tolist()}) == (6 if name == "draws" else 1)


def test_a_sequence_is_made_anew_in_each_run(model, as_loop):
    cell = multifold.cell(model.step)
    run = multifold.batched(lambda x: cell(model.inner(x), x), join="list", backend="torch")
    for factor in (1.0, 2.0):
        model.factor = factor
        with torch.no_grad():
            model.mask += 1
        as_loop(lambda x: model.step(model.inner(x), x), XS, parameters=[*model.parameters()], run=run)


def test_a_class_of_modules_runs_as_a_sequence(vmaps, as_loop):
    class Whole(Gated):
        def forward(self, x):
            return self.step(x, self.inner(x))

    whole = multifold.cell(Whole)()
    as_loop(lambda x: whole(x * 2), XS, parameters=[*whole.parameters()])
    assert not vmaps


def test_traces_are_replayed_as_sequences_and_see_new_weights(model, vmaps):
    def fn(x):
        return model.step(model.inner(x), x)

    run = multifold.batched(model_of(model, fn), cells=[Gated.step])
    made = run.traces(XS)
    for _ in range(2):
        with torch.no_grad():
            model.inner.weight += 1
        model.factor += 1
        torch.testing.assert_close(run.replay(made), torch.stack([fn(x) for x in XS]))
    assert not vmaps


def model_of(model, fn):
    """Return a module that has the parameters of ``model`` and calls ``fn``."""

    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return fn(x)

    return Program()
