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
1      first, second     first
2      second, third     second
3      third             third
=====  ================  =========

Within a round the ops that requests wait for run last, so a chain reads its last word and says in one.
Such a round has no schedule to find. Which calls are next is one look at the table (`TableBase.frontier`),
and launches like those before run without a plan (`multifold._await.routines`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import compress, cycle, pairwise
from typing import Any, final

import numpy as np
import optree

from multifold import _compiled
from multifold._await.fetch import separate
from multifold._await.rounds import NONE
from multifold._await.routines import Routines
from multifold._await.tasks import ExampleTask
from multifold._await.told import ToldRound
from multifold._compiled.arrays import CALL_MASK, Integers
from multifold._record.node import Node, SharedNode
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold._serve.answers import Want, results_of
from multifold._serve.engine import LONG, Engine
from multifold.errors import MultifoldError

NOTHING = nullcontext()

GONE = 4
"""Rows of ended requests are free once these had a fourth of the calls that a round has room for."""

Waiting = tuple[ExampleTask, list[Node]]
"""A task, and the nodes whose values it waits for."""


@final
class SteppedEngine(Engine):
    """An engine whose rounds are one launch of each op deep."""

    def take_over(self, learned: Routines | None) -> None:
        """Begin with the routines and the empty pages of an engine before it."""
        # Requests under way record some more calls after the engine was left for the next one.
        self.table.reserve((LONG + 4) * self.calls)
        self.routines: Routines | None = None
        if self.backend.puts:
            self.routines = Routines(self.table, learned, self.model)
            self.store = self.routines.pages
            self.gone //= GONE
        self.waiting: list[Waiting] = []  # tasks, apart from what `wants` has
        self._told: list[ToldRound] = []
        # of the last round
        self._launches = list[Integers]()
        self._times = list[LaunchTimes]()
        self._stopped = False

    def look(self) -> bool:
        """Let all tasks run until they wait; note what results need; return whether any request waits."""
        self.waiting = self.tasks.proceed()
        if self.wants.keys() != self.tasks.results.keys():
            known = self.wants
            self.wants = {}
            self.look_at_results(known)
        return bool(self.waiting or self.wants)

    def advance(self) -> None:
        """Run the calls that are next, one launch of each op, and answer the requests that have all."""
        count = self.count
        self._stopped = False
        self._failed = False
        self._launches = []
        self._times = []
        refs, examples, sizes, whole = _compiled.awaited(self.waiting, SharedNode)
        numbers = self.tasks.numbers
        wants = [*self.wants.values()]
        waits: list[tuple[Any, Any]] = [
            (numbers[examples], refs),
            *[(numbers[want.example], want.refs) for want in wants],
        ]
        # Whole results are planned together with all that reads them.
        odd = [want for want in wants if want.whole or not want.refs]
        if whole:
            shared = [any(isinstance(node, SharedNode) for node in nodes) for _, nodes in self.waiting]
            odd += self.noted(compress(self.waiting, shared))
            self.waiting = [one for one, apart in zip(self.waiting, shared, strict=True) if not apart]
            refs, _, sizes, _ = _compiled.awaited(self.waiting, SharedNode)
        if odd:
            self.attempt_wants(odd)
            wants = [want for want in wants if not want.whole and want.refs and self.is_wanted(want)]
        if self.waiting or wants:
            self.run_next(refs, sizes, wants)
        if self._launches:
            self.count = count + 1  # whatever was planned is a part of the round
            self._told.append(ToldRound(self.graph, self.backend, waits, self._launches, self._times))

    def noted(self, waiting: Iterable[Waiting]) -> list[Want]:
        """Note what some tasks wait for, as rounds by a plan have it."""
        wants = [Want.of_task(task, nodes) for task, nodes in waiting if self.tasks.waits_for(task, nodes)]
        self.wants |= {want.task: want for want in wants}
        return wants

    def run_next(self, refs: Integers, sizes: list[int], results: list[Want]) -> None:
        """Run the calls that are next for tasks and results; answer those that have all then.

        Task ``i`` waits for ``sizes[i]`` of the references.
        """
        requests = len(self.tasks.requests)
        calls = refs & CALL_MASK
        asked = NONE
        if results:
            asked = refs_of(results)
            calls = np.concatenate([calls, asked & CALL_MASK])
        loop = self.loop or (None if self.routines is None else self.routines.loop)
        with NOTHING if loop is None else loop.values.placed():
            self.run_steps(calls)
        waiting = self.waiting
        if self._failed or len(self.tasks.requests) < requests:  # some may have ended
            waiting = [one for one in waiting if self.tasks.waits_for(*one)]
            refs, _, sizes, _ = _compiled.awaited(waiting, SharedNode)
            results = [*filter(self.is_wanted, results)]
            asked = refs_of(results)
        self.answer(waiting, refs, sizes)
        if results:
            self.finish_arrived(results, asked)

    def run_steps(self, awaited: Integers) -> None:
        """Run one launch of each op that some calls need next."""
        if self._stopped or self._failed:
            return
        ready, begins = self.table.next_calls(awaited)
        if len(ready) > self.calls:
            ready, begins = self.bounded(ready, begins)
        self.run_ready(ready, begins)

    def bounded(self, ready: Integers, begins: Integers) -> tuple[Integers, Integers]:
        """Return those of some calls that the round has room for: of whole requests."""
        owners = self.tasks.owners.of_calls[ready]
        kept = np.isin(owners, [*self.fitting(Counter(owners.tolist()))])
        return ready[kept], np.append(0, kept.cumsum())[begins]

    def run_ready(self, ready: Integers, begins: Integers) -> None:
        """Run calls by routines, and where these do not fit by a plan."""
        if self.routines is None:
            self.run_planned(ready)
            return
        found = zip(cycle(self.table.order), pairwise(begins.tolist()), strict=False)
        launches = [(number, begin, end) for number, (begin, end) in found if begin < end]
        while launches:
            if times := self.routines.run(ready, launches, self.stops):
                self.note([ready[begin:end] for _, begin, end in launches[: len(times)]], times)
                launches = launches[len(times) :]
            if self._stopped or not launches:
                break
            _, begin, end = launches.pop(0)
            if not self.run_planned(ready[begin:end]) or self.stops():
                break

    def run_planned(self, calls: Integers) -> bool:
        """Run calls by a plan; return False if a launch failed, after finding the requests that need it."""
        try:
            self.compute(calls, NONE, stop=self.stops)
        except MultifoldError:
            self._failed = True
            owners = {*self.tasks.owners.of_calls[calls].tolist()}
            tasks = self.waiting
            self.noted([one for one in tasks if one[0].example in owners])
            self.attempt_wants([want for want in self.wants.values() if want.example in owners])
            return False
        return True

    def answer(self, waiting: list[Waiting], refs: Integers, sizes: list[int]) -> None:
        """Give each of some tasks its values if all of them have run; see `run_next`."""
        done, *where = self.table.arrived(refs, sizes)
        if not done:
            return
        waiting = [waiting[i] for i in done]
        found = None if self.routines is None else self.routines.pages.host_rows(*where)
        if found is None:
            self.attempt_wants(self.noted(waiting))
        else:
            self.tasks.answer([task for task, _ in waiting], iter(separate(found)))

    def finish_arrived(self, results: list[Want], asked: Integers) -> None:
        """Finish requests if all that their results need has run: the calls ``asked``, one by one."""
        done, *where = self.table.arrived(asked, [len(want.refs) for want in results])
        if not done:
            return
        results = [results[i] for i in done]
        if self.host:
            found = None if self.routines is None else self.routines.pages.host_rows(*where)
            if found is None:
                self.attempt_wants(results)
                return
            self.finish(results_of(results, found, int))
            results = [want for want in results if want.example in self.tasks.results]
        self.plan_results(results)

    # ---- how far a round goes ----------------------------------------------------------------------

    def stops(self, left: int = 1) -> bool:
        """Return whether a round ends before its last ``left`` launches."""
        self._stopped = self._ends()
        return self._stopped

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep what ran in a round by a plan, and learn from it how to run without one."""
        super().keep(numbers, given, run)
        if self.routines is not None and self.loop is not None:
            for calls in run.timeline.calls:
                self.routines.learn(self.loop, numbers[calls])

    def note(self, launches: Sequence[Integers], times: Sequence[LaunchTimes]) -> None:
        """Count launches that ran, and tell of them."""
        super().note(launches, times)
        self._launches += launches
        self._times += times

    def reports(self) -> Sequence[ToldRound]:
        """Return what to tell of the rounds since the last time."""
        found = self._told
        self._told = []
        self.rounds.clear()  # those by a plan are parts of these
        return found

    # ---- ending --------------------------------------------------------------------------------

    def apart(self, value: Any) -> Any:
        """Return the value of a group; the framework's own as a copy, since others write to pages."""
        if self.host or self.routines is None or not self.backend.writeable:
            return value
        # type: ignore[union-attr]  # a plan made the value
        backend = self.backend
        values = self.loop.values

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


def refs_of(results: Sequence[Want]) -> Integers:
    """Return what some results need, one after the other."""
    return np.array([ref for want in results for ref in want.refs], np.int64)
