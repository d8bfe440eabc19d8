"""Where requests wait: callers of any thread put them in, and the thread of the server takes them out.

The queue is bounded. A request that finds it full is refused at once, with an estimate of when to try
again, since a queue that only grows answers everybody too late. Everything here is done under one lock, for
a few microseconds at a time.
"""

from __future__ import annotations

import heapq
from threading import Condition, RLock
from time import monotonic

from multifold.errors import LaunchError, Overloaded
from multifold.serve.requests import Request
from multifold.serve.statistics import Tally


class Admission:
    """The requests that wait, and whether more may come.

    Parameters
    ----------
    most : int
        How many requests may wait.
    wait : float
        How many seconds the first request of an idle server waits for company.
    tally : Tally
        What counts requests.
    """

    def __init__(self, most: int, wait: float, tally: Tally) -> None:
        self.wait = wait
        self._most = most
        self._tally = tally
        self._lock = RLock()  # not a Lock: a collection of garbage in here may cancel a request
        self._changed = Condition(self._lock)
        # By priority and number. No two have one number, so requests themselves are never compared.
        self._heap: list[tuple[int, int, Request]] = []
        self._first_deadline = float("inf")  # no deadline of a request that waits is before this one
        self._cancelled: list[Request] = []
        self._open = False
        self._draining = False
        self._idle = True  # nothing was there to do when the first of the requests came that wait

    def open(self) -> None:
        """Let requests come in."""
        with self._lock:
            self._open = True
            self._draining = True

    def submit(self, request: Request) -> None:
        """Let a request wait to be taken.

        Raises
        ------
        LaunchError
            If the server does not run.
        Overloaded
            If too many wait.
        """
        with self._lock:
            if not self._open:
                raise LaunchError(
                    "Expected a multifold.Server that runs. Received a request for one that does not.",
                    "`async with server:` or `with server:` runs it, and so does server.start().",
                )
            count = len(self._heap)
            if count >= self._most:
                self._tally.refused()
                rate = self._tally.rate()
                # The time until this one and all that wait have ended. A second is a guess without a rate.
                after = (count + 1) / rate if rate else 1.0
                raise Overloaded(
                    f"Expected less than {self._most} requests to wait in multifold.Server. {count} do.",
                    f"try again in {after:.2g} s, or let more wait by queue=.",
                    retry_after=after,
                )
            heapq.heappush(self._heap, (request.priority, request.number, request))
            if not count or request.deadline < self._first_deadline:  # the thread may rest for less time
                self._first_deadline = min(self._first_deadline, request.deadline)
                self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Note that a caller has cancelled a request."""
        with self._lock:
            self._cancelled.append(request)
            self._changed.notify()

    def stop(self, drain: bool) -> None:
        """Take no more requests; ``drain`` says whether those that are there are served to their end."""
        with self._lock:
            self._open = False
            self._draining = self._draining and drain
            self._changed.notify()

    def __len__(self) -> int:
        """How many requests wait; takes no lock, as `serves` and `presses`, asked between launches."""
        return len(self._heap)

    @property
    def serves(self) -> bool:
        """Whether requests under way go on: the server was not stopped without draining."""
        return self._draining

    def presses(self, now: float) -> bool:
        """Return whether a request was cancelled, one that waits is late, or all are to be given up."""
        return bool(self._cancelled) or now >= self._first_deadline or not self._draining

    def work(self, busy: bool) -> bool:
        """Wait until there is something to do; return whether there is, or the server was stopped.

        Requests that have come during a round begin at once when it ends, however few they are: to wait
        for company would cost them more than larger launches save.

        Parameters
        ----------
        busy : bool
            Whether requests are under way: then there is something to do.
        """
        with self._lock:
            while not busy and self._draining and (self._open or self._heap):
                if not self._heap:
                    self._idle = True
                    self._changed.wait()
                    continue
                # The first one waits for company, but not beyond a deadline.
                # The heap is ordered by priority, so the request that came first may be anywhere in it.
                first = min([request.arrived for *_, request in self._heap])
                left = min(first + self.wait, self._first_deadline) - monotonic()
                if not self._idle or left <= 0 or not self._open:
                    self._idle = False
                    return True
                self._changed.wait(left)
            return busy and self._draining

    def take(self, most: int, now: float) -> list[Request]:
        """Return the next requests, at most so many."""
        with self._lock:
            count = min(most, len(self._heap))
            return [heapq.heappop(self._heap)[-1].start(now) for _ in range(count)]

    def take_ended(self, now: float) -> tuple[list[Request], list[Request]]:
        """Return the late and cancelled requests of the queue, taken out of it, and all cancelled ones."""
        with self._lock:
            cancelled = self._cancelled
            self._cancelled = []
            ended = [
                request for *_, request in self._heap if request.deadline <= now or request.cancelled()
            ]
            if ended:
                gone = {request.number for request in ended}
                self._heap = [entry for entry in self._heap if entry[1] not in gone]
                heapq.heapify(self._heap)
            self._first_deadline = min((x.deadline for *_, x in self._heap), default=float("inf"))
            return ended, cancelled

    def close(self) -> list[Request]:
        """Take no more requests; return those that wait."""
        with self._lock:
            self._open = False
            self._draining = False
            self._cancelled = []
            taken = [request for *_, request in sorted(self._heap)]
            self._heap = []
            return taken
