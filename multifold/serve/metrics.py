"""Figures of a server for Prometheus, read from `Server.stats` whenever they are asked for.

Nothing is counted twice: a collector turns one `ServerStats` into families of metrics. Of the rows a launch
``_sum`` is the calls, and ``_count`` the launches: their quotient is the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, final

from multifold.errors import ExtraMissing

if TYPE_CHECKING:
    from multifold.serve.server import Server

OUTCOMES = ("done", "failed", "cancelled", "deadline", "overloaded")
"""All outcomes, so that each has a series from the start: a rate needs a value to begin with."""


@final
class Collector:
    """Shows what a server counts to a registry of ``prometheus_client``.

    Parameters
    ----------
    server : Server
        Whose figures are shown.
    **labels : str
        Of all its metrics, as ``model="sentiment"``; two servers in one registry need different values.

    Raises
    ------
    ExtraMissing
        If ``prometheus_client`` is not installed.

    Notes
    -----
    ==============================  =========  =====================================================
    metric                          type       what
    ==============================  =========  =====================================================
    ``multifold_requests_total``    counter    requests that have ended, by ``outcome``
    ``multifold_queue_seconds``     histogram  how long requests waited to be taken
    ``multifold_service_seconds``   histogram  how long they were under way
    ``multifold_launch_rows``       histogram  how many calls each launch has run
    ``multifold_joins_total``       counter    requests taken while others were under way
    ``multifold_rounds_total``      counter    rounds
    ``multifold_requests_waiting``  gauge      requests in the queue
    ``multifold_requests_running``  gauge      requests under way
    ``multifold_live_calls``        gauge      calls that are held for requests under way
    ==============================  =========  =====================================================

    Examples
    --------
    >>> import multifold, prometheus_client
    >>> model = {"half": lambda x: x / 2}
    >>> server = multifold.Server(model, lambda fold, x: fold.add("half", x), backend="numpy")
    >>> registry = prometheus_client.CollectorRegistry()
    >>> registry.register(Collector(server))
    >>> with server:
    ...     result = server.submit(3.0).result()
    >>> registry.get_sample_value("multifold_requests_total", {"outcome": "done"})
    1
    """

    def __init__(self, server: Server, **labels: str) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise ExtraMissing(
                f"Expected prometheus_client, to which metrics are shown. Received {error}.",
                "pip install prometheus_client",
            ) from error
        self.server = server
        self.labels = labels
        self._core = core

    def collect(self) -> Iterator[Any]:
        """Yield a family of metrics for each row of the class's table, all from one call of `Server.stats`.

        A registry calls it for each scrape.
        """
        stats = self.server.stats()
        core = self._core
        names = [*self.labels]
        values = [*self.labels.values()]
        requests = core.CounterMetricFamily(
            "multifold_requests", "Requests by outcome.", labels=[*names, "outcome"]
        )
        for outcome, count in (dict.fromkeys(OUTCOMES, 0) | stats.outcomes).items():
            requests.add_metric([*values, outcome], count)
        yield requests
        for name, text, histogram in (
            ("queue_seconds", "How long requests waited to be taken.", stats.queue_time),
            ("service_seconds", "How long requests were under way.", stats.service_time),
            ("launch_rows", "How many calls each launch has run.", stats.launch_rows),
        ):
            family = core.HistogramMetricFamily(f"multifold_{name}", text, labels=names)
            bounds = [*map(str, histogram.bounds), "+Inf"]
            buckets = [*zip(bounds, accumulate(histogram.counts), strict=True)]
            family.add_metric(values, buckets, histogram.total)
            yield family
        for kind, name, text, value in (
            (core.CounterMetricFamily, "joins", "Requests taken while others were under way.", stats.joins),
            (core.CounterMetricFamily, "rounds", "Rounds.", stats.rounds),
            (core.GaugeMetricFamily, "requests_waiting", "Requests in the queue.", stats.waiting),
            (core.GaugeMetricFamily, "requests_running", "Requests under way.", stats.running),
            (core.GaugeMetricFamily, "live_calls", "Calls held for requests under way.", stats.live_calls),
        ):
            family = kind(f"multifold_{name}", text, labels=names)
            family.add_metric(values, value)
            yield family
