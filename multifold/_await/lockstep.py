"""Rounds that need no plan: most rounds of examples that go in step.

Sixty-four sentences that are parsed word by word all wait for a score, again and again. Each round runs the
words that were taken and the subtrees that were joined since, and then the scores: a launch of each op,
like those of the round before. Planning and wiring such a round takes longer than its launches. But one
look at the table shows whether a round has one launch of each op only (`TableBase.frontier`), and if it has
more, one function of the scheduler finds those of each typed level. Then each launch is repeated as a
routine (`multifold._await.routines`), or planned by itself until there is one.

A careful engineer writes such a loop by hand where no gradient is wanted; so does this module, and only
there: `multifold._await.pages` says why.

Three rounds of two sentences, ``s`` takes a word, ``j`` joins, ``?`` scores:

=====  ==============  ==========================================
round  new calls       runs
=====  ==============  ==========================================
0      s s ? | s s ?   4 s and 2 ? by one plan
1      s ? | j ?       1 s and 2 ? by routines, 1 j by a plan
2      j ? | j j ?     2 j, 1 j and 2 ? by routines
=====  ==============  ==========================================
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import Any, final

import numpy as np

from multifold import _compiled
from multifold._await.fetch import readable, separate
from multifold._await.rounds import NONE, LoopOf, Rounds
from multifold._await.routines import Launches, Routines
from multifold._await.tasks import Tasks
from multifold._await.told import ToldRound
from multifold._compiled.arrays import CALL_MASK, Integers
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold.backend import Backend

MISSES = 8
"""Routines are given up after more misses than 8 and one in 8 hits: the launches left are one plan."""


@final
class Lockstep(Rounds):
    """Rounds that run by routines where they can."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.routines = Routines(self.table, None, None)
        self.store = self.routines.pages
        self.hits = self.misses = 0  # launches that ran by a routine, and what no routine could do
        self.planned = list[Integers]()  # the launches that the last plan ran

    def values_of(self, refs: Integers, examples: Integers, whole: list[int]) -> list[Any]:
        """Run what some references need; return their values on the host."""
        seconds = {"record": perf_counter() - self.idle}
        ready, launches = (NONE, None) if whole or self.loop is None else self.launches(refs & CALL_MASK)
        if not launches:
            return super().values_of(refs, examples, whole)
        backend = self.loop.values.backend  # type: ignore[union-attr]  # it has run a round
        ran = list[Integers]()
        times = list[LaunchTimes]()
        try:
            self.run_launches(ready, launches, ran, times)
        finally:
            if ran:
                self.rounds.append(ToldRound(self.graph, backend, [(examples, refs)], ran, times, seconds))
        with readable(backend):
            found = self.routines.pages.host_rows(*self.table.arrived(refs, [len(refs)])[1:])
        if found is None:
            self.misses += 1
            values = super().values_of(refs, examples, whole)
            self.rounds.pop()  # `super` told of a round without launches; this one is told already
            return values
        self.idle = perf_counter()
        return separate(found)

    @property
    def gives_up(self) -> bool:
        """Whether too many launches had no routine."""
        return self.misses > MISSES + self.hits // MISSES

    def launches(self, calls: Integers) -> tuple[Integers, Launches | None]:
        """Return what some calls need, and its launches; None for these if only a policy can tell them.

        Return None, too, where that happened too often before, or too many launches had no routine.
        """
        if self.gives_up:
            return NONE, None
        table = self.table
        table.extend()
        if self.sweep:
            self.store.sweep()
        ready, begins = table.next_calls(calls)
        if len(ready) < table.pending:
            return self.by_level(calls)
        numbers = zip(table.order, pairwise(begins.tolist()), strict=True)
        return ready, [(number, begin, end) for number, (begin, end) in numbers if begin < end]

    def by_level(self, calls: Integers) -> tuple[Integers, Launches | None]:
        """Return what some calls need, and its launches, one for each signature and typed level.

        None for these if the signatures read each other in a circle in which these launches have no order.
        """
        selection = self.table.select(calls)
        columns = self.table.columns(selection)
        pending = np.arange(selection.first, len(selection.kept))
        found = _compiled.schedule(columns.signature, pending, *columns.reads)
        if len(found) > 3:
            self.misses += 1
            return NONE, None
        order = selection.kept[found[0]]
        bounds = pairwise(found[1].tolist())
        numbers = self.table.signature_of(order[found[1][:-1]]).tolist()
        return order, [(number, begin, end) for number, (begin, end) in zip(numbers, bounds, strict=True)]

    def run_launches(
        self, ready: Integers, launches: Launches, ran: list[Integers], times: list[LaunchTimes]
    ) -> None:
        """Run launches by routines, or where there are none by plans; append their calls and times."""
        with self.loop.values.placed():  # type: ignore[union-attr]  # it has run a round
            while launches:
                found = self.routines.run(ready, launches)
                self.hits += len(found)
                times += found
                ran += [ready[begin:end] for _, begin, end in launches[: len(found)]]
                if len(found) == len(launches):
                    break
                self.misses += 1
                count = len(launches) if self.gives_up else len(found) + 1
                missing = ready[launches[len(found)][1] : launches[count - 1][2]]
                times += self.compute(missing, NONE).run.timeline.times
                ran += self.planned
                self.rounds.pop()  # `compute` told of a round, whose launches are a part of this one
                launches = launches[count:]

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep what ran by a plan; if that was one launch of each signature, learn from it."""
        super().keep(numbers, given, run)
        self.planned = [numbers[calls] for calls in run.timeline.calls]
        signatures = self.table.signature_of(np.array([calls[0] for calls in self.planned], np.int64))
        if self.loop is not None and len(set(signatures.tolist())) == len(signatures):
            for calls in self.planned:
                self.routines.learn(self.loop, calls)


def rounds_of(recorder: Any, backend: Backend, tasks: Tasks, loop_of: LoopOf, *, watched: bool) -> Rounds:
    """Return what runs a function over examples, in the mode that the framework is in now.

    Launches of which more is told than their times are ``watched``: they run by plans.
    """
    plain = backend.puts and backend.is_inference() and not watched
    kind = Lockstep if plain else Rounds
    sweep = recorder._graph.merged is None
    return kind(recorder, tasks, loop_of, sweep=sweep, pads=backend.pads)
