"""Sources of functions compile to their code; pieces of functions keep the order of what they do."""

from __future__ import annotations

import ast
import functools
import linecache

import numpy as np
import pytest

from multifold.lazy.divided import DividedFunction
from multifold.lazy.source import source_of
from multifold.lazy.taken_out import ProgramNames

NAMES = ProgramNames(users={"node", "own"}, crooked={"node"}, pure={"tanh", "sum", "layer"}, stored={"act"})


class Parent:
    def method(self):
        return super().__init__()

    def private(self, x, *args, y=len, **kwargs):
        """A text."""
        return self.__x + x + functools.reduce(int, args)

    @staticmethod
    def annotated(x: list[int], y: int = 3) -> int:
        for number in range(y):
            x = [part for part in x if number]
        return Parent.annotated(x)


def bound(x):
    def inner(y):
        return x + inner(y)

    return inner


@pytest.mark.parametrize("fn", [Parent.method, Parent.private, Parent.annotated, bound, bound(1)])
def test_the_source_of_a_function_compiles_to_its_code(fn):
    assert source_of(fn).tree.name == fn.__name__


@pytest.mark.parametrize("fn", [lambda x: x, len, Parent, functools.lru_cache(bound), (x for x in "")])
def test_other_things_have_no_source(fn):
    assert source_of(fn) is None


def made(text, name="f", file="<divided>"):
    """Return a function whose source is a text."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"__name__": "divided"}
    exec(compile(text, file, "exec"), names)
    return names[name]


def test_a_source_that_has_changed_since_is_not_taken():
    fn = made("def f(x):\n    return x + 1\n")
    assert source_of(fn) is not None
    made("def f(x):\n    return x + 2\n")
    assert source_of(fn) is None


def calls_in(lines, names=NAMES):
    """Return the statements of the body of ``def f(self, x, y, tree)`` that call pieces, as texts."""
    body = "\n".join(f"    {line}" for line in lines)
    divided = DividedFunction(made(f"def f(self, x, y, tree):\n{body}\n    return x, y\n"), names)
    if not divided.pieces:
        return []
    pieces = {f"piece{number}": piece for number, piece in enumerate(divided.pieces)}
    tree = ast.fix_missing_locations(divided.with_calls(pieces))
    return [text for text in map(ast.unparse, tree.body) if "piece" in text]


@pytest.mark.parametrize(
    ("lines", "calls"),
    [
        (["z = x.tanh() * y", "x = z + 1"], ["x = piece0(x, y)"]),
        (["x, y = x.tanh() * 2, y + x"], ["x, y = piece0(x, y)"]),
        (["x = x.tanh() * tree.word"], ["x = piece0(x, tree.word)"]),
        (["x = x * tree[0] + tree[1].word"], ["x = piece0(x, tree[0], tree[1].word)"]),
        (["x = node(tree[0]) * 2 + y"], ["x = piece0(y, node(tree[0]))"]),
        (["x = x * 2 + tensor(tree)"], []),  # it might be any function
        (["x = y * 2 + x * node(tree)"], []),  # it would come first
        (
            ["x = x * 2 + own(y)", "y = x * tree.word + y"],
            ["x = piece0(x, y)", "y = piece1(x, y, tree.word)"],
        ),
        (["x = x * tree.own + y"], ["x = piece0(x, y, tree.own)"]),
        (["x = x * y + tree.own"], []),
        (["x = node(x) * tree.own + y"], ["x = piece0(y, node(x), tree.own)"]),
        (["x = x.tanh() * 2", "y = y * x.item()", "y = y + x * 2"], ["x = piece0(x)", "y = piece1(y, x)"]),
        (["x = x * 2 if y else x * 3"], []),
        (["x = x.mul_(2) + y"], []),
        (["x = x.sum(out=y) + y"], []),
        (["x = print(x) + y"], []),
        (["x = x.tanh()"], []),
        (["z = x * 2 + y", "x = z + len(locals())"], []),
    ],
)
def test_statements_that_compute_become_calls_of_pieces(lines, calls):
    assert sorted(calls_in(lines)) == calls


class Counted:
    """A number that notes how it is used, and an object with the effects that a user's class may have."""

    def __init__(self, value):
        self.value, self.uses, self.others = value, 0, [1.0, 2.0, 3.0]

    def __mul__(self, other):
        self.uses += 1
        return self.value * other

    def sum(self):
        return self.value

    def relu(self):
        self.value = max(self.value, 0.0)
        return self.value

    def node(self, x):
        self.tanh = lambda y: y * 100
        return x

    def tanh(self, x):
        return x / 2


def names_of_a_comprehension(self, x, n):
    vs = [x, n]
    a = np.asarray([v for v in vs + vs if v]).sum() * 2 + x
    v = self.tanh(x) + 1
    if n:
        return v + a
    return v


def a_parameter_that_a_function_inside_assigns(self, x, n):
    def bump():
        nonlocal x
        x = x + 10
        return x * 2

    y = self.tanh(n) * 2 + n
    if n:
        x += bump()
    return x, bump() + y, y * 2


def assigns_inside(self, x, n):
    y = self.tanh(n) * 2 + n
    if n:
        return x, (x := y * 2 + 1), x
    return y


def changes_what_it_takes_later(self, x, n):
    y = self.relu() * 2 + x
    z = y * 2 + np.asarray([self.sum()]).sum()
    if n:
        return z
    return y


def consumes(self, x, n):
    it = iter(self.others)
    y = x * sum(zip_of(it, 2)) + n
    z = y * 2 + np.asarray(list(it)).sum()
    if n:
        return z
    return y


def zip_of(it, n):
    return [next(it) for _ in range(n)]


def uses_an_operator_with_effects(self, x, n):
    a = self
    y = a * x + 1
    z = y * 2 + np.asarray([a.uses]).sum() * a.uses
    if n:
        return z
    return y


def looks_up_what_a_call_stores(self, x, n):
    y = self.tanh(self.node(x)) * 2 + n
    if n:
        return y
    return x


ODD = [
    names_of_a_comprehension,
    a_parameter_that_a_function_inside_assigns,
    assigns_inside,
    changes_what_it_takes_later,
    consumes,
    uses_an_operator_with_effects,
    looks_up_what_a_call_stores,
]


@pytest.mark.parametrize("fn", ODD, ids=lambda fn: fn.__name__)
def test_a_divided_function_does_what_it_did(fn):
    users = {"node", "__mul__", "zip_of"}
    names = ProgramNames(users, crooked={"node"}, pure={"tanh", "relu", "sum"}, stored={"tanh"})
    made = DividedFunction(fn, names).function_now(lambda piece: piece) or fn
    for n in (0, 1):
        assert made(Counted(-1.5), 0.5, n) == fn(Counted(-1.5), 0.5, n)


class Private:
    def method(self, x):
        __y = x
        if x:
            x = __y * 3 + x
        return x


def test_variables_that_python_renames_are_left_alone():
    assert not DividedFunction(Private.method, NAMES).pieces
