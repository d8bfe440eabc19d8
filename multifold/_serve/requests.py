"""What a caller asks a server for, and the queue in which requests wait to be taken.

The queue is bounded. A request that finds it full is refused at once, with an estimate of when to try
again, since a queue that only grows answers everybody too late.
"""

from __future__ import annotations

import heapq
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from multifold.errors import DeadlineExceeded, Overloaded

OUTCOMES = {CancelledError: "cancelled", DeadlineExceeded: "deadline", Overloaded: "overloaded"}
"""What a request may end with besides its result and its own failure."""


@dataclass(order=True, slots=True)
class Request:
    """One example that somebody waits for.

    Attributes
    ----------
    priority : int
        Requests with smaller numbers are taken first; equal ones in the order in which they came.
    number : int
        Counts the requests of a server, and names this one in messages.
    example : object
        What the function records.
    future : Future
        Receives the one outcome.
    arrived, deadline : float
        When it came, and until when it has to be done; seconds of `time.monotonic`.
    started : float
        When it was taken.
    waiter : asyncio.Future or None
        What the caller awaits, if it runs in an event loop; it learns of the outcome in that loop.
    span : RequestSpan or None
        Its span for OpenTelemetry; see `multifold._serve.spans`.
    """

    priority: int
    number: int
    example: Any = field(compare=False)
    future: Future[Any] = field(compare=False)
    arrived: float = field(compare=False)
    deadline: float = field(compare=False)
    started: float = field(default=0.0, compare=False)
    waiter: Any = field(default=None, compare=False)
    span: Any = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What messages call the request."""
        return f"request {self.number} of multifold.Server"

    def start(self, now: float) -> None:
        """Note that it was taken."""
        self.started = now

    def late(self, now: float) -> DeadlineExceeded:
        """Return what to say when its deadline has passed."""
        where = "waited" if not self.started else "was under way"
        return DeadlineExceeded(
            f"Expected {self.name} to be done in {self.deadline - self.arrived:g} s. It {where} for "
            f"{now - (self.started or self.arrived):.3g} s when its deadline had passed.",
            "give it a longer timeout, or send less: server.stats() says how long requests wait.",
        )


def outcome_of(error: BaseException | None) -> str:
    """Return the word for an outcome that `Server.stats` counts; done is what has no error."""
    for kind, word in OUTCOMES.items():
        if isinstance(error, kind):
            return word
    return "done" if error is None else "failed"


class Queue:
    """Requests that wait to be taken, at most ``most``; callers hold the server's lock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.first_deadline = float("inf")  # no deadline of a request that waits is before this one
        self._heap: list[Request] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, request: Request, rate: float) -> None:
        """Append a request.

        Parameters
        ----------
        request : Request
            What has arrived.
        rate : float
            Requests that were done in a second of late; 0 if none was.

        Raises
        ------
        Overloaded
            If the queue is full.
        """
        if len(self._heap) >= self.most:
            after = (len(self._heap) + 1) / rate if rate else 1.0
            raise Overloaded(
                f"Expected less than {self.most} requests to wait in multifold.Server. "
                f"{len(self._heap)} do.",
                f"try again in {after:.2g} s, or let more wait by queue=.",
                retry_after=after,
            )
        heapq.heappush(self._heap, request)
        self.first_deadline = min(self.first_deadline, request.deadline)

    def pop(self) -> Request:
        """Take the next request."""
        return heapq.heappop(self._heap)

    def first_arrival(self) -> float:
        """Return when the request came that waits for the longest time."""
        return min(request.arrived for request in self._heap)

    def take_ended(self, now: float) -> list[Request]:
        """Take out the requests whose deadline has passed, and those that were cancelled."""
        ended = [x for x in self._heap if x.deadline <= now or x.future.cancelled()]
        if ended:
            self._heap = [x for x in self._heap if x.deadline > now and not x.future.cancelled()]
            heapq.heapify(self._heap)
        self.first_deadline = min((x.deadline for x in self._heap), default=float("inf"))
        return ended

    def take_all(self) -> list[Request]:
        """Take all requests."""
        taken, self._heap = sorted(self._heap), []
        return taken
