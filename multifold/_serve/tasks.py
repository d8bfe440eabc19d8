"""The tasks of requests: a server knows whose calls are whose, and how many each request has recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multifold._await.tasks import ExampleTask, Tasks
from multifold._compiled.arrays import Growing
from multifold._serve.requests import Request
from multifold._traces.replaying import record_again
from multifold._traces.trace import Trace
from multifold.backend import Backend
from multifold.fold import Fold


class ServedTasks(Tasks):
    """Tasks that belong to requests, and know which calls each of these has recorded.

    Attributes
    ----------
    requests : dict of int to Request
        Those under way, by the number of the example.
    owner : column of int
        The example that recorded each call.
    recorded, pending : dict of int to int
        How many calls each request under way has, and how many of these have not run.
    load : int
        How much room these take: the calls of each, but at most an eighth of the room. One that goes on
        and on may not keep others out.
    ended : int
        How many calls those had that have ended since the engine last looked.
    """

    def __init__(self, fold: Fold, backend: Backend, calls: int) -> None:
        super().__init__(fold, backend.context, collect=True)
        self.noted = self._own_of
        self.fold = fold
        self.share = max(1, calls // 8)
        self.requests: dict[int, Request] = {}
        self.owner = Growing()
        self.recorded: dict[int, int] = {}
        self.pending: dict[int, int] = {}
        self.load = self.ended = 0

    def named(self, example: int) -> str:
        return self.requests[example].name

    def begin(self, request: Request, fn: Callable[..., Any]) -> None:
        """Let the function record the example of a request, up to where it waits; a trace needs none."""
        example = self.started
        self.requests[example] = request
        self.recorded[example] = self.pending[example] = 0
        self.start(record_again if isinstance(request.example, Trace) else fn, self.fold, request.example)
        self._own(example)

    def end(self, example: int) -> Request:
        """Forget a request, whatever has become of it."""
        self.load -= min(self.recorded[example], self.share)
        self.ended += self.recorded[example]
        for found in (self.results, self.failures, self.recorded, self.pending):
            found.pop(example, None)
        return self.requests.pop(example)

    def alive(self) -> np.ndarray:
        """Return for each call whether its request is under way, and begin to count the ended ones anew."""
        self.ended = 0
        found = np.zeros(self.started, bool)
        found[list(self.requests)] = True
        alive: np.ndarray = found[self.owner.values]
        return alive

    @property
    def unfinished(self) -> int:
        """How many coroutines have not finished."""
        return len(self._open)

    def _step(self, task: ExampleTask, method: Callable[[Any], Any], argument: Any) -> None:
        super()._step(task, method, argument)
        self._own(task.example)

    def _own_of(self, task: ExampleTask) -> None:
        self._own(task.example)

    def _own(self, example: int) -> None:
        """Note that an example has recorded the calls that nobody owns yet."""
        first = self.owner.size
        if count := len(self.fold) - first:
            self.owner.grow(count)
            self.owner.values[first:] = example
            if example in self.requests:
                before = self.recorded[example]
                self.recorded[example] = after = before + count
                self.load += min(after, self.share) - min(before, self.share)
                self.pending[example] += count
