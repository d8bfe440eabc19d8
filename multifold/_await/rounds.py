"""Rounds: all examples run until they wait, then what they wait for runs as one minibatch.

A round runs the calls that the awaited values need and nothing else; calls that were recorded and are not
needed yet stay pending, and share launches with later ones. What a round computed is given to the
next ones (`multifold._await.history`). The last round runs what the results of the examples need: without
any ``await`` it is the only one, and the same as `Fold.apply`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import optree

from multifold._await.history import History, Window, distinct
from multifold._await.results import (
    Results,
    merge_results,
    refuse_other,
    refuser_of_rows,
    take_apart_one,
    without_others,
)
from multifold._await.tasks import Task, Tasks, add_note, plain
from multifold._record.graph import Graph
from multifold._record.kinds import number_type
from multifold._record.node import CALL_MASK, PART_BITS, Node, SharedNode
from multifold._run.launch import Executor
from multifold._run.messages import said
from multifold._run.run import Run
from multifold._run.timeline import Timeline
from multifold._schedule.columns import Integers
from multifold._schedule.outputs import Outputs
from multifold._wiring.plan import Plan, make_plan
from multifold.errors import LaunchError, MultifoldError

Execute = Callable[[Plan, dict[int, Any], bool], tuple[Run, Executor, Timeline]]
"""Runs a plan with given blocks; the flag says whether blocks stay when nobody reads them any more."""

Request = tuple[Task, list[Node]]
"""A task, and the nodes whose values it waits for."""


@dataclass(frozen=True)
class Wait:
    """What one example waited for: references, since a node would keep its block alive."""

    example: int
    graph: Graph
    refs: tuple[int, ...]

    @property
    def names(self) -> list[str]:
        """The ops of what was awaited, with the paths to its parts."""
        return [described(self.graph, ref) for ref in self.refs]


NOBODY: Integers = np.zeros(0, np.int64)
"""No example, and nothing that one waits for."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round; in few objects, since runs of many rounds keep them all.

    Attributes
    ----------
    timeline : Timeline
        Its run.
    graph : Graph
        What its calls were recorded in.
    examples, refs : int64 arrays
        Which example waited for which reference; nobody does in the last round.
    """

    timeline: Timeline
    graph: Graph
    examples: Integers
    refs: Integers

    @property
    def waits(self) -> tuple[Wait, ...]:
        """Who waited for what."""
        pairs = zip(self.examples.tolist(), self.refs.tolist(), strict=True)
        return tuple(
            Wait(example, self.graph, tuple(ref for _, ref in mine))
            for example, mine in groupby(pairs, key=itemgetter(0))
        )


@dataclass
class Report:
    """The rounds of a run.

    Attributes
    ----------
    rounds : list of Round
        In the order in which they ran.
    recorded : int
        How many calls the fold held after the run.
    """

    rounds: list[Round] = field(default_factory=list)
    recorded: int = 0

    @property
    def backend(self) -> str:
        """The name of the backend."""
        return self.rounds[-1].timeline.backend if self.rounds else ""


class Rounds:
    """One run of a function over examples.

    Parameters
    ----------
    recorder : Fold
        What the examples record on.
    execute : callable
        Runs a plan.
    policy : str
        The scheduling policy.
    pad : callable or None
        Rows of a launch -> how many it is padded to.
    context : callable
        What `Tasks` takes.
    collect : bool
        Whether examples that fail are set aside while the others go on.
    sweep : bool
        Whether blocks that no node can ask for are dropped.
    """

    def __init__(
        self,
        recorder: Any,
        execute: Execute,
        policy: str,
        pad: Callable[[int], int] | None,
        context: Callable[[], Hashable],
        *,
        collect: bool,
        sweep: bool,
    ) -> None:
        self.recorder = recorder
        self.graph: Graph = recorder._graph
        self.execute = execute
        self.policy = policy
        self.pad = pad
        self.collect = collect
        self.sweep = sweep
        self.tasks = Tasks(recorder, context, collect=collect)
        self.history = History(self.graph)
        self.report = Report()
        self.before: Run | None = None
        self.blamed = 0

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
        return self.finish()

    # ---- rounds in which values are awaited ----------------------------------------------------

    def attempt(self, waiting: Sequence[Request]) -> None:
        """Run a round for some tasks; if a launch fails, raise that in those tasks that need it."""
        try:
            values = iter(self.round(waiting))
        except MultifoldError as error:
            self.blame(waiting, error)
        else:
            for task, _ in waiting:
                self.tasks.answer(task, values)

    def blame(self, waiting: Sequence[Request], error: MultifoldError) -> None:
        """Raise an error in the one task that is left, or try again with either half of several.

        An error that no task has alone is one of the batch, as a wrong number of rows: it ends the run, but
        where failures are collected, which leaves no example out that can be computed.
        """
        if len(waiting) == 1:
            self.blamed += 1
            self.tasks.throw(waiting[0][0], error)
            return
        before, middle = self.blamed, len(waiting) // 2
        for half in (waiting[:middle], waiting[middle:]):
            if some := [request for request in half if not request[0].done]:
                self.attempt(some)
        if self.blamed == before and not self.collect:
            examples = dict.fromkeys(str(task.example) for task, _ in waiting)
            add_note(error, f"Awaited by examples {', '.join([*islice(examples, 10)])} of fold.run.")
            raise error

    def halve(self, examples: Sequence[int], error: Exception, attempt: Callable[[set[int]], None]) -> None:
        """Give up the one example whose results fail, or try again with either half of several."""
        if len(examples) == 1:
            self.tasks.fail(examples[0], error)
            return
        middle = len(examples) // 2
        for half in (examples[:middle], examples[middle:]):
            attempt(set(half))

    def round(self, waiting: Sequence[Request]) -> list[Any]:
        """Run what the awaited values need; return those values on the host, task by task."""
        nodes = [node for _, mine in waiting for node in mine]
        refs = np.array([node._ref for node in nodes], np.int64)
        examples = np.array([task.example for task, mine in waiting for _ in mine], np.int64)
        whole = [i for i, node in enumerate(nodes) if isinstance(node, SharedNode)]
        run = self.compute(refs, whole, examples)
        return Fetch(run, self.history.renumbered(refs), whole).values()

    def compute(self, refs: Integers, whole: list[int], examples: Integers = NOBODY) -> Run:
        """Run what some references need, and keep all of it; ``examples`` wait for them, or nobody.

        Those at the positions ``whole`` are wanted whole.
        """
        history = self.history
        history.extend()
        if self.sweep:
            history.sweep()
        calls = refs & CALL_MASK
        if whole:
            history.read_whole(calls[whole])
        window = history.window(calls, self.before)
        plan = self.plan(window, Outputs(), self.graph.loose)
        run, _, timeline = self.execute(plan, self.given(window), True)
        self.before = run
        history.keep(window, run, timeline.calls)
        self.report.rounds.append(Round(timeline, self.graph, examples, refs if len(examples) else NOBODY))
        return run

    def given(self, window: Window) -> dict[int, Any]:
        """Return the blocks that a round reads, by their numbers in it."""
        return {i: self.history.blocks[block].value for i, block in enumerate(window.blocks)}

    def plan(self, window: Window, asked: Outputs, loose: Sequence[Any]) -> Plan:
        """Return the plan of a round."""
        calls, graph = window.calls, self.graph
        plan = make_plan(
            window.columns,
            asked,
            self.policy,
            lambda call: graph.site(int(calls[call])),
            place=window.place,
            alone=window.alone,
            pad=self.pad,
        )
        plan.loose = loose
        return plan

    # ---- the end ---------------------------------------------------------------------------------

    def finish(self) -> Any:
        """Run what the results of the examples need, and put them together."""
        taken, loose = {}, list(self.graph.loose)
        for example, result in sorted(self.tasks.results.items()):
            try:
                taken[example] = take_apart_one(self.recorder, example, result, len(loose))
            except Exception as error:
                if not self.collect:
                    raise
                self.tasks.fail(example, error)
            else:
                loose += taken[example].loose
        if self.collect:
            taken = without_others(taken, refuse_other, self.tasks.fail)
            self.attempt_results(taken)
            taken = {e: outputs for e, outputs in taken.items() if e not in self.tasks.failures}
            refuse = refuser_of_rows(lambda refs: self.row_classes(refs, loose))
            taken = without_others(taken, refuse, self.tasks.fail)
        results = merge_results(taken)
        return results.put_together(self.last(results, loose))

    def row_classes(self, refs: Integers, loose: Sequence[Any]) -> list[Any]:
        """Return what rows must have in common to be put together; all of them were computed."""
        values = [loose[entry] for entry in (-1 - refs[refs < 0]).tolist()]
        run = self.before
        if run is None:  # then there is nothing but numbers and arrays
            return [number_type(x) or (np.asarray(x).dtype, np.shape(x)) for x in values]
        classes = list(map(run.values.class_of, self.history.sources(refs[refs >= 0])))
        return classes + list(map(run.values.class_of_loose, values))

    def attempt_results(self, taken: dict[int, Outputs]) -> None:
        """Run what the results of some examples need; set aside those for which that fails."""
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
            self.halve(
                list(taken),
                error,
                lambda some: self.attempt_results({e: x for e, x in taken.items() if e in some}),
            )

    def last(self, results: Results, loose: list[Any]) -> list[Any]:
        """Run the last round; return the value of each group."""
        asked, history = results.asked, self.history
        history.extend()
        whole = np.array(asked.whole, np.int64) & CALL_MASK
        history.read_whole(whole)
        calls = asked.calls
        window = history.window(calls, self.before)
        given = self.given(window)
        history.blocks.clear()  # so that each block is free after its last reader
        groups = [
            int(history.renumbered(np.array([group]))[0])
            if isinstance(group, int)
            else history.renumbered(group)
            for group in asked.groups
        ]
        plan = self.plan(window, Outputs(groups=groups), loose)
        run, executor, timeline = self.execute(plan, given, False)
        self.report.rounds.append(Round(timeline, self.graph, NOBODY, NOBODY))
        rows = map(executor.group, executor.wiring.outputs)
        return [run.whole(group) if isinstance(group, int) else next(rows) for group in groups]


def described(graph: Graph, ref: int) -> str:
    """Return the op of a reference, with the path to its part, as ``logits[0]``."""
    path = "".join(f"[{key!r}]" for key in graph.parts[ref >> PART_BITS].path)
    return graph.signatures[graph.signature[ref & CALL_MASK]].name + path


class Fetch:
    """Brings awaited values to the host: one copy for each shape and dtype.

    Parameters
    ----------
    run : Run
        The round that computed them, or was given them.
    refs : int64 array
        What is awaited, with the numbers that calls have in the round.
    whole : list of int
        The positions of those references whose whole result is awaited.
    """

    def __init__(self, run: Run, refs: Integers, whole: list[int]) -> None:
        self.run = run
        self.refs = refs
        self.whole = whole

    def values(self) -> list[Any]:
        """Return the value of each reference: a row, or a whole result.

        Raises
        ------
        LaunchError
            If the framework has no values to give, as inside ``jax.jit`` or ``tf.function``.
        """
        try:
            if not self.whole:
                return self._rows(self.refs)
            found = self._rows(np.delete(self.refs, self.whole))
            for i in self.whole:  # in ascending order
                found.insert(i, optree.tree_map(self._host, self.run.whole(int(self.refs[i]))))
        except LaunchError:
            raise
        except self.run.backend.passes:
            raise
        except Exception as error:
            raise LaunchError(
                f"Awaited values could not be read: {said(error)}.",
                "values are known where the framework runs eagerly: call fold.run outside of jax.jit, "
                "tf.function and torch.func's transforms, and take the gradient of all of it.",
            ) from error
        return found

    def _rows(self, refs: Integers) -> list[Any]:
        """Return the single rows behind references."""
        run, place = self.run, self.run.place
        calls = refs & CALL_MASK
        rows = place.row[calls]
        sources, source, counts = distinct((refs >> PART_BITS) * len(place.rows) + place.launch[calls])
        keys = [divmod(key, len(place.rows))[::-1] for key in sources.tolist()]  # (launch, part)
        mine = [rows] if len(keys) == 1 else [rows[source == number] for number in range(len(keys))]
        # Few rows of a block are gathered; else all of it is copied, which costs less than a gather.
        sparse = [place.rows[launch] > 2 * n for (launch, _), n in zip(keys, counts.tolist(), strict=True)]
        index = iter(run.values.upload([mine[number] for number, few in enumerate(sparse) if few], int))
        values = []
        for number, key in enumerate(keys):
            value = run.rows(*key)
            run.check_rows(*key)
            if sparse[number]:
                value, mine[number] = run.values.gather(value, next(index)), np.arange(counts[number])
            values.append(value)
        flat = [optree.tree_flatten(value) for value in values]
        hosts = iter(self._hosts([leaf for leaves, _ in flat for leaf in leaves]))
        found = [
            rows_of([next(hosts)[at] for _ in leaves], structure, len(at))
            for (leaves, structure), at in zip(flat, mine, strict=True)
        ]
        if len(found) == 1:
            return found[0]
        pieces = list(map(iter, found))
        return [next(pieces[number]) for number in source.tolist()]

    def _hosts(self, leaves: list[Any]) -> list[np.ndarray]:
        """Return arrays on the host; those that fit together are copied together."""
        backend = self.run.backend
        classes: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            classes.setdefault(backend.signature(leaf), []).append(i)
        hosts: list[Any] = [None] * len(leaves)
        for members in classes.values():
            if len(members) == 1:
                hosts[members[0]] = backend.to_numpy(leaves[members[0]])
                continue
            host, end = backend.to_numpy(self.run.values.concat([leaves[i] for i in members])), 0
            for i in members:
                begin, end = end, end + backend.rows(leaves[i])
                hosts[i] = host[begin:end]
        return hosts

    def _host(self, leaf: Any) -> Any:
        """Return an entry of a whole result on the host."""
        return plain(self.run.backend.to_numpy(leaf)) if self.run.backend.owns(leaf) else leaf


def rows_of(hosts: list[np.ndarray], structure: Any, count: int) -> list[Any]:
    """Return ``count`` rows of a value, of which there are the leaves on the host."""
    if not hosts:  # nothing but None, or an empty tuple
        return [optree.tree_unflatten(structure, ()) for _ in range(count)]
    columns = [host.tolist() if host.ndim == 1 else list(host) for host in hosts]  # numbers of Python's
    if optree.treespec_is_leaf(structure):
        return columns[0]
    return [optree.tree_unflatten(structure, row) for row in zip(*columns, strict=True)]
