"""What examples share while they wait: attributes of their model, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that waits for a
value lets others go on, which may change what it has left on the model, and draw the random numbers that
it would have drawn. Neither may pass in silence: the first is an error, the second a warning.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Sequence
from typing import Any

from multifold._record.graph import warn_user
from multifold._run.reach import CONTAINERS, FEW, owners_of
from multifold._run.state import KeptState
from multifold.backend import Backend
from multifold.errors import RecordError

LOOKS = 32
"""So many waits of a run are asked whether random numbers were drawn before them: each takes some 20 µs."""


Attribute = tuple[Any, str, Any, Sequence[Any]]
"""An object, the name of an attribute, its value, and what that holds if it is a container."""


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

    def look(self) -> list[Attribute]:
        """Return what the attributes are."""
        return [
            (owner, name, value, entries_of(value))
            for owner, own, reserved in self.tables
            for name, value in own.items()
            if name not in reserved
        ]

    def refuse_changes(self, before: Sequence[Attribute]) -> None:
        """Refuse attributes that are others than before an example waited."""
        for now, then in itertools.zip_longest(self.look(), before):
            if now is None or then is None or not is_same(now, then):
                owner, name, *_ = then or now
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


def entries_of(value: Any) -> Sequence[Any]:
    """Return what a short container holds; of a long one, how much."""
    if type(value) not in CONTAINERS:
        return ()
    if len(value) > FEW:
        return (len(value),)
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def is_same(now: Attribute, then: Attribute) -> bool:
    """Return whether an attribute holds the same objects as before."""
    return (
        now[:2] == then[:2]
        and now[2] is then[2]
        and len(now[3]) == len(then[3])
        and all(map(operator.is_, now[3], then[3]))
    )


def own_copy(backend: Backend, fn: Any) -> Any:
    """Return a copy of a model, or of a method of it, that shares its arrays."""
    owner = getattr(fn, "__self__", fn)
    shared = {id(x): x for x in backend.arrays_of(owner)}
    copied = copy.deepcopy(owner, shared)
    return copied if owner is fn else getattr(copied, fn.__name__)
