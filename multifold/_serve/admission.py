"""What callers and the thread of a server share: the requests that wait, the counts, and when to end.

Everything here is done under one lock, for a few microseconds at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import deepcopy
from threading import Condition, RLock
from time import monotonic

from multifold._serve.requests import Queue, Request
from multifold._serve.statistics import ServerStats, Tally
from multifold.errors import LaunchError, Overloaded


class Admission:
    """Where requests come in.

    Parameters
    ----------
    most : int
        How many requests may wait.
    wait : float
        How many seconds the first request of an idle server waits for company.
    """

    def __init__(self, most: int, wait: float) -> None:
        self.wait = wait
        self._lock = RLock()
        self._changed = Condition(self._lock)  # whose own `with` is a call of Python's, the lock's is none
        self._queue = Queue(most)
        self._tally = Tally()
        self._cancelled: deque[Request] = deque()
        self._open = self._draining = False
        self._idle = True  # nothing was there to do when the first of the requests came that wait

    # ---- for callers ---------------------------------------------------------------------------

    def open(self) -> None:
        """Let requests come in."""
        with self._lock:
            self._open = self._draining = True

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
            try:
                changes = self._queue.put(request, self._tally.rate)
            except Overloaded:
                self._tally.ended("overloaded")
                raise
            if changes:
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

    def stats(self) -> ServerStats:
        """Return what was counted so far."""
        with self._lock:
            return deepcopy(self._tally.stats(len(self._queue)))

    # ---- for the thread ------------------------------------------------------------------------

    def work(self, busy: bool) -> bool:
        """Wait until there is something to do; return whether there is, or the server was stopped.

        Requests that have come during a round begin at once when it ends, however few they are: at 2,400
        trees a second, 99 of 100 take 13 ms then, and 36 ms if they wait for company.

        Parameters
        ----------
        busy : bool
            Whether requests are under way: then there is something to do.
        """
        with self._lock:
            while not busy and self._draining and (self._open or self._queue):
                if not self._queue:
                    self._idle = True
                    self._tally.rests()
                    self._changed.wait()
                    continue
                self._tally.wakes()
                # The first one waits for company, but not beyond a deadline.
                until = min(self._queue.first_arrival() + self.wait, self._queue.first_deadline)
                left = until - monotonic()
                if not self._idle or left <= 0 or not self._open:
                    self._idle = False
                    return True
                self._changed.wait(left)
            return busy and self._draining

    # These four take no lock: they are asked between any two launches, and see a change at the next.

    @property
    def waiting(self) -> int:
        """How many requests wait to be taken."""
        return len(self._queue)

    @property
    def waits(self) -> bool:
        """Whether a request waits to be taken."""
        return bool(self._queue)

    @property
    def serves(self) -> bool:
        """Whether requests under way go on: the server was not stopped without draining."""
        return self._draining

    def presses(self, now: float) -> bool:
        """Return whether a request was cancelled, waits in vain, or all are to be given up."""
        return bool(self._cancelled) or now >= self._queue.first_deadline or not self._draining

    def ended(self, now: float) -> tuple[list[Request], list[Request]]:
        """Return the requests that wait in vain, taken out of the queue, and all that were cancelled."""
        with self._lock:
            cancelled = list(self._cancelled)
            self._cancelled.clear()
            return self._queue.take_ended(now), cancelled

    def take(self, most: int, now: float, busy: bool) -> list[Request]:
        """Return the next requests, at most so many; ``busy`` says whether they join others."""
        with self._lock:
            taken = self._queue.take(most)
            for request in taken:
                request.start(now)
            self._tally.taken([now - request.arrived for request in taken], busy)
            return taken

    def served(self, requests: Iterable[Request], outcomes: Iterable[str]) -> None:
        """Count the outcomes of requests."""
        started = [request.started for request in requests]
        with self._lock:
            self._tally.served(outcomes, [*filter(None, started)], monotonic())

    def cancelled_after_all(self, outcome: str) -> None:
        """Count a request as cancelled that was counted otherwise: its caller cancelled it meanwhile."""
        with self._lock:
            self._tally.recount(outcome, "cancelled")

    def ran(self, rounds: int, rows: Sequence[int]) -> None:
        """Count rounds, and their launches of so many rows."""
        with self._lock:
            self._tally.ran(rounds, rows)

    def holds(self, running: int, live: Sequence[int]) -> None:
        """Note how many requests are under way, and how many calls, results and coroutines these have."""
        with self._lock:
            self._tally.holds(running, live)

    def close(self) -> list[Request]:
        """Take no more requests; return those that wait."""
        with self._lock:
            self._open = self._draining = False
            self._tally.rests()
            self._cancelled.clear()
            return self._queue.take_all()
