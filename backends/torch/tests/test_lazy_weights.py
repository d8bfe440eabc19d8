"""Layers that are called with other weights than their own, as hypernetworks and inner steps do."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

import multifold
from multifold import LaunchError, MultifoldError

torch.manual_seed(0)
XS, ZS = torch.randn(5, 3), torch.randn(5, 4)
SEQUENCES = [torch.randn(2 + i % 2, 3) for i in range(5)]
LIN, HYPER = nn.Linear(3, 3), nn.Linear(4, 12)
NET = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))
PARAMETERS = [*LIN.parameters(), *HYPER.parameters(), *NET.parameters()]


class Cell(nn.Module):
    """A module that is a cell, or whose method is one."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def step(self, x):
        return torch.tanh(self.lin(x)) * self.scale

    def forward(self, x):
        return self.step(x)


CELL = Cell()


def gradients(values, parameters):
    """Return the gradients of a sum of squares; 0 for a parameter that it does not depend on."""
    found = torch.autograd.grad(sum(x.square().sum() for x in values), parameters, allow_unused=True)
    return [torch.zeros(()) if x is None else x for x in found]


def is_loop(fn, *columns, cells=(), parameters=()):
    """Compare two runs of ``fn`` with its loop, values and gradients; return the last run."""
    run = multifold.batched(fn, cells=cells, join="list")
    for _ in range(2):
        wanted = [fn(*example) for example in zip(*columns, strict=True)]
        found = run(*columns)
        torch.testing.assert_close(found, wanted)
        if parameters:
            torch.testing.assert_close(gradients(found, parameters), gradients(wanted, parameters))
    return run


def scaled(module, factor):
    return {name: x * factor for name, x in module.named_parameters()}


def hypernetwork(x, z):
    w = HYPER(z)
    return functional_call(LIN, {"weight": w[:9].view(3, 3), "bias": w[9:]}, (x,)) + LIN(x)


def inner_steps(x, z):
    weights = dict(NET.named_parameters())
    for _ in range(2):
        loss = functional_call(NET, weights, (x,)).sum() + z[0]
        weights = {name: w - 0.1 * loss * w for name, w in weights.items()}
    return functional_call(NET, weights, (x,))


def cloned(module):
    """Return a copy whose parameters are clones, as of learn2learn: gradients flow to the originals."""
    found = copy.copy(module)
    found._parameters = {name: x.clone() for name, x in module._parameters.items()}
    found._modules = {name: cloned(x) for name, x in module._modules.items()}
    return found


def clones(x, z):
    clone = cloned(NET)
    loss = clone(x).sum() * z[0]
    for part in clone.modules():
        for name, w in part._parameters.items():
            part._parameters[name] = w - 0.1 * loss * w
    return clone(x)


PROGRAMS = [
    hypernetwork,
    inner_steps,
    clones,
    lambda x, z: functional_call(NET, scaled(NET, z[0]), (x,)) + NET(x),
    lambda x, z: functional_call(NET, {"0.bias": HYPER(z)[:5]}, (x,)),
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=["hyper", "inner", "clones", "scaled", "one of them"])
def test_weights_of_each_example_are_operands(fn):
    run = is_loop(fn, XS, ZS, parameters=PARAMETERS)
    launches = len(run.explain())
    run(XS[:1], ZS[:1])
    assert launches == len(run.explain())


def test_layers_with_computed_weights_share_their_launches():
    run = is_loop(lambda x, z: functional_call(LIN, scaled(LIN, z[0]), (x,)), XS, ZS)
    assert len(run.explain()) == 1


def test_an_average_of_the_weights_is_used_where_it_is_given():
    average = {name: nn.Parameter(0.5 * x.detach()) for name, x in NET.named_parameters()}
    fn = lambda x: functional_call(NET, average, (x,)) + NET(x)  # noqa: E731
    is_loop(fn, XS, parameters=[*average.values(), *NET.parameters()])
    plain = {name: x.detach() for name, x in average.items()}
    is_loop(lambda x: functional_call(NET, plain, (x,)) + NET(x), XS, parameters=[*NET.parameters()])


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_layers_take_other_weights(make):
    rnn = make(3, 2, batch_first=True)
    own = [*rnn.parameters()]
    given = {name: nn.Parameter(x * 2) for name, x in rnn.named_parameters()}
    is_loop(lambda x, z: rnn(x)[0] + functional_call(rnn, scaled(rnn, z[0]), (x,))[0], SEQUENCES, ZS)
    is_loop(lambda x: functional_call(rnn, given, (x,))[0] + rnn(x)[0], SEQUENCES, parameters=own)
    bias = lambda z: {"bias_ih_l0": HYPER(z)[:1].expand(len(rnn.bias_ih_l0))}  # noqa: E731
    is_loop(lambda x, z: functional_call(rnn, bias(z), (x,))[0] + rnn(x)[0], SEQUENCES, ZS)


@pytest.mark.parametrize("cells", [(Cell,), (Cell.step,)], ids=["a module", "a method"])
def test_cells_take_other_weights(cells):
    own = [*CELL.parameters(), *HYPER.parameters()]
    given = {name: nn.Parameter(x * 2) for name, x in CELL.named_parameters()}
    is_loop(lambda x: functional_call(CELL, given, (x,)) + CELL(x), XS, cells=cells, parameters=own)
    bias = lambda z: {"lin.bias": HYPER(z)[:3]}  # noqa: E731
    is_loop(
        lambda x, z: functional_call(CELL, bias(z), (x,)) + CELL(x), XS, ZS, cells=cells, parameters=own
    )
    is_loop(lambda x, z: functional_call(CELL, {"scale": HYPER(z)[:3]}, (x,)), XS, ZS, cells=cells)


class Around(nn.Module):
    """Calls a cell that finds the weights around it."""

    def __init__(self):
        super().__init__()
        self.cell = CELL

    def forward(self, x):
        return around(x)


def around(x):
    return torch.relu(CELL.lin(x))


def test_cells_that_find_a_module_around_them_see_its_weights():
    given = {"cell.lin.bias": nn.Parameter(torch.ones(3))}
    module = Around()
    own = [*given.values(), *CELL.parameters()]
    is_loop(lambda x: functional_call(module, given, (x,)) + around(x), XS, cells=[around], parameters=own)
    bias = lambda z: {"cell.lin.bias": HYPER(z)[:3]}  # noqa: E731
    is_loop(lambda x, z: functional_call(module, bias(z), (x,)) + around(x), XS, ZS, cells=[around])


@contextlib.contextmanager
def average_in(give):
    """Give `LIN` other numbers, as libraries of moving averages do, and the old ones at the end."""
    kept = LIN.weight.detach().clone() if give is not by_memory else LIN.weight.data
    give(LIN.weight, kept * 0.5)
    yield
    give(LIN.weight, kept)


def by_memory(parameter, value):
    parameter.data = value


def by_data(parameter, value):
    parameter.data.copy_(value)


@torch.no_grad()
def in_place(parameter, value):
    parameter.copy_(value)


GIVING = [by_memory, by_data, in_place]


@pytest.mark.parametrize("give", GIVING)
def test_numbers_that_change_while_examples_run_are_refused(give):
    def program(x):
        with average_in(give):
            return LIN(x)

    with pytest.raises(MultifoldError, match="changed in place during the run"):
        multifold.batched(program)(XS)


FREEZE = {
    "layer": LIN.requires_grad_,
    "weight": lambda on: [x.requires_grad_(on) for x in LIN.parameters()],
    "attribute": lambda on: setattr(LIN.weight, "requires_grad", on),
}


@pytest.mark.parametrize("freeze", FREEZE.values(), ids=FREEZE)
def test_weights_that_are_frozen_and_thawed_while_examples_run_are_refused(freeze):
    def program(x):
        freeze(False)
        y = LIN(x)
        freeze(True)
        return y

    with pytest.raises(LaunchError, match="whether it needs a gradient"):
        multifold.batched(program)(XS)


@pytest.mark.parametrize("give", GIVING)
def test_numbers_may_change_between_runs(give):
    run = multifold.batched(lambda x: LIN(LIN(x)))
    for _ in range(2):
        with average_in(give):
            torch.testing.assert_close(run(XS), LIN(LIN(XS)))
        torch.testing.assert_close(run(XS), LIN(LIN(XS)))


def test_weights_may_be_loaded_and_replaced_between_runs():
    net = copy.deepcopy(NET)
    run = multifold.batched(net)
    for assign in (False, True):
        torch.testing.assert_close(run(XS), net(XS))
        net.load_state_dict({name: x * 2 for name, x in net.state_dict().items()}, assign=assign)
        torch.testing.assert_close(run(XS), net(XS))


@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_layers_are_run_as_in_the_loop(wrap):
    layer = getattr(nn.utils.parametrizations, wrap)(nn.Linear(3, 3)).eval()
    own = [*LIN.parameters(), *layer.parameters()]
    is_loop(lambda x: layer(LIN(x)) + layer(x), XS, parameters=own)

    def cached(x):
        with nn.utils.parametrize.cached():
            return layer(layer(LIN(x)))

    is_loop(cached, XS, parameters=own)


def test_a_copy_of_a_layer_has_weights_of_its_own():
    def program(x):
        other = copy.deepcopy(LIN)
        with torch.no_grad():
            other.weight.mul_(2)
        return other(LIN(x))

    is_loop(program, XS, parameters=[*LIN.parameters()])


def test_a_buffer_that_is_replaced_between_cells_is_refused():
    def program(x):
        y = CELL(x)
        CELL._buffers["scale"] = x * 2
        z = CELL(y)
        CELL._buffers["scale"] = torch.ones(3)
        return z

    with pytest.raises(LaunchError, match="replaced by another tensor"):
        multifold.batched(program, cells=[Cell])(XS)


class Started(nn.Module):
    """A recurrent layer whose first state is a parameter or a buffer."""

    def __init__(self, make, is_buffer):
        super().__init__()
        self.rnn = make(3, 2, num_layers=2)
        if is_buffer:
            self.register_buffer("first", torch.randn(2, 2))
        else:
            self.first = nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        return self.rnn(x, (self.first, self.first) if type(self.rnn) is nn.LSTM else self.first)[0]


@pytest.mark.parametrize("is_buffer", [False, True], ids=["parameter", "buffer"])
@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_the_first_state_of_a_recurrent_layer_may_be_learnt(make, is_buffer):
    model = Started(make, is_buffer)
    run = is_loop(model, SEQUENCES, parameters=[*model.parameters()])
    assert len(run.explain()) == 2  # sequences of two lengths


def test_the_input_of_a_recurrent_layer_may_be_learnt():
    model = Started(nn.GRU, is_buffer=False)
    start = nn.Parameter(torch.randn(4, 3))
    fn = lambda x: model.rnn(start, model.rnn(x)[1])[0]  # noqa: E731
    is_loop(fn, SEQUENCES, parameters=[start, *model.parameters()])


class Deciding(nn.Module):
    """Reads a value between two calls of one layer."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        y = self.lin(x)
        return self.lin(y) if y.sum() > 0 else y


def test_a_read_while_a_shared_module_has_other_weights_is_refused():
    model = Deciding()
    program = lambda x, z: functional_call(model, scaled(model, z[0]), (x,)) + model(x)  # noqa: E731
    with pytest.raises(MultifoldError, match="read while a Linear"):
        multifold.batched(program)(XS, ZS)


def test_a_copy_with_other_weights_may_read():
    model = Deciding()
    is_loop(lambda x: cloned(model)(x) + LIN(x), XS, parameters=[*model.parameters()])
    between = lambda x, z: functional_call(LIN, scaled(LIN, z[0]), (x,)).sum() > 0  # noqa: E731
    is_loop(lambda x, z: LIN(x) if between(x, z) else x, XS, ZS)
