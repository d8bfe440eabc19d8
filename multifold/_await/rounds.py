"""Rounds: all examples run until they wait, then what they wait for runs as one minibatch.

A round runs the calls that the awaited values need and nothing else; calls that were recorded and are not
needed yet stay pending, and share launches with later ones. What a round computed is given to the next
ones (`multifold._await.calls`, `multifold._await.store`). The last round runs what the results of the
examples need: without any ``await`` it is the only one, and the same as `Fold.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any

import numpy as np

from multifold import _compiled
from multifold._await.calls import CallTable
from multifold._await.fetch import fetch
from multifold._await.report import Round
from multifold._await.results import merged_results
from multifold._await.store import Store
from multifold._await.tasks import ExampleTask, Tasks, add_note
from multifold._await.told import Report
from multifold._compiled.arrays import CALL_MASK, Integers
from multifold._record.graph import Graph
from multifold._record.node import Node, SharedNode
from multifold._run.loop import Loop
from multifold._run.run import Run
from multifold._run.sections import Sections
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import Outputs, put_together_examples
from multifold._wiring.plan import make_plan
from multifold.errors import MultifoldError

LoopOf = Callable[[Columns, Loop | None], Loop]
"""Returns what runs the plan of a round, from its calls and the loop of the round before."""

Request = tuple[ExampleTask, list[Node]]
"""A task, and the nodes whose values it waits for."""

NONE: Integers = np.zeros(0, np.int64)
"""No references, and no examples that wait for them."""


class Rounds:
    """One run of a function over examples.

    Parameters
    ----------
    recorder : Fold
        What the examples record on.
    tasks : Tasks
        What runs the examples until they wait.
    loop_of : callable
        Returns what runs the plan of a round.
    sweep : bool
        Whether results that no node can ask for are dropped. Not where equal calls are one node: an equal
        call that is recorded later asks for the result again.
    pads : bool
        Whether launches are padded: such rounds are not planned in one compiled call.
    """

    def __init__(self, recorder: Any, tasks: Tasks, loop_of: LoopOf, *, sweep: bool, pads: bool) -> None:
        self.recorder = recorder
        self.tasks = tasks
        self.loop_of = loop_of
        self.sweep = sweep
        self.plans = recorder._policy == "auto" and not pads
        self.graph: Graph = recorder._graph
        self.table = CallTable(self.graph)
        self.store = Store(self.table)
        self.rounds: list[Report] = []
        self.loop: Loop | None = None  # the loop that ran the last round; None before the first
        self.idle = perf_counter()  # since when no round runs: the examples record

    def run(self, fn: Callable[..., Any], examples: Iterable[Any]) -> Any:
        """Run all examples; return what they returned, put together."""
        tasks = self.tasks
        for example in examples:
            tasks.start(fn, self.recorder, example)
        tasks.refuse_none()
        waiting = tasks.proceed()
        while waiting:  # no walrus: AutoGraph would rewrite such a loop into one that fails
            self.attempt(waiting)
            waiting = tasks.proceed()
        asked = merged_results(self.recorder, tasks, self.attempt_results, self.row_classes, self.agreed)
        if asked is None:
            return None
        return put_together_examples(asked, len(tasks.results), self.last(asked))

    # ---- rounds in which values are awaited ----------------------------------------------------

    def attempt(self, waiting: Sequence[Request]) -> bool:
        """Run a round for some tasks; if a launch fails, raise that in those tasks that need it.

        Return whether an error was raised in one of them. Those that need the failing launch are found by
        halving: among 64 tasks, one takes at most 2 * 6 further rounds.
        """
        try:
            values = iter(self.round(waiting))
        except MultifoldError as error:
            if len(waiting) == 1:
                self.tasks.throw(waiting[0][0], error)
                return True
            blamed = False
            middle = len(waiting) // 2
            for half in (waiting[:middle], waiting[middle:]):
                # An error that was raised in one task closes those that its parent joined besides.
                if some := [request for request in half if self.tasks.is_open(request[0])]:
                    blamed |= self.attempt(some)
            # If neither half fails by itself, the error is one of the batch, as a wrong number of rows. It
            # ends the run, except where failures are collected: then both halves have their values now.
            if not blamed and not self.tasks.collect:
                examples = dict.fromkeys(str(task.example) for task, _ in waiting)
                add_note(error, f"Awaited by examples {', '.join([*islice(examples, 10)])} of fold.run.")
                raise error
            return blamed
        self.tasks.answer([task for task, _ in waiting], values)
        return False

    def round(self, waiting: Sequence[Request]) -> list[Any]:
        """Run what some tasks wait for; return those values on the host, task by task."""
        refs, examples, _, whole = _compiled.awaited(list(waiting), SharedNode)
        return self.values_of(refs, examples, whole)

    def values_of(self, refs: Integers, examples: Integers, whole: list[int]) -> list[Any]:
        """Run what some references need; return their values on the host.

        ``examples`` says who waits for each reference, and ``whole`` holds the positions of those that are
        read whole.
        """
        calls = refs & CALL_MASK
        done = self.compute(calls, calls[whole] if whole else NONE, waits=(examples, refs))
        return fetch(done.run, self.table.renumbered(refs), whole)

    def compute(
        self,
        calls: Integers,
        whole: Integers,
        results: Outputs | None = None,
        waits: tuple[Integers, Integers] = (NONE, NONE),
        last: bool = False,
        stop: Callable[[int], bool] | None = None,
        only: bool = False,
    ) -> Sections:
        """Run what some calls need, as one minibatch.

        Parameters
        ----------
        calls, whole : int64 arrays
            The calls that are needed, and the calls among them whose whole results are needed.
        results : Outputs, optional
            What examples have returned, whose values are outputs of the round.
        waits : pair of int64 arrays
            Which example waits for which reference, for `Fold.explain`.
        last : bool
            Whether this is the last round, which keeps nothing.
        stop : callable, optional
            Asked between two launches, with how many are left, whether the round ends there. What ran is
            kept then, and also if a launch has failed.
        only : bool
            Whether no other calls will read what this round computes: then the memory of a result is free
            as soon as its last reader has run, and the results of ``calls`` are kept.
        """
        table = self.table
        store = self.store
        graph = self.graph
        recording = perf_counter() - self.idle
        if table.note_signatures() or len(whole):
            table.extend()  # else the round does
        if self.sweep and not last:
            store.sweep()
        store.refuse_batched(whole)
        table.read_whole(whole)
        before = None if self.loop is None else self.loop.values
        began = perf_counter()
        selection, columns, given, place, found = table.cut(
            calls, results, store, before, plans=self.plans, keeps=not (last or only)
        )
        numbers = selection.kept
        store.refuse_batched(numbers[columns.shared_calls])
        self.loop = self.loop_of(columns, self.loop)
        backend = self.loop.values.backend
        plan = make_plan(
            columns,
            Outputs() if results is None else table.outputs(results),
            self.loop.policy,
            lambda call: graph.site(int(numbers[call])),
            place=place,
            alone=table.alone(selection),
            pad=backend.padded_rows if backend.pads else None,
            keeps=not (last or only),
            recording=recording,
            stays=table.renumbered(calls) if only else None,
            found=None if backend.pads else found,
            began=began,
        )
        values = store.values(given)
        if last:
            store.clear()  # so that each result is free after its last reader
        keep = partial(self.keep, numbers, len(given))
        failed = None if stop is None else keep
        done = self.loop.run(plan, values, stop=stop, failed=failed)
        self.rounds.append(Round(done.run.timeline, graph, *waits, numbers))
        if not last:
            keep(done.run)
        self.idle = perf_counter()
        return done

    def keep(self, numbers: Integers, given: int, run: Run) -> None:
        """Keep the results of the launches that ran in a round; the first ``given`` ones ran before."""
        self.store.keep(numbers, given, run)

    # ---- the end ---------------------------------------------------------------------------------

    def attempt_results(self, taken: dict[int, Outputs]) -> None:
        """Run what the results of some examples need; fail the examples for which that fails."""
        asked = Outputs(groups=[group for outputs in taken.values() for group in outputs.groups])
        if not asked.groups:
            return
        try:
            self.compute(asked.calls, asked.whole_calls)
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
        if self.loop is None:
            return []  # no example has any row
        values = self.loop.values
        classes = list(map(values.class_of, self.store.parts(refs[refs >= 0])))
        return classes + [values.class_of_loose(loose[i]) for i in (-1 - refs[refs < 0]).tolist()]

    def agreed(self, classes: Collection[Hashable]) -> Hashable | None:
        """Return the class of rows of these classes when they are put together; None if they can't be."""
        return None if self.loop is None else self.loop.values.agreed(classes)

    def last(self, asked: Outputs) -> list[Any]:
        """Run the last round; return the value of each group."""
        return self.compute(asked.calls, asked.whole_calls, asked, last=True).outputs()
