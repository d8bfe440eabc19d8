"""Which rate each contender carries, and all of them at one rate.

A contender carries a rate if its 99th percentile is within the deadline. The windows are swept, and the
best of them sets the rate at which all are compared: 70 % of the highest that it carries. A lost load ends
early, as soon as one in a hundred requests is late, so a search costs little more than the loads that hold.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from multifold._measure import machine
from multifold_bench.results import Row
from multifold_bench.serving.contenders import Alone, Joining, Windows
from multifold_bench.serving.load import Load, Make, Served, serve
from multifold_bench.serving.rates import FINE, GROWTH, SHARE, highest_rate
from multifold_bench.serving.workloads import Traffic

AGAIN = 3
"""How often each contender serves the load at which they are compared, with other times each time."""

SWEEP = {
    f"windows of {most}, {wait} ms": (most, wait / 1e3) for most, wait in product((16, 64, 256), (0, 5))
}
"""How many requests a window takes at most, and how many seconds the first of them waits for others."""


def contenders_of(servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Make]:
    """Return all contenders by name: the loop, the windows, and servers with these options."""
    found: dict[str, Make] = {"alone": Alone}
    for name, (most, wait) in SWEEP.items():
        found[name] = partial(Windows, most=most, wait=wait)
    return found | {name: partial(Joining, **options) for name, options in servers.items()}


@dataclass
class Contest:
    """All loads that contenders have served of a workload.

    Attributes
    ----------
    workload : Traffic
    contenders : dict of str to callable
        What makes each of them.
    load : Load
        What each load has in common with the others.
    tell : callable
        Told what has been measured, a row each time.
    expected : list of array
        What the loop returns for each example.
    rows : list of Row
        A row for each load.
    """

    workload: Traffic
    contenders: Mapping[str, Make]
    load: Load
    tell: Callable[[Row], object]
    expected: list[Any] = field(init=False)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.workload.backend.inference():
            self.expected = [self.workload.loop(example) for example in self.workload.examples]

    def serve(self, name: str, rate: float, part: str = "search", seed: int | None = None) -> Served:
        """Let a contender serve a load; ``part`` says what for."""
        seed = self.load.seed if seed is None else seed
        load = replace(self.load, rate=rate, seed=seed, stubborn=part == "compare")
        served = serve(self.workload, self.contenders[name], load, self.expected)
        row = {"command": "bench serve", "backend": self.workload.backend.name}
        row |= {"workload": self.workload.name, "contender": name, "part": part, **served.row()}
        self.rows.append(row)
        self.tell(row)
        return served

    def carries(self, name: str, rate: float) -> bool:
        """Return whether a contender carries a rate."""
        return self.serve(name, rate).holds

    def sweep(self, names: Sequence[str], start: float) -> tuple[str, float]:
        """Return which of some contenders carries the highest rate, and that rate."""
        best = names[0]
        rate = 0.0
        for name in names:
            # Who does not carry 5 % more than the best so far is out after one load.
            if rate and not self.carries(name, FINE * rate):
                continue
            found = highest_rate(partial(self.carries, name), GROWTH * rate or start, FINE * rate)
            if found > rate:
                best = name
                rate = found
        return best, rate

    def compared(self, names: Iterable[str], rate: float) -> dict[str, float]:
        """Return the median of the 99th percentiles of each contender at a rate, by turns, in ms."""
        found: dict[str, list[float]] = {name: [] for name in names}
        for again in range(AGAIN):
            for name, times in found.items():
                times.append(
                    1e3 * self.serve(name, rate, "compare", self.load.seed + 1 + again).quantile(0.99)
                )
        return {name: statistics.median(times) for name, times in found.items()}


def measure_serving(
    workload: Traffic,
    servers: Mapping[str, Mapping[str, Any]],
    load: Load,
    *,
    tell: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Find the highest rates, compare the contenders at 70 % of that of the best windows; return all rows.

    Parameters
    ----------
    workload : Traffic
        What is served.
    servers : dict of str to dict
        Options of `multifold.Server`, by the name of the contender.
    load : Load
        Its rate is where the search begins.
    tell : callable
        Told what has been measured.

    Returns
    -------
    A row for each load, with its ``part``: of a search, or of the comparison. The last row, of part
    ``"summary"``, has the highest rates and the 99th percentiles in ms, by contender.
    """
    contest = Contest(workload, contenders_of(servers), load, tell)
    best, rate = contest.sweep([*SWEEP], load.rate)
    p99 = contest.compared([*SWEEP, *servers], SHARE * rate)
    rates = {best: rate} | {
        name: highest_rate(partial(contest.carries, name), first)
        for name, first in [*zip(servers, [rate] * len(servers), strict=True), ("alone", rate / 8)]
    }
    calmest = min(SWEEP, key=p99.__getitem__)
    summary = contest.rows[0] | {"part": "summary", "contender": best, "rate": rate}
    summary = {
        name: summary[name] for name in ("command", "backend", "workload", "part", "contender", "rate")
    }
    summary |= {"deadline": load.deadline, "seconds": load.seconds, "highest": rates, "calmest": calmest}
    summary |= {"p99_ms": p99, "environment": machine.describe(workload.backend)}
    tell(summary)
    return [*contest.rows, summary]
