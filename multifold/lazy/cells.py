"""Cells: functions of one example that a batched program records as one call each.

Outside of batched programs a cell runs as an ordinary function, so a model with cells is what it was:

>>> @cell
... def double(x):
...     return x + x
>>> double(3)
6

In a batched program its calls run together: under the framework's vmap, or, of a cell that is written for
rows (`op`), in one call on the rows of all examples.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar, cast

from multifold._engine.ops.reach import FOUND, bare
from multifold.errors import RecordError
from multifold.lazy.current import CELL, CURRENT

Named = TypeVar("Named", bound=Callable[..., Any])
"""A function or a class, which keeps its type."""


def cell(fn: Named) -> Named:
    """Make a cell of a function, a method or a class of modules: `batched` records each call of it as one.

    Outside of batched programs it is what it was.

    Parameters
    ----------
    fn : callable or class of modules
        Takes one example, with the shapes that it has there: no axis for the minibatch. A class of modules
        becomes a cell with all its objects.

    Returns
    -------
    callable or class
        A wrapper of the function, or the class itself.

    See Also
    --------
    op : for a function that takes a row for each example.

    Examples
    --------
    >>> import multifold
    >>> @multifold.cell
    ... def compose(left, right):
    ...     return left * right
    >>> compose(2, 3)
    6
    """
    return made(fn, rows=False)


def op(fn: Named) -> Named:
    """Make a function of rows one call in a batched program: like `cell`, but written for many examples.

    Its arguments have a row for each example on axis 0, as those of the ops of `Fold.add`. Outside of
    batched programs, and in the loop, it gets arrays with one row.

    Parameters
    ----------
    fn : callable or class of modules
        Takes and returns arrays with a row for each example; each row of a result depends on that row of
        the arguments alone.

    Returns
    -------
    callable or class
        A wrapper of the function, or the class itself.

    Examples
    --------
    >>> import multifold
    >>> import numpy as np
    >>> @multifold.op
    ... def compose(left, right):
    ...     return left * right
    >>> def encode(tree):
    ...     return compose(encode(tree[0]), encode(tree[1])) if isinstance(tree, tuple) else tree[None]
    >>> one, two = np.ones(3), np.full(3, 2.0)
    >>> multifold.batched(encode, join="cat")([((one, two), two), (two, two)])
    array([[4., 4., 4.],
           [4., 4., 4.]])
    """
    return made(fn, rows=True)


def made(fn: Named, rows: bool) -> Named:
    """Return a function or class as a cell, of rows or of one example; see `cell` and `op`."""
    if isinstance(fn, type):
        setattr(fn, CELL, rows)
        return fn
    return cast("Named", cell_of(fn, rows))


def cell_of(fn: Callable[..., Any], rows: bool = False) -> Callable[..., Any]:
    """Return a wrapper of ``fn`` that records its calls in a batched program, and elsewhere just calls it.

    With ``rows`` it takes a row for each example on axis 0. The wrapper has `CELL` as an attribute.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None:
            return fn(*args, **kwargs)
        return recording.recorder.call(recording, fn, rows, args, kwargs)

    setattr(call, CELL, rows)
    return call


def as_cell(fn: Any, cells: Sequence[Any]) -> Any:
    """Return a function or method, as a cell if it is one of ``cells`` and not a cell yet.

    A method is bound before `Cells` puts the cell into its class, so it would not be found there.
    """
    own = getattr(fn, "__func__", fn)
    if isinstance(own, type) or not any(x is own for x in cells) or hasattr(own, CELL):
        return fn
    return cell_of(fn) if own is fn else MethodType(cell_of(own), fn.__self__)


class Cells:
    """Makes functions and classes cells, recorded as one call each time, while a program runs.

    It counts for each how many programs name it, in any thread, and puts it back when that is none.

    Parameters
    ----------
    make : callable
        Makes a cell of a function or class; returns a function that undoes it.

    Attributes
    ----------
    others : Cells or None
        Cells that give way to these, where both are asked for one function.
    """

    def __init__(self, make: Callable[[Any], Callable[[], None]]) -> None:
        self.make = make
        self.others: Cells | None = None
        self.lock = threading.Lock()
        self.users: Counter[Any] = Counter()
        self.undo: dict[Any, Callable[[], None]] = {}

    def come_before(self, others: Cells) -> None:
        """Let ``others`` give way to these; see the attribute."""
        self.others = others

    def give_way(self, fn: Any) -> None:
        """Put a function back, if it is replaced, though programs use it."""
        with self.lock:
            if fn in self.undo:
                self.undo.pop(fn)()

    @contextlib.contextmanager
    def applied(self, cells: Sequence[Any]) -> Iterator[None]:
        """Return a context in which the functions and classes in ``cells`` are cells.

        A function is replaced in its class, or in all modules that have it. When the last context with it
        is left, it is put back. Raise a `RecordError` for a function that no name finds.
        """
        made: list[Any] = []
        try:
            with self.lock:
                for fn in cells:
                    if fn not in self.undo:
                        if self.others is not None:
                            self.others.give_way(fn)
                        self.undo[fn] = self.make(fn)
                    self.users[fn] += 1
                    made.append(fn)
            yield
        finally:
            with self.lock:
                for fn in made:
                    self.users[fn] -= 1
                    if not self.users[fn]:
                        del self.users[fn]
                        if fn in self.undo:  # it may have given way
                            self.undo.pop(fn)()


def made_cell(fn: Any) -> Callable[[], None]:
    """Make a cell (each call is recorded as one) of a function or class; return a function that undoes it.

    The latter does nothing if it was a cell before. Raise a `RecordError` for a function that no name
    finds.
    """
    if CELL in vars(fn):
        return lambda: None
    if isinstance(fn, type):
        setattr(fn, CELL, False)
        return partial(delattr, fn, CELL)
    found = cell_of(fn)
    setattr(found, FOUND, fn)
    return replaced(places_of(fn), found)


CELLS = Cells(made_cell)


class NamePlace(NamedTuple):
    """A name of a module or class that stands for a function.

    Attributes
    ----------
    read : callable
        Returns what the name stands for now.
    write : callable
        Takes what it is to stand for.
    kept : object
        What it stood for when it was found: the function, or a static method of it.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    kept: Any


def replaced(places: Sequence[NamePlace], other: Callable[..., Any]) -> Callable[[], None]:
    """Put ``other`` where a function is found by its name; return a function that puts that back.

    A name that stands for something else by then keeps it.
    """
    written = []
    for place in places:
        if bare(place.read()) is place.kept:
            new = staticmethod(other) if isinstance(place.kept, staticmethod) else other
            place.write(new)
            written.append((place, new))

    def undo() -> None:
        for place, new in written:
            if place.read() is new:
                place.write(place.kept)

    return undo


def places_of(fn: Any) -> list[NamePlace]:
    """Return where modules and classes have a function under its name.

    A method is found in its class; a function in its module and in those that have imported it under its
    own name. Raise a `RecordError` if there is no such place.
    """
    found: list[NamePlace] = []
    if isinstance(fn, FunctionType):
        first, *path = fn.__qualname__.split(".")
        own = fn.__globals__
        owner, kept = None, own.get(first)
        for name in path:
            owner, kept = kept, getattr(kept, "__dict__", {}).get(name)
        kept = bare(kept)
        if path and (kept is fn or (isinstance(kept, staticmethod) and kept.__func__ is fn)):
            name = path[-1]
            return [NamePlace(lambda: vars(owner).get(name), partial(setattr, owner, name), kept)]
        tables = [own, *[getattr(module, "__dict__", {}) for module in [*sys.modules.values()]]]
        users = {id(table): table for table in tables if bare(table.get(fn.__name__)) is fn}
        found = [
            NamePlace(partial(table.get, fn.__name__), partial(table.__setitem__, fn.__name__), fn)
            for table in users.values()
        ]
    if not found:
        raise RecordError(
            f"Expected functions, methods or classes of modules in cells=[...]. Received {fn!r}, which is "
            "not found by its name.",
            "decorate it with multifold.cell.",
        )
    return found


def is_found(fn: FunctionType) -> bool:
    """Return whether a class or module has a function under its own name.

    A lambda or an inner function is in none, so no cell can take its place there.
    """
    try:
        return bool(places_of(fn))
    except RecordError:
        return False


def checked_cells(cells: Sequence[Any]) -> tuple[Any, ...]:
    """Return the functions and classes in ``cells`` as a tuple, in order, each once.

    A method stands for its function. Raise a `RecordError` for anything but a sequence, for a string, or
    for a function that is no cell and that no name finds.
    """
    if isinstance(cells, str) or callable(cells) or not isinstance(cells, Iterable):
        name = getattr(cells, "__qualname__", cells if isinstance(cells, str) else "Net.compose")
        raise RecordError(
            f"Expected a list of functions, methods or classes of modules as cells. Received {cells!r}.",
            f"cells=[{name}] names one.",
        )
    for fn in cells:
        if isinstance(fn, str):
            raise RecordError(
                f"Expected functions, methods or classes of modules in cells=[...]. Received {fn!r}.",
                f"pass the function itself; a method by its class, as Net.{fn}.",
            )
    found = dict.fromkeys([bare(getattr(fn, "__func__", fn)) for fn in cells])
    for fn in found:
        if not isinstance(fn, type) and not hasattr(fn, CELL):
            places_of(fn)
    return tuple(found)
