"""Loops over examples as people write them, on which `multifold advise` is judged.

Each comes with the same program as calls of `multifold.Fold.add`, which is what a person has in the end:
the gain that is measured then is to lie between the bounds that were foretold from the loop alone. One
module a framework, imported when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from multifold.errors import RecordError


class PlainLoop(NamedTuple):
    """A program for one example, in two ways.

    Attributes
    ----------
    fn : callable
        ``fn(example)`` returns an array of one row or more.
    record : callable
        ``record(fold, example)`` returns the node of that row, or a list of nodes.
    model : object
        What has the parameters and the ops.
    examples : sequence
        What is computed.
    """

    fn: Callable[[Any], Any]
    record: Callable[[Any, Any], Any]
    model: Any
    examples: Sequence[Any]


class Case(NamedTuple):
    """A loop at one size, on one framework."""

    backend: str
    loop: str
    width: int
    train: bool

    @property
    def name(self) -> str:
        """What ``--case`` takes."""
        return f"{self.backend}-{self.loop}-{self.width}{'-train' if self.train else ''}"


CASES = {
    case.name: case
    for case in (
        Case("torch", "trees", 100, True),
        Case("torch", "trees", 300, True),
        Case("torch", "trees", 100, False),
        Case("torch", "child_sum", 64, True),
        Case("torch", "tagger", 64, True),
        Case("torch", "nested", 64, True),
        Case("torch", "typed", 64, True),
        Case("torch", "plans", 128, False),
        Case("torch", "exits", 128, False),
        Case("numpy", "trees", 200, False),
        Case("numpy", "sequences", 32, False),
        Case("numpy", "attention", 64, False),
    )
}
"""By name."""


def find(names: Sequence[str]) -> list[Case]:
    """Return cases by their names, all of them if there are none.

    Raises
    ------
    RecordError
        If there is no such case.
    """
    for name in names:
        if name not in CASES:
            raise RecordError(f"Expected cases out of {', '.join(CASES)}. Received {name!r}.")
    return [CASES[name] for name in dict.fromkeys(names or CASES)]


def make(case: Case, count: int) -> PlainLoop:
    """Return a loop over so many examples."""
    module = importlib.import_module(f"multifold_bench.loops.{case.backend}")
    made: PlainLoop = getattr(module, case.loop)(case.width, count)
    return made
