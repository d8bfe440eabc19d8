"""What records in this thread: one run of a plain program, while the code of one of its examples runs.

The code of an example does not name the run that it is part of. A function of the framework that meets a
pending value looks here, and so does a cell:

>>> CURRENT.recording is None
True
"""

from __future__ import annotations

import contextlib
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from multifold._engine.ops.reach import CONTAINERS, FEW, globals_of, owners_of, reached
from multifold._engine.ops.state import aside, content
from multifold._engine.record.graph import users_frame as users_frame
from multifold.backend import Backend
from multifold.errors import RecordError

CELL = "multifold_cell"
"""The name of the attribute that makes a cell of a function or a class of modules. It is true if the cell
takes rows."""


class Recording:
    """One run of a plain program.

    Attributes
    ----------
    recorder : LazyRecorder
        What makes pending values, and records what is done with them.
    backend : Backend
        What knows the framework's modules and random state.
    fold : Fold or recorder of traces
        What takes the calls.
    alarmed : bool
        Whether an alarm of the recorder was true when the run began; see `LazyRecorderBase`.
    is_trace : bool
        Whether a trace is made: nothing is computed, and nothing waits.
    is_block : bool
        Whether it is that of a `multifold.pending` block, which returns nothing.
    lines : dict of int to (code, bool)
        Code by its ``id``, and whether it is the program's: where calls are recorded.
    made : list of weak reference
        The pending values that the example has made whose code runs now.
    wait : callable
        Takes nodes; returns their values on the host, once a round has run. Other examples go on meanwhile.
    """

    def __init__(
        self, recorder: Any, backend: Backend, fold: Any, *, is_trace: bool = False, is_block: bool = False
    ) -> None:
        self.recorder = recorder
        self.backend = backend
        self.fold = fold
        self.is_trace = is_trace
        self.is_block = is_block
        self.alarmed = any(alarm() for alarm in recorder.alarms)
        self.inner = ("multifold.", "multifold_", f"{recorder.package}.")
        self.lines: dict[int, tuple[CodeType, bool]] = {}
        self.made: list[weakref.ref[Any]] = []
        self.wait: Callable[[Sequence[Any]], list[Any]] = refuse_wait

    def is_from_library(self, frame: FrameType) -> bool:
        """Return whether code is of this package, its adapters or the framework, and not of the program."""
        return f"{frame.f_globals.get('__name__', '')}.".startswith(self.inner)

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


class Refusals(threading.local):
    """What was refused in this thread since the code of an example goes on.

    Attributes
    ----------
    text : str or None
        The last refusal.
    """

    text: str | None = None

    def forget(self) -> None:
        """Begin anew, before the code of an example goes on."""
        self.text = None

    def note(self, text: str) -> None:
        """Take note of a refusal."""
        self.text = text

    def refuse_caught(self) -> None:
        """Raise an error if the code of an example has caught a refusal: the loop takes another way."""
        if self.text is not None:
            raise RecordError(
                f"The program has caught an error of multifold, which the loop does not raise: {self.text}",
                "write what is refused in another way, or outside of the try statement.",
            )


REFUSALS = Refusals()


def refusal(message: str, hint: str | None = None) -> RecordError:
    """Return the error of what cannot be recorded, and take note of it: a program may catch it."""
    REFUSALS.note(message)
    return RecordError(message, hint)


def after_run() -> str:
    """Return the hint how to do after the run what a value that is not computed yet cannot do."""
    recording = CURRENT.recording
    if recording is not None and recording.is_block:
        return "do that after the with statement, where it has its value."
    return "return it from the program, and do that with the result."


def recording_of() -> Recording:
    """Return what records; raise where nothing does."""
    if CURRENT.recording is None:
        raise RecordError(
            "A pending array is used outside of its batched program.",
            "use what run(...) returns. A launch, another thread or a hook sees no pending arrays, so a "
            "cell gets them as arguments, not inside of objects.",
        )
    return CURRENT.recording


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


def refuse_wait(nodes: Sequence[Any]) -> list[Any]:
    """Refuse a read outside of a run."""
    raise AssertionError("nothing waits outside of a run")
