"""Modules of one form share launches, each with its own parameters, and do what each does alone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from multifold_torch.backend import TorchBackend
from multifold_torch.together import together
from torch import nn

import multifold
from multifold import Fold


class Scaled(nn.Module):
    """A module of a user: a layer, a parameter and a buffer of its own, and two results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("mean", torch.randn(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.layer(x)) * self.scale + self.mean, x.sum(-1, keepdim=True)


MAKE: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 3),
    "no bias": lambda: nn.Linear(4, 3, bias=False),
    "chain": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4)),
    "own": Scaled,
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3)),
    "same": nn.Tanh,
    "normed": lambda: nn.BatchNorm1d(4).eval(),
}


def modules_of(name: str, number: int) -> list[nn.Module]:
    """Return modules of one form whose parameters differ."""
    return [MAKE[name]() for _ in range(number)]


def results(modules: list[Any], which: list[int], xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what the loop returns, a tensor for each part of the result."""
    found = [modules[i](x) for i, x in zip(which, xs, strict=True)]
    parts = zip(*[y if isinstance(y, tuple) else (y,) for y in found], strict=True)
    return [torch.cat(part) for part in parts]


def folded(fold: Fold, modules: list[Any], which: list[int], xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same by a fold."""
    fold.reset()
    nodes = [fold.add(modules[i], x) for i, x in zip(which, xs, strict=True)]
    parts = [node.split(2) if isinstance(modules[0], Scaled) else (node,) for node in nodes]
    return list(fold([list(part) for part in zip(*parts, strict=True)]))


def gradients(modules: list[nn.Module], found: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of all parameters."""
    parameters = [x for module in modules for x in module.parameters()]
    total = sum((y * torch.linspace(0, 1, y.numel()).view_as(y)).sum() for y in found)
    return list(torch.autograd.grad(total, parameters, allow_unused=True)) if parameters else []  # type: ignore[arg-type]


def launches(fold: Fold) -> int:
    return len(fold.schedule().launches)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize(("number", "rows"), [(12, 12), (10, 25), (2, 9), (40, 44)])
def test_modules_of_one_form_share_a_launch(name: str, number: int, rows: int) -> None:
    modules, xs = modules_of(name, number), [torch.randn(1, 4) for _ in range(rows)]
    which = torch.randint(number, (rows,)).tolist()
    fold = Fold(backend="torch")
    for _ in range(2):
        found, expected = folded(fold, modules, which, xs), results(modules, which, xs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(modules, found), gradients(modules, expected))
    assert launches(fold) == 1


@pytest.mark.parametrize("name", MAKE)
def test_modules_that_stay_as_they_are_are_put_together_once(name: str, monkeypatch: Any) -> None:
    made: list[int] = []
    monkeypatch.setattr(TorchBackend, "together", lambda _, *args: made.append(1) or together(*args))
    modules, xs, fold = modules_of(name, 20), [*torch.randn(20, 1, 4)], Fold(backend="torch")
    for _ in range(3):
        before = len(made)
        folded(fold, modules, [*range(20)], xs)
    assert before == len(made)


@pytest.mark.parametrize("name", ["linear", "own"])
@pytest.mark.parametrize("sizes", [[90] + [1] * 19, [40] * 9 + [1] * 20, [3] * 400])
def test_few_modules_may_have_most_of_the_rows(name: str, sizes: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr("multifold_torch.together.MOST_NUMBERS", 1000)  # so that many are too many
    modules = modules_of(name, len(sizes))
    which = [i for i, size in enumerate(sizes) for _ in range(size)]
    which = [which[i] for i in torch.randperm(len(which)).tolist()]
    xs, fold = [torch.randn(1, 4) for _ in which], Fold(backend="torch")
    for _ in range(2):
        found, expected = folded(fold, modules, which, xs), results(modules, which, xs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(modules, found), gradients(modules, expected))
    assert launches(fold) == 1


def test_a_large_module_has_launches_of_its_own() -> None:
    modules, fold = [nn.Linear(200, 200) for _ in range(3)], Fold(backend="torch")
    folded(fold, modules, [0, 1, 2], [torch.randn(1, 200)] * 3)
    assert launches(fold) == 3


def test_layers_of_one_model_with_many_rows_each_go_back_to_launches_of_their_own() -> None:
    modules, fold = modules_of("linear", 2), Fold(backend="torch")
    which, xs = [0, 1] * 500, [torch.randn(1, 4)] * 1000
    found = []
    for _ in range(40):
        found.append((folded(fold, modules, which, xs), launches(fold)))
    assert found[1][1] == 1 and found[-1][1] == 2
    torch.testing.assert_close(found[1][0], found[-1][0])


@pytest.mark.parametrize("name", MAKE)
def test_populations_run_in_inference_mode(name: str) -> None:
    modules, xs, fold = modules_of(name, 9), [torch.randn(1, 4) for _ in range(9)], Fold(backend="torch")
    with torch.inference_mode():
        for _ in range(2):
            found, expected = folded(fold, modules, [*range(9)], xs), results(modules, [*range(9)], xs)
            torch.testing.assert_close(found, expected)
            assert found[0].is_inference()


def test_the_first_module_of_a_form_is_recorded_as_it_is() -> None:
    layer, fold = nn.Linear(3, 7), Fold(backend="torch")
    fold([fold.add(layer, torch.ones(1, 3))])
    assert fold._graph.signatures[0].op is layer


def test_optimizers_of_each_module_train_them_as_the_loop_does() -> None:
    modules = modules_of("chain", 5)
    twins = copy.deepcopy(modules)
    xs, which, fold = [torch.randn(1, 4) for _ in range(5)], [*range(5)], Fold(backend="torch")
    ways = (modules, lambda: folded(fold, modules, which, xs)), (twins, lambda: results(twins, which, xs))
    for some, run in ways:
        groups = [{"params": x.parameters(), "lr": 0.1 / (i + 1)} for i, x in enumerate(some)]
        optimizer = torch.optim.Adam(groups)
        for _ in range(4):
            optimizer.zero_grad()
            run()[0].square().sum().backward()
            optimizer.step()
    for module, twin in zip(modules, twins, strict=True):
        torch.testing.assert_close(module.state_dict(), twin.state_dict())


def test_parameters_that_are_written_by_data_count() -> None:
    modules, xs, fold = modules_of("linear", 3), [torch.randn(1, 4)] * 3, Fold(backend="torch")
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(
                folded(fold, modules, [0, 1, 2], xs), results(modules, [0, 1, 2], xs)
            )
        modules[1].weight.data.add_(1.0)
        modules[2].weight.data = torch.randn(3, 4)


def test_parameters_may_be_shared_between_modules() -> None:
    modules = modules_of("linear", 3)
    modules[1].weight = modules[0].weight
    fold, xs = Fold(backend="torch"), [torch.randn(1, 4)] * 3
    for _ in range(2):
        found, expected = folded(fold, modules, [0, 1, 2], xs), results(modules, [0, 1, 2], xs)
        parameters = [modules[0].weight, modules[2].weight]
        ours, theirs = (torch.autograd.grad(y[0].square().sum(), parameters) for y in (found, expected))
        torch.testing.assert_close(ours, theirs)


def change_hook(module: Any) -> None:
    module.register_forward_hook(lambda module, args, result: 2 * result)


def change_forward(module: Any) -> None:
    module.forward = lambda x: 3 * x[:, :3]


def change_parameter(module: Any) -> None:
    module.weight = nn.Parameter(torch.randn(3, 4))


def change_bias(module: Any) -> None:
    module.bias = None


def change_training(module: Any) -> None:
    module.requires_grad_(False)


@pytest.mark.parametrize(
    "change", [change_hook, change_forward, change_parameter, change_bias, change_training]
)
def test_a_module_may_change_between_steps(change: Callable[[Any], None]) -> None:
    modules, xs, fold = modules_of("linear", 4), [torch.randn(1, 4)] * 4, Fold(backend="torch")
    folded(fold, modules, [0, 1, 2, 3], xs)
    change(modules[2])
    for _ in range(2):
        torch.testing.assert_close(
            folded(fold, modules, [0, 1, 2, 3], xs), results(modules, [0, 1, 2, 3], xs)
        )


@pytest.mark.parametrize("whole", [True, False])
def test_layers_in_a_module_may_be_replaced(whole: bool) -> None:
    modules: list[Any] = modules_of("chain", 9) if whole else modules_of("own", 9)
    xs, which, fold = [torch.randn(1, 4)] * 9, [*range(9)], Fold(backend="torch")
    folded(fold, modules, which, xs)
    if whole:
        modules[3][0] = nn.Linear(4, 8, bias=False)
    else:
        modules[3].layer = nn.Linear(4, 4, bias=False)
    for _ in range(2):
        torch.testing.assert_close(folded(fold, modules, which, xs), results(modules, which, xs))


def test_a_module_of_another_size_is_refused_once_and_then_recorded_anew() -> None:
    modules, xs, fold = modules_of("linear", 3), [torch.randn(1, 4)] * 3, Fold(backend="torch")
    folded(fold, modules, [0, 1, 2], xs)
    modules[1].weight, modules[1].bias = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(5))
    with pytest.raises(multifold.LaunchError, match="do not fit together"):
        folded(fold, modules, [0, 1, 2], xs)
    fold.reset()
    nodes = [fold.add(module, x) for module, x in zip(modules, xs, strict=True)]
    found = fold([[node] for node in nodes])
    torch.testing.assert_close(found, [module(x) for module, x in zip(modules, xs, strict=True)])


def test_dropout_has_launches_of_its_own_while_it_trains() -> None:
    modules = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(4)]
    xs, fold = [torch.randn(1, 4)] * 4, Fold(backend="torch")
    for step in range(6):
        for module in modules:
            module.train(step < 2 or step == 5)
        found = folded(fold, modules, [0, 1, 2, 3], xs)
        if not modules[0].training:
            torch.testing.assert_close(found, results(modules, [0, 1, 2, 3], xs))
        assert launches(fold) == (4, 4, 2, 1, 1, 1)[step]
    for module in modules:  # which draw module by module: no trial may take that for mixed rows
        module.train()
    folded(Fold(backend="torch"), modules, [0, 1, 2, 0, 3, 3, 1], [torch.randn(1, 4) for _ in range(7)])


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + getattr(torch, "rand" + "_like")(x)


class Noisy(nn.Linear):
    """A module that draws random numbers, which its own code does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return noisy(super().forward(x))


def test_modules_that_turn_out_to_draw_random_numbers_have_launches_of_their_own() -> None:
    modules, fold, which = [Noisy(4, 3) for _ in range(12)], Fold(backend="torch"), [*range(12), 3, 4, 0]
    for _ in range(4):
        found = folded(fold, modules, which, [torch.ones(1, 4)] * 15)
        drawn = found[0] - torch.cat([nn.Linear.forward(modules[i], torch.ones(1, 4)) for i in which])
        assert drawn.min() >= 0 and len(drawn.unique()) == drawn.numel()
    assert launches(fold) == 12


class Jittering(Noisy):
    """Another such module."""


def test_few_modules_that_draw_random_numbers_part_when_a_trial_shows_it() -> None:
    modules, fold, which = [Jittering(4, 3) for _ in range(3)], Fold(backend="torch"), [0, 1, 2, 0, 2]
    with pytest.warns(UserWarning, match="draw random numbers in turn"):
        folded(fold, modules, which, [torch.randn(1, 4) for _ in which])
    for _ in range(3):
        folded(fold, modules, which, [torch.randn(1, 4) for _ in which])
    assert launches(fold) == 3


class Slotted(nn.Linear):
    """A module with an attribute that is none of its variables."""

    __slots__ = ("factor",)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


@pytest.mark.parametrize("make", [lambda: nn.GRU(4, 3, batch_first=True), lambda: Slotted(4, 3)])
def test_what_a_module_hides_is_its_own(make: Callable[[], Any]) -> None:
    modules, fold, x = [make() for _ in range(9)], Fold(backend="torch"), torch.randn(1, 2, 4)
    for i, module in enumerate(modules):
        if isinstance(module, Slotted):
            module.factor = i
    for _ in range(2):
        fold.reset()
        nodes = [fold.add(module, x) for module in modules]
        outputs = [node[0] if isinstance(modules[0], nn.GRU) else node for node in nodes]
        expected = [module(x) for module in modules]
        expected = [y[0] if isinstance(y, tuple) else y for y in expected]
        torch.testing.assert_close(fold([[node] for node in outputs]), expected)


class Moving(nn.Module):
    """A module that counts its rows in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return x * self.weight


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_buffers_that_modules_write_are_their_own(mode: Any) -> None:
    modules, fold = [Moving() for _ in range(9)], Fold(backend="torch")
    with mode():
        for _ in range(3):
            folded(fold, modules, [*range(9)], [torch.randn(1, 4)] * 9)
    assert [int(module.count) for module in modules] == [3] * 9


class Mixing(nn.Linear):
    """A module that mixes its rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y - y.mean(0)


def test_modules_that_mix_their_rows_are_refused() -> None:
    modules, fold = [Mixing(4, 3) for _ in range(2)], Fold(backend="torch")
    fold.add(modules[0], torch.randn(1, 4))
    with pytest.raises(multifold.LaunchError, match=r"op 'Mixing'.* mixes its rows"):
        folded(fold, modules, [0, 1, 0, 1, 1, 0], [torch.randn(1, 4) for _ in range(6)])


def test_no_population_keeps_a_module_alive() -> None:
    modules, fold = modules_of("linear", 3), Fold(backend="torch")
    folded(fold, modules, [0, 1, 2], [torch.randn(1, 4)] * 3)
    refs = [*map(weakref.ref, modules)]
    fold.reset()
    del modules
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_modules_live_until_their_calls_have_run() -> None:
    fold, kept = Fold(backend="torch"), modules_of("linear", 2)
    folded(fold, kept, [0, 1], [torch.ones(1, 4)] * 2)
    fold.reset()
    torch.manual_seed(0)
    nodes = [fold.add(nn.Linear(4, 3), torch.ones(1, 4)) for _ in range(3)]
    gc.collect()
    torch.manual_seed(0)
    expected = torch.cat([nn.Linear(4, 3)(torch.ones(1, 4)) for _ in range(3)])
    torch.testing.assert_close(fold([nodes])[0], expected)


@pytest.mark.parametrize("cse", [True, False])
def test_calls_of_two_modules_are_never_merged(cse: bool) -> None:
    modules, fold, x = modules_of("linear", 2), Fold(backend="torch", cse=cse), torch.ones(1, 4)
    for _ in range(2):
        fold.reset()
        nodes = [fold.add(module, x) for module in (*modules, *modules)]
        torch.testing.assert_close(
            fold([nodes])[0], torch.cat([module(x) for module in (*modules, *modules)])
        )
    assert len(fold) == (2 if cse else 4)


def test_shared_operands_leave_a_module_its_own_launches() -> None:
    modules, fold, x = [nn.Bilinear(4, 4, 3) for _ in range(3)], Fold(backend="torch"), torch.ones(1, 4)
    for _ in range(2):
        fold.reset()
        nodes = [fold.add(module, x, multifold.shared(x)) for module in modules]
        torch.testing.assert_close(fold([nodes])[0], torch.cat([module(x, x) for module in modules]))


def test_runs_of_functions_rounds_and_checks_know_populations() -> None:
    modules, fold = modules_of("linear", 6), Fold(backend="torch")
    back = [nn.Linear(3, 4) for _ in range(6)]

    def example(fold: Any, i: int) -> Any:
        x = torch.full((1, 4), float(i))
        for _ in range(i % 3):
            x = fold.add(back[i], fold.add(modules[i], x))
        return fold.add(modules[i], x)

    async def waiting(fold: Any, i: int) -> Any:
        x = fold.add(modules[i], torch.full((1, 4), float(i)))
        while (await fold.value(x)).sum() < -1e9:
            x = fold.add(modules[i], x)
        return fold.add(back[i], x)

    for _ in range(2):
        expected = multifold.Unfold(backend="torch").run(None, range(6), example)
        torch.testing.assert_close(fold.run(None, range(6), example), expected)
        expected = multifold.Unfold(backend="torch").run(None, range(6), waiting)
        torch.testing.assert_close(fold.run(None, range(6), waiting), expected)
    fold.reset()
    fold.check(None, [[example(fold, i) for i in range(6)]])


def test_a_fold_with_populations_can_be_copied_and_pickled() -> None:
    modules, fold = modules_of("linear", 3), Fold(backend="torch")
    folded(fold, modules, [0, 1, 2], [torch.ones(1, 4)] * 3)
    fold.reset()
    nodes = [fold.add(module, torch.ones(1, 4)) for module in modules]
    other, others = pickle.loads(pickle.dumps((fold, nodes)))
    torch.testing.assert_close(other([others]), fold([nodes]))


def test_networks_of_several_widths_and_depths_share_the_launches_of_each_layer() -> None:
    def network(i: int) -> list[nn.Module]:
        width = (3, 4)[i % 2]
        return [layer for _ in range(1 + i % 3) for layer in (nn.Linear(width, width), nn.Tanh())]

    networks, fold = [network(i) for i in range(12)], Fold(backend="torch")
    xs = [torch.randn(1, network[0].in_features) for network in networks]  # type: ignore[arg-type]
    expected = [nn.Sequential(*network)(x) for network, x in zip(networks, xs, strict=True)]
    divisions = []
    for _ in range(5):
        fold.reset()
        nodes = list(xs)
        for i, network in enumerate(networks):
            for layer in network:
                nodes[i] = fold.add(layer, nodes[i])
        found = fold([nodes[::2], nodes[1::2]])
        torch.testing.assert_close(found, [torch.cat(expected[::2]), torch.cat(expected[1::2])])
        divisions.append(fold._last[0].notes.divisions)
    # Where rows differ in shape shows when they are met, and is remembered with the plan.
    assert divisions[0] > 0 == divisions[-1]
    assert len(fold.explain().launches) == 2 * 3 * 2


def test_transforms_and_traces_of_pytorch_go_through_populations() -> None:
    modules, fold = modules_of("linear", 4), Fold(backend="torch")

    def ours(x: torch.Tensor) -> torch.Tensor:
        return folded(fold, modules, [0, 1, 2, 3], [x * (i + 1) for i in range(4)])[0]

    def loop(x: torch.Tensor) -> torch.Tensor:
        return results(modules, [0, 1, 2, 3], [x * (i + 1) for i in range(4)])[0]

    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ours(x)

    x = torch.randn(1, 4)
    for _ in range(3):
        torch.testing.assert_close(ours(x), loop(x))
    for transform in (
        lambda fn: torch.func.jvp(fn, (x,), (x + 1,)),
        lambda fn: torch.func.vmap(lambda row: fn(row[None]))(torch.randn(3, 4).fill_(0.5)),
        lambda fn: torch.func.jacrev(fn)(x),
        lambda fn: torch.autograd.functional.hessian(lambda x: fn(x).square().sum(), x),
    ):
        torch.testing.assert_close(transform(ours), transform(loop))
    exported = torch.export.export(Whole(), (x,)).module()
    torch.testing.assert_close(exported(x + 2), loop(x + 2))


def test_explain_says_of_how_many_modules_an_op_is() -> None:
    def pair(width: int) -> list[nn.Module]:
        return [nn.Linear(width, 3) for _ in range(2)]

    narrow, wide, fold = pair(11), pair(12), Fold(backend="torch")
    for _ in range(2):
        fold.reset()
        nodes = [fold.add(module, torch.ones(1, 11)) for module in narrow]
        nodes += [fold.add(module, torch.ones(1, 12)) for module in wide]
        fold([nodes])
    assert "Linear of 2 modules" in str(fold.explain().why(nodes[0], nodes[2]))


def test_a_hook_that_comes_after_a_modules_tables_were_put_back_is_called():
    """A trial keeps the state of modules and puts it back, with dictionaries of its own."""
    modules = [nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)) for _ in range(3)]
    xs = [torch.randn(1, 3) for _ in modules]
    fold = multifold.Fold(backend="torch")

    def run():
        return fold.run(None, list(zip(modules, xs, strict=True)), lambda fold, given: fold.add(*given))

    with torch.no_grad():
        run(), run()
        for module in modules:
            for name in ("_forward_hooks", "_parameters", "_modules"):
                vars(module)[name] = vars(module)[name].copy()
        modules[1].register_forward_hook(lambda module, given, found: found * 2)
        modules[2][0].weight = nn.Parameter(torch.ones(3, 3))
        for _ in range(2):
            torch.testing.assert_close(run(), torch.cat([f(x) for f, x in zip(modules, xs, strict=True)]))


def with_a_buffer() -> nn.Module:
    chain = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    chain[0].register_buffer("importance", torch.randn(4, 4))
    return chain


def with_weights_in_another_order() -> nn.Module:
    norm = nn.LayerNorm(4)
    weight = nn.init.normal_(norm.weight)
    del norm.weight
    norm.weight = weight
    return norm


def with_one_layer_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Sequential(layer, nn.Tanh()), nn.Sequential(layer, nn.Tanh()))


def with_a_forward_of_its_own() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = torch.tanh  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize(
    "make",
    [with_a_buffer, with_weights_in_another_order, with_one_layer_twice, with_a_forward_of_its_own],
)
def test_chains_that_hold_other_tensors_than_their_layers_take_are_right(
    make: Callable[[], nn.Module],
) -> None:
    modules, xs, fold = [make() for _ in range(10)], torch.randn(10, 1, 4), Fold(backend="torch")
    for _ in range(2):
        found, expected = folded(fold, modules, [*range(10)], [*xs]), results(modules, [*range(10)], [*xs])
        torch.testing.assert_close(found, expected)
        if make is not with_a_forward_of_its_own:
            torch.testing.assert_close(gradients(modules, found), gradients(modules, expected))


def test_layers_make_one_dtype_of_two_as_each_does_alone() -> None:
    modules, xs = [nn.LayerNorm(4) for _ in range(10)], torch.randn(10, 1, 4).bfloat16()
    found = folded(Fold(backend="torch"), modules, [*range(10)], [*xs])
    torch.testing.assert_close(found, results(modules, [*range(10)], [*xs]))


def tick(module: Any) -> None:
    module.calls = module.calls + 1


class Ticking(nn.Module):
    """Counts its calls by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tick(self)
        return self.layer(x) * self.calls


class Logging(nn.Module):
    """Keeps a list of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        return self.layer(x)


@pytest.mark.parametrize("kind", [Ticking, Logging])
def test_what_modules_write_stays_with_each_module(kind: type[nn.Module]) -> None:
    modules, xs, fold = [kind() for _ in range(10)], [*torch.randn(10, 1, 4)], Fold(backend="torch")
    twins = copy.deepcopy(modules)
    for _ in range(4):
        found, expected = folded(fold, modules, [*range(10)], xs), results(twins, [*range(10)], xs)
        torch.testing.assert_close(found, expected)
    assert [x.calls for x in modules] == [x.calls for x in twins]


class Weighted(nn.Module):
    """A module with one parameter; subclasses do more with it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.weight


CHOSEN: list[nn.Module] = []


class Choosing(Weighted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self in CHOSEN else x * self.weight


class Whole(Weighted):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


def biased() -> nn.Module:
    norm = nn.LayerNorm(4)
    norm.weight = None  # type: ignore[assignment]
    nn.init.constant_(norm.bias, 5.0)
    return norm


@pytest.mark.parametrize("make", [Choosing, Whole, biased])
def test_modules_that_a_copy_cannot_stand_for_are_right(make: Callable[[], nn.Module]) -> None:
    modules, xs = [make() for _ in range(12)], [*torch.randn(12, 1, 4)]
    CHOSEN[:] = modules[3:4]
    fold = Fold(backend="torch", trials=False)
    for _ in range(2):
        torch.testing.assert_close(
            folded(fold, modules, [*range(12)], xs), results(modules, [*range(12)], xs)
        )


class Watching(nn.Module):
    """A module that looks at its parameters, and at what they hold."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.how = how
        if how == "tied":
            self.other.weight = self.one.weight
        elif how == "marked":
            self.one.weight.scale = 3  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(self.one(x)) * getattr(self.one.weight, "scale", 1)
        if self.how == "frozen":
            return x * (2 if self.one.weight.requires_grad else 3)
        return x + sum(p.sum() for p in self.parameters()) if self.how == "tied" else x


@pytest.mark.parametrize("how", ["tied", "marked", "frozen"])
def test_modules_that_look_at_their_parameters_are_right(how: str) -> None:
    modules, xs = [Watching(how) for _ in range(20)], [*torch.randn(20, 1, 4)]
    for module in modules[::2] if how == "frozen" else ():
        module.one.weight.requires_grad_(False)
    found, expected = folded(Fold(), modules, [*range(20)], xs), results(modules, [*range(20)], xs)
    torch.testing.assert_close(found, expected)


def test_a_padding_index_gets_no_gradient() -> None:
    modules, rows = [nn.Embedding(7, 4, padding_idx=0) for _ in range(12)], torch.randint(3, (12, 1, 5))
    folded(Fold(backend="torch"), modules, [*range(12)], [*rows])[0].sum().backward()
    assert all((x.weight.grad[0] == 0).all() for x in modules)  # type: ignore[index]


def test_layers_that_are_replaced_for_all_are_called(monkeypatch: Any) -> None:
    modules, xs, fold = modules_of("chain", 9), [*torch.randn(9, 1, 4)], Fold()
    folded(fold, modules, [*range(9)], xs)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 5 * F.linear(x, self.weight))
    torch.testing.assert_close(folded(fold, modules, [*range(9)], xs), results(modules, [*range(9)], xs))


@pytest.mark.parametrize("part", [None, 1])
def test_a_layer_may_become_one_of_another_class(part: int | None) -> None:
    modules = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(9)]
    modules = modules if part else [nn.Tanh() for _ in range(9)]
    xs, fold = [*torch.randn(9, 1, 4)], Fold(backend="torch")
    for _ in range(3):
        folded(fold, modules, [*range(9)], xs)
    for module in modules[1:]:
        (module[part] if part else module).__class__ = nn.Sigmoid
    torch.testing.assert_close(folded(fold, modules, [*range(9)], xs), results(modules, [*range(9)], xs))


def test_layers_of_a_chain_may_change_places() -> None:
    chains = [nn.Sequential() for _ in range(10)]
    for chain in chains:
        chain.layer, chain.act = nn.Linear(4, 4), nn.Tanh()
    xs, fold = [*torch.randn(10, 1, 4)], Fold(backend="torch")
    folded(fold, chains, [*range(10)], xs)
    layer = chains[3].layer
    del chains[3].layer
    chains[3].layer = layer  # now it comes last
    torch.testing.assert_close(folded(fold, chains, [*range(10)], xs), results(chains, [*range(10)], xs))


def test_nothing_among_results_stays_nothing() -> None:
    class WithNone(Weighted):
        def forward(self, x: torch.Tensor) -> Any:
            return x * self.weight, None

    modules, fold = [WithNone() for _ in range(3)], Fold(backend="torch")
    found = fold([fold.add(module, torch.ones(1, 4))[0] for module in modules])
    torch.testing.assert_close(found, torch.stack([module.weight for module in modules]))


def test_embeddings_keep_sparse_gradients() -> None:
    modules, fold = [nn.Embedding(5, 4, sparse=True) for _ in range(12)], Fold(backend="torch")
    fold([fold.add(module, torch.tensor([1])) for module in modules]).sum().backward()
    assert all(module.weight.grad.is_sparse for module in modules)
