"""What a recorded call finds around it, as a run first saw it.

A recorded call runs later than the program. So what its function finds around it, names of its module and
variables that it binds, attributes, what containers hold, must stay what it is until the run has ended.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from multifold._engine.ops.reach import CONTAINERS, FEW, globals_of
from multifold._engine.ops.state import content
from multifold._engine.record.lines import users_frame as users_frame
from multifold.lazy.current import refusal


def entries_of(value: Any) -> Sequence[Any]:
    """Return what a short container holds, by which a change shows; of a long one, how much it holds."""
    if type(value) not in CONTAINERS:
        return ()
    if len(value) > FEW:
        return (len(value),)
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def same_entries(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether containers hold the same objects, or as many."""
    return len(some) == len(others) and all(
        x is y or (type(x) is type(y) is int and x == y) for x, y in zip(some, others, strict=True)
    )


class Around:
    """What a function, or one inside of it, finds around it: variables that it binds, names of its module.

    Parameters
    ----------
    function : function
        The function.
    version_of : callable
        Returns how often an array was changed in place; None for anything else.

    Examples
    --------
    >>> scale = [2]
    >>> def scaled(xs):
    ...     return [x * scale[0] for x in xs]
    >>> around = Around(scaled, lambda x: None)
    >>> around.is_now()
    True
    >>> scale.append(3)
    >>> around.is_now()
    False
    """

    def __init__(self, function: FunctionType, version_of: Callable[[Any], int | None]) -> None:
        own = function.__globals__
        self.version_of = version_of
        self.cells = [(cell, content(cell)) for cell in function.__closure__ or ()]
        self.names = [(own, name, own.get(name, MISSING)) for name in globals_of(function.__code__)]
        found = [x for *_, x in (*self.cells, *self.names)]
        versions = [(x, version_of(x)) for x in found]
        self.versions = [(x, version) for x, version in versions if version is not None]
        self.entries = [(x, entries_of(x)) for x in found if type(x) in CONTAINERS]

    def is_now(self) -> bool:
        """Return whether all is as it was."""
        # It is asked at each call of a cell, where a loop is quicker than `all`.
        for own, name, value in self.names:
            if own.get(name, MISSING) is not value:
                return False
        for cell, value in self.cells:
            if content(cell) is not value:
                return False
        for x, version in self.versions:
            if self.version_of(x) != version:
                return False
        for x, entries in self.entries:  # noqa: SIM110
            if not same_entries(entries_of(x), entries):
                return False
        return True


class Bound:
    """What attributes of an object and variables of a function stand for, and what a container holds.

    Parameters
    ----------
    x : object
        The object.
    attributes : callable
        Returns those of an object that count.
    """

    def __init__(self, x: Any, attributes: Callable[[Any], Mapping[str, Any]] = vars) -> None:
        self.object = x
        self.of = attributes
        self.around = Around(x, lambda part: None) if isinstance(x, FunctionType) else None
        self.attributes = dict(self.of(x)) if hasattr(x, "__dict__") else {}
        held = [part for part in (x, *self.attributes.values()) if type(part) in CONTAINERS]
        self.entries = [(part, entries_of(part)) for part in held]

    def is_now(self) -> bool:
        """Return whether all is as it was."""
        now = self.of(self.object) if self.attributes else self.attributes
        return (
            now.keys() == self.attributes.keys()
            and all(map(operator.is_, now.values(), self.attributes.values()))
            and (self.around is None or self.around.is_now())
            and all(same_entries(entries_of(x), entries) for x, entries in self.entries)
        )


class Seen:
    """A function or an object that a recorded cell is, or takes, as it was when a run first met it.

    A cell runs later than the program. So what it finds must stay what it is until the run has ended.

    Parameters
    ----------
    x : object
        The function or object.
    parts : list of object
        What it holds, or finds around it. Of arrays of NumPy the contents count, since they do not tell how
        often they change.
    attributes : callable
        As of `Bound`.
    """

    def __init__(
        self,
        x: Any,
        parts: Sequence[Any],
        attributes: Callable[[Any], Mapping[str, Any]] = vars,
    ) -> None:
        self.object = x
        self.parts = parts
        self.of = attributes
        self.look()

    def look(self) -> None:
        """Take all as it is now."""
        self.bound = Bound(self.object, self.of)
        self.inner = [Bound(x, self.of) for x in self.parts if x is not self.object and is_bound(x)]
        self.arrays = [(x, x.copy()) for x in self.parts if isinstance(x, np.ndarray)]

    def is_now(self) -> bool:
        """Return whether all is as it was."""
        return (
            self.bound.is_now()
            and all(x.is_now() for x in self.inner)
            and all(np.array_equal(x, kept, equal_nan=x.dtype.kind in "fc") for x, kept in self.arrays)
        )

    def refuse_rebound(self) -> None:
        """Refuse a call that finds other objects than the one before: a loop's ``i``, say."""
        if not self.bound.is_now():
            self.refuse()

    def refuse_changed(self) -> None:
        """Refuse a run in which it has changed."""
        if not self.is_now():
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise the error of what has changed."""
        name = getattr(self.object, "__qualname__", type(self.object).__name__)
        raise refusal(
            f"What the cell {name} uses was changed during the run: an array, an attribute or a "
            "variable. Recorded calls run later than in the loop.",
            "pass what changes as an argument of the cell, and change the rest after the run.",
        )


def is_bound(x: Any) -> bool:
    """Return whether something holds others by names, or as a container."""
    return type(x) in CONTAINERS or (hasattr(x, "__dict__") and not isinstance(x, (type, ModuleType)))


MISSING = object()
"""Stands for a name that a module does not have."""
