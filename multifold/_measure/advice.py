"""Advice: what a program would gain by each way of running it, before anything is rewritten.

`advise` runs a program on some of its examples in the ways that need no change of it: the loop, the batched
program as it stands, and with some of its functions as cells; each of these replayed, too, if it reads no
computed value. All are measured, by turns with the loop. What calls of `Fold.add`
would take, with ``await`` where values are read, is put together from parts that are measured; see
`foretold`.

Functions are worth trying as cells if they return arrays, and call neither themselves nor anything that
does: `compose` of a recursive model, and not its `encode`. One watched run of the loop finds them.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from types import FunctionType
from typing import Any

import numpy as np
import optree

from multifold._engine.ops.reach import owners_of, reached
from multifold._engine.ops.state import aside
from multifold._measure.foretold import BY_HAND, by_hand
from multifold._measure.garbage import only_new_garbage
from multifold._measure.watched import ROUNDS, Clock, WatchedLoop, in_place_of
from multifold._measure.ways import Advice, MeasuredWay
from multifold.backend import Backend
from multifold.errors import BackendError, MultifoldError, RecordError
from multifold.lazy.batching import Batched, examples_of
from multifold.lazy.cells import cell_of
from multifold.lazy.comparing import differing
from multifold.lazy.function import LazyFunction

REPLAYED = (
    "Replayed: run.traces(examples) runs the code once, and run.replay(traces), timed here, in each epoch."
)

LOOP = "one example at a time"

SECONDS = 3.0
"""A way that takes longer is measured less often."""

FEW = 4
"""So many examples show whether a function can be a cell."""

FRAMEWORKS = ("numpy", "torch")


def advise(
    fn: Callable[..., Any],
    *iterables: Any,
    most: int = 64,
    train: bool | None = None,
    own: bool = False,
    backend: str | Backend | type[Backend] = "auto",
    advance: Callable[[str], object] = lambda way: None,
) -> Advice:
    """Measure what a program would gain by batching, and find which of its functions to record.

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
        Called with the name of the way that is measured next.

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
    known = LazyFunction(fn, (), backend).backend_for(*examples[0])
    if known.name not in FRAMEWORKS:
        raise BackendError(
            f"Expected a program of NumPy or PyTorch to advise on. Received one of {known.name}.",
            "make cells of its functions, and measure multifold.batched(fn, cells=[...]).",
        )
    models = models_of(known, fn)
    ways: list[MeasuredWay] = []
    notes: list[str] = []
    with aside(known, models), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        advance(LOOP)
        with WatchedLoop(known, fn) as watch:
            for example in examples:
                fn(*example)
        functions = watch.functions()
        with only_new_garbage():
            bench = AdviceBench(fn, own, known, models, examples, train)
            taken = bench.cells(functions)
            for cells in dict.fromkeys([None, tuple(taken) or None]):
                said = ", ".join([fn.__qualname__ for fn in cells or ()])
                name = f"multifold.batched(fn, cells=[{said}])" if cells else "multifold.batched(fn)"
                advance(name)
                try:
                    ways += bench.measure(cells, name)
                except MultifoldError as error:
                    notes.append(f"{name}: {error.message}")
            notes += bench.notes
            if taken:
                notes.append(f"cells=[{', '.join([fn.__qualname__ for fn in taken])}]")
            advance(BY_HAND)
            try:
                way, found = by_hand(bench, taken, watch)
                ways.append(way)
                notes += found
            except MultifoldError as error:
                notes.append(f"{BY_HAND} is not foretold: {error.message}")
    loop = MeasuredWay(LOOP, 0, 0, 1.0)
    names = [op.__qualname__ for op in taken]
    notes = [*dict.fromkeys(notes)]
    return Advice(len(examples), bench.trains, statistics.median(bench.loops), [loop, *ways], names, notes)


def models_of(backend: Backend, fn: Any) -> list[Any]:
    """Return the objects that have the parameters of the program ``fn``, and others that it may change.

    First come those that own ``fn``, as its model or the object of a method, then all models of the
    framework that it reaches by attributes, containers and functions.
    """
    owners = owners_of(backend, None, fn)
    known = {id(x) for x in owners}
    return owners + [x for x, _ in reached(backend, [fn]) if backend.hosts(x) and id(x) not in known]


class AdviceBench:
    """Measures ways to run a program on some examples, each in turn with the loop.

    Parameters
    ----------
    fn, own
        As of `advise`.
    backend : Backend
        The framework.
    models : sequence
        The objects that have the parameters; see `models_of`.
    examples : sequence
        A tuple of arguments for each example.
    train : bool or None
        As of `advise`.

    Attributes
    ----------
    trains : bool
        Whether gradients are part of a step: known after the first one.
    wanted : list
        The results of the loop, in which each example has random streams of its own.
    loops : list of float
        Seconds of each run of the loop.
    backward : float
        Seconds of the backward pass of the last step.
    notes : list of str
        Sentences on replaying: how to do it, or why it cannot be done.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        own: bool,
        backend: Any,
        models: Sequence[Any],
        examples: Sequence[Any],
        train: bool | None,
    ) -> None:
        self.fn = fn
        self.own = own
        self.backend = backend
        self.models = [*models]
        self.examples = examples
        self.trains = train is not False and "kit" not in backend.gaps()
        self.nothing = backend.constant(np.zeros((), np.float32), None)
        self.backward = 0.0
        self.notes: list[str] = []
        self.wanted = self.step(self.looped)[1]
        # What draws random numbers is compared with streams of its own for each example.
        self.draws = differing(backend, self.step(self.looped)[1], self.wanted) is not None
        self.seed = 0 if self.draws else None
        if self.draws:
            self.wanted = self.step(lambda: self.batched((), 0).looped(examples, {})[0])[1]
        if train and not self.trains:
            raise RecordError("Expected results with gradients, for train=True. There are none.")
        self.loops = [self.step(self.looped)[0]]

    def looped(self) -> list[Any]:
        """Run the program for one example after the other; return the results, in order."""
        return [self.fn(*example) for example in self.examples]

    def batched(
        self, cells: Sequence[Any] | None, seed: int | None, make: Callable[..., Batched] = Batched
    ) -> Batched:
        """Return a new batched program with these cells and seed, which returns a list of results.

        ``make`` makes it.
        """
        return make(
            self.fn,
            cells=cells,
            join="list",
            backend=self.backend,
            device=None,
            own=self.own,
            seed=seed,
            on_error="raise",
            may_loop=False,
            keep=False,
        )

    def step(self, compute: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
        """Run ``compute``, and the backward pass if ``trains``.

        Return the seconds of both, and the results. ``compute`` returns the results of examples. This
        method stores ``backward``, the seconds of the backward pass; and sets ``trains`` to False if no
        result has a gradient.
        """
        kit = self.backend.kit if self.trains else None
        results: list[Any] = []
        ended = 0.0

        def total(models: Any) -> Any:
            nonlocal ended
            results.extend(compute())
            ended = perf_counter()
            if kit is None:
                return None
            parts: defaultdict[tuple[int, ...], list[Any]] = defaultdict(list)
            for x in optree.tree_leaves(results):
                if getattr(x, "requires_grad", False):
                    parts[tuple(x.shape[1:])].append(x if x.shape else x[None])
            self.trains = bool(parts)
            joined = map(self.backend.concat, parts.values())
            return sum([kit.dot(x, np.ones(tuple(x.shape))) for x in joined], self.nothing)

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

    def check(self, cells: Sequence[Any] | None, count: int) -> Batched:
        """Run the first ``count`` examples batched, with these cells; return the batched program.

        Gradients are computed as in `step`. Raise a `RecordError` if nothing was recorded, or if a result
        differs from the loop's.
        """
        trial = self.batched(cells, self.seed)
        if self.draws:  # with streams of their own examples run one by one, which may hide a failure
            self.step(lambda: self.batched(cells, None).run(self.examples[:count], {})[0])
        results = self.step(lambda: trial.run(self.examples[:count], {})[0])[1]
        if not len(trial.fold or ()):
            raise RecordError("none of its calls is recorded, since it begins with no layer or cell.")
        self.compare(trial, results)
        return trial

    def compare(self, trial: Batched, results: Sequence[Any]) -> None:
        """Raise a `RecordError` if one of ``results`` differs from the loop's beyond rounding.

        ``results`` are those of the first examples, in order. ``trial`` is the program that has returned
        them.
        """
        if differing(self.backend, results, self.wanted[: len(results)]) is not None:
            raise RecordError(
                "it returns other values than the loop, as programs may that draw random numbers."
            )

    def rounds(
        self, cells: Sequence[Any] | None, start: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[float, float, Batched]]:
        """Run the loop and a batched program in turn; yield the seconds of both, and the program.

        ``cells`` are its cells, functions recorded as one call each time. ``start`` is called before each
        batched run. This happens 3 times, or until 3 seconds have passed.
        """
        trial = self.batched(cells, None)

        def compute() -> list[Any]:
            return trial.run(self.examples, {})[0]

        # The first run may compile, and is not timed.
        self.step(compute)
        began = perf_counter()
        for _ in range(ROUNDS):
            self.loops.append(self.step(self.looped)[0])
            start()
            yield self.loops[-1], self.step(compute)[0], trial
            if perf_counter() - began > SECONDS:
                return

    def measure(self, cells: Sequence[Any] | None, name: str) -> list[MeasuredWay]:
        """Measure the batched program with these cells, called ``name``; and replayed, if it can be.

        Return one or two ways. Raise a `RecordError` if it computes something else than the loop.
        """
        self.check(cells, len(self.examples))
        replay = self.replay_of(cells)
        gains: defaultdict[str, list[float]] = defaultdict(list)
        for loop, seconds, trial in self.rounds(cells):
            way = way_of(trial, name, 1.0)
            gains[name].append(loop / seconds)
            if replay is not None:
                gains[f"{name}, replayed"].append(loop / self.step(replay)[0])
        return [way._replace(name=name, gain=statistics.median(own)) for name, own in gains.items()]

    def replay_of(self, cells: Sequence[Any] | None) -> Callable[[], list[Any]] | None:
        """Return a function that replays traces of all examples; None if none can be made.

        The function returns the results of the examples. Either way a note is added.
        """
        run = self.batched(cells, None)
        made: list[Any] = []

        def first() -> list[Any]:
            made.extend(run.traces(*zip(*self.examples, strict=True)))
            return run.replay(made)

        try:
            results = self.step(first)[1]
            if not self.draws:
                self.compare(run, results)
        except MultifoldError as error:
            self.notes.append(f"run.replay: {error.message}")
            return None
        self.notes.append(REPLAYED)
        return lambda: run.replay(made)

    def cells(self, functions: Sequence[FunctionType]) -> dict[FunctionType, bool]:
        """Try functions as cells, recorded as one call each time; return those that can be.

        The result is function -> whether it takes rows, in the order of ``functions``. Rows are tried
        first, as ops of `Fold.add` take them.
        """
        found: dict[FunctionType, bool] = {}
        for fn in functions:
            # On rows first, as an op of `Fold.add` runs.
            for rows in (True, False):
                timed = Clock(self.backend).timed(fn, rows)
                cell = cell_of(timed, rows)
                with contextlib.suppress(Exception), in_place_of({fn: cell}):
                    # If it runs and was not recorded, it can't be a cell of one example either.
                    if self.check((), FEW).recorder.has_recorded(timed):
                        found[fn] = rows
                    break
        return found


def way_of(trial: Batched, name: str, gain: float) -> MeasuredWay:
    """Return a way called ``name``, with the numbers of calls and launches of the last run of ``trial``."""
    fold: Any = trial.fold
    return MeasuredWay(name, len(fold), len(trial.explain()), gain)
