"""Advice: what a program would gain by each way of running it, before anything is rewritten.

`advise` runs a program on some of its examples in the ways that need no change of it: the loop, the batched
program as it stands, and with the functions as cells that the explanation of that run names. Each is
measured. What calls of `Fold.add` would gain is estimated from the calls and launches of the best of these.

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
"""A gain is said to lie between the measured one divided by this number, and multiplied by it."""

RECORDED = 2e-6
"""Seconds that one call of `Fold.add` takes to record and to plan."""

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
    run.values_for(examples, {})
    known: Any = run.known
    if known.name not in FRAMEWORKS:
        raise BackendError(
            f"Expected a program of NumPy or PyTorch to advise on. Received one of {known.name}.",
            "make cells of its functions, and measure multifold.batched(fn, ops=[...]).",
        )
    models = owners_of(known, None, fn)
    with aside(known, models):
        step = TimedStep(known, models, train)
        advance("one example at a time")
        with WatchedLoop(known) as watch:
            run.looped(examples, {})
        loop, wanted = step.measure(lambda: run.looped(examples, {})[0])
        outside = (loop - step.backward) * watch.share_outside()
        ways = [MeasuredWay("one example at a time", 0, 0, loop, 1.0, 1.0)]
        ops: list[FunctionType] = []
        found = measured(step, run, "multifold.batched(fn)", examples, loop, wanted, advance, notes)
        if found is not None:
            ways.append(found)
        for cell in watch.cells() if found is not None else ():
            other = program(fn, (*ops, cell), known, own)
            name = f"{'  and' if ops else '  with'} ops=[{cell.__qualname__}]"
            better = measured(step, other, name, examples, loop, wanted, advance, notes)
            if better is not None and better.seconds * WORTH < ways[-1].seconds:
                ops.append(cell)
                ways.append(better)
                run = other
    if len(ways) > 1:
        ways.append(by_hand(run, ways[-1], loop, step.backward + outside / 2))
    return Advice(len(examples), step.trains, ways, [op.__qualname__ for op in ops], notes)


def program(
    fn: Callable[..., Any], ops: Sequence[Any], backend: str | Backend | type[Backend], own: bool
) -> Batched:
    """Return a batched program that returns the list of the loop."""
    return Batched(
        fn, ops=ops, join="list", backend=backend, device=None, own=own, seed=0, on_error="raise"
    )


class TimedStep:
    """Runs a program once, forward and where it trains backward, and says how long that took.

    Attributes
    ----------
    trains : bool
        Whether gradients are part of a step: known after the first one.
    backward : float
        Seconds of the backward pass of the last step.
    """

    def __init__(self, backend: Backend, models: Sequence[Any], train: bool | None) -> None:
        self.backend = backend
        self.models = [*models]
        self.trains = train is not False and "kit" not in backend.gaps()
        self.asked = bool(train)
        self.nothing = backend.constant(np.zeros((), np.float32), None)
        self.backward = 0.0

    def once(self, compute: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
        """Run it once; return the seconds and the results."""
        kit = self.backend.kit if self.trains else None
        results: list[Any] = []
        ended = 0.0

        def total(models: Any) -> Any:
            nonlocal ended
            results.extend(compute())
            ended = perf_counter()
            if kit is None:
                return None
            parts = [x for x in optree.tree_leaves(results) if self.has_gradient(x)]
            if not parts and self.asked:
                raise RecordError("Expected results with gradients, for train=True. There are none.")
            self.trains = bool(parts)
            return sum([kit.dot(x, np.ones(tuple(x.shape))) for x in parts], self.nothing)

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

    def has_gradient(self, x: Any) -> bool:
        """Return whether a gradient flows to a result."""
        return self.backend.owns(x) and bool(getattr(x, "requires_grad", False))

    def measure(self, compute: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
        """Run it some times after a first one; return the median of the seconds, and the results."""
        _, results = self.once(compute)
        times: list[float] = []
        while len(times) < ROUNDS and sum(times) < SECONDS:
            times.append(self.once(compute)[0])
        return statistics.median(times), results


def measured(
    step: TimedStep,
    run: Batched,
    name: str,
    examples: Sequence[Any],
    loop: float,
    wanted: Sequence[Any],
    advance: Callable[[str], object],
    notes: list[str],
) -> MeasuredWay | None:
    """Return how a batched program ran; None, and a note, if it cannot or computes something else."""
    advance(name)
    try:
        seconds, results = step.measure(lambda: run.run(examples, {})[0])
    except MultifoldError as error:
        notes.append(f"{name.strip()} does not run: {error.message}")
        return None
    pairs = zip(optree.tree_leaves(results), optree.tree_leaves([*wanted]), strict=False)
    if not all(run.same(one, other) for one, other in pairs):
        notes.append(
            f"{name.strip()} returns other values than the loop, as programs that draw random numbers may."
        )
        return None
    explained = run.explain()
    fold: Any = run.fold
    gain = loop / seconds
    return MeasuredWay(name, len(fold), len(explained), seconds, gain / SPREAD, gain * SPREAD)


class WatchedLoop:
    """Watches which functions of the user a program calls, for how long, and which call themselves."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.stack: list[tuple[CodeType, float]] = []
        self.active: Counter[CodeType] = Counter()
        self.seconds: defaultdict[CodeType, float] = defaultdict(float)
        self.returning: Counter[CodeType] = Counter()
        self.callers: defaultdict[CodeType, set[CodeType | None]] = defaultdict(set)
        self.recursive: set[CodeType] = set()

    def __enter__(self) -> WatchedLoop:
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def see(self, frame: FrameType, event: str, result: Any) -> None:
        """Note that a function was called, or returns."""
        code = frame.f_code
        module = frame.f_globals.get("__name__", "")
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
        elif self.active[code]:
            _, began = self.stack.pop()
            self.active[code] -= 1
            if not self.active[code]:
                self.seconds[code] += perf_counter() - began
            self.returning[code] += any(map(self.backend.owns, optree.tree_leaves(result)))

    def cells(self) -> list[FunctionType]:
        """Return the functions that are worth trying as cells, those first that take longest."""
        found = self.candidates()
        functions = [x for code in found for x in gc.get_referrers(code) if type(x) is FunctionType]
        return functions[:MOST_CELLS]

    def share_outside(self) -> float:
        """Return the share of the time that is spent outside of functions that may be cells."""
        return 1 - sum(self.seconds[code] for code in self.candidates()) / max(self.total, 1e-9)

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
            if code not in looping and None not in callers and self.returning[code]
        }
        return [
            code
            for code, seconds in sorted(self.seconds.items(), key=lambda pair: -pair[1])
            if code in known and not self.callers[code] <= known and seconds >= LEAST_SHARE * self.total
        ]


def by_hand(run: Batched, best: MeasuredWay, loop: float, rest: float) -> MeasuredWay:
    """Return what calls of `Fold.add` of the same cells are expected to take, beside the rest of a step."""
    explained = run.explain()
    phases = explained.seconds
    launching = sum(phases.get(name, 0.0) for name in ("upload", "gather", "op"))
    seconds = launching + rest + RECORDED * best.calls
    gain = loop / seconds
    name = "fold.run, with calls of fold.add" if not is_waiting(explained) else "fold.run, with await"
    return MeasuredWay(name, best.calls, best.launches, seconds, gain / SPREAD, gain * SPREAD)


def is_waiting(explained: Any) -> bool:
    """Return whether the program reads values."""
    return len(explained.rounds) > 1
