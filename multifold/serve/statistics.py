"""What a server tells about itself: requests by outcome, times, and rows a launch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from threading import RLock
from time import monotonic

from multifold.serve.requests import Request

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of times, in seconds, as Prometheus' clients have them by default."""

ROWS = tuple(2.0**power for power in range(len(BOUNDS)))
"""Upper bounds of the buckets of rows a launch: 1, 2, 4 and so on to 4096."""

LATE = 256
"""After so many requests, those before count half in `Tally.rate`, so that it follows the load."""


@dataclass
class Histogram:
    """Counts how many values are in each bucket: times in seconds, or rows of launches.

    A value is in the first bucket whose upper bound is not below it; the last bucket has no bound.

    Attributes
    ----------
    bounds : tuple of float
        Upper bounds of all buckets but the last one.
    counts : list of int
        How many values were in each bucket; one entry more than ``bounds``.
    total : float
        The sum of all values.

    Examples
    --------
    >>> histogram = Histogram()
    >>> histogram.add(0.003, 0.004, 0.004, 0.2)
    >>> histogram.count, histogram.quantile(0.5), histogram.quantile(0.99)
    (4, 0.005, 0.25)
    """

    bounds: tuple[float, ...] = BOUNDS
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    @property
    def count(self) -> int:
        """The number of values that were added."""
        return sum(self.counts)

    def add(self, *values: float) -> None:
        """Add some values to their buckets, and to ``total``."""
        counts = self.counts
        bounds = self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    def quantile(self, part: float) -> float:
        """Return the upper bound of the bucket in which the quantile ``part``, from 0 to 1, lies.

        It is ``inf`` in the last bucket, and 0 without values.
        """
        left = part * self.count
        for count, bound in zip(self.counts, self.bounds, strict=False):
            left -= count
            if left <= 0 and self.count:
                return bound
        return float("inf") if self.count else 0.0

    def __str__(self) -> str:
        """Return the bounds of the median and of the 99th percentile as text.

        It is ``"half at most 0.005, 99 % at most 0.25"``, for example.
        """
        return f"half at most {self.quantile(0.5):g}, 99 % at most {self.quantile(0.99):g}"


@dataclass
class ServerStats:
    """What a server has counted since it was made; `Server.stats` returns it.

    Attributes
    ----------
    outcomes : dict of str to int
        Requests that are ``"done"``, ``"failed"``, ``"cancelled"``, past their ``"deadline"``, or were
        refused as ``"overloaded"``.
    waiting, running : int
        Requests in the queue, and under way.
    joins : int
        Requests that were taken while others were under way.
    rounds, launches, calls : int
        Rounds, launches, and the calls that were run in them.
    queue_time, service_time : Histogram
        How long requests waited, and how long they were under way, in seconds.
    launch_rows : Histogram
        How many calls each launch has run.
    live_calls, live_results, live_tasks : int
        Calls that are recorded for requests under way, results of launches that are kept, and coroutines
        that have not finished, when a request last began or ended: all 0 when nothing is under way.
    """

    outcomes: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    running: int = 0
    joins: int = 0
    rounds: int = 0
    launches: int = 0
    calls: int = 0
    queue_time: Histogram = field(default_factory=Histogram)
    service_time: Histogram = field(default_factory=Histogram)
    launch_rows: Histogram = field(default_factory=lambda: Histogram(ROWS))
    live_calls: int = 0
    live_results: int = 0
    live_tasks: int = 0

    @property
    def rows_a_launch(self) -> float:
        """The mean number of calls in a launch; 0 without launches."""
        return self.calls / max(self.launches, 1)

    def __str__(self) -> str:
        """Return six lines of text: outcomes, times, launches, rows a launch and joins."""
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.items()) or "none"
        return (
            f"requests    {outcomes}; {self.running} under way, {self.waiting} wait\n"
            f"waited      {self.queue_time} s\n"
            f"under way   {self.service_time} s\n"
            f"launches    {self.launches} in {self.rounds} rounds\n"
            f"rows        {self.rows_a_launch:.1f} a launch, {self.launch_rows}\n"
            f"joined      {self.joins} requests while others were under way"
        )


class Tally:
    """Counts for a server, while it runs: any thread may count, and any may ask."""

    def __init__(self) -> None:
        self._lock = RLock()  # not a Lock: a collection of garbage in here may ask for the counts
        self._stats = ServerStats()
        self._outcomes: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()  # of the attributes of `ServerStats` that only grow
        # Requests that have ended of late, and for how many seconds the thread has worked for them.
        self._served = 0.0
        self._busy = 0.0

    def stats(self, waiting: int) -> ServerStats:
        """Return copies of all counts, with ``waiting``, the number of requests in the queue."""
        with self._lock:
            # Histograms go on counting, so the caller gets copies.
            stats = deepcopy(self._stats)
            counts = self._counts
            return replace(
                stats,
                outcomes=dict(self._outcomes),
                waiting=waiting,
                joins=counts["joins"],
                rounds=counts["rounds"],
                launches=counts["launches"],
                calls=counts["calls"],
            )

    def refused(self) -> None:
        """Count a request as ``"overloaded"``: it found the queue full."""
        with self._lock:
            self._outcomes["overloaded"] += 1

    def taken(self, requests: Sequence[Request], joins: bool) -> None:
        """Add the time that each request was in the queue.

        Count each as a join if others were under way.
        """
        with self._lock:
            self._stats.queue_time.add(*[request.started - request.arrived for request in requests])
            self._counts["joins"] += joins * len(requests)

    def ended(self, requests: Sequence[Request], outcomes: Sequence[str]) -> None:
        """Count the outcomes of requests, and add the seconds for which each of them was under way.

        ``outcomes`` has a word for each of ``requests``, as ``"done"``. A request that was never taken from
        the queue has no such time.
        """
        now = monotonic()
        times = [now - request.started for request in requests if request.started]
        with self._lock:
            self._outcomes.update(outcomes)
            self._stats.service_time.add(*times)

    def cancelled_after_all(self, outcome: str) -> None:
        """Count one request as cancelled in the place of ``outcome``.

        Its caller has cancelled it after it was counted.
        """
        with self._lock:
            self._outcomes[outcome] -= 1
            self._outcomes["cancelled"] += 1

    def ran(self, rows: Sequence[int]) -> None:
        """Count a round; ``rows`` has the number of calls of each of its launches."""
        with self._lock:
            self._counts["rounds"] += 1
            self._counts["launches"] += len(rows)
            self._counts["calls"] += sum(rows)
            self._stats.launch_rows.add(*rows)

    def holds(self, running: int, calls: int, results: int, tasks: int) -> None:
        """Store how many requests are under way, and the calls, results and coroutines they have."""
        with self._lock:
            self._stats = replace(
                self._stats, running=running, live_calls=calls, live_results=results, live_tasks=tasks
            )

    def worked(self, requests: int, seconds: float) -> None:
        """Add a turn of the thread: how many requests have ended in it, and how many seconds it took.

        The counts of before are halved once they are over 256 requests, so that `rate` follows the load.
        """
        with self._lock:
            if self._served > LATE:
                self._served /= 2
                self._busy /= 2
            self._served += requests
            self._busy += seconds

    def rate(self) -> float:
        """Return how many requests end in a second of the thread's work, 0 if none has ended."""
        with self._lock:
            # A clock with coarse ticks may have seen requests end in 0 s.
            return self._served / max(self._busy, 1e-6)
