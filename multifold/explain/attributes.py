"""What calls must have in common to share a launch, taken apart to say what differs.

A signature is compared as a whole. Here a call has *attributes*: its op, the structure of its
operands, the dtype of operand 1, and so on. Calls that are equal in all of them are of one
*variety*, which is what a schedule calls a type; two varieties differ in attributes with names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._record.graph import CALL_MASK, PART_BITS
from multifold._record.kinds import number_type
from multifold._record.signature import Signature, Slot, freeze, op_name
from multifold._schedule.columns import Columns, Integers
from multifold._schedule.schedule import call_types

KINDS = (
    "op", "structure", "kind", "dtype", "shape", "device", "static", "shared", "whole", "divided",
)  # fmt: skip
"""The kinds of attributes, in the order in which a difference is looked for."""

LONGEST = 40
"""Characters of a value that are shown."""


class Attribute(NamedTuple):
    """One thing that calls must have in common."""

    kind: str
    """One of `KINDS`."""
    where: str = ""
    """The operand or keyword that it is about."""


ABSENT = None
"""The value of a keyword that a call does not have, and of ``whole`` where rows are read."""


@dataclass
class Varieties:
    """The distinct combinations of attributes among some calls.

    Attributes
    ----------
    values : list of dict
        The attributes of each variety; values of one attribute are equal or not, nothing else.
    names : list of str
        The name of the op of each variety.
    number : int64 array
        The variety of each call that was asked about, in their order.
    texts : dict
        How the values of each attribute are shown; different ones never look the same.
    """

    values: list[dict[Attribute, Hashable]]
    names: list[str]
    number: Integers
    texts: dict[Attribute, dict[Hashable, str]]

    def text(self, attribute: Attribute, value: Hashable) -> str:
        """Return how a value is shown."""
        return self.texts[attribute][value]

    def first_difference(self, first: int, second: int) -> Attribute | None:
        """Return the first attribute in which two varieties differ; None if there is none."""
        a, b = self.values[first], self.values[second]
        differing = [x for x in {**a, **b} if a.get(x, ABSENT) != b.get(x, ABSENT)]
        return min(differing, key=lambda x: KINDS.index(x.kind), default=None)

    def without(self, attribute: Attribute, name: str) -> Integers:
        """Return the number of each call's variety if an attribute of one op did not matter.

        With the structure or the kind of an operand goes all that depends on it.
        """

        def matters(other: Attribute) -> bool:
            if attribute.kind == "structure":
                return other.kind in ("op", "whole") or other.where.startswith("keyword")
            if attribute.kind == "kind":
                return other.where != attribute.where
            return other != attribute

        merged: dict[Hashable, int] = {}
        number = []
        for variety, values in enumerate(self.values):
            key: Hashable = variety
            if self.names[variety] == name:
                key = frozenset(item for item in values.items() if matters(item[0]))
            number.append(merged.setdefault(key, len(merged)))
        return np.array(number, np.int64)[self.number]


class Found:
    """Varieties in the making: collects what each signature and each call says."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.texts: dict[Attribute, dict[Hashable, str]] = {}
        self.shown: Counter[tuple[Attribute, str]] = Counter()
        self.known: dict[int, dict[Attribute, Hashable]] = {}
        self.keywords: dict[str, dict[str, None]] = {}
        for signature in columns.signatures:
            names = self.keywords.setdefault(signature.name, {})
            names.update(dict.fromkeys(signature.static))

    def note(self, attribute: Attribute, value: Hashable, text: str) -> Hashable:
        """Keep how a value is shown, told apart from others that look the same."""
        texts = self.texts.setdefault(attribute, {})
        if value not in texts:
            same = self.shown[attribute, text] = self.shown[attribute, text] + 1
            texts[value] = f"{text} (no. {same})" if same > 1 else text
        return value

    def of_signature(self, number: int) -> dict[Attribute, Hashable]:
        """Return the attributes of all calls of a signature."""
        if number not in self.known:
            signature = self.columns.signatures[number]
            found: dict[Attribute, Hashable] = {}

            def say(kind: str, where: str, value: Hashable, text: str) -> None:
                found[Attribute(kind, where)] = self.note(Attribute(kind, where), value, text)

            key: Any = signature.key
            say("op", "", key[0], op_text(signature.op))
            structure = key[1], len(signature.slots)
            say("structure", "", structure, structure_text(signature))
            for where, slot in zip(places(signature), signature.slots, strict=True):
                self.of_slot(say, where, slot)
            for name in self.keywords[signature.name]:
                where = f"keyword '{name}'"
                if name in signature.static:
                    value = signature.static[name]
                    say("static", where, freeze(value), value_text(value))
                else:
                    say("static", where, ABSENT, "absent")
            self.known[number] = found
        return self.known[number]

    def of_slot(self, say: Callable[..., None], where: str, slot: Slot) -> None:
        """Say the attributes of one operand that belong to the signature."""
        kind = slot.kind
        say("kind", where, kind, kind.text)
        if kind.array:
            shape, dtype, *device = array_class(slot.key)
            say("dtype", where, dtype, dtype)
            say("shape", where, shape, str(shape))
            say("device", where, tuple(device), " ".join(map(str, device)))
        elif kind.ragged:
            text = "none" if slot.value is None else str(slot.value)
            say("shape", where, slot.key, text)
        elif kind.column is None:
            say("shared" if kind.shared else "static", where, slot.key, value_text(slot.value))

    def of_call(self, call: int, alone: bool) -> dict[Attribute, Hashable]:
        """Return the attributes of one call but for what a run says."""
        number = int(self.columns.signature[call])
        signature = self.columns.signatures[number]
        found = dict(self.of_signature(number))
        for where, (slot, position) in zip(places(signature), signature.operands, strict=True):
            if slot.kind.ref and slot.kind.shared:
                ref = int(self.columns.operand(slot, position, call))
                attribute = Attribute("shared", where)
                text = f"the result of call {node_text(self.columns, ref)}"
                found[attribute] = self.note(attribute, ref, text)
        return found | self.of_result(call, alone)

    def of_result(self, call: int, alone: bool) -> dict[Attribute, Hashable]:
        """Return whether the whole result of a call is read."""
        whole = Attribute("whole")
        text = f"call {call}" if alone else "rows"
        return {whole: self.note(whole, call if alone else ABSENT, text)}

    def of_rows(self, classes: Mapping[str, Hashable]) -> dict[Attribute, Hashable]:
        """Return what the rows of each operand had in common, given by the operand's place."""
        return {
            Attribute("divided", where): self.note(
                Attribute("divided", where), row_class, class_text(row_class)
            )
            for where, row_class in classes.items()
        }


def varieties(
    columns: Columns,
    calls: Integers,
    alone: Integers,
    place: Integers,
    classes: Mapping[tuple[int, int], Hashable],
) -> Varieties:
    """Return the varieties of some calls.

    Parameters
    ----------
    columns : Columns
        The recorded calls.
    calls : int64 array
        Those that are asked about.
    alone : int64 array
        Those of which the whole result is read.
    place : int64 array
        The launch of each recorded call.
    classes : mapping of (launch, part) to Hashable
        What the rows of a launch had in common when it ran; empty unless launches were divided.
    """
    found = Found(columns)
    whole = set(alone.tolist())
    first, number = in_order(call_types(columns, alone)[calls])
    values = [found.of_call(call, call in whole) for call in calls[first].tolist()]
    if classes:
        rows = [operand_classes(columns, call, place, classes) for call in calls.tolist()]
        seen: dict[Hashable, int] = {}
        keys = zip(number.tolist(), (tuple(row.values()) for row in rows), strict=True)
        coarse, finer = number, np.array([seen.setdefault(key, len(seen)) for key in keys])
        first, number = in_order(finer)
        values = [values[coarse[i]] | found.of_rows(rows[i]) for i in first.tolist()]
    names = [columns.signatures[i].name for i in columns.signature[calls[first]].tolist()]
    return Varieties(values, names, number, found.texts)


def in_order(keys: Integers) -> tuple[Integers, Integers]:
    """Return where each distinct key comes first, and for each key which of them it is.

    Examples
    --------
    >>> in_order(np.array([7, 3, 7, 5]))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[number]


def operand_classes(
    columns: Columns,
    call: int,
    place: Integers,
    classes: Mapping[tuple[int, int], Hashable],
) -> dict[str, Hashable]:
    """Return what the rows of each batched operand of a call had in common when it ran."""
    signature = columns.signatures[columns.signature[call]]
    found: dict[str, Hashable] = {}
    for where, (slot, position) in zip(places(signature), signature.operands, strict=True):
        if slot.kind.rows:
            entry = columns.operand(slot, position, call)
            refs = columns.rows_of(entry).tolist() if slot.kind.ragged else [int(entry)]
            known = (row_class(columns, ref, place, classes) for ref in refs)
            found[where] = next((x for x in known if x is not None), None)
    return found


def row_class(
    columns: Columns, ref: int, place: Integers, classes: Mapping[tuple[int, int], Hashable]
) -> Hashable:
    """Return what a row has in common with those that it may be stacked with."""
    if ref >= 0:
        return classes.get((int(place[ref & CALL_MASK]), ref >> PART_BITS))
    value = columns.loose[-1 - ref]
    number = number_type(value)
    return number.__name__ if number is not None else (tuple(value.shape[1:]), dtype_text(value.dtype))


# ---- how values are shown ------------------------------------------------------------------------


def places(signature: Signature) -> list[str]:
    """Return the name of each slot: ``operand 1``, or ``operand 1['h'][0]`` where operands nest."""
    if signature.structure is None:
        return [f"operand {i}" for i in range(len(signature.slots))]
    paths = signature.structure.paths()
    return [f"operand {first}" + "".join(f"[{key!r}]" for key in rest) for first, *rest in paths]


def structure_text(signature: Signature) -> str:
    """Return how operands nest: ``2 operands``, or ``x, [x, x]``."""
    count = len(signature.slots)
    if signature.structure is not None:
        whole = optree.tree_unflatten(signature.structure, ["x"] * count)
        nested = ", ".join(str(operand).replace("'x'", "x") for operand in whole)
        many = f"{count} values in {len(whole)} operands"
        return f"({nested})" if len(nested) <= LONGEST else many
    return f"{count} operand{'s' * (count != 1)}"


def op_text(op: Any) -> str:
    """Return the name of an op, and for a function where it is defined."""
    code = getattr(op, "__code__", None)
    if code is None:
        return op_name(op)
    return f"{op_name(op)} of {code.co_filename}:{code.co_firstlineno}"


def value_text(value: Any) -> str:
    """Return a value for a table: short, and the same in every process."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {tuple(value.shape)} of {dtype_text(value.dtype)}"
    if callable(value):
        return op_name(value)
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        return f"a {type(value).__qualname__}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def node_text(columns: Columns, ref: int) -> str:
    """Return a part of a call's result by the number of the call: ``3[0]``."""
    path = "".join(f"[{key!r}]" for key in columns.parts[ref >> PART_BITS].path)
    return f"{ref & CALL_MASK}{path}"


def array_class(key: Any) -> tuple[Hashable, ...]:
    """Return (trailing shape, dtype, where it is, ...) of the class of a leaf array."""
    if isinstance(key, tuple) and key and key[0] == "numpy":
        return key[1], dtype_text(key[2]), "NumPy"
    if isinstance(key, tuple) and len(key) > 1 and isinstance(key[0], tuple):
        return tuple(key[0]), dtype_text(key[1]), *key[2:]
    return key, ""


def class_text(key: Hashable) -> str:
    """Return what rows had in common for a table: ``(4,) float32``."""
    if isinstance(key, str) or key is None:
        return "not known" if key is None else f"a number ({key})"
    if isinstance(key, tuple) and len(key) > 1 and not isinstance(key[0], tuple):
        return "(" + ", ".join(map(class_text, key[1:])) + ")"  # of a container: structure, leaves
    shape, dtype, *device = array_class(key)
    return " ".join([str(shape), str(dtype), *(["on", *map(str, device)] if device else [])])


def dtype_text(dtype: Any) -> str:
    """Return the name of a dtype of any framework."""
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None)
    return name or str(dtype).removeprefix("torch.")
