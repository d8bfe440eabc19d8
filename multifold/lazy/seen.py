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

from multifold._engine.ops.reach import CONTAINERS, FEW, bare, globals_of
from multifold._engine.ops.state import NOTHING as NOTHING
from multifold._engine.ops.state import read_cell as read_cell
from multifold._engine.ops.state import still_holds as still_holds
from multifold._engine.ops.state import wait_for_others
from multifold._engine.record.lines import users_frame as users_frame
from multifold.lazy.current import refusal


def entries_of(value: Any) -> Sequence[Any]:
    """Return what a list, dict, set or the like holds; ``(len(value),)`` if it has more than 64 entries.

    Of a dict, these are the keys and then the values; of anything that is no container, there are none.
    """
    if type(value) not in CONTAINERS:
        return ()
    if len(value) > FEW:
        return (len(value),)
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def same_entries(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two results of `entries_of` hold the same objects, in order; ints if equal."""
    return len(some) == len(others) and all(
        x is y or (type(x) is type(y) is int and x == y) for x, y in zip(some, others, strict=True)
    )


class Around:
    """What the variables that a function binds and the names of its module that it uses stand for now.

    The constructor keeps them; `is_now` compares them with what the function would find later.

    Parameters
    ----------
    function : function
        The function.
    version_of : callable
        ``version_of(x)`` returns how often an array was changed in place, and None for anything else.

    Attributes
    ----------
    beyond : Beyond or None
        What is beyond that, where someone looks at it; `is_now` does not.

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
        wait_for_others()
        own = function.__globals__
        self.function = function
        self.defaults = function.__code__, function.__defaults__, function.__kwdefaults__
        self.version_of = version_of
        self.beyond: Any = None
        self.cells = [(cell, read_cell(cell)) for cell in function.__closure__ or ()]
        self.names = [(own, name, own.get(name, MISSING)) for name in globals_of(function.__code__)]
        found = [x for *_, x in (*self.cells, *self.names)]
        versions = [(x, version_of(x)) for x in found]
        self.versions = [(x, version) for x, version in versions if version is not None]
        self.entries = [(x, entries_of(x)) for x in (*found, self.defaults[2]) if type(x) in CONTAINERS]

    def look_beyond(self, beyond: Any) -> None:
        """Keep a `Beyond`, or None; see ``beyond``."""
        self.beyond = beyond

    def is_now(self) -> bool:
        """Return whether variables and names stand for the same objects as at first, unchanged."""
        function = self.function
        code, defaults, by_name = self.defaults
        if function.__defaults__ is not defaults or function.__kwdefaults__ is not by_name:
            return False
        if function.__code__ is not code:
            return False
        # It is asked at each call of a cell, where a loop is quicker than `all`.
        for own, name, value in self.names:
            now = own.get(name, MISSING)
            if now is not value and bare(now) is not bare(
                value
            ):  # a program of another thread may have begun
                return False
        for cell, value in self.cells:
            if read_cell(cell) is not value:
                return False
        for x, version in self.versions:
            if self.version_of(x) != version:
                return False
        for x, entries in self.entries:  # noqa: SIM110
            if not same_entries(entries_of(x), entries):
                return False
        return True

    def may_change(self, stores: Any) -> bool:
        """Return whether a program with such `ProgramStores` may change what the function finds.

        Its code and defaults are compared at the end of a run alone.
        """
        names = *[name for _, name, _ in self.names], *self.function.__code__.co_freevars
        return any(map(stores.may_store, names)) or bool(
            stores.contents and (self.entries or self.versions)
        )


class Bound:
    """The attributes of an object, the variables of a function, or the entries of a container, as of now.

    The constructor keeps them; `is_now` compares them with those of later.

    Parameters
    ----------
    x : object
        The object.
    attributes : callable
        ``attributes(x)`` returns the attributes of an object that are compared, by name.
    """

    def __init__(self, x: Any, attributes: Callable[[Any], Mapping[str, Any]] = vars) -> None:
        self.object = x
        self.of = attributes
        self.around = Around(x, lambda part: None) if isinstance(x, FunctionType) else None
        self.has_attributes = hasattr(x, "__dict__")
        self.attributes = dict(self.of(x)) if self.has_attributes else {}
        held = [part for part in (x, *self.attributes.values()) if type(part) in CONTAINERS]
        self.entries = [(part, entries_of(part)) for part in held]

    def is_now(self) -> bool:
        """Return whether the names stand for the same objects, with the same entries, as at the start."""
        now = self.of(self.object) if self.has_attributes else self.attributes
        return (
            now.keys() == self.attributes.keys()
            and all(map(operator.is_, now.values(), self.attributes.values()))
            and (self.around is None or self.around.is_now())
            and all(same_entries(entries_of(x), entries) for x, entries in self.entries)
        )

    def may_change(self, stores: Any) -> bool:
        """Return whether a program with such `ProgramStores` may change what these names hold.

        That it adds others shows at the end of a run alone.
        """
        return (
            any(map(stores.may_store, self.attributes))
            or bool(stores.contents and self.entries)
            or (self.around is not None and self.around.may_change(stores))
        )


class Seen:
    """A function or an object that a recorded cell is or takes, with what it held when a run first met it.

    A cell runs later than the program. So what it finds must stay what it is until the run has ended.

    Parameters
    ----------
    x : object
        The function or object.
    parts : list of object
        What it holds, or finds around it. NumPy arrays among these are compared by their numbers, since
        they do not count their changes.
    attributes : callable
        ``attributes(x)`` returns the attributes of an object that are compared, by name; `vars` by default.

    Attributes
    ----------
    beyond : Beyond or None
        What it finds beyond that in this run; see `multifold.lazy.beyond`.
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
        self.beyond: Any = None
        self.look()

    def look_beyond(self, beyond: Any) -> None:
        """Keep a `Beyond`, or None; see ``beyond``."""
        self.beyond = beyond

    def look(self) -> None:
        """Store what ``object`` and ``parts`` hold now, in the place of what was stored before."""
        wait_for_others()
        self.bound = Bound(self.object, self.of)
        self.inner = [Bound(x, self.of) for x in self.parts if x is not self.object and is_bound(x)]
        self.arrays = [(x, x.copy()) for x in self.parts if isinstance(x, np.ndarray)]

    def is_now(self) -> bool:
        """Return whether all is as `look` stored it: the same objects by name, arrays equal."""
        return (
            self.bound.is_now()
            and all(x.is_now() for x in self.inner)
            and all(np.array_equal(x, kept, equal_nan=x.dtype.kind in "fc") for x, kept in self.arrays)
        )

    def refuse_rebound(self) -> None:
        """Raise a `RecordError` if a name in the object stands for something else than at `look`.

        Such a name is an attribute, a variable that a function binds (a loop's ``i``, say) or an entry of a
        container. What is inside of ``parts``, and numbers in arrays, are not compared: see
        `refuse_changed`. What is ``beyond`` is.
        """
        if not still_holds(self.bound.is_now):
            self.refuse()
        if self.beyond is not None:
            self.beyond.refuse_changed(self.object)

    def refuse_changed(self) -> None:
        """Raise a `RecordError` unless `is_now`: something has changed since `look`."""
        if not still_holds(self.is_now):
            self.refuse()
        if self.beyond is not None:
            self.beyond.refuse_changed(self.object)

    def may_change(self, stores: Any) -> bool:
        """Return whether a program that has such `ProgramStores` may do what `refuse_rebound` refuses.

        If not, nothing has to be compared at each call of a run, but once at its end.
        """
        return self.beyond is not None or self.bound.may_change(stores)

    def refuse(self) -> NoReturn:
        """Raise the `RecordError` which says that something that a cell uses has changed."""
        name = getattr(self.object, "__qualname__", type(self.object).__name__)
        raise refusal(
            f"What the cell {name} uses was changed during the run: an array, an attribute or a "
            "variable. Recorded calls run later than in the loop.",
            "pass what changes as an argument of the cell, and change the rest after the run.",
        )


def is_bound(x: Any) -> bool:
    """Return whether `Bound` can keep what an object holds: a container, or an object with a ``__dict__``.

    Classes and modules are none of these.
    """
    return type(x) in CONTAINERS or (hasattr(x, "__dict__") and not isinstance(x, (type, ModuleType)))


MISSING = object()
"""Stands for a name that a module does not have."""
