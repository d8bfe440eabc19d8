"""Why two calls did not share a launch, in one sentence.

Three questions, in this order: do they differ in an attribute, does one need the other, or what
else put the later one into a later launch?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from multifold._record.graph import CALL_MASK
from multifold.explain.attributes import Attribute
from multifold.explain.reasons import Difference, count

if TYPE_CHECKING:
    from multifold.explain.explanation import Explanation


def difference(explanation: Explanation, first: int, second: int) -> Difference:
    """Return what keeps two calls apart, of which the first was recorded before the second."""
    launches = explanation.place[[first, second]].tolist()
    if launches[0] == launches[1]:
        sentence = f"Calls {first} and {second} share launch {launches[0]}."
        return Difference("together", "", (), sentence)
    known = explanation.varieties
    a, b = known.number[np.searchsorted(explanation.calls, [first, second])].tolist()
    attribute = known.first_difference(a, b)
    if attribute is not None:
        values = (known.values[a].get(attribute), known.values[b].get(attribute))
        texts = tuple(known.text(attribute, value) for value in values)
        if attribute.kind == "op" and known.names[a] != known.names[b]:
            texts = known.names[a], known.names[b]
        sentence = differing(explanation, first, second, attribute, texts)
        return Difference(*attribute, texts, sentence)
    return ordered(explanation, first, second)


def differing(
    explanation: Explanation, first: int, second: int, attribute: Attribute, texts: tuple[str, ...]
) -> str:
    """Return the sentence for two calls that differ in an attribute."""
    kind, where = attribute
    name = explanation.name(first)
    calls = f"Calls {first} and {second} of '{name}'"
    a, b = texts
    if kind == "op" and name != explanation.name(second):
        return f"Call {first} is of op '{a}' and call {second} of op '{b}'."
    if kind == "op":
        return f"{calls} are of different functions of that name: {a} and {b}."
    if kind == "whole":
        alone = [call for call in (first, second) if call in explanation.alone]
        which = " and ".join(f"call {call}" for call in alone)
        return f"{calls} run apart because the whole result of {which} is read, not its row."
    if kind == "divided":
        return f"{calls} were divided at run time: the rows of {where} were {a} and {b}."
    what = {
        "structure": "the structure of their operands",
        "kind": f"the kind of {where}",
        "dtype": f"the dtype of {where}",
        "shape": f"the trailing shape of {where}",
        "device": f"the device of {where}",
        "shared": f"the shared {where}",
    }.get(kind, where)
    return f"{calls} differ in {what}: {a} and {b}."


def ordered(explanation: Explanation, first: int, second: int) -> Difference:
    """Return what keeps two calls of one type apart."""
    calls = f"Calls {first} and {second} of '{explanation.name(first)}'"
    levels = explanation.levels[[first, second]].tolist()
    texts = tuple(f"level {level}" for level in levels)
    steps = distance(explanation, first, second)
    if steps:
        through = f", through {count(steps - 1, 'other call')}" if steps > 1 else ""
        sentence = f"{calls} cannot share a launch: call {second} needs the result of call {first}"
        return Difference("level", "", texts, f"{sentence}{through}.")
    if levels[0] != levels[1]:
        sentence = f"{calls} do not need each other, but are at levels {levels[0]} and {levels[1]}"
        sentence += f" of their type{waiting(explanation, first, second)}."
        return Difference("level", "", texts, sentence)
    if explanation.divisions:
        sentence = f"{calls} were told apart when a launch was divided, while shapes were not known."
        return Difference("divided", "", texts, sentence)
    earlier, later = sorted(explanation.place[[first, second]].tolist())
    if set(range(earlier + 1, later + 1)).issubset(explanation.continued):
        sentence = f"{calls} are in launches {earlier} and {later}, pieces of one that has very many rows"
        return Difference("pieces", "", texts, f"{sentence}: those are faster.")
    policy = explanation.schedule.policy
    sentence = f"{calls} are kept apart by the order of the schedule ('{policy}') alone"
    return Difference("order", "", texts, f"{sentence}{waiting(explanation, first, second)}.")


def waiting(explanation: Explanation, first: int, second: int) -> str:
    """Return what the call of the later launch waited for when the other one ran, if anything."""
    earlier, later = sorted((first, second), key=lambda call: int(explanation.place[call]))
    sources = operands(explanation, later)
    last = max(sources, key=lambda call: int(explanation.place[call]), default=None)
    if last is None or explanation.place[last] < explanation.place[earlier]:
        return ""
    return (
        f": in launch {explanation.place[earlier]}, call {later} still waited for call {last} of "
        f"'{explanation.name(last)}'"
    )


def operands(explanation: Explanation, call: int) -> list[int]:
    """Return the calls that a call reads."""
    sources, readers = explanation.columns.edges
    low, high = np.searchsorted(readers, [call, call + 1])
    found: list[int] = (sources[low:high] & CALL_MASK).tolist()
    return found


def distance(explanation: Explanation, first: int, second: int) -> int:
    """Return how many steps lead from a call to a later one that needs it; 0 if it does not."""
    front, seen, steps = {second}, {second}, 0
    while front:
        steps += 1
        front = {source for call in front for source in operands(explanation, call)} - seen
        front = {source for source in front if source >= first}
        if first in front:
            return steps
        seen |= front
    return 0
