"""How even the steps of shards are, and which counts predict how long a step takes.

A step takes as long as its slowest shard. So what matters of minibatches is by how much the largest of a
step is above the mean, by the number of calls; and whether calls are what time follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import multifold
from multifold._compare.benchmark import Benchmark
from multifold._compare.results import Row
from multifold._traces.trace import Trace
from multifold.backend import Backend
from multifold.sampling import CallBudget
from multifold_bench.record import timed

SIZES = (4, 128)
"""The fewest and the most examples of a minibatch that is timed."""

ROUNDS = 3
"""How often each minibatch is timed; the quickest counts."""


def excess(loads: np.ndarray) -> np.ndarray:
    """Return by what the largest shard of each step is above the mean; loads are ``(steps, shards)``.

    Examples
    --------
    >>> excess(np.array([[4.0, 4.0], [1.0, 3.0]]))
    array([1. , 1.5])
    """
    found: np.ndarray = loads.max(axis=1) / loads.mean(axis=1)
    return found


def measure_balance(costs: Sequence[int], calls: int, shards: int, epochs: int = 5) -> list[Row]:
    """Share out examples by a budget of calls, and as many of them to each shard at random.

    Parameters
    ----------
    costs : sequence of int
        The calls of each example.
    calls, shards, epochs : int
        The budget of a minibatch, the number of shards, and how many epochs are looked at.

    Returns
    -------
    list of dict
        For ``"budget"`` and ``"random"``: ``slowest``, the mean over steps of the largest shard's calls
        over the mean of the shards; ``worst``, the largest of these; ``steps`` of an epoch, and
        ``largest``, the most calls of a minibatch.

    Examples
    --------
    >>> costs = np.random.default_rng(0).lognormal(3.5, 0.8, 2000).astype(int) + 1
    >>> budget, random = measure_balance(costs, calls=1000, shards=4)
    >>> budget["slowest"] < 1.02 < 1.1 < random["slowest"]
    True
    """
    sampler, array = CallBudget(costs, calls, shards=shards), np.array(costs, float)
    loads: dict[str, list[np.ndarray]] = {"budget": [], "random": []}
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        steps = sampler.steps()
        loads["budget"].append(np.array([[array[shard].sum() for shard in step] for step in steps]))
        each = max(1, len(costs) // (len(steps) * shards))
        order = np.random.default_rng([epoch]).permutation(len(costs))[: len(steps) * shards * each]
        loads["random"].append(array[order].reshape(-1, shards, each).sum(axis=2))
    rows = []
    for name, found in loads.items():
        ratios = np.concatenate([excess(one) for one in found])
        largest = max(float(one.max()) for one in found)
        about = {"slowest": float(ratios.mean()), "worst": float(ratios.max())}
        rows.append({"name": name, **about, "steps": len(found[0]), "largest": largest})
    return rows


def measure_predictors(
    benchmark: Benchmark,
    traces: Sequence[Trace],
    backend: Backend,
    minibatches: int,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> Row:
    """Time minibatches of different sizes, and fit their times by what is known before they run.

    Returns
    -------
    dict
        ``explained``: for the calls, the launches, and both together, which part of the variance of the
        times a line explains; ``microseconds`` of a call and of a launch, by the line of both; ``times`` in
        seconds, ``calls`` and ``launches`` of each minibatch.

    Examples
    --------
    >>> from multifold_bench.workloads import WORKLOADS
    >>> workload = WORKLOADS["synthetic"]
    >>> benchmark = workload.benchmark(workload.read(None, 0, lambda done, total: None), width=8)
    >>> trees = benchmark.examples.draw(np.random.default_rng(0), 128)
    >>> made = multifold.traces(benchmark.record, trees)
    >>> row = measure_predictors(benchmark, made, multifold.load_backend("numpy"), 10)
    >>> sorted(row["explained"])
    ['both', 'calls', 'launches']
    """
    rng, model = np.random.default_rng(seed), benchmark.model().on(backend, None)
    fold = multifold.Fold(backend=backend)
    times, calls, launches = [], [], []
    for _ in range(minibatches):
        size = round(float(np.exp(rng.uniform(*np.log(SIZES)))))
        batch = multifold.merge([traces[i] for i in rng.integers(len(traces), size=size)])
        run = partial(run_all, fold, model, backend)
        run([batch])
        times.append(min(timed(run, [batch]) for _ in range(ROUNDS)))
        calls.append(len(batch.plan.schedule.calls))
        launches.append(len(batch.plan.schedule))
        advance("minibatches")
    columns = {"calls": [calls], "launches": [launches], "both": [calls, launches]}
    fits = {name: fitted(np.array(times), np.array(column, float)) for name, column in columns.items()}
    return {
        "explained": {name: part for name, (part, _) in fits.items()},
        "microseconds": [1e6 * float(x) for x in fits["both"][1][1:]],
        "times": times,
        "calls": calls,
        "launches": launches,
    }


def run_all(
    fold: multifold.Fold, model: Any, backend: Backend, batches: Sequence[multifold.Minibatch]
) -> None:
    """Run minibatches to their end, without gradients."""
    with backend.inference():
        for batch in batches:
            fold.run(model, batch)
    backend.synchronize()


def fitted(times: np.ndarray, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Return which part of the variance a line through some columns explains, and its coefficients.

    Examples
    --------
    >>> explained, (begin, slope) = fitted(np.array([3.0, 5.0, 7.0]), np.array([[1.0, 2.0, 3.0]]))
    >>> print(f"{explained:.3f}: {begin:.3f} + {slope:.3f} x")
    1.000: 1.000 + 2.000 x
    """
    table = np.vstack([np.ones(len(times)), columns]).T
    found = np.linalg.lstsq(table, times, rcond=None)[0]
    left = times - table @ found
    return 1 - float(left @ left) / float(((times - times.mean()) ** 2).sum()), found
