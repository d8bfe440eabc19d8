"""The requests under way, and the rounds that compute what they wait for.

An engine is a run of `multifold._await` that never ends by itself: examples come and go between its
rounds, and a round may *end between two launches*: at once, if a request under way was cancelled or is
late; and with ``join="launches"`` also if requests wait that there is room for, and that pays. What ran is
kept, as it is when a launch fails, so that no call runs twice. The next round plans what is left together
with the calls of the new requests, which meet in shared launches. Besides, an engine knows

- *what a round has room for*: requests in the order in which they were taken, until their calls are as many
  as the budget allows. The first one always has room, so a request that is larger than the budget runs,
  with no other beside it; those that were left out come first in the next round;
- *who is to blame*: if a launch fails, halves of the requests run again by themselves, until those that
  fail stand alone. All others have their values then.

A fold numbers its calls and forgets none of them, so an engine is used for so many calls, and another one
takes the requests that come then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np
import optree

from multifold._await.fetch import fetch, hosted
from multifold._await.rounds import Rounds
from multifold._compiled.arrays import CALL_MASK, Integers, starts
from multifold._run.launch import Executor
from multifold._run.run import Run
from multifold._schedule.outputs import Outputs, put_together, take_apart
from multifold._serve.answers import Want, own, results_of
from multifold._serve.requests import Request
from multifold._serve.spans import make_launch_spans
from multifold._serve.tasks import ServedTasks
from multifold.errors import MultifoldError
from multifold.fold import Fold

PAYS = 16
"""A round ends for others if its launches so far, and those left, take so many times what planning takes.

Trees of the Stanford Sentiment Treebank on one core, PyTorch, width 128, 700 requests a second: half of
them take 4.8 ms if they join at rounds only, 5.4 ms with 4, and 12 ms with 1.
"""

SMOOTH = 0.1
"""How much of what planning is said to cost is the last round's; the rest is that of the ones before."""


class Patience:
    """Tells whether it pays to plan anew between two launches.

    Attributes
    ----------
    planning : float
        Seconds that a round takes besides its launches, of late.
    """

    def __init__(self) -> None:
        self.planning = self._began = 0.0
        self._ran = 0

    def begin(self) -> None:
        """Note that a round begins."""
        self._began, self._ran = perf_counter(), 0

    def end(self, running: float) -> None:
        """Note that a round has ended, whose launches took some seconds."""
        spent = perf_counter() - self._began - running
        self.planning += (SMOOTH if self.planning else 1.0) * (spent - self.planning)

    def pays(self, left: int) -> bool:
        """Return whether to plan anew after one more launch, with some left."""
        self._ran += 1
        running = perf_counter() - self._began - self.planning
        return min(running, running / self._ran * left) >= PAYS * self.planning


class Engine(Rounds):
    """Runs the requests that it is given, round after round.

    Parameters
    ----------
    fold : Fold
        What they record on, without calls.
    model : object
        Where op names are looked up.
    fn : callable
        Records an example.
    calls : int
        How many calls a round has room for.
    host : bool
        Whether results become arrays of NumPy.
    between : bool
        Whether a round may end between two launches for others.
    patience : Patience
        Tells whether that pays.
    """

    tasks: ServedTasks

    def __init__(
        self,
        fold: Fold,
        model: Any,
        fn: Callable[..., Any],
        calls: int,
        *,
        host: bool,
        between: bool,
        patience: Patience,
    ) -> None:
        self.backend = fold._backend_of(model)
        tasks = ServedTasks(fold, self.backend, calls)
        super().__init__(fold, tasks, fold._loops(model, False), sweep=False)
        self.model = model
        self.fn, self.calls, self.host = fn, calls, host
        self.between = between
        self.patience = patience
        self.wants: dict[Any, Want] = {}
        self.left_out: set[int] = set()  # requests that the last round had no room for
        self.finished: dict[int, Any] = {}
        self.count = self.launches = self.ran = 0
        self._ends: Callable[[bool], bool] = bool  # whether it ends between two launches
        self._open = ExitStack()
        self._open.enter_context(self.tasks.running())

    def end(self) -> None:
        """Let go of everything. The fold may be used again, and knows what it has learned."""
        self._open.close()
        self.store.clear()
        self.recorder.reset()

    # ---- rounds --------------------------------------------------------------------------------

    def step(self, stop: Callable[[bool], bool]) -> Iterator[tuple[Request, Any, Exception | None]]:
        """Run one round; yield each request that has ended, its result, and what it has raised.

        Parameters
        ----------
        stop : callable
            Asked between two launches: whether the round ends there in any case, or, if it is called with
            True, whether it should if that pays.
        """
        tasks, self._ends = self.tasks, stop
        wants = self.listed()
        if wants:
            self.graph.refuse_changed()
            self.attempt_wants(self.with_room(wants))
        failed = [(example, None, error) for example, error in tasks.failures.items()]
        done = [(example, result, None) for example, result in self.finished.items()]
        self.finished = {}
        for example, result, error in [*failed, *done]:
            yield self.forget(example), result, error
        if tasks.ended > self.calls:
            self.store.keep_only(tasks.alive()[: len(self.table)])

    def listed(self) -> list[Want]:
        """Let all tasks run until they wait; return what they wait for, and what results need."""
        tasks, known = self.tasks, self.wants
        self.wants = {}
        for task, nodes in tasks.proceed():
            self.wants[task] = known.get(task) or Want.of_task(task, nodes)
        for example, result in list(tasks.results.items()):
            try:
                self.wants[example] = known.get(example) or self.of_result(example, result)
            except Exception as error:  # noqa: BLE001 - what a user returns may be anything
                tasks.fail(example, error)
        return list(self.wants.values())

    def of_result(self, example: int, result: Any) -> Want:
        """Return what the result of a request needs."""
        return Want.of_result(example, result, take_apart(self.recorder, result, 0))

    def with_room(self, wants: list[Want]) -> list[Want]:
        """Return what the next round is for: whole requests, first those left out last, then the oldest."""
        room, taken, pending = self.calls, set[int](), self.tasks.pending
        examples = dict.fromkeys(want.example for want in wants)
        for example in sorted(examples, key=lambda one: (one not in self.left_out, one)):
            if not taken or pending[example] <= room:
                taken.add(example)
                room -= pending[example]
        self.left_out = examples.keys() - taken
        return [want for want in wants if want.example in taken] if self.left_out else wants

    def attempt_wants(self, wants: Sequence[Want]) -> None:
        """Run a round for some requests; if a launch fails, find those that need it by halving."""
        wants = [want for want in wants if self.is_wanted(want)]
        if not wants:
            return
        try:
            self.answer_wants(wants)
        except MultifoldError as error:
            if len(wants) == 1:
                (want,) = wants
                if not self.is_wanted(want):
                    return  # it was dropped between two launches
                if want.task is None:
                    self.tasks.fail(want.example, error)
                else:
                    del self.wants[want.task]
                    self.tasks.throw(want.task, error)
                return
            middle = len(wants) // 2
            self.attempt_wants(wants[:middle])
            self.attempt_wants(wants[middle:])

    def is_wanted(self, want: Want) -> bool:
        """Return whether a request still waits: an error in one of its tasks ends all of them."""
        if want.task is not None:
            return self.tasks.is_open(want.task)
        return want.example in self.tasks.results

    def answer_wants(self, wants: Sequence[Want]) -> None:
        """Run one round; give tasks their values, and finish the requests whose results are known."""
        needed = [want for want in wants if want.refs]
        sizes = [len(want.refs) for want in needed]
        refs = np.array([*chain.from_iterable(want.refs for want in needed)], np.int64)
        calls, begin = refs & CALL_MASK, starts(np.array(sizes, np.int64))[:-1]
        firsts = zip(begin.tolist(), needed, strict=True)
        wholes = calls[[first + i for first, want in firsts for i in want.whole]]
        complete = wants
        if needed:
            requests = [self.tasks.requests[want.example].number for want in needed]
            waits = np.repeat(requests, sizes), refs
            done = self.compute(calls, wholes, waits=waits, stop=self.stops)
            there = np.logical_and.reduceat(self.table.result[calls] > 0, begin)
            known = iter(there.tolist())
            complete = [x for x in wants if (not x.refs or next(known)) and self.is_wanted(x)]
        awaited = [want for want in complete if want.task is not None]
        results = [want for want in complete if want.task is None]
        values = iter(self.awaited(done.run, awaited)) if awaited else iter(())
        quick = [want for want in results if self.host and want.refs]
        found = results_of(done.run, quick, self.table.renumbered) if quick else {}
        tasks = [want.task for want in awaited if want.task is not None]
        for task in tasks:  # from here on nothing fails for all, so no task is answered twice
            del self.wants[task]
        self.tasks.answer(tasks, values)
        self.finish(found)
        self.plan_results([want for want in results if want.example not in found])

    def awaited(self, run: Run, wants: Sequence[Want]) -> list[Any]:
        """Return the values that tasks wait for, on the host."""
        refs, whole = list[int](), list[int]()
        for want in wants:
            whole += [len(refs) + i for i in want.whole]
            refs += want.refs
        return fetch(run, self.table.renumbered(np.array(refs, np.int64)), whole)

    def finish(self, results: dict[int, Any]) -> None:
        """Note results of requests."""
        self.finished.update(results)
        for example in results:
            del self.tasks.results[example]

    def plan_results(self, wants: Sequence[Want]) -> None:
        """Put results together as outputs of a plan, which has no launches since all was computed."""
        if not wants:
            return
        loose, taken = list(self.graph.loose), list[Outputs]()
        for want in wants:
            taken.append(take_apart(self.recorder, want.result, len(loose)))
            loose += taken[-1].loose
        asked = Outputs(
            groups=[group for one in taken for group in one.groups], loose=loose[len(self.graph.loose) :]
        )
        try:
            values = iter(())
            if asked.groups:
                calls = asked.calls
                values = iter(self.compute(calls, asked.whole_calls, asked).outputs())
            found = {want.example: self.result(one, values) for want, one in zip(wants, taken, strict=True)}
        except MultifoldError as error:
            if len(wants) == 1:
                self.tasks.fail(wants[0].example, error)
                return
            middle = len(wants) // 2
            self.plan_results(wants[:middle])
            self.plan_results(wants[middle:])
        else:
            self.finish(found)

    def result(self, asked: Outputs, values: Iterator[Any]) -> Any:
        """Return the result of one request, from the values of its groups."""
        mine = [next(values) for _ in asked.groups]
        found = put_together(asked, mine.__getitem__)
        # A result may be a view of a launch's: the request would hold the rows of all others.
        return optree.tree_map(own, hosted(self.backend, found)) if self.host else found

    # ---- how far a round goes ----------------------------------------------------------------------

    def compute(self, *arguments: Any, **named: Any) -> Executor:
        """Run a round, and note how long it took besides its launches."""
        self.patience.begin()
        done = super().compute(*arguments, **named)
        if times := done.run.timeline.times:
            self.patience.end(times[-1].end - times[0].begin)
            self.count += 1
        return done

    def stops(self, left: int) -> bool:
        """Return whether a round ends before its last ``left`` launches, for other requests."""
        return self._ends(self.between and self.patience.pays(left))

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep what ran in a round, and count it."""
        super().keep(numbers, given, run)
        tasks, launches = self.tasks, run.timeline.calls
        if not launches:
            return
        self.launches += len(launches)
        self.ran += sum(map(len, launches))
        make_launch_spans(self.graph, tasks.requests, tasks.owner.values, numbers, run.timeline)
        owners = tasks.owner.values[numbers[np.unique(np.concatenate(launches))]]
        for example, count in enumerate(np.bincount(owners - owners.min()).tolist(), int(owners.min())):
            if count and example in tasks.pending:
                tasks.pending[example] -= count

    # ---- ending --------------------------------------------------------------------------------

    def drop(self, example: int) -> Request:
        """Give a request up: close its coroutines, and forget it."""
        self.finished.pop(example, None)
        self.tasks.fail(example, CancelledError())
        return self.forget(example)

    def forget(self, example: int) -> Request:
        """Forget a request that has ended."""
        self.left_out.discard(example)
        return self.tasks.end(example)
