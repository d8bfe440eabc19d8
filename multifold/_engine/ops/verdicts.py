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
    """Yield the parts by which an op is known again, each after whether it counts by value or by identity.

    A function counts by its code and what it binds, since a lambda in a training step is another object
    each time. A float counts by its type, and an array by its `Backend.bound_form`, if it has one: each
    step may have another one. ``seen`` numbers the functions and containers that have been met, by `id`;
    one that comes again is its number.
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
    """The verdicts of one op, and weak references to what it consists of."""

    def __init__(self, refs: list[weakref.ref[Any]]) -> None:
        self.refs = refs
        self.counts: Counter[Hashable] = Counter()
        self.alike: set[Hashable] = set()
        """What launches with enough trials have in common: the launcher looks here before at ranks."""
        self.untried: dict[Hashable, str] = {}
        """Why the op is believed without a trial, by the keys for which it is."""

    def add(self, key: Hashable, passed: int, untried: str = "") -> None:
        """Note that the op has passed a trial, which may be worth several, or why it had none."""
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
    """What is known of ops, for as long as they live."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Known] = {}

    def __len__(self) -> int:
        """The number of ops."""
        return len(self.known)

    def of(self, backend: Backend, op: Callable[..., Any], *, new: bool) -> Known | None:
        """Return what is known of an op; None if nothing is, or if it cannot be known by its identity."""
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
        """Return whether an op has passed as many trials of one kind as are enough."""
        known = self.of(backend, op, new=False)
        return known is not None and known.counts.get(key, 0) >= enough

    def add(self, backend: Backend, op: Callable[..., Any], key: Hashable, passed: int = 1) -> None:
        """Note that an op has passed a trial, which may be worth several."""
        known = self.of(backend, op, new=True)
        if known is not None:
            known.add(key, passed)


VERDICTS = Verdicts()
"""The verdicts of this process, which all threads and folds share."""


KEYS: WeakKeyDictionary[Signature, Hashable] = WeakKeyDictionary()
"""Signature -> what `key_of` has found for it."""


def key_of(signature: Signature) -> Hashable:
    """Return what of a signature belongs to a verdict: all but the op and the values that are shared."""
    known = KEYS.get(signature)
    if known is not None:
        return known
    kinds = tuple(slot.kind.name for slot in signature.slots)
    static = [slot.value for slot in signature.slots if not slot.kind.batched and not slot.kind.shared]
    own = static_key([static, signature.static]) if static or signature.static else None
    found = KEYS[signature] = kinds, nesting(signature.structure, len(kinds)), own
    return found


def static_key(values: Any) -> Hashable:
    """Return static values as they count for a verdict: by hash and text, to keep no model alive.

    Floats count by their type, as a temperature that falls from step to step.

    >>> static_key({"by": 0.5, "dim": 1}) == static_key({"by": 0.4, "dim": 1}) != static_key({"dim": 0})
    True
    """
    values = optree.tree_map(lambda x: float if type(x) is float else x, values, none_is_leaf=True)
    return hash(freeze(values)), repr(values)


def ranks_of(leaves: Sequence[Any]) -> tuple[tuple[int, Hashable], ...]:
    """Return the ranks and dtypes of the arrays of batched leaves."""
    parts = [part for leaf in leaves for part in (leaf if type(leaf) is Ragged else (leaf,))]
    return tuple([(len(x.shape), x.dtype) for part in parts for x in leaves_of(opened(part))])
