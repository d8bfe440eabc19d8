"""Methods and functions of a framework that are others while programs record, as those that call layers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

INHERITED = object()
"""Is kept of a method that a class has from another one."""


class Replacements:
    """Methods and functions that others replace while any program records, in any thread.

    Parameters
    ----------
    *places : tuple of (class or module, str, callable)
        A class, the name of a method, and a function that takes the method and returns its replacement; or
        a module, the name of a function, and the like.

    Examples
    --------
    >>> class Layer:
    ...     def call(self):
    ...         return "called"
    >>> seen = Replacements((Layer, "call", lambda call: lambda self: f"seen and {call(self)}"))
    >>> with seen.applied():
    ...     Layer().call()
    'seen and called'
    >>> Layer().call()
    'called'
    """

    def __init__(self, *places: tuple[Any, str, Callable[[Any], Any]]) -> None:
        self.places = places
        self.kept: list[Any] = [INHERITED] * len(places)
        self.made: list[Any] = [None] * len(places)
        self.lock = threading.Lock()
        self.users = set[object]()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which all methods are replaced; the last to be left puts them back.

        A key press may end `replace` and `put_back` anywhere, so both look at which methods are there.
        """
        user = object()
        try:
            with self.lock:
                self.users.add(user)
                self.replace()
            yield
        finally:
            with self.lock:
                self.users.discard(user)
                if not self.users:
                    self.put_back()

    def replace(self) -> None:
        """Replace all methods, but for those that are replaced already."""
        for i, (owner, name, make) in enumerate(self.places):
            now = vars(owner).get(name, INHERITED)
            if now is not self.made[i]:
                self.kept[i] = now
                self.made[i] = make(getattr(owner, name) if now is INHERITED else now)
                setattr(owner, name, self.made[i])

    def put_back(self) -> None:
        """Put back all methods that are replaced."""
        for i, (owner, name, _) in enumerate(self.places):
            if vars(owner).get(name, INHERITED) is not self.made[i]:
                continue
            if self.kept[i] is INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, self.kept[i])
