"""A bench for a program: it runs it in a loop and batched, by turns, and says how much faster that is.

Each result is compared with the loop's before a time counts. Gradients are part of a step where results
have any, and what the program leaves on its models is undone by who uses the bench.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import FunctionType
from typing import Any

import numpy as np
import optree

from multifold._measure.watched import ROUNDS, Clock, in_place_of
from multifold._measure.ways import MeasuredWay
from multifold.errors import MultifoldError, RecordError
from multifold.lazy.batching import Batched
from multifold.lazy.cells import cell_of
from multifold.lazy.comparing import differing

REPLAYED = (
    "Replayed: run.traces(examples) runs the code once, and run.replay(traces), timed here, in each epoch."
)

SECONDS = 3.0
"""A way that takes longer is measured less often."""

FEW = 4
"""So many examples show whether a function can be a cell."""


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
            raise RecordError(
                "none of its calls is recorded, since it begins with no common layer or cell."
            )
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
