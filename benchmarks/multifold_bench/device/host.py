"""What multifold asks of the host beyond the framework's own calls: microseconds a call and a launch.

Traces of trees are merged, planned, wired and launched by a backend that computes nothing: an array is the
number of its rows, and an op returns two of them. What is left is multifold's own. A call pays for being
merged, planned and wired, a launch for putting its operands together and looking at its result. The same is
done by PyTorch on the device ``meta``, which has shapes and no values, and on the device at hand; there the
phases are those of `Fold.explain`, of which ``gather`` and ``op`` are calls of the framework.
"""

# ruff: noqa: D102 - what a backend overrides is documented once, at Backend

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, final

import numpy as np

import multifold
from multifold._measure.results import Row
from multifold.backend import Backend
from multifold_bench.device.running import Lease
from multifold_bench.workloads import WORKLOADS

MOST_A_CALL = 0.5
MOST_A_LAUNCH = 10.0
"""Microseconds that a call and a launch may take of the host, beyond the framework's own calls."""

REPETITIONS = 15


class Count:
    """An array without values: how many rows it has."""

    __slots__ = ("rows", "shape")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.shape = (rows, 1)


count_of = functools.cache(Count)
rows_of = attrgetter("rows")


@final
class CountingBackend(Backend):
    """Computes nothing: puts together and cuts numbers of rows."""

    name: ClassVar[str] = "nothing"

    def owns(self, x: Any) -> bool:
        return type(x) is Count

    def signature(self, x: Any) -> Hashable:
        return ()

    def rows(self, x: Count) -> int:
        return x.rows

    def constant(self, values: np.ndarray, device: Any) -> Count:
        return count_of(len(values))

    def concat(self, xs: Sequence[Count]) -> Count:
        return count_of(sum(map(rows_of, xs)))

    def split(self, x: Count, sizes: Sequence[int]) -> Sequence[Count]:
        return list(map(count_of, sizes))

    def gather(self, x: Count, rows: Count) -> Count:
        return rows

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands)


def state(x: Count, *others: Count) -> tuple[Count, Count]:
    """Return a state ``(h, c)`` of as many rows as an operand has."""
    return x, x


NOTHING = {"leaf": state, "children": state, "logits": lambda h: h}
"""A model whose ops do nothing."""


def chain(fold: Any, calls: int) -> Any:
    """Record a chain: as many launches as calls, whatever the number of examples."""
    x = fold.add("leaf", 1).split(2)
    for _ in range(calls - 2):
        x = fold.add("children", *x, *x).split(2)
    return fold.add("logits", x[0])


def rows(lease: Lease) -> Iterator[Row]:
    """Yield what trees and chains take of the host, by the backend that computes them."""
    sizes = lease.sizes
    workload = WORKLOADS["synthetic"]
    benchmark = workload.benchmark(workload.read(None, 0, lambda *_: None), sizes.width)
    minibatch = next(benchmark.minibatches(sizes.batch, 0))
    trees = [multifold.trace(benchmark.record, example) for example in minibatch.examples]
    yield {"workload": "trees", "backend": "nothing", **asked(CountingBackend(), NOTHING, trees)}
    chains = [multifold.trace(chain, max(sizes.chains))] * 8
    yield {"workload": "chains", "backend": "nothing", **asked(CountingBackend(), NOTHING, chains)}
    for device in (lease.device, "meta"):
        model = benchmark.model().on("torch", device)
        yield {"workload": "trees", "backend": device, **asked("torch", model, trees)}


def asked(backend: Any, model: Any, traces: Sequence[Any]) -> Row:
    """Return the least that each part of a run takes, over some runs: the host may have other work.

    ``a_call_us`` is merging, planning and wiring; ``a_launch_us`` all else but the framework's calls.
    """
    fold = multifold.Fold(backend=backend, trials=False)
    found = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        minibatch = multifold.merge(traces)
        merged = time.perf_counter()
        fold.run(model, minibatch)
        ran = time.perf_counter()
        spent = fold.explain().seconds
        framework = spent["op"] + spent["gather"] if backend == "torch" else 0.0
        launch = ran - merged - spent["upload"] - framework
        found.append((merged - began, spent["upload"], launch, framework))
    merge, upload, launch, framework = map(min, zip(*found, strict=True))
    explained: Any = fold.explain()
    calls = len(explained.calls)
    launches = len(explained)
    return {
        "batch": len(traces),
        "calls": calls,
        "launches": launches,
        "framework_ms": 1e3 * framework,
        "a_call_us": 1e6 * merge / calls,
        "a_launch_us": 1e6 * (upload + launch) / launches,
        "own_ms": 1e3 * (merge + upload + launch),
        "allowed_ms": 1e-3 * (MOST_A_CALL * calls + MOST_A_LAUNCH * launches),
    }
