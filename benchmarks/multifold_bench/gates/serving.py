"""Gates (e) and (h): a server beside windows of whole requests, and what it holds after thousands of them.

Requests come at the times of a Poisson process, whether or not those before them were answered, and a
latency counts from when a request was due. A contender carries a rate if its 99th percentile is within
`DEADLINE`. Windows are what most people write: a thread takes waiting requests together, runs them as one
minibatch, and answers all when all are done. These are seconds on the clock, since waiting is the matter:
they need a machine that does nothing else.
"""

from __future__ import annotations

import ctypes
import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold.models import BinaryTreeLSTM, Model
from multifold_bench.gates.figures import Figure, Line, Numbers, Results, Step, ratio_of, share, timed
from multifold_bench.gates.parsers import light_parser, sure_sentences
from multifold_bench.gates.trees import classify, tree_of
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.greedy import classified, parse, parse_lightly
from multifold_bench.models import ShiftReduceParser
from multifold_bench.serving.rates import SHARE, highest_rate
from multifold_bench.serving.windows import WindowThread

WIDTH = 128

DEADLINE = 0.1
"""Seconds."""

WINDOWS = ((64, 0.005), (256, 0.0))
"""How many requests a window takes at most, and how many seconds the first of them waits for others."""


class ServedModel(NamedTuple):
    """What is served: a model of a framework, a function that records an example, and examples."""

    model: Any
    fn: Callable[[Any, Any], Any]
    examples: list[Any]


def traffic_of(name: str, backend: str, count: int) -> ServedModel:
    """Return what is served, by name."""
    if name == "trees":
        rng = np.random.default_rng(0)
        model: Model = BinaryTreeLSTM(WORDS, WIDTH, CLASSES)
        return ServedModel(model.on(backend), classify, [tree_of(sentence_tree(rng)) for _ in range(count)])
    if name == "parser":
        model = ShiftReduceParser(WORDS, WIDTH, CLASSES)
        return ServedModel(model.on(backend), classified(parse), sure_sentences(model, parse, count))
    model = light_parser()
    examples = sure_sentences(model, parse_lightly, count)
    return ServedModel(model.on(backend), classified(parse_lightly), examples)


class WindowedServer:
    """Serves windows of whole requests while its ``with`` block lasts."""

    def __init__(self, traffic: ServedModel, most: int, wait: float) -> None:
        self.traffic = traffic
        self._fold = multifold.Fold(backend="torch")
        self._windows = WindowThread(self._serve, most, wait)

    def submit(self, example: Any) -> Future[Any]:
        """Take a request."""
        future: Future[Any] = Future()
        self._windows.put((example, future))
        return future

    def _serve(self, window: list[tuple[Any, Future[Any]]]) -> None:
        import torch

        examples = [example for example, _ in window]
        try:
            with torch.no_grad():
                rows = self._fold.run(self.traffic.model, examples, self.traffic.fn).numpy()
        except Exception as error:  # noqa: BLE001 - who waits for a request raises it
            for _, future in window:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return
        for row, (_, future) in zip(rows, window, strict=True):
            if future.set_running_or_notify_cancel():
                future.set_result(row[None])

    def __enter__(self) -> WindowedServer:
        self._windows.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._windows.stop()


def server_of(traffic: ServedModel, backend: str = "torch") -> Any:
    """Return the server, whose ``with`` block serves."""
    return multifold.Server(traffic.model, traffic.fn, backend=backend, queue=1_000_000)


def served(contender: Any, examples: Iterable[Any], most: Callable[[], int] = lambda: 64) -> np.ndarray:
    """Serve examples with at most so many under way; return the sum of their results."""
    total = np.zeros((1, CLASSES))
    under_way: deque[Future[Any]] = deque()
    for example in examples:
        while len(under_way) >= most():
            total += under_way.popleft().result(60)
        under_way.append(contender.submit(example))
    return total + sum(future.result(60) for future in under_way)


def p99_of(
    contender: Any, examples: Sequence[Any], rate: float, seconds: float, seed: int, *, stubborn: bool
) -> float:
    """Return the 99th percentile of the seconds that requests take which come at some rate.

    Unless it is stubborn it gives up, and returns infinity, as soon as the deadline is lost.
    """
    rng = random.Random(seed)
    times = [rng.expovariate(rate)]
    while times[-1] < seconds:
        times.append(times[-1] + rng.expovariate(rate))
    latencies = [float("inf")] * len(times)
    late: list[int] = []

    def answered(number: int, due: float, future: Future[Any]) -> None:
        if not future.cancelled():
            latencies[number] = time.monotonic() - due
            if latencies[number] > DEADLINE:
                late.append(number)

    gc.collect()
    gc.freeze()  # as services do once they are warm
    with contender:
        served(contender, examples[:64])
        futures = []
        start = time.monotonic()
        for number, due in enumerate(times):
            time.sleep(max(0.0, start + due - time.monotonic()))
            future = contender.submit(rng.choice(examples))
            future.add_done_callback(partial(answered, number, start + due))
            futures.append(future)
            if not stubborn and len(late) > 0.02 * len(times):
                for future in futures:
                    future.cancel()
                return float("inf")
        for future in futures:
            future.result(60)
    # The first tenth meets an idle server.
    return float(np.quantile(latencies[len(latencies) // 10 :], 0.99, method="higher"))


def contest_step(name: str, quick: bool) -> Step:
    """Return what finds the rates of the server and of windows, and their latencies at one rate."""
    traffic = traffic_of(name, "torch", 64 if quick else 256)
    seconds = 0.3 if quick else 1.5
    contenders: dict[str, Callable[[], Any]] = {"server": partial(server_of, traffic)}
    for most, wait in WINDOWS[: 1 if quick else None]:
        contenders[f"windows of {most}"] = partial(WindowedServer, traffic, most, wait)

    def p99(contender: str, rate: float, seed: int, stubborn: bool = False) -> float:
        made = contenders[contender]()
        return p99_of(made, traffic.examples, rate, seconds, seed, stubborn=stubborn)

    def carries(seed: int, contender: str, rate: float) -> bool:
        return p99(contender, rate, seed) <= DEADLINE

    def step(number: int) -> tuple[Numbers, Results]:
        rates: dict[str, float] = {}
        latencies: dict[str, float] = {}
        for contender in contenders:
            start = max(rates.values(), default=200.0)
            rates[contender] = highest_rate(partial(carries, number, contender), start)
        rate = SHARE * max(rate for contender, rate in rates.items() if contender != "server")
        for contender in contenders:
            latencies[contender] = float(
                np.median([p99(contender, rate, 100 + i, stubborn=True) for i in range(3)])
            )
        found = {
            "rate of the server": rates.pop("server"),
            "rate of windows": max(rates.values()),
            "p99 of the server": latencies.pop("server"),
            "p99 of windows": min(latencies.values()),
        }
        results = {}
        for contender in ("server", f"windows of {WINDOWS[0][0]}"):
            with contenders[contender]() as service:
                served(service, traffic.examples[:64])
                name = contender.partition(" ")[0]
                seconds, total = timed(partial(served, service, 4 * traffic.examples))
            found[name] = seconds / (4 * len(traffic.examples))
            results[name] = {"total": total}
        return found, results

    return step


def contest(name: str, rate: float, latency: float | None) -> Figure:
    """Return a figure of gate (e)."""
    lines = (
        Line(
            "rate / windows",
            lambda found: ratio_of(found["rate of the server"], found["rate of windows"]),
            least=rate,
        ),
        share("p99 of the server", "p99 of windows", most=latency),
        Line("rate of the server", lambda found: found["rate of the server"], "requests/s"),
        Line("the processor for a request", lambda found: 1e3 * found["server"], "ms"),
        share("server", "windows"),
    )
    step = partial(contest_step, name)
    return Figure("e", f"serving, {name}", "torch", step, lines, repetitions=3, quickly=1, warms=0)


def long_step(quick: bool) -> Step:
    """Return what serves thousands of requests, 64 under way, and looks now and then what is held.

    It looks when a request begins, so others are under way then.
    """
    import torch

    traffic = traffic_of("light parser", "torch", 64)
    requests = 500 if quick else 5000
    look = requests // 50
    trim = ctypes.CDLL(None).malloc_trim
    begun: list[Any] = []
    samples: list[tuple[int, int, int]] = []

    async def watched(fold: Any, words: Sequence[int]) -> Any:
        begun.append(None)
        if len(begun) % look == 0:
            objects = gc.get_objects()
            rows = sum(len(x) for x in objects if isinstance(x, torch.Tensor) and x.ndim)
            trim(0)  # give back what was freed: else the most that was ever held counts
            samples.append((rows, len(objects), resident()))
        return await traffic.fn(fold, words)

    def step(number: int) -> tuple[Numbers, Results]:
        examples = [traffic.examples[place % len(traffic.examples)] for place in range(requests)]
        with server_of(traffic._replace(fn=watched)) as server:
            total = served(server, examples)
        # The first fifth warms up.
        early = np.median(samples[10:20], axis=0)
        late = np.median(samples[-10:], axis=0)
        found = {"rows": late[0] / max(early[0], 1), "objects": late[1] / early[1]}
        found |= {"memory": late[2] / early[2], "bytes": late[2]}
        return {name: float(x) for name, x in found.items()}, {"server": {"total": total}}

    return step


def resident() -> int:
    """Return the bytes that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("Expected a line VmRSS in /proc/self/status. There is none.")


LONG = Figure(
    "h",
    "5,000 requests of a server",
    "torch",
    long_step,
    (
        Line("live rows, last by first", lambda found: found["rows"], most=1.1),
        Line("live objects, last by first", lambda found: found["objects"], most=1.1),
        Line("memory, last by first", lambda found: found["memory"], most=1.02),
        Line("memory", lambda found: found["bytes"] / 2**20, "MiB"),
    ),
    repetitions=1,
    quickly=1,
    warms=0,
)
"""Gate (h)."""

FIGURES = [contest("parser", 1.10, 0.75), contest("trees", 0.9, None), LONG]
