"""Advice: what a program would gain by each way of running it, before anything is rewritten.

`advise` runs a program on some of its examples in the ways that need no change of it: the loop, the batched
program as it stands, and with some of its functions as cells; each of these replayed, too, if it reads no
computed value. All are measured, by turns with the loop. What calls of `Fold.add`
would take is put together from parts that are measured, too:

- its launches: those of the batched program, whose cells run on rows where they can, as ops do;
- recording: as many calls of `Fold.add`;
- the backward pass of the batched program;
- the program's own code: a loop in which each cell returns at once what it has returned before, without
  what it asks of the framework.

Functions are worth trying as cells if they return arrays, and call neither themselves nor anything that
does: `compose` of a recursive model, and not its `encode`. One watched run of the loop finds them.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.ops.reach import owners_of, reached
from multifold._engine.ops.state import aside
from multifold._measure.garbage import only_new_garbage
from multifold._measure.watched import ROUNDS, Clock, OwnCode, WatchedLoop, in_place_of, shortest
from multifold.backend import Backend
from multifold.errors import BackendError, MultifoldError, RecordError
from multifold.fold import Fold
from multifold.lazy.batching import Batched, examples_of
from multifold.lazy.cells import cell_of
from multifold.lazy.comparing import differing
from multifold.lazy.function import LazyFunction

SPREAD = 1.4
"""A gain lies between the measured one divided by this and multiplied by it: less than twice apart."""

REPLAYED = (
    "Replayed: run.traces(examples) runs the code once, and run.replay(traces), timed here, in each epoch."
)

LOOP, BY_HAND = "one example at a time", "fold.run, with calls of fold.add"

SECONDS = 3.0
"""A way that takes longer is measured less often."""

FEW = 4
"""So many examples show whether a function can be a cell."""

MOST_NAMED = 6
"""So many ops to record are named, those with most calls."""

FRAMEWORKS = ("numpy", "torch")

PHASES = ("plan", "wiring", "upload", "gather", "op")
"""What a run of calls takes, whoever has recorded them."""


class MeasuredWay(NamedTuple):
    """One way to run a program, and how fast it is.

    Attributes
    ----------
    name : str
        What to write for it, as ``"multifold.batched(fn)"``.
    calls, launches : int
        How many calls it records, and in how many launches these run; 0 for the loop.
    gain : float
        How many times as fast as the loop it was, measured in turn with it, or estimated.
    """

    name: str
    calls: int
    launches: int
    gain: float

    @property
    def low(self) -> float:
        """The least number of times as fast as the loop that is expected: ``gain / 1.4``."""
        return self.gain / SPREAD

    @property
    def high(self) -> float:
        """The largest number of times as fast as the loop that is expected: ``gain * 1.4``."""
        return self.gain * SPREAD


class Advice:
    """What a program would gain by each way of running it; `advise` makes it, and ``print`` shows a table.

    Attributes
    ----------
    examples : int
        How many examples were run.
    trains : bool
        Whether times hold the gradients of all parameters.
    loop : float
        The median of the loop's seconds. The time of another way is this divided by its gain.
    ways : list of MeasuredWay
        All ways that were measured, the loop first.
    ops : list of str
        The functions to record, by their qualified names: ops of `Fold.add`, or cells.
    notes : list of str
        What else there is to know, a sentence each.
    """

    def __init__(
        self,
        examples: int,
        trains: bool,
        loop: float,
        ways: list[MeasuredWay],
        ops: list[str],
        notes: list[str],
    ) -> None:
        self.examples = examples
        self.trains = trains
        self.loop = loop
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
                rounded(1e3 * self.loop / way.gain),
                f"{rounded(way.low)} to {rounded(way.high)}" if way.calls else "",
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


def rounded(x: float) -> str:
    """Return a number with one decimal, or with two below 1.

    Examples
    --------
    >>> rounded(1234.56), rounded(0.0712)
    ('1,234.6', '0.07')
    """
    return f"{x:,.1f}" if x >= 1 else f"{x:.2f}"


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
            for cells in dict.fromkeys([(), tuple(taken)]):
                said = ", ".join([op.__qualname__ for op in cells])
                name = f"multifold.batched(fn, cells=[{said}])" if cells else "multifold.batched(fn)"
                advance(name)
                try:
                    ways += bench.measure(cells, name)
                except MultifoldError as error:
                    notes.append(f"{name}: {error.message}")
            notes += bench.notes
            advance(BY_HAND)
            try:
                way, found = bench.by_hand(taken, watch.is_of_program)
                ways.append(way)
                notes += found
            except MultifoldError as error:
                if taken:
                    notes.append(f"{BY_HAND}: {error.message}")
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
        self.wanted = self.step(lambda: self.batched((), 0).looped(examples, {})[0])[1]
        if train and not self.trains:
            raise RecordError("Expected results with gradients, for train=True. There are none.")
        self.loops = [self.step(self.looped)[0]]

    def looped(self) -> list[Any]:
        """Run the program for one example after the other; return the results, in order."""
        return [self.fn(*example) for example in self.examples]

    def batched(self, cells: Sequence[Any], seed: int | None) -> Batched:
        """Return a new batched program with these cells and seed, which returns a list of results."""
        return Batched(
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

    def check(self, cells: Sequence[Any], count: int) -> Batched:
        """Run the first ``count`` examples batched, with these cells; return the batched program.

        Gradients are computed as in `step`. Raise a `RecordError` if nothing was recorded, or if a result
        differs from the loop's.
        """
        trial = self.batched(cells, 0)
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
        self, cells: Sequence[Any], start: Callable[[], None] = lambda: None
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

    def measure(self, cells: Sequence[Any], name: str) -> list[MeasuredWay]:
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

    def replay_of(self, cells: Sequence[Any]) -> Callable[[], list[Any]] | None:
        """Return a function that replays traces of all examples; None if none can be made.

        The function returns the results of the examples. Either way a note is added.
        """
        run = self.batched(cells, 0)
        made: list[Any] = []

        def first() -> list[Any]:
            made.extend(run.traces(*zip(*self.examples, strict=True)))
            return run.replay(made)

        try:
            self.compare(run, self.step(first)[1])
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

    def by_hand(
        self, taken: dict[FunctionType, bool], is_own: Callable[[str], bool]
    ) -> tuple[MeasuredWay, list[str]]:
        """Estimate the way with calls of `Fold.add` for some functions; return it, and notes on it.

        ``taken`` is what `cells` returned. ``is_own`` says whether a module, by its name, is code of the
        program.
        """
        launching: list[float] = []
        names = {fn.__name__ for fn in taken}
        clock = Clock(self.backend)
        with in_place_of({fn: cell_of(clock.timed(fn, rows), rows) for fn, rows in taken.items()}):
            self.check((), len(self.examples))
            for _, _, trial in self.rounds((), clock.start):
                explained = trial.explain()
                found = sum([explained.seconds.get(phase, 0.0) for phase in PHASES]) + clock.seconds
                ops = [op for part in explained.rounds for op in part.ops if op.name in names]
                # The clock has timed the functions alone. What cells take around them is left out, since
                # ops of `Fold.add` have none of it.
                launching.append(self.backward + found - sum([op.seconds or 0.0 for op in ops]))
        own = self.own_code([*taken], is_own)
        seconds = min(launching) + own + self.recording(len(trial.fold or ()))
        way = way_of(trial, BY_HAND, min(self.loops) / seconds)
        return way, notes_on(way, explained, 1 - own / statistics.median(self.loops))

    def recording(self, calls: int) -> float:
        """Return the fewest seconds, of 3 tries, in which ``calls`` calls of `Fold.add` were recorded."""

        def record() -> None:
            fold = Fold(backend=self.backend)
            h, c = fold.add("start").split(2)
            for _ in range(calls):
                h, c = fold.add("step", h, c).split(2)

        return shortest(record)

    def own_code(self, functions: Sequence[FunctionType], is_own: Callable[[str], bool]) -> float:
        """Return the seconds that the loop spends in the program's own code.

        The time in ``functions`` and in the framework is left out. ``is_own`` says whether a module, by its
        name, is code of the program.
        """
        kept: dict[FunctionType, list[Any]] = {fn: [] for fn in functions}

        def keep(fn: FunctionType) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                kept[fn].append(fn(*args, **kwargs))
                return kept[fn][-1]

            return call

        def repeat(fn: FunctionType) -> Callable[..., Any]:
            following = iter(kept[fn])
            # If it is called more often than before, it gets the last result again.
            return lambda *args, **kwargs: next(following, *kept[fn][-1:])

        with contextlib.nullcontext() if self.trains else self.backend.inference():
            with in_place_of({fn: keep(fn) for fn in functions}):
                self.looped()
            found = []
            for _ in range(ROUNDS):
                with in_place_of({fn: repeat(fn) for fn in functions}):
                    alone = shortest(self.looped, rounds=1)
                with (
                    in_place_of({fn: repeat(fn) for fn in functions}),
                    OwnCode((self.backend.name, "multifold"), is_own) as own,
                ):
                    self.looped()
                found.append(own.seconds(alone))
        return min(found)


def notes_on(way: MeasuredWay, explained: Any, share: float) -> list[str]:
    """Return one or two sentences on a way to run a program.

    The first names the six ops with the most calls, and says what share of the loop's time can be recorded.
    The second, if ``way.low`` is below 1, says that batching may not pay. ``explained`` is the explanation
    of its run, and ``share`` that part of the loop's time: 1 is all of it.
    """
    counts: Counter[str] = Counter()
    for part in explained.rounds:
        counts.update({op.name: op.calls for op in part.ops})
    said = ", ".join([f"{name} ({calls:,})" for name, calls in counts.most_common(MOST_NAMED)])
    more = f" and {len(counts) - MOST_NAMED} more" if len(counts) > MOST_NAMED else ""
    notes = [f"What can be recorded takes {max(share, 0.0):.0%} of the loop's time: {said}{more}."]
    if way.low < 1:
        pays = "may not pay" if way.high > 1 else "is not expected to pay"
        rounds = len(explained.rounds)
        waits = f", and {rounds:,} rounds in which values are read" if rounds > 1 else ""
        notes.append(f"Batching {pays} here: {way.calls / way.launches:,.1f} rows a launch{waits}.")
    return notes


def way_of(trial: Batched, name: str, gain: float) -> MeasuredWay:
    """Return a way called ``name``, with the numbers of calls and launches of the last run of ``trial``."""
    fold: Any = trial.fold
    return MeasuredWay(name, len(fold), len(trial.explain()), gain)
