"""Modules of one form share launches where they are named on a model, and where traces hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

import multifold
from multifold import Fold
from multifold._engine.record.population import Population

Examples = list[tuple[int, Any]]


class Nets(nn.Module):
    """Twelve modules of one form, and a layer for all."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(12))
        self.last = nn.Linear(4, 3)


class Scaled(nn.Linear):
    """A layer whose operands are nested, with a keyword."""

    def forward(self, given: dict[str, torch.Tensor], *, by: float = 1.0) -> torch.Tensor:  # type: ignore[override]
        return super().forward(given["x"]) * given["scale"] * by


def chain(fold: Any, example: tuple[int, Any]) -> Any:
    """Call module ``i`` of the model one to three times, and the last layer."""
    i, x = example
    for _ in range(1 + i % 3):
        x = fold.add(f"nets.{i}", x)
    return fold.add("last", x)


def looped(model: Nets, examples: Examples) -> torch.Tensor:
    found = []
    for i, x in examples:
        y = torch.as_tensor(x)
        for _ in range(1 + i % 3):
            y = model.nets[i](y)
        found.append(model.last(y)[0])
    return torch.stack(found)


def by_merging(fold: Fold, model: Any, examples: Examples) -> Any:
    return fold.run(model, multifold.merge(multifold.traces(chain, examples)))


def by_apply(fold: Fold, model: Any, examples: Examples) -> Any:
    fold.reset()
    return fold.apply(model, [[chain(fold, example) for example in examples]])[0]


WAYS: dict[str, Callable[[Fold, Any, Examples], Any]] = {
    "run": lambda fold, model, examples: fold.run(model, examples, chain),
    "apply": by_apply,
    "traces": lambda fold, model, examples: fold.run(model, multifold.traces(chain, examples)),
    "merged": by_merging,
}


def examples_of(rows: int) -> Examples:
    return [(i % 12, x) for i, x in enumerate(torch.randn(rows, 1, 4).numpy())]


def gradients(model: nn.Module, found: torch.Tensor) -> Any:
    weights = torch.linspace(0, 1, found.numel()).view_as(found)
    return torch.autograd.grad((found * weights).sum(), list(model.parameters()))


def launches(fold: Fold) -> int:
    return len(fold.explain().launches)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("rows", [12, 31])
def test_modules_that_are_named_share_launches(how: str, rows: int) -> None:
    model, fold, examples = Nets(), Fold(backend="torch"), examples_of(rows)
    for _ in range(2):
        found, expected = WAYS[how](fold, model, examples), looped(model, examples)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(model, found), gradients(model, expected))
        assert launches(fold) == 4  # three of the modules, one of the last layer


@pytest.mark.parametrize("how", WAYS)
def test_names_lead_to_the_modules_of_each_model(how: str) -> None:
    models, fold, examples = [Nets(), Nets()], Fold(backend="torch"), examples_of(12)
    for model in (*models, *models):
        torch.testing.assert_close(WAYS[how](fold, model, examples), looped(model, examples))
    models[0].nets[5] = nn.Sequential(nn.Linear(4, 4), nn.ReLU())  # of another form
    torch.testing.assert_close(WAYS[how](fold, models[0], examples), looped(models[0], examples))


def test_modules_in_traces_share_launches() -> None:
    model, fold, x = Nets(), Fold(backend="torch"), np.ones((1, 4), np.float32)
    traces = multifold.traces(lambda fold, net: fold.add(net, x), model.nets)
    for _ in range(2):
        expected = torch.cat([net(torch.from_numpy(x)) for net in model.nets])
        torch.testing.assert_close(fold.run(None, traces), expected)
    assert launches(fold) == 1


@pytest.mark.parametrize("by", [1.0, 3.0])
def test_named_modules_may_have_nested_operands_and_keywords(by: float) -> None:
    model = {f"scaled {i}": Scaled(4, 3) for i in range(9)}
    given = [{"x": torch.randn(1, 4), "scale": torch.randn(1, 3)} for _ in model]
    fold = Fold(backend="torch")
    nodes = [fold.add(name, x, by=by) for name, x in zip(model, given, strict=True)]
    expected = torch.cat([net(x, by=by) for net, x in zip(model.values(), given, strict=True)])
    torch.testing.assert_close(fold.apply(model, [nodes])[0], expected)
    assert launches(fold) == 1


def test_named_modules_with_shared_operands_keep_launches_of_their_own() -> None:
    model, x = [nn.Bilinear(4, 4, 3) for _ in range(3)], torch.randn(1, 4)
    fold = Fold(backend="torch")
    nodes = [fold.add(str(i), x, multifold.shared(x)) for i in range(3)]
    torch.testing.assert_close(fold.apply(model, [nodes])[0], torch.cat([net(x, x) for net in model]))
    assert launches(fold) == 3


def test_named_modules_wait_for_values() -> None:
    model, fold, examples = Nets(), Fold(backend="torch"), examples_of(12)

    async def waiting(fold: Any, example: tuple[int, Any]) -> Any:
        node = fold.add(f"nets.{example[0]}", example[1])
        return fold.add("last", node if (await fold.value(node)).sum() < 9 else example[1])

    expected = torch.cat([model.last(model.nets[i](torch.as_tensor(x))) for i, x in examples])
    torch.testing.assert_close(fold.run(model, examples, waiting), expected)


class Heads(nn.Module):
    """A model that makes a module where one is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(6))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("task"):
            return nn.Sequential(self.heads[int(name[4:])])
        return super().__getattr__(name)


def by_name(fold: Any, example: tuple[Any, Any]) -> Any:
    """Record a call of what the model has under a name, or of a module."""
    op, x = example
    return fold.add(op if isinstance(op, nn.Module) else str(op), x)


def alone(model: Any, examples: Any) -> torch.Tensor:
    """Return what the eager twin returns for one example after the other."""
    return torch.cat([multifold.Unfold(model).run(None, [example], by_name) for example in examples])


def test_modules_that_are_made_where_they_are_looked_up_live_until_they_have_run() -> None:
    model, fold = Heads(), Fold(backend="torch")
    examples = [(f"task{i}", torch.randn(1, 4)) for i in range(6)]
    for _ in range(3):
        torch.testing.assert_close(fold.run(model, examples, by_name), alone(model, examples))


@pytest.mark.parametrize("index", [7, -1])
def test_an_index_out_of_range_takes_no_row_of_another_module(index: int) -> None:
    nets, fold = nn.ModuleList(nn.Embedding(5, 4) for _ in range(10)), Fold(backend="torch")
    examples = [(i % 10, i % 5) for i in range(20)]
    torch.testing.assert_close(fold.run(nets, examples, by_name), alone(nets, examples))
    examples[3] = (3, index)
    with pytest.raises(multifold.LaunchError, match="index out of range") as caught:
        fold.run(nets, examples, by_name)
    assert any("example 3" in text for text in caught.value.__notes__)


class Looking(nn.Module):
    """Looks entries up in a table of its own, of which the first gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, self.table, padding_idx=0)


def test_a_padding_index_of_a_function_gets_no_gradient() -> None:
    nets = nn.ModuleList(Looking() for _ in range(10))
    Fold(backend="torch").run(nets, [(i, 0) for i in range(10)], by_name).sum().backward()
    assert all(not net.table.grad.any() for net in nets)


class Halved(nn.Linear):
    """Mixes the rows that it gets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y - y.mean(0) / 2


def test_modules_that_have_had_one_row_each_are_tried_when_they_have_more() -> None:
    nets, fold = nn.ModuleList(Halved(4, 4) for _ in range(8)), Fold(backend="torch")
    for _ in range(3):
        examples = [(i, torch.randn(1, 4)) for i in range(8)]
        torch.testing.assert_close(fold.run(nets, examples, by_name), alone(nets, examples))
    with pytest.raises(multifold.LaunchError, match="mixes its rows"):
        fold.run(nets, [(i % 8, torch.randn(1, 4)) for i in range(16)], by_name)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("named", [True, False])
def test_a_module_that_comes_to_mix_rows_gets_them_one_by_one(number: int, named: bool) -> None:
    nets = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)).eval()
    fold = Fold(backend="torch")
    examples = [(i if named else nets[i], torch.randn(1, 4)) for i in (0, 1, 0, 1)]
    fold.run(nets, examples, by_name)
    nets.train()
    examples = [(i if named else nets[i], torch.randn(1, 4)) for i in (0, 0, 1, 1)][: 2 * number]
    with pytest.raises(multifold.LaunchError, match=r"more than 1 value per channel|mixes its rows"):
        fold.run(nets, examples, by_name)


class Initial(nn.Module):
    """A state of its own, whatever the example."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.randn(1, 4))

    def forward(self) -> torch.Tensor:
        return self.state


@pytest.mark.parametrize("named", [True, False])
def test_modules_without_operands_have_launches_of_their_own(named: bool) -> None:
    nets, fold = nn.ModuleList(Initial() for _ in range(3)), Fold(backend="torch")
    for _ in range(2):
        found = fold.run(nets, range(6), lambda fold, i: fold.add(str(i % 3) if named else nets[i % 3]))
        torch.testing.assert_close(found, torch.cat([nets[i % 3].state for i in range(6)]))


class Chosen(nn.Module):
    """Returns numbers of the dtype of its operand, beside a number of its own of another one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("number", torch.tensor(number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, self.number)


def test_integers_keep_the_dtype_that_they_have_alone() -> None:
    nets, x = nn.ModuleList(map(Chosen, range(10))), torch.tensor([[0, 200]], dtype=torch.uint8)
    examples = [(i, x) for i in range(10)]
    found, expected = Fold(backend="torch").run(nets, examples, by_name), alone(nets, examples)
    assert found.dtype == torch.uint8
    torch.testing.assert_close(found, expected)


def test_hooks_that_see_modules_being_made_leave_launches_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(Population, "one_by_one", None)
    modules, fold = [nn.Linear(4, 3) for _ in range(3)], Fold(backend="torch")
    handle = register_module_module_registration_hook(lambda module, name, part: None)
    try:
        fold([[fold.add(module, torch.ones(1, 4)) for module in modules]])
    finally:
        handle.remove()
