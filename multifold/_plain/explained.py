"""What the explanation of a plain program adds: what to make cells of, and why its loop may be faster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from multifold.explain import Explanation, RoundsExplanation

FEWEST_CALLS = 100
"""A run with fewer calls has nothing to gain."""

LEAST_SHARE = 0.1
"""The smallest share of the calls of a run for which a function is named."""

FEW_ROWS = 8
"""A launch takes as long as some eight small calls: to put its operands together, and to hand them out."""

SMALL = 4096
"""A function of an array of so many numbers runs about as fast as it is recorded."""


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


class PlainExplanation(RoundsExplanation):
    """The explanation of a run of a plain program: what `Fold.explain` returns, and why it may be slow.

    Attributes
    ----------
    explanation : Explanation
        What `Fold.explain` returns, which has the same text without that.
    glue : list of Glue
        At most three functions that have recorded a tenth of all calls or more, those with most first.
    slow : list of str
        Why the loop over the examples is expected to be as fast, or faster; from counts, not from times.
    """

    def __init__(self, explanation: Explanation, graph: Any, examples: int | None = None) -> None:
        super().__init__(explanation.rounds)
        self.explanation = explanation
        self.glue = glue_of(graph)
        self.slow = [*why_slow(explanation, graph, examples)] if len(graph.signature) else []

    def __repr__(self) -> str:
        return repr(self.explanation)

    def __str__(self) -> str:
        parts = [str(self.explanation)]
        if self.glue:
            lines = "\n".join(f"  {glue}" for glue in self.glue)
            parts.append(
                f"Functions that record calls one by one; as a cell, each is one call:\n{lines}\n"
                "  hint: batched(fn, ops=[...]), or multifold.op above the function"
            )
        return "\n\n".join([*parts, *self.slow])


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


def why_slow(explanation: Explanation, graph: Any, examples: int | None) -> Iterator[str]:
    """Yield why a run is expected to be no faster than the loop."""
    calls = sum([len(part.calls) for part in explanation.rounds])
    launches, rounds = len(explanation), len(explanation.rounds)
    if launches and calls / launches < FEW_ROWS:
        among = "" if examples is None else f" for {examples:,} examples"
        waits = f"{rounds:,} rounds{among}, with " if rounds > 1 else ""
        fewer = "; each read is a round, so read fewer values" if rounds > 1 else ""
        yield (
            f"Expected to be slower than the loop where arrays are small: {waits}{calls / launches:,.1f} "
            f"rows a launch, which takes as long as some {FEW_ROWS} small calls.\n"
            f"  hint: run more examples at once{fewer}"
        )
    kinds = Counter(graph.signature)
    ops = [signature.op for signature in graph.signatures]
    small = sum([n for kind, n in kinds.items() if is_small_glue(ops[kind])])
    share = small / len(graph.signature)
    if share > 0.5 and not any(getattr(x, "requires_grad", False) for op in ops for x in forms_of(op)):
        yield (
            f"Expected to be no faster than the loop: {share:.0%} of the calls are functions of small "
            "arrays without gradients, which run as fast as they are recorded.\n"
            "  hint: make cells of the functions that record them"
        )


def forms_of(op: Any) -> Any:
    """Return the forms of the results of a call of a plain program."""
    return getattr(op, "forms", ())


def is_small_glue(op: Any) -> bool:
    """Return whether a call is one of a function of the framework whose results are small."""
    sizes = [math.prod(form.shape) for form in forms_of(op)]
    return not getattr(op, "is_cell", True) and sum(sizes) <= SMALL
