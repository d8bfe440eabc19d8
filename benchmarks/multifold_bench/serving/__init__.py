"""Serving under load: requests that arrive when they like, and how long each of them takes.

The load is open: a process of its own sends requests at the times of a Poisson process, whether or not
those before them were answered, as the callers of a service do. A closed loop, whose callers wait for their
answers, would send less just when the server is slow, and hide what this is about. One idea a module:

- `generator`: the process that sends numbers and keeps the time at which each was answered.
- `workloads`: examples, a model, the function that serves one, and what the loop returns.
- `windows`: a thread that takes waiting requests together.
- `contenders`: one request at a time, windows of whole requests, and `multifold.Server`.
- `load`: one contender under one load; what it answered is compared with the loop's results.
- `rates`: the highest rate that a contender carries.
- `search`: the contenders side by side.

Times count from the moment at which a request was due, not from when it was sent:

>>> from multifold_bench.serving.generator import Requests
>>> requests = Requests(rate=100.0, seconds=0.05, seed=0, deadline=0.1)
>>> [round(time, 3) for time in requests.times]
[0.019, 0.033, 0.038, 0.041, 0.048]
>>> requests.answered([0, 1], 0.034)
>>> [round(latency, 3) for latency in requests.latencies[:2]]
[0.015, 0.001]
"""
