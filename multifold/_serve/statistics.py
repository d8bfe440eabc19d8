"""What a server tells about itself: requests by outcome, times, and rows a launch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of times, in seconds, as Prometheus' clients have them by default."""

ROWS = tuple(2.0**power for power in range(len(BOUNDS)))
"""Upper bounds of the buckets of rows a launch: 1, 2, 4 and so on to 4096."""

LATE = 256
"""Requests of which the rate at which requests are done is found."""


@dataclass
class Histogram:
    """How many values were in each bucket: times in seconds, or rows of launches.

    Attributes
    ----------
    bounds : tuple of float
        Upper bounds of all buckets but the last one.
    counts : list of int
        How many values were in each bucket.
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
        """How many values there are."""
        return sum(self.counts)

    def add(self, *values: float) -> None:
        """Note some values."""
        counts = self.counts
        bounds = self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.total += sum(values)

    def quantile(self, part: float) -> float:
        """Return the upper bound of the bucket in which a quantile lies; 0 without values."""
        left = part * self.count
        for count, bound in zip(self.counts, self.bounds, strict=False):
            left -= count
            if left <= 0 and self.count:
                return bound
        return float("inf") if self.count else 0.0

    def __str__(self) -> str:
        """Return the bounds of the median and of the 99th percentile."""
        return f"half at most {self.quantile(0.5):g}, 99 % at most {self.quantile(0.99):g}"


@dataclass
class ServerStats:
    """What `Server.stats` returns: counts since the server was made.

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

    outcomes: dict[str, int]
    waiting: int
    running: int
    joins: int
    rounds: int
    launches: int
    calls: int
    queue_time: Histogram
    service_time: Histogram
    launch_rows: Histogram
    live_calls: int
    live_results: int
    live_tasks: int

    @property
    def rows_a_launch(self) -> float:
        """The mean number of calls in a launch."""
        return self.calls / max(self.launches, 1)

    def __str__(self) -> str:
        """Return a line for each kind of figure."""
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
    """What a server counts while it runs."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._joins = self._rounds = self._launches = self._calls = 0
        self._queue_time = Histogram()
        self._service_time = Histogram()
        self._rows = Histogram(ROWS)
        self._running = 0
        self._live = [0, 0, 0]
        self._done: deque[float] = deque(maxlen=LATE)  # when requests were done, by the busy clock
        # the latter is 0 while there is something to do
        self._idle = 0.0
        self._idle_since = monotonic()

    def taken(self, waited: Sequence[float], joins: bool) -> None:
        """Count requests that were taken; ``joins`` says whether others were under way."""
        self._queue_time.add(*waited)
        self._joins += joins * len(waited)

    def ended(self, outcome: str) -> None:
        """Count an outcome."""
        self._outcomes[outcome] += 1

    def served(self, outcomes: Iterable[str], started: Sequence[float], now: float) -> None:
        """Count the outcomes of requests, and when those of them that were taken had started."""
        self._outcomes.update(outcomes)
        self._service_time.add(*[now - moment for moment in started])
        self._done.extend([now - self._idle] * len(started))

    def recount(self, outcome: str, other: str) -> None:
        """Count a request by another outcome."""
        self._outcomes[outcome] -= 1
        self._outcomes[other] += 1

    def rests(self) -> None:
        """Note that there is nothing to do from now on."""
        self._idle_since = self._idle_since or monotonic()

    def wakes(self) -> None:
        """Note that there is something to do from now on."""
        if self._idle_since:
            self._idle += monotonic() - self._idle_since
            self._idle_since = 0.0

    def rate(self) -> float:
        """Return how many requests were served of late in a second with something to do; 0 if unknown."""
        if len(self._done) < 2:
            return 0.0
        busy = (self._idle_since or monotonic()) - self._idle
        return (len(self._done) - 1) / max(busy - self._done[0], 1e-6)

    def ran(self, rounds: int, rows: Sequence[int]) -> None:
        """Count rounds, and their launches of so many rows."""
        self._rounds += rounds
        self._launches += len(rows)
        self._calls += sum(rows)
        self._rows.add(*rows)

    def holds(self, running: int, live: Sequence[int]) -> None:
        """Note how many requests are under way, and how many calls, results and coroutines these have."""
        self._running = running
        self._live = [*live]

    def stats(self, waiting: int) -> ServerStats:
        """Return all that was counted, and how many requests wait."""
        return ServerStats(
            dict(self._outcomes), waiting, self._running,
            self._joins, self._rounds, self._launches, self._calls,
            self._queue_time, self._service_time, self._rows, *self._live,
        )  # fmt: skip
