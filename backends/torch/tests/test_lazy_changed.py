"""What the code of a cell finds around it may be another thing in a later run, as may what it returns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)
FIRST, SECOND = nn.Linear(3, 3), nn.Linear(3, 3)
XS = [torch.randn(3) for _ in range(5)]


class Switch:
    """What the functions below look at, and a run may find changed."""

    on = True


class Frozen(nn.Module):
    """A cell that hands on no gradient while it is frozen."""

    def __init__(self):
        super().__init__()
        self.layer, self.frozen = nn.Linear(3, 3), True

    def forward(self, x):
        found = self.layer(x)
        return found.detach() if self.frozen else found


class Doubled(torch.autograd.Function):
    """Twice its operand, whose gradient the switch turns off."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        if Switch.on:
            ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def inner(x):
    return (x * 2).detach() if Switch.on else x * 2


def by_function(x):
    found = FIRST(x)
    return found + Doubled.apply(found)


def by_transform(x):
    found = FIRST(x)
    return found + torch.func.grad(lambda row: (inner(row) * row).sum())(found)


@multifold.cell
def by_cell(x):
    found = FIRST(x)
    return found + inner(found)


@multifold.op
def by_rows(rows):
    found = FIRST(rows)
    return found + inner(found)


def by_op(x):
    return by_rows(x[None])[0]


@pytest.mark.parametrize("fn", [by_function, by_transform, by_cell, by_op])
def test_gradients_follow_what_the_code_finds_in_each_run(fn, monkeypatch):
    run = multifold.batched(lambda x: SECOND(fn(x)), may_loop=False)
    for on in (True, False, False, True):
        monkeypatch.setattr(Switch, "on", on)
        found, wanted = run(XS), torch.stack([SECOND(fn(x)) for x in XS])
        gradients = [torch.autograd.grad(x.sum(), FIRST.weight)[0] for x in (found, wanted)]
        torch.testing.assert_close(*gradients)


def test_gradients_follow_an_attribute_that_is_set_between_runs():
    model = nn.Sequential(FIRST, Frozen(), SECOND)
    run = multifold.batched(model, cells=[Frozen], may_loop=False)
    for frozen in (False, True, False):
        model[1].frozen = frozen
        found, wanted = run(XS), torch.stack([model(x) for x in XS])
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad
        gradients = [
            torch.autograd.grad(x.sum(), FIRST.weight, allow_unused=True)[0] for x in (found, wanted)
        ]
        assert (gradients[0] is None) == (gradients[1] is None) == frozen
        if not frozen:
            torch.testing.assert_close(*gradients)


@multifold.cell
def with_none(x):
    found = FIRST(x)
    return (found, None, found.tanh()) if Switch.on else (None, found, found.tanh())


@multifold.cell
def with_names(x):
    return {"mean": FIRST(x)} if Switch.on else {"sum": FIRST(x)}


@multifold.cell
def with_sizes(x):
    return FIRST(x) if Switch.on else FIRST(x)[:2]


def mapped(x):
    return torch.func.vmap(lambda row: {"a": row} if Switch.on else {"b": row})(FIRST(x)[None])


SHAPES = {
    with_none: lambda found: [x is None for x in found],
    with_names: sorted,
    with_sizes: len,
    mapped: sorted,
}


@pytest.mark.parametrize("fn", SHAPES)
def test_results_have_the_structure_of_their_run(fn, monkeypatch):
    run = multifold.batched(lambda x: SHAPES[fn](fn(x)), join="list", may_loop=False)
    for on in (True, False, True):
        monkeypatch.setattr(Switch, "on", on)
        assert run(XS) == [SHAPES[fn](fn(x)) for x in XS]


def other_sizes(model):
    """Give a model weights of another size, in the same parameters."""
    for own, other in zip(model.parameters(), embedded(5).parameters(), strict=True):
        own.data = other.data


def embedded(size):
    return nn.Sequential(nn.Embedding(4, size), nn.Linear(size, size), nn.Tanh())


CHANGES = {
    "sizes": other_sizes,
    "dtype": nn.Module.double,
    "parameters": lambda model: model.load_state_dict(embedded(3).state_dict(), assign=True),
    "a layer": lambda model: model.__setitem__(1, nn.Linear(3, 2)),
}


@pytest.mark.parametrize("options", [{}, {"cells": [nn.Linear]}, {"keep": True}], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_weights_may_be_others_in_a_later_run(change, options):
    model = embedded(3)
    run = multifold.batched(model, may_loop=False, **options)
    words = [*torch.arange(4)]
    for _ in range(3):
        run(words)
    CHANGES[change](model)
    for _ in range(2):
        torch.testing.assert_close(run(words), torch.stack([model(x) for x in words]))
