"""Verdicts: which ops were seen to keep their rows apart.

A trial (`multifold._run.trial`) takes two more runs of an op, and most folds live for one minibatch only.
So its verdict is kept here for as long as what ran: the function, or the method and the object it belongs
to. Each is known by a weak reference, so that no verdict keeps a model alive. A verdict holds for launches
whose signatures have one key (`key_of`) and whose operands have the same ranks and dtypes (`ranks_of`).

>>> def op(x, s):
...     return x * s[:, None]
>>> verdicts = Verdicts()
>>> verdicts.add(op, "rows of width 3"), verdicts.has(op, "rows of width 3"), verdicts.has(op, "of 5")
(None, True, False)
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
from types import NoneType
from typing import Any
from weakref import WeakKeyDictionary

from multifold._record.freezing import freeze, nesting
from multifold._record.signature import Signature
from multifold._run.values import leaves_of, opened
from multifold.backend import Ragged

MOST = 1024
"""Verdicts of one op; beyond them all are forgotten, as an op of ever new static values would need."""

VALUES = (bool, int, float, str, bytes, NoneType)
"""Types of arguments of a partial function that are compared by value."""


def makers(op: Any) -> Iterator[Any]:
    """Yield the objects that an op consists of: function, object of a method, arguments of a partial."""
    if isinstance(op, functools.partial):
        yield from makers(op.func)
        for part in (*op.args, *op.keywords, *op.keywords.values()):
            yield from makers(part)
    elif hasattr(op, "__func__") and hasattr(op, "__self__"):
        yield op.__func__
        yield op.__self__
    else:
        yield op


class Known:
    """The verdicts of one op, and weak references to what it consists of."""

    def __init__(self, refs: list[weakref.ref[Any]]) -> None:
        self.refs = refs
        self.counts: Counter[Hashable] = Counter()
        self.alike: set[Hashable] = set()
        """Classes of rows that were found to be of a key with enough trials, which is quicker to ask."""

    def add(self, key: Hashable, passed: int) -> None:
        """Note that the op has passed a trial, which may be worth several."""
        if len(self.counts) >= MOST:
            self.counts.clear()
            self.alike.clear()
        self.counts[key] += passed


class Verdicts:
    """What is known of ops, for as long as they live."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Known] = {}

    def __len__(self) -> int:
        """The number of ops."""
        return len(self.known)

    def of(self, op: Callable[..., Any], *, new: bool) -> Known | None:
        """Return what is known of an op; None if nothing is, or if it cannot be known by its identity."""
        parts = list(makers(op))
        key = tuple([(type(x), repr(x)) if type(x) in VALUES else id(x) for x in parts])
        objects = [x for x in parts if type(x) not in VALUES]
        known = self.known.get(key)
        # Python gives the id of an object that is gone to a new one.
        if known is not None and all(ref() is x for ref, x in zip(known.refs, objects, strict=True)):
            return known
        if not new:
            return None
        try:
            known = Known([weakref.ref(x, lambda _: self.known.pop(key, None)) for x in objects])
        except TypeError:  # a tuple with methods, for one
            return None
        self.known[key] = known
        return known

    def has(self, op: Callable[..., Any], key: Hashable, enough: int = 1) -> bool:
        """Return whether an op has passed as many trials of one kind as are enough."""
        known = self.of(op, new=False)
        return known is not None and known.counts.get(key, 0) >= enough

    def add(self, op: Callable[..., Any], key: Hashable, passed: int = 1) -> None:
        """Note that an op has passed a trial, which may be worth several."""
        known = self.of(op, new=True)
        if known is not None:
            known.add(key, passed)


VERDICTS = Verdicts()
"""Those of this process."""


# ---- by what a verdict is known ------------------------------------------------------------------

KEYS: WeakKeyDictionary[Signature, Hashable] = WeakKeyDictionary()
"""What `key_of` has found."""


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
    """Return static values as they count for a verdict: by hash and text, to keep no model alive."""
    return hash(freeze(values)), repr(values)


def ranks_of(leaves: Sequence[Any]) -> tuple[tuple[int, Hashable], ...]:
    """Return the ranks and dtypes of the arrays of batched leaves."""
    parts = [part for leaf in leaves for part in (leaf if type(leaf) is Ragged else (leaf,))]
    return tuple([(len(x.shape), x.dtype) for part in parts for x in leaves_of(opened(part))])
