"""Examples that wait: the code of each runs in a greenlet, which stops where it reads a value.

A read is ``if x > 0``, ``x.item()`` or ``float(x)`` of a pending value, anywhere below the function of
the example. A greenlet is a stack of its own, so the code stops there as a coroutine stops at ``await``,
without being written as one. `drive` is that coroutine: it lets the code run until it reads, awaits what
is read, and goes on.

An example that others could see goes on *alone*: its read is computed at once, as in the loop, and so are
all reads where the package greenlet is missing, or where its stacks are not safe.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    fold: Any,
    example: int,
    code: Callable[[], Any],
    made: list[Any],
) -> Any:
    """Run the code of one example to its end, awaiting the values that it reads; return what it returns.

    Parameters
    ----------
    recording : Recording
        The run that the example is part of.
    sharing : Sharing
        What the example shares with others.
    fold : Fold
        The fold whose ``values`` it awaits.
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
    stack = greenlet.greenlet(partial(compiled.at_foot, code))
    turns = Turns(recording, sharing, example, made, stack)
    wait = turns.wait
    try:
        asked = turns.go_on(wait, stack.switch)
        while not stack.dead:
            try:
                values = await fold.values(asked)
            except Exception as error:  # noqa: BLE001 - the example may catch it, as in the loop
                made.clear()  # some of it cannot be computed; what the example returns is asked for anyway
                asked = turns.go_on(wait, stack.throw, error)
            else:
                asked = turns.go_on(wait, stack.switch, values)
        sharing.end(example)
        return asked
    finally:
        if not stack.dead and stack:
            # The run has failed elsewhere. `finally` of the example runs; what it raises is not the cause.
            with contextlib.suppress(Exception, SystemExit, greenlet.GreenletExit):
                turns.go_on(wait, stack.throw)


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
