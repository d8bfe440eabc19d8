"""One contender under one load: requests come from another process, and all results are compared."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from multifold._measure.garbage import only_new_garbage
from multifold.errors import MismatchError
from multifold_bench.serving.contenders import Answer, Service
from multifold_bench.serving.generator import END, NUMBER
from multifold_bench.serving.workloads import Traffic

Make = Callable[[Traffic, Answer], Service]
"""Makes a contender."""

IGNORED = 0.1
"""The first part of the requests is not counted, since they meet an idle server."""

WARM = 64
"""Requests that are served before the first one that counts."""


HANGS = 120
"""Seconds after which a contender that has not warmed up is taken to hang."""


@dataclass(frozen=True)
class Load:
    """What arrives.

    Attributes
    ----------
    rate : float
        Requests a second, on average.
    seconds : float
        For how long.
    seed : int
        Of the times and of which examples come.
    deadline : float
        Seconds within which an answer counts.
    stubborn : bool
        Whether to go on when the 99th percentile is beyond the deadline for sure.
    """

    rate: float
    seconds: float
    seed: int = 0
    deadline: float = 0.1
    stubborn: bool = False


@dataclass(frozen=True)
class Served:
    """What became of a load.

    Attributes
    ----------
    load : Load
    latencies : float64 array
        Of each request in seconds, from when it was due; infinity where no answer came.
    rows_a_launch : float
    """

    load: Load
    latencies: np.ndarray
    rows_a_launch: float

    @cached_property
    def counted(self) -> np.ndarray:
        """The latencies that count."""
        return self.latencies[int(IGNORED * len(self.latencies)) :]

    def quantile(self, part: float) -> float:
        """Return a quantile of the latencies in seconds."""
        return float(np.quantile(self.counted, part, method="higher"))

    @property
    def in_time(self) -> float:
        """The part of the requests that were answered within the deadline."""
        return float(np.mean(self.counted <= self.load.deadline))

    @property
    def holds(self) -> bool:
        """Whether the 99th percentile is within the deadline."""
        return self.quantile(0.99) <= self.load.deadline

    def row(self) -> dict[str, Any]:
        """Return the figures: times in ms, rates in requests a second."""
        done = float(np.mean(np.isfinite(self.counted)))
        return {
            **asdict(self.load),
            "requests": len(self.latencies),
            "p50_ms": 1e3 * self.quantile(0.5),
            "p99_ms": 1e3 * self.quantile(0.99),
            "throughput": done * self.load.rate,
            "goodput": self.in_time * self.load.rate,
            "rows_a_launch": self.rows_a_launch,
        }


def serve(workload: Traffic, make: Make, load: Load, expected: Sequence[Any]) -> Served:
    """Let a contender serve a load, and compare its results.

    Parameters
    ----------
    workload : Traffic
        What is served.
    make : callable
        Makes the contender.
    load : Load
        What arrives.
    expected : sequence of array
        The loop's result of each example.

    Raises
    ------
    MismatchError
        If a result is another one.
    """
    picked = np.random.default_rng(load.seed).integers(len(expected), size=1 << 18).tolist()
    found: dict[int, Any] = {}
    warm = Event()
    with generator(load) as (arrivals, answers, begin):

        def answer(numbers: Sequence[int], results: Sequence[Any]) -> None:
            found.update(zip(numbers, results, strict=True))
            if warm.is_set():
                with suppress(OSError):  # the generator has given up
                    for number in numbers:  # each caller has a connection of its own, and so an own write
                        os.write(answers, struct.pack("<i", number))
            elif len(found) == WARM:
                warm.set()

        with make(workload, answer) as service:
            for number in range(WARM):
                service.submit(number, workload.examples[picked[number]])
            if not warm.wait(HANGS):
                raise RuntimeError(f"Expected {WARM} answers within {HANGS} s. Received {len(found)}.")
            compare(workload, found, picked, expected)
            found.clear()
            with only_new_garbage():
                begin()
                for number in arrivals.numbers():
                    service.submit(number, workload.examples[picked[number]])
            rows_a_launch = service.rows_a_launch()
        latencies = arrivals.latencies()
    compare(workload, found, picked, expected)
    return Served(load, np.where(np.isnan(latencies), np.inf, latencies), rows_a_launch)


@contextmanager
def generator(load: Load) -> Iterator[tuple[Arrivals, int, Callable[[], None]]]:
    """Start the process that sends requests; yield what it says, where answers go, and what begins."""
    core = spare_core()
    given = asdict(load) | {"core": core, "patience": 2 * load.deadline}
    file = Path(__file__).with_name("generator.py")
    command = [sys.executable, "-I", str(file), json.dumps(given)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("subprocess.Popen was told to make pipes.")
        answers = process.stdin.fileno()

        def begin() -> None:
            os.write(answers, struct.pack("<i", END))

        yield Arrivals(process.stdout.fileno()), answers, begin


def spare_core() -> int | None:
    """Return a core that this process leaves to others; None if it does not, or if there is no asking."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return min(set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0), default=None)


class Arrivals:
    """What a generator says: numbers of requests while it lasts, then the latencies."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.rest = b""

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of requests as they come."""
        while received := os.read(self.pipe, 1 << 16):
            received = self.rest + received
            whole = len(received) // NUMBER
            for place, number in enumerate(struct.unpack_from(f"<{whole}i", received), 1):
                if number == END:
                    self.rest = received[place * NUMBER :]
                    return
                yield number
            self.rest = received[whole * NUMBER :]

    def latencies(self) -> np.ndarray:
        """Return the seconds of each request, NaN for those without an answer."""
        while received := os.read(self.pipe, 1 << 16):
            self.rest += received
        return np.frombuffer(self.rest)


def compare(
    workload: Traffic, found: dict[int, Any], picked: Sequence[int], expected: Sequence[Any]
) -> None:
    """Compare all results with the loop's."""
    for number, result in list(found.items()):
        right = expected[picked[number]]
        found_one = np.asarray(result)
        if found_one.shape != right.shape or not np.allclose(found_one, right, rtol=1e-4, atol=1e-5):
            raise MismatchError(
                f"Expected what the loop returns for request {number} of the workload "
                f"'{workload.name}', {right}. Received {found_one}.",
                "times of a contender that is wrong mean nothing.",
            )
