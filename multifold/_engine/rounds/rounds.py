"""Rounds: all examples run until they wait, then what they wait for runs as one minibatch.

A round runs the calls that the awaited values need and nothing else; calls that were recorded and are not
needed yet stay pending, and share launches with later ones. What a round computed is given to the next ones
(`multifold._engine.rounds.calls`, `multifold._engine.rounds.store`). The last round runs what the results
of the examples need: without any ``await`` it is the only one, and the same as `Fold.apply`.

Most rounds need no plan. Sixty-four sentences that are parsed word by word all wait for a score, again
and again, and each round runs the words that were taken and the subtrees that were joined since, and then
the scores: a launch of each op, like those of the round before. One look at the table shows whether a round
has one launch of each op only (`TableBase.frontier`). Each launch then gathers its operands
(`multifold._engine.rounds.gathers`). A plan runs what is left of a round from the first launch on that
can't be gathered. Calls that build on each other inside of a round are planned where gradients are wanted;
where they are not, one function of the scheduler finds the launches of each typed level, and these are
gathered.

Three rounds of two sentences, ``s`` takes a word, ``j`` joins, ``?`` scores:

=====  ==============  ==================
round  new calls       runs
=====  ==============  ==================
0      s s ? | s s ?   4 s and 2 ?
1      s ? | j ?       1 s, 1 j and 2 ?
2      j ? | j j ?     2 j, 1 j and 2 ?
=====  ==============  ==================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from itertools import islice, pairwise
from time import perf_counter
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.ops.messages import note
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.outputs import Outputs, put_together, take_apart
from multifold._engine.plan.plan import Frame
from multifold._engine.record.graph import Graph
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.rounds.calls import CallTable
from multifold._engine.rounds.fetch import Readable, fetch, separate
from multifold._engine.rounds.gathers import Gathers, Launches
from multifold._engine.rounds.results import merged_results
from multifold._engine.rounds.store import Store
from multifold._engine.rounds.tasks import Tasks, add_note
from multifold._engine.run.blame import by_halves
from multifold._engine.run.divide import ComputedRows
from multifold._engine.run.loop import Loop
from multifold._engine.run.outliers import other_shapes
from multifold._engine.run.report import NOBODY, Notes, Report, Waits
from multifold._engine.run.run import Run, Sections
from multifold.errors import LaunchError, MultifoldError

LoopOf = Callable[[Columns | Graph, Loop | None], Loop]
"""Returns what runs the plan of a round, from its calls and the loop of the round before."""

Ask = tuple[Any, list[Node]]
"""An `ExampleTask`, or in a server an `Answer`, and the nodes whose values it waits for."""


class Rounds:
    """One run of a function over examples; `multifold.serve.engine.Engine` is one that never ends.

    Parameters
    ----------
    recorder : Fold
        What the examples record on.
    tasks : Tasks
        What runs the examples until they wait.
    loop_of : callable
        Returns what runs the plan of a round.
    sweep : bool
        Whether results that no node can ask for are dropped.
    in_place : bool
        Whether rows may be written in place, into pages.
    """

    def __init__(
        self, recorder: Any, tasks: Tasks, loop_of: LoopOf, *, sweep: bool, in_place: bool
    ) -> None:
        self.recorder = recorder
        self.tasks = tasks
        self.loop_of = loop_of
        self.sweep = sweep
        self.graph: Graph = recorder._graph
        self.table = CallTable(self.graph)
        self.rounds: list[Report] = []
        self.notes: Notes | None = None  # of the round under way, if that is not one plan
        self.loop: Loop | None = None  # the loop that ran the last round; None before the first
        self.idle = perf_counter()  # since when no round runs: the examples record
        self.store = Store(self.table, in_place=in_place)
        self.gathers = Gathers(self.table, self.store)

    def run(self, fn: Callable[..., Any], examples: Iterable[Any]) -> Any:
        """Call ``fn(fold, example)`` for all examples, run all rounds, and put together what they return.

        None if all examples failed and failures are collected. Raises `RecordError` if there is no example.
        """
        tasks = self.tasks
        for example in examples:
            tasks.start(fn, example)
        tasks.refuse_none()
        while waiting := tasks.proceed():
            self.attempt(waiting)
        asked = merged_results(self.recorder, tasks, self.attempt_results, self.row_classes, self.agreed)
        if asked is None:
            return None
        return put_together(asked, self.last(asked), len(tasks.results))

    def attempt(self, waiting: Sequence[Ask]) -> None:
        """Run a round for these tasks, pairs of a task and the nodes it waits for, and answer them.

        If a launch fails, the tasks are halved until those that need it are found, and its error is raised
        at their ``await``; an error that tasks have only together goes to `refuse_together`.
        """
        by_halves(
            waiting,
            self.run_and_answer,
            lambda request, error: self.tasks.throw(request[0], error),
            # An error that was raised in one task closes those that its parent joined besides.
            still_asks=lambda request: self.tasks.is_open(request[0]),
            together=self.refuse_together,
        )

    def run_and_answer(self, waiting: list[Ask]) -> None:
        """Run what these tasks wait for, and let them go on with the values at the next `Tasks.proceed`.

        ``waiting`` has pairs of a task and its nodes. Raises what a launch raises; then no task has an
        answer.
        """
        refs, examples, _, whole = compiled.awaited(waiting, SharedNode)
        values = self.values_of(refs, examples, whole)
        self.tasks.answer([task for task, _ in waiting], values)

    def refuse_together(self, waiting: list[Ask], error: MultifoldError) -> None:
        """Raise an error that no half of these tasks has alone, as a wrong number of rows.

        A note names their examples, the first ten of them. If `Tasks.collect` is set, which keeps
        exceptions of examples instead of raising them, nothing is raised: both halves have their values
        now.
        """
        if not self.tasks.collect:
            examples = dict.fromkeys(str(task.example) for task, _ in waiting)
            add_note(error, f"Awaited by examples {', '.join([*islice(examples, 10)])} of fold.run.")
            raise error

    def values_of(self, refs: Integers, examples: Integers, whole: list[int]) -> list[Any]:
        """Run the calls that ``refs`` need; return the value of each reference on the host, in order.

        ``examples`` has the number of the example that waits for each reference, and ``whole`` the
        positions of those whose whole result is wanted.
        """
        calls = refs & CALL_MASK
        if self.loop is None:
            self.loop = self.loop_of(self.graph, None)
        found = None if whole else self.gathered_values(self.loop, refs, examples)
        if found is not None:
            return found
        done = self.compute(calls, calls[whole], waits=(examples, refs))
        return fetch(done.run, self.table.renumbered(refs), whole)

    def values_at_once(self, nodes: Sequence[Node]) -> list[Any]:
        """Run what some nodes need, while the code of an example runs; return their values on the host.

        What ran is not run again by a round that comes later.
        """
        refs = np.array([node._ref for node in nodes], np.int64)
        return self.values_of(refs, np.zeros_like(refs), [])

    def gathered_values(self, loop: Loop, refs: Integers, examples: Integers) -> list[Any] | None:
        """Run the calls that ``refs`` need by gathers; return the value of each on the host, in order.

        None, and nothing has run, if `launches` has none. Launches that can't be gathered run by plans.
        ``examples`` has the example that waits for each reference, for the report, which is appended to
        ``rounds``.
        """
        ready, launches = self.launches(loop, refs & CALL_MASK)
        if launches is None:
            return None
        values = loop.values
        with values.placed():
            self.run_by_gathers(loop, ready, launches, (examples, refs))
            with Readable(values.backend):
                found = self.store.host_rows(values, *self.table.arrived(refs, [len(refs)])[1:])
        if found is None:
            # A plan without launches reads what nests, and refuses a part that is not there.
            done = self.compute(refs & CALL_MASK, NO_INTEGERS)
            return fetch(done.run, self.table.renumbered(refs), [])
        self.idle = perf_counter()
        return separate(found)

    def run_by_gathers(self, loop: Loop, ready: Integers, launches: Launches, waits: Waits) -> None:
        """Run the launches of a round by gathers where numbers are placed; append its report to ``rounds``.

        ``ready`` has the calls of all launches, and ``waits`` which example waits for which reference.
        """
        self.notes = notes = Notes({"record": perf_counter() - self.idle})
        failed = True
        try:
            self.run_launches(loop, ready, launches, notes)
            failed = False
        finally:
            self.notes = None
            if notes.calls or not failed:
                self.rounds.append(self.report(notes, NO_INTEGERS, waits))

    @property
    def stop(self) -> Callable[[], bool] | None:
        """A function that is called between two launches and returns whether the round ends there.

        None here. A subclass whose rounds may end early returns one.
        """
        return None

    def launches(self, loop: Loop, calls: Integers) -> tuple[Integers, Launches | None]:
        """Return the calls that have to run for ``calls``, launch after launch, and the launches.

        A launch is (number of the signature, where its calls begin, where they end). The launches are None,
        and a plan is needed, if only a policy can tell them (`by_level`), if calls that build on each other
        are to be differentiated, or if launches are padded and no rows are written in place, since reading
        the results of many launches would compile too often. Appends new calls to the table, and may sweep
        the store.
        """
        in_place = self.store.in_place
        if loop.values.backend.pads and not in_place:
            return NO_INTEGERS, None
        table = self.table
        if self.sweep:
            self.store.sweep()
        ready, launches = table.next_launches(calls)
        # `pending` is now how many calls are needed: more than are ready if an op takes several launches.
        if len(ready) == table.pending:
            return ready, launches
        return self.by_level(calls) if in_place else (NO_INTEGERS, None)

    def by_level(self, calls: Integers) -> tuple[Integers, Launches | None]:
        """Return what `launches` does, with a launch for each signature and typed level.

        The typed level of a call is how many calls of its signature lie on the longest path to it. The
        launches are None, and the calls empty, if signatures read each other in a circle in which these
        launches have no order.
        """
        selection = self.table.select(calls)
        columns = self.table.columns(selection)
        pending = np.arange(selection.first, len(selection.kept))
        found = compiled.schedule(columns.signature, pending, *columns.reads)
        if len(found) > 3:
            return NO_INTEGERS, None
        order = selection.kept[found[0]]
        bounds = pairwise(found[1].tolist())
        numbers = self.table.signature_of(order[found[1][:-1]]).tolist()
        return order, [(number, begin, end) for number, (begin, end) in zip(numbers, bounds, strict=True)]

    def run_launches(self, loop: Loop, ready: Integers, launches: Launches, notes: Notes) -> None:
        """Run launches by gathers until all ran or the round stops; a plan runs what can't be gathered.

        That is all from the first such launch on. ``ready`` has the calls of all launches; ``notes`` gets
        those that ran by gathers, with their times, and those of the plan if it is the round's
        ``self.notes``.
        """
        stop = self.stop
        for number, begin, end in launches:
            calls = ready[begin:end]
            try:
                launched = self.gathers.launch(loop, number, calls)
            except LaunchError as error:
                self.tell_odd_ones(loop, ready, error, calls)
                raise
            if launched is not None:
                notes.launched(*launched)
            if stop is not None and stop():
                return
            if launched is None:
                self.compute(ready[begin:], NO_INTEGERS)
                return

    def tell_odd_ones(self, loop: Loop, ready: Integers, error: LaunchError, calls: Integers) -> None:
        """Add a note to the error of a launch of ``calls``: the row shapes of other calls of its op.

        ``ready`` has all calls of the round. Nothing is added if these have the same shapes.
        """
        table = self.table
        selection = table.select(ready)
        given, place = table.given(selection, self.store, None)
        frame = Frame(table.columns(selection), Outputs(), self.graph.site, place=place)
        plan = self.recorder._plans.plan(frame, runs=False)
        classes: dict[tuple[int, int], Hashable] = {}
        for ref in [*frame.columns.refs.tolist(), *frame.columns.members.tolist()]:
            launch = int(place.launch[ref & CALL_MASK]) if ref >= 0 else -1
            if launch >= 0:
                part = ref >> PART_BITS
                leaf = self.store.leaf(part << PART_BITS | int(given[launch]), loop.values)
                classes[launch, part] = None if leaf is None else leaf[0].classes[leaf[1]]
        met = ComputedRows(loop.values, plan, place, classes)
        note(error, other_shapes(met, int(table.renumbered(calls[:1])[0])))

    def compute(
        self,
        calls: Integers,
        whole: Integers,
        results: Outputs | None = None,
        waits: Waits | None = None,
        last: bool = False,
        only: bool = False,
    ) -> Sections:
        """Run what some calls need as one minibatch, by a plan; keep the results unless ``last`` is true.

        Where the round may `stop`, what ran before is kept, and also if a launch has failed.

        Parameters
        ----------
        calls, whole : int64 arrays
            The calls that are needed, and the calls among them whose whole results are needed.
        results : Outputs, optional
            What examples have returned, whose values are outputs of the round.
        waits : pair of int64 arrays, optional
            Which example waits for which reference. Then this is a round of its own, with a report; else it
            is a part of the round under way.
        last : bool
            Whether this is the last round, which keeps nothing.
        only : bool
            Whether no other calls will read what this round computes: then the memory of a result is free
            as soon as its last reader has run, and the results of ``calls`` are kept.
        """
        table = self.table
        store = self.store
        recording = perf_counter() - self.idle
        table.extend()
        if self.sweep and not last:
            store.sweep()
        store.refuse_batched(whole)
        table.read_whole(whole)
        selection = table.select(calls)
        given, place = table.given(selection, store, None if self.loop is None else self.loop.values)
        columns = table.columns(selection)
        numbers = selection.kept
        store.refuse_batched(numbers[columns.shared_calls])
        self.loop = self.loop_of(columns, self.loop)
        backend = self.loop.values.backend
        frame = Frame(
            columns,
            Outputs() if results is None else table.outputs(results),
            lambda call: self.graph.site(int(numbers[call])),
            place=place,
            alone=table.alone(selection),
            pad=backend.padded_rows if backend.pads else None,
            keeps=not (last or only),
            recording=recording,
            whose=(lambda call: self.whose(int(numbers[call]))) if last else None,
        )
        plan = self.recorder._plans.plan(frame, runs=True)
        values = store.values(given)
        if last:
            store.clear()  # `values` has the results now, and the run drops each after its last reader
        keep = partial(self.keep, numbers, len(given))
        failed = None if self.stop is None else keep
        stays = table.renumbered(calls) if only else NO_INTEGERS
        done = self.loop.run(plan, values, stays=stays, stop=self.stop, failed=failed)
        notes = done.run.notes.renumbered(numbers, len(given)) if last else keep(done.run)
        if waits is not None:
            self.rounds.append(self.report(notes, numbers[plan.alone], waits))
        self.idle = perf_counter()
        return done

    def report(self, notes: Notes, alone: Integers, waits: Waits) -> Report:
        """Make the report of a round that has run.

        ``notes`` and ``alone``, the calls that ran alone, have calls by their numbers in the graph.
        ``waits`` has the examples and the references that they wait for.
        """
        launcher = self.loop.launcher  # type: ignore[union-attr]  # it has run
        graph = self.graph
        return Report(
            notes,
            graph,
            launcher.backend,
            self.recorder._policy,
            graph.site,
            alone,
            waits=waits,
            untried=launcher.trials.untried,
        )

    def keep(self, numbers: Integers, given: int, run: Run) -> Notes:
        """Store the results of a run, and return its notes with the numbers that calls have in the graph.

        Call ``i`` of the run is call ``numbers[i]``, and its first ``given`` launches are results of rounds
        before. Notes are joined to those of the round under way, if there is one.
        """
        self.store.keep(numbers, given, run)
        notes = run.notes.renumbered(numbers, given)
        if self.notes is not None:
            self.notes.joined(notes)
        return notes

    def whose(self, call: int) -> str:
        """Return ``"example 3"``, the first example whose result needs a call, for messages.

        ``""`` if none does.
        """
        for example, result in sorted(self.tasks.results.items()):
            asked = take_apart(self.recorder, result, 0, fewest=0)
            if call in self.table.select(asked.calls).kept:
                return f"example {example}"
        return ""

    def attempt_results(self, taken: dict[int, Outputs]) -> None:
        """Run what the results of some examples need; call `Tasks.fail` for those for which that fails.

        ``taken`` maps the number of an example to what it returned, as `Outputs`. If a launch fails, the
        examples are halved until each that fails alone is found. The results that were computed are kept.
        """

        def run(examples: list[int]) -> None:
            asked = Outputs(groups=[group for example in examples for group in taken[example].groups])
            if asked.groups:
                self.compute(asked.calls, asked.whole_calls, waits=NOBODY)

        by_halves(taken, run, self.tasks.fail)

    def row_classes(self, refs: Integers, loose: list[Any]) -> list[Any]:
        """Return the classes (`Values.class_of`) of the rows that ``refs`` read, in a list.

        Rows are put together if these agree (`agreed`). Each part of a result that is read comes once, and
        then each loose value: reference ``-1 - i`` is ``loose[i]``. The list is empty before anything has
        run.
        """
        if self.loop is None:
            return []  # no example has any row
        values = self.loop.values
        classes = list(map(values.class_of, self.store.parts(refs[refs >= 0])))
        return classes + [values.class_of_loose(loose[i]) for i in (-1 - refs[refs < 0]).tolist()]

    def agreed(self, classes: Collection[Hashable]) -> Hashable | None:
        """Return the class that rows of these classes get when they are joined (`Values.agreed`).

        A class is structure, trailing shapes, dtypes and devices. None if they can't be joined, or before
        any round.
        """
        return None if self.loop is None else self.loop.values.agreed(classes)

    def last(self, asked: Outputs) -> list[Any]:
        """Run the last round, with a report; return the value of each group of ``asked``, in order.

        The store is empty afterwards, since no round comes that could read it.
        """
        if self.loop is not None and not (asked.loose or asked.kept):
            found = self.gathered_results(self.loop, asked)
            if found is not None:
                return found
        return self.compute(asked.calls, asked.whole_calls, asked, waits=NOBODY, last=True).outputs()

    def gathered_results(self, loop: Loop, asked: Outputs) -> list[Any] | None:
        """Run the last round by gathers; return the rows of each group of ``asked``, in order.

        None if a plan is needed, which then finds what has run. It drops each result after its last reader,
        so where results are no pages, and there is more than one launch, it is.
        """
        groups = asked.batched
        if loop.values.backend.pads or len(groups) < len(asked.groups):
            return None
        ready, launches = self.launches(loop, np.concatenate([NO_INTEGERS, *groups]) & CALL_MASK)
        if launches is None or (len(launches) > 1 and not self.store.in_place):
            return None
        with loop.values.placed():
            self.run_by_gathers(loop, ready, launches, NOBODY)
            found = [self.gathers.rows(loop.values, group, alone=len(groups) == 1) for group in groups]
        return None if any(x is None for x in found) else found
