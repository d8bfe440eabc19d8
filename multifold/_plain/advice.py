"""Advice: what a program would gain by each way of running it, before anything is rewritten.

`advise` runs a program on some of its examples in the ways that need no change of it: the loop, the batched
program as it stands, and with some of its functions as cells. Each is measured. What calls of `Fold.add`
would gain is estimated from the calls and launches of the best of these.

Functions are worth trying as cells if they return arrays, and call neither themselves nor anything that
does: `compose` of a recursive model, and not its `encode`. One watched run of the loop finds them.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._plain.loop import Batched, examples_of
from multifold._plain.sharing import is_written_here
from multifold._run.reach import owners_of
from multifold._run.state import aside
from multifold.backend import Backend
from multifold.errors import BackendError, MultifoldError, RecordError

SPREAD = 1.35
"""A gain lies between the measured one divided by this and multiplied by it: less than twice apart."""

RECORDED = 3e-6
"""About how many seconds one call of `Fold.add` takes to record, to plan and to wire."""

LOOP = "one example at a time"

OF_BACKWARD = 1 / 2
"""The share of the backward pass that is left where the program records its calls itself."""

ROUNDS, SECONDS = 3, 3.0
"""So often each way is measured, or for so many seconds at most."""

WORTH = 1.05
"""So many times as fast a program has to be with a function as a cell, for that to be named."""

MOST_CELLS, LEAST_SHARE = 3, 0.05
"""So many functions are tried as cells, and only such that take this share of the loop's time."""

FRAMEWORKS = ("numpy", "torch")


class MeasuredWay(NamedTuple):
    """One way to run a program.

    Attributes
    ----------
    name : str
        What to write.
    calls, launches : int
        Recorded calls, and what they become; of the loop, none.
    seconds : float
        How long it takes, measured or estimated.
    low, high : float
        How many times as fast as the loop it is expected to be.
    """

    name: str
    calls: int
    launches: int
    seconds: float
    low: float
    high: float


class Advice:
    """What a program would gain by each way of running it; made by `advise`, shown as a table.

    Attributes
    ----------
    examples : int
        How many examples were run.
    trains : bool
        Whether times hold the gradients of all parameters.
    ways : list of MeasuredWay
        The loop first.
    ops : list of str
        The functions that are worth making cells of, by their qualified names.
    notes : list of str
        What else there is to know, a sentence each.
    """

    def __init__(
        self, examples: int, trains: bool, ways: list[MeasuredWay], ops: list[str], notes: list[str]
    ) -> None:
        self.examples = examples
        self.trains = trains
        self.ways = ways
        self.ops = ops
        self.notes = notes

    def __repr__(self) -> str:
        return f"<Advice on {self.examples} examples: {self.ways[-1].name}>"

    def __str__(self) -> str:
        head = ("", "calls", "launches", "ms", "times as fast")
        rows = [
            (
                way.name,
                f"{way.calls:,}" if way.calls else "",
                f"{way.launches:,}" if way.launches else "",
                f"{1e3 * way.seconds:,.1f}",
                f"{way.low:.1f} to {way.high:.1f}" if way.calls else "",
            )
            for way in self.ways
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (head, *rows)
        ]
        mode = "forward and backward" if self.trains else "forward"
        return "\n".join([f"{self.examples:,} examples, {mode}", "", *lines, "", *self.notes]).rstrip()


def advise(
    fn: Callable[..., Any],
    *iterables: Any,
    most: int = 64,
    train: bool | None = None,
    own: bool = False,
    backend: str | Backend | type[Backend] = "auto",
    advance: Callable[[str], object] = lambda way: None,
) -> Advice:
    """Say what a program would gain by batching, and which of its functions to make cells of.

    The program runs as it is, in a loop and batched, some times each; what it leaves on its model is put
    back. Nothing has to be rewritten for that.

    Parameters
    ----------
    fn : callable
        Takes one example: a function, a method, or a module of the framework.
    *iterables : iterable
        The examples: an iterable for each argument of ``fn``, as for `map`.
    most : int
        How many of the examples are run.
    train : bool, optional
        Whether the gradients of all parameters are part of what is measured; by default if a result
        has any.
    own : bool
        As of `batched`.
    backend : str or Backend
        NumPy or PyTorch; ``"auto"`` for that of ``fn`` and of what it uses.
    advance : callable
        Told what is measured next.

    Returns
    -------
    Advice
        ``print`` shows a table. Gains are ranges whose ends differ by a factor of less than two.

    Raises
    ------
    BackendError
        If the framework is another one, or is not found.
    RecordError
        If there are no examples.
    Exception
        What the program raises in the loop.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> weights = np.eye(300)
    >>> def join(left, right):
    ...     return np.tanh((left + right) @ weights)
    >>> def encode(tree):
    ...     return join(*map(encode, tree)) if isinstance(tree, tuple) else weights[tree]
    >>> advice = multifold.advise(encode, [((1, 2), (3, i)) for i in range(32)])
    >>> [way.name for way in advice.ways][:1]
    ['one example at a time']
    """
    examples = [*islice(examples_of(iterables), most)]
    notes: list[str] = []
    run = program(fn, (), backend, own)
    known = run.program.meet(*examples[0])
    if known.name not in FRAMEWORKS:
        raise BackendError(
            f"Expected a program of NumPy or PyTorch to advise on. Received one of {known.name}.",
            "make cells of its functions, and measure multifold.batched(fn, ops=[...]).",
        )
    models = owners_of(known, None, fn)
    with aside(known, models):
        advance(LOOP)
        with WatchedLoop(known) as watch:
            run.looped(examples, {})
        bench = AdviceBench(run, models, examples, train)
        ways: list[MeasuredWay] = []
        ops: list[FunctionType] = []
        for cell in (None, *watch.cells()):
            trial = run if cell is None else program(fn, (*ops, cell), known, own)
            name = "multifold.batched(fn)"
            if cell is not None:
                said = f"ops=[{cell.__qualname__}]"
                name = f"  with {said}" if ways else f"multifold.batched(fn, {said})"
            advance(name.strip())
            try:
                way = bench.measure(trial, name)
                backward = bench.backward
            except MultifoldError as error:
                notes.append(f"{name.strip()}: {error.message}")
                continue
            if not ways or way.low > WORTH * ways[-1].low:
                ways.append(way)
                run, rest = trial, backward
                ops += [] if cell is None else [cell]
    if ways and ways[-1].low < 1:
        notes += run.explain().slow
    if ways:
        ways.append(bench.by_hand(run, ways[-1], rest, watch.seconds_with_arrays()))
    loop = MeasuredWay(LOOP, 0, 0, bench.loop, 1.0, 1.0)
    return Advice(len(examples), bench.trains, [loop, *ways], [op.__qualname__ for op in ops], notes)


def program(
    fn: Callable[..., Any], ops: Sequence[Any], backend: str | Backend | type[Backend], own: bool
) -> Batched:
    """Return a batched program that returns the list of the loop."""
    return Batched(
        fn, ops=ops, join="list", backend=backend, device=None, own=own, seed=0, on_error="raise"
    )


class AdviceBench:
    """Measures ways to run a program on some examples, each by turns with the loop.

    Parameters
    ----------
    run : Batched
        The program.
    models : sequence
        What has its parameters.
    examples : sequence
        The arguments of each example.
    train : bool or None
        As of `advise`.

    Attributes
    ----------
    trains : bool
        Whether gradients are part of a step: known after the first one.
    loop : float
        Seconds of the loop: the median.
    backward : float
        Seconds of the backward pass of the last step.
    """

    def __init__(
        self, run: Batched, models: Sequence[Any], examples: Sequence[Any], train: bool | None
    ) -> None:
        self.run = run
        backend: Any = run.program.backend
        self.backend = backend
        self.models = [*models]
        self.examples = examples
        self.trains = train is not False and "kit" not in backend.gaps()
        self.nothing = backend.constant(np.zeros((), np.float32), None)
        self.backward = 0.0
        self.wanted = optree.tree_leaves(self.step(self.looped)[1])
        if train and not self.trains:
            raise RecordError("Expected results with gradients, for train=True. There are none.")
        self.loops = [self.step(self.looped)[0]]
        self.in_loop = self.backward

    @property
    def loop(self) -> float:
        """Seconds of the loop: the median."""
        return statistics.median(self.loops)

    def looped(self) -> list[Any]:
        """Return the results of the loop."""
        return self.run.looped(self.examples, {})[0]

    def step(self, compute: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
        """Run one step, forward and where it trains backward; return the seconds and the results."""
        kit = self.backend.kit if self.trains else None
        results: list[Any] = []
        ended = 0.0

        def total(models: Any) -> Any:
            nonlocal ended
            results.extend(compute())
            ended = perf_counter()
            if kit is None:
                return None
            parts = [x for x in optree.tree_leaves(results) if getattr(x, "requires_grad", False)]
            self.trains = bool(parts)
            return sum([kit.dot(x, np.ones(tuple(x.shape))) for x in parts], self.nothing)

        gc.collect()  # what the step before has left is none of this one
        began = perf_counter()
        if kit is None:
            with self.backend.inference():
                total(None)
        else:
            kit.value_and_grad(total, self.models)
        self.backend.synchronize()
        spent = perf_counter() - began
        self.backward = spent - (ended - began)
        return spent, results

    def measure(self, trial: Batched, name: str) -> MeasuredWay:
        """Return how fast a batched program is; refuse one that computes something else than the loop."""

        def batched() -> list[Any]:
            return trial.run(self.examples, {})[0]

        results = optree.tree_leaves(self.step(batched)[1])
        if not len(trial.fold or ()):
            raise RecordError("none of its calls is recorded, since it begins with no layer or cell.")
        if len(results) != len(self.wanted) or not all(map(trial.same, results, self.wanted)):
            raise RecordError(
                "it returns other values than the loop, as programs may that draw random numbers."
            )
        times: list[float] = []
        gains: list[float] = []
        while len(times) < ROUNDS and sum(times) < SECONDS:
            self.loops.append(self.step(self.looped)[0])
            times.append(self.step(batched)[0])
            gains.append(self.loops[-1] / times[-1])
        fold: Any = trial.fold
        gain = statistics.median(gains)
        seconds = statistics.median(times)
        return MeasuredWay(name, len(fold), len(trial.explain()), seconds, gain / SPREAD, gain * SPREAD)

    def by_hand(self, run: Batched, best: MeasuredWay, backward: float, with_arrays: float) -> MeasuredWay:
        """Return what calls of `Fold.add` are expected to take, given the best way and its backward pass.

        What the loop takes beside functions that return arrays, and beside gradients, stays as it is: the
        rules of a game, say. The loop was watched for ``with_arrays``, the seconds of these functions; that
        slows down the others.
        """
        explained = run.explain()
        launching = sum([explained.seconds.get(name, 0.0) for name in ("upload", "gather", "op")])
        alone = max(0.0, self.loop - self.in_loop - with_arrays)
        seconds = launching + alone + backward * OF_BACKWARD + RECORDED * best.calls
        gain = self.loop / seconds
        name = "fold.run, with await" if len(explained.rounds) > 1 else "fold.run, with calls of fold.add"
        return MeasuredWay(name, best.calls, best.launches, seconds, gain / SPREAD, gain * SPREAD)


class WatchedLoop:
    """Watches which functions of the user a program calls, for how long, and which call themselves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.stack: list[tuple[CodeType, float]] = []
        self.inside = [0.0]  # of what is on the stack, and of the whole: the seconds of what it has called
        self.active: Counter[CodeType] = Counter()
        self.seconds: defaultdict[CodeType, float] = defaultdict(float)
        self.own: defaultdict[CodeType, float] = defaultdict(float)
        self.returning: set[CodeType] = set()  # those that have returned an array
        self.callers: defaultdict[CodeType, set[CodeType | None]] = defaultdict(set)
        self.recursive: set[CodeType] = set()

    def __enter__(self) -> WatchedLoop:
        self.before = sys.getprofile()
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self.before)

    def see(self, frame: FrameType, event: str, result: Any) -> None:
        """Note that a function was called, or returns."""
        code = frame.f_code
        module = frame.f_globals.get("__name__") or ""
        if event not in ("call", "return") or code.co_name.startswith("<"):
            return
        if module.startswith("multifold") or not is_written_here(module):
            return
        if event == "call":
            self.callers[code].add(self.stack[-1][0] if self.stack else None)
            if self.active[code]:
                codes = [own for own, _ in self.stack]
                self.recursive.update(codes[codes.index(code) :])
            self.active[code] += 1
            self.stack.append((code, perf_counter()))
            self.inside.append(0.0)
        elif self.active[code]:
            _, began = self.stack.pop()
            spent = perf_counter() - began
            self.own[code] += spent - self.inside.pop()
            self.inside[-1] += spent
            self.active[code] -= 1
            if not self.active[code]:
                self.seconds[code] += spent
            if any(map(self.backend.owns, optree.tree_leaves(result))):
                self.returning.add(code)

    def cells(self) -> list[FunctionType]:
        """Return the functions that are worth trying as cells, those first that take longest."""
        found = self.candidates()
        functions = [x for code in found for x in gc.get_referrers(code) if type(x) is FunctionType]
        return functions[:MOST_CELLS]

    def seconds_with_arrays(self) -> float:
        """Return the seconds that were spent in functions that return arrays, and in what these call."""
        return self.total - sum([own for code, own in self.own.items() if code not in self.returning])

    @property
    def total(self) -> float:
        """The seconds of all that was watched."""
        return sum(self.seconds[code] for code, callers in self.callers.items() if None in callers)

    def candidates(self) -> list[CodeType]:
        """Return the code of functions that may be cells, those first that take longest."""
        looping = {*self.recursive}
        while more := {x for code in looping for x in self.callers[code] if x} - looping:
            looping |= more
        known = {
            code
            for code, callers in self.callers.items()
            if code not in looping and None not in callers and code in self.returning
        }
        return [
            code
            for code, seconds in sorted(self.seconds.items(), key=lambda pair: -pair[1])
            if code in known and not self.callers[code] <= known and seconds >= LEAST_SHARE * self.total
        ]
