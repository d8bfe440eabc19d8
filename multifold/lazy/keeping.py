"""Keeping: what a cell draws, counts or keeps besides its result, seen in its dry run.

In the loop a cell runs once for each example; a launch runs it once for all. A cell that counts its calls,
keeps what it computes on an object, or draws from Python's or NumPy's generators does another thing then.
The dry run, after which all is put back (`multifold._engine.ops.state`), shows it:

>>> class Model:
...     calls = 0
...     def cell(self, x):
...         self.calls += 1
...         return x + self.calls
>>> from multifold._engine.ops.state import aside
>>> from multifold._numpy.backend import NumpyBackend
>>> model = Model()
>>> with aside(NumpyBackend(), [model]) as kept:
...     watch = KeepingWatch(kept)
...     _ = model.cell(np.ones(2))
...     watch.change()
"attribute 'calls' of Model"

What a cell only caches, as a mask that it makes in its first call, it may keep: a second dry run keeps
nothing new, and one with other values keeps the same.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from types import CellType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.ops.reach import CONTAINERS, VALUES, bare
from multifold._engine.ops.state import NOTHING, KeptState
from multifold._engine.record.lines import warn_user
from multifold.backend import Backend
from multifold.lazy.current import refusal
from multifold.lazy.watched import Resources, Watched, WatchedPlace
from multifold.lazy.writes import functions_in, named_by

Entry = tuple[Any, Any, Any]
"""A name or a position, what is there, and what shows a change of it in place."""


class KeepingWatch:
    """What the objects that a cell reaches hold now, to be compared with what they hold later.

    Parameters
    ----------
    kept : KeptState
        The state that is put back after the dry run, inside of which this is made.
    """

    def __init__(self, kept: KeptState) -> None:
        self.backend = kept.backend
        self.slots = [slot for slot in kept.slots if slot.owner is not None and not slot.random]
        self.before = [list(self.entries(slot.owner, slot.read())) for slot in self.slots]
        self.places = places_of(kept)
        self.stood = [place.read() for place in self.places]

    def entries(self, owner: Any, values: Any) -> Iterator[Entry]:
        """Yield an entry for each thing in a slot; what a closure holds has the name of no variable."""
        named: list[tuple[Any, Any]]
        if isinstance(owner, CellType):
            named = [(None, values)]
        elif isinstance(values, dict):
            named = [*values.items()]
        else:
            named = [*enumerate(values)]
        for name, x in named:
            yield name, x, mark_of(self.backend, x)

    def change(self) -> str | None:
        """Return what was changed first, as "attribute 'n' of Model"; None if nothing was."""
        for slot, before in zip(self.slots, self.before, strict=True):
            now = list(self.entries(slot.owner, slot.read()))
            if len(now) == len(before) and all(map(is_same, before, now)):
                continue
            known = {name: (name, *rest) for name, *rest in before}
            names = [
                entry[0] for entry in now if entry[0] not in known or not is_same(known[entry[0]], entry)
            ]
            return text_of(slot.owner, names[0] if names else None)
        for place, stood in zip(self.places, self.stood, strict=True):
            found = place.changed(stood, place.read())
            if found is not None:
                return found.text
        return None

    def holds_arrays(self) -> bool:
        """Return whether one of the objects holds an array now that it did not hold before."""
        known = {id(x) for before in self.before for _, x, _ in before}
        now = [x for slot in self.slots for _, x, _ in self.entries(slot.owner, slot.read())]
        return any(self.backend.owns(x) for x in now if id(x) not in known)


class Arrays(NamedTuple):
    """What `Watched` asks of a recorder: the class of pending values, and the version of an array."""

    pending: type
    version_of: Callable[[Any], Any]
    resources: Resources = {}  # noqa: RUF012


class WatchedByCell(Watched):
    """What the code of a cell may write, but for models of the framework, whose state is put back."""

    def add_attributes(self, x: Any, root: str | None) -> None:
        """Look at the attributes of what is no model."""
        if isinstance(x, type) or not self.backend.hosts(x):
            super().add_attributes(x, root)

    def add_modes(self, x: Any) -> None:
        """Look at no modes."""


def places_of(kept: KeptState) -> list[WatchedPlace]:
    """Return what the code of a cell may write that is not put back: class attributes, modules, and others.

    ``kept`` has its function, and the objects that it takes.
    """
    backend = kept.backend
    functions = [*functions_in(kept.owners, lambda module: True)]
    if not functions:
        return []
    watched = WatchedByCell(backend, Arrays(Arrays, partial(version_of, backend)), functions, {})
    watched.add_objects(
        [x for x in kept.owners if hasattr(x, "__dict__") and not isinstance(x, FunctionType)]
    )
    watched.add_named()
    for x in [x for function in functions for _, x in named_by(function) if isinstance(x, ContextVar)]:
        watched.add(f"the context variable {x.name!r}", "", "", partial(value_of, x))
    return [place for place in watched.places if not place.is_iterator]


def value_of(variable: ContextVar[Any]) -> tuple[Any]:
    """Return what a context variable stands for, alone."""
    return (variable.get(NOTHING),)


def mark_of(backend: Backend, x: Any) -> Any:
    """Return what differs once an array was changed in place, or an iterator has gone on; else None."""
    if type(x) is np.ndarray:
        return x.tobytes()
    if isinstance(x, itertools.count):
        return repr(x)
    if isinstance(x, GeneratorType):
        frame = x.gi_frame
        kept = frame.f_locals.items() if frame else ()
        return frame and frame.f_lasti, {name: value for name, value in kept if isinstance(value, VALUES)}
    if isinstance(x, Iterator):
        return operator.length_hint(x, -1)
    if not backend.owns(x):
        return None
    return version_of(backend, x) if backend.counts_changes else id(x)


def version_of(backend: Backend, x: Any) -> Any:
    """Return how often an array was changed in place; a pending one, which has a node, counts it itself."""
    return x.version if getattr(x, "node", None) is not None else backend.version(x)


def is_same(one: Entry, other: Entry) -> bool:
    """Return whether two entries have one name and hold the same (`is_one`), unchanged in place."""
    return one[0] == other[0] and is_one(one[1], other[1]) and one[2] == other[2]


def is_one(x: Any, y: Any) -> bool:
    """Return whether two things are one object, or numbers, strings or tuples of such that are equal."""
    if x is y or bare(x) is bare(y):  # a program of another thread may have begun
        return True
    if type(x) is not type(y):
        return False
    if isinstance(x, tuple):
        return len(x) == len(y) and all(map(is_one, x, y))
    return bool(x == y) if isinstance(x, VALUES) else False


def text_of(owner: Any, name: Any) -> str:
    """Return how an error calls what is under a name of an object."""
    if type(owner) in CONTAINERS:
        return f"a {type(owner).__name__}"
    if isinstance(owner, CellType):
        return "a variable of a function around it"
    if isinstance(owner, FunctionType):
        return f"the variable {name!r}"
    whose = type(owner).__name__
    return f"an attribute of {whose}" if name is None else f"attribute {name!r} of {whose}"


def keeps(
    name: str,
    kept: KeptState,
    watch: KeepingWatch,
    again: Callable[[], Any],
    other: Callable[[], Any] | None,
) -> bool:
    """Return whether a cell caches something in its first call; raise `RecordError` if it keeps more.

    Parameters
    ----------
    name : str
        The name of the cell.
    kept, watch : KeptState, KeepingWatch
        The state, and what objects held before the dry run.
    again, other : callable
        Run the cell again as in its dry run, and on other values. Without ``other`` no array may be kept,
        since it would be one of the framework's tracers.
    """
    what = watch.change()
    if what is None:
        return False
    after = KeepingWatch(kept)
    again()
    is_cache = after.change() is None
    if is_cache and other is None:
        is_cache = not watch.holds_arrays()
    elif is_cache and other is not None:
        left = kept.read()
        kept.write(kept.before)
        other()
        is_cache = not kept.differs(left, kept.read())
    if is_cache:
        return True
    raise refusal(
        f"The cell {name} changes {what}. In the loop it does so once for each example, in a batched "
        "program once for many.",
        "return what is to be kept, and keep it outside of the cell; or make a cell of a function inside "
        "of it that keeps nothing.",
    )


def draws_own(kept: KeptState) -> bool:
    """Return whether a generator of Python, NumPy or the program, none of the framework, has moved."""
    return any(
        slot.random and slot.owner is not None and not kept.same(slot.read(), before)
        for slot, before in zip(kept.slots, kept.before, strict=True)
    )


def refuse_draws(name: str, seed: int | None) -> None:
    """Warn that a cell draws from generators of Python or NumPy; with a seed raise `RecordError`."""
    hint = "draw outside of the cell, and pass what was drawn as an argument; or draw from the framework."
    if seed is not None:
        raise refusal(
            f"The cell {name} draws random numbers of Python or NumPy. It runs later than in the loop, so "
            "it would draw others than the seed says.",
            hint,
        )
    warn_user(
        f"The cell {name} draws random numbers of Python or NumPy, so it runs row by row, and later than "
        f"in the loop.\n\nHint: {hint}"
    )


AS_IT_DRAWS = "row by row, as it draws random numbers of Python or NumPy"
"""What `explain` says of such a cell."""
