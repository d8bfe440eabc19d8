"""Cells that draw, count or keep: as the loop does, or refused by the name of what they change."""

from __future__ import annotations

import contextvars
import itertools
import random
import types
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
XS = torch.randn(5, 3)
GENERATOR = np.random.default_rng(0)
LIN = nn.Linear(3, 3)
calls = 0


class Model(nn.Module):
    """Has cells that keep something."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.n = 0
        self.kept = self.mask = self.first = None
        self.log = []
        self.total = torch.zeros(3)

    def counts(self, y):
        self.n += 1
        return y * self.n

    def keeps(self, y):
        self.kept = torch.softmax(y, 0)
        return y * self.kept

    def appends(self, y):
        self.log.append(y)
        return y * 2

    def adds(self, y):
        self.total += y.detach()
        return y * 2

    def initialises(self, y):
        if self.first is None:
            self.first = y.detach().abs().max()
        return y / self.first

    def caches(self, y):
        if self.mask is None:
            self.mask = torch.ones_like(y).cumsum(0) - 1
        return y * self.mask

    def sizes(self, y):
        self.size = tuple(y.shape)
        return y * self.size[0]

    def moves(self, y):
        self.seen += 1
        return y * self.seen

    def forward(self, x):
        return self.cell(self.lin(x))


def of_globals(self, y):
    global calls  # noqa: PLW0603 - what is tested
    calls += 1
    return y * calls


REFUSED = {
    "counts": (Model.counts, "attribute 'n' of Model"),
    "keeps": (Model.keeps, "attribute 'kept' of Model"),
    "appends": (Model.appends, "a list"),
    "adds in place": (Model.adds, "attribute 'total' of Model"),
    "keeps what the first example has": (Model.initialises, "attribute 'first' of Model"),
    "a global": (of_globals, "the variable 'calls'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cell_that_keeps_is_refused(name, monkeypatch):
    fn, what = REFUSED[name]
    monkeypatch.setattr(Model, "cell", multifold.cell(fn), raising=False)
    model = Model()
    with pytest.raises(RecordError, match=f"changes {what}"):
        multifold.batched(model)(XS)
    assert (model.n, model.kept, model.log, model.first) == (0, None, [], None) and not model.total.any()


@pytest.mark.parametrize("name", ["caches", "sizes", "moves"])
def test_a_cell_may_cache_and_move_buffers(name, monkeypatch):
    monkeypatch.setattr(Model, "cell", multifold.cell(getattr(Model, name)), raising=False)
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(multifold.batched(model)(XS), torch.stack([twin(x) for x in XS]))
    torch.testing.assert_close(model.seen, twin.seen)
    assert model.mask is None or torch.equal(model.mask, twin.mask)


class Module(nn.Module):
    """A cell as a class, whose code changes a global."""

    def forward(self, y):
        global calls  # noqa: PLW0603 - what is tested
        calls += 1
        return y * calls


class Counts:
    n = 0
    cache: ClassVar[dict[int, torch.Tensor]] = {}


class Slotted:
    __slots__ = ("n",)


class Log(list):
    """A container of the user."""


LOG, SLOTTED, SETTINGS, SEEN = (
    Log(),
    Slotted(),
    types.ModuleType("settings"),
    contextvars.ContextVar("seen"),
)
SLOTTED.n = SETTINGS.n = 0


def of_a_class(y):
    Counts.n += 1
    return y * Counts.n


def of_a_slot(y):
    SLOTTED.n += 1
    return y * SLOTTED.n


def of_a_module(y):
    SETTINGS.n += 1
    return y * SETTINGS.n


def of_a_container(y):
    LOG.append(1)
    return y * len(LOG)


def of_a_context(y):
    SEEN.set(SEEN.get(0) + 1)
    return y * SEEN.get()


KEPT = {
    of_a_class: "attribute 'n' of Counts",
    of_a_slot: "attribute 'n' of Slotted",
    of_a_module: "attribute 'n' of settings",
    of_a_container: "the variable 'LOG'",
    of_a_context: "the context variable 'seen'",
}


@pytest.mark.parametrize("fn", KEPT, ids=lambda fn: fn.__name__)
def test_a_cell_that_counts_where_nothing_is_put_back_is_refused(fn):
    cell = multifold.cell(fn)
    with pytest.raises(RecordError, match=f"changes {KEPT[fn]}"):
        multifold.batched(lambda x: cell(x * 2), backend="torch")(XS)


def test_a_cell_may_cache_in_a_class(as_loop):
    @multifold.cell
    def masked(y):
        if len(y) not in Counts.cache:
            Counts.cache[len(y)] = torch.ones_like(y).cumsum(0)
        return y * Counts.cache[len(y)]

    as_loop(lambda x: masked(x * 2), XS)


ITERATORS = {"count": itertools.count(), "list": iter([*range(9)]), "generator": (n for n in range(9))}


@pytest.mark.parametrize("name", ITERATORS)
def test_a_cell_that_draws_from_an_iterator_is_refused(name):
    numbers = ITERATORS[name]
    cell = multifold.cell(lambda x: x * next(numbers))
    with pytest.raises(RecordError, match="changes a variable of a function around it"):
        multifold.batched(lambda x: cell(x * 2), backend="torch")(XS)


def test_a_module_that_counts_in_a_global_is_refused():
    lin, module = nn.Linear(3, 3), Module()
    with pytest.raises(RecordError, match="the variable 'calls'"):
        multifold.batched(lambda x: module(lin(x)), cells=[Module])(XS)


class Counted(torch.autograd.Function):
    n: ClassVar[int] = 0

    @staticmethod
    def forward(ctx, x):
        Counted.n += 1
        return x * Counted.n


def test_an_autograd_function_that_counts_on_its_class_is_refused():
    with pytest.raises(RecordError, match="Counted changes attribute 'n'"):
        multifold.batched(lambda x: Counted.apply(LIN(x)))(XS)


def test_a_cell_that_counts_in_a_variable_around_it_is_refused():
    n, log = 0, {}

    @multifold.cell
    def counting(y):
        nonlocal n
        n += 1
        return y * n

    @multifold.cell
    def logging(y):
        log[len(log)] = y
        return y * 2

    with pytest.raises(RecordError, match="counting changes a variable of a function around it"):
        multifold.batched(counting)(XS)
    with pytest.raises(RecordError, match="logging changes a dict"):
        multifold.batched(logging)(XS)
    assert (n, log) == (0, {})


DRAWS = {
    "random": random.random,
    "numpy": np.random.rand,
    "a generator": GENERATOR.random,
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_cell_that_draws_of_python_draws_for_each_example(name):
    draw, lin = DRAWS[name], nn.Linear(3, 3)

    @multifold.cell
    def noisy(y):
        return y + draw()

    run = multifold.batched(lambda x: noisy(lin(x)))
    with pytest.warns(UserWarning, match="noisy draws random numbers of Python or NumPy"):
        found = run(torch.ones(5, 3))
    assert len(found[:, 0].unique()) == 5
    assert "row by row, as it draws random numbers of Python" in str(run.explain())
    with pytest.raises(RecordError, match="noisy draws random numbers of Python or NumPy"):
        multifold.batched(lambda x: noisy(lin(x)), seed=0)(XS)


class Settings:
    """A class whose attribute programs change."""

    factor = 1.0


CONFIG = types.SimpleNamespace(factor=1.0)
STACK: list[float] = []
FACTOR = contextvars.ContextVar("FACTOR", default=1.0)
NUMBER = 1.0


def factor():
    return Settings.factor * CONFIG.factor * (STACK[-1] if STACK else 1.0) * FACTOR.get() * NUMBER


@multifold.cell
def scaled(x):
    return torch.tanh(x) * factor()


@multifold.cell
class Scaled(nn.Module):
    """A module as a cell, which calls a function that finds what programs change."""

    def forward(self, x):
        return torch.tanh(x) * factor()


def gradient(x):
    return torch.func.grad(lambda x: scaled(x).sum())(x)


def set_number(x):
    global NUMBER  # noqa: PLW0603 - what programs do
    NUMBER = x


CHANGES = {
    "an attribute of a class": lambda x: setattr(Settings, "factor", x),
    "an attribute of an object": lambda x: setattr(CONFIG, "factor", x),
    "a list": lambda x: STACK.append(x) if x != 1.0 else STACK.pop(),
    "a context variable": lambda x: FACTOR.set(x),  # noqa: PLW0108 - code names what it calls
    "a global": set_number,
}


@pytest.mark.parametrize("cell", [scaled, Scaled(), gradient], ids=["function", "module", "transform"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_functions_that_a_cell_calls_find_must_stay_as_it_is(name, cell):
    change, linear = CHANGES[name], nn.Linear(3, 3)

    def program(x):
        x = linear(x)
        change(2.0)
        y = cell(x)
        change(1.0)
        return y

    with pytest.raises(multifold.MultifoldError, match=r"What the cell .* uses was changed"):
        multifold.batched(program)(XS)
    set_back()


def test_what_nobody_changes_is_not_looked_at_by_a_cell():
    linear = nn.Linear(3, 3)
    expected = torch.stack([torch.tanh(linear(x)) for x in XS])
    torch.testing.assert_close(multifold.batched(lambda x: scaled(linear(x)))(XS), expected)


def set_back():
    Settings.factor = CONFIG.factor = 1.0
    STACK.clear()
    FACTOR.set(1.0)
    set_number(1.0)
