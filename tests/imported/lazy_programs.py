"""Random plain programs, as text: each is a function of a tree that works as the loop runs it.

`Program(seed, framework)` draws statements from tables: `EVERYWHERE`, and those of the framework. They work
on a list ``xs`` of arrays, on ``notes``, a list of what was read, and on the tree ``node`` itself. In them
``{x}`` is any of the arrays, ``{v}`` four numbers of one, ``{s}`` one number, and ``{block}`` statements.
So a program stays one when statements are left out, and `shrunk` finds out which of them a failure needs.

`Torch` and `Numpy` say what the names in the statements stand for, and how results are compared.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import linecache
import operator
import random
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree

import multifold

EVERYWHERE = """
xs.append(layer({v}))
xs.append(layer(vector(node.value)))
xs.append({v} + {v})
xs.append({x} * {c})
xs.append(2.5 - {v})
xs.append(tanh({v}) / ({v} ** 2 + 1))
xs.append(-abs({v}))
xs.append({v} @ U)
xs.append(U @ {v})
xs.append({v} @ {v})
xs.append({v}.reshape(2, 2) @ {v}.reshape(2, 2))
xs.append({v}.reshape(2, 2).T)
xs.append({v}.reshape(2, 2)[:, {k}])
xs.append({v}[{i}])
xs.append({v}[{k}:])
xs.append({v}[None, ::2])
xs.append({v}[{v} > {t}].sum())
xs.append({v}[:0])
xs.append({v}[:0].sum())
xs.extend({v}.reshape(2, 2))
a, b, *rest = {v}; xs.append(a * b + rest[0])
xs.append({v}.sum())
xs.append({v}.mean())
xs.append({v}.prod())
xs.append(distinct({v}).max())
xs.append({v}.reshape(2, 2).sum(axis={k}, keepdims=True))
xs.append(stack([{v}, {v}]).sum({k}))
xs.append(cat([{v}[1:], {v}[:1]]))
xs.append(cat([{v}[:0], {v}]))
xs.append(where({v} > {t}, {v}, {v}))
xs.append(({v} > {t}) & ({v} < 1.5))
xs.append(distinct({v}).argmax())
xs.append(cell({v}, {v}))
xs.append(cell({v}, y={v}))
xs.extend(pair({v}))
xs.append(unit.turned({v}))
xs.append(of_rows({v}[None])[0])
xs.append(ones_like({v}) * {s})
xs.append(CONSTANT * {v})
xs.append(shared + {v})
xs.append(node.value * {v})
xs.append(copy.deepcopy({v}))
xs.append((lambda x: x * {s} + 1)({v}))
xs.append(sum(x.sum() for x in ({v}, {v})))
xs.append(functools.reduce(operator.mul, [{v}, {v}]))
xs.append(functools.partial(cell, {v})({v}))
xs.append(sum([x * i for i, x in enumerate({v})]))
xs.append(sum([a * b for a, b in zip({v}, {v}[1:])]))
xs.extend(multifold.batched(cell, join="list", backend=BACKEND)([{v}, {v}], [{v}, {v}]))
xs.append(multifold.batched(lambda x: layer(x) * {s}, backend=BACKEND)([{v}, {v}]).sum(0))
xs.append(dict(zip("ab", {v}))["b"])
xs.append({v}.reshape(4, 1) * {v}.reshape(1, 4))
xs.append({v}.reshape(2, 2)[..., -1])
xs.append({v}.reshape(2, 2)[{k}, 1 - {k}])
xs.append({v}[[0, 3, 1]])
xs.append({v} ** 2 % 1.7)
xs.append(({v} > {t}) | ~({v} > {t}))
xs.append({v} == {v})
xs.append(1 / ({v} ** 2 + 1))
xs.append(divided({v}, {s} ** 2 + 1))
if len(xs) > 2: xs.pop({p} % len(xs))
notes.append(float({s}))
notes.append(int({s} * 7.31))
notes.append({s}.item())
notes.append(f"{{s}:.4f} {float({s}):.3e}")
notes.append({v}.tolist())
notes.append(bool({s} > {t}) or not {s} < 0.4)
notes.append(sorted(map(float, {v}))[0])
notes.append(float(max(({v}, {v}), key=lambda x: float(x.sum())).sum()))
notes.append([str({x}.dtype), tuple({x}.shape), {x}.ndim, len({v}), isinstance({v}, array)])
notes.append("abcd"[distinct({v}).argmax()])
notes.append([range(9)[int(distinct({v}).argmax())], {v}.shape[0]])

x = zeros(4)
x += {v}
xs.append(x)

x = zeros(4)
y = x
x[{i}] = {s}
x[1:3] *= {s}
xs.append(y)

x = zeros(8).reshape(2, 4) + 0
x[{k}] = {v}
x[1 - {k}] += {v}
xs.append(x)

x = zeros(8).reshape(2, 4) + 1
row = x[{k}]
row *= {v}
xs.append(x)
xs.append(row + 0)

x = {v} * 1
y = x
x += {v}
x *= 0.5
xs.append(y)

x = {v} * 1
x[{i}] = {s}
x[1:3] = {c}
xs.append(x)

x = {v} * 1
part = x[1:]
part += {s}
xs.append(x)

x = {v} * 1
x.reshape(2, 2)
y = x[2:]
y[0] = {s}
xs.append(x + x[2])

x = {v} * 1
x[x > {t}] = 0.5
x[x < {t}] *= 0.5
xs.append(x)

xs.append({v} * node.own)
node.own *= 1.5
node.own[{i}] = 0.5
xs.append(cell(node.own, {v}))

state = zeros(4) + 1
for x in ({v}, {v}):
    xs.append(x * state)
    state[{i}] = 2.5
    state *= 0.7

x = {x}
if x.shape and is_float(x):
    x *= 1.5

with Within(xs) as within:
    xs.append({v})
    within.append({s})

x = {v} * 1
for i in range(4):
    if x[i] > {t}:
        x[i] = x[i] * 0.5
    else:
        continue
xs.append(x)

def recursive(x, depth):
    if depth == 0 or float(x.sum()) > {t}:
        return x
    return recursive(layer(x), depth - 1) + x
xs.append(recursive({v}, 3))

best, value = None, -9.0
for x in ({v}, {v}, {v}):
    if best is None or float(x @ CONSTANT) > value:
        best, value = x, float(x @ CONSTANT)
xs.append(best)
notes.append(value)

queue = [({v}, 0)]
while queue:
    x, depth = queue.pop(0)
    if depth < 2 and float(x.max()) > {t}:
        queue.extend([(x[:2] * 0.7, depth + 1), (x[-2:] - 0.1, depth + 1)])
    xs.append(x)

x, steps = {v}, 0
while norm(x) > {t} and steps < 6:
    x = layer(x) * 0.5
    steps += 1
xs.append(x)
notes.append(steps)

for row in {v}.reshape(2, 2):
    xs.append(row * 2)

for i in range(node.word % 3):
    {block}

for i in range(4):
    if {v}[i] > {t}:
        break
    {block}
else:
    notes.append("none")

if {s} > {t}:
    {block}
else:
    {block}

if node.word % 2:
    {block}
elif ({v} > {t}).any():
    {block}

try:
    xs.append({v}.reshape(3, 3))
except (RuntimeError, ValueError) as error:
    notes.append(type(error).__name__)

try:
    xs.append({v}[4])
except IndexError as error:
    notes.append(type(error).__name__)

try:
    xs.append({v}.reshape(2, 2) @ {v}[:3])
except Exception as error:
    notes.append(type(error).__name__)
    {block}

try:
    xs.append({v}.nothing)
except AttributeError:
    {block}

try:
    if {s} > {t}:
        raise Stop(node.word)
    {block}
except Stop as error:
    notes.append(error.args)
finally:
    xs.append({v} + 1)

def inner(x, scale=2):
    y = {v}
    def deeper():
        nonlocal y
        y = layer(x) * scale + y
    deeper()
    return y
xs.append(inner({v}))

def some(x):
    for i in range(3):
        yield x * i
        x = layer(x)
xs.extend(some({v}))

class Local:
    def __init__(self, x):
        self.x = x
    @property
    def twice(self):
        return self.x * 2
    def __add__(self, other):
        return Local(self.x + other.x)
xs.append((Local({v}) + Local({v})).twice)

table = {'a': {v}, 'b': [{v}, ({v}, 1)]}
table['b'][0] = table['b'][0] + table['a']
xs.extend([table['b'][0], *[x * 2 for x in table['b'][1]][:1]])

match node.word % 3:
    case 0:
        {block}
    case _:
        xs.append({v})

node.state = {x}

if node.state is not None:
    xs.append(vector(node.state) + 1)
node.state = {v}

node.kept.append({x})

node.table['a'] = {v}
node.table.setdefault('b', []).append({s})
xs.append(node.table['a'] * node.table['b'][0])

node.own += {v}
xs.append(node.own * 2)

node.own[{i}] = {s}
xs.append(layer(node.own))
"""
"""Statements for each framework: lines, and then such as take several lines."""

RARE = """
if {s} > {t} and node.word % 5 == 0: raise Stop(node.word)
if {s} > {t} and node.word % 4 == 0: xs.append({v}.reshape(3, 3))
if node.word == 7: {x}[9]

x = {x}
if x.shape and is_float(x):
    x[-1] = {s}

x = {v} * 1
y = x.reshape(2, 2)
x += {v}
xs.append(y * 2)

x = {v} * 1
y = x[1:]
x *= 0.5
xs.append(y.sum())

x = {v} * 1
a, b = x[:2], x[1:]
a += {s}
xs.append(b)

x = {v} * 1
y = x.reshape(2, 2).T
y += {s}
xs.append(x)

x = zeros(4)
y = x[:2]
x += {v}
xs.append(y)

try:
    x = {v} * 1
    y = x.reshape(2, 2)
    x *= {p} % 2 + 1
    xs.append(y if {p} % 4 else x)
except Exception:
    xs.append({v})
"""
"""Statements that end an example, or change what others may be views of."""

OF_TORCH = """
xs.extend({v}.chunk(2))
xs.extend({v}.view(2, 2).unbind({k}))
xs.append({v}.view(2, 2).t().contiguous())
xs.append({v}.view(2, 2).transpose(0, 1).flatten())
xs.append({v}.unsqueeze(0).expand(3, 4).sum(0))
xs.append(torch.sum({v}, dim=0, keepdim=True))
xs.append(torch.cat(tensors=[{v}, {v}], dim=-1)[2:6])
xs.append(torch.softmax({v}, dim=0))
xs.append(F.relu({v}))
xs.append(F.linear({v}, U, bias={v}))
xs.append(lin({v}))
xs.append(norms({v}))
xs.append(net({v}))
xs.append(gru({v}[None])[0])
xs.append(gru({v}[None], {v}[None])[0])
h, c = lstm({v}[None], ({v}[None], {v}[None])); xs.append(h[0] + c[0])
xs.append(table_of(torch.tensor(node.word % 5)))
xs.append(table_of(distinct({v}).argmax()))
xs.append(conv({v}[None])[0])
xs.append(conv2({v}.view(1, 1, 2, 2)).flatten())
xs.append(module({v}, {v}))
xs.append(Squared.apply({v}))
xs.append(dropped({v}))
rates.append((F.dropout({v} * 0 + 1, 0.5) == 0).double().mean())
xs.append({v}.detach())
xs.append({v}.float().double())
xs.append({v}.float() + {v}.float())
xs.append(({v} * 7.31).long())
xs.append(({v} * 7.31).long() % 3 + distinct({v}).argmax())
xs.append({v}.detach()[{v} > {t}].sum())
xs.append({v}.masked_fill({v} > {t}, 0.5))
xs.append({v}.gather(0, distinct({v}).argsort()))
xs.append({v}[distinct({v}).argsort()])
xs.append({v}.index_select(0, INDEX))
xs.append(torch.einsum('i,j->j', {v}, {v}))
xs.append(torch.outer({v}, {v})[{k}])
xs.append(torch.linalg.norm({v} + 3))
xs.append({v}.cumsum(0))
xs.append({v}.std())
xs.append({v}.new_zeros(2) + {v}[:2])
xs.extend(torch.split({v}, [1, 3]))
xs.extend({v}.split(3))
xs.append({v}.narrow(0, 1, 2))
xs.append({v}.view(2, 2).select(1, {k}))
xs.append({v}.view(2, 2).permute(1, 0).reshape(-1))
xs.append(torch.stack([{v}, {v}]).unbind(1)[{k}])
xs.append({v}.index_fill(0, INDEX, 0.5))
xs.append({v}.scatter(0, INDEX, {v}[:2]))
xs.append(F.cross_entropy({v}[None], torch.tensor([node.word % 4])))
xs.append(F.mse_loss({v}, {v}, reduction="sum"))
xs.append(F.cosine_similarity({v} + 2, {v} + 2, dim=0))
xs.append(F.pad({v}, (1, 2)))
xs.append(F.one_hot(distinct({v}).argmax(), 4))
xs.append(F.softplus({v}) + F.gelu({v}) + F.leaky_relu({v}, 0.1))
xs.append(F.layer_norm({v}, (4,)))
xs.append(distinct({v}).topk(2).values)
xs.append(distinct({v}).sort(descending=True)[0])
xs.append({v}.roll(1).flip(0))
xs.append({v}.lerp({v}, 0.3))
xs.append(torch.addmm({v}, {v}.view(1, 4), U))
xs.append(torch.bmm({v}.view(1, 2, 2), {v}.view(1, 2, 2)).squeeze(0))
xs.append({v}.view(2, 2).triu().diagonal())
xs.append(torch.where({v} > {t}, {v}, 0.0))
xs.append({v}.maximum({v}).clamp(min=-0.3))
xs.append({v}.logsumexp(0).exp().log())
xs.append(({v} > {t}).double().mean())
xs.append(({v} > {t}).any() & ({v} < {t}).all())
xs.append(torch.cdist({v}.view(2, 2), {v}.view(2, 2) + 3))
xs.append(torch.nn.utils.rnn.pad_sequence([{v}, {v}[:2]]))
xs.append(checkpoint(lambda x: layer(x) * 2, {v}, use_reentrant=False))
xs.append({v}.type(torch.float32).type_as({v}))
xs.append({v}.to(torch.float32).to({v}))
xs.append({v}.sum().expand(3))
xs.append({v}[:0].mean() * 0 + {v}[0] if {v}[:0].numel() else {v}[0])
xs.append(torch.zeros(0, dtype=torch.double).sum() + {s})
xs.append(({v} * 7.31).long().tolist()[0] * {v})
xs.append(torch.atleast_2d({v}).squeeze())
notes.append(torch.equal({v}, {v}) or torch.allclose({v}, {v}))
notes.append(str(tuple({v}.view(2, 2).stride())) + str({v}.is_contiguous()))
xs.append(torch.full((2,), float({s}), dtype=torch.double))
xs.append(torch.tensor([float({s})], dtype=torch.double) * {v})
xs.append(torch.tensor({v}.tolist(), dtype=torch.double))
xs.append(torch.as_tensor(np.float64(2)) * {v})
notes.append([{x}.requires_grad, {x}.dim(), {x}.numel(), torch.is_tensor({x})])
notes.append({v}.detach().numpy().tolist())
values, index = distinct({v}).max(0); xs.append(values); notes.append(int(index))
x = tanh({v}); x.exp_().add_({c}); xs.append(x)
x = {v} * 1; x.clamp_(-0.5, 0.5).sub_({v}); xs.append(x)
x = {v} * 1; x[1:].zero_(); xs.append(x)
x = {v} * 1; x.copy_({v}).fill_(2.0).mul_({v}); xs.append(x)
x = F.relu({v} * 1, inplace=True); xs.append(x)
x = torch.zeros(4, dtype=torch.double); x.index_add_(0, INDEX, {v}[:2]); xs.append(x)
x = torch.zeros(4, dtype=torch.double); x.scatter_add_(0, INDEX, {v}[:2]); xs.append(x)
x = torch.zeros(4, dtype=torch.float32); x += {v}; xs.append(x.double())
x = torch.zeros(4, dtype=torch.bool); x[1:] = {v}[1:] > {t}; xs.append(torch.where(x, {v}, {v}))
x = [torch.zeros(4, dtype=torch.double)] * 2; x[0] += {v}; xs.append(x[1])

with torch.no_grad():
    {block}

with torch.no_grad():
    x = {v} * 1
    x += {v}
    y = torch.zeros(4, dtype=torch.double)
    y[1:] = x[1:]
xs.append(y + x)

with torch.autocast("cpu", enabled=False):
    {block}

with torch.enable_grad():
    {block}
"""

OF_NUMPY = """
xs.append(np.concatenate([{v}, {v}])[2:6])
xs.append(np.outer({v}, {v})[{k}])
xs.append({v}.astype(np.float32).astype(float))
xs.append({v}.astype(np.float32) * np.float32(2))
xs.append(({v} * 7.31).astype(int))
xs.append(np.sort({v}))
xs.append({v}[distinct({v}).argsort()])
xs.append(np.clip({v}, -0.5, 0.5))
xs.append(np.linalg.norm({v} + 3))
xs.append(np.cumsum({v}))
xs.append({v}.std())
xs.append({v}.dot({v}))
xs.append(np.maximum({v}, 0))
xs.append({v}[{v} > {t}].sum())
xs.append(np.flip({v}))
xs.append(np.vstack([{v}, {v}]).ravel())
xs.append({v}.copy())
xs.append(copy.copy({v}))
xs.append(np.zeros(2) + {v}[:2])
xs.append(np.full(2, float({s})))
xs.append(np.array([float({s}), 1.0]))
xs.append(np.array({v}))
xs.append(np.float32(2) * {v})
xs.append(np.add.reduce({v}))
xs.extend(np.split({v}, 2))
xs.append(np.tile({v}, 2)[2:6])
xs.append(np.repeat({v}, 2))
xs.append(np.roll({v}, 1))
xs.append(np.pad({v}, 1))
xs.append(np.einsum("i,j->j", {v}, {v}))
xs.append(np.var({v}) + np.median({v}))
xs.append(np.take({v}, [0, 2]))
xs.append(np.diff({v}))
xs.append(np.trace({v}.reshape(2, 2)))
xs.append(np.inner({v}, {v}))
xs.append(np.expand_dims({v}, 0).squeeze())
xs.append(np.atleast_2d({v}))
xs.append(np.isfinite({v}) & ({v} > {t}))
xs.append(np.where({v} > {t}, {v}, 0.0))
xs.append(np.swapaxes({v}.reshape(2, 2), 0, 1))
xs.append(np.hypot({v}, {v}) + np.arctan2({v}, 2))
xs.append(np.multiply.outer({v}, {v})[{k}])
xs.append({v}.round(2))
xs.append({v} // 0.7)
xs.append({v}.astype(np.float32).sum(dtype=float))
xs.append(np.mean([{s}, {s}]))
xs.append(np.max(np.stack([{v}, {v}]), axis=0))
xs.append(np.array([{s}, {s}]))
xs.append(np.asarray({v}) * 2)
xs.append(np.linalg.solve({v}.reshape(2, 2) + 9 * np.eye(2), {v}[:2]))
xs.append(np.count_nonzero({v} > {t}) * {v})
notes.append(np.allclose({v}, {v}))
notes.append(float(np.float64({s})))
xs.append(np.nonzero({v} > {t})[0].sum())
notes.append(np.array2string({v} > {t}))
notes.append([{x}.size, np.shape({x}), np.ndim({x})])
notes.append({v}.astype(np.float32).dtype.name)
x = {v} * 1; np.add(x, {v}, out=x); xs.append(x)
x = {v} * 1; np.tanh(x, out=x); x -= {v}; xs.append(x)
x = np.zeros(4); np.cos({v}, out=x); xs.append(x)
x = {s}; x += {s}; xs.append(x)

with np.errstate(divide="ignore", invalid="ignore"):
    {block}

with np.errstate(over="ignore"):
    x = {v} * 1
    x /= {v} ** 2 + 1
xs.append(x)
"""


class Within:
    """A context that appends to a list at its end."""

    def __init__(self, xs: list[Any]) -> None:
        self.xs = xs
        self.held: list[Any] = []

    def __enter__(self) -> list[Any]:
        return self.held

    def __exit__(self, *_: object) -> None:
        self.xs.extend(self.held)


class Stop(Exception):
    """What programs raise by themselves."""


@dataclass
class Node:
    """A tree with what a program may keep on it."""

    word: int
    value: Any
    own: Any
    children: list[Node]
    state: Any = None
    kept: list[Any] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)

    def within(self) -> Iterator[Node]:
        """Yield the nodes of the tree."""
        yield self
        for child in self.children:
            yield from child.within()


class Unit:
    """An object of which a method is a cell."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def turned(self, x: Any) -> Any:
        return x @ self.w.T


HEAD = """\
def program(node, shared, is_top=True):
    xs = [layer(node.value)]
    xs.extend([program(child, shared, False) for child in node.children])
    notes, rates = [], []
"""
TAIL = """\
    return {'xs': xs, 'notes': notes, 'rates': rates} if is_top else vector(xs[-1])
"""


def snippets(table: str) -> list[str]:
    """Return the statements of a table: the lines of its first part, and each other part."""
    lines, *parts = table.strip().split("\n\n")
    return [*lines.split("\n"), *parts]


class Program:
    """A random program.

    Parameters
    ----------
    seed : int
        What it is drawn by, with its examples.
    framework : Torch or Numpy
        What its names stand for.
    statements : list of str, optional
        Those that it consists of; drawn if not given.
    """

    def __init__(self, seed: int, framework: Any, statements: list[str] | None = None) -> None:
        self.seed = seed
        self.framework = framework
        rng = random.Random(seed)
        drawn = [self.statement(rng) for _ in range(rng.randrange(3, 11))]
        self.statements = drawn if statements is None else statements
        self.collects, self.is_model, self.has_leaves = [rng.random() < 0.3 for _ in range(3)]

    def statement(self, rng: random.Random, depth: int = 0) -> str:
        """Draw a statement."""
        tables = self.framework.tables
        text = rng.choice(tables[rng.choices(range(3), [10, 7, 0.12])[0]])
        if depth > 1 and "{block}" in text:
            return "xs.append(layer(vector(xs[-1])))"
        drawn = {
            "x": lambda: f"xs[{rng.randrange(20)} % len(xs)]",
            "v": lambda: f"vector(xs[{rng.randrange(20)} % len(xs)])",
            "s": lambda: f"vector(xs[{rng.randrange(20)} % len(xs)])[{rng.randrange(4)}]",
            "c": lambda: rng.choice(self.framework.constants),
            "i": lambda: str(rng.randrange(-4, 4)),
            "k": lambda: str(rng.randrange(2)),
            "p": lambda: str(rng.randrange(20)),
            "t": lambda: str(round(rng.uniform(-0.4, 0.6), 4) + 0.00037),
        }
        text = re.sub(r"\{([xvscikpt])\}", lambda found: drawn[found[1]](), text)
        lines = []
        for line in text.split("\n"):
            if line.strip() == "{block}":
                inner = "\n".join([self.statement(rng, depth + 1) for _ in range(rng.randrange(1, 3))])
                line = textwrap.indent(inner, line[: -len("{block}")])
            lines.append(line)
        return "\n".join(lines)

    @property
    def text(self) -> str:
        """Its code."""
        return HEAD + textwrap.indent("\n".join(self.statements), "    ") + "\n" + TAIL

    def made(self) -> Callable[..., Any]:
        """Return it as a function."""
        name = f"<program {self.seed}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = {**NAMES, **self.framework.names, "__name__": "plain_program"}
        exec(compile(self.text, name, "exec"), names)
        return names["program"]

    def examples(self, which: int) -> list[Node]:
        """Draw trees."""
        rng = random.Random(f"{self.seed} {which}")
        numbers = np.random.default_rng([self.seed, which])

        def tree(depth: int) -> Node:
            children = [tree(depth - 1) for _ in range(rng.randrange(3))] if depth else []
            value, own = [self.framework.array(numbers.normal(size=4)) for _ in range(2)]
            if self.has_leaves:
                value = self.framework.leaf(value)
            return Node(rng.randrange(20), value, own, children)

        return [tree(rng.randrange(3)) for _ in range(rng.randrange(1, 6))]


NAMES = {
    "np": np,
    "copy": copy,
    "functools": functools,
    "operator": operator,
    "Stop": Stop,
    "Within": Within,
    "divided": lambda x, by: x / by,
    "multifold": multifold,
}


# ---- comparison --------------------------------------------------------------------------------------

REFUSALS = {
    "a view of what was changed": "shares its memory",
    "a read that loses the gradient": "would have no gradient",
    "memory that something else sees": "that is not pending",
    "a change in no_grad": "would take the gradient",
    "a change of what is many times the same": "are one, as those of expand",
}
"""What the programs do that docs/plain.md says is refused."""


LOOP_ONLY = ("is a view and is being modified inplace", "refers to a single memory location")
"""What PyTorch refuses of parts that were taken together, or are many times the same; here they do it."""


@dataclass
class Outcome:
    """What running a program for some examples has led to."""

    results: list[Any]
    failures: dict[int, BaseException]
    nodes: list[Node]
    slopes: list[Any] = field(default_factory=list)


def looped(program: Program, fn: Callable[..., Any], examples: list[Node]) -> Outcome:
    """Run it for one example after the other."""
    found = Outcome([], {}, examples)
    for number, node in enumerate(examples):
        try:
            found.results.append(fn(node, shared=program.framework.shared))
        except Exception as error:  # noqa: BLE001 - a random program may fail in any way
            found.failures[number] = error
            if not program.collects:
                break
    found.slopes = program.framework.slopes(found)
    return found


def batched(program: Program, run: Any, examples: list[Node], wanted: Outcome) -> Outcome:
    """Run it for all examples at once."""
    found = Outcome([], {}, examples)
    try:
        results = run(examples, shared=program.framework.shared)
    except Exception as error:  # noqa: BLE001
        found.failures[min(wanted.failures, default=0)] = error
    else:
        found.results, found.failures = results if program.collects else (results, {})
        found.results = found.results or []
    found.slopes = program.framework.slopes(found)
    return found


def why_refused(found: Outcome) -> str | None:
    """Return why multifold has refused an example, if it has."""
    for error in found.failures.values():
        if isinstance(error, multifold.MultifoldError):
            text = str(error)
            return next((why for why, part in REFUSALS.items() if part in text), None)
    return None


def compared(program: Program) -> str | None:
    """Compare a program with the loop, for two lists of examples; return why it was refused, if it was."""
    fn = program.framework.model(program.made()) if program.is_model else program.made()
    options = {"join": "list", "backend": program.framework.name, "ops": [Unit.turned]}
    run = multifold.batched(fn, on_error="collect" if program.collects else "raise", **options)
    rates: list[float] = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for which in range(2):
            wanted = looped(program, fn, program.examples(which))
            if any(text in str(error) for text in LOOP_ONLY for error in wanted.failures.values()):
                return None
            found = batched(program, run, program.examples(which), wanted)
            why = why_refused(found)
            if why is not None:
                return why
            assert_same(program, wanted, found)
            rates += [float(x) for result in found.results for x in result["rates"]]
    assert len(rates) < 16 or 0.25 < np.mean(rates) < 0.75
    return None


def assert_same(program: Program, wanted: Outcome, found: Outcome) -> None:
    """Assert that two runs have led to the same: results, failures, gradients, and what is on the trees."""
    kinds = [{i: type(x) for i, x in sorted(y.failures.items())} for y in (wanted, found)]
    assert kinds[0] == kinds[1], {**wanted.failures, "batched": found.failures}
    for i, error in wanted.failures.items():
        if isinstance(error, Stop):
            assert error.args == found.failures[i].args
    same = program.framework.same
    if program.collects or not wanted.failures:
        for x, y in zip(wanted.results, found.results, strict=True):
            same({**x, "rates": len(x["rates"])}, {**y, "rates": len(y["rates"])}, 1e-6)
        if wanted.slopes is not None:
            same(wanted.slopes, found.slopes, 1e-5)
    end = len(wanted.nodes) if program.collects else min(wanted.failures, default=len(wanted.nodes)) + 1
    for one, other in zip(wanted.nodes[:end], found.nodes[:end], strict=True):
        for x, y in zip(one.within(), other.within(), strict=True):
            same([x.state, x.kept, x.table, x.own], [y.state, y.kept, y.table, y.own], 1e-6)


def same_trees(x: Any, y: Any, same: Callable[[Any, Any], None]) -> None:
    """Compare two structures leaf by leaf."""
    one, other = [optree.tree_flatten(z, none_is_leaf=True) for z in (x, y)]
    assert one[1] == other[1], (x, y)
    for a, b in zip(one[0], other[0], strict=True):
        same(a, b)


def shrunk(program: Program) -> Program:
    """Leave out statements as long as the program fails."""

    def fails(statements: list[str]) -> bool:
        try:
            compared(Program(program.seed, program.framework, statements))
        except SyntaxError:
            return False
        except Exception:  # noqa: BLE001
            return True
        return False

    left = [*program.statements]
    for size in itertools.chain([4, 2], [1] * 3):
        for start in reversed(range(0, len(left), size)):
            fewer = left[:start] + left[start + size :]
            if fails(fewer):
                left = fewer
    return Program(program.seed, program.framework, left)


# ---- frameworks --------------------------------------------------------------------------------------


class Numpy:
    """What names stand for in programs of NumPy."""

    name = "numpy"
    constants = ("2", "0.5", "-1.0", "True", "np.float64(1.5)", "np.int64(3)", "CONSTANT[1]")

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        u = rng.normal(size=(4, 4)) / 2
        self.tables = [snippets(EVERYWHERE), snippets(OF_NUMPY), snippets(RARE)]
        self.shared = rng.normal(size=4)

        def vector(x):
            """Return four numbers of an array, whatever its shape."""
            flat = np.reshape(x, -1)
            if not flat.shape[0]:
                return np.zeros(4)
            return np.concatenate([flat] * 4)[:4] * 1.0

        @multifold.op
        def layer(x):
            return np.tanh(x @ u + 0.1)

        @multifold.op
        def cell(x, y):
            return np.tanh(x) * y

        @multifold.op
        def pair(x):
            return x * 2, x.sum()

        @multifold.op(rows=True)
        def of_rows(x):
            return x @ u

        self.names = {
            "vector": vector,
            "layer": layer,
            "cell": cell,
            "pair": pair,
            "of_rows": of_rows,
            "unit": Unit(u),
            "U": u,
            "CONSTANT": rng.normal(size=4),
            "array": np.ndarray,
            "BACKEND": "numpy",
            "tanh": np.tanh,
            "cat": np.concatenate,
            "stack": np.stack,
            "where": np.where,
            "zeros": np.zeros,
            "zeros_like": np.zeros_like,
            "ones_like": np.ones_like,
            "norm": lambda x: np.sqrt((x * x).sum()),
            "distinct": lambda x: x + np.arange(4) * 0.013,
            "is_float": lambda x: x.dtype.kind == "f",
        }

    def array(self, x):
        return x

    leaf = array

    def model(self, fn):
        """Return a method of an object."""

        class Model:
            def __init__(self):
                self.fn = fn

            def run(self, node, shared):
                return self.fn(node, shared)

        return Model().run

    def slopes(self, found):
        return []

    def same(self, x, y, within):
        def leaves(one, other):
            if isinstance(one, (np.ndarray, np.generic)):
                assert isinstance(other, np.ndarray) == isinstance(one, np.ndarray), (one, other)
                assert one.dtype == other.dtype and one.shape == other.shape, (one, other)
                np.testing.assert_allclose(one, np.asarray(other), rtol=within, atol=within)
            else:
                same_python(one, other, within)

        same_trees(x, y, leaves)


class Torch:
    """What names stand for in programs of PyTorch."""

    name = "torch"
    constants = (
        *("2", "0.5", "-1.0", "True", "np.float64(1.5)", "np.int64(3)", "CONSTANT[1]"),
        *("torch.tensor(2.0)", "torch.tensor(3)", "np.float32(0.25)"),
    )

    def __init__(self) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        self.torch = torch
        self.tables = [snippets(EVERYWHERE), snippets(OF_TORCH), snippets(RARE)]
        u = torch.randn(4, 4, dtype=torch.double) / 2

        @multifold.op
        class Combined(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 4)

            def forward(self, x, y):
                return torch.tanh(self.lin(torch.cat([x, y])))

        class Squared(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, slope):
                return 3 * slope * ctx.saved_tensors[0]

        parts = {
            "lin": nn.Linear(4, 4),
            "norms": nn.LayerNorm(4),
            "net": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)),
            "gru": nn.GRUCell(4, 4),
            "lstm": nn.LSTMCell(4, 4),
            "table_of": nn.Embedding(5, 4),
            "conv": nn.Conv1d(1, 1, 3, padding=1),
            "conv2": nn.Conv2d(1, 1, 2, padding=1),
            "module": Combined(),
            "dropped": nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)).eval(),
        }
        self.parts = nn.ModuleDict(parts).double()
        unit = Unit(nn.Parameter(u.clone()))
        self.parameters = [*self.parts.parameters(), unit.w]
        self.shared = torch.randn(4, dtype=torch.double)
        lin = parts["lin"]

        def vector(x):
            """Return four numbers of a tensor, whatever its shape."""
            flat = x.reshape(-1)
            if not flat.numel():
                return torch.zeros(4, dtype=torch.double)
            return flat.double().repeat(4)[:4]

        @multifold.op
        def cell(x, y):
            return torch.tanh(lin(x)) * y

        @multifold.op
        def pair(x):
            return x * 2, x.sum()

        @multifold.op(rows=True)
        def of_rows(x):
            return x @ u

        self.names = {
            **parts,
            "vector": vector,
            "layer": lambda x: torch.tanh(lin(x)),
            "cell": cell,
            "pair": pair,
            "unit": unit,
            "of_rows": of_rows,
            "U": u,
            "CONSTANT": torch.randn(4, dtype=torch.double),
            "tanh": torch.tanh,
            "cat": torch.cat,
            "stack": torch.stack,
            "where": torch.where,
            "zeros_like": torch.zeros_like,
            "ones_like": torch.ones_like,
            "torch": torch,
            "F": nn.functional,
            "Squared": Squared,
            "INDEX": torch.tensor([1, 3]),
            "zeros": lambda size: torch.zeros(size, dtype=torch.double),
            "array": torch.Tensor,
            "BACKEND": "torch",
            "checkpoint": importlib.import_module("torch.utils.checkpoint").checkpoint,
            "norm": lambda x: x.norm(),
            "distinct": lambda x: x + torch.arange(4) * 0.013,
            "is_float": lambda x: x.dtype == torch.double,
        }

    def array(self, x):
        return self.torch.from_numpy(x).clone()

    def leaf(self, x):
        return x.requires_grad_()

    def model(self, fn):
        """Return a module that has the parameters."""
        nn, parts = self.torch.nn, self.parts

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = parts
                self.register_buffer("scale", parts["lin"].bias.detach() * 0 + 1)

            def forward(self, node, shared):
                return fn(node, shared)

        return Model().eval()

    def slopes(self, found):
        torch = self.torch
        leaves = [x for x in optree.tree_leaves([x["xs"] for x in found.results]) if x.requires_grad]
        for x in self.parameters:
            x.grad = None
        if leaves:
            weights = [1 + torch.arange(x.numel(), device=x.device).reshape(x.shape).cos() for x in leaves]
            try:
                sum([(x.double() * w).sum() for x, w in zip(leaves, weights, strict=True)]).backward()
            except RuntimeError as error:  # in the loop what is changed in place may be needed for that
                if "modified by an inplace operation" in str(error):
                    return None
                raise
        inputs = [node.value for tree in found.nodes for node in tree.within()]
        return [None if x.grad is None else x.grad.clone() for x in (*self.parameters, *inputs)]

    def same(self, x, y, within):
        torch = self.torch

        def leaves(one, other):
            if (one is None) != (other is None):  # a gradient: none, or one of zeros
                assert not (one if other is None else other).any()
            elif isinstance(one, torch.Tensor):
                forms = [(z.dtype, z.shape, z.requires_grad) for z in (one, other)]
                assert forms[0] == forms[1], (one, other)
                assert torch.allclose(one, other, rtol=within, atol=within, equal_nan=True), (one, other)
            else:
                same_python(one, other, within)

        same_trees(x, y, leaves)


def same_python(x: Any, y: Any, within: float) -> None:
    """Compare two values of Python."""
    assert type(x) is type(y), (x, y)
    if isinstance(x, float):
        np.testing.assert_allclose(x, y, rtol=within, atol=within)
    else:
        assert x == y, (x, y)


FRAMEWORKS = {"numpy": Numpy, "torch": Torch}
