"""The tasks of requests: a server knows whose calls are whose, and how many each request has recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from multifold._await.tasks import Tasks
from multifold._compiled.arrays import Growing, Integers, ranges
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
    numbers : dict of int to int
        Their numbers.
    recorded : dict of int to int
        How many calls each request under way has.
    stretches : dict of int to list
        The calls of each request under way, as pairs of the first one and of the one after the last.
    load : int
        How much room these take: the calls of each, but at most an eighth of the room. One that goes on
        and on may not keep others out.
    total : int
        How many calls these have recorded.
    spans : int
        How many of these have a span.
    ended : int
        How many calls those had that have ended since the engine last looked.
    """

    def __init__(self, fold: Fold, backend: Backend, calls: int) -> None:
        super().__init__(fold, backend.context, collect=True)
        self.noted = lambda task: self._own(task.example)
        self.fold = fold
        self.share = max(1, calls // 8)
        self.requests: dict[int, Request] = {}
        self.numbers: dict[int, int] = {}
        self._owner = Growing()
        self._owned = 0  # calls that have an owner
        self._news = list[tuple[int, int]]()  # owners that `owner` has not, and how many calls each has
        self.recorded: dict[int, int] = {}
        self.stretches: dict[int, list[tuple[int, int]]] = {}
        self._counted: tuple[dict[int, Any], ...] = self.recorded, self.stretches
        self.load = self.total = self.ended = self.spans = 0

    def named(self, example: int) -> str:
        return self.requests[example].name

    def begin(self, request: Request, fn: Callable[..., Any]) -> None:
        """Let the function record the example of a request, up to where it waits; a trace needs none."""
        example = self.started
        self.requests[example] = request
        self.spans += request.span is not None
        self.numbers[example] = request.number
        self.recorded[example] = 0
        self.stretches[example] = []
        given = request.let_go()
        self.start(record_again if isinstance(given, Trace) else fn, self.fold, given)
        self._own(example)

    def end(self, example: int) -> Request:
        """Forget a request, whatever has become of it."""
        count = self.recorded[example]
        self.load -= min(count, self.share)
        self.total -= count
        self.ended += count
        for found in (self.results, self.failures, self.numbers, *self._counted):
            found.pop(example, None)
        self.spans -= self.requests[example].span is not None
        return self.requests.pop(example)

    def let_go(self) -> None:
        """End a reference cycle, so that the tasks do not wait for the garbage collector."""
        self.noted = None

    def alive(self) -> np.ndarray:
        """Return for each call whether its request is under way, and begin to count the ended ones anew."""
        self.ended = 0
        found = np.zeros(self.started, bool)
        found[list(self.requests)] = True
        alive: np.ndarray = found[self.owner]
        return alive

    @property
    def unfinished(self) -> int:
        """How many coroutines have not finished."""
        return len(self._open)

    @property
    def owner(self) -> Integers:
        """The example that recorded each call."""
        if self._news:
            examples, counts = np.array(self._news, np.int64).T
            self._news.clear()
            first = self._owner.size
            self._owner.grow(int(counts.sum()))
            self._owner.values[first:] = examples.repeat(counts)
        found: Integers = self._owner.values
        return found

    def _own(self, example: int) -> None:
        """Note that an example has recorded the calls that nobody owns yet."""
        first, size = self._owned, len(self.graph.signature)
        if size == first:
            return
        self._owned = size
        self._news.append((example, size - first))
        before = self.recorded.get(example)
        if before is not None:
            self.stretches[example].append((first, size))
            self.recorded[example] = after = before + size - first
            self.total += size - first
            if before < self.share:
                self.load += min(after, self.share) - before


def calls_in(stretches: Iterable[tuple[int, int]]) -> Integers:
    """Return the calls in some stretches, each from its first one to the one before its end."""
    first, end = np.array([*stretches], np.int64).reshape(-1, 2).T
    return ranges(first, end - first)
