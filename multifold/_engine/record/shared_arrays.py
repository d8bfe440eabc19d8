"""Arrays that the caller may change after a call: copies of some, and how often others were changed.

A run computes with the arrays as they were when their calls were recorded, or it is refused. Large NumPy
arrays in `multifold.shared` are copied once and compared with their copies before a run (`SharedCopies`).
Arrays of a framework that counts changes, as PyTorch does, are not copied: their counts are compared
(`CountedArrays`).

>>> copies = SharedCopies()
>>> table = np.zeros(10_000)
>>> kept = copies.value(table)
>>> kept is copies.value(table), kept is table
(True, False)
>>> table[0] = 1
>>> [key.value is table for key in copies.changed()]
[True]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import numpy as np

from multifold._engine.record.anatomy import Identity
from multifold._engine.record.freezing import freeze, is_copy, may_change, read_only_copy, same, snapshot
from multifold.errors import RecordError

SMALL = 4096
"""Bytes of a shared array whose content is compared in each call, which is quicker than to keep it."""


ChangesOf = Callable[[Any], "int | None"]
"""Returns how often an array was changed in place; None for one that keeps no count."""


class LastingCopies(dict[int, tuple["weakref.ref[np.ndarray]", np.ndarray]]):
    """The ``id`` of an array -> a weak reference to it, and its copy; an entry goes with its array."""

    __slots__ = ("__weakref__",)


def forget(copies: weakref.ref[LastingCopies], number: int, array: weakref.ref[np.ndarray]) -> None:
    """Remove the entry ``number``, the id of an array, from ``copies``: called when that array is freed.

    ``copies`` is a weak reference. Where the table itself is gone, nothing happens.
    """
    table = copies()
    if table is not None:
        table.pop(number, None)


class SharedCopies:
    """The values inside of `multifold.shared` as the calls of one graph keep them.

    Parameters
    ----------
    before : LastingCopies, optional
        The copies of the graph in whose place this one is: taken over where the array is still the same.
    """

    def __init__(self, before: LastingCopies | None = None) -> None:
        self.copies: dict[Identity, np.ndarray] = {}
        self.before = LastingCopies() if before is None else before

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what can be pickled: the copies themselves, and none of another graph."""
        return SharedCopies, (), {"copies": self.copies}

    def key(self, x: Any) -> Hashable:
        """Return a key of a shared value: calls whose keys of it differ share no launch.

        An array of numbers is one object, since two tables are two even if they are equal today; up to
        `SMALL` bytes its content counts as well. All other values are compared as static ones are: lists,
        arrays of objects and numbers by their contents.
        """
        if not isinstance(x, np.ndarray) or x.dtype.hasobject:
            return freeze(x)
        return (Identity(x), freeze(x)) if x.nbytes <= SMALL else Identity(x)

    def value(self, x: Any) -> Any:
        """Return what is kept of a shared value: a copy, which is read-only if it is an array.

        A NumPy array whose memory cannot change is returned itself, and so is a framework's. The copy of
        one of more than `SMALL` bytes is made once and kept in ``copies``, unless it holds objects.
        """
        if not isinstance(x, np.ndarray):
            return snapshot(x)
        if not may_change(x):
            return x
        key = Identity(x)
        kept = self.copies.get(key)
        if kept is None:
            _, kept = self.before.pop(id(x), (None, None))
            if kept is None or not is_copy(kept, x):
                kept = read_only_copy(x)
            if x.nbytes > SMALL and not x.dtype.hasobject:
                self.copies[key] = kept
        return kept

    def changed(self) -> Iterator[Identity]:
        """Yield the `Identity` of each large array that no longer equals its copy."""
        for key, copied in list(self.copies.items()):
            if not same(key.value, copied):
                yield key

    def drop(self, key: Identity) -> None:
        """Forget the copy of an array, whose ``key`` `changed` has yielded; `KeyError` if there is none.

        Calls to come get a copy of its new content.
        """
        del self.copies[key]

    def forget_before(self) -> None:
        """Forget the copies of the graph before, which no call has taken over yet."""
        self.before = LastingCopies()

    def lasting(self) -> LastingCopies:
        """Return the copies that a graph which takes the place of this one may use, by the arrays' ids.

        A copy is freed with its array, or by the next reset if no call has shared the array until then.
        """
        lasting = LastingCopies()
        for key, copied in self.copies.items():
            gone = partial(forget, weakref.ref(lasting), id(key.value))
            lasting[id(key.value)] = weakref.ref(key.value, gone), copied
        return lasting


class CountedArrays:
    """Arrays of a framework that counts their changes, until the calls that read them have run.

    Attributes
    ----------
    known : dict of int to (array, int or None, callable, list of int)
        By the ``id`` of each array: the array, how often it had been changed when it was recorded, what
        tells how often it was until now, and the calls that read it.
    """

    def __init__(self) -> None:
        self.known: dict[int, tuple[Any, int | None, ChangesOf, list[int]]] = {}

    def note(self, array: Any, changes_of: ChangesOf, call: int, may_change: bool) -> None:
        """Note that call number ``call`` reads an array, and how often that was changed until now.

        ``changes_of(array)`` returns how often.

        Raises
        ------
        RecordError
            If it was changed since a call before was recorded with it, unless it ``may_change``: an eager
            twin has computed the calls before.
        """
        count = changes_of(array)
        known = self.known.get(id(array))
        if known is None:
            self.known[id(array)] = array, count, changes_of, [call]
            return
        if count != known[1] and not may_change:
            raise changed_in_place(array)
        known[3].append(call)

    def take_changed(self) -> list[tuple[int, RecordError]]:
        """Return ``(call, error)`` for each call whose array was changed since it was recorded.

        All arrays are forgotten: the other calls of the graph may run then.
        """
        found = [
            (call, changed_in_place(array))
            for array, count, changes_of, calls in self.known.values()
            if changes_of(array) != count
            for call in calls
        ]
        self.known.clear()
        return found

    def refuse_changed(self) -> None:
        """Raise the `RecordError` of the first array that was changed since its recording; else forget all.

        Nothing is forgotten where it raises.
        """
        for array, count, changes_of, _ in self.known.values():
            if changes_of(array) != count:
                raise changed_in_place(array)
        self.known.clear()


def changed_in_place(array: Any) -> RecordError:
    """Return the error of an array that was changed between its recording and the run."""
    return RecordError(
        "Expected a recorded array to stay as it was until its calls have run. Received one of shape "
        f"{tuple(array.shape)} and dtype {array.dtype} that was changed in place since it was recorded.",
        "record a copy of it for each content, as x.clone().",
    )
