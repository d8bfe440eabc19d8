"""`Programming`: the part of a fold that makes programs, which are read elsewhere.

The room `multifold.program` is loaded by the first program: most folds make none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from multifold._frameworks.recorder import FrameworkRecorder
from multifold._plan.plan import Plan
from multifold._traces.minibatch import Minibatch
from multifold._traces.planning import Planning
from multifold._traces.trace import Trace
from multifold.backend import Backend
from multifold.errors import RecordError, type_of

if TYPE_CHECKING:
    from multifold.program import Program, Programs, Shards
    from multifold.program.agree import Exchange


class Programming(FrameworkRecorder, Planning):
    """Makes programs, one or one for each shard; a part of `multifold.Fold`."""

    _programs: Programs | None = None

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
        if shards is not None:
            return self.programs.make_shards(traces_of(outputs), shards, self._planned, model, exchange)
        plan, traces = self._plan_with_traces(outputs, model)
        return self.programs.make(plan, traces, self._backend_of(model, plan.columns), model, pad=pad)

    @property
    def programs(self) -> Programs:
        """What programs this fold has made; prints how many forms they have, each compiled by itself."""
        if self._programs is None:
            from multifold.program import Programs

            self._programs = Programs(self._policy)
        return self._programs

    def _planned(self, traces: Sequence[Trace], model: Any) -> tuple[Plan, Backend]:
        """Return the plan of some traces, and the backend that runs it."""
        plan = self._batch(traces).plan
        return plan, self._backend_of(model, plan.columns)


def traces_of(outputs: Any) -> Sequence[Trace]:
    """Return the traces that are shared out; there may be none."""
    if isinstance(outputs, Minibatch):
        return outputs.traces
    if isinstance(outputs, (list, tuple)) and all(isinstance(x, Trace) for x in outputs):
        return outputs
    raise RecordError(
        f"Expected traces to share out among shards. Received {type_of(outputs)}.",
        "make them with multifold.traces(fn, examples): outputs of a fold don't say which example each "
        "call belongs to.",
    )
