"""What calls must have in common to share a launch, taken apart to say what differs.

Recording compares a signature as a whole. Here a call has *attributes* with names: its op, the structure
of its operands, the dtype of operand 1, and so on. Calls that agree in all attributes are of one
*variety*, as calls of one type share a launch in a schedule.

Examples
--------
>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> _ = [fold.add("scale", x, by=by) for x, by in [(1, 10), (2, 10), (3.0, 10), (4, 20)]]
>>> found = fold.explain().varieties
>>> found.number.tolist()
[0, 0, 1, 2]
>>> found.first_difference(0, 1), found.first_difference(0, 2)
(Attribute(name='kind', where='operand 0'), Attribute(name='static', where="keyword 'by'"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.schedule import call_types
from multifold._engine.record.freezing import freeze
from multifold._engine.record.kinds import number_type
from multifold._engine.record.signature import LazyOp, Signature, Slot
from multifold.explain.operands import (
    array_class,
    class_text,
    dtype_text,
    node_text,
    op_text,
    slots_of,
    structure_text,
    value_text,
)
from multifold.explain.reasons import ATTRIBUTES


class Attribute(NamedTuple):
    """One thing that calls must have in common to share a launch, as ``("dtype", "operand 1")``."""

    name: str
    """One of `ATTRIBUTES`."""
    where: str = ""
    """The operand or keyword that it is about."""


ABSENT = None
"""The value of a keyword that a call does not have, and of ``whole`` where rows are read."""

Said = tuple[str, str, Hashable, str]
"""Name of an attribute, operand or keyword, the value of a call, and how the value is written."""

RowClass = Callable[[int, int], Hashable]
"""Call and part -> what the rows of that launch had in common when it ran, None if that is not known."""


@dataclass
class Varieties:
    """The distinct combinations of attributes, *varieties*, among some calls; numbered from 0.

    Attributes
    ----------
    values : list of dict
        The attributes of each variety; values of one attribute are equal or not, nothing else.
    names : list of str
        The name of the op of each variety.
    number : int64 array
        The variety of each call that was asked about, in their order.
    texts : dict
        How the values of each attribute are written for calls of an op, by its name; different values never
        look the same.
    """

    values: list[dict[Attribute, Hashable]]
    names: list[str]
    number: Integers
    texts: dict[tuple[str, Attribute], dict[Hashable, str]]

    def text(self, name: str, attribute: Attribute, value: Hashable) -> str:
        """Return how ``value``, one of ``attribute``, is written for calls of the op ``name``.

        Raises `KeyError` if no call has that value.
        """
        return self.texts[name, attribute][value]

    def first_difference(self, first: int, second: int) -> Attribute | None:
        """Return the first attribute in which the varieties number ``first`` and ``second`` differ.

        An attribute that only one of them has is a difference as well. The order is that of the names in
        `ATTRIBUTES`; None if they are equal.
        """
        a = self.values[first]
        b = self.values[second]
        differing = [x for x in {**a, **b} if a.get(x, ABSENT) != b.get(x, ABSENT)]
        order = list(ATTRIBUTES)
        return min(differing, key=lambda x: order.index(x.name), default=None)

    def labels(self) -> list[str]:
        """Return a text for each variety, in order: its op with the static arguments that tell it apart.

        Left out are arguments that all varieties of the op share.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> _ = [fold.add("pool", 1, kernel=kernel, stride=2) for kernel in (3, 5)]
        >>> fold.explain().varieties.labels()
        ['pool(kernel=3)', 'pool(kernel=5)']
        """
        pairs = list(zip(self.names, self.values, strict=True))
        total = Counter(self.names)
        same = Counter((name, *x) for name, mine in pairs for x in mine.items())
        labels = []
        for name, mine in pairs:
            # An argument that all launches of the op share tells none of them apart.
            said = ", ".join(
                f"{x.where.removeprefix('keyword ')}={self.text(name, x, value)}".replace("'", "")
                for x, value in mine.items()
                if x.name == "static" and value is not ABSENT and same[name, x, value] < total[name]
            )
            labels.append(f"{name}({said})" if said else name)
        return labels

    def without(self, attribute: Attribute, op: str) -> Integers:
        """Return what ``number`` would be if ``attribute`` of the op named ``op`` did not matter.

        Varieties of that op that differ in nothing else get one number; those of other ops stay apart.
        Attributes that depend on ``attribute`` do not matter either: those of an
        operand with its ``kind``, and those of all operands with ``structure``.
        """

        def matters(other: Attribute) -> bool:
            if attribute.name == "structure":
                return other.name in ("op", "whole") or other.where.startswith("keyword")
            if attribute.name == "kind":
                return other.where != attribute.where
            return other != attribute

        merged: dict[Hashable, int] = {}
        number = []
        for variety, values in enumerate(self.values):
            # Varieties of the op become one if they agree in all that still matters. Those of other ops
            # stay apart, each by its number.
            key: Hashable = variety
            if self.names[variety] == op:
                key = frozenset(item for item in values.items() if matters(item[0]))
            number.append(merged.setdefault(key, len(merged)))
        return np.array(number, np.int64)[self.number]


def attributes_of_call(columns: Columns, call: int, whole: bool, keywords: Iterable[str]) -> Iterator[Said]:
    """Yield the attributes of a call that recording knows, each as (name, where, value, text).

    ``whole`` says whether its whole result is read. Some call of its op has each of the ``keywords``; one
    that this call lacks is an attribute of it, too, with the value `ABSENT`.
    """
    signature = columns.signatures[columns.signature[call]]
    key: Any = signature.key
    plain = is_lazy(signature)
    if not plain:
        yield "op", "", key[0], op_text(signature.op)
        # Operands without containers have no structure, so their number is compared as well.
        yield "structure", "", (key[1], len(signature.slots)), structure_text(signature)
    else:
        yield "op", "", signature.name, signature.name
        yield "arguments", "", key[0], signature.op.called_with or "nothing"
    for where, slot, position in slots_of(signature):
        if not plain:
            yield from attributes_of_operand(where, slot)
        else:
            yield "source", where, slot.kind, "an array" if slot.kind.array else "a result"
        if slot.kind.ref and slot.kind.shared:
            ref = int(columns.operand(slot, position, call))
            yield "shared", where, ref, f"the result of call {node_text(columns, ref)}"
    for name in keywords:
        given = name in signature.static
        value = signature.static[name] if given else None
        text = value_text(value) if given else "absent"
        yield "static", f"keyword '{name}'", freeze(value) if given else ABSENT, text
    # A call that is read whole shares its launch with no other, so its own number is its value.
    yield "whole", "", call if whole else ABSENT, f"call {call}" if whole else "rows"


def is_lazy(signature: Signature) -> bool:
    """Return whether calls of a signature were recorded from code as it stands, as by `multifold.batched`.

    Calls of `Fold.add` were not.
    """
    return isinstance(signature.op, LazyOp)


def attributes_of_operand(where: str, slot: Slot) -> Iterator[Said]:
    """Yield the attributes of one operand, called ``where``, each as (name, where, value, text).

    All have a ``kind``. An array has ``dtype``, ``shape`` and ``device`` besides, a ragged operand
    ``dtype`` and ``shape``, and a value that is no row of a call ``shared`` or ``static``. Values are
    compared; texts are shown.
    """
    kind = slot.kind
    yield "kind", where, kind, kind.text
    if kind.array:
        shape, dtype, *device = array_class(slot.key)
        yield "dtype", where, dtype, str(dtype)
        yield "shape", where, shape, str(shape)
        yield "device", where, tuple(device), " ".join(map(str, device))
    elif kind.ragged:
        shape, dtype = slot.value or ("none", "none")
        yield "dtype", where, dtype, str(dtype)
        yield "shape", where, shape, str(shape)
    elif kind.column is None:
        yield "shared" if kind.shared else "static", where, slot.key, value_text(slot.value)


def varieties(columns: Columns, calls: Integers, alone: Integers, row_class: RowClass | None) -> Varieties:
    """Return the varieties of some calls: which of them have all attributes in common.

    Parameters
    ----------
    columns : Columns
        The recorded calls.
    calls : int64 array
        The calls that are asked about.
    alone : int64 array
        The calls whose whole result is read.
    row_class : callable, or None
        What a run has seen of the rows of calls, where it had to divide launches.
    """
    # A keyword of one call is an attribute of all calls of that name: the others lack it.
    keywords: dict[str, dict[str, None]] = {}
    for signature in columns.signatures:
        keywords.setdefault(signature.name, {}).update(dict.fromkeys(signature.static))
    keys = call_types(columns, alone)[calls]
    rows: list[dict[str, Hashable]] = []
    if row_class is not None:
        # The schedule knew less than the run: rows of one type turned out to differ.
        rows = [operand_classes(columns, call, row_class) for call in calls.tolist()]
        seen: dict[Hashable, int] = {}
        pairs = zip(keys.tolist(), rows, strict=True)
        keys = np.array([seen.setdefault((key, *row.values()), len(seen)) for key, row in pairs], np.int64)
    first, number = in_order(keys)
    texts = Phrases()
    whole = set(alone.tolist())
    names = [columns.signatures[i].name for i in columns.signature[calls[first]].tolist()]
    values = []
    for at, name in zip(first.tolist(), names, strict=True):
        call = int(calls[at])
        said = [*attributes_of_call(columns, call, call in whole, keywords[name])]
        if rows:
            said += [("divided", where, known, class_text(known)) for where, known in rows[at].items()]
        values.append(texts.collect(name, said))
    return Varieties(values, names, number, texts.known)


class Phrases:
    """The texts of values of attributes; different values with one text get numbers, as "(no. 2)"."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, Attribute], dict[Hashable, str]] = {}
        self.written: Counter[tuple[str, Attribute, str]] = Counter()

    def collect(self, op: str, said: Iterable[Said]) -> dict[Attribute, Hashable]:
        """Return attribute -> value of one call of ``op``, a name, from what `attributes_of_call` yields.

        The text of each value is stored in ``known``, numbered if another value of the attribute has the
        same.
        """
        found = {}
        for name, where, value, text in said:
            attribute = Attribute(name, where)
            found[attribute] = value
            texts = self.known.setdefault((op, attribute), {})
            if value not in texts:
                self.written[op, attribute, text] += 1
                same = self.written[op, attribute, text]
                texts[value] = f"{text} (no. {same})" if same > 1 else text
        return found


def in_order(keys: Integers) -> tuple[Integers, Integers]:
    """Return two int64 arrays: where each distinct key comes first, and for each key its number.

    Keys are numbered from 0 in the order of their first appearance.

    Examples
    --------
    >>> in_order(np.array([7, 3, 7, 5]))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    # `np.unique` numbers the keys by size. Number them by their first appearance instead.
    order = np.argsort(first)
    return first[order], np.argsort(order)[number]


def operand_classes(columns: Columns, call: int, row_class: RowClass) -> dict[str, Hashable]:
    """Return operand -> the class of its rows when the call ran: what rows of one launch have in common.

    A class is as of `class_of`, ``((4,), dtype)`` for example, and None where it is not known. The widest
    dtype counts where rows of a ragged operand differ. Operands without rows, as shared arrays, are left
    out. ``row_class(call, part)`` returns the class of a part of a result.
    """
    signature = columns.signatures[columns.signature[call]]
    found: dict[str, Hashable] = {}
    for where, slot, position in slots_of(signature):
        if slot.kind.rows:
            entry = columns.operand(slot, position, call)
            refs = columns.rows_of(entry).tolist() if slot.kind.ragged else [int(entry)]
            known = {class_of(columns, ref, row_class): None for ref in refs}
            known.pop(None, None)
            # Floats of several dtypes, which only ragged rows may have, are promoted to the widest one.
            found[where] = max(known, key=width, default=None)
    return found


def width(found: Any) -> int:
    """Return the bytes of one number in rows of a class ``(shape, dtype, ...)``; 0 for any other key.

    It is 0 as well if the dtype has no ``itemsize``.
    """
    plain = isinstance(found, tuple) and len(found) > 1
    return getattr(found[1], "itemsize", 0) if plain else 0


def class_of(columns: Columns, ref: int, row_class: RowClass) -> Hashable:
    """Return the class of the rows that ``ref`` stands for: what rows of one launch have in common.

    For part ``ref >> PART_BITS`` of a call's result it is what ``row_class(call, part)`` returns. A
    negative ``ref`` is -1 - i for entry i of ``columns.loose``, given to a ragged operand: a number has the
    name of its type, and an array its ``(trailing shape, name of dtype)``.
    """
    if ref >= 0:
        return row_class(ref & CALL_MASK, ref >> PART_BITS)
    value = columns.loose[-1 - ref]
    number = number_type(value)
    return number.__name__ if number else (tuple(value.shape[1:]), dtype_text(value.dtype))
