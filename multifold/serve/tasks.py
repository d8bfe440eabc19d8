"""The tasks of requests: a server knows whose calls are whose, and how many each request has recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.record.node import Node
from multifold._engine.rounds.tasks import ExampleTask, Tasks
from multifold._engine.traces.replaying import record_again
from multifold._engine.traces.trace import Trace
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.fold import Fold
from multifold.serve.requests import Request
from multifold.serve.streamed import Inbox, hand_out, send_items


class ServedTasks(Tasks):
    """The coroutines of requests under way, and which calls each request has recorded.

    Attributes
    ----------
    requests : dict of int to Request
        Those under way, by the number of the example.
    owners : Owners
        Which example has recorded each call. Its ``load`` is how much room requests take: the calls of
        each, but at most an eighth of the room. One that goes on and on may not keep others out.
    fresh : list of Inbox
        Those of requests whose functions have yielded something that was not handed out.
    ended : int
        How many calls requests had that have ended since the last `alive`.
    """

    owners: compiled.Owners

    def __init__(self, fold: Fold, backend: Backend, calls: int) -> None:
        super().__init__(fold, backend.context, collect=True)
        self.owners = compiled.Owners(self.graph, max(1, calls // 8))
        self.requests: dict[int, Request] = {}
        self.fresh: list[Inbox] = []
        self.ended = 0
        self._first = 0  # all calls before it are of requests that have ended

    def named(self, example: int) -> str:
        """Return how errors name the request of an example: ``"request 3 of multifold.Server"``."""
        return self.requests[example].name

    def ends(self, example: int, error: BaseException) -> Exception:
        """Return ``error``, which the function of a request raised, as an `Exception`.

        If it is none, return a `RecordError` with ``error`` as its cause, so that a ``SystemExit`` ends one
        request, and not the server.
        """
        if isinstance(error, Exception):
            return error
        found = RecordError(
            f"The function of {self.named(example)} raised {type(error).__name__}, which ends a server.",
            "raise an Exception in its place: sys.exit() and a cancelled asyncio task raise others.",
        )
        found.__cause__ = error
        return found

    def begin(self, request: Request, fn: Callable[..., Any], streams: bool) -> None:
        """Call ``fn(fold, example)`` for a request, which records calls up to where it first waits.

        The example gets the next number, and its request lets go of it. If the example is a trace, its
        calls are recorded, and ``fn`` is not called. If ``fn`` is an async generator (``streams``), what it
        yields goes to the inbox of the request.
        """
        example = self.started
        self.requests[example] = request
        given = request.let_go()
        if isinstance(given, Trace):
            fn = record_again
        elif streams:
            fn = partial(send_items, fn, request, self.fresh)
        self.start(fn, given)
        # All calls that were recorded since the last note are of this example.
        self.owners.note(example)

    def proceed(self) -> list[tuple[ExampleTask, list[Node]]]:
        """Run all tasks until each has finished or waits for values, and hand out what they have yielded.

        Return the tasks that wait, each with the nodes it waits for.
        """
        waiting = super().proceed()
        self.hand_out()
        return waiting

    def throw(self, task: ExampleTask, error: Exception) -> None:
        """Raise an error in a task where it waits, run it on from there, and hand out what it yields."""
        super().throw(task, error)
        self.hand_out()

    def hand_out(self) -> None:
        """Send the callers what functions have yielded; called after each step, so before any outcome."""
        if self.fresh:
            hand_out(self.fresh)

    def end(self, example: int) -> Request:
        """Forget an example that has ended, with its result or failure; return its request.

        The number of its calls is added to ``ended``.
        """
        self.ended += self.owners.end(example)
        self.results.pop(example, None)
        self.failures.pop(example, None)
        return self.requests.pop(example)

    def take_results(self) -> dict[int, Any]:
        """Return what examples have returned since the last call, by number; forget it."""
        found = self.results
        self.results = {}
        return found

    def alive(self, end: int) -> tuple[np.ndarray, int]:
        """Return whether the request of each call from ``first`` to ``end`` is under way, and ``first``.

        The former is a bool array with ``end - first`` entries. All calls before ``first`` are of requests
        that have ended, as an earlier call of this method has said. It sets ``ended`` to 0.
        """
        first = self._first
        self.ended = 0
        found = np.zeros(self.started, bool)
        found[list(self.requests)] = True
        alive = found[self.owners.of_calls[first:end]]
        # `argmax` finds the first call whose request is under way; next time, all before it are skipped.
        self._first += int(alive.argmax()) if alive.any() else len(alive)
        return alive, first

    @property
    def unfinished(self) -> int:
        """The number of coroutines that have begun and have not finished, of all requests."""
        return len(self._open)
