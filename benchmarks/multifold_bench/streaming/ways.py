"""Ways to run trees through `multifold.stream`: one process, worker processes, and processes apart.

Each way runs in spawned processes of one thread, whatever the process that measures has imported. The
clock starts when all processes of a way have yielded their first rows, since importing a framework, making
a model and growing the first minibatches belong to no example.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold._stream.pool import one_thread_each
from multifold_bench.streaming.trees import MakeModel, read, record

SECONDS = 600
"""How long the processes of a way wait for each other to become warm."""


class Timed(NamedTuple):
    """What a way has shown.

    Attributes
    ----------
    rate : float
        Trees a second, after the first ones, of all processes together.
    rows : array of shape ``(trees, classes)``
        In the order of the trees.
    peak : float
        The most memory, in MB, that a process which takes in results has held.
    """

    rate: float
    rows: np.ndarray
    peak: float


@dataclass(frozen=True)
class Streams:
    """A way: streams beside each other, each over its part of the trees.

    Attributes
    ----------
    processes : int
        How many streams there are, each in a process of its own.
    workers : int
        The workers of each stream.
    parsed : bool
        Whether the process of a stream parses the lines, instead of handing them to its workers.
    """

    processes: int = 1
    workers: int = 1
    parsed: bool = False

    def run(self, make: MakeModel, lines: Sequence[str], warm: int) -> Timed:
        """Run the lines; of each stream the first ``warm`` are not timed."""
        parts = [
            lines[len(lines) * i // self.processes : len(lines) * (i + 1) // self.processes]
            for i in range(self.processes)
        ]
        found = in_processes(run_part, [(self, make, part, warm) for part in parts])
        rows = np.concatenate([one.rows for one in found])
        return Timed(sum(one.rate for one in found), rows, max(one.peak for one in found))


def run_part(way: Streams, make: MakeModel, lines: Sequence[str], warm: int) -> Timed:
    """Run one stream of a way, in this process."""
    examples = map(json.loads, lines) if way.parsed else lines
    fn = record if way.parsed else read
    found = multifold.stream(None, examples, fn, backend=make.backend, make_model=make, workers=way.workers)
    rows = [row for _, row in islice(found, warm)]
    wait_for_others()
    begin = time.perf_counter()
    rows += [row for _, row in found]
    rate = (len(rows) - warm) / (time.perf_counter() - begin)
    return Timed(rate, np.concatenate(rows), peak_megabytes())


def peak_megabytes() -> float:
    """Return the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


# ---- processes that start at the same time -------------------------------------------------------


_barriers: list[Any] = []
"""In a process of `in_processes` the barrier that all of them wait at."""


def keep_barrier(barrier: Any) -> None:
    """Keep the barrier that all processes wait at."""
    _barriers.append(barrier)


def wait_for_others() -> None:
    """Wait until all processes of `in_processes` have come here."""
    _barriers[0].wait(SECONDS)


def in_processes(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return what a function returns for each of some arguments, in a process of one thread each."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(len(arguments))
    with (
        one_thread_each(),
        ProcessPoolExecutor(len(arguments), spawn, keep_barrier, (barrier,)) as processes,
    ):
        under_way = [processes.submit(function, *one) for one in arguments]
        return [future.result() for future in under_way]
