"""The requests under way, and the rounds that compute what they wait for.

An engine is a run of `multifold._engine.rounds` that never ends by itself: examples come and go between its
rounds. Each round goes through the same four steps:

1. all tasks run until they wait, and what they wait for is *asked*, as is what finished requests return;
2. requests are taken in the order in which they came until a round has no *room* for more calls;
3. the round *runs*. If a launch fails, halves of the requests run again by themselves, until those that
   fail stand alone. A round ends between two launches if a request was cancelled or is late. What ran is
   kept in any case, so no call runs twice;
4. those that have all that they asked for are *answered*.

How much a round runs is the engine's *depth*. It goes as deep as what is asked needs, or, if the engine
takes `steps`, it runs one launch of each op: the calls that are next, with a row for every request that has
got so far. Newcomers and ends then ride along with the launches that the others need anyway. Three chains
``read``, ``read``, ``say`` of which the second arrives one round later and the third two:

=====  ================  =========
round  ``read``          ``say``
=====  ================  =========
0      first
1      first, second     first
2      second, third     second
3      third             third
=====  ================  =========

A fold numbers its calls and forgets none of them, so an engine is used for so many calls, and another one
takes the requests that come then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.outputs import Outputs, put_together, take_apart
from multifold._engine.record.lines import warn_user
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.rounds.fetch import HostRows, Readable, fetch, host_rows, hosted, separate
from multifold._engine.rounds.gathers import Gathers
from multifold._engine.rounds.rounds import Ask, LoopOf, Rounds
from multifold._engine.rounds.store import Store
from multifold._engine.run.blame import by_halves
from multifold._engine.run.loop import Loop
from multifold._engine.run.report import Notes, Report
from multifold._engine.run.run import Run
from multifold._engine.run.settling import Settling
from multifold.errors import MultifoldError
from multifold.fold import Fold
from multifold.serve.answers import Answer, own, results_of
from multifold.serve.requests import Request
from multifold.serve.spans import make_launch_spans
from multifold.serve.tasks import ServedTasks

LONG = 32
"""An engine is left after so many times the calls that a round has room for, of 200 bytes each.

While its last requests end, it and the next one have rounds of their own, which many calls make rare.
"""

MOST = 1 << 17
"""Room for more calls than that is made when they come, and not at once."""

GONE = 4
"""Results of ended requests are dropped once these had a fourth of the calls that a round has room for."""

Ended = tuple[Request, Any, Exception | None]
"""A request, its result, and what it has raised."""


class Arrived(NamedTuple):
    """The tasks, or answers, whose awaited values have all run, and where the rows of these are.

    Attributes
    ----------
    who : list of ExampleTask or of Answer
        The tasks, or the answers, in the order in which they asked.
    refs : int64 array
        The references to all values that they asked for, one after the other.
    whole : list of int
        The positions in ``refs`` of those whose whole result was asked for, in ascending order.
    where : list
        In which parts of results the rows are; see `CallTable.arrived`.
    """

    who: list[Any]
    refs: Integers
    whole: list[int]
    where: list[Any]


class HandedOn(NamedTuple):
    """What an engine leaves to the next one of its model: what knows the ops, and pages without rows.

    A framework that compiles has compiled for the sizes of these pages.
    """

    loop: Loop
    store: Store


@final
class Engine(Rounds):
    """Runs the rounds of the requests that it is given, with what they await; it never ends by itself.

    Parameters
    ----------
    fold : Fold
        The fold that they record on, which has no calls yet.
    model : object
        Where op names are looked up.
    calls : int
        How many calls a round has room for.
    host : bool
        Whether requests get NumPy arrays, and not those of the framework.
    steps : bool
        Whether a round is one launch of each op, and not all that is needed.
    before : HandedOn, optional
        What the `end` of an engine for the same model returned.
    settling : Settling
        Makes all trials of ops that run, while that is on.
    """

    tasks: ServedTasks

    def __init__(
        self,
        fold: Fold,
        model: Any,
        calls: int,
        host: bool,
        steps: bool,
        before: HandedOn | None,
        settling: Settling,
    ) -> None:
        self.backend = fold._backend_of(model)
        tasks = ServedTasks(fold, self.backend, calls)
        loops = fold._loops(model, among="a server has requests of others in its launches")
        # Nothing is swept: `take_ended` drops the results of requests that have ended.
        in_place = steps and self.backend.puts
        super().__init__(fold, tasks, partial(settled, loops, settling), sweep=False, in_place=in_place)
        self.model = model
        self.calls = calls
        self.host = host
        self.steps = steps
        if steps:
            # Requests under way record some more calls after the engine was left for the next one.
            self.table.reserve((LONG + 4) * min(calls, MOST))
        if before is not None:
            self.store = Store(self.table, in_place=in_place, before=before.store)
            self.gathers = Gathers(self.table, self.store)
            self.loop = Loop(before.loop.launcher, before.loop.plans, self.graph.warn_once)
        self._answers: dict[int, Answer] = {}  # what finished requests return, by example
        self._finished: dict[int, Any] = {}  # results, by example
        self._left_out: set[int] = set()  # requests that the last round had no room for
        self._interrupts: Callable[[], bool] = bool
        self._in_pieces = False
        self._rests = True
        self._stopped = False  # whether the round has ended between two launches
        self.notes: Notes = Notes()
        fold._answer_at_once_by(self.values_at_once)
        self._open = ExitStack()
        self._open.enter_context(tasks.running())

    def rest(self) -> None:
        """Leave the contexts that functions of requests have entered on the fold, as that of `plain`.

        It is called while no request is under way. An error of the library becomes a warning, since no
        request waits for it; others are raised.
        """
        self._rests = True
        try:
            if self.recorder._meanwhile is not None:
                self.recorder._meanwhile.close()
        except MultifoldError as error:  # no request waits for it
            warn_user(str(error))

    def end(self) -> HandedOn | None:
        """Drop all results and calls, and leave all contexts; the fold is empty, and may be used again.

        Return what the next engine of the same model goes on with; None if nothing has run.
        """
        self.rest()
        self._open.close()
        self.store.clear()
        self.recorder.reset()
        if self.loop is None:
            return None
        self.loop.launcher.forget_if_many()
        return HandedOn(self.loop, self.store)

    def step(
        self, interrupts: Callable[[], bool], in_pieces: bool = False
    ) -> tuple[list[Ended], Report | None]:
        """Run one round; return the requests that have ended, and the round's report, None if nothing ran.

        Parameters
        ----------
        interrupts : callable
            Called between two launches; the round ends there if it returns True.
        in_pieces : bool
            Whether launches are divided into `pieces`, where rounds are steps.
        """
        if self._rests and self.loop is not None:  # a layer of the model may be another one by now
            self.loop.launcher.forget_replaced()
        self._rests = False
        self._interrupts = interrupts
        self._in_pieces = in_pieces
        self._stopped = False
        self.notes = Notes()
        report = None
        if asks := [*self.tasks.proceed(), *self.asked_by_results()]:
            asks = self.without_changed(asks)
        if asks:
            self.graph.refuse_changed()
            asks = self.with_room(asks)
            # Noted before the round, for the report: requests that it answers wait no more afterwards.
            refs, examples, *_ = compiled.awaited(asks, SharedNode)
            numbers = np.array([self.tasks.requests[one].number for one in examples.tolist()], np.int64)
            by_halves(asks, self.run_round, self.blame, still_asks=self.still_asks)
            if self.notes.calls:
                report = self.report(self.notes, NO_INTEGERS, (numbers, refs))
                make_launch_spans(report, self.tasks.requests, self.tasks.owners.of_calls)
        return self.take_ended(), report

    def asked_by_results(self) -> list[Ask]:
        """Return a pair of answer and nodes for each function that has returned, but is not answered yet.

        What functions have returned since the last call becomes an `Answer`; one without nodes is answered
        at once, and one that can't be an output fails.
        """
        returned = self.tasks.take_results()
        for example, result in returned.items():
            try:
                answer = Answer.of(self.recorder, example, result)
                self._answers[example] = answer
                if answer.asked is not None and not answer.asked.groups:
                    found = put_together(answer.asked, ())  # new containers, and copies of arrays
                    self.finish({example: hosted(self.backend, found) if self.host else found})
                elif not answer.nodes:  # it needs no round
                    self.try_results([answer])
            except Exception as error:  # noqa: BLE001 - what a user returns may be anything
                self._answers.pop(example, None)
                self.tasks.fail(example, error)
        return [(answer, answer.nodes) for answer in self._answers.values()]

    def without_changed(self, asks: list[Ask]) -> list[Ask]:
        """Fail the requests that have changed an array after recording it, unless they have finished.

        Return ``asks`` without the entries of failed requests.
        """
        owners = self.tasks.owners.of_calls
        failed = {int(owners[call]): error for call, error in self.graph.counted.take_changed()}
        for example in failed.keys() & self.tasks.requests.keys() - self._finished.keys():
            self._answers.pop(example, None)
            self.tasks.fail(example, failed[example])
        return [ask for ask in asks if self.still_asks(ask)] if failed else asks

    def values_at_once(self, nodes: Sequence[Node]) -> list[Any]:
        """Run what some nodes need, between two rounds, in one piece; return their values on the host."""
        before, self._interrupts, self._stopped = self._interrupts, bool, False
        try:
            refs = np.array([node._ref for node in nodes], np.int64)
            done = self.compute(refs & CALL_MASK, NO_INTEGERS)
            return fetch(done.run, self.table.renumbered(refs), [])
        finally:
            self._interrupts = before

    def still_asks(self, ask: Ask) -> bool:
        """Return whether a task or an answer still waits for its nodes.

        ``ask`` is a pair of the task or answer, and the nodes. An error in one task ends all of a request.
        """
        who, nodes = ask
        if isinstance(who, Answer):
            return who.example in self._answers
        return self.tasks.waits_for(who, nodes)

    def blame(self, ask: Ask, error: MultifoldError) -> None:
        """Raise ``error`` in the task that asks, or fail the request whose answer asks.

        Do nothing if it asks no more, since its request was given up meanwhile.
        """
        who, _ = ask
        if not self.still_asks(ask):
            return
        if isinstance(who, Answer):
            self._answers.pop(who.example, None)
            self.tasks.fail(who.example, error)
        else:
            self.tasks.throw(who, error)

    def with_room(self, asks: list[Ask]) -> list[Ask]:
        """Return those of ``asks`` whose requests fit into the next round, of ``calls`` calls at most.

        Those that the last round left out come first, then requests in the order in which they came. The
        first of them always has room, so one that is larger than a round runs, alone.
        """
        left_out = self._left_out
        self._left_out = set()
        if self.tasks.owners.total <= self.calls:
            return asks
        refs, *_ = compiled.awaited(asks, SharedNode)
        owners = self.tasks.owners.of_calls
        counts = Counter(owners[self.pending(refs & CALL_MASK)].tolist())
        room = self.calls
        taken = set[int]()
        for example in sorted({who.example for who, _ in asks}, key=lambda one: (one not in left_out, one)):
            if not taken or counts[example] <= room:
                taken.add(example)
                room -= counts[example]
            else:
                self._left_out.add(example)
        return [ask for ask in asks if ask[0].example in taken]

    def pending(self, calls: Integers) -> Integers:
        """Return the calls that a round for ``calls`` would run: them and what they need, less what ran.

        If rounds are steps, these are only the calls that can run next. Both arrays are int64 and have
        numbers of calls, from 0 in the order of recording.
        """
        if self.steps:
            return self.table.next_launches(calls)[0]
        self.table.extend()
        return self.table.select(calls).calls

    def run_round(self, asks: list[Ask]) -> None:
        """Run the calls that ``asks`` need, or one launch of each op of these; answer those that have all.

        ``asks`` are pairs of a task or an `Answer`, and the nodes whose values it needs.
        """
        refs, _, _, whole = compiled.awaited(asks, SharedNode)
        calls = refs & CALL_MASK
        run = None
        if self.steps:
            self.take_step(calls, calls[whole])
        else:
            # Where no coroutine is left to record more, each request has all its calls in this round.
            run = self.compute(calls, calls[whole], only=not self.tasks.unfinished).run
        if self._stopped:  # some have ended meanwhile
            asks = [ask for ask in asks if self.still_asks(ask)]
        self.answer(asks, run)

    def take_step(self, calls: Integers, whole: Integers) -> None:
        """Run one launch of each op among the calls that ``calls``, int64 numbers of calls, need next.

        ``whole`` are those of ``calls`` whose result is read as a whole, and not row by row: raise a
        `RecordError` if one of them has run in a launch with others. Where launches are padded and no rows
        are written in place, a plan runs them.
        """
        table = self.table
        if len(whole):
            table.extend()
            self.store.refuse_batched(whole)
            table.read_whole(whole)
        ready, launches = table.next_launches(calls)
        if self.backend.pads and not self.store.in_place:
            if len(ready):
                self.compute(ready, NO_INTEGERS)
            return
        if self.loop is None:
            self.loop = self.loop_of(self.graph, None)
        if self._in_pieces:
            launches = [piece for launch in launches for piece in pieces(*launch)]
        with self.loop.values.placed():
            self.run_launches(self.loop, ready, launches, self.notes)

    @property
    def stop(self) -> Callable[[], bool]:
        """The function `stops`, which is called between two launches."""
        return self.stops

    def stops(self) -> bool:
        """Return whether the round ends before its next launch.

        Once true, it is true for the rest of the round.
        """
        self._stopped = self._stopped or self._interrupts()
        return self._stopped

    def answer(self, asks: Sequence[Ask], run: Run | None) -> None:
        """Give tasks the values that they await, and finish requests, if all they need has run.

        ``run`` is the run of a plan that has just ended, if it has all values of ``asks``; else None.
        """
        tasks = [ask for ask in asks if not isinstance(ask[0], Answer)]
        if done := self.arrived(tasks):
            self.tasks.answer(done.who, self.values_of_tasks(done, run))
        answers = [ask for ask in asks if isinstance(ask[0], Answer)]
        plain = [ask for ask in answers if self.host and isinstance(ask[0], Answer) and ask[0].plain]
        if done := self.arrived(plain):
            self.finish(results_of(done.who, self.host_rows(done, run)))
            # `results_of` leaves out results with rows of several classes: those go on below.
            answers = [ask for ask in answers if self.still_asks(ask)]
        if done := self.arrived(answers):
            self.try_results(done.who)

    def arrived(self, asks: Sequence[Ask]) -> Arrived | None:
        """Return those of ``asks`` whose calls have all run, and where their rows are, or None."""
        if not asks:
            return None
        refs, _, sizes, whole = compiled.awaited([*asks], SharedNode)
        done, *where = self.table.arrived(refs, sizes)
        if len(done) < len(asks):
            asks = [asks[i] for i in done]
            refs, _, _, whole = compiled.awaited(asks, SharedNode)
        return Arrived([who for who, _ in asks], refs, whole, where) if done else None

    def values_of_tasks(self, done: Arrived, run: Run | None) -> list[Any]:
        """Return the value of each reference in ``done`` on the host: a row, or a whole result."""
        if not done.whole:
            return separate(self.host_rows(done, run))
        calls = done.refs & CALL_MASK
        run = run or self.compute(calls, calls[done.whole]).run
        return fetch(run, self.table.renumbered(done.refs), done.whole)

    def host_rows(self, done: Arrived, run: Run | None) -> HostRows:
        """Return the rows of the references in ``done`` on the host, in their order.

        If a result nests, ``run`` has them, or a plan without launches reads them.
        """
        found = None
        if self.loop is not None:
            with Readable(self.backend), self.loop.values.placed():
                found = self.store.host_rows(self.loop.values, *done.where)
        if found is None:
            run = run or self.compute(done.refs & CALL_MASK, NO_INTEGERS).run
            with Readable(self.backend), run.values.placed():
                found = host_rows(run, self.table.renumbered(done.refs))
        return found

    def finish(self, results: dict[int, Any]) -> None:
        """Store results, number of the example -> result, until `take_ended`, and forget their answers.

        These examples ask for nothing any more.
        """
        self._finished |= results
        for example in results:
            self._answers.pop(example, None)

    def plan_results(self, answers: list[Answer]) -> None:
        """Finish the requests of ``answers``, by a plan that puts their rows together and has no launches.

        Raise a `MultifoldError` if rows do not fit together.
        """
        # Loose values of all results are numbered on from those of the graph.
        loose = list(self.graph.loose)
        first = len(loose)
        taken: list[Outputs] = []
        for one in answers:
            taken.append(take_apart(self.recorder, one.value, len(loose)))
            loose += taken[-1].loose
        asked = Outputs(groups=[group for one in taken for group in one.groups], loose=loose[first:])
        values: Iterator[Any] = iter(())
        if asked.groups:
            values = iter(self.compute(asked.calls, asked.whole_calls, asked).outputs())
        self.finish(
            {one.example: self.result(outputs, values) for one, outputs in zip(answers, taken, strict=True)}
        )

    def try_results(self, answers: Sequence[Answer]) -> None:
        """Call `plan_results` for all answers, and where that fails for halves of them.

        Fail those that fail alone.
        """
        by_halves(answers, self.plan_results, lambda one, error: self.blame((one, one.nodes), error))

    def result(self, asked: Outputs, values: Iterator[Any]) -> Any:
        """Return the result of one request; ``values`` yields the value of each group of rows in ``asked``.

        With ``host`` it has NumPy arrays of its own, which are no views of others.
        """
        mine = [next(values) for _ in asked.groups]
        if not self.host and self.store.in_place and self.backend.writeable:
            mine = [optree.tree_map(self.copied, value) for value in mine]  # since others write to pages
        found = put_together(asked, mine)
        # A result may be a view of a launch's: the request would hold the rows of all others.
        return optree.tree_map(own, hosted(self.backend, found)) if self.host else found

    def copied(self, x: Any) -> Any:
        """Return a copy of an array of the framework that has axes, and anything else as it is."""
        if self.loop is None or not self.backend.owns(x) or not len(x.shape):
            return x
        return self.backend.gather(x, self.loop.values.upload([np.arange(self.backend.rows(x))], int)[0])

    def take_ended(self) -> list[Ended]:
        """Forget the requests that have ended; return each with its result and its error.

        An entry is ``(request, result, None)`` or ``(request, None, error)``; failed ones come first. Once
        ended requests had a fourth of a round's calls, their results are dropped.
        """
        tasks = self.tasks
        ended: list[tuple[int, Any, Exception | None]] = [
            (example, None, error) for example, error in tasks.failures.items()
        ]
        ended += [(example, result, None) for example, result in self._finished.items()]
        self._finished = {}
        found = [(self.forget(example), result, error) for example, result, error in ended]
        if tasks.ended > self.calls // GONE:
            self.store.keep_only(*tasks.alive(len(self.table)))
        return found

    def drop(self, example: int) -> Request:
        """Give up an example: close its coroutines, and forget it and its result; return its request.

        The request gets no outcome here.
        """
        self._finished.pop(example, None)
        # The error closes the coroutines. `forget` drops it, so no caller sees it.
        self.tasks.fail(example, CancelledError())
        return self.forget(example)

    def forget(self, example: int) -> Request:
        """Remove an example that has ended from all tables; return its request."""
        self._answers.pop(example, None)
        self._left_out.discard(example)
        return self.tasks.end(example)


def settled(loops: LoopOf, settling: Settling, columns: Columns, before: Loop | None) -> Loop:
    """Return what ``loops`` returns for these columns, with ``settling`` on its launcher."""
    found = loops(columns, before)
    found.launcher.settle_by(settling)
    return found


def pieces(number: int, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield calls ``begin:end`` of a launch of signature ``number`` in pieces of 1, 2, 4, ... calls.

    The last piece is all that is left once a piece and one of twice its size no longer fit, so it has at
    least twice the calls of the one before.

    Examples
    --------
    >>> list(pieces(3, 10, 23))  # 13 calls of signature 3
    [(3, 10, 11), (3, 11, 13), (3, 13, 23)]
    """
    size = 1
    while end - begin >= 3 * size:  # this piece, and one that is larger
        yield number, begin, begin + size
        begin += size
        size *= 2
    yield number, begin, end
