"""Found cells: straight functions are recorded whole from the second example on, and nothing else is."""

from __future__ import annotations

import datetime
import functools
import itertools
import random
import subprocess
import sys
import threading

import optree
import pytest
import torch
from straight_programs import StraightSide
from torch import nn

import multifold
from multifold.lazy.cells import CELLS
from multifold.lazy.found import APPLIED, NEVER_CALLED
from multifold.lazy.straight import crooked

torch.manual_seed(0)
TREES = [(1, (2, 3)), ((4, 5), (6, (7, 1))), 2, ((1, 2), (3, 4)), (((1, 2), 3), 4), (5, 6)]
LOG, MOVES, FACTORS = [], itertools.count(), [1.0, 2.0]


def swish(x):
    return x * torch.sigmoid(x)


class Net(nn.Module):
    """A recursive model, whose parts are straight."""

    def __init__(self):
        super().__init__()
        self.embed, self.joins = nn.Embedding(10, 8), nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 8)])
        self.factor, self.calls, self.kept = 1.0, 0, {}

    def leaf(self, word):
        return self.embed(word) * self.factor

    def join(self, x, y):
        z = torch.cat([x, y])
        for layer in self.joins:
            z = swish(layer(z))
        return z + x

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(torch.tensor(tree))
        return self.join(self.node(tree[0]), self.node(tree[1]))

    def forward(self, tree):
        return self.node(tree)


# Methods that are not straight.


def counts(self, x, y):
    self.calls += 1
    return x + y * self.calls


def logs(self, x, y):
    LOG.append(1)
    return x + y


def moves(self, x, y):
    return x + y * next(MOVES)


def draws(self, x, y):
    return x + y + random.random()


def draws_of_torch(self, x, y):
    return x * y + torch.rand(8)


def reads(self, x, y):
    return x + y if x.sum() > 0 else x - y


def reads_a_parameter(self, x, y):
    return x + y * float(self.joins[0].bias[0])


def by_default(self, x, y, seen=[]):  # noqa: B006 - that is what is tested
    seen.append(1)
    return x + y * len(seen)


def caught(self, x, y):
    try:
        return x + y
    except RuntimeError:
        return x


def caches(self, x, y):
    self.kept["mask"] = torch.ones(8)
    return x * self.kept["mask"] + y


def logs_by_an_attribute(self, x, y):
    self.note(3)
    return x + y


def asks_for_the_time(self, x, y):
    return x + y * datetime.datetime.now().timestamp()


def counted(self):
    LOG.append(2)
    return 2.0


def of_property(self, x, y):
    return x + y * self.counted


def returns_its_argument(self, x, y):
    return x


def changes_its_argument(self, x, y):
    x += y
    return x * 2


def changes_one_of_a_list(self, x, y):
    torch._foreach_add_([x.new_ones(8), self.joins[1].bias.detach()], 0.0)
    return x + y


def asks_who_it_is(self, x, y):
    return x if x is y else x + y


def loops(self, x, y):
    for factor in FACTORS:
        y = y + x * factor
    return y


def loops_over_a_set(self, x, y):
    for factor in {2.0, len(LOG) + 3.0}:
        y = y * factor + x
    return y


def found_in(run):
    """Return the names of the functions that the last run has recorded whole, and how often."""
    cells = run.run.function.found.cells.values()
    return {cell.name.rpartition(".")[2]: cell.calls for cell in cells if cell.calls}


def looped(net, trees=TREES):
    """Return what the loop returns, and the gradients."""
    net.zero_grad()
    found = [net(tree) for tree in trees]
    sum([x.square().sum() for x in found]).backward()
    return found, [x.grad for x in net.parameters() if x.grad is not None]


def assert_as_loop(run, net, trees=TREES):
    """Compare a run with the loop in values and gradients; what both leave on the net is put back."""
    start, before = (net.calls, dict(net.kept), [*LOG]), torch.get_rng_state()
    wanted = looped(net, trees)
    left, (net.calls, net.kept, LOG[:]) = (net.calls, dict(net.kept), [*LOG]), start
    torch.set_rng_state(before)
    net.zero_grad()
    found = run(trees)
    sum([x.square().sum() for x in found]).backward()
    torch.testing.assert_close([*found], wanted[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        [x.grad for x in net.parameters() if x.grad is not None], wanted[1], rtol=1e-3, atol=1e-3
    )
    assert (net.calls, net.kept.keys(), LOG) == (left[0], left[1].keys(), left[2])


def test_straight_functions_are_recorded_whole_from_the_second_example_on():
    net = Net()
    run = multifold.batched(net)
    assert_as_loop(run, net)
    assert found_in(run) == {"leaf": 16, "join": 11}
    assert_as_loop(run, net)
    assert found_in(run) == {"leaf": 19, "join": 13}
    assert vars(Net)["leaf"].__name__ == "leaf" and not hasattr(Net.leaf, "multifold_found")
    assert len(run.explain().rounds[0].calls) == 32
    assert "Net.join" in str(run.explain().found) and "Net.join" in str(run.explain())


class Looping(Net):
    def join(self, x, y):
        return torch.tanh(torch.stack([x * factor + y for factor in FACTORS]).sum(0)) + x


def test_explain_says_why_a_function_is_not_recorded_whole():
    run = multifold.batched(Looping())
    for _ in range(2):
        run(TREES)
    (text,) = run.explain().crooked
    assert text.startswith("Looping.join") and "loops over other things than arguments" in text
    assert text in str(run.explain(all=True))


class Inline(Net):
    """A model that computes in a branch of an expression in the function that calls itself."""

    def node(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        x, y = map(self.node, tree)
        return torch.tanh(x * 2) + y if tree else x


def test_explain_says_what_to_do_with_a_function_that_calls_itself():
    run = multifold.batched(Inline())
    for _ in range(2):
        run(TREES)
    (text,) = run.explain().crooked
    assert text.startswith("Inline.node") and text.endswith("it calls itself")
    assert "move what it computes with tensors into a method" in str(run.explain(all=True))
    assert "Inline.node records" in str(run.explain()) and "torch.tanh(x * 2) + y" in str(run.explain())


def test_without_ops_no_cell_is_found():
    net = Net()
    run = multifold.batched(net, cells=())
    for _ in range(3):
        run(TREES)
    assert not run.run.function.found.cells


CROOKED = {
    "counts": "stores to 'calls'",
    "logs": "could be recorded",
    "logs_by_an_attribute": "names 'note'",
    "asks_for_the_time": "calls datetime.now",
    "moves": "names 'next'",
    "draws": "names 'random'",
    "draws_of_torch": "draws random numbers",
    "reads": "reads a value",
    "reads_a_parameter": "reads a value",
    "by_default": "could be recorded",
    "caught": "try or with statement",
    "caches": "changes what something holds",
    "of_property": "calls list.append",
    "returns_its_argument": "returns an argument",
    "changes_its_argument": "changes an argument",
    "changes_one_of_a_list": "changes a tensor in place",
    "asks_who_it_is": "asks whether two things are one",
    "loops": "loops over other things",
    "loops_over_a_set": "makes a set",
}


@pytest.mark.parametrize("name", CROOKED)
def test_what_is_not_straight_is_not_found(name):
    method = globals()[name]
    more = {"counted": property(counted)} if name == "of_property" else {}
    kind = type("Kind", (Net,), {"__module__": __name__, "join": method, **more})
    method.__qualname__ = "Kind.join"
    globals()["Kind"] = kind
    net = kind()
    run = multifold.batched(net, join="list")
    for _ in range(4):
        net.note = functools.partial(LOG.append)
        if name in (
            "asks_for_the_time",
            "draws",
            "draws_of_torch",
            "moves",
            "by_default",
        ):  # they differ each time
            run(TREES)
        else:
            assert_as_loop(run, net)
    assert "join" not in found_in(run)
    assert CROOKED[name] in run.run.function.found.cells[method].reason
    assert all(not text.startswith("Kind.join ") for text in run.explain().found)


def test_a_found_cell_sees_what_changes_between_runs(monkeypatch):
    net = Net()
    run = multifold.batched(net)
    for factor in (1.0, 2.0, 3.0):
        net.factor = factor
        with torch.no_grad():
            net.joins[0].weight.mul_(0.9)
        assert_as_loop(run, net)
    monkeypatch.setattr(Net, "join", lambda self, x, y: x - y)
    assert_as_loop(run, net)
    monkeypatch.undo()
    net.joins = net.joins[:1].append(nn.Linear(16, 8, bias=False))
    assert_as_loop(run, net)
    assert found_in(run)["join"] == 13


def test_a_hook_that_counts_is_called_for_each_example():
    net, seen = Net(), []
    run = multifold.batched(net)
    run(TREES)
    run(TREES)
    net.joins[0].register_forward_hook(lambda *args: seen.append(1))
    run(TREES)
    assert len(seen) == 13 and "join" not in found_in(run)


def test_a_method_that_the_program_replaces_is_called(monkeypatch):
    class Replacing(Net):
        def forward(self, tree):
            if tree == 2:
                Net.leaf = leaf
            return self.node(tree)

    def leaf(self, word):
        return self.embed(word) * 5

    kept = Net.leaf
    monkeypatch.setattr(Net, "leaf", kept)
    net = Replacing()
    run = multifold.batched(net, join="list")
    for _ in range(3):
        Net.leaf = kept
        wanted = [net(tree) for tree in TREES]
        Net.leaf = kept
        torch.testing.assert_close(run(TREES), wanted)
        assert Net.leaf is leaf


class Stateful(Net):
    """A program that stores what a straight function finds."""

    def forward(self, tree):
        self.factor = 1.0 if isinstance(tree, int) else 2.0
        return self.node(tree)


def test_what_the_program_stores_is_seen_by_each_call():
    net = Stateful()
    run = multifold.batched(net)
    for _ in range(3):
        assert_as_loop(run, net)
    assert "leaf" not in found_in(run)


class Masked(Net):
    """A program that changes a buffer, with which a straight function computes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(8))

    def join(self, x, y):
        return x + y * (self.mask * 2)

    def node(self, tree):
        self.mask.mul_(0.99)
        return super().node(tree)


class Optimised(Net):
    """A program that changes it by a function of PyTorch, which does not show in the code."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(8))
        self.change = getattr(torch.Tensor, "mul" + "_")

    def node(self, tree):
        self.change(self.mask, 0.99)
        return super().node(tree)

    def join(self, x, y):
        return x + y * (self.mask * 2)


@pytest.mark.parametrize("kind", [Masked, Optimised])
def test_a_buffer_that_the_program_changes_is_seen_by_each_call(kind):
    net = kind()
    run = multifold.batched(net, join="list")
    for _ in range(3):
        net.mask.fill_(1.0)
        wanted = [net(tree) for tree in TREES]
        net.mask.fill_(1.0)
        if kind is Optimised:
            with pytest.raises(multifold.MultifoldError, match="computes with was changed in place"):
                run(TREES)
        else:
            torch.testing.assert_close(run(TREES), wanted)


def test_calls_of_many_kinds_are_given_up():
    class Many(Net):
        def leaf(self, word):
            return self.scaled(self.embed(word), int(word) + 10 * len(LOG))

        def scaled(self, x, by):
            return swish(x) * (by / 100)

    net = Many()
    run = multifold.batched(net)
    for _ in range(8):
        LOG.append(0)
        assert_as_loop(run, net)
    LOG.clear()
    assert "scaled" not in found_in(run) and "swish" in found_in(run)


class Growing(Net):
    """A program whose straight function gets larger tensors in each step."""

    def join(self, x, y):
        return swish(torch.cat([x, y])) + x.sum()

    def forward(self, words):
        h = self.leaf(torch.tensor(words[0]))
        for word in words[1:]:
            h = self.join(h, self.leaf(torch.tensor(word)))
        return h[:8]


def test_a_cell_whose_launches_have_one_row_gives_way_to_what_it_calls():
    run = multifold.batched(Growing())
    for _ in range(4):  # the statement that calls it gives way, too
        run([[1] * 9, *[[1]] * 15])
    cells = run.run.function.found.cells.values()
    assert [cell.reason[:25] for cell in cells if cell.name == "Growing.join"] == [
        "its launches had few rows"
    ]
    # `swish` was never called by itself while `join` was recorded, so what it computes is a piece.
    assert {name.partition(":")[0] for name in found_in(run)} == {"swish", "leaf"}


def test_a_function_that_one_thread_finds_may_be_named_by_another():
    net, found, kept = Net(), [], Net.join
    wanted = torch.stack([net(tree) for tree in TREES])

    def work(number):
        for _ in range(3):
            run = multifold.batched(net, **({"cells": [kept]} if number % 2 else {}))
            found.extend([run(TREES) for _ in range(3)])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    sys.setswitchinterval(interval)
    assert len(found) == 36 and all(torch.allclose(x, wanted, atol=1e-5) for x in found)
    assert Net.join is kept and not hasattr(swish, "multifold_found")


class Table(nn.Module):
    """A model that keeps pending values where its straight method does not look."""

    def norm(self, x):
        largest = torch.max(x)
        return torch.log(torch.exp(x - largest).sum()) + largest

    def forward(self, x):
        self.table = [x]
        for k in range(12):
            self.table.append(self.table[-1] + self.norm(x[: 1 + k % 3]))
        return self.table[-1].sum()


def test_a_found_cell_may_belong_to_an_object_that_keeps_pending_values():
    layer, model, xs = nn.Linear(4, 4), Table(), [*torch.randn(12, 4)]
    run = multifold.batched(lambda x: model(layer(x)), may_loop=False)
    for _ in range(3):
        torch.testing.assert_close(run(xs), torch.stack([model(layer(x)) for x in xs]))


def test_a_named_cell_of_an_object_that_keeps_pending_values_is_told_of_the_change():
    layer, model = nn.Linear(4, 4), Table()
    run = multifold.batched(lambda x: model(layer(x)), cells=[Table.norm], may_loop=False)
    with pytest.raises(multifold.LaunchError, match="An attribute of Table was set after its cell norm"):
        run([*torch.randn(3, 4)])


def test_finding_a_cell_is_no_write_of_the_program():
    class Reading(Table):
        def configure(self, options):
            for name, x in options.items():
                setattr(self, name, x)

        def forward(self, x):
            while self.norm(x) < 4:
                x = x + self.norm(x) ** 2
            return x

    layer, model = nn.Linear(4, 4), Reading()
    run = multifold.batched(lambda x: model(layer(x)), may_loop=False)
    for _ in range(3):
        run([*torch.randn(6, 4)])
    assert "alone" not in str(run.explain())


def test_a_named_cell_takes_the_place_of_a_found_one():
    fn = swish
    with APPLIED.applied([fn]), CELLS.applied([fn]):
        assert hasattr(swish, "multifold_cell")
    with CELLS.applied([fn]), APPLIED.applied([fn]):
        assert hasattr(swish, "multifold_cell")
    assert swish is fn


def test_a_profiler_goes_on():
    import cProfile

    net, profiler = Net(), cProfile.Profile()
    run = multifold.batched(net)
    run(TREES)
    profiler.runcall(run, TREES)
    assert found_in(run) and sys.getprofile() is None
    assert any(entry.code == "<built-in method torch.tensor>" for entry in profiler.getstats())


@pytest.mark.parametrize("train", [True, False])
def test_modes_and_dropout_of_found_cells_are_those_of_the_loop(train):
    class Dropped(Net):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def join(self, x, y):
            return self.drop(super().join(x, y))

    net = Dropped().train(train)
    run = multifold.batched(net)
    for _ in range(3):
        run(TREES)
        net.eval()
        assert_as_loop(run, net)
        net.train(train)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(run.run.run([(x,) for x in TREES], {})[0], [net(x) for x in TREES])


def test_traces_of_found_cells_are_replayed():
    net = Net()
    run = multifold.batched(net)
    for _ in range(2):
        run(TREES)
    made = run.traces(TREES)
    with torch.no_grad():
        net.embed.weight.mul_(2)
    torch.testing.assert_close(run.replay(made), torch.stack([net(tree) for tree in TREES]))


def test_random_functions_do_what_they_do_without_found_cells(request):
    found = 0
    for seed in range(max(24, request.config.getoption("--programs") // 10)):
        loop, run = StraightSide(seed), StraightSide(seed)
        without = StraightSide(seed, cells=())
        for _ in range(3):
            loop.loop()
            run.batch()
            without.batch()
            if loop.error or without.error or loop.is_large:
                break
            assert run.error is None, run.text
            run.assert_same(loop)
        found += any(cell.calls for cell in run.run.run.function.found.cells.values())
        run.end()
    assert found


COLD = """
import torch, multifold

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.join = torch.nn.Embedding(9, 8), torch.nn.Linear(8, 20)

    def leaf(self, word):
        return self.embed(word).chunk(2, dim=1)

    def compose(self, left, right):
        i, l, r, o, u = self.join(torch.cat([left[0], right[0]], dim=1)).chunk(5, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u) + l * left[1] + r * right[1]
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(torch.tensor([tree]))
        return self.compose(*map(self.node, tree))

    def forward(self, tree):
        return self.node(tree)[0]

run = multifold.batched(Net())
run.traces([((1, 2), 3), (4, (5, 6))])
print([cell.name for cell in run.run.function.found.cells.values() if cell.reason is None])
"""


def test_what_pytorch_imports_when_it_first_needs_it_is_no_import_of_the_program(tmp_path):
    """The first call in a process on tensors without values imports much of PyTorch."""
    (tmp_path / "cold.py").write_text(COLD)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "cold.py")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert sorted(eval(found.stdout)) == ["Net.compose", "Net.leaf"]


class Meter:
    weight = 2.0


class OtherMeter(Meter):
    weight = 3.0


METER, LAYER, MODE = Meter(), nn.Linear(8, 8), nn.Identity()


def by_default_dtype(x):
    return LAYER(x) + torch.zeros(8)


def by_mode(x):
    return LAYER(x) * (2 if MODE.training else 3)


def by_class(x):
    return LAYER(x) * METER.weight


def with_default_dtype(x, number):
    torch.set_default_dtype(torch.float64 if number % 2 else torch.float32)
    found = by_default_dtype(x)
    torch.set_default_dtype(torch.float32)
    return found


def with_mode(x, number):
    MODE.train(number % 2 == 0)
    return by_mode(x)


def with_class(x, number):
    METER.__class__ = OtherMeter if number % 2 else Meter
    return by_class(x)


@pytest.mark.parametrize("program", [with_default_dtype, with_mode, with_class])
def test_a_program_that_changes_how_things_behave_has_no_found_cells_that_see_it(program, as_loop):
    run = multifold.batched(program, join="list", may_loop=False)
    for _ in range(4):
        as_loop(program, [*torch.randn(40, 8)], range(40), run=run)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def gate(self, x):
        return torch.tanh(self.lin(x)) * torch.sigmoid(x)

    def forward(self, x, steps):
        for _ in range(steps):
            x = self.gate(self.lin(x))
        return x


def test_a_first_example_that_records_nothing_keeps_none_from_being_found():
    run = multifold.batched(Gated(), may_loop=False)
    run([torch.randn(4) for _ in range(12)], [0, *[4] * 11])
    assert run.explain().found


class Noting(Net):
    """A program that stores what none of its straight functions finds."""

    def forward(self, tree):
        self.notes = []
        return self.node(tree)


def test_what_the_program_stores_parts_no_calls_of_functions_that_do_not_find_it():
    net = Noting()
    run = multifold.batched(net)
    for _ in range(3):
        assert_as_loop(run, net)
    assert found_in(run) == {"leaf": 19, "join": 13}


class Changing(nn.Module):
    """A part that changes what the model around it finds; no code names its class."""

    def __init__(self, net):
        super().__init__()
        self.owners, self.linear = (net,), nn.Linear(8, 8)

    def forward(self, x):
        self.owners[0].factor += 1.0
        return self.linear(x)


class Around(Net):
    def forward(self, tree):
        found = self.node(tree)
        for _ in range(3):
            found = self.join(self.part(found), self.leaf(torch.tensor(1)))
        self.factor = 1.0
        return found


@pytest.mark.parametrize("module", [__name__, "elsewhere"])
def test_what_a_part_stores_is_seen_whoever_has_made_it(module, monkeypatch):
    monkeypatch.setattr(Changing, "__module__", module)
    net = Around()
    net.part = Changing(net)
    run = multifold.batched(lambda tree: net(tree) + 0)
    for _ in range(3):
        assert_as_loop(run, net)
    assert "Net.leaf" not in str(run.explain().found)


def test_functions_of_a_part_are_found_whoever_has_made_it(monkeypatch):
    for kind in (Net, Gated):
        monkeypatch.setattr(kind, "__module__", "elsewhere")
    net = Net()
    net.part = Gated()
    run = multifold.batched(lambda tree: net.part(net(tree)[:4], 4), may_loop=False)
    run(TREES * 2)
    run(TREES * 2)
    found = str(run.explain().found)
    assert all(name in found for name in ("Net.leaf", "Net.join", "Gated.forward"))


class Twice(nn.Module):
    """Steps that return one tensor as what is seen and as the next state."""

    def __init__(self, step):
        super().__init__()
        self.x, self.h, self.step = nn.Linear(8, 8), nn.Linear(8, 8), step

    def pair(self, x, h):
        new = torch.tanh(self.x(x) + self.h(h))
        return new, new

    def nested(self, x, h):
        new = torch.tanh(self.x(x) + self.h(h))
        return [torch.relu(new), {"state": new, "last": (new,)}]

    def alone(self, x, h):
        return [torch.tanh(self.x(x) + self.h(h))]

    def forward(self, count):
        h, found = torch.zeros(8), []
        for i in range(count):
            step = getattr(self, self.step)(torch.full((8,), float(i)), h)
            leaves = optree.tree_leaves(step)
            assert all(x is leaves[-1] for x in leaves[self.step == "nested" :])
            h = leaves[-1]
            found += leaves
        return torch.stack(found).sum(0)


@pytest.mark.parametrize("step", ["pair", "nested", "alone"])
def test_a_function_may_return_one_tensor_twice(step):
    net, counts = Twice(step), [3, 1, 5, 4, 2, 7] * 4
    run = multifold.batched(net, may_loop=False)
    for _ in range(3):
        found, wanted = run(counts), torch.stack([net(x) for x in counts])
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(x.square().sum(), [*net.parameters()]) for x in (found, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert f"Twice.{step}" in str(run.explain().found)


class Children(nn.Module):
    """A tree model whose nodes have lists of children, as many as they like."""

    def __init__(self):
        super().__init__()
        self.embed, self.own, self.child = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def join(self, word, children):
        total, kept = self.own(word), []
        for i in range(len(children)):
            total = total + torch.sigmoid(self.child(children[i])) * word
        for child in children:
            kept.append(child * 2)
        return torch.tanh(total) + sum(kept)

    def forward(self, tree):
        word, *trees = tree if isinstance(tree, tuple) else (tree,)
        children = [self.forward(x) for x in trees]
        return self.join(self.embed(torch.tensor(word)), children) + len(children)


class Adding(Children):
    """One that changes the list that it is given."""

    def join(self, word, children):
        children += [word]
        return torch.tanh(self.own(word)) + torch.stack(children).sum(0)


CHILDREN = [(1, (2, 3, 4), 5), (6, 7, (8, 9)), (1, 2, 3, 4), 5, ((6), (7, 8), 9), (2, (3, (4, 5)))] * 4


@pytest.mark.parametrize("kind", [Children, Adding])
def test_a_function_may_loop_over_its_arguments_and_change_none(kind):
    net = kind()
    run = multifold.batched(net, may_loop=False)
    for _ in range(3):
        found, wanted = run(CHILDREN), torch.stack([net(x) for x in CHILDREN])
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(x.square().sum(), [*net.own.parameters()]) for x in (found, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    cell = run.run.function.found.cells[kind.join]
    if kind is Children:
        assert "Children.forward:" in str(run.explain().found)  # a piece with its calls of join
    else:
        assert cell.reason == "it changes a list that it is given"


class Reader(nn.Module):
    """A model that goes through sequences, each of another length."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def read(self, rows):
        state = rows[0]
        for row in rows:
            state = torch.tanh(self.cell(row) + state) * state
        return state

    def forward(self, rows):
        return self.read([x * 2 for x in rows]) + 1


def test_a_function_whose_loops_part_its_calls_is_divided():
    net, xs = Reader(), [torch.randn(n, 8) for n in range(2, 22)]
    run = multifold.batched(net, may_loop=False)
    for _ in range(4):
        torch.testing.assert_close(run(xs), torch.stack([net(x) for x in xs]))
    found = str(run.explain().found)
    assert "Reader.read:" in found and "Reader.read (" not in found  # the body of the loop


def test_a_loop_of_many_instructions_is_no_while_loop():
    body = "\n".join(f"        x = torch.tanh(x) * {i}.5" for i in range(120))
    choice = "        if self.factor:\n            x = x + 1\n        else:\n            x = x * 2"
    names = {}
    exec(f"def long(self, x):\n    for layer in self.joins:\n{body}\n{choice}\n    return x", names)
    assert crooked(names["long"].__code__) is None


class Chain(nn.Module):
    """Joins words one after the other, by a straight method."""

    def __init__(self):
        super().__init__()
        self.embed, self.left, self.right = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def join(self, x, y):
        return torch.tanh(self.left(x)) * torch.sigmoid(self.right(y))

    def forward(self, words):
        begin = self.begin()
        return functools.reduce(self.join, [self.embed(torch.tensor(i)) for i in words], begin)


class WithFreshModules(Chain):
    def begin(self):
        loss = nn.Sequential(nn.Identity(), nn.Tanh())
        return loss(self.embed(torch.tensor(0)))


class WithFreshLeaves(Chain):
    def begin(self):
        return torch.zeros(4).requires_grad_()


@pytest.mark.parametrize("kind", [WithFreshModules, WithFreshLeaves])
def test_what_an_example_makes_for_itself_keeps_cells_found(kind):
    model = kind()
    run = multifold.batched(model)
    words = [[*range(2 + i % 4)] for i in range(24)]
    for _ in range(3):
        found = run(words)
    torch.testing.assert_close(found, run.loop(words))
    assert any("join" in x and f"{sum(map(len, words))} calls" in x for x in run.explain().found)


class WithOwnTensors(Chain):
    """Writes into tensors that its methods make, and calls straight methods inside of one another."""

    def begin(self):
        return self.embed(torch.tensor(0))

    def parts(self, x, y):
        parts = torch.zeros(3, 4).type_as(y)
        for i in range(2):
            parts[i] = torch.tanh(self.left(x * i)) + y
        return parts

    def join(self, x, y):
        totals = x.new_zeros(2, 4)
        totals[0, :] = self.parts(x, y).sum(0)
        totals[1] += self.parts(y, x)[2]
        return totals.sum(0) + x


def test_functions_may_write_into_tensors_that_they_make():
    run = multifold.batched(WithOwnTensors())
    words = [[*range(2 + i % 4)] for i in range(24)]
    for _ in range(6):  # after some runs, functions that nothing calls are given up
        found = run(words)
    torch.testing.assert_close(found, run.loop(words))
    assert any("join" in x and f"{sum(map(len, words))} calls" in x for x in run.explain().found)


def test_what_is_called_inside_of_a_cell_takes_its_place_once_that_is_given_up():
    model = WithOwnTensors()
    run = multifold.batched(model)
    words = [[*range(2 + i % 4)] for i in range(24)]
    for _ in range(8):
        run(words)
    cells = run.run.function.found.cells
    assert cells[WithOwnTensors.parts].reason == NEVER_CALLED
    cells[WithOwnTensors.join].give_up("for a test")
    for _ in range(3):
        run(words)
    assert cells[WithOwnTensors.parts].reason is None and cells[WithOwnTensors.parts].calls


def store_of_the_user(self, x, y):
    kept = STORE.zeros(2)
    kept[0] = x
    return torch.tanh(self.left(x)) + y


class WithAStoreOfItsOwn(WithOwnTensors):
    """Has a method of the name of a function of PyTorch, which returns what all its calls share."""

    def zeros(self, count, kept=[0, 0]):  # noqa: B006 - it is shared
        return kept

    def join(self, x, y):
        kept = self.zeros(2)
        kept[0] += 1
        return torch.tanh(self.left(x)) + y


def test_what_a_method_returns_is_not_taken_for_new():
    model = WithAStoreOfItsOwn()
    run, kept = multifold.batched(model, may_loop=False), model.zeros(2)
    for number in range(1, 4):
        run([[1, 2, 3]] * 20)
        assert kept[0] == number * 60


class Store:
    """Has a method of the name of a function of PyTorch, which returns what it keeps."""

    def __init__(self):
        self.kept = [0, 0]

    def zeros(self, count):
        return self.kept


STORE = Store()


def test_what_a_function_only_seems_to_make_is_written_as_in_the_loop():
    model = type("Kind", (WithOwnTensors,), {"__module__": __name__, "join": store_of_the_user})()
    run = multifold.batched(model)
    for words in ([[1, 2, 3]] * 20, [[3, 2, 1]] * 20, [[2, 2, 2, 4]] * 20):
        run(words)
        wanted = STORE.kept[0]
        run.loop(words)
        torch.testing.assert_close(wanted, STORE.kept[0])


def test_layers_without_a_mode_may_be_called_in_several():
    class Modes(Chain):
        def begin(self):
            self.eval()
            with torch.no_grad():
                begun = self.drop(self.left(self.embed(torch.tensor(1))))
            self.train()
            return begun

    run = multifold.batched(Modes())
    words = [[*range(2 + i % 4)] for i in range(8)]
    torch.testing.assert_close(run(words), run.loop(words))


class ReadsTheModeOfALayer(Chain):
    def begin(self):
        return self.embed(torch.tensor(0))

    def join(self, x, y):
        h = torch.tanh(self.left(x)) + y
        return h if self.left.training else h * 2

    def forward(self, words):
        first = super().forward(words)
        for name in ("eval", "train"):
            getattr(self.left, name)()
            first = self.join(first, first)
        return first


def test_code_that_looks_at_the_mode_of_a_layer_sees_it():
    run = multifold.batched(ReadsTheModeOfALayer())
    words = [[*range(2 + i % 4)] for i in range(24)]
    for _ in range(3):
        torch.testing.assert_close(run(words), run.loop(words))


class Furnished(nn.Module):
    """A cell among code that changes much, but nothing that the cell finds."""

    def __init__(self):
        super().__init__()
        self.embed, self.gate, self.parts = nn.Embedding(10, 8), nn.Linear(8, 8), []
        self.bias, self.factor = nn.Parameter(torch.randn(8)), 2.0
        self.parts.append(self.gate)

    def __repr__(self):
        return "Furnished({factor})".format(**self.__dict__)

    def step(self, x, h):
        bias = self.bias.unsqueeze(0).expand(1, 8)
        return torch.tanh(torch.addmm(bias, (x + h).unsqueeze(0), self.gate.weight)[0]) * self.factor

    def forward(self, words):
        h, kept, left = torch.zeros(8), [[] for _ in words], words.clone()
        for i, word in enumerate(words):
            h = self.step(self.embed(word), h)
            kept[i - 1].append(h)
            left[i] = 0
        return h + sum(kept[0]) + left.sum()


WORDS = [torch.randint(10, (3 + i % 3,)) for i in range(20)]


def test_code_that_no_example_runs_and_what_it_fills_leave_functions_to_be_found():
    net = Furnished()
    run = multifold.batched(net, may_loop=False)
    for _ in range(2):
        torch.testing.assert_close(run(WORDS), torch.stack([net(x) for x in WORDS]))
    assert sum(map(len, WORDS)) in found_in(run).values()
