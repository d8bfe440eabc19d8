"""Divided functions: statements that compute are recorded whole, with the effects of the loop."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)
TREES = [(1, (2, 3)), ((4, 5), (6, (7, 1))), 2, ((1, 2), (3, 4)), (((1, 2), 3), 4), (5, 6)] * 3


class Word:
    """A word, as an object with an attribute that counts how often it is asked for."""

    def __init__(self, number):
        self.number, self.asked = number, 0

    @property
    def next(self):
        self.asked += 1
        return torch.full((4,), float(self.asked))


class Memory(nn.Module):
    """A module that keeps what it has seen, which others find."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x * 2)
        return x


class Net(nn.Module):
    """A recursive model whose `node` computes by itself; a subclass gives `join`."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer, self.other = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.memory, self.scale, self.word = Memory(), 1.0, Word(1)
        self.__hidden = 2.0
        self.table = nn.Parameter(torch.randn(10, 4))

    def node(self, tree, depth=1):
        if isinstance(tree, int):
            x = torch.tanh(self.embed(torch.tensor(tree)))
            return x * 0.5 + self.layer(x)
        x, y = self.node(tree[0], depth + 1), self.node(tree[1], depth + 1)
        return self.join(x, y, tree, depth)

    def forward(self, tree):
        self.scale, self.word.number = 1.0, 1
        self.memory.seen.clear()
        return self.node(tree)

    @property
    def ticking(self):
        self.word.number += 1
        return 0.5

    def bump(self, x):
        self.scale = self.scale + 1
        return x

    def turn(self, x):
        for part in (x, x):
            x = self.layer(part) * 0.5 + x
        return x


# What `join` of the models may be. Each function loops, so that it is not straight.


def straight(self, x, y, tree, depth):
    for _ in (x, y):
        z = torch.tanh(self.layer(x)) * y
        x = z + y * 0.5
    return x


def outer(self, x, y, tree, depth):
    total = torch.zeros(4)
    for part in (x, y):
        z = self.layer(part)
        total = total + torch.sigmoid(z) * part
    return total - self.other(total), total


def appends(self, x, y, tree, depth):
    found = []
    for part in (x, y):
        found.append(torch.tanh(self.layer(part)) * 2)
    return torch.stack(found).sum(0) * 0.5


def stores(self, x, y, tree, depth):
    for part in (x, y):
        self.last = torch.tanh(self.layer(part)) + part
        x = x + self.last * 2
    return x


def adds_in_place(self, x, y, tree, depth):
    total = x.clone()
    for part in (x, y):
        total += torch.tanh(self.layer(part)) * 2
    return total


def calls_crooked_first(self, x, y, tree, depth):
    for _ in (x,):
        z = torch.tanh(self.layer(torch.cat([self.turn(x)[:2], self.turn(y)[:2]])))
    return z * 2


def calls_crooked_later(self, x, y, tree, depth):
    for _ in (x, y):
        x = y * self.scale + self.bump(x) * self.scale
    return x * self.scale + y


def returns_state_before_it_changes(self, x, y, tree, depth):
    for _ in (x, y):
        x = x + y
    scale, z = self.pair(x, y)
    return z * scale


def pair(self, x, y):
    for _ in (x,):
        y = torch.tanh(y) + x
    return self.scale, self.bump(x * 2 + y)


def reads_what_a_module_keeps(self, x, y, tree, depth):
    for _ in (x, y):
        z = self.memory(x) + y
        x = z * self.memory.seen[-1] + z
    return x


def reads_what_a_module_keeps_by_a_variable(self, x, y, tree, depth):
    seen = self.memory.seen
    for _ in (x, y):
        z = self.memory(x) + y
        x = z * 2 + seen[-1]
        y = self.memory(x * 3) + seen[-1]
    return x + y


def asks_a_property(self, x, y, tree, depth):
    word = Word(3)
    for _ in (x, y):
        z = x * 2 + word.next
        x = z * word.next + word.next
    return x + float(word.asked)


def asks_its_own_property(self, x, y, tree, depth):
    word = self.word
    for _ in (x, y):
        x = x * 2 + self.ticking * word.number
    return x


def by_private_name(self, x, y, tree, depth):
    for part in (x, y):
        x = torch.tanh(part * self._Net__hidden) + x
    return x


def one_that_is_unbound_at_first(self, x, y, tree, depth):
    for number in range(2):
        if number:
            x = torch.tanh(z) * 2 + x  # noqa: F821
        z = torch.tanh(y) + x * number
    return x + z


def deletes(self, x, y, tree, depth):
    for part in (x, y):
        z = torch.tanh(part) * 2
        w = z + part * 3
        del z
        x = x + w * 0.1
    return x


def has_inner_functions(self, x, y, tree, depth):
    def later():
        return z * 2

    for part in (x, y):
        z = torch.tanh(part) * 2 + x
        x = later() + z * 0.1
    return x


def has_a_comprehension(self, x, y, tree, depth):
    parts = [torch.tanh(part) * 2 for part in (x, y)]
    z = parts[0] * self.layer(parts[1])
    for part in parts:
        z = z + part * 2
    return z


def in_a_try(self, x, y, tree, depth):
    z = x * 2 + y
    try:
        z = torch.tanh(z) * 2
        z = z.view(3, 7) + z
    except RuntimeError:
        z = z * 3 + y
    return z


def by_depth(self, x, y, tree, depth):
    for _ in (x, y):
        x = torch.tanh(x) * depth + self.table[depth % 10]
    return x


def by_default(self, x, y, tree, depth, seen=[]):  # noqa: B006 - that is what is tested
    for _ in (x, y):
        seen.append(1)
        x = torch.tanh(x) * 2 + y
    del seen[:]
    return x


def in_tuples(self, x, y, tree, depth):
    for _ in (x, y):
        (x, y), z = (torch.tanh(x) * 2, self.layer(y)), x + y * 2
        x = x + z
    return x


def by_branches(self, x, y, tree, depth):
    z = torch.tanh(x) * 2 + y
    if z.sum() > 0:
        z = self.layer(z) * 2 + y
    elif depth > 2:
        z = self.other(z) * 3 - y
    else:
        z = z * 0.5 + torch.sigmoid(z)
    while depth > 1:
        z, depth = torch.tanh(z) * 2 + z, depth - 1
    return z * 2 + x


def views(self, x, y, tree, depth):
    for _ in (x, y):
        part = x[:2]
        whole = torch.cat([part, y[2:]]) * 2
        x = whole + part.repeat(2)
    return x


def same_twice(self, x, y, tree, depth):
    for _ in (x, y):
        z = torch.tanh(x) + y
        w = z
        x = w * 2 + z
    return x + w


def starred(self, x, y, tree, depth):
    for _ in (x, y):
        z, *rest = torch.tanh(torch.stack([x, y, x])) * 2
        x = torch.stack([z, *rest]).sum(0) + y
    return x


def reads(self, x, y, tree, depth):
    for _ in (x, y):
        z = torch.tanh(x) * 2 + y
        x = z * z.sum().item() + float(y.max()) * x
    return x


JOINS = [
    straight, outer, appends, stores, adds_in_place, calls_crooked_first, calls_crooked_later,
    returns_state_before_it_changes, reads_what_a_module_keeps, reads_what_a_module_keeps_by_a_variable,
    asks_a_property, asks_its_own_property, by_private_name, one_that_is_unbound_at_first, deletes,
    has_inner_functions, has_a_comprehension, in_a_try, by_depth, by_default, in_tuples, by_branches,
    views, same_twice, starred, reads,
]  # fmt: skip


def copied(function, name):
    """Return a copy of a function, which has no place yet, as a method of ``Kind``."""
    found = types.FunctionType(function.__code__, globals(), name, function.__defaults__)
    found.__qualname__ = f"Kind.{name}"
    return found


def kind_of(join):
    """Return a class of models with a ``join`` that calls a function, where names find that."""
    methods = {name: copied(fn, name) for name, fn in ((join.__name__, join), ("pair", pair))}
    methods["join"] = lambda self, *args: first(getattr(self, join.__name__)(*args))
    globals()["Kind"] = type("Kind", (Net,), {"__module__": __name__, **methods})
    return Kind  # noqa: F821


def first(found):
    return found[0] if isinstance(found, tuple) else found


def pieces_of(run):
    """Return the names of the pieces of which the last run has recorded calls, and how often."""
    cells = run.run.function.found.cells
    return {fn.__name__: cell.calls for fn, cell in cells.items() if ":" in fn.__name__ and cell.calls}


@pytest.mark.parametrize("join", JOINS, ids=lambda join: join.__name__)
def test_pieces_do_what_the_loop_does(join, comparing):
    outcome, assert_equal = comparing
    torch.manual_seed(0)
    net = kind_of(join)()
    method = vars(type(net))[join.__name__]
    run = multifold.batched(net, join="list", may_loop=False)
    parameters = [*net.parameters()]
    for size in (6, 18, 18, 18, 3, 18):
        wanted, slopes = outcome(lambda: [net(x) for x in TREES[:size]], parameters)  # noqa: B023
        left = net.scale, [*map(torch.Tensor.detach, net.memory.seen)]
        found, own = outcome(lambda: run(TREES[:size]), parameters)  # noqa: B023
        for x, y in zip([*found, *own], [*wanted, *slopes], strict=True):
            assert_equal(x, y, 1e-4)
        assert net.scale == left[0] and len(net.memory.seen) == len(left[1])
    assert vars(type(net))[join.__name__] is method


def test_a_function_that_calls_itself_makes_one_call_for_all_that_it_computes():
    run = multifold.batched(kind_of(straight)())
    for _ in range(2):
        run(TREES)
    nodes, leaves = 39, 57
    assert {name.partition(":")[0]: calls for name, calls in pieces_of(run).items()} == {
        "node": leaves,
        "straight": 2 * nodes,
    }
    assert [op.launches for op in run.explain().ops if op.name.startswith("node:")] == [1]
    assert "Kind.straight:" in str(run.explain(all=True)) and not run.explain().crooked


def test_a_piece_that_turns_out_to_be_crooked_is_halved():
    run = multifold.batched(kind_of(reads_what_a_module_keeps_by_a_variable)())
    for _ in range(4):
        run(TREES)
    assert "reads_what_a_module_keeps_by_a_variable" in "".join(pieces_of(run))


def outside(tree, net):
    if isinstance(tree, int):
        return net.embed(torch.tensor(tree)).tanh() * 2
    x, y = outside(tree[0], net), outside(tree[1], net)
    return net.layer(x).tanh() * y + x


def around(tree, net):
    return outside(tree, net)


@pytest.mark.parametrize("program", [outside, around])
def test_the_program_itself_is_divided(program, as_loop):
    net = Net()
    run = multifold.batched(program, join="list", may_loop=False)
    for _ in range(3):
        as_loop(program, TREES, [net] * len(TREES), parameters=[*net.parameters()], run=run)
    cells = run.function.found.cells
    assert [cell.calls for fn, cell in cells.items() if fn.__name__.startswith("outside:")] == [39, 57]


def test_functions_are_what_they_were_after_a_run():
    kind = kind_of(straight)
    before = vars(kind)["straight"], vars(Net)["node"]
    multifold.batched(kind())(TREES)
    assert (vars(kind)["straight"], vars(Net)["node"]) == before


SCALE = 1.0


def bumped(x):
    global SCALE  # noqa: PLW0603 - that is what is tested
    SCALE = SCALE * 0.5
    return x


def reads_a_global_first(tree, net):
    z = begun(net)
    for _ in (tree, tree):
        z = SCALE * bumped(z) + z
        z = torch.tanh(z) * 2
    return z


def returns_a_global_first(tree, net):
    z = begun(net)
    for _ in (tree, tree):
        scale, z = scaled_and_bumped(torch.tanh(z) * 2 + z)
        z = z * scale
    return z


def begun(net):
    global SCALE  # noqa: PLW0603 - that is what is tested
    SCALE = 1.0
    return net.embed(torch.tensor(1)).tanh() * 2


def scaled_and_bumped(z):
    for part in (z, z):
        z = torch.tanh(part) * 2
    return SCALE, bumped(z) * 2


def adds_to_a_global(tree, net):
    global SCALE  # noqa: PLW0603 - that is what is tested
    z = begun(net)
    for _ in (tree, tree):
        SCALE += float(bumped(torch.ones(1))[0])
        z = torch.tanh(z) * 2 + SCALE
    return z


def closure():
    total = 0.0

    def count(x):
        nonlocal total
        total = total + 1
        return x * 2

    def counts(tree, net):
        nonlocal total
        total, z = 0.0, net.embed(torch.tensor(1))
        for _ in (tree, tree):
            z = torch.tanh(count(z)) * total + z
        return z

    return counts


@pytest.mark.parametrize(
    "fn",
    [reads_a_global_first, returns_a_global_first, adds_to_a_global, closure()],
    ids=lambda fn: fn.__name__,
)
def test_variables_that_others_assign_to_are_read_when_the_loop_reads_them(fn, as_loop):
    run, net = multifold.batched(fn, join="list", may_loop=False), Net()
    for _ in range(4):
        as_loop(fn, TREES, [net] * len(TREES), run=run)
    assert run.function.found.divided


def test_recursion_is_as_deep_as_in_the_loop():
    tree = 1
    for _ in range(600):
        tree = tree, 2
    net = kind_of(straight)()
    run = multifold.batched(net, may_loop=False)
    for _ in range(2):
        torch.testing.assert_close(run([tree] * 3)[0], net(tree))


def test_a_slice_that_moves_is_no_kind_of_call_of_its_own():
    def encode(x, net):
        h = torch.zeros(1, 4)
        for i in range(len(x)):
            h = torch.tanh(net.layer(x[i : i + 1])) * 0.5 + h
        return h

    run, net = multifold.batched(encode, may_loop=False), Net()
    for _ in range(3):
        run([torch.randn(size, 4) for size in range(3, 23)], [net] * 20)
    (piece,) = [cell for cell in run.function.found.cells.values() if cell.calls]
    assert piece.kinds == 2  # `h` is a tensor of zeros at first
    assert piece.calls == sum(range(3, 23))


class Replacing(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(4))

    def join(self, x, y, tree, depth):
        z = torch.tanh(self.layer(x)) * self.state
        self.state = self.state * 0.5 + z
        return z * 2 + y

    def forward(self, tree):
        self.state = torch.ones(4)
        return self.node(tree)


def test_a_model_that_replaces_its_buffer_runs_as_before(as_loop):
    net = Replacing()
    run = multifold.batched(net, join="list", may_loop=False)
    for _ in range(5):
        as_loop(net, TREES, run=run)


def counting(tree, net):
    counting.calls = counting.calls + 1
    if isinstance(tree, int):
        return net.embed(torch.tensor(tree)).tanh() * 2
    x, y = counting(tree[0], net), counting(tree[1], net)
    return net.layer(x).tanh() * y + x


def test_a_function_that_counts_on_itself_is_left_alone(as_loop):
    counting.calls, run, net = 0, multifold.batched(counting, join="list", may_loop=False), Net()
    for _ in range(3):
        as_loop(counting, TREES, [net] * len(TREES), run=run)
    assert counting.calls == 6 * 96
