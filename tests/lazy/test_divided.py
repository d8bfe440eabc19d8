"""Sources of functions compile to their code; pieces of functions keep the order of what they do."""

from __future__ import annotations

import ast
import functools
import linecache

import pytest

from multifold.lazy.divided import DividedFunction
from multifold.lazy.source import source_of
from multifold.lazy.taken_out import ProgramNames

NAMES = ProgramNames(users={"node", "own"}, crooked={"node"}, harmless={"tanh", "sum", "layer"})


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
