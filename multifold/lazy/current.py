"""What records in this thread: one run of a plain program, while the code of one of its examples runs.

The code of an example does not name the run that it is part of. A function of the framework that meets a
pending value looks here, and so does a cell:

>>> CURRENT.recording is None
True
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from multifold._engine.compiled import RecordingBase
from multifold._engine.ops.reach import owners_of
from multifold._engine.ops.reach import reached as reached
from multifold._engine.ops.state import KeptState as KeptState
from multifold._engine.ops.state import aside
from multifold._engine.ops.state import is_aside as is_aside
from multifold._engine.record.lines import users_frame as users_frame
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.lazy.writes import is_of_user

CELL = "multifold_cell"
"""The name of the attribute that makes a cell of a function or a class of modules. It is true if the cell
takes rows."""


class Recording(RecordingBase):
    """One run of a plain program: code for one example that calls no fold, whose calls are recorded.

    Attributes
    ----------
    recorder : LazyRecorder
        Makes pending values, and records what is done with them.
    backend : Backend
        The adapter of the framework, which knows its modules and random state.
    fold : Fold or recorder of traces
        The fold that the calls are recorded on.
    alarmed : bool
        Whether an alarm of the recorder was true when the run began; see `LazyRecorderBase`.
    is_trace : bool
        Whether a trace is made: nothing is computed, and nothing waits.
    seed : int or None
        If given, each example has random streams of its own; see `Sharing`.
    takes_host : bool or None
        Whether computed operands may be handed to the fold as arrays of NumPy; None while that is unknown.
    found : FoundCells or None
        The functions that may be recorded whole in this run; None if none are.
    inside : object
        The model whose own calls are recorded, though it is a cell; None for all others.
    is_block : bool
        Whether this is the run of a `multifold.pending` block, which returns nothing.
    lines : dict of int to (code, bool)
        Code by its ``id``, and whether it is the program's: where calls are recorded.
    made : list of weak reference
        The pending values that the example has made whose code runs now.
    handed : dict of int to pending value
        Results of examples that were handed to the fold already, by ``id``.
    program : sequence of object
        The program, and the arguments of the example that has begun last; of a `multifold.pending` block
        nothing.
    stores : ProgramStores or None
        What the code of the program may store, once a cell was recorded; see `multifold.lazy.beyond`.
    wait : callable
        Takes nodes; returns their values on the host, once a round has run. Other examples go on meanwhile.
    """

    def __init__(
        self,
        recorder: Any,
        backend: Backend,
        fold: Any,
        *,
        is_trace: bool = False,
        is_block: bool = False,
        seed: int | None = None,
        takes_host: bool | None = None,
        found: Any = None,
        inside: Any = None,
    ) -> None:
        alarmed = any(alarm() for alarm in recorder.alarms)
        super().__init__(recorder, fold, found, alarmed, refuse_wait)
        self.backend = backend
        self.is_trace = is_trace
        self.is_block = is_block
        self.seed = seed
        self.takes_host = takes_host
        self.inside = inside
        self.program: Sequence[Any] = ()
        self.stores: Any = None
        self.handed: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def is_from_library(self, frame: FrameType) -> bool:
        """Return whether a frame runs code of multifold, its adapters or the framework.

        The name of its module tells.
        """
        return f"{frame.f_globals.get('__name__', '')}.".startswith(self.recorder.inner)

    def reached(self, part: Any) -> list[Any]:
        """Return a list of ``part`` and what it consists of or finds around it, each once, nearest first.

        That is: attributes, entries of containers, and what variables that a function binds, and names of
        its module that it uses, stand for; and so on from each of these.
        """
        return [x for x, _ in reached(self.backend, [part], is_home=is_of_user)]

    @contextlib.contextmanager
    def aside(self, parts: Sequence[Any]) -> Iterator[KeptState]:
        """Return a context that records nothing, and on leaving undoes what ran inside it.

        It undoes changes of the models that ``parts`` are or have, of their gradients, and of the random
        generators that they use. It yields the state that it puts back.
        """
        owners = [x for part in parts for x in owners_of(self.backend, None, part) if x is not None]
        with self.paused(), aside(self.backend, owners) as kept:
            yield kept

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which this thread records nothing.

        On leaving, what recorded before goes on.
        """
        before = CURRENT.switch(None)
        try:
            yield
        finally:
            CURRENT.switch(before)

    def note_changed(self, x: Any) -> None:
        """Note that the example whose code runs now has changed a pending value in place.

        Raise a `RecordError` if another example has returned it to the fold, which has the value of before.
        """
        if self.handed.get(id(x)) is x:
            raise refusal(
                "An example changes in place what another one has returned, which multifold.plain has "
                "handed to the fold already.",
                "multifold.batched(fn) does that as the loop; or write it out of place: y = y + 1.",
            )
        self.made.append(weakref.ref(x))

    def note_takes_host(self, takes_host: bool) -> None:
        """Store ``takes_host``; see the attributes."""
        self.takes_host = takes_host

    def begins(self, program: Sequence[Any]) -> None:
        """Keep the program, and the arguments of an example that begins; see ``program``."""
        self.program = program

    def note_stores(self, stores: Any) -> None:
        """Keep what the code of the program may store; see ``stores``."""
        self.stores = stores


class Current(threading.local):
    """The run that records in the current thread.

    Attributes
    ----------
    recording : Recording or None
        None outside of examples, as while a launch runs.
    """

    recording: Recording | None = None

    def switch(self, recording: Recording | None) -> Recording | None:
        """Let ``recording`` record in this thread, or nothing if None; return the one of before."""
        before, self.recording = self.recording, recording
        return before


CURRENT = Current()


class Refusals(threading.local):
    """The last error that multifold raised in this thread since the code of the current example went on.

    Attributes
    ----------
    text : str or None
        The message of that error; None if there was none.
    """

    text: str | None = None

    def forget(self) -> None:
        """Set ``text`` to None, before the code of an example goes on."""
        self.text = None

    def note(self, text: str) -> None:
        """Store the message of an error that is about to be raised."""
        self.text = text

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Return a context whose errors are not the program's: at its end ``text`` is what it was."""
        text = self.text
        try:
            yield
        finally:
            self.text = text

    def put_back(self, text: str | None) -> None:
        """Store what ``text`` was before something ran whose errors are not the program's."""
        self.text = text

    def refuse_caught(self) -> None:
        """Raise a `RecordError` if `note` has stored a message, so the program caught an error.

        The loop raises no such error, so there the program would take another branch.
        """
        if self.text is not None:
            raise RecordError(
                f"The program has caught an error of multifold, which the loop does not raise: {self.text}",
                "write what is refused in another way, or outside of the try statement.",
            )


REFUSALS = Refusals()


def refusal(message: str, hint: str | None = None) -> RecordError:
    """Return a `RecordError` to be raised; `REFUSALS` notes its message, in case the program catches it."""
    REFUSALS.note(message)
    return RecordError(message, hint)


def after_run() -> str:
    """Return the hint of an error: a sentence that says to do it when the run has ended.

    In a `multifold.pending` block it says to do it after the ``with`` statement.
    """
    recording = CURRENT.recording
    if recording is not None and recording.is_block:
        return "do that after the with statement, where it has its value."
    return "return it from the program, and do that with the result."


def recording_of() -> Recording:
    """Return the `Recording` of this thread; raise a `RecordError` if nothing records."""
    if CURRENT.recording is None:
        raise RecordError(
            "A pending array is used outside of its batched program.",
            "use what run(...) returns. A launch, another thread or a hook sees no pending arrays, so a "
            "cell gets them as arguments, not inside of objects.",
        )
    return CURRENT.recording


def refuse_wait(nodes: Sequence[Any]) -> list[Any]:
    """Raise an `AssertionError`: the default of `Recording.wait`, which is set before any example runs."""
    raise AssertionError("nothing waits outside of a run")
