"""Planning: what a recorder says of its calls before any of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import optree

from multifold._record.graph import MANY_RUNS, warn_user
from multifold._record.node import Node
from multifold._record.recorder import Recorder
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import Outputs, take_apart
from multifold._schedule.schedule import find_policy
from multifold._traces.minibatch import Minibatch, schedule_traces
from multifold._traces.trace import Trace
from multifold._wiring.cache import PlanCache
from multifold._wiring.place import Place
from multifold._wiring.plan import Plan, make_plan
from multifold.errors import RecordError, type_of


class Planning(Recorder):
    """Plans the calls of a recorder, or of traces that it is given; a part of `multifold.Fold`."""

    def _begin_planning(self, policy: str) -> None:
        """Take a scheduling policy, which is refused here if there is no such policy."""
        find_policy(policy)
        self._policy = policy
        self._kept_columns: Columns | None = None
        self._plans = PlanCache(policy)

    def _columns(self) -> Columns:
        """Return the graph as arrays, made anew when the graph has grown.

        Calls and parts are only ever appended, so two lengths tell whether the kept arrays are all.
        """
        kept = self._kept_columns
        graph = self._graph
        if kept is None or (len(kept), len(kept.parts)) != (len(graph.signature), len(graph.parts)):
            kept = self._kept_columns = Columns.of(graph)
        return kept

    def _asked(self, outputs: Any, model: Any = None) -> Outputs:
        """Return what is asked for as references; refuse outputs in the place of the model."""
        nothing = isinstance(outputs, (list, tuple, dict)) and not outputs
        if (nothing or isinstance(model, (Node, list, tuple))) and holds_nodes(model):
            raise RecordError(
                f"Expected a model and outputs. Received nodes as the model and a "
                f"{type(outputs).__qualname__} as the outputs.",
                "the order is fold.apply(model, outputs), fold.check(model, outputs) and "
                "fold.program(outputs, model).",
            )
        return take_apart(self, outputs, len(self._graph.loose))

    def _plan(self, outputs: Any = None, recording: float | None = None) -> Plan:
        """Return the plan for some outputs, or `Outputs`; for all calls if there are none."""
        graph = self._graph
        if outputs is None:
            columns = self._columns()
            place = Place.nowhere(len(columns))  # no call was run, so all are planned
            return make_plan(columns, Outputs(), self._policy, graph.site, graph, place=place)
        asked = outputs if isinstance(outputs, Outputs) else self._asked(outputs)
        if recording is not None and graph.grows():
            warn_user(
                f"This fold was applied {MANY_RUNS} times, each time with new calls, and holds all "
                f"{len(graph.signature):,} of them: it grows without end.\n\nHint: call fold.reset() after "
                "each minibatch, or let fold.run(model, examples, fn) record, which forgets the last one."
            )
        runs = recording is not None
        return self._plans.plan(self._columns(), asked, graph.site, graph, recording, runs=runs)

    def _batch(self, traces: Iterable[Trace] | Minibatch, *, runs: bool = False) -> Minibatch:
        """Return traces as one minibatch, and wired if it is sure to be run."""
        if isinstance(traces, Minibatch):
            return traces
        traces = tuple(traces) if isinstance(traces, Iterable) else (traces,)
        return schedule_traces(traces, self._plans, runs=runs)

    def _plan_of(self, outputs: Any) -> Plan:
        """Return the plan for some outputs, or traces; for all calls if there are none."""
        return self._plan() if outputs is None else self._plan_with_traces(outputs, None)[0]

    def _plan_with_traces(self, outputs: Any, model: Any) -> tuple[Plan, Sequence[Trace]]:
        """Return the plan of a program: for outputs, or for traces or a minibatch; and the traces."""
        if is_batch(outputs):
            batch = self._batch(outputs)
            return batch.plan, batch.traces
        return self._plan(self._asked(outputs, model)), ()


def holds_nodes(model: Any) -> bool:
    """Return whether what was given as a model is a node, or a list, tuple or dictionary of nodes."""
    leaves = optree.tree_leaves(model) if isinstance(model, (list, tuple, dict)) else [model]
    return any(isinstance(leaf, Node) for leaf in leaves)


def refuse_misplaced(examples: Any, fn: Any) -> None:
    """Refuse what is neither examples nor a function that records them, and traces, which need none."""
    traced = isinstance(examples, Trace) or is_batch(examples)
    if traced or not callable(fn) or not isinstance(examples, Iterable):
        hint = "the examples come first: fold.run(model, examples, fn)."
        if traced:
            hint = "traces hold what the function has recorded: leave it out, fold.run(model, traces)."
        elif callable(fn) and not callable(examples):
            hint = "write a list, even of one example: fold.run(model, [example], fn)."
        received = f"{type_of(examples)} and {type_of(fn)}"
        raise RecordError(f"Expected examples and a function. Received {received}.", hint)


def is_batch(outputs: Any) -> bool:
    """Return whether outputs are traces, merged already or not."""
    traces = isinstance(outputs, (list, tuple)) and all(isinstance(x, Trace) for x in outputs)
    return isinstance(outputs, Minibatch) or (traces and bool(outputs))
