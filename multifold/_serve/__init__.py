"""Serving: requests of many callers run together, and new ones join those that are under way.

One thread records and runs everything. Its loop is short: take requests that wait, let all run until they
need values, compute those as one round (`multifold._rounds`), hand out what has finished. A request that
arrives meanwhile joins one of the next rounds, so it never waits for those before it to finish. One idea a
module:

- `requests`: what a caller asks for, and how its one outcome reaches the caller.
- `admission`: the bounded queue in which requests wait.
- `engine`: the requests under way, and their rounds: what a round has room for, how deep it goes, who is to
  blame. `tasks` are the functions of the requests, and `answers` what they return.
- `worker`: the thread: it takes requests, lets engines run rounds, and hands out what has ended.
- `server`: what callers call.
- `statistics`: how many, how long, how many rows a launch.
- `spans`: what OpenTelemetry is told, where it is installed.

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
"""

from __future__ import annotations

from multifold._serve.server import Server
from multifold._serve.statistics import Histogram, ServerStats

__all__ = ["Histogram", "Server", "ServerStats"]
