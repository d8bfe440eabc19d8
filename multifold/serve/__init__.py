"""What stands around `multifold.Server` where it runs as a service: figures for Prometheus.

`Collector` shows `Server.stats` to ``prometheus_client`` (``pip install prometheus_client``), each time
that somebody asks. The server counts anyway, so figures that nobody reads cost nothing:

>>> import multifold, prometheus_client
>>> from multifold.serve import Collector
>>> model = {"double": lambda x: 2 * x}
>>> server = multifold.Server(model, lambda fold, x: fold.add("double", x), backend="numpy")
>>> registry = prometheus_client.CollectorRegistry()
>>> registry.register(Collector(server, model="doubling"))
>>> with server:
...     result = server.submit(21).result()
>>> print(prometheus_client.generate_latest(registry).decode())
# HELP multifold_requests_total Requests by outcome.
# TYPE multifold_requests_total counter
multifold_requests_total{model="doubling",outcome="done"} 1.0
...
"""

from __future__ import annotations

from multifold.serve.metrics import Collector

__all__ = ["Collector"]
