"""What records in this thread: one run of a plain program, while the code of one of its examples runs.

The code of an example does not name the run that it is part of. A function of the framework that meets a
pending value looks here, and so does a cell:

>>> CURRENT.recording is None
True
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from multifold._run.reach import CONTAINERS, FEW, names_of, owners_of, reached
from multifold._run.state import aside, content
from multifold.backend import Backend, PlainValues

CELL = "multifold_cell"
"""The name of the attribute that makes a cell of a function or a class of modules. It is true if the cell
takes rows."""


class Recording:
    """One run of a plain program.

    Attributes
    ----------
    values : PlainValues
        What makes pending values, and records what is done with them.
    backend : Backend
        What knows the framework's modules and random state.
    fold : Fold
        What runs the calls.
    made : list of weak reference
        The pending values that the example has made whose code runs now.
    wait : callable
        Takes nodes; returns their values on the host, once a round has run. Other examples go on meanwhile.
    """

    def __init__(self, values: PlainValues, backend: Backend, fold: Any) -> None:
        self.values = values
        self.backend = backend
        self.fold = fold
        self.inner = ("multifold.", "multifold_", f"{values.package}.")
        self.is_inner: dict[CodeType, bool] = {}
        self.made: list[weakref.ref[Any]] = []
        self.wait: Callable[[Sequence[Any]], list[Any]] = refuse_wait

    def record(self, op: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """Record a call, at the line of the program that makes it; return its node."""
        node = self.fold.add(op, *operands)
        frame: FrameType | None = sys._getframe(1)
        known = self.is_inner
        while frame is not None:
            inner = known.get(frame.f_code)
            if inner is None:
                name = frame.f_globals.get("__name__", "")
                inner = known[frame.f_code] = f"{name}.".startswith(self.inner)
            if not inner:
                self.fold._graph.recorded_at(frame, node._ref)
                break
            frame = frame.f_back
        return node

    def reached(self, part: Any) -> list[Any]:
        """Return what a function or an object consists of, and what its functions find around them."""
        return [x for x, _ in reached(self.backend, [part])]

    @contextlib.contextmanager
    def aside(self, parts: Sequence[Any]) -> Iterator[None]:
        """Let nothing stay of what functions and models do meanwhile, and record nothing."""
        owners = [x for part in parts for x in owners_of(self.backend, None, part) if x is not None]
        with self.paused(), aside(self.backend, owners):
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing for a while."""
        before = CURRENT.switch(None)
        try:
            yield
        finally:
            CURRENT.switch(before)

    def goes_on(self, made: list[weakref.ref[Any]], wait: Callable[[Sequence[Any]], list[Any]]) -> None:
        """Let an example go on: note where it keeps what it makes, and what lets it wait."""
        self.made = made
        self.wait = wait


class Current(threading.local):
    """What records in a thread.

    Attributes
    ----------
    recording : Recording or None
        None outside of examples, as while a launch runs.
    """

    recording: Recording | None = None

    def switch(self, recording: Recording | None) -> Recording | None:
        """Let another run record; return the one before."""
        before, self.recording = self.recording, recording
        return before


CURRENT = Current()


def entries_of(value: Any) -> Sequence[Any]:
    """Return what a short container holds, by which a change shows; of a long one, how much it holds."""
    if type(value) not in CONTAINERS:
        return ()
    if len(value) > FEW:
        return (len(value),)
    return [*value, *value.values()] if isinstance(value, dict) else [*value]


def names_around(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the names that a function, or one inside of it, finds around it, and what each stands for.

    >>> scale = 2
    >>> def scaled(xs):
    ...     return [x * scale for x in xs]
    >>> names_around(scaled)
    [('scale', 2)]
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = function.__globals__
    named = [(name, variables[name]) for name in names_of(function.__code__) if name in variables]
    return [*[(name, content(cell)) for name, cell in cells], *named]


def refuse_wait(nodes: Sequence[Any]) -> list[Any]:
    """Refuse a read outside of a run."""
    raise AssertionError("nothing waits outside of a run")
