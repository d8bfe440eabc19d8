"""`Fold`: records the calls of a minibatch, then runs those that may run together as one.

The whole library in five lines: calls become columns of integers (`multifold._engine.record`), a plan says
which of them share a launch and which rows go where (`_plan`), and only then are arrays touched (`_run`).
Where shapes differ, a launch is divided, and what is left is planned anew. Where examples await values,
that is a round, and there are as many as values are waited for (`_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any, overload

import optree

from multifold._engine import compiled
from multifold._engine.frameworks.framework_recorder import FrameworkRecorder
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.outputs import Outputs, put_together, take_apart
from multifold._engine.plan.plan import Frame, Plan, PlanCache, make_plan, nobody
from multifold._engine.plan.schedule import Schedule, find_policy
from multifold._engine.plan.wiring import Place
from multifold._engine.record.lines import warn_user
from multifold._engine.record.node import Node
from multifold._engine.rounds import collector
from multifold._engine.rounds.awaitables import Awaiting, refuse_values
from multifold._engine.rounds.rounds import Rounds
from multifold._engine.rounds.tasks import Tasks, collects_failures
from multifold._engine.run.loop import Loop, loop_of
from multifold._engine.run.report import Report
from multifold._engine.traces.minibatch import Minibatch, is_batch, refuse_misplaced, schedule_traces
from multifold._engine.traces.trace import Trace
from multifold._twin.check import both_ways, check
from multifold.backend import Backend
from multifold.errors import RecordError, naming_keywords, type_of

if TYPE_CHECKING:
    from multifold.explain import Explanation, RoundsExplanation
    from multifold.program import Program, Programs, Shards
    from multifold.program.agree import Exchange


class Fold(FrameworkRecorder, Awaiting):
    """Dynamic batching: record the calls of all examples, run those that may run together as one.

    Parameters
    ----------
    backend : str or Backend
        ``"numpy"``, ``"torch"``, ``"tensorflow"``, ``"mxnet"``, ``"jax"``, the name of another installed
        backend, or a `multifold.Backend`. ``"auto"`` takes that of the first array or model it meets.
    device : optional
        Where numbers and NumPy arrays go, as the framework spells it; by default with the model.
    cse : bool
        Merge calls that are equal in op, operands and static arguments. Off by default, so that two
        calls of dropout stay two.
    schedule : str
        How launches are ordered: ``"auto"``; ``"search"``, which finds fewer launches in some graphs and
        takes some ten microseconds a call; to compare with, the rules of TorchFold, ``"depth"``, and of
        DyNet, ``"agenda"``.
    profile : bool
        Name each launch in the framework's own profiler, which takes some microseconds a launch.
    debug : bool
        Copy all operands before a launch and compare them after it, to find an op that writes to them.
    trials : bool
        Whether the first launch of each op runs six times more with other rows, to find an op that mixes
        the rows of nodes. Only who has measured what that costs, and knows all ops, does without.

    Raises
    ------
    BackendMissing
        If the backend is not installed here.

    Examples
    --------
    >>> import multifold
    >>> model = {"leaf": lambda x: x, "add": lambda a, b: a + b}
    >>> def total(fold, tree):
    ...     if isinstance(tree, int):
    ...         return fold.add("leaf", tree)
    ...     return fold.add("add", *[total(fold, child) for child in tree])
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.apply(model, [[total(fold, t) for t in (1, (2, 3), ((4, 5), 6))]])
    [array([ 1,  5, 15])]
    """

    @naming_keywords
    def __init__(
        self,
        backend: str | Backend | type[Backend] = "auto",
        *,
        device: Any = None,
        cse: bool = False,
        schedule: str = "auto",
        profile: bool = False,
        debug: bool = False,
        trials: bool = True,
    ) -> None:
        super().__init__(backend, device=device, cse=cse)
        find_policy(schedule)  # which refuses one that there is not
        self._policy = schedule
        self._plans = PlanCache(schedule)
        self._kept_columns: Columns | None = None
        self._programs: Programs | None = None
        self._profile = profile
        self._debug = debug
        self._trials = trials
        self._last = list[Report]()  # what the last run left for `explain`, round by round
        self._explained = 0  # how many calls the fold held when it was run
        # Number of calls if the last `run(fn)` recorded every one of them: the next run may forget them.
        self._passing: int | None = None

    @compiled.recorded
    def add(self, op: str | Callable[..., Any], /, *operands: Any, **static: Any) -> Node:
        """Record one call of ``op`` and return its node.

        Parameters
        ----------
        op : str or callable
            A name that is looked up on the model when applied (``"compose"``, a dotted path such as
            ``"encoder.cell"``, a key of a mapping), or a callable.
        *operands
            A `Node` of this fold, an array of shape ``(1, *s)`` or a number is batched: the op receives
            an array of shape ``(n, *s)`` for ``n`` nodes. `shared`, `ragged` and `static` mark other
            kinds; lists, tuples and dictionaries nest; ``None`` and strings are static. NumPy arrays
            are copied; those of a framework are kept as they are, since gradients belong to them: do not
            change them in place before the fold is applied.
        **static
            Passed to the op as they are; calls share a launch only where they are equal. An array is
            refused, unless ``static(x)`` says that it is a constant.

        Returns
        -------
        Node
            Stands for one row of the op's result.

        Raises
        ------
        RecordError
            For a node of another fold, an array with other than one row, an array as a keyword
            argument, or an operand of no known kind.

        Examples
        --------
        >>> import multifold, numpy as np
        >>> fold = multifold.Fold(backend="numpy")
        >>> nodes = [fold.add("scale", np.ones((1, 2)), i, by=3) for i in (1, 2)]
        >>> fold.apply({"scale": lambda x, i, by: x * i[:, None] * by}, [nodes])
        [array([[3., 3.],
               [6., 6.]])]
        """
        raise NotImplementedError  # `recorded` puts the compiled method here

    def reset(self) -> None:
        """Forget all calls: nodes recorded before are refused from now on.

        Forms of calls, schedules and plans are kept, so that calls like those before are recorded and
        planned faster. See `clear`.

        Raises
        ------
        RecordError
            While the fold runs examples.
        """
        self._refuse_within("reset()")
        super().reset()
        self._kept_columns = self._passing = None
        self._last = []

    def clear(self) -> None:
        """Forget all calls, and what `reset` keeps of them: their forms, and the plans of minibatches.

        Raises `RecordError` while the fold runs examples, as `reset` does.
        """
        self.reset()
        self._graph.forget_before()
        self._plans = PlanCache(self._policy)

    def _go_on_from(self, before: Fold) -> None:
        """Take over what another fold of the same plain program knows: forms and plans."""
        self._plans = before._plans
        self._graph.go_on_from(before._graph)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickles and copies, name -> value: cells and the last run are left out.

        ``_cells`` is {}, and ``_last``, the reports that `explain` shows, is [].
        """
        return {**super().__getstate__(), "_last": []}

    def __repr__(self) -> str:
        backend = "auto" if self._backend is None else self._backend.name
        return f"<Fold of {len(self)} call{'s' * (len(self) != 1)}, backend '{backend}'>"

    def __str__(self) -> str:
        """Return the ``repr``, and a line for each call, or for each op where there are many calls."""
        from multifold.explain import listing  # much of the package: loaded when asked for

        return "\n".join(filter(None, [repr(self), listing(self._columns())]))

    def __call__(self, outputs: Any) -> Any:
        """Run what the outputs need and return their values: `apply` where all ops are callables."""
        return self.apply(None, outputs)

    def apply(self, model: Any, outputs: Any) -> Any:
        """Run what the outputs need, each group of calls that may run together as one.

        Parameters
        ----------
        model : object
            Where op names are looked up: an object with methods, a mapping, or None.
        outputs : Node, group, or list, tuple or dict of outputs
            A group is a list of nodes, numbers or arrays of one row.

        Returns
        -------
        arrays in the structure of ``outputs``
            ``(len(group), *s)`` for a group, ``(1, *s)`` for a node, the whole result of a `Node.no_batch`.

        Raises
        ------
        RecordError
            For a node of another fold, or an empty group.
        LaunchError
            If an op fails, or returns other than one row for each node. The fold stays usable.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> nodes = [fold.add("double", i) for i in range(3)]
        >>> fold.apply({"double": lambda x: 2 * x}, {"all": nodes, "labels": [7, 8], "last": nodes[2]})
        {'all': array([0, 2, 4]), 'labels': array([7, 8]), 'last': array([4])}
        """
        return self._apply(model, outputs)

    def _apply(self, model: Any, outputs: Any, *, check: bool = False) -> Any:
        graph = self._graph
        asked = self._asked(outputs, model)
        recording = perf_counter() - graph.began
        try:
            plan = self._plan(asked, recording) if asked.groups else None
        finally:
            if self._graph is not graph:  # another thread has reset the fold in the meantime
                raise graph.tear()
        values = [] if plan is None else self._run(model, plan, check=check)
        self._graph.recorded_for(recording)
        return put_together(asked, values)

    def run(
        self,
        model: Any,
        examples: Iterable[Any] | Minibatch,
        fn: Callable[[Fold, Any], Any] | None = None,
        *,
        on_error: str = "raise",
    ) -> Any:
        """Run examples as one minibatch: traces, or anything that a function records.

        Parameters
        ----------
        model : object
            Where op names are looked up.
        examples : iterable, or Minibatch
            Without ``fn`` traces, made by `multifold.trace`, which run without a Python loop over their
            calls; or traces merged already by `multifold.merge`, in a worker of a data loader, say.
        fn : callable, optional
            ``fn(fold, example)`` records an example and returns nodes, groups, or lists, tuples and
            dicts of those. In an ``async def`` it may look at values: ``await fold.value(node)``. All
            examples run until they wait; then what they wait for runs as one minibatch, and so on.
        on_error : str
            ``"raise"`` what the first failing example raises, with the number of the example as a note;
            or ``"collect"`` the failures while the other examples go on; that needs ``fn``.

        Returns
        -------
        arrays in the structure that the function returned
            For each node an array ``(examples, *s)``, for each group one of all examples' rows in order,
            for each `Node.no_batch` a list of an entry for each example. With ``"collect"`` a pair: that of
            the examples that did not fail (or None), and the exceptions by the number of the example.

        Raises
        ------
        RecordError
            If there are no examples, or if they returned different structures.
        LaunchError
            If an op fails, or returns other than one row for each node.

        Notes
        -----
        The calls that ``fn`` records stay in the fold, for `explain`, until the next run forgets them. A
        fold with calls that were recorded before, or with ``cse=True``, keeps all of them until `reset`.

        Examples
        --------
        >>> import multifold
        >>> traces = [multifold.trace(lambda f, x: {"y": f.add("double", x)}, x) for x in (1, 2, 3)]
        >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, traces)
        {'y': array([2, 4, 6])}
        """
        collect = collects_failures(on_error, fn)
        if fn is not None:
            refuse_misplaced(examples, fn)
            return self._run_rounds(model, examples, fn, collect=collect)
        batch = self._batch(examples, runs=True)
        return batch.put_together(self._run(model, batch.plan, device=batch.device))

    def _run_rounds(self, model: Any, examples: Any, fn: Callable[..., Any], *, collect: bool) -> Any:
        """Run ``fn(fold, example)`` for all examples, in a context of `_rounds`; return what `run` does.

        With ``collect`` exceptions of examples are kept instead of raised. Then a pair is returned: the
        results of the examples that did not fail, and a dictionary, number of the example, from 0 -> its
        exception.
        """
        with self._rounds(model, collect=collect) as rounds:
            results = rounds.run(fn, examples)
        return (results, rounds.tasks.failures) if collect else results

    @contextmanager
    def _rounds(self, model: Any, *, collect: bool = False) -> Iterator[Rounds]:
        """Return a context that yields a new `Rounds`, which runs examples on this fold until it is left.

        Entering resets the fold if it holds only the calls that its last such run has left, counts the run
        (`_warn_of_growth`) and may set the backend. With ``collect`` exceptions of examples are kept in
        ``rounds.tasks.failures`` instead of raised. On leaving, `explain` shows these rounds, whatever
        happened.

        Raises
        ------
        RecordError
            On entering, if the fold is running examples. On leaving, if an array was changed after a call
            was recorded with it.
        BackendError
            On entering, if the model belongs to another backend than the fold's.
        """
        self._refuse_within("other run of the same fold")
        if self._passing == len(self):
            self.reset()
        passing = not len(self) and self._graph.merged is None  # with cse a call may be one of before
        self._warn_of_growth()
        backend = self._backend_of(model)
        among = f"{backend.name} pads the launches of rounds" if backend.pads else ""
        loops = self._loops(model, among=among)
        tasks = Tasks(self, self._contexts(backend), collect=collect)
        rounds = Rounds(
            self,
            tasks,
            loops,
            sweep=True,
            in_place=self._is_settled and backend.puts and backend.is_inference(),
        )
        self._last = []
        self._answer_at_once_by(rounds.values_at_once)
        try:
            with collector.resting(), tasks.running():
                yield rounds
                self._graph.refuse_changed()
        finally:
            self._answer_at_once_by(refuse_values)
            self._last = rounds.rounds
            self._explained = len(self)
            self._passing = len(self) if passing else None

    def _loops(self, model: Any, check: bool = False, among: str = "") -> partial[Loop]:
        """Return a function that makes the `Loop` which runs a plan: ``made(plan.columns, device=None)``.

        With ``check`` the loop compares all operands before and after a launch, and tries no op: the caller
        compares all results with the eager twin. ``among`` is a part of a sentence for errors about rows
        that no example of the run has asked for, as "jax pads the launches of rounds"; "" if there are no
        such rows.
        """
        debug = self._debug or check
        tries = self._trials and not check
        options = self._plans, self._profile, debug, tries, among
        return partial(loop_of, self, model, *options)

    def _run(self, model: Any, plan: Plan, *, check: bool = False, device: Any = None) -> list[Any]:
        """Run a plan; return a list of values, one for each of ``plan.asked.groups``, in their order.

        `explain` shows this run from then on; if it fails, no run. ``check`` is that of `_loops`. Numbers
        go to ``device`` if the fold itself has none; None is the model's.

        Raises
        ------
        RecordError
            If an array was changed since it was recorded.
        LaunchError
            If an op fails, or returns other than one row for each node.
        """
        self._last = []
        self._graph.refuse_changed()
        done = self._loops(model, check)(plan.columns, device=device).run(plan)
        self._last = [done.run.report()]
        self._explained = len(self)
        return done.outputs()

    def explain(self, outputs: Any = None) -> Explanation | RoundsExplanation:
        """Return why calls did not share a launch, and where the time went.

        Parameters
        ----------
        outputs : optional
            What is asked for, as for `apply`, or traces. By default the last run, with its times; all
            recorded calls if there was none, or if calls were recorded since.

        Returns
        -------
        Explanation
            Prints as a table; draws itself (``to_svg``, ``to_html``, ``to_dot``, ``to_mermaid``),
            and tells why two nodes did not share a launch (``why``). After a `run` whose examples
            awaited values a `multifold.explain.RoundsExplanation`: an explanation for each round, and
            who waited for what.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold()
        >>> whole, real = fold.add("f", 1), fold.add("f", 1.0)
        >>> print(fold.explain().why(whole, real))
        Calls 0 and 1 of 'f' differ in the kind of operand 0: an int and a float.
        """
        from multifold.explain import Explanation, explained

        last = self._last
        if outputs is None and last and self._explained == len(self):
            return explained(last)
        plan = self._plan_of(outputs)
        if len(last) == 1 and last[0].is_of(plan.schedule, plan.alone):
            return explained(last)
        return Explanation.planned(plan.schedule, plan.alone, plan.site, self._backend)

    def schedule(self, outputs: Any = None) -> Schedule:
        """Return which calls share a launch, and in which order the launches run.

        Parameters
        ----------
        outputs : optional
            What is asked for, as for `apply`, or traces. By default all recorded calls; where none are,
            what ran last: the traces of a `run`.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold()
        >>> nodes = [fold.add("f", fold.add("g", i)) for i in range(3)]
        >>> print(fold.schedule())
        2 launches of 6 calls, lower bound 2: optimal (auto), 3.0 rows a launch
        launch  op    rows
             0  g        3
             1  f        3
        """
        last = self._last
        if outputs is None and not len(self) and last and last[0].planned is not None:
            return last[0].planned
        return self._plan_of(outputs).schedule

    def check(
        self,
        model: Any,
        outputs: Any,
        fn: Callable[[Any, Any], Any] | None = None,
        *,
        rtol: float | None = None,
    ) -> None:
        """Run the outputs batched and one call at a time; compare values and gradients.

        Call ``model.eval()`` first: dropout makes the two ways differ. Gradients are those of a fixed
        random weighting of all floating outputs with respect to the parameters of the model.

        Parameters
        ----------
        model : object
            Where op names are looked up.
        outputs
            As for `apply`; or, as for `run`, traces, or examples with ``fn``.
        fn : callable, optional
            Records an example, as for `run`, or an ``async def``. The calls do not stay in the fold.
        rtol : float, optional
            The largest difference allowed, relative to the largest magnitude of an array; by default
            as its dtype allows.

        Raises
        ------
        MismatchError
            If a value or a gradient differs; the message names it, and the first call that differs.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.check({"f": lambda x: x * x}, [[fold.add("f", float(i)) for i in range(3)]])
        """
        recording = perf_counter() - self._graph.began
        check(self._backend_of(model), model, both_ways(self, outputs, fn), rtol)
        self._graph.recorded_for(recording)

    @overload
    def program(self, outputs: Any, model: Any = None, *, pad: bool = False) -> Program: ...
    @overload
    def program(
        self, outputs: Any, model: Any = None, *, shards: int, exchange: Exchange | None = None
    ) -> Shards: ...
    def program(
        self,
        outputs: Any,
        model: Any = None,
        *,
        pad: bool = False,
        shards: int | None = None,
        exchange: Exchange | None = None,
    ) -> Program | Shards:
        """Return the schedule of some outputs, or of traces, laid out as data for a compiled executor.

        Parameters
        ----------
        outputs : outputs, iterable of Trace, or Minibatch
            What is asked for, as for `apply` or for `run`.
        model : object, optional
            Where calls of one op meet rows of different shapes: then the shapes are looked at first.
        pad : bool
            Pad the results, where the backend compiles for sizes, since a new number of rows is a new
            compilation. ``program.counts`` says how many rows of each are real, the first ones.
        shards : int, optional
            Share traces out, alike in calls, and return as many programs of one form, with ``pad``.
        exchange : callable, optional
            Of several processes that each share out traces of their own, also none: sends bytes to all and
            returns those of each. Their programs then have one form; ``multifold_jax.exchange`` is one.

        Returns
        -------
        Program, or Shards with ``shards``
            NumPy arrays and a hashable form; `multifold.program` says how it is read. What `multifold.each`
            marks is made of the results of a run by `Program.each`.

        Raises
        ------
        RecordError
            For outputs that `apply` refuses, or a shared array that was changed since.
        LaunchError
            With ``model``: if an op fails on one row, or its result lacks a part that is read.

        Examples
        --------
        >>> import multifold
        >>> from multifold.program import run
        >>> fold = multifold.Fold(backend="numpy")
        >>> traces = [multifold.trace(lambda f, x: f.add("double", x), x) for x in (1, 2, 3)]
        >>> run({"double": lambda x: 2 * x}, fold.program(traces))
        array([2, 4, 6])
        """
        self._graph.refuse_changed()
        self._warn_of_growth()
        if isinstance(model, FunctionType):
            raise RecordError(
                f"Expected outputs and a model. Received {type_of(outputs)} and a function.",
                "record first, and lay that out: fold.program(multifold.traces(fn, examples), model).",
            )
        if shards is not None:
            return self.programs.make_shards(traces_of(outputs), shards, self._planned, model, exchange)
        plan, traces = self._plan_with_traces(outputs, model)
        return self.programs.make(plan, traces, self._backend_of(model, plan.columns), model, pad=pad)

    @property
    def programs(self) -> Programs:
        """The `Programs` that this fold has made, empty at first; it prints how many forms they have."""
        if self._programs is None:
            from multifold.program import Programs  # most folds make none

            self._programs = Programs(self._policy)
        return self._programs

    def _planned(self, traces: Sequence[Trace], model: Any) -> tuple[Plan, Backend]:
        """Return ``(plan, backend)``: the plan of some traces merged, and the backend that runs it.

        Nothing is run, and the plan may have no wiring yet. The backend is found by `_backend_of`, which
        may set it as the fold's.
        """
        plan = self._batch(traces).plan
        return plan, self._backend_of(model, plan.columns)

    def _columns(self) -> Columns:
        """Return the graph as `Columns`, the same object until a call or part is recorded.

        Calls and parts are only ever appended, so two lengths tell whether the kept arrays are all.
        """
        kept = self._kept_columns
        graph = self._graph
        if kept is None or (len(kept), len(kept.parts)) != (len(graph.signature), len(graph.parts)):
            kept = Columns.of(graph)
            if len(graph.signature) > len(kept):
                raise graph.tear()
            self._kept_columns = kept
        return kept

    def _asked(self, outputs: Any, model: Any = None) -> Outputs:
        """Return ``outputs``, as for `apply`, as `Outputs`, whose loose values follow those of the graph.

        Raises
        ------
        RecordError
            If nodes are in the place of the model, as in ``fold.apply(outputs, model)``, or for what
            `take_apart` refuses.
        """
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
        """Return the plan for some outputs, as for `apply` or as `Outputs`; for all recorded calls if None.

        ``recording`` is the seconds that recording took, if the plan is to be run: then it is wired, and
        may be one that was kept. Without it the plan is made anew.
        """
        graph = self._graph
        if outputs is None:
            columns = self._columns()
            place = Place.nowhere(len(columns))  # no call was run, so all are planned
            return make_plan(Frame(columns, Outputs(), graph.site, graph, place), self._policy)
        asked = outputs if isinstance(outputs, Outputs) else self._asked(outputs)
        if recording is not None:
            self._warn_of_growth()
        frame = Frame(self._columns(), asked, graph.site, graph, recording=recording, whose=nobody)
        if recording is None:  # to be looked at, seldom twice: not worth a key
            return make_plan(frame, self._policy)
        return self._plans.plan(frame, runs=True)

    def _warn_of_growth(self) -> None:
        """Count a run; warn once, at the user's line, if each run adds its calls to those of all before."""
        if self._graph.grows():
            warn_user(
                f"This fold is run again and again, each time with new calls, and holds all {len(self):,} "
                "of them: it grows without end.\n\nHint: call fold.reset() after each minibatch; or let "
                "fold.run(model, examples, fn) record all calls of a fold without cse: it forgets those of "
                "the last run."
            )

    def _batch(self, traces: Iterable[Trace] | Minibatch, *, runs: bool = False) -> Minibatch:
        """Return traces, or a single one, as one new `Minibatch`; a minibatch is returned itself.

        ``runs`` says that it is sure to be run: then its plan may have its wiring already. Raises
        `RecordError` for no traces, for anything that is no trace, and for traces that returned different
        structures.
        """
        if isinstance(traces, Minibatch):
            return traces
        traces = tuple(traces) if isinstance(traces, Iterable) else (traces,)
        return schedule_traces(traces, self._plans, runs=runs)

    def _plan_of(self, outputs: Any) -> Plan:
        """Return the plan for outputs, as for `apply`, or traces; for all recorded calls if None."""
        return self._plan() if outputs is None else self._plan_with_traces(outputs, None)[0]

    def _plan_with_traces(self, outputs: Any, model: Any) -> tuple[Plan, Sequence[Trace]]:
        """Return ``(plan, traces)`` for traces or a minibatch, ``(plan, ())`` for outputs of `apply`.

        ``model`` is only looked at with outputs: nodes in its place may raise `RecordError` (`_asked`).
        """
        if is_batch(outputs):
            batch = self._batch(outputs)
            return batch.plan, batch.traces
        return self._plan(self._asked(outputs, model)), ()

    def _empty_copy(self) -> Fold:
        """Return a copy without calls and with ``debug=True``, which finds writes to operands.

        This fold keeps its calls. Both have one `PlanCache`.
        """
        return copy(self)._emptied()

    def _emptied(self) -> Fold:
        self.reset()
        self._debug = True
        return self


def holds_nodes(model: Any) -> bool:
    """Return whether ``model`` is a node, or a list, tuple or dictionary with a node at any depth."""
    leaves = optree.tree_leaves(model) if isinstance(model, (list, tuple, dict)) else [model]
    return any(isinstance(leaf, Node) for leaf in leaves)


def traces_of(outputs: Any) -> Sequence[Trace]:
    """Return the traces of a minibatch, or a list or tuple of traces, perhaps empty, as it is.

    Raises
    ------
    RecordError
        For anything else, as outputs of a fold.
    """
    if isinstance(outputs, Minibatch):
        return outputs.traces
    if isinstance(outputs, (list, tuple)) and all(isinstance(x, Trace) for x in outputs):
        return outputs
    raise RecordError(
        f"Expected traces to share out among shards. Received {type_of(outputs)}.",
        "make them with multifold.traces(fn, examples): outputs of a fold don't say which example each "
        "call belongs to.",
    )
