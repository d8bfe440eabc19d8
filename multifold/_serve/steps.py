"""Rounds of one launch of each op: a request that arrives waits for one of them, and then keeps pace.

A round of an `Engine` goes as deep as the values need that requests wait for. A newcomer brings the calls
before its first ``await``, another request ends with the calls after its last, and both would run in
launches of one or two rows, for which all others wait. Here a round runs what is *next*: of each op one
launch, with a row for every request that has got so far. Newcomers and ends ride along with the launches
that the others need anyway, as language model servers take the prompts of new requests along.

Three chains ``read``, ``read``, ``say`` of which the second arrives one round later and the third two:

=====  ================  =========
round  ``read``          ``say``
=====  ================  =========
0      first
1      first, second
2      second, third     first
3      third             second
=====  ================  =========

(A chain goes on in the same round with ops that come later in it: those that requests wait for come last.)
Such a round has no schedule to find. Which calls are next is one look at the table (`TableBase.frontier`),
and launches like those before run without a plan (`multifold._await.routines`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain, pairwise
from time import perf_counter
from typing import Any, final

import numpy as np
import optree

from multifold._await.fetch import separate
from multifold._await.rounds import NONE
from multifold._await.routines import Routines
from multifold._await.told import ToldRound
from multifold._compiled.arrays import CALL_MASK, Integers, starts
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold._serve.answers import Want, results_of
from multifold._serve.engine import Engine
from multifold._serve.requests import Request
from multifold.errors import MultifoldError

PATIENCE = 0.02
"""After so many seconds a round ends for requests that wait. Most rounds take a tenth of that."""


@final
class SteppedEngine(Engine):
    """An engine whose rounds are one launch of each op deep."""

    def take_over(self, learned: Routines | None) -> None:
        """Begin with the routines and the empty pages of an engine before it."""
        self.routines: Routines | None = None
        if self.backend.puts:
            self.routines = Routines(self.table, learned, self.model)
            self.store = self.routines.pages
        self._told: list[ToldRound] = []
        self._began = 0.0  # when the last round did
        self._launches, self._times = list[Integers](), list[LaunchTimes]()  # of the last round
        self._awaited = set[int]()  # the signatures of calls that requests wait for
        self._order: list[int] = []
        self._rank = NONE

    def advance(self, wants: list[Want]) -> None:
        """Run the calls that are next for some requests, one launch of each op, and answer who has all."""
        count, self._began = self.count, perf_counter()
        self._launches, self._times = [], []
        numbers = self.tasks.numbers
        waits = [(numbers[want.example], want.refs) for want in wants if want.example in numbers]
        odd = [want for want in wants if want.whole or not want.refs]
        if odd:  # whole results are planned together with all that reads them
            self.attempt_wants(odd)
            wants = [want for want in wants if not want.whole and want.refs and self.is_wanted(want)]
        complete = self.run_next(wants) if wants else []
        if self._launches:
            self.count = count + 1  # whatever was planned is a part of the round
            self._told.append(ToldRound(self.graph, self.backend, waits, self._launches, self._times))
        self.answer_complete(complete)

    def run_next(self, wants: Sequence[Want]) -> list[Want]:
        """Run the calls that are next for some requests; return those that have all then."""
        refs, table = [want.refs for want in wants], self.table
        calls = np.array([*chain.from_iterable(refs)], np.int64) & CALL_MASK
        table.extend()
        ready, begins = table.frontier(calls, self.rank_of(calls))
        if len(ready) > self.calls:
            ready, begins = self.bounded(ready, begins)
        loop = self.loop or (None if self.routines is None else self.routines.loop)
        with nullcontext() if loop is None else loop.values.placed():
            self.run_ready(ready, begins.tolist())
        there = table.result[calls] > 0
        if len(calls) > len(wants):
            there = np.logical_and.reduceat(there, starts(np.array(list(map(len, refs))))[:-1])
        return [x for x, done in zip(wants, there.tolist(), strict=True) if done and self.is_wanted(x)]

    def bounded(self, ready: Integers, begins: Integers) -> tuple[Integers, Integers]:
        """Return those of some calls that the round has room for: of whole requests."""
        owners = self.tasks.owner[ready]
        kept = np.isin(owners, [*self.fitting(Counter(owners.tolist()))])
        return ready[kept], np.append(0, kept.cumsum())[begins]

    def rank_of(self, calls: Integers) -> Integers:
        """Return when each signature runs in a round: those that requests wait for last.

        Then a request passes from one value that it waits for to the next in one round, if between them it
        needs one launch of each op.
        """
        count, found = len(self.graph.signatures), set(self.table.signature_of(calls).tolist())
        if not found <= self._awaited or count > len(self._rank):
            self._awaited |= found
            self._order = sorted(range(count), key=lambda number: (number in self._awaited, number))
            self._rank = np.argsort(self._order)
        return self._rank

    def run_ready(self, ready: Integers, begins: list[int]) -> None:
        """Run calls by routines, and where these do not fit by a plan."""
        if self.routines is None:
            self.run_planned(ready)
            return
        launches, times = list[Integers](), list[LaunchTimes]()
        for number, (begin, end) in zip(self._order, pairwise(begins), strict=True):
            if begin == end:
                continue
            calls = ready[begin:end]
            found = self.routines.run(number, calls)
            if found is not None:
                launches.append(calls)
                times.append(found)
            elif not self.run_planned(calls):
                break
            if self.stops():
                break
        if launches:
            self.note(launches, times)

    def run_planned(self, calls: Integers) -> bool:
        """Run calls by a plan; return False if a launch failed, after finding the requests that need it."""
        try:
            self.compute(calls, NONE, stop=self.stops)
        except MultifoldError:
            owners = set(self.tasks.owner[calls].tolist())
            self.attempt_wants([want for want in self.wants.values() if want.example in owners])
            return False
        return True

    def answer_complete(self, wants: Sequence[Want]) -> None:
        """Give tasks their values, and finish requests: all that these want has run."""
        awaited = [want for want in wants if want.task is not None]
        results = [want for want in wants if want.task is None]
        quick = results if self.host else []
        refs = np.array([*chain.from_iterable([want.refs for want in (*awaited, *quick)])], np.int64)
        if len(refs):
            found = None if self.routines is None else self.routines.pages.host_rows(refs)
            if found is None:
                self.attempt_wants(wants)
                return
            count = sum(len(want.refs) for want in awaited)
            if awaited:
                tasks = [want.task for want in awaited if want.task is not None]
                for task in tasks:
                    del self.wants[task]
                self.tasks.answer(tasks, iter(separate(found.first(count))))
            if quick:
                self.finish(results_of(quick, found, count, int))
        self.plan_results([want for want in results if want.example in self.tasks.results])

    # ---- how far a round goes ----------------------------------------------------------------------

    def stops(self, left: int = 1) -> bool:
        """Return whether a round ends before its last ``left`` launches, for other requests."""
        return self._ends(perf_counter() - self._began > PATIENCE)

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep what ran in a round by a plan, and learn from it how to run without one."""
        super().keep(numbers, given, run)
        launches = [numbers[calls] for calls in run.timeline.calls]
        if self.routines is None or not launches:
            return
        if self.loop is not None:
            for calls in launches:
                self.routines.learn(self.loop, calls)
        # A request that was dropped between two launches has given its rows back already.
        calls, requests = np.unique(np.concatenate(launches)), self.tasks.requests
        gone = [example not in requests for example in self.tasks.owner[calls].tolist()]
        if any(gone):
            self.routines.pages.free(calls[gone])

    def note(self, launches: Sequence[Integers], times: Sequence[LaunchTimes]) -> None:
        """Count launches that ran, and tell of them."""
        super().note(launches, times)
        self._launches += launches
        self._times += times

    def reports(self) -> Sequence[ToldRound]:
        """Return what to tell of the rounds since the last time."""
        found, self._told = self._told, []
        self.rounds.clear()  # those by a plan are parts of these
        return found

    # ---- ending --------------------------------------------------------------------------------

    def apart(self, value: Any) -> Any:
        """Return the value of a group; the framework's own as a copy, since others write to pages."""
        if self.host or self.routines is None or not self.backend.writeable:
            return value
        backend, values = self.backend, self.loop.values  # type: ignore[union-attr]  # a plan made the value

        def copied(x: Any) -> Any:
            if not backend.owns(x) or not len(x.shape):
                return x
            return backend.gather(x, values.upload([np.arange(backend.rows(x))], int)[0])

        return optree.tree_map(copied, value)

    def end(self) -> Routines | None:
        """Let go of everything but of what was learned of the model."""
        if self.routines is not None:
            self.routines.rest()
        super().end()
        return self.routines

    def forget(self, examples: Sequence[int]) -> list[Request]:
        """Forget requests that have ended; their rows are free."""
        if self.routines is not None:
            calls = self.tasks.calls_of(examples)
            self.routines.pages.free(calls[calls < len(self.table)])
        return super().forget(examples)
