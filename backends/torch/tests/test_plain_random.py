"""Small random programs, as the loop runs them: recursion, loops, views, changes in place, errors."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import nn

import multifold
from multifold import LaunchError, RecordError

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
SCALE = nn.Parameter(torch.rand(4) + 0.5)
PARAMETERS = [*LIN.parameters(), SCALE]
XS = [torch.randn(4) for _ in range(4)]


@multifold.op
def cell(x, y):
    return torch.tanh(x) * y, LIN(x + y)


def flat(x):
    """Return four numbers of a tensor, whatever its shape."""
    return x.reshape(-1).repeat(4)[:4]


STEPS = {
    "layer": lambda rng, xs: xs.append(LIN(flat(rng.choice(xs)))),
    "sum": lambda rng, xs: xs.append(flat(rng.choice(xs)) + flat(rng.choice(xs))),
    "product": lambda rng, xs: xs.append(rng.choice(xs) * rng.choice([2, 0.5, -1.0, SCALE[0]])),
    "matrix": lambda rng, xs: xs.append(flat(rng.choice(xs)).view(2, 2)),
    "outer": lambda rng, xs: xs.append(torch.outer(flat(rng.choice(xs)), SCALE).sum(rng.randrange(2))),
    "activation": lambda rng, xs: xs.append(
        rng.choice([torch.tanh, torch.sigmoid, torch.cos])(rng.choice(xs))
    ),
    "turned": lambda rng, xs: xs.append(flat(rng.choice(xs)).view(2, 2).T),
    "parts": lambda rng, xs: xs.extend(flat(rng.choice(xs)).chunk(2)),
    "row": lambda rng, xs: xs.append(flat(rng.choice(xs))[rng.randrange(-4, 4)]),
    "rows": lambda rng, xs: xs.extend(flat(rng.choice(xs)).view(2, 2)),
    "slice": lambda rng, xs: xs.append(flat(rng.choice(xs))[rng.randrange(3) :]),
    "stack": lambda rng, xs: xs.append(torch.stack([flat(x) for x in rng.sample(xs, 1) * 2])),
    "cat": lambda rng, xs: xs.append(torch.cat([flat(rng.choice(xs)), flat(rng.choice(xs))])[2:6]),
    "norm": lambda rng, xs: xs.append(rng.choice(xs).norm() + 1),
    "most": lambda rng, xs: xs.append(flat(rng.choice(xs)).max(0).values),
    "detached": lambda rng, xs: xs.append(rng.choice(xs).detach()),
    "new": lambda rng, xs: xs.append(torch.zeros_like(rng.choice(xs)) + rng.randrange(3)),
    "double": lambda rng, xs: xs.append(rng.choice(xs).double().float()),
    "cell": lambda rng, xs: xs.extend(cell(flat(rng.choice(xs)), flat(rng.choice(xs)))),
    "added in place": lambda rng, xs: rng.choice(xs).add_(rng.choice([1, 0.5])),
    "scaled in place": lambda rng, xs: rng.choice(xs).mul_(1.5),
    "item set": lambda rng, xs: flat(rng.choice(xs)).__setitem__(0, 2.0),
    "part set": lambda rng, xs: item_set(rng.choice(xs), rng.choice(xs)),
    "row in place": lambda rng, xs: row_changed(rng.choice(xs)),
    "dropped": lambda rng, xs: xs.pop(rng.randrange(len(xs))) if len(xs) > 2 else None,
}


def item_set(x, y):
    if x.dim():
        x[-1] = y.sum()


def row_changed(x):
    if x.dim():
        x[0] += 1


def halved(rng, xs):
    """Loop on a value."""
    x = rng.choice(xs)
    while x.norm() > 1:
        x = x / 2
    xs.append(x)


def branch(rng, xs):
    """Do one of two things, by a value."""
    xs.append(rng.choice(xs) * 2 if rng.choice(xs).sum() > 0 else LIN(flat(rng.choice(xs))))


def caught(rng, xs):
    """Raise by a value, and go on."""
    try:
        if float(rng.choice(xs).mean()) > 0.1:
            raise ValueError
        xs.append(rng.choice(xs) + 1)
    except ValueError:
        xs.append(rng.choice(xs) - 1)


def recursion(rng, xs, depth=2):
    """Run a smaller program on one of the tensors."""
    if depth:
        xs.append(program(rng.randrange(10**6), 3)(rng.choice(xs))["last"])


def without_gradient(rng, xs):
    """Compute without gradients, and read meanwhile."""
    with torch.no_grad():
        branch(rng, xs)


BLOCKS = {f.__name__: f for f in (halved, branch, caught, recursion, without_gradient)}


def program(seed, length=9):
    """Return a program; what it does follows from a seed, and from values."""

    def run(x):
        rng = random.Random(seed)
        xs = [x * 1, LIN(flat(x))]
        for _ in range(length):
            blocks = BLOCKS if rng.random() < 0.2 else STEPS
            blocks[rng.choice([*blocks])](rng, xs)
        return {"all": xs[:-1], "last": xs[-1], "sizes": [tuple(x.shape) for x in xs]}

    return run


REFUSALS = ("shares its memory", "would have no gradient", "that is not pending")


def tried(call, outcome):
    """Return what a call returns with the gradients, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return outcome(call, PARAMETERS)
    except Exception as error:  # noqa: BLE001 - a random program may fail in any way
        return error


def compare(seed, outcome, assert_equal):
    """Return whether a program was compared with the loop, which it was if both ran it."""
    fn = program(seed)
    wanted = tried(lambda: [fn(x) for x in XS], outcome)
    found = tried(lambda: multifold.batched(fn, join="list", backend="torch")(XS), outcome)
    if isinstance(wanted, Exception):
        return False
    if isinstance(found, (RecordError, LaunchError)):
        assert any(why in str(found) for why in REFUSALS), found
        return False
    assert not isinstance(found, Exception), found
    for x, y in zip(*[torch.utils._pytree.tree_leaves(x) for x in (wanted, found)], strict=True):
        assert_equal(x, y, 1e-4)
    return True


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_return_what_the_loop_returns(seed, comparing):
    assert sum([compare(10 * seed + i, *comparing) for i in range(10)]) >= 2
