"""Why calls did not share a launch, as data that reads as a sentence.

A `Reason` is about all calls of one op and says how many launches it costs; a `Difference` is about two
calls. Each has a cause. Most causes are attributes in which the calls differ (`ATTRIBUTES`). Four are
not: ``level``, a call waits for others of its type; ``pieces``, a launch of very many rows was run in
pieces; ``order``, another order of the schedule would have joined the calls; ``together``, the calls
did share a launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

MOST_VALUES = 4
"""Values that a reason lists before it only counts the rest."""


class Words(NamedTuple):
    """The texts that speak of one attribute; ``{where}`` in them stands for the operand or the keyword."""

    reason: str = ""
    """What a `Reason` says before the values."""
    difference: str = ""
    """In what two calls differ, for a `Difference`."""
    hint: str = ""
    """What the user can do about it."""


SELECTS = (
    "if it selects a part of the model, as a module by its name, these are different modules: nothing to do"
)
"""The hint where a static value is a text or something callable."""

ORDERS = {
    "rounds": "a round runs what its examples wait for: let them ask for several values at once",
    "search": "'search' is the widest search there is: nothing to do",
    "auto": 'Fold(schedule="search") looks further: planning then takes 2 to 13 µs a call',
}
"""Policy -> the hint where its order costs launches; the other policies are measures to compare with.
That of the launches of several rounds is "rounds"."""

ATTRIBUTES = {
    "op": Words(
        hint="define the function once; pass what varies as an operand or as multifold.static(...)"
    ),
    "arguments": Words("is called with", "what it is called with"),
    "source": Words("{where} is", "the source of {where}"),
    "structure": Words(
        "operands come as",
        "the structure of their operands",
        "multifold.ragged(...) gives any number of rows one launch",
    ),
    "kind": Words(
        "{where} is",
        "the kind of {where}",
        "pass operands of one kind in one place: 1.0, not 1, where others are floats",
    ),
    "dtype": Words("{where} has dtype", "the dtype of {where}", "convert to one dtype before fold.add"),
    "shape": Words(
        "{where} has trailing shape",
        "the trailing shape of {where}",
        "pad to one shape, or pass the rows as multifold.ragged(...)",
    ),
    "device": Words(
        "{where} is on", "the device of {where}", "bring all arrays to one place before fold.add"
    ),
    "static": Words("{where} is", "{where}", "pass a number that varies as an operand, not as static"),
    "shared": Words(
        "{where} is shared, and it is",
        "the shared {where}",
        "pass one object to all calls, or let it be batched",
    ),
    "whole": Words(
        hint="record a call that is read whole once, before the examples, or pass multifold.shared(array)"
    ),
    "divided": Words(
        "the rows of {where} turned out to be",
        hint="let the ops before it return one trailing shape and dtype",
    ),
}
"""The attributes in which calls may differ, in the order in which a difference is looked for."""


SAID_IF_COSTLY = ("arguments", "source")
"""Attributes of calls of plain programs, of which a reason speaks only where they cost launches."""


@dataclass(frozen=True)
class Value:
    """One value of an attribute, as text, and the number of calls that have it."""

    text: str
    calls: int

    def __str__(self) -> str:
        return f"{self.text} ({count(self.calls, 'call')})"


@dataclass(frozen=True)
class Reason:
    """One thing that keeps calls of one op in different launches; its text is a sentence.

    Attributes
    ----------
    op : str
        The name of the op.
    cause : str
        One of `ATTRIBUTES`, or ``"level"``, ``"pieces"`` or ``"order"``.
    where : str
        The operand or keyword that differs, if the cause is about one.
    values : tuple of Value
        The values that calls of this op have there; for ``"level"`` the levels.
    cost : int
        By how much the lower bound would drop without this reason; for ``"pieces"`` and ``"order"`` how
        many launches there are above the bound.
    """

    op: str
    cause: str
    where: str
    values: tuple[Value, ...]
    cost: int
    remedy: str = ""

    @property
    def hint(self) -> str:
        """A text that says what the user can do about it; empty where there is nothing to do."""
        return self.remedy or ATTRIBUTES.get(self.cause, Words()).hint

    def __str__(self) -> str:
        launches = count(self.cost, "launch", "launches")
        if self.cause == "op":
            return f"{len(self.values)} different functions have this name"
        if self.cause == "whole":
            alone = sum(value.calls for value in self.values if value.text != "rows")
            return f"the whole result of {count(alone, 'call')} is read, so each runs by itself"
        if self.cause == "level":
            return f"up to {count(len(self.values), 'level')}: calls wait for others of their type"
        if self.cause == "pieces":
            return f"{launches} more, since very many rows are faster in pieces"
        if self.cause == "order":
            return f"the order of the schedule: {launches} above the bound of this op alone"
        shown = ", ".join(map(str, self.values[:MOST_VALUES]))
        rest = len(self.values) - MOST_VALUES
        more = f" and {count(rest, 'more value')}" if rest > 0 else ""
        return f"{ATTRIBUTES[self.cause].reason.format(where=self.where)} {shown}{more}"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, ``many`` for any number but 1; by default ``one`` with an s.

    Examples
    --------
    >>> count(1, "call"), count(1200, "call"), count(2, "launch", "launches")
    ('1 call', '1,200 calls', '2 launches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
