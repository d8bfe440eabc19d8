"""What `Batched.explain` adds to the explanation of a run: which functions to make cells of."""

from __future__ import annotations

from collections import Counter
from types import CodeType
from typing import Any, NamedTuple

FEWEST_CALLS = 100
"""A run with fewer calls has nothing to gain."""

LEAST_SHARE = 0.1
"""The smallest share of the calls of a run for which a function is named."""


class Glue(NamedTuple):
    """A function of the program, and the calls that it has recorded one by one.

    Attributes
    ----------
    name : str
        The qualified name of the function.
    place : str
        File and line.
    calls : int
        How many calls it has recorded that are no cells.
    share : float
        Of all calls of the run.
    """

    name: str
    place: str
    calls: int
    share: float

    def __str__(self) -> str:
        return f"{self.name} ({self.place}): {self.calls:,} calls, {self.share:.0%}"


class PlainExplanation:
    """The explanation of a run of a plain program; it has all that `Fold.explain` returns has.

    Attributes
    ----------
    glue : list of Glue
        At most three functions that have recorded a tenth of all calls or more, those with most first.
    """

    def __init__(self, explanation: Any, graph: Any) -> None:
        self.explanation = explanation
        self.glue = glue_of(graph)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.explanation, name)

    def __len__(self) -> int:
        return len(self.explanation)

    def __repr__(self) -> str:
        return repr(self.explanation)

    def __str__(self) -> str:
        if not self.glue:
            return str(self.explanation)
        lines = "\n".join(f"  {glue}" for glue in self.glue)
        return (
            f"{self.explanation}\n\nFunctions that record calls one by one; as a cell, each is one call:\n"
            f"{lines}\n  hint: batched(fn, ops=[...]), or multifold.op above the function"
        )


def glue_of(graph: Any) -> list[Glue]:
    """Return the functions of a program that have recorded most calls which are no cells."""
    total = len(graph.signature)
    if total < FEWEST_CALLS:
        return []
    is_glue = [not getattr(signature.op, "is_cell", True) for signature in graph.signatures]
    counts: Counter[CodeType] = Counter()
    for number, code in zip(graph.signature, graph.codes, strict=True):
        if is_glue[number] and isinstance(code, CodeType):
            counts[code] += 1
    found = [
        Glue(code.co_qualname, f"{code.co_filename}:{code.co_firstlineno}", calls, calls / total)
        for code, calls in counts.most_common(3)
    ]
    return [glue for glue in found if glue.share >= LEAST_SHARE]
