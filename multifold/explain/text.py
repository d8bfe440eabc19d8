"""An explanation as text: aligned columns, the same for the same schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from multifold.explain.reasons import count

if TYPE_CHECKING:
    from multifold.explain.explanation import ExplainedOp, Explanation

MOST_NUMBERS = 6
"""Launches of one row that are listed by number for each op."""


def table(explanation: Explanation) -> str:
    """Return an explanation as text."""
    return "\n".join(lines(explanation))


def lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of the text."""
    yield headline(explanation)
    yield ""
    yield from aligned(op_table(explanation))
    reasons = explanation.reasons
    if reasons:
        yield ""
        yield "What keeps calls of one op apart, and the launches that it costs"
        found = [(reason.op, f"{reason.cost:,}", str(reason)) for reason in reasons]
        for line, reason in zip(aligned(found, left=(0, 2)), reasons, strict=True):
            yield line
            if reason.hint:
                yield " " * (len(line) - len(str(reason))) + f"hint: {reason.hint}"
    if explanation.single_rows:
        yield ""
        yield single_rows(explanation)
    if explanation.backend == "jax":
        yield ""
        yield compilations(explanation)
    if explanation.run is not None:
        yield ""
        yield from run_lines(explanation)


def headline(explanation: Explanation) -> str:
    """Return launches, bound and certificate in one line."""
    launches = count(len(explanation), "launch", "launches")
    bound, planned = explanation.lower_bound, explanation.schedule.lower_bound
    known = "" if planned == bound else f" ({planned:,} before shapes were known)"
    return (
        f"{launches} of {count(len(explanation.calls), 'call')}, lower bound {bound:,}{known}: "
        f"{explanation.certificate} ({explanation.schedule.policy}), "
        f"{explanation.mean_rows:,.1f} rows a launch"
    )


def op_table(explanation: Explanation) -> list[list[str]]:
    """Return the table of the ops, with its head."""
    head = ["op", "calls", "launches", "bound", "rows", "mean", "shapes"]
    rows = [[*op_row(op)] for op in explanation.ops]
    if explanation.run is not None:
        head.append("ms")
        for row, op in zip(rows, explanation.ops, strict=True):
            row.append(f"{1e3 * (op.seconds or 0.0):,.3f}")
    return [head, *rows]


def op_row(op: ExplainedOp) -> list[str]:
    """Return the figures of one op."""
    low, high = min(op.rows), max(op.rows)
    return [
        op.name,
        f"{op.calls:,}",
        f"{op.launches:,}",
        f"{op.lower_bound:,}",
        f"{low:,}" if low == high else f"{low:,}-{high:,}",
        f"{op.calls / op.launches:,.1f}",
        f"{op.shapes:,}",
    ]


def single_rows(explanation: Explanation) -> str:
    """Return which launches have one row."""
    numbers: dict[str, list[int]] = {}
    for launch in explanation.single_rows:
        numbers.setdefault(launch.op, []).append(launch.number)
    listed = []
    for op, mine in numbers.items():
        rest = f" and {len(mine) - MOST_NUMBERS:,} more" if len(mine) > MOST_NUMBERS else ""
        listed.append(f"{', '.join(map(str, mine[:MOST_NUMBERS]))}{rest} of {op}")
    head = count(len(explanation.single_rows), "launch", "launches")
    return f"{head} of one row: {'; '.join(listed)}"


def compilations(explanation: Explanation) -> str:
    """Return what the shapes mean to JAX."""
    shapes = count(explanation.shapes, "shape")
    return (
        f"JAX compiles what runs eagerly once for each shape: {shapes} here, and minibatches with "
        "other numbers of rows bring more; fold.program(...) is compiled once for many (docs/compiling.md)."
    )


def run_lines(explanation: Explanation) -> Iterator[str]:
    """Yield where the time of a run went."""
    total = 1e3 * sum(explanation.seconds.values())
    times = count(explanation.divisions, "time")
    divided = f"launches were divided {times}" if explanation.divisions else "no launch was divided"
    yield f"{total:,.2f} ms on {explanation.backend}; {divided}"
    yield from aligned(shares(explanation))


def shares(explanation: Explanation) -> list[tuple[str, str, str]]:
    """Return phase, time and share of the time."""
    seconds = explanation.seconds
    total = sum(seconds.values())
    return [(phase, f"{1e3 * spent:,.2f} ms", f"{spent / total:.0%}") for phase, spent in seconds.items()]


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> Iterator[str]:
    """Yield rows with their columns under each other; text to the left, numbers to the right.

    Examples
    --------
    >>> list(aligned([("op", "calls"), ("leaf", "7")]))
    ['op    calls', 'leaf      7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
