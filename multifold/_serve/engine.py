"""The requests under way, and the rounds that compute what they wait for.

An engine is a run of `multifold._await` that never ends by itself: examples come and go. Besides what a run
does, it knows

- *whose calls are whose*: the calls that a task records while it runs are its request's, so the results of
  requests that have finished can be dropped, and the calls of those under way be counted;
- *what a round has room for*: requests in the order in which they were taken, until their calls are as many
  as the budget allows. The first one always has room, so a request that is larger than the budget runs,
  with no other beside it;
- *who is to blame*: if a launch fails, halves of the requests run again by themselves, until those that
  fail stand alone. All others have their values then.

A fold numbers its calls and forgets none of them, so an engine is used for so many calls, and another one
takes the requests that come then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from multifold._await.calls import Growing
from multifold._await.fetch import fetch, hosted
from multifold._await.rounds import Rounds, references
from multifold._await.tasks import ExampleTask, Tasks
from multifold._compiled.arrays import CALL_MASK
from multifold._record.node import Node
from multifold._schedule.outputs import Outputs, put_together, take_apart
from multifold._serve.requests import Request
from multifold.backend import Backend
from multifold.errors import MultifoldError
from multifold.fold import Fold

EXPLAINED = 64
"""Rounds that are kept, for what is told of them."""


@dataclass(slots=True)
class Want:
    """What a request needs from a round: the values that a task waits for, or those of its result."""

    example: int
    task: ExampleTask | None
    nodes: list[Node]
    result: Any = None


class ServedTasks(Tasks):
    """Tasks that belong to requests, and know which calls each of these has recorded.

    Attributes
    ----------
    requests : dict of int to Request
        Those under way, by the number of the example.
    owner : column of int
        The example that recorded each call.
    recorded : dict of int to int
        How many calls each request under way has.
    load : int
        How much room these take: the calls of each, but at most an eighth of the room. One that goes on
        and on may not keep others out.
    ended : int
        How many calls those had that have ended since the engine last looked.
    fresh : dict of int to int
        How many calls each has recorded since it last was in a round.
    """

    def __init__(self, fold: Fold, backend: Backend, calls: int) -> None:
        super().__init__(fold, backend.context, collect=True)
        self.fold = fold
        self.share = max(1, calls // 8)
        self.requests: dict[int, Request] = {}
        self.owner = Growing()
        self.recorded: dict[int, int] = {}
        self.load = self.ended = 0
        self.fresh: dict[int, int] = {}

    def named(self, example: int) -> str:
        return self.requests[example].name

    def begin(self, request: Request, fn: Callable[..., Any]) -> None:
        """Let the function record the example of a request, up to where it waits."""
        example = self.started
        self.requests[example] = request
        self.recorded[example] = self.fresh[example] = 0
        self.start(fn, self.fold, request.example)
        self._own(example)

    def end(self, example: int) -> Request:
        """Forget a request, whatever has become of it."""
        self.load -= min(self.recorded[example], self.share)
        self.ended += self.recorded[example]
        for found in (self.results, self.failures, self.recorded, self.fresh):
            found.pop(example, None)
        return self.requests.pop(example)

    def alive(self) -> np.ndarray:
        """Return for each call whether its request is under way, and begin to count the ended ones anew."""
        self.ended = 0
        found = np.zeros(self.started, bool)
        found[list(self.requests)] = True
        alive: np.ndarray = found[self.owner.values]
        return alive

    @property
    def unfinished(self) -> int:
        """How many coroutines have not finished."""
        return len(self._open)

    def _step(self, task: ExampleTask, method: Callable[[Any], Any], argument: Any) -> None:
        super()._step(task, method, argument)
        self._own(task.example)

    def _own(self, example: int) -> None:
        """Note that an example has recorded the calls that nobody owns yet."""
        first = self.owner.size
        if count := len(self.fold) - first:
            self.owner.grow(count)
            self.owner.values[first:] = example
            if example in self.requests:
                before = self.recorded[example]
                self.recorded[example] = after = before + count
                self.load += min(after, self.share) - min(before, self.share)
                self.fresh[example] += count


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
    """

    tasks: ServedTasks

    def __init__(self, fold: Fold, model: Any, fn: Callable[..., Any], calls: int, host: bool) -> None:
        self.backend = fold._backend_of(model)
        tasks = ServedTasks(fold, self.backend, calls)
        super().__init__(fold, tasks, fold._loops(model, False), sweep=False)
        self.model = model
        self.fn, self.calls, self.host = fn, calls, host
        self.finished: dict[int, Any] = {}
        self.count = self.launches = self.ran = 0
        self._open = ExitStack()
        self._open.enter_context(self.tasks.running())

    def end(self) -> None:
        """Let go of everything. The fold may be used again, and knows what it has learned."""
        self._open.close()
        self.store.clear()
        self.recorder.reset()

    def step(self) -> Iterator[tuple[Request, Any, Exception | None]]:
        """Run one round; yield each request that has ended, its result, and what it has raised."""
        tasks = self.tasks
        wants = [Want(task.example, task, nodes) for task, nodes in tasks.proceed()]
        wants += [Want(example, None, [], result) for example, result in tasks.results.items()]
        if wants:
            self.graph.refuse_changed()
            self.attempt_wants(self.with_room(wants))
        failed = [(example, None, error) for example, error in tasks.failures.items()]
        done = [(example, result, None) for example, result in self.finished.items()]
        self.finished = {}
        for example, result, error in [*failed, *done]:
            yield tasks.end(example), result, error
        if tasks.ended > self.calls:
            self.forget()
        del self.rounds[:-EXPLAINED]

    def with_room(self, wants: list[Want]) -> list[Want]:
        """Return what the next round is for: whole requests, the oldest ones first."""
        room, taken = self.calls, set[int]()
        fresh = self.tasks.fresh
        for example in dict.fromkeys(sorted(want.example for want in wants)):
            if not taken or fresh[example] <= room:
                taken.add(example)
                room -= fresh[example]
        for example in taken:
            fresh[example] = 0
        return [want for want in wants if want.example in taken]

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
                if want.task is None:
                    self.tasks.fail(want.example, error)
                else:
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
        graph, tasks, loose = self.graph, self.tasks, list(self.graph.loose)
        taken: dict[int, Outputs] = {}
        for want in [want for want in wants if want.task is None]:
            try:
                taken[want.example] = outputs = take_apart(self.recorder, want.result, len(loose))
                loose += outputs.loose
            except Exception as error:  # noqa: BLE001 - what a user returns may be anything
                tasks.fail(want.example, error)
        refs, whole = references([want.nodes for want in wants])
        groups = [group for outputs in taken.values() for group in outputs.groups]
        asked = Outputs(groups=groups, loose=loose[len(graph.loose) :])
        calls, wholes = refs & CALL_MASK, (refs & CALL_MASK)[whole]
        if groups:
            calls, wholes = (
                np.concatenate([calls, asked.calls]),
                np.concatenate([wholes, asked.whole_calls]),
            )
        values = found = iter(())
        if len(calls) or groups:
            examples = np.array([want.example for want in wants for _ in want.nodes], np.int64)
            done = self.compute(calls, wholes, asked if groups else None, waits=(examples, refs))
            self.note(done.run.timeline.calls)
            values = iter(fetch(done.run, self.table.renumbered(refs), whole)) if len(refs) else values
            found = iter(done.outputs()) if groups else found
        results = {example: self.result(outputs, found) for example, outputs in taken.items()}
        # From here on nothing can fail, so no task is answered twice.
        tasks.answer([want.task for want in wants if want.task is not None], values)
        for example in results:
            del tasks.results[example]
        self.finished.update(results)

    def note(self, launches: Sequence[Any]) -> None:
        """Count a round, its launches and the calls in them."""
        self.count += 1
        self.launches += len(launches)
        self.ran += sum(map(len, launches))

    def result(self, asked: Outputs, values: Iterator[Any]) -> Any:
        """Return the result of one request, from the values of its groups."""
        mine = [next(values) for _ in asked.groups]
        found = put_together(asked, mine.__getitem__)
        # A result may be a view of a launch's: the request would hold the rows of all others.
        return optree.tree_map(own, hosted(self.backend, found)) if self.host else found

    def drop(self, example: int) -> Request:
        """Give a request up: close its coroutines, and forget it."""
        self.tasks.fail(example, CancelledError())
        return self.tasks.end(example)

    def forget(self) -> None:
        """Drop the results that only requests have read which have finished."""
        self.store.keep_only(self.tasks.alive()[: len(self.table)])


def own(x: Any) -> Any:
    """Return a copy of an array, and anything else as it is."""
    return x.copy() if isinstance(x, np.ndarray) else x
