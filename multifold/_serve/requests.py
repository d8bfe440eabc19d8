"""What a caller asks a server for, and the queue in which requests wait to be taken.

The queue is bounded. A request that finds it full is refused at once, with an estimate of when to try
again, since a queue that only grows answers everybody too late.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from itertools import compress
from operator import not_
from typing import Any, final

from multifold.errors import DeadlineExceeded, Overloaded

OUTCOMES = {CancelledError: "cancelled", DeadlineExceeded: "deadline", Overloaded: "overloaded"}
"""What a request may end with besides its result and its own failure."""


@final
class Request(Future[Any]):
    """One example that somebody waits for, and the future of its one outcome.

    It is one object and not two that refer to each other: such a pair would wait for Python's garbage
    collector with its result, thousands of them a second.

    Parameters
    ----------
    priority : int
        Requests with smaller numbers are taken first; equal ones in the order in which they came.
    number : int
        Counts the requests of a server, and names this one in messages.
    example : object
        What the function records.
    arrived, deadline : float
        When it came, and until when it has to be done; seconds of `time.monotonic`.
    given_up : callable
        Called with the request when its caller has cancelled it.
    waiter : asyncio.Future or None
        What the caller awaits, if it runs in an event loop; it learns of the outcome in that loop.
    span : RequestSpan or None
        Its span for OpenTelemetry; see `multifold._serve.spans`.

    Attributes
    ----------
    started : float
        When it was taken; 0 before.
    """

    def __init__(
        self,
        priority: int,
        number: int,
        example: Any,
        arrived: float,
        deadline: float,
        given_up: Callable[[Request], object],
        waiter: Any = None,
        span: Any = None,
    ) -> None:
        super().__init__()
        self.priority = priority
        self.number = number
        self.example = example
        self.arrived = arrived
        self.deadline = deadline
        self.started = 0.0
        self.given_up = given_up
        self.waiter = waiter
        self.span = span

    @property
    def name(self) -> str:
        """What messages call the request."""
        return f"request {self.number} of multifold.Server"

    def cancel(self) -> bool:
        """Give the request up, unless it has its outcome; the server learns of it at once."""
        if done := super().cancel():
            self.given_up(self)
        return done

    def settle(self, result: Any, error: BaseException | None) -> bool:
        """Set the outcome; return False if the caller has cancelled the request meanwhile."""
        if not self.set_running_or_notify_cancel():
            return False
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)
        return True

    def start(self, now: float) -> None:
        """Note that it was taken."""
        self.started = now

    def let_go(self) -> Any:
        """Return the example, and keep it no longer: a caller may keep the request for its result."""
        example = self.example
        self.example = None
        return example

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
    if error is None:
        return "done"
    for kind, word in OUTCOMES.items():
        if isinstance(error, kind):
            return word
    return "failed"


class Queue:
    """Requests that wait to be taken, at most ``most``; callers hold the server's lock."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.first_deadline = float("inf")  # no deadline of a request that waits is before this one
        # By priority and number. No two have one number, so requests themselves are never compared.
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, request: Request, rate: Callable[[], float]) -> bool:
        """Append a request; return whether it changes until when the thread of the server may rest.

        Parameters
        ----------
        request : Request
            What has arrived.
        rate : callable
            Returns how many requests were done in a second of late; 0 if none was.

        Raises
        ------
        Overloaded
            If the queue is full.
        """
        heap = self._heap
        if len(heap) >= self.most:
            after = (len(heap) + 1) / found if (found := rate()) else 1.0
            raise Overloaded(
                f"Expected less than {self.most} requests to wait in multifold.Server. {len(heap)} do.",
                f"try again in {after:.2g} s, or let more wait by queue=.",
                retry_after=after,
            )
        changes = not heap or request.deadline < self.first_deadline
        heapq.heappush(heap, (request.priority, request.number, request))
        if changes:
            self.first_deadline = min(self.first_deadline, request.deadline)
        return changes

    def take(self, most: int) -> list[Request]:
        """Take the next requests, at most so many."""
        heap = self._heap
        return [heapq.heappop(heap)[-1] for _ in range(min(most, len(heap)))]

    def first_arrival(self) -> float:
        """Return when the request came that waits for the longest time."""
        return min([request.arrived for *_, request in self._heap])

    def take_ended(self, now: float) -> list[Request]:
        """Take out the requests whose deadline has passed, and those that were cancelled."""
        gone = [x.deadline <= now or x.cancelled() for *_, x in self._heap]
        ended = [x for *_, x in compress(self._heap, gone)]
        if ended:
            self._heap = [*compress(self._heap, map(not_, gone))]
            heapq.heapify(self._heap)
        self.first_deadline = min((x.deadline for *_, x in self._heap), default=float("inf"))
        return ended

    def take_all(self) -> list[Request]:
        """Take all requests."""
        taken = [x for *_, x in sorted(self._heap)]
        self._heap = []
        return taken
