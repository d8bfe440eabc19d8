"""Verdicts: which ops were seen to keep their rows apart.

A trial (`multifold._engine.ops.trial`) takes six more runs of an op, and most folds live for one minibatch
only. So its verdict is kept here for as long as what ran: the code of a function and the objects that it
binds, or the object that a method belongs to. Each is known by a weak reference, so that no verdict keeps a
model alive. A verdict holds for launches whose signatures have one key (`key_of`), and whose operands have
one list of ranks and dtypes (`ranks_of`).

>>> from multifold import load_backend
>>> def op(x, s):
...     return x * s[:, None]
>>> verdicts, backend = Verdicts(), load_backend("numpy")
>>> verdicts.add(backend, op, "rows of width 3")
>>> verdicts.has(backend, op, "rows of width 3"), verdicts.has(backend, op, "rows of width 5")
(True, False)
>>> del op
>>> len(verdicts)
0

All threads share one table. Each step is one operation of a dictionary or set, so two threads may at worst
hold the same trial twice.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import optree

from multifold._engine.ops.reach import FEW, VALUES, bound_by
from multifold._engine.ops.values import leaves_of, opened
from multifold._engine.record.freezing import freeze, nesting
from multifold._engine.record.signature import Signature
from multifold.backend import Backend, Ragged

MOST = 1024
"""How many verdicts an op may have before all of them are forgotten.

An op with ever new static values adds one for each, and never asks for the old ones again.
"""


def identity(backend: Backend, op: Any, seen: dict[int, int]) -> Iterator[tuple[bool, Any]]:
    """Yield pairs of a bool and a part: by these parts an op is known again.

    If the bool is True the part, which is hashable, counts by its value; else it is an object, which counts
    by its identity. A function counts by its code and what it binds, since a lambda in a training step is
    another object each time. A float counts by its type, and an array by its `Backend.bound_form`, if it
    has one: each step may have another one.

    ``seen`` has the id of each function and container so far -> its number, and is added to; one that comes
    again yields its number.
    """
    kind = type(op)
    if kind in VALUES:
        yield True, kind if kind is float else (kind, repr(op))
    elif isinstance(op, np.ufunc):  # NumPy's own, to which there are no weak references
        yield True, op
    elif id(op) in seen:
        yield True, seen[id(op)]
    elif isinstance(op, functools.partial):
        yield True, (kind, len(op.args), *op.keywords)
        for x in (op.func, *op.args, *op.keywords.values()):
            yield from identity(backend, x, seen)
    elif hasattr(op, "__func__") and hasattr(op, "__self__"):
        yield from identity(backend, op.__func__, seen)
        yield False, op.__self__
    elif kind is FunctionType:
        seen[id(op)] = len(seen)
        bound = [part for x in bound_by(op) for part in identity(backend, x, seen)]
        if all(by_value or type(x).__weakrefoffset__ for by_value, x in bound):
            yield from [(False, op.__code__), *bound]
        else:  # an object that it binds takes no weak reference, as an iterator: so it is itself only
            yield False, op
    elif kind in (tuple, list, dict) and len(op) <= FEW:
        seen[id(op)] = len(seen)
        yield True, (kind, len(op))
        for x in (*op, *op.values()) if kind is dict else op:
            yield from identity(backend, x, seen)
    elif (form := backend.bound_form(op)) is not None:
        yield True, form
    else:
        yield False, op


class Known:
    """The verdicts on one op, and weak references to what it consists of.

    ``counts`` has the key of a kind of launches -> how many rows have passed trials there.
    """

    def __init__(self, refs: list[weakref.ref[Any]]) -> None:
        self.refs = refs
        self.counts: Counter[Hashable] = Counter()
        self.alike: set[Hashable] = set()
        """What launches with enough trials have in common: the launcher looks here before at ranks."""
        self.untried: dict[Hashable, str] = {}
        """Why the op is believed without a trial, by the keys for which it is."""

    def add(self, key: Hashable, passed: int, untried: str = "") -> None:
        """Add ``passed`` to the count of rows of launches of this key that have passed trials.

        ``untried`` is the reason if there was no trial, and is kept; "" forgets an earlier reason. If there
        are `MOST` keys already, all of them are forgotten first.
        """
        if len(self.counts) >= MOST:
            self.counts.clear()
            self.alike.clear()
            self.untried.clear()
        self.counts[key] += passed
        if untried:
            self.untried[key] = untried
        else:
            self.untried.pop(key, None)


class Verdicts:
    """What is known of ops, for as long as these live: what `identity` yields for an op -> `Known`."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Known] = {}

    def __len__(self) -> int:
        """The number of ops that something is known of."""
        return len(self.known)

    def of(self, backend: Backend, op: Callable[..., Any], *, new: bool) -> Known | None:
        """Return what is known of an op; if nothing is, a new, stored `Known` if ``new``, else None.

        None, too, for an op with an object to which there are no weak references.
        """
        parts = [*identity(backend, op, {})]
        key = tuple([x if by_value else id(x) for by_value, x in parts])
        objects = [x for by_value, x in parts if not by_value]
        known = self.known.get(key)
        # Python may give the id of an object that is gone to a new one, so the objects are compared, too.
        if known is not None and all(ref() is x for ref, x in zip(known.refs, objects, strict=True)):
            return known
        if not new:
            return None
        try:
            # The first of its parts that goes takes the verdicts along: the op can't come back without it.
            known = Known([weakref.ref(x, lambda _: self.known.pop(key, None)) for x in objects])
        except TypeError:  # to some objects there are no weak references
            return None
        self.known[key] = known
        return known

    def has(self, backend: Backend, op: Callable[..., Any], key: Hashable, enough: int = 1) -> bool:
        """Return whether the count of an op for ``key`` is ``enough`` or more; nothing is stored."""
        known = self.of(backend, op, new=False)
        return known is not None and known.counts.get(key, 0) >= enough

    def add(self, backend: Backend, op: Callable[..., Any], key: Hashable, passed: int = 1) -> None:
        """Add ``passed`` to the count of an op for ``key``; nothing if the op cannot be known again."""
        known = self.of(backend, op, new=True)
        if known is not None:
            known.add(key, passed)


VERDICTS = Verdicts()
"""The verdicts of this process, which all threads and folds share."""


KEYS: WeakKeyDictionary[Signature, Hashable] = WeakKeyDictionary()
"""Signature -> what `key_of` has found for it."""


def key_of(signature: Signature) -> Hashable:
    """Return what of a signature belongs to the key of a verdict, remembered for each signature.

    That is the kinds and the nesting of operands, and static values, but not the op or shared values.
    """
    known = KEYS.get(signature)
    if known is not None:
        return known
    kinds = tuple(slot.kind.name for slot in signature.slots)
    static = [slot.value for slot in signature.slots if not slot.kind.batched and not slot.kind.shared]
    own = static_key([static, signature.static]) if static or signature.static else None
    found = KEYS[signature] = kinds, nesting(signature.structure, len(kinds)), own
    return found


def static_key(values: Any) -> Hashable:
    """Return a key of static values, their hash and text, which keeps no model alive.

    Floats count by their type, as a temperature that falls from step to step.

    >>> static_key({"by": 0.5, "dim": 1}) == static_key({"by": 0.4, "dim": 1}) != static_key({"dim": 0})
    True
    """
    values = optree.tree_map(lambda x: float if type(x) is float else x, values, none_is_leaf=True)
    return hash(freeze(values)), repr(values)


def ranks_of(leaves: Sequence[Any]) -> tuple[tuple[int, Hashable], ...]:
    """Return the number of axes and the dtype of each array in the leaves, in order.

    A ragged leaf has three arrays or more: those of its values, lengths and segment ids.

    >>> ranks_of([np.zeros((2, 3)), np.zeros(2, int)])
    ((2, dtype('float64')), (1, dtype('int64')))
    """
    parts = [part for leaf in leaves for part in (leaf if type(leaf) is Ragged else (leaf,))]
    return tuple([(len(x.shape), x.dtype) for part in parts for x in leaves_of(opened(part))])
