"""What to change in a plain program to make its runs faster, in the order of what that gains.

Each `Change` has a sentence, and a line of the program before and after it, as it is printed::

    Examples wait 1,283 times for a value. In an async function a wait costs a tenth (docs/await.md).
      before: if halt(h).item() > 0.99:  # model.py:32
      after:  value = await fold.value(fold.add("halt", ...))

What a change gains is a share of the times of the run that is explained. A run that spends half of its time
in waits for values names these first, and one that spends it in recording names what records.
"""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from multifold._engine.compiled.arrays import CALL_MASK
from multifold.lazy.calls import BY_ROWS
from multifold.lazy.candidates import Candidate

MOST = 3
"""So many changes are named."""

LEAST = 0.05
"""The smallest share of a run's time for which a change is named."""

WAIT = 6e-5
"""What a wait of a plain program costs an example beyond one that is awaited, in seconds."""

IN_A_CELL = 0.7
"""Of the time in which a function records its calls one by one, so much is saved if it is a cell."""

BY_ADD = 0.85
"""Of the time in which a plain program records, so much is saved where it calls `Fold.add`."""

LONGEST = 84
"""A line of the program that is longer is cut."""


class Change(NamedTuple):
    """One thing to change in a program.

    Attributes
    ----------
    gain : float
        About which share of the run's time it saves, from 0 to 1.
    text : str
        What to change, and why: a sentence or two.
    before, after : str
        A line of the program as it is, and what stands there afterwards.
    """

    gain: float
    text: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.text}\n     before: {self.before}\n     after:  {self.after}"


def of_run(
    explanation: Any,
    graph: Any,
    inline: Sequence[FunctionType],
    glue: Sequence[Candidate],
    hand: tuple[str, str],
    *,
    may_keep: bool,
) -> list[Change]:
    """Return at most three changes to the program of a run, the one that gains most first.

    Parameters
    ----------
    explanation : Explanation
        Of the run, with its times.
    graph : Graph
        Its calls, and where they were recorded.
    inline : sequence of function
        Functions that have recorded many calls one by one, and cannot be recorded whole.
    glue : sequence of Candidate
        Functions that could be cells.
    hand : pair of str
        What to say of the way by calls of `Fold.add`, and how that is written.
    may_keep : bool
        Whether examples could be kept by ``keep=True`` that are not.
    """
    seconds = explanation.seconds
    total = sum(seconds.values())
    if not total:
        return []
    recording = seconds.get("record", 0.0) / total
    waits = sum(map(len, getattr(explanation, "waits", ())))
    slow = rows_in(graph)
    found = [
        *in_rows(explanation, graph, slow, total, recording),
        *by_await(explanation, graph, waits, total),
        *as_methods(graph, [fn for fn in inline if id(fn.__code__) not in slow], recording),
        *as_cells(graph, slow, glue, recording),
    ]
    if not waits and len(graph.signature):
        found.append(Change(BY_ADD * recording, hand[0], "run(examples)", hand[1]))
        trains = any(getattr(x, "requires_grad", False) for x in forms_in(graph))
        # What the code computes at once, from parameters, cannot be an operand of what is replayed.
        computed = any(getattr(x, "grad_fn", None) is not None for x in graph.arrays)
        if may_keep and trains and not computed:
            found.append(kept(recording))
    return sorted([x for x in found if x.gain >= LEAST], key=lambda x: -x.gain)[:MOST]


def rows_in(graph: Any) -> set[int]:
    """Return the ``id`` of each code object that has recorded a call which runs row by row."""
    slow = {i for i, x in enumerate(graph.signatures) if x.name.endswith(f"{BY_ROWS})")}
    pairs = zip(graph.signature, graph.codes, strict=True)
    return {id(code) for number, code in pairs if number in slow}


def forms_in(graph: Any) -> Iterator[Any]:
    """Yield the forms of the results of all kinds of calls."""
    for signature in graph.signatures:
        yield from getattr(signature.op, "forms", ())


def in_rows(
    explanation: Any, graph: Any, slow: Container[int], total: float, recording: float
) -> Iterator[Change]:
    """Yield a change for each call of the framework or cell that runs for one example after the other.

    A function that makes such a call cannot be recorded whole, so its other calls cost, too. ``slow`` is
    what `rows_in` returns.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    hints: dict[str, tuple[str, str]] = {}
    for part in explanation.rounds:
        for launch in part.launches:
            if launch.op.endswith(f"{BY_ROWS})") and len(launch) > 1:
                spent[launch.op] += launch.seconds or 0.0
                if launch.op not in hints:
                    call = part.columns.signatures[part.columns.signature[launch.calls[0]]].op
                    hint = getattr(call, "hint_by_rows", "write it as an op on rows: multifold.op.")
                    hints[launch.op] = hint, source(launch.site)
    share = sum([id(code) in slow for code in graph.codes]) / max(1, len(graph.codes))
    for name, seconds in spent.items():
        hint, line = hints[name]
        text = f"{name}: once for each example, and functions that call it are recorded call by call."
        yield Change(seconds / total + recording * share * IN_A_CELL, text, line, hint)


def by_await(explanation: Any, graph: Any, waits: int, total: float) -> Iterator[Change]:
    """Yield a change if examples wait for values: to await them."""
    if not waits:
        return
    names: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for part in explanation.rounds:
        if part.run is not None:
            for ref in part.run.waits[1].tolist():
                call = ref & CALL_MASK
                names[graph.signatures[graph.signature[call]].name] += 1
                lines[graph.site(call)] += 1
    name = names.most_common(1)[0][0]
    yield Change(
        min(0.95, waits * WAIT / total),
        f"Examples wait {waits:,} times for a value. In an async function, with calls of fold.add, a wait "
        "costs a tenth (docs/await.md).",
        source(lines.most_common(1)[0][0]),
        f'value = await fold.value(fold.add("{name}", ...))',
    )


def as_methods(graph: Any, inline: Sequence[FunctionType], recording: float) -> Iterator[Change]:
    """Yield a change for each function that cannot be recorded whole: to move what it computes."""
    if not inline:
        return
    lines: dict[Any, Counter[tuple[str, int]]] = {}
    for code, line in zip(graph.codes, graph.lines(), strict=True):
        if any(fn.__code__ is code for fn in inline):
            lines.setdefault(code, Counter())[line] += 1
    every = len(graph.signature)
    for fn in inline:
        own = lines.get(fn.__code__)
        if not own:
            continue
        (file, line), _ = own.most_common(1)[0]
        share = sum(own.values()) / every
        yield Change(
            recording * share * IN_A_CELL,
            f"{fn.__qualname__} records {sum(own.values()):,} calls one by one. A function for what only "
            "computes is one call.",
            source(f"{file}:{line}"),
            "new = compute(...)  # a function of yours, or a method, for this line and those around it",
        )


def as_cells(
    graph: Any, slow: Container[int], glue: Sequence[Candidate], recording: float
) -> Iterator[Change]:
    """Yield a change for each function that could be a cell: to name it.

    One that calls what runs row by row would do so, too, and gain nothing; ``slow`` is what `rows_in`
    returns.
    """
    places = {place_of(code) for code in graph.codes if id(code) in slow}
    for x in glue:
        if x.place in places:
            continue
        yield Change(
            recording * x.share * IN_A_CELL,
            f"{x.name} records {x.calls:,} calls one by one. As a cell, each call of it is one.",
            "run = multifold.batched(model)",
            f"run = multifold.batched(model, cells=[{x.name}])",
        )


def kept(recording: float) -> Change:
    """Return the change to keep what is recorded of each example."""
    return Change(
        0.95 * recording,
        "Where the same examples come again, as in epochs, their recorded calls can be replayed.",
        "run = multifold.batched(model)",
        "run = multifold.batched(model, keep=True)",
    )


def place_of(code: Any) -> str:
    """Return ``"file:line"`` where the function of a code object begins; "" if there is none."""
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def source(site: str) -> str:
    """Return the line of the program at ``"file:line"``, and where it is."""
    file, _, line = site.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 3]}..."
    where = f"{PurePath(file).name}:{line}"
    return f"{text}  # {where}" if text else where
