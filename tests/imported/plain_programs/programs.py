"""Random plain programs, as text: each is a function of a tree that works as the loop runs it.

`Program(seed, framework)` draws statements from the tables of `plain_programs.statements`, and from those
of the kinds that it has, of `plain_programs.kinds`. They work on a list ``xs`` of arrays, on ``notes``, a
list of what was read, on the tree ``node`` itself, and on the things of a world, which examples share. In
them ``{x}`` is any of the arrays, ``{v}`` four numbers of one, ``{s}`` one number, ``{n}`` a number that
makes names of their own, and ``{block}`` statements. So a program stays one when statements are left out.
"""

from __future__ import annotations

import contextlib
import copy
import decimal
import functools
import io
import linecache
import operator
import os
import random
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

import multifold
from plain_programs.world import FOLDERS, Told, inside


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


NAMES = {
    **{module.__name__: module for module in (contextlib, copy, decimal, functools, io, operator, os, sys)},
    **{module.__name__: module for module in (mock, multifold, random, warnings)},
    "mock": mock,
    "np": np,
    "Stop": Stop,
    "Within": Within,
    "Told": Told,
    "FOLDERS": FOLDERS,
    "inside": inside,
    "divided": lambda x, by: x / by,
}

HEAD = """\
def program(node, shared, is_top=True):
    xs = [layer(node.value)]
    xs.extend([program(child, shared, False) for child in node.children])
    notes, rates = [], []
"""
TAIL = """\
    return {'xs': xs, 'notes': notes, 'rates': rates} if is_top else vector(xs[-1])
"""


@dataclass(frozen=True)
class Statement:
    """A statement of a program, with the statements of its blocks.

    Attributes
    ----------
    text : str
        Its code, where a line ``{block}`` stands for statements.
    kind : str
        The kind of the table that it is from; ``""`` for those of any program.
    blocks : tuple of tuple of Statement
        The statements for each such line.
    """

    text: str
    kind: str = ""
    blocks: tuple[tuple[Statement, ...], ...] = ()

    @property
    def code(self) -> str:
        """Its code."""
        blocks = iter(self.blocks)
        lines = []
        for line in self.text.split("\n"):
            if line.strip() == "{block}":
                line = textwrap.indent(code_of(next(blocks)), line[: -len("{block}")])
            lines.append(line)
        return "\n".join(lines)

    @property
    def kinds(self) -> set[str]:
        """Its kind, and those of the statements in its blocks."""
        return {self.kind}.union(*[x.kinds for block in self.blocks for x in block]) - {""}


def code_of(statements: Sequence[Statement]) -> str:
    """Return the code of some statements."""
    return "\n".join([x.code for x in statements]) or "pass"


class Program:
    """A random program.

    Parameters
    ----------
    seed : int
        What it is drawn by, with its examples.
    framework : Torch, Numpy, Jax or Tensorflow
        What its names stand for.
    kinds : sequence of str, optional
        The kinds that it has statements of; drawn if not given: none, or up to two.
    statements : sequence of Statement, optional
        Those that it consists of; drawn if not given.
    """

    def __init__(
        self,
        seed: int,
        framework: Any,
        kinds: Sequence[str] | None = None,
        statements: Sequence[Statement] | None = None,
    ) -> None:
        self.seed = seed
        self.framework = framework
        rng = random.Random(seed)
        self.kinds = self.drawn_kinds(rng) if kinds is None else tuple(kinds)
        self.collects, self.is_model, self.has_leaves = [rng.random() < 0.3 for _ in range(3)]
        self.is_traced = "traces" in self.kinds
        self.has_seed = "seeds" in self.kinds
        if self.is_traced:  # a trace takes no leaves of the caller, and is that of one example that works
            self.collects = self.has_leaves = False
        if self.has_seed:
            self.collects = True
        self.statements = [*statements] if statements is not None else self.drawn(rng)

    def drawn_kinds(self, rng: random.Random) -> tuple[str, ...]:
        """Draw kinds: those that go with traces, or any."""
        known = [*self.framework.kinds]
        found = rng.sample(known, min(rng.randrange(3), len(known)))
        if "traces" in found:
            return tuple([kind for kind in found if kind in ("traces", "derivatives", "weights")])
        return tuple(found)

    def drawn(self, rng: random.Random) -> list[Statement]:
        """Draw statements, one of each kind at least."""
        found = [self.statement(rng) for _ in range(rng.randint(2, self.framework.most))]
        for kind in self.kinds:
            found.insert(rng.randrange(len(found) + 1), self.statement(rng, kind=kind))
        return found

    def statement(self, rng: random.Random, depth: int = 0, kind: str | None = None) -> Statement:
        """Draw a statement of a kind, or of any that the program has."""
        if kind is None:
            kind = rng.choice(self.kinds) if self.kinds and rng.random() < 0.4 else ""
        if kind:
            table = self.framework.kinds[kind]
        elif self.is_traced:
            table = self.framework.unread
        else:
            table = rng.choices(self.framework.tables, [10, 7, 0.12])[0]
        text = rng.choice(table)
        if depth > 1 and "{block}" in text:
            return Statement("xs.append(layer(vector(xs[-1])))")
        number = rng.randrange(1000)
        drawn = {
            "x": lambda: f"xs[{rng.randrange(20)} % len(xs)]",
            "v": lambda: f"vector(xs[{rng.randrange(20)} % len(xs)])",
            "s": lambda: f"vector(xs[{rng.randrange(20)} % len(xs)])[{rng.randrange(4)}]",
            "c": lambda: rng.choice(self.framework.constants),
            "i": lambda: str(rng.randrange(-4, 4)),
            "k": lambda: str(rng.randrange(2)),
            "p": lambda: str(rng.randrange(20)),
            "t": lambda: str(round(rng.uniform(-0.4, 0.6), 4) + 0.00037),
            "n": lambda: str(number),
        }
        text = re.sub(r"\{([xvscikptn])\}", lambda found: drawn[found[1]](), text)
        count = sum(line.strip() == "{block}" for line in text.split("\n"))
        blocks = [
            tuple([self.statement(rng, depth + 1) for _ in range(rng.randrange(1, 3))])
            for _ in range(count)
        ]
        return Statement(text, kind, tuple(blocks))

    def with_statements(self, statements: Sequence[Statement]) -> Program:
        """Return the program with other statements."""
        return Program(self.seed, self.framework, self.kinds, statements)

    @property
    def text(self) -> str:
        """Its code.

        One that meets bad examples keeps all that it has asked for: a call whose result nobody keeps is not
        computed, so its error does not come.
        """
        keeps = "    node.every = xs\n" if "bad" in self.kinds else ""
        return HEAD + keeps + textwrap.indent(code_of(self.statements), "    ") + "\n" + TAIL

    def made(self, world: dict[str, Any]) -> Callable[..., Any]:
        """Return it as a function in a world."""
        name = f"<program {self.seed}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        names = {**NAMES, **self.framework.names, **world, "__name__": "plain_program"}
        exec(compile(self.text, name, "exec"), names)
        return names["program"]

    def examples(self, which: int) -> list[Node]:
        """Draw trees; some numbers of them are not finite if the program has to do with bad examples."""
        rng = random.Random(f"{self.seed} {which}")
        numbers = np.random.default_rng([self.seed, which])

        def tree(depth: int) -> Node:
            children = [tree(depth - 1) for _ in range(rng.randrange(3))] if depth else []
            value, own = [numbers.normal(size=4) for _ in range(2)]
            if "bad" in self.kinds and rng.random() < 0.15:
                value[rng.randrange(4)] = rng.choice([np.nan, np.nan, np.inf, -np.inf])
            value, own = self.framework.array(value), self.framework.array(own)
            if self.has_leaves:
                value = self.framework.leaf(value)
            return Node(rng.randrange(20), value, own, children)

        depth = self.framework.depth
        return [tree(rng.randint(0, depth)) for _ in range(rng.randrange(1, 6))]
