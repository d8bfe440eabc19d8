"""What examples share while they wait: attributes of their model, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that waits for a
value lets others go on, which may change what it has left on the model, and draw the random numbers that
it would have drawn. The first is an error. The second is a warning, if the first waits of a run show it;
with a seed each example has random streams of its own, and draws the same numbers as in a loop that has
them, too.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
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
    seed : int or None
        If given, each example has random streams of its own, which begin with the seed and its number.
    """

    def __init__(self, backend: Backend, fn: Any, seed: int | None) -> None:
        owners = owners_of(backend, None, fn)
        own = [x for x in backend.stateful(owners) if hasattr(x, "__dict__") and not hasattr(x, "__code__")]
        self.tables = [(x, vars(x), frozenset(backend.reserved(x))) for x in own]
        self.random = KeptState(backend, owners, only_random=True)
        self.seed = seed
        self.streams: dict[int, list[Any]] = {}
        self.left = LOOKS if seed is None else 0
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

    @contextlib.contextmanager
    def turn(self, example: int) -> Iterator[None]:
        """Let an example go on: note where the generators are, or let them be its own."""
        if self.seed is None:
            if self.left:
                self.began = self.random.read()
            yield
            return
        outside = self.random.read()
        if example in self.streams:
            self.random.write(self.streams.pop(example))
        else:
            self.random.begin_anew((self.seed, example))
        try:
            yield
        finally:
            self.streams[example] = self.random.read()
            self.random.write(outside)

    def end(self) -> None:
        """Warn if an example has drawn before it waits: others draw before it goes on."""
        if not self.left:
            return
        self.left -= 1
        if self.random.drew(self.began):
            self.left = 0
            warn_user(
                "Examples draw random numbers between values that they read. They take turns, so each "
                "draws others than in the loop. batched(fn, seed=0) gives each example streams of its own."
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
