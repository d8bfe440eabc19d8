"""Methods and functions of a framework that are others while programs record, as those that call layers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from multifold._engine.compiled import KnownCall as KnownCall
from multifold.marks import mark_of as mark_of

INHERITED = object()
"""Stands for what a class had no attribute of its own for."""


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
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.users = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which all methods are replaced; the last to be left puts them back."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.kept = [vars(owner).get(name, INHERITED) for owner, name, _ in self.places]
                for owner, name, make in self.places:
                    setattr(owner, name, make(vars(owner).get(name, getattr(owner, name))))
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    for (owner, name, _), kept in zip(self.places, self.kept, strict=True):
                        if kept is INHERITED:
                            delattr(owner, name)
                        else:
                            setattr(owner, name, kept)
