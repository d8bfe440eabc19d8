"""Random modules with methods that are straight or nearly so, called by a program on trees."""

from __future__ import annotations

import linecache
import random
import sys
import types

import torch

import multifold

STRAIGHT = (
    "{z} = {a} * {b}",
    "{z} = torch.tanh({a}) + {b}",
    "{z} = self.one({a})",
    "{z} = self.one(torch.cat([{a}, {b}])[4:12])",
    "{z}, {y} = (part.repeat(2) for part in ({a} - {b}).chunk(2))",
    "{z} = torch.cat([{a}, {b}]).view(2, 8).sum(0)",
    "{z} = {a}.softmax(0) * by",
    "{z} = torch.stack([{a}, {b}]).mean(0)",
    "{z} = torch.where({a} > 0, {a}, {b})",
    "{z} = {a} if self.training else {b}",
    "{z} = {a} + self.mask * self.scale",
    "{z} = {a}[0] * {b}",
    "first, *rest = {a}\n    {z} = {b} * first + rest[0]",
    "{z} = {a} * self.weight.softmax(0) + torch.arange(8.0)",
    "{z} = {a}.clone()\n    {z} += {b}",
    "for layer in self.layers:\n        {z} = layer({a})",
    "{z} = swish({a})",
    "if by > 2:\n        {z} = {a} / by\n    else:\n        {z} = {b}",
    "with torch.no_grad():\n        {z} = self.one({a})",
    "parts = [{a}, {b}]\n    parts.append({a} * 2)\n    {z} = torch.stack(parts).sum(0)",
    "{z} = {a}.new_zeros(8) + {b}.detach()",
    "assert {a}.shape == (8,)\n    {z} = {a}.reshape(-1)",
    "{z} = torch.einsum('i,i->i', {a}, {b})",
    "{z} = self.pair({a}, {b})['sum']",
)
CROOKED = (
    "LOG.append(by)\n    {z} = {a}",
    "self.calls += 1\n    {z} = {a}",
    "{z} = {a} if {a}.sum() > 0 else {b}",
    "{z} = {a} * float({b}[0])",
    "{z} = {a}\n    {z} += 1",
    "{z} = {a}.mul_(0.5)",
    "{z} = self.cache.setdefault(by, torch.ones(8)) * {a}",
    "count()\n    {z} = {a}",
    "{z} = {a} if self.seen({b}) else {b}",
    "self.scale = 1.0 + 0.1 * by\n    {z} = {a} * self.scale",
    "self.mask.mul_(0.9)\n    {z} = {a} * 1",
    "try:\n        {z} = {a} + {b}\n    except ValueError:\n        {z} = {a}",
    "{z} = [{a} * x for x in {b}][0]",
)

WORLD = """
import torch
from torch import nn

LOG, COUNT = [], 0

def swish(x):
    return x * torch.sigmoid(x)

def count():
    global COUNT
    COUNT += 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.one = nn.Embedding(10, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("mask", torch.rand(8))
        self.scale, self.calls, self.cache = 1.5, 0, {}

    def pair(self, x, y):
        return {"sum": x + y, "difference": x - y}

    def forward(self, tree):
        return self.node(tree, 1)
"""


def straight_program(seed):
    """Return a new module of Python with a random class ``Net``, and its text."""
    rng = random.Random(seed)
    text = WORLD
    crooked = rng.random() < 0.4
    if crooked:
        text += "\n    def seen(self, x):\n        LOG.append(len(x))\n        return len(LOG) % 2\n"
    count = rng.randrange(1, 4)
    for i in range(count):
        names, body = ["x", "y"], []
        for number in range(rng.randrange(1, 6)):
            lines = CROOKED if crooked and rng.random() < 0.2 else STRAIGHT
            a, b, z = rng.choice(names), rng.choice(names), f"z{number}"
            body.append(rng.choice(lines).format(a=a, b=b, z=z, y=f"y{number}"))
            names.append(z)
        if i and rng.random() < 0.3:
            body.append(f"z9 = self.f{rng.randrange(i)}({names[-1]}, {names[-2]}, by)[0]")
            names.append("z9")
        body.append(f"return {names[-1]}, {rng.choice(names)} * 2")
        lines = "\n    ".join(body).replace("\n", "\n    ")
        text += f"\n    def f{i}(self, x, y, by=1):\n        {lines}\n"
    call = f"self.f{rng.randrange(count)}"
    more = rng.choice(["", ", depth", ", by=depth % 4", ", 3"])
    change = rng.choice(["", "", "\n        self.calls += 0", "\n        x += 0"]) if crooked else ""
    text += f"""
    def node(self, tree, depth):
        if isinstance(tree, int):
            return self.leaf(torch.tensor(tree))
        x, y = self.node(tree[0], depth + 1), self.node(tree[1], depth + 1){change}
        one, other = {call}(x, y{more})
        return torch.tanh(one) + self.f0(other, y)[1] * 0.1

    def leaf(self, word):
        return self.embed(word)
"""
    module = types.ModuleType(f"straight_{seed}")
    sys.modules[module.__name__] = module
    name = f"<straight {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), vars(module))
    torch.manual_seed(seed)
    return module, text


def random_tree(rng, leaves):
    """Return a random tree with so many leaves, which are integers below 10."""
    if leaves == 1:
        return rng.randrange(10)
    left = rng.randrange(1, leaves)
    return random_tree(rng, left), random_tree(rng, leaves - left)


class StraightSide:
    """A random program in a state of its own, for the loop or for a run.

    ``same`` says whether two sides are alike in results, gradients and what they have left.
    """

    def __init__(self, seed, **options):
        self.module, self.text = straight_program(seed)
        rng = random.Random(seed)
        self.trees = [random_tree(rng, rng.randrange(1, 9)) for _ in range(6)]
        self.net = self.module.Net().train(rng.random() < 0.5)
        self.run = multifold.batched(self.net, join="list", may_loop=False, **options)
        self.error = None
        self.results, self.gradients = [], []

    def go(self, call):
        """Run the program; keep the results and gradients, or the error that it raises."""
        self.net.zero_grad()
        try:
            found = call(self.trees)
            sum([x.square().mean() for x in found]).backward()
        except (multifold.MultifoldError, RuntimeError, IndexError, TypeError) as error:
            self.error = error
            return
        self.results = [x.detach().clone() for x in found]
        weights = [*self.net.parameters()]
        self.gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in weights]

    def loop(self):
        """Run the program for one tree after the other."""
        self.go(lambda trees: [self.net(tree) for tree in trees])

    def batch(self):
        """Run the program batched."""
        self.go(self.run)

    @property
    def is_large(self):
        """Whether a gradient is so large that rounding shows."""
        return any(x.abs().max() > 1e5 or not x.isfinite().all() for x in self.gradients)

    @property
    def left(self):
        """What the program has left in its module and on its model."""
        net = self.net
        return [*self.module.LOG], self.module.COUNT, net.calls, net.scale, sorted(net.cache)

    def assert_same(self, other):
        """Raise an `AssertionError` if another side has come to something else."""
        for x, y in zip(self.results, other.results, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
        for x, y in zip(self.gradients, other.gradients, strict=True):
            torch.testing.assert_close(x, y, rtol=2e-3, atol=1e-4)
        assert self.left == other.left
        torch.testing.assert_close(self.net.mask, other.net.mask)

    def end(self):
        """Forget the module."""
        linecache.cache.pop(self.net.node.__code__.co_filename, None)
        sys.modules.pop(self.module.__name__, None)
