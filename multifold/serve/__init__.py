"""Serving: requests of many callers run together, and new ones join those that are under way.

`Server` answers requests, `stream` (in `streaming`) any number of examples in order, and `Collector` shows
the figures of a server to Prometheus.

In a server one thread records and runs everything. Its loop is short: take requests that wait, let all run
until they need values, compute those as one round (`multifold._engine.rounds`), hand out what has finished.
A request that arrives meanwhile joins one of the next rounds, so it never waits for those before it to
finish. One idea a module:

- `requests`: what a caller asks for, and how its one outcome reaches the caller.
- `admission`: the bounded queue in which requests wait.
- `engine`: the requests under way, and their rounds: what a round has room for, how deep it goes, who is to
  blame. `tasks` are the functions of the requests, and `answers` what they return.
- `worker`: the thread: it takes requests, lets engines run rounds, and hands out what has ended.
- `streamed`: what functions yield, and how it reaches the callers before the request has ended.
- `server`: what callers call.
- `statistics`: how many, how long, how many rows a launch.
- `spans`: what OpenTelemetry is told, where it is installed.
- `metrics`: `Collector`, for ``prometheus_client`` (``pip install prometheus_client``).

Two requests of a function that looks at values. The first takes three rounds and the second one; here both
are there when the thread looks, so their calls share the launch of the first round:

>>> import multifold
>>> async def halve(fold, x):
...     while await fold.value(x := fold.add("halve", x)) >= 1:
...         pass
...     return x
>>> server = multifold.Server({"halve": lambda x: x / 2}, halve, backend="numpy", wait=0.05)
>>> with server:
...     futures = [server.submit(x) for x in (7.0, 1.0)]
...     print([future.result() for future in futures])
[array([0.875]), array([0.5])]
>>> server.stats().launches, server.stats().calls
(3, 4)

The server counts anyway, so figures that nobody reads cost nothing:

>>> import prometheus_client
>>> registry = prometheus_client.CollectorRegistry()
>>> registry.register(Collector(server, model="halving"))
>>> print(prometheus_client.generate_latest(registry).decode())
# HELP multifold_requests_total Requests by outcome.
# TYPE multifold_requests_total counter
multifold_requests_total{model="halving",outcome="done"} 2.0
...
"""

from __future__ import annotations

from multifold.serve.metrics import Collector
from multifold.serve.server import Server
from multifold.serve.statistics import Histogram, ServerStats
from multifold.serve.streamed import AnswerStream
from multifold.serve.streaming import stream

__all__ = ["AnswerStream", "Collector", "Histogram", "Server", "ServerStats", "stream"]
