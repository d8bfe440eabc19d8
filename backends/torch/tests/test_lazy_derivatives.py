"""Derivatives in a program and in its cells: `torch.func`, `torch.autograd`, and compiled functions."""

# ruff: noqa: PLW0108 - programs call transforms as people do

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
from torch.utils.checkpoint import checkpoint

import multifold
from multifold import MultifoldError, RecordError

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
LSTM = nn.LSTM(4, 4, batch_first=True)
CELL = nn.GRUCell(4, 4)
XS = list(torch.randn(5, 4))
PARAMETERS = [*NET.parameters(), *LSTM.parameters(), *CELL.parameters()]


def energy(x, weight=1.0):
    return (NET(x) * weight).square().sum()


def with_more(x):
    y = NET(x)
    return y.square().sum(), {"y": y, "twice": (y * 2,)}


def pair(x):
    y = NET(x)
    return y, 2 * y


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = NET

    def of(self, x, y):
        return (self.net(x) * y).sum()

    def force(self, x):
        return -grad(self.of)(x, x)


class Spring:
    """An object that is no module."""

    stiffness = 2.0

    def of(self, x):
        return self.stiffness * NET(x).square().sum()


FORCE = grad(energy)  # made before any program runs
MODEL, SPRING = Energy(), Spring()


def leaps(x):
    h, p = NET(x), torch.ones(4)
    for _ in range(3):
        p = p - 0.1 * FORCE(h)
        h = h + 0.1 * p
    return h


def twice_inside(x):
    h = NET(x)

    def inner(y):
        def deeper(z):
            return (z * y * h).sum()

        return grad(deeper)(y).square().sum()

    return grad(inner)(x)


def calls_itself(x):
    def power(y, n):
        return y.square().sum() if n == 0 else power(NET(y), n - 1)

    return grad(power)(x, 2)


def inner_steps(x):
    """Two steps of gradient descent on the weights."""
    names, values = zip(*NET.named_parameters(), strict=True)

    def loss(weights, y):
        return functional_call(NET, weights, (y,)).square().mean()

    weights = dict(zip(names, values, strict=True))
    for _ in range(2):
        slopes = grad(loss)(weights, x)
        weights = {name: w - 0.1 * slopes[name] for name, w in weights.items()}
    return grad_and_value(loss)(weights, x)[1]


def in_modes(x):
    with torch.no_grad():
        found = FORCE(NET(x))
    return found + FORCE(x)


def pulled(x):
    (y, z), pull, more = vjp(lambda a, b: ((NET(a) * b, b), a * 3), x, NET(x), has_aux=True)
    first, second = pull((y, z))
    return first + second + more


def forces_and_steps(x):
    slopes, (value, more) = grad_and_value(with_more, has_aux=True)(NET(x))
    return slopes * value + more["y"] + more["twice"][0]


# Each with its launches: a layer of NET is one, and so is a transform.
PROGRAMS = {
    "grad": (grad(energy), 1),
    "of a lambda": (lambda x: grad(lambda y: NET(y).sum())(x), 1),
    "of a closure": (lambda x: (lambda h: grad(lambda y: (NET(y) * h).sum())(x))(NET(x)), 4),
    "of a default": (lambda x: grad(lambda y, h=NET(x): (NET(y) * h).sum())(x), 4),  # noqa: B008
    "of a method": (lambda x: grad(SPRING.of)(NET(x)), 4),
    "of a module's method": (lambda x: MODEL.force(NET(x)), 5),
    "of a partial": (lambda x: grad(functools.partial(MODEL.of, y=NET(x)))(x), 4),
    "of a keyword": (lambda x: grad(energy)(x, weight=NET(x)), 4),
    "of two arguments": (lambda x: torch.stack(grad(MODEL.of, argnums=(0, 1))(x, NET(x))), 5),
    "of a dictionary": (lambda x: grad(lambda d: (d["b"] * NET(d["a"])).sum())({"b": x, "a": NET(x)}), 4),
    "of a function of PyTorch": (lambda x: grad(torch.sum)(NET(x)), 4),
    "with more": (forces_and_steps, 9),
    "made before": (lambda x: FORCE(NET(x)), 4),
    "leaps": (leaps, None),
    "twice inside": (twice_inside, 4),
    "calls itself": (calls_itself, 1),
    "vjp": (lambda x: vjp(NET, NET(x))[1](x)[0], 4),
    "pulled": (pulled, None),
    "jvp": (lambda x: jvp(NET, (NET(x),), (x,))[1], 4),
    "jacrev": (lambda x: jacrev(NET)(NET(x)), None),
    "jacrev in parts": (lambda x: jacrev(NET, chunk_size=2)(NET(x)), None),
    "jacfwd": (lambda x: jacfwd(pair, has_aux=True)(NET(x)), None),
    "hessian": (lambda x: hessian(energy)(NET(x)), None),
    "laplacian": (lambda x: jacfwd(FORCE)(x).diagonal(), None),
    "vmap": (lambda x: vmap(NET)(torch.stack([x, NET(x)])), 5),
    "vmap of axes": (lambda x: vmap(torch.mul, (0, None), 1)(torch.stack([x, NET(x)]), x), 5),
    "inner steps": (inner_steps, None),
    "in modes": (in_modes, 6),
    "of real tensors": (lambda x: grad(lambda y: y.square().sum())(x) + NET(x), 5),
    "of an LSTM": (lambda x: grad(lambda y: LSTM(y.expand(1, 3, 4))[0].sum())(x), 1),
    "of a GRU": (lambda x: grad(lambda y: CELL(y).square().sum())(x), 1),
    "that reads": (lambda x: grad(lambda y: NET(y).sum() * y.max().item())(x), 1),
    "that branches": (lambda x: grad(lambda y: (NET(y) if y.sum() > 0 else NET(-y)).sum())(x), 1),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_transform_is_one_call_of_all_examples(program, gradients, as_loop):
    fn, launches = PROGRAMS[program]
    with torch.set_grad_enabled(gradients):
        run = as_loop(fn, XS, parameters=PARAMETERS)
    assert launches is None or len(run.explain()) == launches
    assert len(run.explain()) <= 25


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cell_may_use_transforms(program, as_loop):
    run = as_loop(multifold.cell(PROGRAMS[program][0]), XS, parameters=PARAMETERS)
    assert len(run.explain()) == 1


def test_inputs_get_gradients_through_a_transform(as_loop):
    xs = [x.clone().requires_grad_() for x in XS]
    as_loop(lambda x: grad(energy)(x), xs, parameters=[*xs, *PARAMETERS])


def test_functions_that_bind_other_numbers_are_called_apart(as_loop):
    run = as_loop(lambda x, n: grad(lambda y: (NET(y) * n).sum())(x), XS, [1, 2, 1, 2, 1])
    assert len(run.explain()) == 2


def test_a_transform_of_what_no_example_changes_runs_at_once(as_loop):
    run = as_loop(lambda x: NET(x) * grad(lambda w: w.square().sum())(NET[2].bias), XS)
    assert len(run.explain()) == 4


def test_vmap_of_real_tensors_runs_at_once():
    def program(x):
        rows = vmap(lambda i: x * i)(torch.arange(1, 4))
        assert type(rows) is torch.Tensor
        return NET(rows).sum(0)

    torch.testing.assert_close(multifold.batched(program)(XS), torch.stack([program(x) for x in XS]))


def test_inference_mode_and_blocks_know_transforms(as_loop):
    with torch.inference_mode():
        as_loop(lambda x: FORCE(NET(x)), XS)
    with multifold.pending() as block:
        found = [FORCE(NET(x)) for x in XS]
    assert len(block.explain()) == 4
    torch.testing.assert_close(torch.stack([*found]), torch.stack([FORCE(NET(x)) for x in XS]))


def test_a_pullback_may_be_called_after_the_run():
    found = multifold.batched(lambda x: vjp(NET, NET(x)), join="list")(XS)
    for x, (_, pull) in zip(XS, found, strict=True):
        torch.testing.assert_close(pull(x), vjp(NET, NET(x))[1](x))


def test_traces_know_transforms():
    run = multifold.batched(lambda x: grad(energy)(x) + x)
    torch.testing.assert_close(run.replay(run.traces(XS)), torch.stack([grad(energy)(x) + x for x in XS]))


def counted(x):
    n = 0

    def count(y):
        nonlocal n
        n += 1
        return NET(y).sum()

    return grad(count)(x) * n


def kept(x):
    found = []

    def keep(y):
        found.append(NET(y))
        return found[-1].sum()

    return grad(keep)(x) * len(found)


def changed(x):
    y = NET(x) * 1
    _, pull = vjp(torch.sin, y)
    y += 1
    return pull(x)[0]


def dual(x):
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.make_dual(NET(x), x)


def leaf(x):
    y = NET(x).detach().requires_grad_()
    return torch.autograd.grad(energy(y), y)[0]


def looped(x):
    return torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), NET(x)))[1]


REFUSED = {
    "counted": (counted, "count assigns to n"),
    "kept": (kept, "grad of keep changes a list"),
    "changed": (changed, "changed in place after torch.func.vjp"),
    "draws": (lambda x: vjp(lambda y: y * torch.rand(4), NET(x))[1](x)[0], "would draw differently"),
    "linearize": (lambda x: torch.func.linearize(NET, NET(x))[1](x), "Hint: make a cell"),
    "functionalize": (lambda x: torch.func.functionalize(NET)(NET(x)), "Hint: make a cell"),
    "dual numbers": (dual, "Hint: make a cell"),
    "autograd": (lambda x: torch.autograd.grad(NET(x).sum(), NET[0].weight), "Hint: make a cell"),
    "a leaf": (leaf, "Hint: make a cell"),
    "jacobian": (lambda x: torch.autograd.functional.jacobian(NET, NET(x)), "Hint: make a cell"),
    "while_loop": (looped, "Hint: write it as a loop"),
}


@pytest.mark.parametrize("program", REFUSED)
def test_what_cannot_be_recorded_says_what_to_do(program):
    fn, message = REFUSED[program]
    with pytest.raises(RecordError, match=message):
        multifold.batched(fn)(XS)


SCALE = torch.ones(4)


def test_what_a_function_finds_around_it_must_stay():
    def rescaled(x):
        found = grad(lambda y: (NET(y) * SCALE).sum())(x)
        SCALE.mul_(2)
        return found

    with pytest.raises(MultifoldError, match="was changed during the run"):
        multifold.batched(rescaled)(XS)


class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = NET

    def of(self, x):
        x, more = x.detach().requires_grad_(), torch.is_grad_enabled()
        with torch.enable_grad():
            return torch.autograd.grad(energy(x), x, create_graph=more)[0]


FORCES = Forces()


def slopes_of_weights(x):
    more = torch.is_grad_enabled()
    with torch.enable_grad():
        slopes = torch.autograd.grad(energy(x.detach()), [*NET.parameters()], create_graph=more)
    return x * sum([slope.sum() for slope in slopes])


def unused(x):
    with torch.enable_grad():
        value = (x.detach() * NET[0].bias[:4]).sum()
        (slope,) = torch.autograd.grad(value, NET[2].weight, allow_unused=True)
    return x if slope is None else slope


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("fn", [FORCES.of, slopes_of_weights, unused])
def test_autograd_in_a_cell_runs_row_by_row(fn, gradients, as_loop):
    cell = multifold.cell(fn)
    with torch.set_grad_enabled(gradients):
        run = as_loop(lambda x: cell(NET(x)), XS, parameters=PARAMETERS)
    assert len(run.explain()) == 4
    assert "row by row" in str(run.explain())


def test_the_program_itself_may_be_a_cell(as_loop):
    run = as_loop(FORCES.of, XS, parameters=PARAMETERS, cells=[Forces.of])
    assert len(run.explain()) == 1


def test_a_cell_uses_transforms_inside_of_hooks_of_saved_tensors():
    """In the loop PyTorch refuses that, and so it does here."""
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with keep, pytest.raises(RuntimeError, match="saved tensor hooks"):
        multifold.batched(lambda x: FORCE(NET(x)))(XS)


@torch.jit.script
def branching(x: torch.Tensor) -> torch.Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return x - 1


def test_a_scripted_function_runs_row_by_row(as_loop):
    run = as_loop(lambda x: branching(NET(x)) + branching(x), XS, parameters=PARAMETERS)
    assert len(run.explain()) == 5 and "row by row" in str(run.explain())


def test_a_compiled_function_runs_as_it_was_written(as_loop):
    @torch.compile(backend="eager")
    def twice(x):
        for _ in range(2):
            x = torch.tanh(x) * 2 + x[0]
        return x - 1 if x.sum() > 0 else x

    run = as_loop(lambda x: twice(NET(x)), XS, parameters=PARAMETERS)
    assert run.explain().rounds


def test_the_condition_of_cond_is_read(as_loop):
    def program(x):
        return torch.cond(NET(x).sum() > 0, lambda y: NET(y), lambda y: y - 1, (NET(x),))

    as_loop(program, XS, parameters=PARAMETERS)


def test_inside_of_a_transform_a_batched_program_runs_as_a_loop():
    run, weights = multifold.batched(NET), dict(NET.named_parameters())

    def loss(weights, call):
        return sum([x.square().sum() for x in call(weights)])

    slopes = grad(loss)(weights, lambda own: functional_call(run, {f"module.{k}": own[k] for k in own}, XS))
    wanted = grad(loss)(weights, lambda own: [functional_call(NET, own, x) for x in XS])
    torch.testing.assert_close(slopes, wanted)


def test_a_reentrant_checkpoint_keeps_the_gradients(as_loop):
    first, second = nn.Linear(4, 3), nn.Linear(3, 3)

    def fn(x):
        h = first(x)
        return checkpoint(second, h, use_reentrant=True) + h

    as_loop(fn, [*torch.randn(4, 4)], parameters=[*first.parameters(), *second.parameters()])


class Times(torch.autograd.Function):
    """A linear layer without a bias, as one writes it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, slope):
        return None, slope[:, None] * ctx.saved_tensors[0]


class OfComputed(nn.Module):
    """A model that begins with a function of autograd, which gets computed tensors."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second, self.how = nn.Linear(4, 3), nn.Linear(3, 3), how

    def forward(self, x):
        if self.how == "checkpoint":
            return self.second(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))
        h = Times.apply(x, self.first.weight)
        return h * 2 if self.how == "read" and h.sum() > 0 else h * 3


@pytest.mark.parametrize("how", ["function", "read", "checkpoint"])
def test_what_a_function_computes_of_computed_tensors_keeps_its_gradients(as_loop, how):
    model = OfComputed(how)
    run = multifold.batched(model, join="list", may_loop=False)
    for _ in range(3):
        as_loop(model, [*torch.randn(6, 4)], parameters=[*model.parameters()], run=run)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_of_what_needs_no_gradient_has_none(as_loop):
    layer = nn.Linear(4, 4)

    def fn(x):
        return checkpoint(layer, x, use_reentrant=True) * 2 + layer(x)

    as_loop(fn, [*torch.randn(4, 4)], parameters=[*layer.parameters()])


class Called(torch.autograd.Function):
    """Calls a function that holds weights."""

    @staticmethod
    def forward(ctx, x, function):
        return function(x)

    @staticmethod
    def backward(ctx, slope):
        return slope, None


def test_a_trace_sees_new_weights_inside_of_a_function_of_autograd():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleList([first, second])
    model.forward = lambda x: Called.apply(x, first) + second(x)
    run, xs = multifold.batched(model, keep=True), [*torch.randn(3, 4)]
    for _ in range(3):
        torch.testing.assert_close(run(xs), run.loop(xs))
        with torch.no_grad():
            first.weight.mul_(2)


class Again(torch.autograd.Function):
    """Computes a layer again in the backward pass, which adds to the gradients of its parameters."""

    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = ctx.layer(x)
        torch.autograd.backward(y, grad)
        return None, x.grad


def test_a_run_adds_to_no_gradient_before_its_backward_pass(as_loop):
    first, second = nn.Linear(4, 3), nn.Linear(3, 3)
    xs = [*torch.randn(4, 4)]
    run = multifold.batched(lambda x: Again.apply(second, first(x)), join="list", may_loop=False)
    second.weight.grad = torch.zeros(3, 3)
    run(xs)
    assert second.bias.grad is None and not second.weight.grad.any()
    parameters = [*first.parameters(), *second.parameters()]
    as_loop(lambda x: Again.apply(second, first(x)), xs, parameters=parameters, run=run)
