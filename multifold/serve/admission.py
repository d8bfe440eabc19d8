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

LONGEST = 3600.0
"""So many seconds the thread of a server sleeps at most: a system knows no time without end."""


class Admission:
    """The queue in which requests wait to be taken, and whether more of them may come.

    Parameters
    ----------
    most : int
        How many requests may wait.
    wait : float
        How many seconds the first request of an idle server waits for company.
    tally : Tally
        Counts refused requests, and tells at which rate requests end.
    """

    def __init__(self, most: int, wait: float, tally: Tally) -> None:
        self.most = most
        self.wait = wait
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
        """Let `submit` accept requests from now on, and have them served to their end."""
        with self._lock:
            self._open = True
            self._draining = True

    def change(self, most: int | None, wait: float | None) -> None:
        """Change how many requests may wait, and how long the first one does; None leaves it as it is."""
        with self._lock:
            self.most = self.most if most is None else most
            self.wait = self.wait if wait is None else wait
            self._changed.notify()

    def submit(self, request: Request) -> None:
        """Put a request into the queue, and wake the thread of the server if it waits in `work`.

        Raises
        ------
        LaunchError
            If the server does not run.
        Overloaded
            If ``most`` requests are in the queue; its ``retry_after`` says when to try again, in seconds.
        """
        with self._lock:
            if not self._open:
                raise LaunchError(
                    "Expected a multifold.Server that runs. Received a request for one that does not.",
                    "`async with server:` or `with server:` runs it, and so does server.start().",
                )
            count = len(self._heap)
            if count >= self.most:
                self._tally.refused()
                rate = self._tally.rate()
                # The time until this one and all that wait have ended. A second is a guess without a rate.
                after = (count + 1) / rate if rate else 1.0
                raise Overloaded(
                    f"Expected less than {self.most} requests to wait in multifold.Server. {count} do.",
                    f"try again in {after:.2g} s, or let more wait by queue=.",
                    retry_after=after,
                )
            heapq.heappush(self._heap, (request.priority, request.number, request))
            if not count or request.deadline < self._first_deadline:  # the thread may rest for less time
                self._first_deadline = min(self._first_deadline, request.deadline)
                self._changed.notify()

    def cancel(self, request: Request) -> None:
        """Store a request that its caller has cancelled, for `take_ended`, and wake the thread."""
        with self._lock:
            self._cancelled.append(request)
            self._changed.notify()

    def stop(self, drain: bool) -> None:
        """Refuse new requests from now on, and wake the thread of the server.

        With ``drain``, those in the queue and under way are served to their end; else they are given up.
        """
        with self._lock:
            self._open = False
            self._draining = self._draining and drain
            self._changed.notify()

    def __len__(self) -> int:
        """Return how many requests are in the queue.

        It takes no lock, as `serves` and `presses`, since the thread asks between launches.
        """
        return len(self._heap)

    @property
    def serves(self) -> bool:
        """Whether requests that are there are served to their end, and not given up.

        It is false before `open`, and after ``stop(drain=False)``.
        """
        return self._draining

    def presses(self, now: float) -> bool:
        """Return whether the thread has to look at requests before the next launch.

        A request was cancelled, one in the queue has its deadline at ``now`` (of `time.monotonic`) or
        before, or the server was stopped without draining.
        """
        return bool(self._cancelled) or now >= self._first_deadline or not self._draining

    def work(self, busy: bool) -> bool:
        """Wait until there is something to do, and return True; return False once the server has stopped.

        Where nothing was under way, the first request waits for others, for ``wait`` seconds at most.
        Requests that have come during a round begin at once when it ends, however few they are: to wait for
        company would cost them more than larger launches save.

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
                self._changed.wait(min(left, LONGEST))
            return busy and self._draining

    def take(self, most: int, now: float) -> list[Request]:
        """Remove the next requests from the queue, ``most`` at most, and return them.

        Each is started at ``now``, a time of `time.monotonic`. Smaller priorities come first, and equal
        ones in the order in which they came.
        """
        with self._lock:
            count = min(most, len(self._heap))
            return [heapq.heappop(self._heap)[-1].start(now) for _ in range(count)]

    def take_ended(self, now: float) -> tuple[list[Request], list[Request]]:
        """Remove late and cancelled requests from the queue; return these, and all cancelled ones.

        The second list has those of any state that were cancelled since the last call. ``now`` is a time of
        `time.monotonic`: a request is late if its deadline is not after it.
        """
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
        """Refuse new requests from now on, empty the queue, and return what was in it.

        Smaller priorities come first, and equal ones in the order in which they came. `serves` is false
        from now on, and requests that were cancelled are forgotten.
        """
        with self._lock:
            self._open = False
            self._draining = False
            self._cancelled = []
            taken = [request for *_, request in sorted(self._heap)]
            self._heap = []
            return taken
