"""Rounds: all examples run until they wait, then what they wait for runs as one minibatch.

A round runs the calls that the awaited values need and nothing else; calls that were recorded and are not
needed yet stay pending, and share launches with later ones. What a round computed is given to the next
ones (`multifold._await.calls`, `multifold._await.store`). The last round runs what the results of the
examples need: without any ``await`` it is the only one, and the same as `Fold.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from multifold._await.calls import CallTable
from multifold._await.fetch import fetch
from multifold._await.report import Report, Round
from multifold._await.results import merged_results
from multifold._await.store import Store
from multifold._await.tasks import ExampleTask, Tasks, add_note
from multifold._record.graph import Graph
from multifold._record.node import CALL_MASK, Node, SharedNode
from multifold._run.loop import Loop, Outcome
from multifold._run.run import Run
from multifold._schedule.columns import Columns, Integers
from multifold._schedule.outputs import Outputs, put_together_examples
from multifold._wiring.plan import make_plan
from multifold._wiring.wiring import Place
from multifold.errors import MultifoldError

LoopOf = Callable[[Columns, Loop | None], Loop]
"""Returns what runs the plans of a round, from its calls and the loop of the round before."""

Request = tuple[ExampleTask, list[Node]]
"""A task, and the nodes whose values it waits for."""

NONE: Integers = np.zeros(0, np.int64)
"""No references, and no examples that wait for them."""


class Window(NamedTuple):
    """The calls of one round as a small graph.

    Attributes
    ----------
    columns : Columns
        The given calls, then those that are run.
    calls : int64 array
        The number in the table of each of these calls.
    place : Place
        Where the given calls are; launch ``i`` is the stored result ``results[i]``.
    results : list of int
        The stored results that are read.
    alone : int64 array
        The calls to be run whose whole result is read, by their numbers here.
    """

    columns: Columns
    calls: Integers
    place: Place
    results: list[int]
    alone: Integers


class Rounds:
    """One run of a function over examples.

    Parameters
    ----------
    recorder : Fold
        What the examples record on.
    loop_of : callable
        Returns what runs the plans of a round.
    policy : str
        The scheduling policy.
    context : callable
        What `Tasks` takes.
    collect : bool
        Whether examples that fail are set aside while the others go on.
    sweep : bool
        Whether results that no node can ask for are dropped. Not where equal calls are one node: an equal
        call that is recorded later asks for the result again.
    """

    def __init__(
        self,
        recorder: Any,
        loop_of: LoopOf,
        policy: str,
        context: Callable[[], Hashable],
        *,
        collect: bool,
        sweep: bool,
    ) -> None:
        self.recorder = recorder
        self.graph: Graph = recorder._graph
        self.loop_of = loop_of
        self.loop: Loop | None = None
        self.policy = policy
        self.sweep = sweep
        self.tasks = Tasks(recorder, context, collect=collect)
        self.table = CallTable(self.graph)
        self.store = Store(self.table)
        self.rounds: list[Round] = []
        self.before: Run | None = None  # the last round that was run

    def run(self, fn: Callable[..., Any], examples: Iterable[Any]) -> Any:
        """Run all examples; return what they returned, put together."""
        tasks = self.tasks
        for example in examples:
            tasks.start(fn, self.recorder, example)
        tasks.refuse_none()
        tasks.proceed()
        waiting = tasks.requests()
        while waiting:  # no walrus: AutoGraph would rewrite such a loop into one that fails
            self.attempt(waiting)
            tasks.proceed()
            waiting = tasks.requests()
        asked = merged_results(self.recorder, tasks, self.attempt_results, self.row_classes)
        if asked is None:
            return None
        return put_together_examples(asked, len(tasks.results), self.last(asked))

    def report(self) -> Report:
        """Return what `Fold.explain` tells of the rounds."""
        return Report(self.rounds, len(self.graph.signature))

    # ---- rounds in which values are awaited ----------------------------------------------------

    def attempt(self, waiting: Sequence[Request]) -> int:
        """Run a round for some tasks; if a launch fails, raise that in those tasks that need it.

        Return in how many tasks an error was raised. Those that need the failing launch are found by
        halving: among 64 tasks, one takes at most 2 * 6 further rounds.
        """
        try:
            values = iter(self.round(waiting))
        except MultifoldError as error:
            if len(waiting) == 1:
                self.tasks.throw(waiting[0][0], error)
                return 1
            blamed, middle = 0, len(waiting) // 2
            for half in (waiting[:middle], waiting[middle:]):
                # An error that was raised in one task closes those that its parent joined besides.
                if some := [request for request in half if self.tasks.is_open(request[0])]:
                    blamed += self.attempt(some)
            # If neither half fails by itself, the error is one of the batch, as a wrong number of rows. It
            # ends the run, except where failures are collected: then both halves have their values now.
            if not blamed and not self.tasks.collect:
                examples = dict.fromkeys(str(task.example) for task, _ in waiting)
                add_note(error, f"Awaited by examples {', '.join([*islice(examples, 10)])} of fold.run.")
                raise error
            return blamed
        for task, _ in waiting:
            self.tasks.answer(task, values)
        return 0

    def round(self, waiting: Sequence[Request]) -> list[Any]:
        """Run what the awaited values need; return those values on the host, task by task."""
        nodes = [node for _, mine in waiting for node in mine]
        refs = np.array([node._ref for node in nodes], np.int64)
        examples = np.array([task.example for task, mine in waiting for _ in mine], np.int64)
        whole = [i for i, node in enumerate(nodes) if isinstance(node, SharedNode)]
        run = self.compute(refs, whole, examples)
        return fetch(run, self.table.renumbered(refs), whole)

    def compute(self, refs: Integers, whole: Sequence[int], examples: Integers | None = None) -> Run:
        """Run what some references need, and keep all of it.

        The whole results are needed of the references at the positions ``whole``. ``examples`` says which
        example waits for each reference; None if no example does.
        """
        self.table.extend()
        if self.sweep:
            self.store.sweep()
        calls = refs & CALL_MASK
        if whole:
            self.store.refuse_batched(calls[whole])
            self.table.read_whole(calls[whole])
        window = self.window(calls)
        given = self.store.values(window.results)
        done = self.run_plan(window, Outputs(), given, keep=True)
        self.before = done.run
        self.store.keep(window.calls, done.timeline.calls, len(window.results), done.run)
        waits = (NONE, NONE) if examples is None else (examples, refs)
        self.rounds.append(Round(done.timeline, self.graph, *waits))
        return done.run

    def window(self, read: Integers) -> Window:
        """Return the calls of a round as a small graph.

        The calls ``read`` are those whose rows are wanted: such as were not run yet are run, the others
        are given.
        """
        selection = self.table.select(read)
        columns, calls = self.table.columns(selection), selection.kept
        results, place = self.store.place(selection.given, len(calls), self.before)
        self.store.refuse_batched(calls[columns.shared_calls])
        alone = len(selection.given) + self.table.whole[selection.calls].nonzero()[0]
        return Window(columns, calls, place, results, alone)

    def run_plan(self, window: Window, asked: Outputs, given: dict[int, Any], *, keep: bool) -> Outcome:
        """Plan and run a round; with ``keep`` its results stay, since later rounds may read them."""
        calls, graph = window.calls, self.graph
        self.loop = self.loop_of(window.columns, self.loop)
        backend = self.loop.backend
        plan = make_plan(
            window.columns,
            asked,
            self.policy,
            lambda call: graph.site(int(calls[call])),
            place=window.place,
            alone=window.alone,
            pad=backend.padded_rows if backend.pads else None,
        )
        return self.loop.run(plan, given, keep=keep)

    # ---- the end ---------------------------------------------------------------------------------

    def attempt_results(self, taken: dict[int, Outputs]) -> None:
        """Run what the results of some examples need; fail the examples for which that fails."""
        groups = [group for outputs in taken.values() for group in outputs.groups]
        rows = [np.atleast_1d(np.array(group, np.int64)) for group in groups]
        if not rows:
            return
        refs = np.concatenate(rows)
        whole = np.repeat([isinstance(group, int) for group in groups], list(map(len, rows)))
        nodes = refs >= 0
        try:
            self.compute(refs[nodes], np.flatnonzero(whole[nodes]).tolist())
        except MultifoldError as error:
            examples = list(taken)
            if len(examples) == 1:
                self.tasks.fail(examples[0], error)
                return
            middle = len(examples) // 2
            for half in (examples[:middle], examples[middle:]):
                self.attempt_results({example: taken[example] for example in half})

    def row_classes(self, refs: Integers, loose: list[Any]) -> list[Any]:
        """Return what rows must have in common to be put together; `attempt_results` computed them."""
        if self.before is None:
            return []  # no example has any row
        values = self.before.values
        classes = list(map(values.class_of, self.store.parts(refs[refs >= 0])))
        return classes + [values.class_of_loose(loose[entry]) for entry in (-1 - refs[refs < 0]).tolist()]

    def last(self, asked: Outputs) -> list[Any]:
        """Run the last round; return the value of each group."""
        table, store = self.table, self.store
        table.extend()
        whole = np.array(asked.whole, np.int64) & CALL_MASK
        store.refuse_batched(whole)
        table.read_whole(whole)
        window = self.window(asked.calls)
        given = store.values(window.results)
        store.clear()  # so that each result is free after its last reader
        groups: list[Integers | int] = []
        for group in asked.groups:
            refs = table.renumbered(np.atleast_1d(group))
            groups.append(int(refs[0]) if isinstance(group, int) else refs)
        done = self.run_plan(window, Outputs(groups=groups, loose=asked.loose), given, keep=False)
        self.rounds.append(Round(done.timeline, self.graph, NONE, NONE))
        return done.values(groups)
