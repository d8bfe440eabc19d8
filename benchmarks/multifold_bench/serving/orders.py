"""What an order of joining can reach at best with a decoder: simulated, with the same costs for all.

``python -m multifold_bench.serving.orders sst/dev.txt`` draws the arrivals and lengths that the load test
has, and lets a launch take the same time in each order, so that what differs is the order alone. A request
that reads 20 words and writes 23 pieces needs 43 rows of launches. A launch takes `Costs.launch`, and all
rows of a request of average length, and its function, take `Costs.request` together. Those of a window are
the defaults: a straight line through windows of 16 to 128 decoders, 1.07 to 0.51 ms a request with 4.8 to
0.72 launches, PyTorch on one core. The server, which looks for the next calls in each round, takes 173 and
520 microseconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from multifold import load_backend
from multifold_bench.serving.generator import Requests
from multifold_bench.serving.search import SHARE, highest_rate
from multifold_bench.serving.workloads import make_workload

DEADLINE = 0.1

SEEDS = range(1, 6)
"""Of the loads of which the median 99th percentile counts, each of `SECONDS`."""

SECONDS = 4.0


@dataclass(frozen=True)
class Costs:
    """Seconds of a launch, and of a request of average length besides its launches."""

    launch: float = 138e-6
    request: float = 413e-6


Lengths = np.ndarray
"""Words and pieces of each request, of shape ``(n, 2)``."""

Order = Callable[[Sequence[float], Lengths, float, Costs], list[float]]
"""Returns the latency of each request, from arrivals, lengths and the mean number of rows."""


def windows(
    times: Sequence[float], lengths: Lengths, mean: float, costs: Costs, most: int = 256
) -> list[float]:
    """Serve windows of whole requests, as many as are there, in two phases as long as the longest."""
    found, now = list[float](), 0.0
    while len(found) < len(times):
        first = len(found)
        now = max(now, times[first])
        count = min(most, int(np.searchsorted(times[first:], now, side="right")))
        own = lengths[first : first + count]
        now += costs.launch * (1 + own.max(axis=0).sum()) + costs.request * own.sum() / mean
        found += [now - time for time in times[first : first + count]]
    return found


def joining(
    times: Sequence[float], lengths: Lengths, mean: float, costs: Costs, share: float | None
) -> list[float]:
    """Serve rounds of one launch of each op that requests join.

    Where there is a ``share``, newcomers are held back and read together, as `multifold._serve.newcomers`
    has it, with seconds in place of rounds; without one they read a word a round.
    """
    found, now, sent, lost = [0.0] * len(times), 0.0, 0, 0.0
    held, under_way = list[int](), dict[int, list[int]]()  # request -> words and pieces that are left
    while sent < len(times) or held or under_way:
        if not held and not under_way:
            now = max(now, times[sent])
        begins = 0
        while sent < len(times) and times[sent] <= now:
            if share is None:
                under_way[sent], begins = lengths[sent].tolist(), 1
            else:
                held.append(sent)
            sent += 1
        launches = 0 if not held else 1 + int(lengths[held, 0].max())
        if held and (not under_way or lost >= (share or 0) * len(under_way) * costs.launch * launches):
            now += costs.launch * launches + costs.request * lengths[held, 0].sum() / mean
            under_way |= {one: [0, int(lengths[one, 1])] for one in held}
            held, lost = [], 0.0
            continue
        reads = [left for left in under_way.values() if left[0]]
        for left in reads:
            left[0] -= 1
        writes = [one for one, left in under_way.items() if not left[0]]  # also those that just read
        spent = costs.launch * (begins + bool(reads) + bool(writes))
        spent += costs.request * (len(reads) + len(writes)) / mean
        now, lost = now + spent, lost + spent * len(held)
        for one in writes:
            under_way[one][1] -= 1
            if not under_way[one][1]:
                del under_way[one]
                found[one] = now - times[one]
    return found


@dataclass(frozen=True)
class Tried:
    """How an order serves a load."""

    p99: float

    @property
    def holds(self) -> bool:
        """Whether the 99th percentile is within the deadline."""
        return self.p99 <= DEADLINE


def attempt(order: Order, costs: Costs, lengths: Lengths, rate: float) -> Tried:
    """Return how an order serves a rate: the median of several loads."""
    mean, found = float(lengths.sum(axis=1).mean()), list[float]()
    for seed in SEEDS:
        times = Requests(rate, SECONDS, seed, DEADLINE).times
        picked = np.random.default_rng(seed).integers(len(lengths), size=len(times))
        latencies = order(times, lengths[picked], mean, costs)
        found.append(float(np.quantile(latencies[len(times) // 10 :], 0.99, method="higher")))
    return Tried(statistics.median(found))


def compare(lengths: Lengths, server: Costs) -> list[tuple[str, float, float]]:
    """Return the highest rate of each order, and its p99 in ms at 70 % of that of the windows."""
    orders: dict[str, tuple[Order, Costs]] = {"windows": (windows, Costs())}
    for share in (None, 0.5, 1.0, 2.0, 4.0):
        name = "steps" if share is None else f"newcomers together, {share:g}"
        orders[name] = partial(joining, share=share), Costs()
        orders[f"{name}, the server's costs"] = partial(joining, share=share), server
    attempts = {name: partial(attempt, *pair, lengths) for name, pair in orders.items()}
    rates = {name: highest_rate(one, 800.0) for name, one in attempts.items()}
    load = SHARE * rates["windows"]
    return [(name, rates[name], 1e3 * one(load).p99) for name, one in attempts.items()]


def main() -> None:
    """Print what each order carries, and its p99."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="trees of the Stanford Sentiment Treebank")
    parser.add_argument("--launch", type=float, default=173.0, help="microseconds of the server")
    parser.add_argument("--request", type=float, default=520.0, help="microseconds of the server")
    given = parser.parse_args()
    workload = make_workload("decoder", load_backend("numpy"), given.data, 400)
    lengths = np.array([(len(words), np.size(workload.loop(words))) for words in workload.examples])
    found = compare(lengths, Costs(1e-6 * given.launch, 1e-6 * given.request))
    _, rate, p99 = found[0]
    for name, one, time in found:
        click.echo(f"{name:48} {one:6.0f}/s ({one / rate:.2f}) {time:6.1f} ms ({time / p99:.2f})")


if __name__ == "__main__":
    main()
