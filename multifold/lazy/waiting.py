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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
    step = partial(go_on, recording, sharing, example, made)
    if recording.is_trace:
        return step(refuse_read_in_trace, code)
    if not can_wait(recording.recorder):
        return step(partial(alone, recording, NO_STACKS), code)
    stack = greenlet.greenlet(partial(compiled.at_foot, code))

    def wait(nodes: Sequence[Any]) -> list[Any]:
        return waited(recording, sharing, stack, nodes)

    try:
        asked = step(wait, stack.switch)
        while not stack.dead:
            try:
                values = await fold.values(list(asked))
            except Exception as error:  # noqa: BLE001 - the example may catch it, as in the loop
                made.clear()  # some of it cannot be computed; what the example returns is asked for anyway
                asked = step(wait, stack.throw, error)
            else:
                asked = step(wait, stack.switch, values)
        sharing.end(example)
        return asked
    finally:
        if not stack.dead and stack:
            # The run has failed elsewhere. `finally` of the example runs; what it raises is not the cause.
            with contextlib.suppress(Exception, SystemExit, greenlet.GreenletExit):
                step(wait, stack.throw)


def go_on(
    recording: Recording,
    sharing: Sharing,
    example: int,
    made: list[Any],
    wait: Callable[..., Any],
    code: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Let this thread record for an example while ``code(*arguments)`` runs; return what that returns.

    ``code`` begins or resumes the example, so that is its result, or the nodes that it wants to read.
    ``wait`` is what a read calls, and ``made`` gets weak references to the pending values that are made
    meanwhile. ``sharing`` is told that the example begins, and at the end that it rests; what recorded
    before does so again then. Both happen, too, if the code raises. Raise a `RecordError` if the code has
    caught an error of multifold during this call.
    """
    sharing.begin(example)
    recording.goes_on(made, wait)
    before = CURRENT.switch(recording)
    REFUSALS.forget()
    try:
        found = code(*arguments)
        REFUSALS.refuse_caught()
        return found
    except Exception as error:
        if not isinstance(recording.recorder.explained(error), MultifoldError):
            REFUSALS.refuse_caught()  # the loop would have no such error
        raise
    finally:
        sharing.rest(example)
        CURRENT.switch(before)


def can_wait(recorder: Any) -> bool:
    """Return whether examples may leave their stacks: there is greenlet, and nobody walks past their end.

    A framework does that which ``walks_stacks``, as PyTorch where it makes an error, unless their end is
    marked, as compiled code does on some systems; see `compiled.ends_stacks`.
    """
    return greenlet is not None and (compiled.ends_stacks or not recorder.walks_stacks)


def waited(recording: Recording, sharing: Sharing, stack: Any, nodes: Sequence[Any]) -> list[Any]:
    """Return the values of ``nodes``, which the example on the greenlet ``stack`` reads; others may go on.

    They do not if they would see what the example holds open or has changed: then it goes on `alone`. Else
    it leaves its stack, handing ``nodes`` to `drive`, until that resumes it. Raise a `RecordError` if this
    is called in another greenlet or thread, or if others have changed meanwhile what it shares with them,
    or it has changed what a recorded cell finds.
    """
    if greenlet.getcurrent() is not stack:
        raise RecordError("A value is read in another greenlet or thread than the one of its example.")
    recording.recorder.refuse_rebound()
    reason = recording.recorder.frames.reason(sys._getframe(1)) or sharing.change()
    if reason is not None:
        return alone(recording, reason, nodes)
    left = sharing.last
    with recording.recorder.apart():
        values: list[Any] = stack.parent.switch(nodes)
    sharing.refuse_changes(left)
    return values


def alone(recording: Recording, reason: str, nodes: Sequence[Any]) -> list[Any]:
    """Return the values of ``nodes``, computed at once in a round of their own; no other example goes on.

    ``reason`` says why, for `explain`.
    """
    recording.recorder.alone[reason] += 1
    recording.recorder.frames.note_read(sys._getframe(1))
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
