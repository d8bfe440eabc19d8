"""What a program would take by calls of `Fold.add`, foretold before anybody writes it so.

It is put together from parts that are measured, each as a share of the loop:

- what lies around the ops: a run of the same graph, one call for each of its `pieces`, with empty ops;
- what the ops compute: the launches of the batched program, as if they were as few as the pieces take;
- the program's own code: the lines that walk the structure of an example, and what they call.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from math import prod
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from multifold._measure.advice_bench import AdviceBench
from multifold._measure.outline import END, Outline
from multifold._measure.pieces import WatchedFold, pieces_of
from multifold._measure.watched import (
    ROUNDS,
    Beside,
    Clock,
    OwnLines,
    WatchedLoop,
    in_place_of,
    seconds_of_a_line,
    shortest,
)
from multifold._measure.ways import MeasuredWay
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.fold import Fold
from multifold.lazy.batching import Batched
from multifold.lazy.calls import BY_ROWS
from multifold.lazy.cells import cell_of
from multifold.lazy.explained import FEW_ROWS

BY_HAND, AWAITING = "fold.run, with calls of fold.add", "fold.run, with fold.add and await"
"""What the last way is called, for a program that reads nothing, and for one that does."""

MANY, INLINE_GAINS = 3, 1.35
"""An op that does in one what many calls do, on average this many or more, hands fewer arrays on than
these: the program is so many times as fast as its parts foretell, the median of 14 programs."""

OVERHEAD = 40e-6
"""A launch of a plain program takes up to so many seconds of ours, beside what the framework takes."""

MOST_NAMED = 6
"""So many ops to record are named, those with most calls."""


class WatchedBatched(Batched):
    """A batched program whose fold notes where each call is recorded.

    Parameters
    ----------
    is_of_program : callable
        Takes the name of a module; returns whether its code is the program's.
    *arguments, **options
        As of `Batched`.
    """

    def __init__(self, is_of_program: Callable[[str], bool], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_of_program = is_of_program

    def new_fold(self, backend: Backend) -> Fold:
        """Return a fold that watches a run."""
        return WatchedFold(self.is_of_program, backend=backend, device=self.device)


def by_hand(
    bench: AdviceBench, taken: Mapping[FunctionType, bool], watch: WatchedLoop
) -> tuple[MeasuredWay, list[str]]:
    """Foretell the way with calls of `Fold.add`, one for each piece; return it, and notes on it.

    Parameters
    ----------
    bench : AdviceBench
        Measures the program.
    taken : dict of function to bool
        The functions that can be cells, and whether they take rows.
    watch : WatchedLoop
        What has seen the loop.

    Raises
    ------
    RecordError
        If nothing is recorded; or if it cannot be told, since the program reads in a function that calls
        itself.
    """
    clock = Clock(bench.backend)
    cells = {fn: cell_of(clock.timed(fn, rows), rows) for fn, rows in taken.items()}
    names = {fn.__name__ for fn in taken}
    trials = []
    with in_place_of(cells):
        bench.check((), len(bench.examples))
        graph = graph_of(bench, watch)
    trial = bench.batched((), None)
    for number in range(ROUNDS + 1):
        loop = bench.step(bench.looped)[0]
        clock.start()
        with in_place_of(cells):
            bench.step(lambda: trial.run(bench.examples, {})[0])
        if number:  # the first run may compile
            trials.append(BesideLoop(loop, trial.explain(), bench.backward, clock.seconds))
    if graph.reads_within & watch.looping:
        raise RecordError(
            "it reads values in a function that calls itself. What it would take depends on which of its "
            "calls may wait side by side, by fold.gather (docs/await.md)."
        )
    own = own_code(bench, watch, graph, [*taken]) / min(bench.loops)
    around, fold = around_of(bench, graph)
    computing = computing_of(trials, names, graph.launches(fold.explain()), dispatch(bench.backend))
    name = AWAITING if graph.reads else BY_HAND
    members = statistics.mean([len(piece.members) for piece in graph.pieces])
    gain = (INLINE_GAINS if members >= MANY else 1.0) / (own + around + computing)
    launches = [op.launches for part in fold.explain().rounds for op in part.ops if op.name != END]
    way = MeasuredWay(name, len(graph.pieces), sum(launches), gain)
    return way, notes_on(way, graph)


def graph_of(bench: AdviceBench, watch: WatchedLoop) -> Outline:
    """Run the program batched; return the graph of its pieces."""
    trial = bench.batched((), bench.seed, partial(WatchedBatched, watch.is_of_program))
    bench.step(lambda: trial.run(bench.examples, {})[0])
    known = [call for call in trial.recorder.known.values() if call.call is not None]
    sizes = {id(call.call): sum([prod(form.shape) for form in call.forms]) for call in known}
    fold: Any = trial.fold
    pieces, reads = pieces_of(fold, watch.looping, lambda op: sizes.get(id(op), 1))
    weight: Any = None
    if bench.trains:
        parameters = [x for model in bench.models for x in bench.backend.arrays_of(model)]
        weight = min(parameters, key=lambda x: prod(x.shape), default=None)
    return Outline(bench.backend, pieces, reads, fold, weight)


def around_of(bench: AdviceBench, graph: Outline) -> tuple[float, Fold]:
    """Return what a step takes beside what its ops compute, as a share of the loop; and its fold."""
    clock = Clock(bench.backend)
    record = graph.recorder(partial(clock.timed, rows=False))
    shares = []
    fold = Fold(backend=bench.backend)
    for number in range(ROUNDS + 1):
        fold = Fold(backend=bench.backend)
        clock.start()
        run = partial(fold.run, None, graph.examples, record)
        seconds = bench.step(partial(listed, run))[0] - clock.seconds
        seconds -= min(bench.backward, clock.seconds)  # the backward passes of empty ops
        if number:  # the first run tries the ops
            bench.loops.append(bench.step(bench.looped)[0])
            shares.append(seconds / bench.loops[-1])
    return statistics.median(shares), fold


def listed(run: Callable[[], Any]) -> list[Any]:
    """Return what ``run()`` returns in a list, as the results of one example."""
    return [run()]


def dispatch(backend: Any) -> float:
    """Return about how many seconds the framework takes for a call on few rows."""
    x = backend.constant(np.ones((4, 4), np.float32), None)

    def compute() -> None:
        y = x
        for _ in range(50):
            y = (y + x) @ x

    return shortest(compute) / 100


def own_code(
    bench: AdviceBench, watch: WatchedLoop, graph: Outline, cells: Sequence[FunctionType]
) -> float:
    """Return about how many seconds the program's own code takes, without what ops compute.

    ``watch`` has seen the loop, and ``cells`` are functions that are ops as they are.
    """
    inside = {*graph.inside, *[fn.__code__ for fn in cells]}
    others = (bench.backend.name, "multifold")
    with contextlib.nullcontext() if bench.trains else bench.backend.inference():
        alone = shortest(bench.looped)
        with Beside(others, watch.is_of_program) as beside:
            bench.looped()
        with OwnLines(watch.is_of_program, inside, graph.lines) as own:
            bench.looped()
    return own.count * seconds_of_a_line() + beside.seconds(alone)


def seconds_on_rows(op: Any) -> float:
    """Return the seconds of the launches of an explained op, if all of it runs on rows.

    What ran row by row is taken to need as long for all rows of a launch as for eight.
    """
    seconds = op.seconds or 0.0
    if BY_ROWS in op.name:
        seconds *= min(1.0, FEW_ROWS * op.launches / max(1, op.calls))
    return seconds


class BesideLoop(NamedTuple):
    """A run of the batched program, beside the loop.

    Attributes
    ----------
    loop : float
        The seconds of the loop, just before.
    explained : Explanation
        Of the run.
    backward : float
        The seconds of its backward pass.
    inside : float
        The seconds in functions that are ops as they are.
    """

    loop: float
    explained: Any
    backward: float
    inside: float


def computing_of(
    trials: Sequence[BesideLoop], names: Container[str], by_hand: Mapping[str, int], dispatch: float
) -> float:
    """Return what ops compute, forward and backward, as a share of the loop.

    Of functions with these names, ops as they are, that is the time inside. Of each other function of the
    framework it is the time of its launches, without what they take of ours: what the shortest one takes,
    up to 40 us, beyond a call of the framework, ``dispatch`` seconds. Where ``by_hand`` it is called less
    often than it was launched, it takes less, but not less than its rows take in the largest launch. A
    backward pass is divided between ops and gathers as the forward pass is.
    """
    times: defaultdict[str, list[float]] = defaultdict(list)
    launches: defaultdict[str, list[Any]] = defaultdict(list)
    inside, shares = [], []
    for loop, explained, backward, within in trials:
        total: defaultdict[str, float] = defaultdict(float)
        for part in explained.rounds:
            for op in part.ops:
                if op.name not in names:
                    total[op.name] += seconds_on_rows(op)
            for launch in part.launches:
                launches[launch.op].append(launch)
        for name, seconds in total.items():
            times[name].append(seconds / loop)
        inside.append(within / loop)
        forward = explained.seconds.get("op", 0.0) + explained.seconds.get("gather", 0.0)
        shares.append(backward / max(forward, 1e-9))
    loop = statistics.median([trial.loop for trial in trials])
    forward = backward = 0.0
    for name, shares_of_loop in times.items():
        found, own = statistics.median(shares_of_loop), launches[name]
        count = len(own) / len(trials)
        ours = max(0.0, min(OVERHEAD, *[x.seconds or 0.0 for x in own]) - dispatch)
        kept = max(0.0, found - count * ours / loop)
        largest = max(own, key=len)
        rows = sum(map(len, own)) / len(trials)
        least = min(1.0, (largest.seconds or 0.0) / len(largest) * rows / loop / max(found, 1e-12))
        fewer = max(min(1.0, by_hand.get(name.partition(" (")[0], 0) / count), least)
        forward += kept * fewer
        backward += found * fewer
    middle = statistics.median(inside)
    return forward + middle + (backward + middle) * statistics.median(shares)


def notes_on(way: MeasuredWay, graph: Outline) -> list[str]:
    """Return sentences on the way to run a program by `Fold.add`: which ops to write, and what it reads.

    The first names the six ops with the most calls, by the lines of the program that they would run.
    """
    ops = [f"{place} ({count:,})" for place, count in graph.ops()]
    said = "; ".join(ops[:MOST_NAMED])
    more = f"; and {len(ops) - MOST_NAMED} more" if len(ops) > MOST_NAMED else ""
    notes = [f"Ops to write for fold.add, and how many calls of each there are: {said}{more}."]
    if graph.reads:
        count = max(map(len, graph.reads.values()))
        notes.append(
            f"An example reads values up to {count:,} times. There the function of an example awaits them, "
            "as in `await fold.value(node)`, while the others go on (docs/await.md)."
        )
    rows = way.calls / way.launches
    if way.low < 1 and rows < FEW_ROWS:
        notes.append(f"Few calls can run together, {rows:,.1f} in a launch, which keeps the gain low.")
    elif way.low < 1:
        notes.append(
            "Its ops compute so little that to record them takes as long, which keeps the gain low."
        )
    return notes
