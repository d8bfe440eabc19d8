"""What examples change in hidden ways: functions that are recorded whole find it as in the loop."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)
GAINS, TABLE = [1.0], {}


class Model(nn.Module):
    """A model whose `cell` would be recorded whole, if `change` changed nothing that it finds."""

    gains = {"own": 1.0}  # noqa: RUF012

    def __init__(self, change, cell):
        super().__init__()
        self.one, self.other, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.LeakyReLU(0.1)
        self.acts = nn.Sequential(nn.Tanh())
        self.named = nn.ModuleDict({"act": nn.Tanh()})
        self.factor, self.pair = 1.0, ([1.0], 2.0)
        self.change, self.cell = change, cell

    def forward(self, xs):
        self.change(self, len(xs))
        found = 0
        for x in xs:
            found = found + self.cell(self, x)
        return found


def activated(self, x):
    return self.other(self.act(self.one(x)))


def in_sequence(self, x):
    return self.other(self.acts(self.one(x)))


def by_name(self, x):
    return self.other(self.named["act"](self.one(x)))


def scaled(self, x):
    return self.other(torch.tanh(self.one(x))) * self.factor


def by_a_list(self, x):
    return self.other(torch.tanh(self.one(x))) * GAINS[0]


def by_a_class(self, x):
    return self.other(torch.tanh(self.one(x))) * self.gains["own"]


def by_a_tuple(self, x):
    return self.other(torch.tanh(self.one(x))) * self.pair[0][0]


def an_option(self, count):
    self.act.negative_slope = 0.3 * count


def a_method(self, count):
    self.act.forward = lambda x: x * count


def parts(self, count):
    self.acts[0] = nn.Tanh() if count % 2 else nn.ReLU()


def a_part(self, count):
    self.add_module("act", nn.Tanh() if count % 2 else nn.ReLU())


def an_entry(self, count):
    self.named.update({"act": nn.Tanh() if count % 2 else nn.ReLU()})


def more_parts(self, count):
    while len(self.acts) > count:
        self.acts.pop(-1)
    while len(self.acts) < count:
        self.acts.append(nn.ReLU())


def store(self, count):
    self.factor = float(count)


def by_callback(self, count):
    self.note.call[0]["deep"](self, count)


def by_table(self, count):
    TABLE["x"]["y"][0](self, count)


def a_list(self, count):
    GAINS[0] = float(count)


def a_class(self, count):
    self.gains["own"] = float(count)


def a_tuple(self, count):
    self.pair[0][0] = float(count)


CASES = [
    (an_option, activated),
    (a_method, activated),
    (parts, in_sequence),
    (a_part, activated),
    (an_entry, by_name),
    (more_parts, in_sequence),
    (store, scaled),
    (by_callback, scaled),
    (by_table, scaled),
    (a_list, by_a_list),
    (a_class, by_a_class),
    (a_tuple, by_a_tuple),
]


def model_of(change, cell):
    model = Model(change, cell)
    model.note = types.SimpleNamespace(call=[{"deep": store}])
    TABLE["x"] = {"y": [store]}
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_each_example_finds_what_it_has_changed(case):
    model = model_of(*case)
    run = multifold.batched(model, may_loop=False)
    for _ in range(4):
        xs = [torch.randn(1 + i % 3, 4) for i in range(20)]
        torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


class Hooked(Model):
    """One whose part has a hook that stores what the cell finds."""

    def __init__(self):
        super().__init__(lambda self, count: None, scaled)
        self.norm = nn.LayerNorm(4)
        self.norm.register_forward_hook(lambda module, given, found: store(self, len(found)))

    def forward(self, xs):
        return super().forward(self.norm(xs))


def test_what_a_hook_stores_is_found():
    model = Hooked()
    run = multifold.batched(model, may_loop=False)
    for _ in range(3):
        xs = [torch.randn(1 + i % 3, 4) for i in range(20)]
        torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


class Switched(nn.Module):
    """A model that changes its mode between the calls of a cell."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(1.0)

    def cell(self, x):
        return self.other(self.drop(self.one(x))) * 2

    def forward(self, xs):
        found = 0
        for i, x in enumerate(xs):
            self.drop.train((len(xs) + i) % 2 == 0)
            found = found + self.cell(x)
        return found


def test_a_mode_that_an_example_changes_counts():
    model = Switched()
    run = multifold.batched(model, may_loop=False)
    for _ in range(4):
        xs = [torch.randn(2 + i % 3, 4) for i in range(20)]
        torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


def nothing(self, count):
    """Store nothing."""


def noted(self, count):
    nothing(self, count)


@pytest.mark.parametrize("way", ["global", "attribute", "list"])
def test_functions_that_are_others_in_a_later_run_count(way, monkeypatch):
    change = {
        "global": noted,
        "attribute": nothing,
        "list": lambda self, count: self.calls[-1](self, count),
    }
    model = model_of(change[way], scaled)
    model.calls = [nothing]
    run = multifold.batched(model, may_loop=False)
    for turn in range(4):
        if turn == 2:
            monkeypatch.setattr(f"{__name__}.nothing", store)
            model.calls.append(store)
            model.change = store if way == "attribute" else model.change
        xs = [torch.randn(1 + i % 3, 4) for i in range(20)]
        torch.testing.assert_close(run(xs), torch.stack([model(x) for x in xs]))


def stepped(x, cache):
    return torch.tanh(LAYER(x)), cache


def twice(x):
    found = [torch.tanh(LAYER(x))]
    return found, found


LAYER = nn.Linear(4, 4)


def given_back(x):
    cache = []
    found, other = stepped(x, cache)
    other.append(found)
    return LAYER(found) * len(cache)


def one_list(x):
    first, second = twice(x)
    first.append(x)
    return LAYER(second[-1]) * len(second)


@pytest.mark.parametrize("fn", [given_back, one_list])
def test_containers_that_a_function_returns_are_as_in_the_loop(fn):
    run = multifold.batched(fn, may_loop=False)
    for _ in range(3):
        xs = [torch.randn(4) for _ in range(20)]
        torch.testing.assert_close(run(xs), torch.stack([fn(x) for x in xs]))


class Putting(nn.Module):
    """A model that stores by what its code names in hidden ways."""

    factor = 1.0

    def __init__(self, way):
        super().__init__()
        self.layer, self.way = nn.Linear(4, 4), way

    def _put(self, value):
        self.factor = value

    put = property(None, _put)
    go = functools.partialmethod(_put)

    class Within:
        def __init__(self, model, value):
            model.factor = value

    def cell(self, x):
        return torch.tanh(self.layer(x)) * self.factor

    def forward(self, x, value):
        self.factor = 1.0
        found = self.cell(x)
        self.way(self, value)
        return self.cell(found)


class Writer:
    def run(self, model, value):
        model.factor = value


WRITERS, PAIRS = [Writer()], {"first": (store, 1)}


def by_a_property(model, value):
    model.put = value


def by_a_partial_method(model, value):
    model.go(value)


def by_a_class_in_a_class(model, value):
    model.Within(model, value)


def by_an_object_in_a_list(model, value):
    WRITERS[0].run(model, value)


def by_a_function_in_a_tuple(model, value):
    PAIRS["first"][0](model, value)


def by_a_default(model, value, *, put=store):
    put(model, value)


WAYS = [
    *(by_a_property, by_a_partial_method, by_a_class_in_a_class, by_an_object_in_a_list),
    *(by_a_function_in_a_tuple, by_a_default),
]


class Settings:
    factor = 1.0


SETTINGS, TEXTS = Settings(), nn.Linear(4, 4)


def by_getattr(x):
    return torch.tanh(TEXTS(x)) * getattr(SETTINGS, "factor", 1.0)


def by_dictionary(x):
    return torch.tanh(TEXTS(x)) * SETTINGS.__dict__.get("factor", 1.0)


def test_what_is_read_by_a_text_is_found():
    def program(x, value):
        SETTINGS.factor = 1.0
        found = by_getattr(x)
        SETTINGS.factor = value
        return by_getattr(found)

    run = multifold.batched(program, may_loop=False)
    for _ in range(3):
        xs, values = [torch.randn(4) for _ in range(20)], [1.0 + i % 3 for i in range(20)]
        wanted = torch.stack([program(*pair) for pair in zip(xs, values, strict=True)])
        torch.testing.assert_close(run(xs, values), wanted)


@pytest.mark.parametrize("way", [by_getattr, by_dictionary])
def test_what_a_named_cell_reads_by_a_text_is_refused_if_it_changes(way):
    cell = multifold.cell(way)

    def program(x):
        SETTINGS.factor = 1.0
        found = cell(x)
        SETTINGS.factor = 2.0
        return cell(found)

    run = multifold.batched(program, backend="torch")
    with pytest.raises(multifold.LaunchError, match="attribute 'factor'"):
        run([torch.randn(4) for _ in range(3)])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_stored_by_hidden_ways_is_found(way):
    model = Putting(way)
    run = multifold.batched(model, may_loop=False)
    for _ in range(3):
        xs, values = [torch.randn(4) for _ in range(20)], [1.0 + i % 3 for i in range(20)]
        wanted = torch.stack([model(*pair) for pair in zip(xs, values, strict=True)])
        torch.testing.assert_close(run(xs, values), wanted)


class Gain(nn.Module):
    """A module that a cell finds by a global name."""

    def __init__(self):
        super().__init__()
        self.factor, self.act = 1.0, nn.Tanh()

    def forward(self, x):
        return self.act(x) * (self.factor if self.training else 3.0)


GAIN, LAYER, RELU = Gain(), nn.Linear(4, 4), nn.ReLU()


def gained(x):
    return GAIN(x) + x


@pytest.mark.parametrize(
    "change",
    [
        lambda: setattr(GAIN, "factor", 2.0),
        lambda: setattr(GAIN, "act", RELU),
        lambda: nn.Module.train(GAIN, False),
    ],
    ids=["attribute", "part", "mode"],
)
def test_a_module_that_a_cell_finds_and_an_example_changes_is_refused(change, monkeypatch):
    for name in ("factor", "training"):
        monkeypatch.setattr(GAIN, name, getattr(GAIN, name))
    monkeypatch.setitem(GAIN._modules, "act", GAIN.act)

    def program(x):
        found = gained(LAYER(x))
        change()
        return gained(found)

    run = multifold.batched(program, cells=[gained], backend="torch")
    with pytest.raises(multifold.LaunchError, match="uses was changed during the run"):
        run([torch.randn(4) for _ in range(3)])
