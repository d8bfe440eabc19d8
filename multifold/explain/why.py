"""Why two calls did not share a launch, in one sentence.

Three questions, in this order: do the calls differ in an attribute, does one need the other, or what
else put the later one into a later launch?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multifold.explain.facts import Facts
from multifold.explain.reasons import ATTRIBUTES, count


@dataclass(frozen=True)
class Difference:
    """Why two calls did not share a launch, or that they did; its text is one sentence.

    Attributes
    ----------
    cause : str
        As for `Reason`, or ``"together"``.
    where : str
        The operand or keyword that differs, if the cause is about one.
    values : tuple of str
        What the two calls have there; their levels for ``"level"``.
    sentence : str
        The sentence.
    """

    cause: str
    where: str
    values: tuple[str, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def difference(facts: Facts, first: int, second: int) -> Difference:
    """Return why calls number ``first`` and ``second`` are in different launches, or that they share one.

    ``first`` was recorded earlier. The cause is the first attribute in which they differ; for calls that
    differ in none see `ordered`.
    """
    places = facts.at([first, second])
    launches = facts.launch_of[places].tolist()
    if launches[0] == launches[1]:
        sentence = f"Calls {first} and {second} share launch {launches[0]}."
        return Difference("together", "", (), sentence)
    known = facts.varieties
    a, b = known.number[places].tolist()
    attribute = known.first_difference(a, b)
    if attribute is None:
        return ordered(facts, first, second)
    texts = tuple(known.text(known.names[x], attribute, known.values[x].get(attribute)) for x in (a, b))
    # Texts of functions say file and line, to tell two of one name apart. Two names are enough.
    if attribute.name == "op" and known.names[a] != known.names[b]:
        texts = known.names[a], known.names[b]
    sentence = differing(facts, (first, second), *attribute, texts)
    return Difference(*attribute, texts, sentence)


def differing(
    facts: Facts, pair: tuple[int, int], attribute: str, where: str, texts: tuple[str, ...]
) -> str:
    """Return the sentence for two calls that differ in an attribute.

    ``texts`` are its values of the two calls, as text.
    """
    names = tuple(map(facts.name, pair))
    calls = f"Calls {pair[0]} and {pair[1]} of '{names[0]}'"
    both = " and ".join(texts)
    if attribute == "op" and names[0] != names[1]:
        return f"Call {pair[0]} is of op '{texts[0]}' and call {pair[1]} of op '{texts[1]}'."
    if attribute == "op":
        return f"{calls} are of different functions of that name: {both}."
    if attribute == "whole":
        which = " and ".join(f"call {call}" for call in pair if call in facts.alone)
        return f"{calls} run apart because the whole result of {which} is read, not its row."
    if attribute == "divided":
        return f"{calls} were divided at run time: the rows of {where} were {both}."
    return f"{calls} differ in {ATTRIBUTES[attribute].difference.format(where=where)}: {both}."


def ordered(facts: Facts, first: int, second: int) -> Difference:
    """Return why two calls that agree in all attributes are in different launches.

    The causes are tried in this order: ``"level"``, if one needs the other or they are at different levels;
    ``"divided"``, if the run has divided a launch; ``"pieces"``, if they are in pieces of one large launch;
    else ``"order"``, the order of the schedule. ``first`` was recorded before ``second``.
    """
    calls = f"Calls {first} and {second} of '{facts.name(first)}'"
    places = facts.at([first, second]).tolist()
    low, high = facts.levels[places].tolist()
    earlier, later = sorted(facts.launch_of[places].tolist())
    steps = distance(facts, *places)
    # Ask for a path between the calls before their levels, which differ then, too: the path says why.
    if steps:
        cause = "level"
        through = f", through {count(steps - 1, 'other call')}" if steps > 1 else ""
        says = f"cannot share a launch: call {second} needs the result of call {first}{through}"
    elif low != high:
        cause = "level"
        says = f"do not need each other, but are at levels {low} and {high} of their type"
        says += waiting(facts, places)
    # The calls agree in all that is known, and what a divided launch leaves is scheduled again.
    elif facts.divisions:
        cause = "divided"
        says = "were told apart when a launch was divided, while shapes were not known"
    # Each launch after the earlier one continues the one before it, so all are pieces of one.
    elif set(range(earlier + 1, later + 1)).issubset(facts.continued):
        cause = "pieces"
        says = f"are in launches {earlier} and {later}, pieces of one that has very many rows"
        says += ": those are faster"
    else:
        cause = "order"
        says = f"are kept apart by the order of the schedule ('{facts.schedule.policy}') alone"
        says += waiting(facts, places)
    return Difference(cause, "", (f"level {low}", f"level {high}"), f"{calls} {says}.")


def waiting(facts: Facts, places: Sequence[int]) -> str:
    """Return a clause on what the later of two calls still waited for when the other ran.

    It is an empty text if it waited for nothing. ``places`` are their positions in ``facts.calls``.
    """
    launch = facts.launch_of.tolist()
    earlier, later = sorted(places, key=launch.__getitem__)
    # Of all calls that the later one reads, the one that was launched last has held it back.
    last = max(operands(facts, later), key=launch.__getitem__, default=None)
    if last is None or launch[last] < launch[earlier]:
        return ""
    reader, source = facts.calls[[later, last]].tolist()
    which = f"call {source} of '{facts.name(source)}'"
    return f": in launch {launch[earlier]}, call {reader} still waited for {which}"


def operands(facts: Facts, place: int) -> list[int]:
    """Return the positions in ``facts.calls`` of the calls that the call at position ``place`` reads."""
    sources, readers = facts.edges
    # The edges are ordered by reader, so those of one reader are a slice.
    low, high = np.searchsorted(readers, [place, place + 1])
    found: list[int] = sources[low:high].tolist()
    return found


def distance(facts: Facts, first: int, second: int) -> int:
    """Return the least number of reads from position ``first`` in ``facts.calls`` to ``second``, or 0.

    It is 0 if no reads lead there.
    """
    front = {second}
    seen = {second}
    steps = 0
    while front:
        steps += 1
        front = {source for place in front for source in operands(facts, place)} - seen
        # Calls stand in the order in which they were recorded, and read only earlier ones: no path that
        # went before the first call comes back to it.
        front = {source for source in front if source >= first}
        if first in front:
            return steps
        seen |= front
    return 0
