"""What examples share while they wait: attributes of their model, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that waits for a
value lets others go on, which may change what it has left on the model, and draw the random numbers that
it would have drawn. The first is an error. The second is a warning, if the first waits of a run show it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from multifold._record.graph import warn_user
from multifold._run.reach import owners_of
from multifold._run.state import KeptState
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.recording import entries_of, same_entries

LOOKS = 32
"""Only so many waits of a run are asked whether random numbers were drawn: asking takes some 20 µs."""

Attribute = tuple[Any, str, Any, Sequence[Any]]
"""An object, the name of an attribute, its value, and what that holds if it is a container."""

Attributes = dict[tuple[int, str], Attribute]
"""Attributes by the ``id`` of the object and the name."""


class Sharing:
    """What the examples of a program share.

    Parameters
    ----------
    backend : Backend
        What knows the objects that an op may change.
    fn : callable
        The program.
    """

    def __init__(self, backend: Backend, fn: Any) -> None:
        owners = owners_of(backend, None, fn)
        own = [x for x in backend.stateful(owners) if hasattr(x, "__dict__") and not hasattr(x, "__code__")]
        self.tables = [(x, vars(x), frozenset(backend.reserved(x))) for x in own]
        self.random = KeptState(backend, owners, only_random=True)
        self.left = LOOKS
        self.began: list[Any] = []

    # ---- attributes ----------------------------------------------------------------------------------

    def look(self) -> Attributes:
        """Return what the attributes are."""
        return {
            (id(owner), name): (owner, name, value, entries_of(value))
            for owner, own, reserved in self.tables
            for name, value in own.items()
            if name not in reserved
        }

    def refuse_changes(self, before: Attributes) -> None:
        """Refuse attributes that are others than before an example waited."""
        found = self.look()
        for key in {**before, **found}:
            now, then = found.get(key), before.get(key)
            if now is None or then is None or not is_same(now, then):
                owner, name, *_ = {**before, **found}[key]
                raise RecordError(
                    f"The examples share attribute {name!r} of {type(owner).__name__}, and others changed "
                    "it while one waited for a value.",
                    "batched(fn, own=True) gives each example a copy of the model with its parameters.",
                )

    # ---- random numbers ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note where the generators are when an example goes on."""
        if self.left:
            self.began = self.random.read()

    def end(self) -> None:
        """Warn if an example has drawn before it waits: others draw before it goes on."""
        if not self.left:
            return
        self.left -= 1
        if self.random.drew(self.began):
            self.left = 0
            warn_user(
                "Examples draw random numbers between values that they read. They take turns, so each "
                "draws others than in the loop."
            )


def is_same(now: Attribute, then: Attribute) -> bool:
    """Return whether an attribute holds the same objects as before."""
    return now[2] is then[2] and same_entries(now[3], then[3])


def own_copy(backend: Backend, fn: Any) -> Any:
    """Return a copy of a model, or of a method of it, that shares its arrays."""
    owner = getattr(fn, "__self__", fn)
    shared = {id(x): x for x in backend.arrays_of(owner)}
    copied = copy.deepcopy(owner, shared)
    return copied if owner is fn else getattr(copied, fn.__name__)
