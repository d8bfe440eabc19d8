"""Objects of the user: whose method one is, which framework its class comes from, what state it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple


def owner_of(x: Any, otherwise: Any) -> Any:
    """Return ``x.__self__``, the object of a method, a compiled one too; else ``otherwise``.

    >>> owner_of([1].append, None), owner_of(len, None) is len.__self__, owner_of(3, "none")
    ([1], True, 'none')
    """
    return attribute_of(x, "__self__", otherwise)


def attribute_of(x: Any, name: str, otherwise: Any) -> Any:
    """Return ``getattr(x, name)``; ``otherwise`` if that raises, whatever the error."""
    try:
        return getattr(x, name)
    except Exception:  # noqa: BLE001 - `__getattr__` of a user's class may raise anything
        return otherwise


class StateSlot(NamedTuple):
    """One thing that an op may change besides its result: see `Backend.slots`.

    Attributes
    ----------
    read : callable
        Returns what is there. Where ops write into an object that is there, the object itself.
    write : callable
        Puts a value there.
    copy : callable
        Returns a copy of what `read` has returned, which no op has changed.
    random : bool
        Whether it is the state of a random generator.
    seed : callable, optional
        Lets the generator begin anew from an integer of 32 bits; None if that cannot be said.
    owner : object
        The object of the program, of Python or of NumPy whose state it is; None for the framework's state.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object]
    copy: Callable[[Any], Any] = lambda value: value
    random: bool = False
    seed: Callable[[int], object] | None = None
    owner: Any = None


@functools.lru_cache(maxsize=256)
def comes_from(kind: type, framework: str) -> bool:
    """Return whether the class ``kind``, or one of its bases, is of the package named ``framework``."""
    return any(base.__module__.partition(".")[0] == framework for base in kind.__mro__)
