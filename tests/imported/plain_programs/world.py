"""What programs share: objects of a world, made anew for each run, and settings of the process.

A program changes these at random places. `left` tells what it has left on them, for the loop and the run to
be compared, and `settled` gives a run the same settings of the process to begin with, and puts them back.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import decimal
import io
import itertools
import logging
import os
import random
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import multifold

FOLDERS = [os.path.realpath(tempfile.gettempdir()), os.path.abspath(os.sep)]
"""Folders that programs go into."""


class Box:
    """An object with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Told(UserWarning):
    """What programs warn of."""


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Work in another folder."""
    old = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(old)


def world(framework: Any) -> dict[str, Any]:
    """Return the names of a new world, with arrays of a framework."""
    names = {**scopes(), **stores(framework)}
    return {**names, **cells(framework, names)}


def scopes() -> dict[str, Any]:
    """Return what programs hold open or change and put back."""
    stack: list[Any] = []

    class Handler:
        """A scope as libraries have it: a stack of the module holds those that are open."""

        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __enter__(self) -> Handler:
            stack.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            assert stack.pop() is self, "another scope was on top"

    class Settings:
        factor = 1.0

    def helper(x: Any) -> Any:
        return x * helper.factor

    helper.factor = 1.0
    tools = types.ModuleType("tools")
    tools.depth, tools.scaled = 0, lambda x: x * 2
    logger = logging.Logger("plain")
    logger.setLevel(10)
    return {
        "STACK": stack,
        "Handler": Handler,
        "top": lambda: stack[-1].scale if stack else 1.0,
        "LOCK": threading.Lock(),
        "RLOCK": threading.RLock(),
        "HELD": [],
        "Settings": Settings,
        "helper": helper,
        "tools": tools,
        "LOCAL": threading.local(),
        "VAR": contextvars.ContextVar("VAR", default=0),
        "TABLE": {"a": 1, "b": 2},
        "LOGGER": logger,
    }


def stores(framework: Any) -> dict[str, Any]:
    """Return what programs store into."""
    steps = 0
    zeros = framework.names["zeros"]

    def stepped() -> int:
        nonlocal steps
        steps += 1
        return steps

    def remembered(x: Any, kept: list[Any] = []) -> Any:  # noqa: B006 - what programs do
        kept.append(x)
        return len(kept)

    remembered.__defaults__ = ([],)

    class Counted:
        n = 0

    arrays = {name: zeros(4) for name in ("total", "best", "average", "state")}
    return {
        "tally": Box(n=0, last=None, largest=-9.0, history=(), queue=[], kept=None, **arrays),
        "Counted": Counted,
        "LOG": [],
        "STATS": {"loss": 0.0, "seen": 0},
        "SEEN": set(),
        "COUNTS": collections.Counter(),
        "NUMBERS": itertools.count(),
        "stepped": stepped,
        "remembered": remembered,
        "QUEUE": collections.deque(maxlen=3),
        "PAGE": io.StringIO(),
        "MEMO": {},
        "MEMORY": framework.memory(),
    }


def cells(framework: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Return cells that count, keep, write and draw."""
    tanh, layer = framework.names["tanh"], framework.names["layer"]
    top, settings = names["top"], names["Settings"]
    tally, log, stats = [names[name] for name in ("tally", "LOG", "STATS")]

    @multifold.cell
    def counting(x):
        tally.n += 1
        return tanh(x) * tally.n

    @multifold.cell
    def keeping(x):
        tally.kept = tanh(x) * 2
        return tally.kept + x

    @multifold.cell
    def listing(x):
        log.append(len(log))
        return x * log[-1]

    @multifold.cell
    def summing(x):
        stats["loss"] = stats["loss"] + x[0]
        return x * 2

    @multifold.cell
    def noting(x, node):
        node.table["noted"] = node.table.get("noted", 0) + 1
        return x * 1.5

    @multifold.cell
    def reading(x):
        return x * (2.0 if float(x[0]) > 0 else 0.5)

    @multifold.cell
    def branching(x):
        return layer(x) if x[0] > 0 else layer(x * 2)  # both need a gradient, as a launch does

    @multifold.cell
    def scaled_by_top(x):
        return tanh(x) * top()

    @multifold.cell
    def scaled_by_settings(x):
        return tanh(x) * settings.factor

    @multifold.cell
    def chancy(x):
        return x * 2 if random.random() < 0.5 else tanh(x)

    @multifold.cell
    def roughened(x):
        return x * (1 + 0.1 * np.random.normal())

    class Block:
        """An object whose cell counts its calls."""

        n = 0

        @multifold.cell
        def __call__(self, x):
            self.n += 1
            return tanh(x) + self.n

    made = [counting, keeping, listing, summing, noting, reading, branching, chancy, roughened]
    made += [scaled_by_top, scaled_by_settings]
    return {x.__name__: x for x in made} | {"block_of": Block()} | framework.cells()


# ---- what is left -------------------------------------------------------------------------------------

SHOWN: dict[str, Callable[[Any], Any]] = {
    "STACK": len,
    "LOCK": lambda x: x.locked(),
    "HELD": list,
    "Settings": lambda x: x.factor,
    "helper": lambda x: x.factor,
    "tools": lambda x: x.depth,
    "LOCAL": lambda x: dict(vars(x)),
    "VAR": lambda x: x.get(),
    "TABLE": dict,
    "LOGGER": lambda x: x.level,
    "tally": lambda x: dict(vars(x)),
    "Counted": lambda x: x.n,
    "LOG": list,
    "STATS": dict,
    "SEEN": sorted,
    "COUNTS": dict,
    "NUMBERS": repr,
    "stepped": lambda x: x(),
    "remembered": lambda x: [*x.__defaults__[0]],
    "QUEUE": list,
    "PAGE": lambda x: x.getvalue(),
    "MEMO": dict,
    "MEMORY": lambda x: x,
    "block_of": lambda x: x.n,
    "keeper": lambda x: {**x._buffers, "n": x.n},
}
"""How what is left on each object of a world is told."""


def left(names: dict[str, Any]) -> dict[str, Any]:
    """Return what is left on a world, and which settings of the process are other ones than at first."""
    told = {name: show(names[name]) for name, show in SHOWN.items() if name in names}
    return {**told, "word": os.environ.get("PLAIN_WORD"), "folder": os.getcwd()}


@contextlib.contextmanager
def settled(framework: Any) -> Iterator[None]:
    """Begin with the same settings of the process each time, and put them back at the end."""
    folder, word = os.getcwd(), os.environ.pop("PLAIN_WORD", None)
    decimals = decimal.getcontext().copy()
    random.seed(0)
    np.random.seed(0)
    with contextlib.ExitStack() as kept:
        kept.enter_context(warnings.catch_warnings())
        kept.enter_context(np.errstate(all="ignore"))
        kept.enter_context(np.printoptions())
        kept.enter_context(contextlib.redirect_stdout(io.StringIO()))
        kept.enter_context(framework.settled())
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            os.chdir(folder)
            decimal.setcontext(decimals)
            os.environ.pop("PLAIN_WORD", None)
            if word is not None:
                os.environ["PLAIN_WORD"] = word
