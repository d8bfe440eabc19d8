"""What a caller asks a server for: one example, the future of its one outcome, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Self, final

from multifold.errors import DeadlineExceeded, LaunchError, Overloaded
from multifold.serve.streamed import Inbox

OUTCOMES = {CancelledError: "cancelled", DeadlineExceeded: "deadline", Overloaded: "overloaded"}
"""What a request may end with besides its result and its own failure."""


@final
class Request(Future[Any]):
    """One example that a caller waits for, and the future of its one outcome.

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
        When it came, and until when it has to be done; seconds of `time.monotonic`. A request without a
        timeout has ``inf``.
    given_up : callable
        Called with the request when its caller has cancelled it.
    waiter : asyncio.Future or None
        What the caller awaits, if it runs in an event loop; it learns of the outcome in that loop.
    span : RequestSpan or None
        Its span for OpenTelemetry; see `multifold.serve.spans`.
    inbox : Inbox or None
        Where what its function yields is put, if the caller reads that; see `multifold.serve.streamed`.

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
        inbox: Inbox | None = None,
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
        self.inbox = inbox

    @property
    def name(self) -> str:
        """What messages call the request: ``"request 3 of multifold.Server"``."""
        return f"request {self.number} of multifold.Server"

    def cancel(self) -> bool:
        """Cancel the request and call ``given_up`` with it; return False if it has its outcome already."""
        if done := super().cancel():
            self.given_up(self)
        return done

    def settle(self, result: Any, error: BaseException | None) -> bool:
        """Set ``result``, or the exception ``error`` if that is not None, and return True.

        Return False, and set nothing, if the caller has cancelled the request.
        """
        # From here on no caller can cancel it, so that setting the outcome can't fail.
        if not self.set_running_or_notify_cancel():
            return False
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)
        return True

    def start(self, now: float) -> Self:
        """Store ``now`` as the time at which the request was taken; return the request itself."""
        self.started = now
        return self

    def let_go(self) -> Any:
        """Return the example and set it to None, since a caller may keep the request for its result."""
        example = self.example
        self.example = None
        return example

    def late(self, now: float) -> DeadlineExceeded:
        """Return, to be raised, the `DeadlineExceeded` for a request whose deadline is before ``now``.

        It says for how many seconds the request waited, or was under way if it was started. Nothing is set.
        """
        where = "waited" if not self.started else "was under way"
        return DeadlineExceeded(
            f"Expected {self.name} to be done in {self.deadline - self.arrived:g} s. It {where} for "
            f"{now - (self.started or self.arrived):.3g} s when its deadline had passed.",
            "give it a longer timeout, or send less: server.stats() says how long requests wait.",
        )


def outcome_of(error: BaseException | None) -> str:
    """Return ``"done"`` for None, or the word for an error: ``"failed"``, ``"deadline"``, ...

    >>> outcome_of(None), outcome_of(ValueError()), outcome_of(Overloaded("The queue is full."))
    ('done', 'failed', 'overloaded')
    """
    if error is None:
        return "done"
    for kind, word in OUTCOMES.items():
        if isinstance(error, kind):
            return word
    return "failed"


def tell_loops(requests: Sequence[Request]) -> None:
    """Let each event loop of the requests' waiters run `hand_over` for its own, if it is not closed.

    Each of ``requests`` has a ``waiter``. A loop is woken once: waking a loop takes a lock and a write to
    its socket.
    """
    for loop in {request.waiter.get_loop() for request in requests}:
        with suppress(RuntimeError):  # the loop is closed, and its callers wait no more
            loop.call_soon_threadsafe(hand_over, [x for x in requests if x.waiter.get_loop() is loop])


def hand_over(requests: Sequence[Request]) -> None:
    """Give the waiter of each request its result or exception; runs in the thread of their event loop.

    A waiter that is done is left alone, and one whose request was cancelled is cancelled.
    """
    for request in requests:
        waiter = request.waiter
        # A caller that has given up has cancelled the waiter. `Server.stop(drain=False)` cancels the
        # request, and its caller still waits.
        if waiter.done() or (request.cancelled() and waiter.cancel()):
            continue
        if error := request.exception():
            if isinstance(error, StopIteration):  # which no event loop can raise in a coroutine
                error = RuntimeError(f"{request.name} raised StopIteration.")
            waiter.set_exception(error)
        else:
            waiter.set_result(request.result())


def in_the_thread(request: Request, error: BaseException) -> LaunchError:
    """Return a `LaunchError` for a request, whose cause is the error that ended its round."""
    found = LaunchError(
        f"The round of {request.name} was ended by {type(error).__name__}: {error}.",
        "it may be the fault of another request, so trying again may help.",
    )
    found.__cause__ = error
    return found
