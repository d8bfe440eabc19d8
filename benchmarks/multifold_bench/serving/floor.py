"""What a request takes without multifold: the framework's calls, the function that records, and receiving.

Whoever serves requests in shared launches pays these. They are measured one by one: a window of requests,
the calls that it makes of the framework, repeated in a bare loop, the function on a fold that runs nothing,
and a load whose requests are answered as soon as they are read.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, final

from multifold import Fold
from multifold._compare import machine
from multifold_bench.floors import OF_THE_FRAMEWORK, call_again, kept_calls
from multifold_bench.results import Row
from multifold_bench.serving.contenders import Answer, Service
from multifold_bench.serving.load import WARM, Load, serve
from multifold_bench.serving.workloads import Traffic

SIZES = (32, 256)
"""Requests of a window."""

AGAIN = 9
"""How often each part is measured, by turns."""


@final
class AtOnce(Service):
    """Answers each request at once, from the results of all examples.

    Attributes
    ----------
    spent : float
        Seconds of the core that the requests took which were no warm-up.
    """

    def __init__(self, workload: Traffic, answer: Answer, results: Sequence[Any]) -> None:
        super().__init__(workload, answer)
        self.results = {id(x): result for x, result in zip(workload.examples, results, strict=True)}
        self._count, self._began, self.spent = 0, 0.0, 0.0

    def submit(self, number: int, example: Any) -> None:
        """Answer a request."""
        self._count += 1
        if self._count == WARM + 1:
            self._began = time.process_time()
        self.answer([number], [self.results[id(example)]])

    def rows_a_launch(self) -> float:
        """Return 0: nothing is launched."""
        return 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.spent = time.process_time() - self._began


def measure_floor(workload: Traffic, load: Load, tell: Callable[[Row], object]) -> list[Row]:
    """Return a row for each size of a window, with microseconds of the core that a request takes."""
    backend, rows = workload.backend, []
    with backend.inference():
        results = [workload.loop(example) for example in workload.examples]
    receiving = cost_of_receiving(workload, load, results)
    for size in SIZES:
        examples = (workload.examples * (size // len(workload.examples) + 1))[:size]
        with backend.inference():
            found = {name: 1e6 * x / size for name, x in medians(parts_of(workload, examples)).items()}
        row: Row = {"command": "bench serve", "backend": backend.name, "workload": workload.name}
        row |= {"part": "floor", "size": size, **found, "receiving_us": receiving}
        row |= {"environment": machine.describe(backend)}
        tell(row)
        rows.append(row)
    return rows


def parts_of(workload: Traffic, examples: Sequence[Any]) -> dict[str, Callable[[], object]]:
    """Return what runs a window of requests, and what repeats parts of that."""
    model, fn = workload.model, workload.fn

    def run(seam: Any) -> Any:
        return Fold(backend=seam).run(model, examples, fn)

    calls, _ = kept_calls(workload.backend, OF_THE_FRAMEWORK, run)
    fold, recorder = Fold(backend=workload.backend), Fold(backend=workload.backend)
    parts: dict[str, Callable[[], object]] = {
        "window_us": lambda: workload.parted(fold.run(model, examples, fn)),
        "framework_us": lambda: call_again(calls),
    }
    if not inspect.iscoroutinefunction(fn):

        def record() -> None:
            recorder.reset()
            for example in examples:
                fn(recorder, example)

        parts["function_us"] = record
    return parts


def medians(parts: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median of the seconds that each part takes, measured by turns."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(AGAIN):
        for name, times in found.items():
            began = time.thread_time()
            parts[name]()
            times.append(time.thread_time() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def cost_of_receiving(workload: Traffic, load: Load, results: Sequence[Any]) -> float:
    """Return the microseconds of the core that it takes to read a request and to write its answer."""
    services: list[AtOnce] = []

    def make(workload: Traffic, answer: Answer) -> AtOnce:
        services.append(AtOnce(workload, answer, results))
        return services[-1]

    served = serve(workload, make, load, results)
    return 1e6 * services[0].spent / len(served.latencies)
