"""What a pass measures, in the order of `BLOCKS`: each block is a function that yields rows.

Nearly all of it is one model, a binary Tree-LSTM over trees of 14 to 22 words, since there the host and the
device are closest: a launch takes a GPU tens of microseconds. Minibatches are new in each step unless a row
says otherwise, and all ways that share a minibatch must agree before a time is believed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np

import multifold
from multifold._measure.benchmark import Batch, Benchmark
from multifold._measure.contenders import Subject
from multifold._measure.results import Row
from multifold._measure.timing import Step
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold_bench import contenders, hand
from multifold_bench.contenders import InProcess
from multifold_bench.device import host
from multifold_bench.device.kernels import seen
from multifold_bench.device.running import Block, Lease, error_text
from multifold_bench.gates.search import two_outputs
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.greedy import GreedyParser, LightParser, judged, parse, parse_lightly
from multifold_bench.harness import Contender, Pace, Timing, measure
from multifold_bench.parser import leaves_of
from multifold_bench.programs import ByProgram
from multifold_bench.step import Counts
from multifold_bench.step import count as counted
from multifold_bench.workloads import WORKLOADS

SUITES = ("test_known_answers.py engine/plan/test_wiring.py test_behaviours.py", "engine/rounds")
"""The tests that run on the device, below `tests` of a checkout; in two processes."""


@dataclass(frozen=True)
class PassSizes:
    """How large everything is that a pass measures.

    Attributes
    ----------
    width, batch : int
        Of the Tree-LSTM.
    loop : int
        Examples that the loop gets where it is no reference: it needs the same time for each of them.
    rounds : int
        Minibatches of each comparison.
    rivals : int
        Fresh minibatches that a rival is shown.
    batches : tuple of int
        Of the pipelined steps.
    widths : tuple of int
        Over which folding is compared with the loop.
    rows : int
        Examples of the workloads of many types, and of those that await values.
    chains : tuple of int
        Launches of the chains whose copies are counted.
    compiler : str
        The backend of `torch.compile`.
    suites : tuple of str
        Which of `SUITES` run.
    """

    width: int = 300
    batch: int = 256
    loop: int = 16
    rounds: int = 15
    rivals: int = 30
    batches: tuple[int, ...] = (64, 256, 1024, 4096)
    widths: tuple[int, ...] = (64, 256, 1024, 2048)
    rows: int = 128
    chains: tuple[int, ...] = (10, 1000)
    compiler: str = "inductor"
    suites: tuple[str, ...] = SUITES


SMALL = PassSizes(
    width=8,
    batch=6,
    loop=2,
    rounds=2,
    rivals=3,
    batches=(4, 8),
    widths=(4, 8),
    rows=3,
    chains=(10, 30),
    compiler="eager",
    suites=("engine/plan/test_wiring.py",),
)
"""The sizes of a test on a CPU."""


def trees(width: int) -> Benchmark:
    """Return the Tree-LSTM over drawn trees."""
    workload = WORKLOADS["synthetic"]
    return workload.benchmark(workload.read(None, 0, lambda *_: None), width)


def subject_of(lease: Lease, benchmark: Benchmark, train: bool) -> Subject:
    """Return a benchmark with its model on the device."""
    backend = multifold.load_backend("torch")
    return Subject(benchmark, backend, benchmark.model().on(backend, lease.device), train)


def minibatches(lease: Lease, benchmark: Benchmark, batch: int) -> Iterator[Batch]:
    """Draw minibatches whose weights of the loss are on the device: they stand for labels."""
    import torch

    for minibatch in benchmark.minibatches(batch, seed=0):
        weights = torch.from_numpy(minibatch.weights.astype(np.float32)).to(lease.device)
        yield minibatch._replace(weights=weights)


def launched(contender: InProcess, prepared: Any) -> object:
    """Compute logits, or loss and gradients, and do not wait for the device."""
    _, backend, model, train = contender.subject
    payload, weights = prepared
    with contextlib.nullcontext() if train else backend.inference():
        if not train:
            return contender.forward(model, payload)
        kit = backend.kit
        return kit.value_and_grad(lambda model: kit.dot(contender.forward(model, payload), weights), model)


def timed(backend: Backend, step: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the median seconds until a step has returned, and until the device is done with it."""
    found = []
    for _ in range(times):
        backend.synchronize()
        began = time.perf_counter()
        step()
        returned = time.perf_counter()
        backend.synchronize()
        found.append((returned - began, time.perf_counter() - began))
    host, wall = zip(*found, strict=True)
    return statistics.median(host), statistics.median(wall)


def hand_ready(subject: Subject) -> Contender:
    """By hand, with index arrays that were brought to the device before."""
    program: Any = hand.find_module(subject.backend)
    width = subject.benchmark.width
    return InProcess(
        "hand-ready",
        subject,
        lambda model, payload: program.binary_ready(model, payload, width),
        lambda examples: program.ready(subject.model, examples),
    )


MAKERS = {**contenders.CONTENDERS, "hand-ready": hand_ready}
"""What makes the ways that are compared, by name."""


def times(timing: Timing, reference: Timing) -> Row:
    """Return what a row says of the times of a contender."""
    low, middle, high = timing.quartiles
    return {
        "contender": timing.name,
        "ms": 1e3 * middle,
        "quartiles_ms": [1e3 * low, 1e3 * high],
        "first_ms": 1e3 * timing.first,
        "rounds": len(timing.rounds),
        "ratio": timing.ratio(reference),
        "to": reference.name,
        "difference": timing.difference,
    }


def launches_of(name: str, counts: Counts) -> float:
    """Return in how many launches a contender runs a minibatch of trees."""
    if name == "loop":
        return counts.nodes
    return counts.lower_bound if name.startswith("hand") else counts.launches


def answers(lease: Lease) -> Iterator[Row]:
    """Run tests on the device, then chains of launches and a step: what is copied, and who waits."""
    for calls in lease.sizes.chains:
        yield {"what": "chain", "launches": calls, **tried(partial(chain, lease, calls))}
    subject = subject_of(lease, trees(lease.sizes.width), train=True)
    traced: Any = MAKERS["fold-traced"](subject)
    stream = minibatches(lease, subject.benchmark, lease.sizes.batch)
    for _ in range(3):  # the first launches of each op are tried, and trials read values
        launched(traced, traced.prepare(next(stream)))
    prepared = traced.prepare(next(stream))

    def step() -> Row:
        with errors_where_the_host_waits(lease):
            launched(traced, prepared)
        found = seen(partial(launched, traced, prepared))
        return {"copies_up": found.up, "copies_down": found.down, "waits": found.waits}

    yield {"what": "step", **tried(step)}
    if lease.checkout is not None:
        for names in lease.sizes.suites:
            yield {"what": "tests", "suite": names, **tests(lease, lease.checkout, names)}


def chain(lease: Lease, calls: int) -> Row:
    """Return what a chain of launches copies, and whether the host waits between the first and the last."""
    import torch

    weight = torch.eye(4, device=lease.device)
    waits = contextlib.ExitStack()

    def op(x: Any, *, number: int) -> Any:
        if number == 0:
            waits.enter_context(errors_where_the_host_waits(lease))
        elif number == calls - 1:
            waits.close()
        return x @ weight

    def run() -> None:
        fold = multifold.Fold(backend="torch", device=lease.device, trials=False)
        nodes = [fold.add(op, np.full((1, 4), row, np.float32), number=0) for row in range(3)]
        for number in range(1, calls):
            nodes = [fold.add(op, node, number=number) for node in nodes]
        fold([nodes])

    with waits:
        found = seen(run)
    return {"copies_up": found.up, "copies_down": found.down, "waits": found.waits}


def tried(measured: Callable[[], Row]) -> Row:
    """Return what is measured, or the error that it raises: others are measured all the same."""
    try:
        return measured()
    except Exception as error:  # noqa: BLE001 - the row has it
        return {"note": error_text(error.__cause__ or error)}


@contextlib.contextmanager
def errors_where_the_host_waits(lease: Lease) -> Iterator[None]:
    """Let PyTorch raise where the host waits for the GPU."""
    import torch

    if not lease.on_gpu:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def tests(lease: Lease, checkout: Path, names: str) -> Row:
    """Run tests of a checkout on the device; return pytest's last line, and what failed."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--backend", "torch", "--device", lease.device]
    command += [str(checkout / "tests" / name) for name in names.split()]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=max(1.0, lease.left - 2),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "not finished in the time of the block", "failed": [], "took": None}
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"outcome": lines[-1], "failed": failed[:5], "took": time.monotonic() - began}


def steps(lease: Lease) -> Iterator[Row]:
    """Compare the ways to take a step on the same trees, then look at each of them."""
    sizes = lease.sizes
    for train in (True, False):
        subject = subject_of(lease, trees(sizes.width), train)
        first = next(subject.benchmark.minibatches(sizes.batch, 0))
        counts = counted(subject.benchmark, subject.backend, [first])
        names = ("hand", "hand-ready", "hand-frontier", "fold", "fold-traced", "loop")
        made = [MAKERS[name](subject) for name in names]
        stream = minibatches(lease, subject.benchmark, sizes.batch)
        pace = Pace(sizes.rounds, warmup=1, seconds=lease.left / 16, least=1)
        found = measure(made, stream, pace, reference=made[0])
        for contender, timing in zip(made, found, strict=True):
            launches = launches_of(timing.name, counts)
            share = sizes.loop / sizes.batch if timing.name == "loop" else 1.0
            yield {
                "mode": "train" if train else "infer",
                "width": sizes.width,
                "batch": sizes.batch,
                "nodes": counts.nodes,
                "launches": launches,
                **times(timing, found[0]),
                **looked_at(lease, contender, next(stream), timing.median, launches, share),
            }


def looked_at(
    lease: Lease, contender: Any, minibatch: Batch, wall: float, launches: float, share: float
) -> Row:
    """Return what a step asks of the host, of the device and of its memory.

    ``wall`` is what it takes with no one looking. A loop is shown a ``share`` of the examples.
    """
    import torch

    kept = round(share * len(minibatch.examples))
    part = minibatch._replace(examples=minibatch.examples[:kept], weights=minibatch.weights[:kept])
    prepared = contender.prepare(part)
    step = partial(launched, contender, prepared)
    step()
    if lease.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    host, _ = timed(contender.subject.backend, step, 3)
    peak = torch.cuda.max_memory_allocated() if lease.on_gpu else None
    found = seen(step).row(wall * share)
    if found["kernels"] is not None:
        found["kernels"] /= share
    return {
        "host_ms": 1e3 * host / share,
        "host_us_a_launch": 1e6 * host / share / launches,
        "peak_mb": None if peak is None or share < 1 else peak / 1e6,
        **found,
    }


def floor(lease: Lease) -> Iterator[Row]:
    """Replay a step as one CUDA graph; and run its ops alone, without the rows between them."""
    sizes = lease.sizes
    for train in (True, False):
        mode = "train" if train else "infer"
        subject = subject_of(lease, trees(sizes.width), train)
        minibatch = next(minibatches(lease, subject.benchmark, sizes.batch))
        ready: Any = hand_ready(subject)
        prepared = ready.prepare(minibatch)
        ways: dict[str, Callable[[], object]] = {
            "hand-ready": partial(launched, ready, prepared),
            "ops alone": ops_alone(subject, minibatch),
        }
        for name, step in ways.items():
            row: Row = {"mode": mode, "width": sizes.width, "batch": sizes.batch, "contender": name}
            step()
            yield {**row, "graph": False, "ms": 1e3 * timed(subject.backend, step, sizes.rounds)[1]}
            if not lease.on_gpu:
                yield {**row, "graph": True, "ms": None, "note": "there are no CUDA graphs on a CPU"}
                continue
            yield {**row, "graph": True, **tried(partial(replayed, subject.backend, step, sizes.rounds))}


def ops_alone(subject: Subject, minibatch: Batch) -> Callable[[], object]:
    """Return what calls the ops of a minibatch on operands that lie there, and the gradients of each."""
    import torch
    from multifold_torch import TorchBackend

    calls: list[tuple[Any, list[Any], Any]] = []

    def keep(op: Any, operands: Sequence[Any], static: Any) -> Any:
        own = [x.detach().clone().requires_grad_(x.is_floating_point() and subject.train) for x in operands]
        calls.append((op, own, static))
        return op(*operands, **static)

    traces = [multifold.trace(subject.benchmark.record, example) for example in minibatch.examples]
    with torch.no_grad():
        multifold.Fold(backend=TorchBackend(compiler=keep), trials=False).run(subject.model, traces)
    parameters = list(subject.model.parameters())

    def run() -> None:
        for op, operands, static in calls:
            found = op(*operands, **static)
            if subject.train:
                results = found if isinstance(found, tuple) else (found,)
                read = [x for x in operands if x.requires_grad] + parameters
                torch.autograd.grad(results, read, [x.detach() for x in results], allow_unused=True)

    def forward() -> None:
        with torch.no_grad():
            run()

    return run if subject.train else forward


def replayed(backend: Backend, step: Callable[[], object], times: int) -> Row:
    """Return what a row says of a step that is replayed as a CUDA graph."""
    replay = captured(step)
    _, wall = timed(backend, replay, times)
    return {"ms": 1e3 * wall, **seen(replay).row(wall)}


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Return what replays a step as a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> object:
        graph.replay()
        return kept  # whose memory is the graph's

    return replay


def rival(name: str, lease: Lease) -> Iterator[Row]:
    """Show a rival fresh minibatches, beside batching by hand; what it compiles is in its first step."""
    sizes = lease.sizes
    subject = subject_of(lease, trees(sizes.width), train=True)
    row: Row = {"mode": "train", "width": sizes.width, "batch": sizes.batch, "contender": name}
    try:
        other = RIVALS[name](lease, subject)
    except BackendError as error:
        yield {**row, "ms": None, "note": error.message}
        return
    by_hand = MAKERS["hand"](subject)
    stream = minibatches(lease, subject.benchmark, sizes.batch)
    pace = Pace(sizes.rivals, warmup=0, seconds=lease.left / 2, least=2)
    reference, timing = measure([by_hand, other], stream, pace, reference=by_hand)
    all_steps = [timing.first, *timing.rounds.values()]
    yield {
        **row,
        **times(timing, reference),
        "contender": name,
        "all_steps_s": sum(all_steps),
        "slow_steps": sum(step > 3 * timing.median for step in all_steps),
        "hand_ms": 1e3 * reference.median,
    }


def hand_compiled(lease: Lease, subject: Subject) -> Contender:
    """By hand, with the cells under ``torch.compile(dynamic=True)``."""
    return with_cells("binary", lease, subject, dynamic=True)


def hand_reduced(lease: Lease, subject: Subject) -> Contender:
    """By hand, with the cells under ``mode="reduce-overhead"``, and rows padded to powers of two."""
    return with_cells("binary_padded", lease, subject, dynamic=False, mode="reduce-overhead")


def with_cells(program: str, lease: Lease, subject: Subject, **options: Any) -> Contender:
    """Return a program by hand whose cells are compiled."""
    import torch

    torch._dynamo.config.recompile_limit = 64  # beyond 8 sizes, a cell would run as it was written
    compiled = partial(torch.compile, backend=lease.sizes.compiler, **options)
    model = subject.model
    ops = {name: compiled(getattr(model, name)) for name in ("leaf", "children", "logits")}
    cells = SimpleNamespace(parameters=model.parameters, **ops)
    forward = getattr(hand.find_module(subject.backend), program)
    width = subject.benchmark.width

    def step(model: Any, examples: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # the results of the step before are read no more
        return forward(cells, examples, width)

    return InProcess("compiled", subject, step)


def fold_compiled(lease: Lease, subject: Subject) -> Contender:
    """Traces, by `multifold_torch.Compiler`."""
    from multifold_torch import Compiler, TorchBackend

    backend = TorchBackend(compiler=Compiler(backend=lease.sizes.compiler))
    made: Any = MAKERS["fold-traced"](subject._replace(backend=backend))
    return InProcess("fold, compiled", subject, made.forward, made.payload)


@final
class AsGraphs(Contender):
    """Programs, whose whole step is one CUDA graph for each form where the device has such graphs."""

    name = "fold, graphs"

    def __init__(self, lease: Lease, subject: Subject) -> None:
        from multifold_torch import ProgramStep

        self.subject = subject
        self.fold = multifold.Fold(backend=subject.backend)
        self.run = ProgramStep(subject.model, lambda logits, weights: (logits * weights).sum())

    def prepare(self, minibatch: Batch) -> Any:
        """Trace the examples."""
        traces = [multifold.trace(self.subject.benchmark.record, x) for x in minibatch.examples]
        return traces, minibatch.weights

    def step(self, prepared: Any) -> Step:
        """Lay the schedule out and run it, forward and backward, to the end."""
        _, backend, model, _ = self.subject
        traces, weights = prepared
        began = time.perf_counter()
        model.zero_grad()
        loss = self.run(self.fold.program(traces), weights)
        backend.synchronize()
        seconds = time.perf_counter() - began
        found = {f"the gradient of {name}": x.grad for name, x in model.named_parameters()}
        found = {"the loss": loss, **found}
        return Step(seconds, lambda: {name: backend.to_numpy(x) for name, x in found.items()})


def geometric(lease: Lease, subject: Subject) -> Contender:
    """PyTorch Geometric, level by level."""
    if importlib.util.find_spec("torch_geometric") is None:
        raise BackendError("torch_geometric is not installed")
    program = importlib.import_module("multifold_bench.hand.geometric").binary
    width = subject.benchmark.width
    return InProcess("geometric", subject, lambda model, examples: program(model, examples, width))


RIVALS: dict[str, Callable[[Lease, Subject], Contender]] = {
    "fold, graphs": AsGraphs,
    "fold, program": lambda lease, subject: MAKERS["fold-program"](subject),
    "hand, compiled": hand_compiled,
    "hand, reduce-overhead": hand_reduced,
    "fold, compiled": fold_compiled,
    "geometric": geometric,
}
"""By name."""


def pipelined(lease: Lease) -> Iterator[Row]:
    """Merge and plan the traces of the next step while the device works on this one, or after it."""
    sizes = lease.sizes
    subject = subject_of(lease, trees(sizes.width), train=True)
    traced: Any = MAKERS["fold-traced"](subject)
    parts = 2 * len(sizes.batches)
    for batch in sizes.batches:
        minibatch = next(minibatches(lease, subject.benchmark, 2 * batch))
        traces = traced.payload(minibatch.examples)
        rng = np.random.default_rng(0)

        def step() -> object:
            chosen = rng.choice(len(traces), batch, replace=False)  # noqa: B023 - run in this turn
            merged = multifold.merge([traces[i] for i in chosen])  # noqa: B023
            return launched(traced, (merged, minibatch.weights[:batch]))  # noqa: B023

        calls = sum(map(len, traces)) / 2
        for _ in range(3):
            step()
        found = seen(step)
        for way in ("waits", "pipelined"):
            parts -= 1
            wait = subject.backend.synchronize if way == "waits" else lambda: None
            wall = steady(subject.backend, step, wait, lease.left / (2 * parts + 2), 3 * sizes.rounds)
            row = {
                "mode": "train",
                "width": sizes.width,
                "batch": batch,
                "contender": way,
                "ms": 1e3 * wall,
            }
            yield {**row, "nodes_per_second": calls / wall, **found.row(wall)}


def steady(
    backend: Backend, step: Callable[[], object], wait: Callable[[], object], seconds: float, most: int
) -> float:
    """Return the seconds of a step among many; ``wait`` is called after each of them."""
    backend.synchronize()
    began = time.perf_counter()
    for done in count(1):
        step()
        wait()
        if done == most or time.perf_counter() - began > seconds:
            backend.synchronize()
            return (time.perf_counter() - began) / done
    raise AssertionError


def widths(lease: Lease) -> Iterator[Row]:
    """Compare traces with the loop, an example each, over widths and dtypes: inference."""
    import torch

    sizes = lease.sizes
    parts = 2 * len(sizes.widths)
    for dtype in (torch.float32, torch.bfloat16):
        for width in sizes.widths:
            subject = subject_of(lease, trees(width), train=False)
            subject.model.to(dtype)
            minibatch = next(minibatches(lease, subject.benchmark, sizes.batch))
            row: Row = {"mode": "infer", "width": width, "dtype": str(dtype).removeprefix("torch.")}
            seconds = lease.left / parts / 2
            parts -= 1
            for name, batch in (("fold-traced", sizes.batch), ("loop", sizes.loop)):
                contender: Any = MAKERS[name](subject)
                prepared = contender.prepare(minibatch._replace(examples=minibatch.examples[:batch]))
                step = partial(launched, contender, prepared)
                step()
                wait = subject.backend.synchronize
                wall = steady(subject.backend, step, wait, seconds, sizes.rounds)
                yield {**row, "contender": name, "batch": batch, "us_an_example": 1e6 * wall / batch}


def types(lease: Lease) -> Iterator[Row]:
    """Compare folding with the loop where there are many types of calls: training."""
    sizes = lease.sizes
    for name in ("query-plans", "typed-graphs"):
        workload = WORKLOADS[name]
        benchmark = workload.benchmark(workload.read(None, 0, lambda *_: None), sizes.width)
        subject = subject_of(lease, benchmark, train=True)
        batch = max(2, sizes.rows // 8)
        counts = counted(benchmark, subject.backend, [next(benchmark.minibatches(batch, 0))])
        made = [MAKERS[way](subject) for way in ("loop", "fold", "fold-traced")]
        stream = minibatches(lease, benchmark, batch)
        pace = Pace(sizes.rounds, warmup=1, seconds=lease.left / 20, least=1)
        found = measure(made, stream, pace, reference=made[0])
        facts = {"mode": "train", "workload": name, "width": sizes.width, "batch": batch}
        for timing in found:
            launches = counts.nodes if timing.name == "loop" else counts.launches
            yield {**facts, "nodes": counts.nodes, "launches": launches, **times(timing, found[0])}


def awaiting(lease: Lease) -> Iterator[Row]:
    """Run parsers and tree searches, which look at values in each round."""
    import torch

    sizes = lease.sizes
    rng = np.random.default_rng(0)
    sentences = [leaves_of(sentence_tree(rng)) for _ in range(4 * sizes.rows)]
    sentences = sorted(sentences, key=len)[-2 * sizes.rows :][: sizes.rows]
    programs: dict[str, tuple[Any, Sequence[Any], Any]] = {}
    for name, model, program in (
        ("parser", GreedyParser(vocabulary=WORDS, width=sizes.width, classes=CLASSES), parse),
        ("light parser", LightParser(WORDS, sizes.width, CLASSES), parse_lightly),
    ):
        programs[name] = model.on("torch", lease.device), sentences, judged(program)
    with torch.device(lease.device):
        search = two_outputs(sizes.rows)

    async def play(fold: Any, start: int) -> float:
        game = search.search(start)
        result = None
        while True:
            try:
                request = game.send(result)
            except StopIteration as stop:
                return float(stop.value)
            result = await fold.value(fold.add("evaluate", request))

    programs["tree search"] = search.model, range(min(64, sizes.rows)), play
    for name, (model, examples, fn) in programs.items():
        fold = multifold.Fold(backend="torch")

        def run() -> None:
            with torch.no_grad():
                fold.run(model, examples, fn)  # noqa: B023 - run in this turn

        run()
        rounds = len(fold.explain().rounds)
        _, wall = timed(multifold.load_backend("torch"), run, 3)
        down = seen(run).down
        yield {
            "workload": name,
            "width": sizes.width,
            "batch": len(examples),
            "rounds": rounds,
            "ms": 1e3 * wall,
            "rounds_per_second": rounds / wall,
            "copies_down_a_round": None if down is None else down / rounds,
        }


def with_jax(lease: Lease) -> Iterator[Row]:
    """Compare a program with a jitted scan by hand, on JAX: training."""
    sizes = lease.sizes
    row: Row = {"mode": "train", "width": sizes.width, "batch": sizes.batch}
    if importlib.util.find_spec("jax") is None:
        yield {**row, "ms": None, "note": "JAX is not installed"}
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch holds some of the memory
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")  # as PyTorch multiplies float32
    backend = multifold.load_backend("jax")
    benchmark = trees(sizes.width)
    subject = Subject(benchmark, backend, benchmark.model().on(backend), True)
    made = [MAKERS["hand"](subject), ByProgram(*subject)]
    pace = Pace(sizes.rounds, warmup=1, seconds=lease.left / 4, least=1)
    found = measure(made, benchmark.minibatches(sizes.batch, 0), pace, reference=made[0])
    for timing in found:
        yield {
            **row,
            **times(timing, found[0]),
            "jax": jax.__version__,
            "jax_device": jax.default_backend(),
        }


BLOCKS = [
    Block("answers", 40, answers),
    Block("steps", 75, steps),
    Block("floor", 25, floor),
    Block("rivals", 25, partial(rival, "fold, graphs")),
    Block("rivals", 10, partial(rival, "fold, program")),
    Block("rivals", 50, partial(rival, "hand, compiled")),
    Block("rivals", 50, partial(rival, "hand, reduce-overhead")),
    Block("rivals", 35, partial(rival, "fold, compiled")),
    Block("rivals", 10, partial(rival, "geometric")),
    Block("pipelined", 40, pipelined),
    Block("host", 10, host.rows),
    Block("widths", 20, widths),
    Block("types", 25, types),
    Block("await", 25, awaiting),
    Block("jax", 40, with_jax),
]
"""What a pass measures, the most valuable first: eight minutes in all."""
