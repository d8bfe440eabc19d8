"""The requests under way, and the rounds that compute what they wait for.

An engine is a run of `multifold._await` that never ends by itself: examples come and go between its
rounds, and a round *ends between two launches* if a request under way was cancelled or is late. What ran is
kept, as it is when a launch fails, so that no call runs twice. Besides, an engine knows

- *what a round has room for*: requests in the order in which they were taken, until their calls are as many
  as the budget allows. The first one always has room, so a request that is larger than the budget runs,
  with no other beside it; those that were left out come first in the next round;
- *who is to blame*: if a launch fails, halves of the requests run again by themselves, until those that
  fail stand alone. All others have their values then.

A fold numbers its calls and forgets none of them, so an engine is used for so many calls, and another one
takes the requests that come then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from itertools import chain
from typing import Any

import numpy as np
import optree

from multifold._await.fetch import fetch, hosted
from multifold._await.report import Round
from multifold._await.rounds import Rounds
from multifold._await.told import ToldRound
from multifold._compiled.arrays import CALL_MASK, Integers, starts
from multifold._run.launch import Executor
from multifold._run.run import Run
from multifold._run.timeline import LaunchTimes
from multifold._schedule.outputs import Outputs, put_together, take_apart
from multifold._serve.answers import Want, own, results_of_run
from multifold._serve.requests import Request
from multifold._serve.spans import make_launch_spans
from multifold._serve.tasks import ServedTasks
from multifold.errors import MultifoldError
from multifold.fold import Fold

LONG = 32
"""An engine is left after so many times the calls that a round has room for, of 200 bytes each.

While its last requests end, it and the next one have rounds of their own, and fewer of these make that
rarer: 3,200 parsed sentences have this many calls.
"""

Ended = tuple[Request, Any, Exception | None]
"""A request, its result, and what it has raised."""


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
    learned : object
        What an engine before it has learned of the model.
    """

    tasks: ServedTasks

    def __init__(
        self,
        fold: Fold,
        model: Any,
        fn: Callable[..., Any],
        calls: int,
        host: bool,
        learned: Any = None,
    ) -> None:
        self.backend = fold._backend_of(model)
        tasks = ServedTasks(fold, self.backend, calls)
        super().__init__(fold, tasks, fold._loops(model, False), sweep=False, pads=self.backend.pads)
        self.model = model
        self.fn = fn
        self.calls = calls
        self.host = host
        self.gone = calls  # after so many calls of ended requests their results are dropped
        self.wants: dict[Any, Want] = {}
        self.left_out: set[int] = set()  # requests that the last round had no room for
        self.finished: dict[int, Any] = {}
        self.count = 0  # rounds with launches
        self.rows = list[int]()  # of each launch that was not counted yet
        self._ends: Callable[[], bool] = bool  # whether it ends between two launches
        self._open = ExitStack()
        self._open.enter_context(self.tasks.running())
        self.take_over(learned)

    def take_over(self, learned: Any) -> None:
        """Begin with what the `end` of an engine before it has returned; None if it is the first."""

    def end(self) -> Any:
        """Let go of everything, and return what the next engine may know. The fold may be used again."""
        self._open.close()
        self.store.clear()
        self.recorder.reset()
        return None

    # ---- rounds --------------------------------------------------------------------------------

    def step(self, stop: Callable[[], bool]) -> list[Ended]:
        """Run one round; return each request that has ended, its result, and what it has raised.

        Parameters
        ----------
        stop : callable
            Asked between two launches whether the round ends there.
        """
        tasks = self.tasks
        self._ends = stop
        if self.look():
            self.graph.refuse_changed()
            self.advance()
        ended: list[tuple[int, Any, Exception | None]] = [
            (one, None, error) for one, error in tasks.failures.items()
        ]
        ended += [(example, result, None) for example, result in self.finished.items()]
        self.finished = {}
        if not ended:
            return []
        found = self.forget([example for example, _, _ in ended])
        if tasks.ended > self.gone:
            self.store.keep_only(*tasks.alive(len(self.table)))
        return [(request, *rest) for request, (_, *rest) in zip(found, ended, strict=True)]

    def reports(self) -> Sequence[Round | ToldRound]:
        """Return what to tell of the rounds since the last time."""
        found = self.rounds
        self.rounds = []
        return found

    def advance(self) -> None:
        """Run all that requests wait for, as far as a round has room."""
        self.attempt_wants(self.with_room([*self.wants.values()]))

    def look(self) -> bool:
        """Let all tasks run until they wait; note what they wait for; return whether any request waits."""
        known = self.wants
        self.wants = {}
        for task, nodes in self.tasks.proceed():
            self.wants[task] = known.get(task) or Want.of_task(task, nodes)
        self.look_at_results(known)
        return bool(self.wants)

    def look_at_results(self, known: Mapping[Any, Want]) -> None:
        """Note what results need; ``known`` has what was noted before."""
        tasks = self.tasks
        for example, result in list(tasks.results.items()):
            try:
                want = known.get(example) or self.of_result(example, result)
                if want.refs or want.asked is None or want.asked.groups:
                    self.wants[example] = want
                else:
                    self.finish({example: self.result(want.asked, iter(()))})
            except Exception as error:  # noqa: BLE001 - what a user returns may be anything
                tasks.fail(example, error)

    def of_result(self, example: int, result: Any) -> Want:
        """Return what the result of a request needs."""
        if type(result) is self.graph.node_type and result._graph is self.graph:
            return Want.of_node(example, result)
        return Want.of_result(example, result, take_apart(self.recorder, result, 0))

    def with_room(self, wants: list[Want]) -> list[Want]:
        """Return what the next round is for."""
        if self.tasks.owners.total <= self.calls:
            self.left_out = set()
            return wants
        taken = self.fitting(self.pending({want.example for want in wants}))
        return [want for want in wants if want.example in taken]

    def pending(self, examples: Collection[int]) -> dict[int, int]:
        """Return how many calls of each of some examples have not run."""
        self.table.extend()
        owners = self.tasks.owners.of_calls
        first = min(examples)
        begin = int(np.argmax(owners >= first))  # before it are calls of requests that came earlier
        mine = owners[begin:][self.table.result[begin : len(owners)] == 0] - first
        counts = np.bincount(mine[mine >= 0], minlength=max(examples) - first + 1).tolist()
        return {example: counts[example - first] for example in examples}

    def fitting(self, calls: dict[int, int]) -> set[int]:
        """Return which requests a round has room for: first those left out last, then the oldest."""
        room = self.calls
        taken = set[int]()
        for example in sorted(calls, key=lambda one: (one not in self.left_out, one)):
            if not taken or calls[example] <= room:
                taken.add(example)
                room -= calls[example]
        self.left_out = calls.keys() - taken
        return taken

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
            return self.wants.get(want.task) is want and self.tasks.is_open(want.task)
        return want.example in self.tasks.results

    def answer_wants(self, wants: Sequence[Want]) -> None:
        """Run one round; give tasks their values, and finish the requests whose results are known."""
        needed = [want for want in wants if want.refs]
        refs = np.array([ref for want in needed for ref in want.refs], np.int64)
        calls = refs & CALL_MASK
        complete = wants
        if needed:
            numbers = [self.tasks.numbers[want.example] for want in needed for _ in want.refs]
            wholes = [ref & CALL_MASK for want in needed for ref in map(want.refs.__getitem__, want.whole)]
            # Where no coroutine is left to record more, each request has all its calls in this round.
            done = self.compute(
                calls,
                np.array(wholes, np.int64),
                waits=(np.array(numbers, np.int64), refs),
                stop=self.stops,
                only=not self.tasks.unfinished,
            )
            if done.stopped:  # some have not all that they want, or have ended meanwhile
                there = {*refs[self.table.result[calls] > 0].tolist()}
                complete = [x for x in wants if there.issuperset(x.refs) and self.is_wanted(x)]
        awaited = [want for want in complete if want.task is not None]
        results = [want for want in complete if want.task is None]
        values = iter(self.awaited(done.run, awaited)) if awaited else iter(())
        quick = [want for want in results if self.host and want.refs]
        found = results_of_run(done.run, quick, self.table.renumbered) if quick else {}
        tasks = [want.task for want in awaited if want.task is not None]
        for task in tasks:  # from here on nothing fails for all, so no task is answered twice
            del self.wants[task]
        self.tasks.answer(tasks, values)
        self.finish(found)
        self.plan_results([want for want in results if want.example not in found])

    def awaited(self, run: Run, wants: Sequence[Want]) -> list[Any]:
        """Return the values that tasks wait for, on the host."""
        refs = [*chain.from_iterable(want.refs for want in wants)]
        begin = starts(np.array([len(want.refs) for want in wants], np.int64)).tolist()
        whole = [first + i for first, want in zip(begin, wants, strict=False) for i in want.whole]
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
        loose = list(self.graph.loose)
        taken = list[Outputs]()
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
        mine = [self.apart(next(values)) for _ in asked.groups]
        found = put_together(asked, mine.__getitem__)
        # A result may be a view of a launch's: the request would hold the rows of all others.
        return optree.tree_map(own, hosted(self.backend, found)) if self.host else found

    def apart(self, value: Any) -> Any:
        """Return the value of a group as a request may keep it."""
        return value

    # ---- how far a round goes ----------------------------------------------------------------------

    def compute(self, *arguments: Any, **named: Any) -> Executor:
        """Run a round by a plan, and count it if it has launches."""
        done = super().compute(*arguments, **named)
        self.count += bool(done.run.timeline.times)
        return done

    def stops(self, left: int) -> bool:
        """Return whether a round ends before its last ``left`` launches."""
        return self._ends()

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep what ran in a round by a plan, and count it."""
        super().keep(numbers, given, run)
        launches = [numbers[calls] for calls in run.timeline.calls]
        if launches:
            self.note(launches, run.timeline.times)

    def note(self, launches: Sequence[Integers], times: Sequence[LaunchTimes]) -> None:
        """Count launches that ran, and make their spans."""
        self.rows += map(len, launches)
        if self.tasks.spans:
            make_launch_spans(self.graph, self.tasks.requests, self.tasks.owners.of_calls, launches, times)

    # ---- ending --------------------------------------------------------------------------------

    def drop(self, example: int) -> Request:
        """Give a request up: close its coroutines, and forget it."""
        self.finished.pop(example, None)
        self.tasks.fail(example, CancelledError())
        return self.forget([example])[0]

    def forget(self, examples: Sequence[int]) -> list[Request]:
        """Forget requests that have ended."""
        self.left_out.difference_update(examples)
        return list(map(self.tasks.end, examples))
