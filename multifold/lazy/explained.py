"""What the explanation of a plain program adds: what to make cells of, and why its loop may be faster."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from multifold.explain import Explanation, RoundsExplanation
from multifold.explain.reasons import count
from multifold.explain.text import aligned, extent
from multifold.lazy import changes
from multifold.lazy.calls import BY_ROWS
from multifold.lazy.candidates import LEAST_SHARE, Candidate, calls_of_functions, codes_of, glue_of
from multifold.lazy.found import CALLS_ITSELF, NEVER_CALLED, NO_CALL

FEW_ROWS = 8
"""A launch takes as long as some eight small calls: to put its operands together, and to hand them out."""

WAIT = 50
"""To wait for a value takes an example as long as some fifty small calls."""

IN_CELL = 10
"""So many small calls a cell is taken to be, which may be more or fewer."""

MOST_OPS = 4
"""So many ops are listed, those that take longest."""

SMALL = 4096
"""A function of an array of so many numbers runs about as fast as it is recorded."""


class LazyExplanation(RoundsExplanation):
    """What `Batched.explain` returns: the explanation of `Fold.explain`, and why the run may be slow.

    Attributes
    ----------
    explanation : Explanation
        What `Fold.explain` returns, which has the same text without that.
    glue : list of Candidate
        At most three functions that have recorded a tenth of all calls or more, those with most first, if
        they can be cells.
    found : list of str
        The functions that were recorded whole without being named, and how often; see
        `multifold.lazy.found`.
    crooked : list of str
        Functions that have recorded a tenth of all calls or more one by one, and why they are not recorded
        whole.
    slow : list of str
        Why the loop over the examples is expected to be as fast, or faster; from counts, not from times.
    idle : list of str
        Which cells have run for one example after the other, and gain nothing.
    read_alone : dict of str to int
        Why examples went on alone where they read values, and how often: others would have seen what they
        hold open, or have changed.
    changes : list of Change
        At most three things to change, the one that gains most first; see `multifold.lazy.changes`.
    all : bool
        Whether the text has everything, and not what most users need, in at most 25 lines.
    pace : str
        That the loop has turned out to be faster, with both times; ``""`` if it has not.
    """

    def __init__(
        self,
        explanation: Explanation,
        graph: Any,
        function: Any,
        recorder: Any,
        examples: int | None = None,
        pace: str = "",
        cells: Mapping[Any, Any] | None = None,
        *,
        may_keep: bool = False,
        all: bool = False,
    ) -> None:
        super().__init__(explanation.rounds)
        self.explanation = explanation
        finds, cells = cells is not None, cells or {}
        # Later runs record straight ones whole; and of others no call can be.
        settled = None, NO_CALL, NEVER_CALLED
        known = {x.place for x in cells.values() if x.reason in settled}
        self.glue = [x for x in glue_of(graph, function, recorder.frames.reads) if x.place not in known]
        self.found = [f"{x.name} ({x.place}): {x.calls:,} calls" for x in cells.values() if x.calls]
        least = LEAST_SHARE * len(graph.signature)
        counts = calls_of_functions(graph) if finds else {}
        crooked = [cells[fn] for fn, count in counts.items() if count >= least and fn in cells]
        self.crooked = [f"{x.name} ({x.place}): {x.reason}" for x in crooked if x.reason]
        of_program = {id(code) for code in codes_of(function)}
        inline = [
            fn
            for fn, count in counts.items()
            if count >= least
            and (id(fn.__code__) in of_program or (fn in cells and cells[fn].reason not in settled))
        ]
        self.changes = changes.of_run(
            explanation, graph, inline, self.glue, recorder.by_hand, may_keep=may_keep and not pace
        )
        self.examples = examples
        self.all = all
        self.read_alone = dict(recorder.alone)
        self.pace = pace
        self.slow = []
        if len(graph.signature):
            self.slow = [*few_rows(explanation, examples), *small_calls(explanation, graph, self.glue)]
        self.idle = [f"{text}\n  hint: {hint}" for text, hint in idle_cells(explanation, examples)]

    def __repr__(self) -> str:
        return repr(self.explanation)

    def __str__(self) -> str:
        return self.full() if self.all else "\n".join(self.brief())

    def brief(self) -> Iterator[str]:
        """Yield at most 25 lines: what ran, where the time went, and what to change."""
        explanation = self.explanation
        calls = sum([len(part.calls) for part in explanation.rounds])
        rounds = len(explanation.rounds)
        among = "" if self.examples is None else f"{count(self.examples, 'example')}: "
        within = f" of {count(rounds, 'round')}" if rounds > 1 else ""
        yield (
            f"{among}{count(calls, 'call')} in {count(len(explanation), 'launch', 'launches')}{within}, "
            f"{calls / max(1, len(explanation)):,.1f} rows each"
        )
        seconds = explanation.seconds
        total = sum(seconds.values())
        if total:
            shares = [f"{phase} {spent / total:.0%}" for phase, spent in seconds.items()]
            yield f"{1e3 * total:,.2f} ms on {explanation.backend}: {', '.join(shares)}"
        yield ""
        if not calls:
            yield "No call was recorded: the program begins with no common layer or cell. It ran as a loop."
            yield "What to change: name functions that take arrays."
            yield "     before: run = multifold.batched(fn)"
            yield "     after:  run = multifold.batched(fn, cells=[join])  # or @multifold.cell above join"
            return
        ops = sorted(explanation.ops, key=lambda op: -(op.seconds or 0.0))
        table = [
            (
                op.name,
                f"{op.calls:,}",
                f"{op.launches:,}",
                extent(op.rows),
                f"{1e3 * (op.seconds or 0.0):,.2f}",
            )
            for op in ops[:MOST_OPS]
        ]
        yield from aligned([("op", "calls", "launches", "rows", "ms"), *table])
        if len(ops) > MOST_OPS:
            yield f"and {len(ops) - MOST_OPS} more"
        if self.found:
            yield f"Recorded whole, without being named: {some_of(self.found)}"
        for text in filter(None, [self.pace, *self.read_together()]):
            yield text.replace("\n", " ")
        if self.changes:
            yield ""
            yield "What to change, the most gain first:"
            for number, change in enumerate(self.changes, 1):
                yield from f"{number}. {change}".split("\n")
        yield ""
        yield "explain(all=True) tells the rest."

    def read_together(self) -> Iterator[str]:
        """Yield one line if examples read values alone; nothing otherwise."""
        if self.read_alone:
            reason, most = max(self.read_alone.items(), key=lambda pair: pair[1])
            yield (
                f"Values that an example read alone, while no other one went on: "
                f"{sum(self.read_alone.values()):,}; {most:,} since {reason}"
            )

    def full(self) -> str:
        """Return the text of everything."""
        parts = [str(self.explanation)]
        if self.found:
            lines = "\n".join(f"  {text}" for text in self.found)
            parts.append(f"Functions recorded whole, each as one call, without being named:\n{lines}")
        if self.crooked:
            lines = "\n".join(f"  {text}" for text in self.crooked)
            parts.append(f"Functions that are recorded call by call, and why:\n{lines}")
            if any(text.endswith(CALLS_ITSELF) for text in self.crooked):
                parts[-1] += (
                    "\n  hint: of one that calls itself, move what it computes with tensors into a method "
                    "of its own, which is then recorded whole"
                )
        if self.glue:
            lines = "\n".join(f"  {glue}" for glue in self.glue)
            parts.append(
                f"Functions that record calls one by one; as a cell, each is one call:\n{lines}\n"
                "  hint: batched(fn, cells=[...]), or multifold.cell above the function"
            )
        if self.read_alone:
            reads = sum(self.read_alone.values())
            lines = "\n".join(f"  {reason}: {count:,}" for reason, count in self.read_alone.items())
            parts.append(
                f"Values that an example read alone, while no other one went on: {reads:,}. Others would "
                f"have seen what it held open, or had changed:\n{lines}\n"
                "  hint: read before or after that; keep what changes in variables of the function, or "
                "give each example a copy of the model by batched(fn, own=True)"
            )
        if self.changes:
            lines = "\n".join([f"{number}. {change}" for number, change in enumerate(self.changes, 1)])
            parts.append(f"What to change, the most gain first:\n{lines}")
        return "\n\n".join([*parts, *filter(None, [self.pace]), *self.slow, *self.idle])


def some_of(texts: Sequence[str]) -> str:
    """Return the first two texts in one line, and how many more there are.

    >>> some_of(["a: 3 calls", "b: 2 calls", "c: 1 call"])
    'a: 3 calls; b: 2 calls; and 1 more'
    """
    more = [f"and {len(texts) - 2} more"] if len(texts) > 2 else []
    return "; ".join([*texts[:2], *more])


def few_rows(explanation: Explanation, examples: int | None) -> Iterator[str]:
    """Yield one text if launches have fewer than 8 rows on average; nothing otherwise.

    ``examples`` is how many examples were run, if that is known: the text says so.
    """
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


def small_calls(explanation: Explanation, graph: Any, glue: Sequence[Candidate]) -> Iterator[str]:
    """Yield at most one text, on why a run without gradients is not expected to be faster than the loop.

    Either there are fewer than 50 calls for each wait of an example, where a cell counts as 10 calls; or
    more than half of the calls are of functions of the framework with small results; see `is_small_glue`.
    ``glue`` are the functions that the explanation proposes as cells; the hint refers to them.
    """
    kinds = Counter(graph.signature)
    ops = [signature.op for signature in graph.signatures]
    if any(getattr(x, "requires_grad", False) for op in ops for x in forms_of(op)):
        return
    waits = sum(map(len, getattr(explanation, "waits", ())))
    work = sum([n * (IN_CELL if is_cell(ops[kind]) else 1) for kind, n in kinds.items()])
    if work < WAIT * waits:
        yield (
            f"Expected to be slower than the loop where networks are small: examples wait {waits:,} times, "
            f"after {len(graph.signature) / waits:,.1f} calls each. To wait takes as long as some {WAIT} "
            "small calls.\n"
            "  hint: read fewer values, or several at once, as by x.tolist(); or record the program by "
            "fold.add, with `await fold.value(node)` where it reads (docs/await.md)"
        )
        return
    small = sum([n for kind, n in kinds.items() if is_small_glue(ops[kind])])
    share = small / len(graph.signature)
    if share > 0.5:
        cells = "the functions above" if glue else "functions of arrays alone that do so"
        yield (
            f"Expected to be no faster than the loop: {share:.0%} of the calls are functions of small "
            f"arrays without gradients, which run as fast as they are recorded.\n"
            f"  hint: make cells of {cells}"
        )


def idle_cells(explanation: Explanation, examples: int | None) -> Iterator[tuple[str, str]]:
    """Yield ``(text, hint)`` for each cell, a function recorded as one call, that gains nothing.

    Its calls ran row by row, or in 8 launches or more of one row each. Nothing is yielded if ``examples``
    is 1; None stands for many.
    """
    if examples == 1:
        return
    rows: defaultdict[str, list[int]] = defaultdict(list)
    ops: dict[str, Any] = {}
    for part in explanation.rounds:
        for calls in part.members:
            op = part.columns.signatures[part.columns.signature[calls[0]]].op
            if is_cell(op):
                rows[op.__name__].append(len(calls))
                ops[op.__name__] = op
    for name, counts in rows.items():
        if name.endswith(f"{BY_ROWS})"):  # without a reason that the cell itself gives
            yield f"The cell {name} gains little.", ops[name].hint_by_rows
        elif len(counts) >= FEW_ROWS and max(counts) == 1:
            yield (
                f"The cell {name} gains nothing: {len(counts):,} launches of one row.",
                "make a cell of a function inside of it, whose arguments are arrays of equal shapes.",
            )


def is_cell(op: Any) -> bool:
    """Return ``op.is_cell``: whether an op is a function of the program, recorded as one call.

    An op without this attribute is none.
    """
    return bool(getattr(op, "is_cell", False))


def forms_of(op: Any) -> Any:
    """Return ``op.forms``, the form of each result of a recorded call; ``()`` for an op without forms."""
    return getattr(op, "forms", ())


def is_small_glue(op: Any) -> bool:
    """Return whether an op is a function of the framework whose results have at most 4096 numbers.

    An op without ``is_cell``, as one of `Fold.add`, is none.
    """
    sizes = [math.prod(form.shape) for form in forms_of(op)]
    return not getattr(op, "is_cell", True) and sum(sizes) <= SMALL
