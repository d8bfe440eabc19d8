"""What was recorded, as text: one line a call, with the calls that it reads."""

from __future__ import annotations

from collections import Counter

from multifold._record.signature import Slot
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import Bare
from multifold.explain.reasons import count
from multifold.explain.values import node_text, value_text

MOST_CALLS = 60
"""Up to this many calls, each has its line; of more, the listing only counts the calls of each op."""


def listing(columns: Columns) -> str:
    """Return the recorded calls: each with its operands, or how many of each op.

    Examples
    --------
    >>> from multifold import Fold
    >>> fold = Fold(backend="numpy")
    >>> pair = fold.add("leaf", 7).split(2)
    >>> _ = fold.add("add", *pair, by=0.5)
    >>> print(listing(fold._columns()))
    0  leaf(7)
    1  add(0[0], 0[1], by=0.5)
    """
    if len(columns) > MOST_CALLS:
        names = Counter(columns.signatures[number].name for number in columns.signature.tolist())
        return "\n".join(f"{name}: {count(calls, 'call')}" for name, calls in names.items())
    width = len(str(len(columns) - 1))
    return "\n".join(f"{call:>{width}}  {line(columns, call)}" for call in range(len(columns)))


def line(columns: Columns, call: int) -> str:
    """Return one call as it might have been written."""
    signature = columns.signatures[columns.signature[call]]
    leaves = [Bare(operand(columns, call, slot, position)) for slot, position in signature.operands]
    operands = signature.nested(leaves)
    given = [f"{name}={value_text(value)}" for name, value in signature.static.items()]
    return f"{signature.name}({', '.join([*map(repr, operands), *given])})"


def operand(columns: Columns, call: int, slot: Slot, position: int) -> str:
    """Return one leaf operand of a call."""
    kind, entry = slot.kind, columns.operand(slot, position, call)
    if kind.ref:
        text = node_text(columns, int(entry))
        return f"{text}.no_batch()" if kind.shared else text
    if kind.ragged:
        rows = columns.rows_of(entry).tolist()
        shown = (node_text(columns, x) if x >= 0 else value_text(columns.loose[-1 - x]) for x in rows)
        return f"ragged([{', '.join(shown)}])"
    text = value_text(entry if kind.number is None else entry.item())
    return f"shared({text})" if kind.shared else text
