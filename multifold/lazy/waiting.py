"""Examples that wait: the code of each runs in a greenlet, which stops where it reads a value.

A read is ``if x > 0``, ``x.item()`` or ``float(x)`` of a pending value, anywhere below the function of
the example. A greenlet is a stack of its own, so the code stops there as a coroutine stops at ``await``,
without being written as one. `drive` is that coroutine: it lets the code run until it reads, awaits what
is read, and goes on. To make a stack takes longer than all else about a read, so examples that have ended
leave theirs to others; see `Stacks`.

An example whose changes others could see goes on *alone*: its read is computed at once, as in the loop, and
so are all reads where the package greenlet is missing, or where its stacks are not safe.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from multifold._engine import compiled
from multifold._engine.rounds import collector
from multifold.errors import MultifoldError, RecordError
from multifold.lazy.current import CURRENT, REFUSALS, Recording
from multifold.lazy.sharing import Sharing

try:
    import greenlet
except ImportError:
    greenlet = None


NO_STACKS = "examples cannot wait here; pip install 'multifold-core[plain]'"
"""Why all examples go on alone, if they do."""


async def drive(
    recording: Recording,
    sharing: Sharing,
    stacks: Stacks,
    example: int,
    code: Callable[[], Any],
    made: list[Any],
) -> Any:
    """Run the code of one example to its end, awaiting the values that it reads; return what it returns.

    Parameters
    ----------
    recording : Recording
        The run that the example is part of, on the fold whose ``values`` it awaits.
    sharing : Sharing
        What the example shares with others.
    stacks : Stacks
        Where its code runs.
    example : int
        The number of the example, from 0.
    code : callable
        Runs the code of the example; it takes nothing.
    made : list
        Gets weak references to the pending values that it makes.
    """
    at_once = None
    if recording.is_trace:
        at_once = refuse_read_in_trace
    elif not can_wait(recording.recorder):
        at_once = partial(alone, recording, NO_STACKS)
    elif not sharing.may_watch:  # no run before has read anything, so a stack would be made for nothing
        at_once = partial(unforeseen, recording, sharing)
    if at_once is not None:
        return Turns(recording, sharing, example, made, None).go_on(at_once, code)
    stack = stacks.take()
    turns = Turns(recording, sharing, example, made, stack)
    wait = turns.wait
    try:
        asked = turns.go_on(wait, stack.begin, code)
        while not stack.is_free:
            try:
                values = await recording.fold.values(asked)
            except Exception as error:  # noqa: BLE001 - the example may catch it, as in the loop
                # Some of it cannot be computed, so it is asked for only if the example returns it.
                made.clear()
                asked = turns.go_on(wait, stack.throw, error)
            else:
                asked = turns.go_on(wait, stack.switch, values)
        sharing.end(example)
        return asked
    finally:
        if not stack.is_free:
            # The run has failed elsewhere. `finally` of the example runs; what it raises is not the cause.
            with contextlib.suppress(Exception, SystemExit, greenlet.GreenletExit):
                turns.go_on(wait, stack.throw)
        stacks.give_back(stack)


class ExampleStack(greenlet.greenlet if greenlet else object):  # type: ignore[misc]
    """A stack of its own for the code of one example, and after that for the code of another.

    Attributes
    ----------
    is_free : bool
        Whether it runs no code: none has begun, or the code has ended.
    was_watched : bool
        Whether a debugger or profiler was at work when it was made, which sees what runs on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.was_watched = is_watched()
        self.is_free = True
        self.code: Callable[[], Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def begin(self, code: Callable[[], Any]) -> Any:
        """Run ``code()`` until it reads; return what it reads."""
        self.code = code
        self.is_free = False
        self.parent = greenlet.getcurrent()
        return self.switch()

    def end(self) -> None:
        """End this, whose code has ended, and go on here."""
        self.parent = greenlet.getcurrent()
        self.throw()

    def run(self) -> None:
        """Run the code of examples, one after another; called by greenlet."""
        compiled.at_foot(self.work)

    def work(self) -> None:
        """Run the code of examples until `end` raises here."""
        while True:
            self.run_code()
            self.parent.switch()  # hands over nothing: what it did would be kept as long as this rests

    def run_code(self) -> None:
        """Run the code of one example, and keep what it returns or raises."""
        code, self.code = self.code, None
        try:
            self.result = code()  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - raised where the code was begun or resumed
            self.error = error
        self.is_free = True

    def taken(self) -> Any:
        """Return what the code has returned, or raise what it has raised, and keep it no longer."""
        result, error = self.result, self.error
        self.result = self.error = None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # which has this frame in its traceback


class Stacks:
    """Stacks that examples have left, for those that come later.

    A stack belongs to a thread, and keeps the greenlet from which it was begun. Those of the main thread
    are kept beyond a run (`MAIN_STACKS`). Any other thread may end at any time, and so may a greenlet of
    the user, so a run there has stacks of its own.

    Attributes
    ----------
    free : list of ExampleStack
        The stacks that are kept.
    depth : int
        How many functions had called each other where the stacks were made. Python lets code on a stack
        go on from there up to its recursion limit.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.free: list[ExampleStack] = []

    def begin_run(self) -> None:
        """Begin a run; end stacks that were made where calls are nested much deeper, or less, than here."""
        depth = depth_of(sys._getframe())
        if abs(depth - self.depth) > SAME_DEPTH:
            self.close()
            self.depth = depth

    def take(self) -> ExampleStack:
        """Return a stack for the code of an example.

        A debugger or profiler sees only what runs on stacks that were made after it has begun.
        """
        return self.free.pop() if self.free and not is_watched() else ExampleStack()

    def give_back(self, stack: ExampleStack) -> None:
        """Keep a stack for others, or end it; one whose code refuses to end is left alone."""
        if not stack.is_free:
            return
        if stack.was_watched or len(self.free) >= MOST_STACKS:
            stack.end()
        else:
            self.free.append(stack)

    def close(self) -> None:
        """End all stacks that are kept."""
        while self.free:
            self.free.pop().end()


SAME_DEPTH = 64
"""Runs share stacks if their callers are nested so much deeper at most than one another."""

MOST_STACKS = 1024
"""Stacks that are kept at most; each takes some 10 kB of memory."""

MAIN_STACKS = Stacks()
"""Those of the main thread, for all of its runs."""

MAIN_THREAD = threading.main_thread().ident
"""The main thread; in a process that another thread has forked off it is no more there."""


@contextlib.contextmanager
def stacks_of_run() -> Iterator[Stacks]:
    """Return a context that yields the stacks for a run in this thread, or in a greenlet of the user."""
    is_main = threading.get_ident() == MAIN_THREAD
    if is_main and greenlet is not None and greenlet.getcurrent().parent is None:
        MAIN_STACKS.begin_run()
        yield MAIN_STACKS
        return
    stacks = Stacks()
    try:
        yield stacks
    finally:
        stacks.close()


def depth_of(frame: FrameType | None) -> int:
    """Return how many functions have called each other up to a frame."""
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def is_watched() -> bool:
    """Return whether a debugger or profiler looks at what runs in this thread."""
    return sys.gettrace() is not None or sys.getprofile() is not None


class Turns(compiled.TurnsBase):
    """The turns of one example, with what is seldom met; see the base."""

    def __init__(
        self, recording: Recording, sharing: Sharing, example: int, made: list[Any], stack: Any
    ) -> None:
        now = None if greenlet is None else greenlet.getcurrent
        super().__init__(recording, sharing, example, made, stack, CURRENT, REFUSALS, now)

    def refuse_caught(self, error: Exception) -> None:
        """Raise a `RecordError` if the code has caught an error of multifold before it raised ``error``."""
        if not isinstance(self.recording.recorder.explained(error), MultifoldError):
            REFUSALS.refuse_caught()  # the loop would have no such error

    def refuse_elsewhere(self) -> NoReturn:
        """Raise a `RecordError`: the code reads a value where it cannot wait."""
        raise RecordError("A value is read in another greenlet or thread than the one of its example.")

    def alone(self, reason: str, nodes: Sequence[Any]) -> list[Any]:
        """Return the values of ``nodes``, computed at once; see the function `alone`."""
        return alone(self.recording, reason, nodes)


def can_wait(recorder: Any) -> bool:
    """Return whether examples may leave their stacks: there is greenlet, and nobody walks past their end.

    A framework does that which ``walks_stacks``, as PyTorch where it makes an error, unless their end is
    marked, as compiled code does on some systems; see `compiled.ends_stacks`.
    """
    return greenlet is not None and (compiled.ends_stacks or not recorder.walks_stacks)


@contextlib.contextmanager
def staying(recording: Recording, reason: str) -> Iterator[None]:
    """Return a context in which reads are computed at once, where code cannot be left; see `alone`.

    Where a trace is made, reads are refused, as elsewhere.
    """
    if recording.is_trace:
        yield
        return
    made, wait = recording.made, recording.wait
    recording.goes_on(made, partial(alone, recording, reason))
    try:
        yield
    finally:
        recording.goes_on(made, wait)


def unforeseen(recording: Recording, sharing: Sharing, nodes: Sequence[Any]) -> list[Any]:
    """Return the values of ``nodes``, which an example reads in a program that has read nothing before.

    They are computed at once; the examples after it may wait.
    """
    recording.recorder.refuse_rebound()
    return alone(recording, str(sharing.change()), nodes)


def alone(recording: Recording, reason: str, nodes: Sequence[Any]) -> list[Any]:
    """Return the values of ``nodes``, computed at once in a round of their own; no other example goes on.

    ``reason`` says why, for `explain`.
    """
    recording.recorder.alone[reason] += 1
    recording.recorder.frames.note_read(sys._getframe(1), drive.__code__)
    collector.relieve()
    with recording.recorder.apart(), recording.paused():
        found: list[Any] = recording.fold._values_at_once(nodes)
    return found


def refuse_read_in_trace(nodes: Sequence[Any]) -> list[Any]:
    """Raise a `RecordError`: an example reads a value while it is traced, and traces compute nothing."""
    raise RecordError(
        "The program reads a computed value, so what it does is known only when it runs.",
        "run it without traces, which lets the examples wait.",
    )
