"""Why calls did not share a launch, as data that reads as a sentence.

A `Reason` is about all calls of an op and says how many launches it costs, a `Difference` about two
calls. Both are of a kind: an attribute in which calls differ (`KINDS` of the module `attributes`),
or one of four things that no attribute shows. ``level``: one waits for others of its type;
``pieces``: a launch of very many rows was run in pieces; ``order``: nothing but the order of the schedule;
``together``: they did share a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_VALUES = 4
"""Values that a reason lists before it only counts the rest."""

PHRASES = {
    "structure": "{where}operands come as",
    "kind": "{where} is",
    "dtype": "{where} has dtype",
    "shape": "{where} has trailing shape",
    "device": "{where} is on",
    "static": "{where} is",
    "shared": "{where} is shared, and it is",
    "divided": "the rows of {where} turned out to be",
}
"""What is said before the values of an attribute."""

HINTS = {
    "op": "define the function once; pass what varies as an operand or as multifold.static(...)",
    "structure": "multifold.ragged(...) gives any number of rows one launch",
    "kind": "pass operands of one kind in one place: 1.0, not 1, where others are floats",
    "dtype": "convert to one dtype before fold.add",
    "shape": "pad to one shape, or pass the rows as multifold.ragged(...)",
    "device": "bring all arrays to one place before fold.add",
    "static": "pass a number that varies as an operand, not as static",
    "shared": "pass one object to all calls, or let it be batched",
    "divided": "let the ops before it return one trailing shape and dtype",
}
"""What could be done about it."""


@dataclass(frozen=True)
class Value:
    """One value of an attribute, and how many calls have it."""

    text: str
    calls: int

    def __str__(self) -> str:
        return f"{self.text} ({count(self.calls, 'call')})"


@dataclass(frozen=True)
class Reason:
    """What keeps calls of one op in different launches.

    Attributes
    ----------
    op : str
        The name of the op.
    kind : str
        ``"op"``, ``"structure"``, ``"kind"``, ``"dtype"``, ``"shape"``, ``"device"``, ``"static"``,
        ``"shared"``, ``"whole"``, ``"divided"``, ``"level"``, ``"pieces"`` or ``"order"``.
    where : str
        The operand or keyword that it is about, if any.
    values : tuple of Value
        The values that calls of this op have there; for ``"level"`` the levels.
    cost : int
        By how much the bound would be lower without it; for ``"pieces"`` and ``"order"`` how many
        launches there are above the bound.
    """

    op: str
    kind: str
    where: str
    values: tuple[Value, ...]
    cost: int

    @property
    def hint(self) -> str:
        """What could be done about it, or nothing."""
        return HINTS.get(self.kind, "")

    def __str__(self) -> str:
        if self.kind == "op":
            return f"{len(self.values)} different functions have this name"
        if self.kind == "whole":
            alone = sum(value.calls for value in self.values if value.text != "rows")
            return f"the whole result of {count(alone, 'call')} is read, so each runs by itself"
        if self.kind == "level":
            return f"up to {count(len(self.values), 'level')}: calls wait for others of their type"
        if self.kind == "pieces":
            more = count(self.cost, "launch", "launches")
            return f"{more} more, since very many rows are faster in pieces"
        if self.kind == "order":
            above = count(self.cost, "launch", "launches")
            return f"the order of the schedule: {above} above the bound"
        shown = ", ".join(map(str, self.values[:MOST_VALUES]))
        rest = len(self.values) - MOST_VALUES
        more = f" and {count(rest, 'more value')}" if rest > 0 else ""
        return f"{PHRASES[self.kind].format(where=self.where)} {shown}{more}"


@dataclass(frozen=True)
class Difference:
    """What keeps two calls apart; its text is one sentence.

    Attributes
    ----------
    kind : str
        As for `Reason`, or ``"together"``.
    where : str
        The operand or keyword that it is about, if any.
    values : tuple of str
        What the two calls have there; their levels for ``"level"``.
    sentence : str
        The sentence.
    """

    kind: str
    where: str
    values: tuple[str, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "call"), count(1200, "call"), count(2, "launch", "launches")
    ('1 call', '1,200 calls', '2 launches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
