"""The tasks of requests: a server knows whose calls are whose, and how many each request has recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.rounds.tasks import Tasks
from multifold._engine.traces.replaying import record_again
from multifold._engine.traces.trace import Trace
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.fold import Fold
from multifold.serve.requests import Request


class ServedTasks(Tasks):
    """Tasks that belong to requests, and know which calls each of these has recorded.

    Attributes
    ----------
    requests : dict of int to Request
        Those under way, by the number of the example.
    owners : Owners
        Whose calls are whose. Its ``load`` is how much room requests take: the calls of each, but at most
        an eighth of the room. One that goes on and on may not keep others out.
    ended : int
        How many calls those had that have ended since the engine last looked.
    """

    owners: compiled.Owners

    def __init__(self, fold: Fold, backend: Backend, calls: int) -> None:
        super().__init__(fold, backend.context, collect=True)
        self.fold = fold
        self.owners = compiled.Owners(self.graph, max(1, calls // 8))
        self.requests: dict[int, Request] = {}
        self.ended = 0
        self._first = 0  # all calls before it are of requests that have ended

    def named(self, example: int) -> str:
        """Return how errors name a request."""
        return self.requests[example].name

    def ends(self, example: int, error: BaseException) -> Exception:
        """Return what a request has failed with: whatever its function raises ends no other request."""
        if isinstance(error, Exception):
            return error
        found = RecordError(
            f"The function of {self.named(example)} raised {type(error).__name__}, which ends a server.",
            "raise an Exception in its place: sys.exit() and a cancelled asyncio task raise others.",
        )
        found.__cause__ = error
        return found

    def begin(self, request: Request, fn: Callable[..., Any]) -> None:
        """Let the function record the example of a request, up to where it waits; a trace needs none."""
        example = self.started
        self.requests[example] = request
        given = request.let_go()
        self.start(record_again if isinstance(given, Trace) else fn, self.fold, given)
        # All calls that were recorded since the last note are of this example.
        self.owners.note(example)

    def end(self, example: int) -> Request:
        """Forget a request, whatever has become of it."""
        self.ended += self.owners.end(example)
        self.results.pop(example, None)
        self.failures.pop(example, None)
        return self.requests.pop(example)

    def take_results(self) -> dict[int, Any]:
        """Return what examples have returned since the last time."""
        found = self.results
        self.results = {}
        return found

    def alive(self, end: int) -> tuple[np.ndarray, int]:
        """Return for calls from a first one to ``end`` whether their requests are under way, and the first.

        All calls before the first one are of requests that have ended, and this method has said so before.
        Begin to count the calls of ended requests anew.
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
        """How many coroutines have not finished."""
        return len(self._open)
