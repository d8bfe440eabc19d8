"""Random numbers with a seed: what an example draws is what the loop draws, in any minibatch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import distributions, nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
LIN = nn.Linear(4, 6)
LSTM = nn.LSTM(4, 3, num_layers=2, dropout=0.5)
ENCODER = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.5)
ATTENTION = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
XS = torch.randn(6, 4)
GENERATOR = torch.Generator()


class Noisy(nn.Module):
    """Has a generator of its own, which each example begins anew."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 6)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x):
        return torch.bernoulli(self.lin(x).sigmoid().detach(), generator=self.generator)


@multifold.cell
def dropped(x):
    return F.dropout(torch.tanh(x), 0.5) * torch.rand(6)


@multifold.op
def dropped_rows(x):
    return F.dropout(torch.tanh(x), 0.5)


def decides(x):
    y = LIN(x)
    action = torch.multinomial(y.softmax(0), 1)
    return F.dropout(y, 0.5) * (2.0 if action.item() > 2 else -1.0) + torch.rand(6)


def often(x):
    y = LIN(x)
    for _ in range(3):
        y = torch.bernoulli(y.detach().sigmoid()) + F.dropout(y, 0.3)
    return y


PROGRAMS = {
    "dropout": lambda x: F.dropout(LIN(x), 0.5),
    "dropout in place": lambda x: F.dropout(LIN(x), 0.5, inplace=True),
    "dropout of a matrix": lambda x: F.dropout2d(LIN(x)[None, :, None, None], 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(LIN(x), 0.5, True),
    "a transposed operand": lambda x: F.dropout(torch.outer(LIN(x), x).t(), 0.5),
    "a tanh of a transposed operand": lambda x: F.dropout(torch.outer(LIN(x), x).t().tanh(), 0.5),
    "a part of each row": lambda x: torch.bernoulli(torch.outer(LIN(x), x)[:, 1:3].detach().sigmoid()),
    "an expanded operand": lambda x: torch.bernoulli(LIN(x).detach().sigmoid().expand(5, 6)),
    "like a transposed one": lambda x: torch.randn_like(torch.outer(LIN(x), x).t()),
    "a transposed computed operand": lambda x: F.dropout(x.reshape(2, 2).t() + LIN(x)[:1], 0.5),
    "multinomial": lambda x: torch.multinomial(LIN(x).softmax(0), 3),
    "multinomial with replacement": lambda x: torch.multinomial(LIN(x).softmax(0), 9, True),
    "bernoulli": lambda x: torch.bernoulli(LIN(x).detach().sigmoid()),
    "bernoulli of a number": lambda x: torch.bernoulli(LIN(x).detach(), 0.3),
    "normal": lambda x: torch.normal(LIN(x), 1.0),
    "many normals": lambda x: torch.normal(LIN(x).repeat(4), 1.0),
    "poisson": lambda x: torch.poisson(LIN(x).exp()),
    "gamma": lambda x: torch._standard_gamma(LIN(x).exp()),
    "rrelu": lambda x: F.rrelu(LIN(x), training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(LIN(x), hard=True),
    "normal_": lambda x: LIN(x).normal_(),
    "uniform_ and bernoulli_": lambda x: LIN(x).clone().uniform_(0.2, 0.8).bernoulli_(0.5),
    "exponential_": lambda x: LIN(x).detach().exponential_(2.0),
    "bernoulli_ of a real tensor": lambda x: torch.empty(6).bernoulli_(LIN(x).sigmoid().detach()),
    "categorical": lambda x: distributions.Categorical(logits=LIN(x)).sample(),
    "normal distribution": lambda x: distributions.Normal(LIN(x), LIN(x).exp()).rsample(),
    "sample of a normal distribution": lambda x: distributions.Normal(LIN(x), 1.0).sample((2,)),
    "relaxed": lambda x: distributions.RelaxedBernoulli(torch.tensor(0.5), logits=LIN(x)).rsample(),
    "gumbel": lambda x: distributions.Gumbel(LIN(x), 1.0).rsample(),
    "LSTM": lambda x: LSTM(x[None] * 2 + LIN(x)[:4])[0],
    "attention": lambda x: ATTENTION(*[LIN(x).repeat(3, 1) + torch.eye(3, 6)] * 3)[0],
    "encoder": lambda x: ENCODER(LIN(x).repeat(3, 1) + torch.eye(3, 6)),
    "nn.Dropout": lambda x: nn.Dropout(0.5)(LIN(x)),
    "a cell": lambda x: dropped(LIN(x)),
    "a cell of rows": lambda x: dropped_rows(LIN(x)[None])[0],
    "a model with a generator": Noisy(),
    "decides": decides,
    "often": often,
}


def outcome(run, xs, parameters):
    """Return results, and the gradients of parameters that need one."""
    found = run(xs)
    if not found.requires_grad:
        return [found]
    grads = torch.autograd.grad(found.square().sum(), parameters, allow_unused=True)
    return [found.detach(), *[torch.zeros(()) if x is None else x for x in grads]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_a_seed_calls_draw_what_the_loop_draws(name):
    program = PROGRAMS[name]
    model = program if isinstance(program, nn.Module) else nn.ModuleList([LIN, LSTM, ENCODER, ATTENTION])
    parameters = [*model.parameters()]
    run = multifold.batched(program, seed=3, may_loop=False)
    wanted = outcome(run.loop, XS, parameters)
    before = torch.get_rng_state()
    for found in (outcome(run, XS, parameters), outcome(run, XS, parameters)):
        torch.testing.assert_close(found, wanted)
    assert torch.equal(torch.get_rng_state(), before)
    drawn = [launch for launch in run.explain().launches if "row by row, as it draws" in launch.op]
    assert all(len(launch.calls) == len(XS) for launch in drawn)
    torch.testing.assert_close(multifold.batched(program, seed=3)(XS[:2]), wanted[0][:2])


def test_explain_says_that_calls_draw_row_by_row():
    run = multifold.batched(lambda x: F.dropout(LIN(x), 0.5), seed=0, may_loop=False)
    run(XS)
    assert "dropout (row by row, as it draws and there is a seed)" in str(run.explain())


def test_without_a_seed_draws_are_batched():
    run = multifold.batched(lambda x: F.dropout(LIN(x), 0.5))
    run(XS)
    assert "row by row" not in str(run.explain())


def test_draws_after_a_seed_of_the_program_need_streams_of_their_own():
    def program(x):
        torch.manual_seed(round(100 * float(x[0])))
        return F.dropout(LIN(x), 0.5) * torch.rand(6)

    with pytest.raises(RecordError, match="dropout draws random numbers, and the program seeds"):
        multifold.batched(program)(XS)
    run = multifold.batched(program, seed=0, may_loop=False)
    torch.testing.assert_close(run(XS), run.loop(XS))


def test_a_seed_that_the_program_does_not_set_itself_is_no_reason_to_refuse_draws():
    model = Noisy()  # its __init__ seeds
    run = multifold.batched(lambda x: F.dropout(model.lin(x), 0.5))
    assert len(run(XS)) == len(XS)


def test_replayed_traces_with_a_seed_draw_what_the_loop_draws():
    run = multifold.batched(often, seed=0, may_loop=False)
    torch.testing.assert_close(run.replay(run.traces(XS)), run.loop(XS))


def test_a_trace_does_not_know_how_many_numbers_values_ask_for():
    with pytest.raises(RecordError, match="poisson draws as many random numbers as values say"):
        multifold.batched(lambda x: torch.poisson(LIN(x).exp()), seed=0).traces(XS)


@multifold.cell
def until_large(x):
    while torch.rand(()) < x.sigmoid().mean():
        x = x * 0.9
    return x


def test_a_cell_that_draws_as_often_as_values_say_is_refused():
    with pytest.raises(multifold.LaunchError, match="until_large draws as many random"):
        multifold.batched(lambda x: until_large(LIN(x)), seed=0)(XS)


@multifold.cell
def with_ones(x):
    return x + torch.ones(3, 4)


def test_with_a_seed_operands_of_one_shape_draw_in_the_order_of_their_memory():
    """A cell has met a tensor of that shape before, as a constant, where the order does not count."""
    lin = nn.Linear(4, 4)

    def program(x):
        y = with_ones(lin(torch.ones(3, 4)))
        return torch.nn.functional.dropout(x * y.sum(), 0.5)

    xs = [torch.arange(12.0).reshape(4, 3).t() + 1, torch.arange(12.0).reshape(3, 4) + 1] * 2
    run = multifold.batched(program, seed=0, may_loop=False)
    for _ in range(2):
        torch.testing.assert_close(run(xs), run.loop(xs))
