"""`Fold`: records the calls of a minibatch, then runs those that may run together as one.

The whole library in five lines: calls become columns of integers (`graph`, `columns`), a schedule says
which of them share a launch (`schedule`), the wiring says which rows go where (`wiring`), and only then
are arrays touched (`execute`). Where shapes turn out to differ, a launch is divided (`division`).
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np

from multifold import registry
from multifold.backend import Backend
from multifold.columns import Columns, Integers
from multifold.dispatch import resolve
from multifold.division import divide
from multifold.errors import BackendError, RecordError
from multifold.execute import Executor, Run
from multifold.explain import Explanation
from multifold.graph import CALL_MASK, Graph, Recorder
from multifold.outputs import Outputs, put_together, take_apart
from multifold.schedule import Schedule, call_types, find_policy, make_schedule
from multifold.wiring import Place, wire


class FrameworkRecorder(Recorder):
    """A recorder whose leaf arrays belong to one framework, or to NumPy.

    With ``backend="auto"`` the framework is that of the first array or model that it meets.
    """

    def __init__(self, backend: str | Backend | type[Backend] = "auto", *, device: Any = None) -> None:
        self._graph = Graph()
        self._backend = find_backend(backend)
        self._device = device
        self._met: str | None = None if self._backend is None else f"backend={self._backend.name!r}"
        self._array_types: dict[type, Backend | None] = {}

    def reset(self) -> None:
        """Forget all calls; nodes recorded before are refused from now on."""
        self._graph = Graph()

    def array_class(self, x: Any) -> Hashable | None:
        """Return the class of a leaf array, None if ``x`` is no array; refuse other than one row."""
        if isinstance(x, np.ndarray):
            if x.dtype.hasobject:
                raise RecordError(f"Expected an array of numbers. Received dtype {x.dtype}.")
            rows = x.shape[0] if x.ndim else None
            array_class: Hashable = ("numpy", x.shape[1:], x.dtype)
        else:
            backend = self._owner(x)
            if backend is None:
                return None
            try:
                rows = backend.rows(x)
            except (IndexError, TypeError):
                rows = None
            array_class = backend.signature(x) if rows == 1 else None
        if rows != 1:
            raise RecordError(
                "Expected an array operand of one row, of shape (1, *s). "
                f"Received shape {tuple(x.shape)}.",
                "`x[None]` makes one row of an array, `multifold.shared(x)` passes it whole.",
            )
        return array_class

    def _owner(self, x: Any) -> Backend | None:
        """Return the backend of an array of a framework; take it as the fold's if that is open."""
        kind = type(x)
        if kind in self._array_types:
            return self._array_types[kind]
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            return None
        if self._backend is not None and self._backend.owns(x):
            found: Backend | None = self._backend
        else:
            found = registry.owner(x)
            if found is not None:
                self._settle(found, f"an array of type {kind.__module__}.{kind.__qualname__}")
        if found is not None:
            self._array_types[kind] = found
        return found

    def _settle(self, backend: Backend, what: str) -> None:
        if self._backend is None:
            self._backend, self._met = backend, what
        elif self._backend.name != backend.name:
            raise BackendError(
                f"Expected arrays and models of one framework in a fold: it has {self._met}. "
                f"Received {what}, of backend '{backend.name}'.",
                "use one fold for each framework, and convert what passes between them.",
            )

    def _backend_of(self, model: Any) -> Backend:
        """Return the backend that runs a model: the fold's, else the model's, else NumPy."""
        if self._backend is None or not self._backend.hosts(model):
            found = None if model is None else registry.host(model)
            if found is not None:
                self._settle(found, f"a model of type {type(model).__qualname__}")
        return registry.load("numpy") if self._backend is None else self._backend

    def _device_of(self, backend: Backend, model: Any) -> Any:
        """Return where numbers and NumPy arrays go: as told, with the model, or with the arrays."""
        if self._device is not None:
            return self._device
        if model is not None and (device := backend.device(model)) is not None:
            return device
        graph = self._graph
        shared = (slot.value for s in graph.signatures for slot in s.slots if slot.kind == "shared")
        for values in (graph.arrays, graph.loose, shared):
            for x in values:
                if not isinstance(x, np.ndarray) and backend.owns(x):
                    return backend.device(x)
        return None


def find_backend(backend: str | Backend | type[Backend]) -> Backend | None:
    """Return the backend of that name, or None for ``"auto"``."""
    if isinstance(backend, Backend):
        return backend
    if isinstance(backend, type) and issubclass(backend, Backend):
        return backend()
    if backend == "auto":
        return None
    return registry.load(backend)


@dataclass
class Finished:
    """What a run leaves for `Fold.explain`: the launches as they were, without any array."""

    columns: Columns
    types: Integers
    calls: list[Integers] = field(default_factory=list)


class Fold(FrameworkRecorder):
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
        The scheduling policy: ``"auto"``, ``"depth"`` or ``"agenda"``.

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

    def __init__(
        self,
        backend: str | Backend | type[Backend] = "auto",
        *,
        device: Any = None,
        cse: bool = False,
        schedule: str = "auto",
    ) -> None:
        super().__init__(backend, device=device)
        find_policy(schedule)
        self._policy = schedule
        self._cse = {} if cse else None
        self._kept_columns: Columns | None = None
        self._finished: Finished | None = None

    def reset(self) -> None:
        """Forget all calls; nodes recorded before are refused from now on."""
        super().reset()
        self._cse = None if self._cse is None else {}
        self._kept_columns = self._finished = None

    def __call__(self, outputs: Any) -> Any:
        """Run what the outputs need; all ops are callables. See `apply`."""
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
        The same structure with an array of shape ``(len(group), *s)`` for each group, and ``(1, *s)``
        for each node (or the whole result of a `Node.no_batch`).

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
        backend = self._backend_of(model)
        graph, columns = self._graph, self._columns()
        asked = take_apart(self, graph, outputs, len(columns.loose))
        if not asked.groups:
            return put_together(asked, lambda i: None)
        alone = np.union1d(columns.shared_calls, np.array(asked.whole, np.int64) & CALL_MASK)
        pending = columns.ancestors(asked.calls)
        ops = {
            signature.op: resolve(backend, model, signature.op, graph.site(call))
            for signature, call in self._signatures_of(columns, pending)
        }
        run = Run(
            backend=backend,
            device=self._device_of(backend, model),
            columns=columns,
            place=Place.nowhere(len(columns)),
            ops=ops,
            loose=[*columns.loose, *asked.loose],
            alone=frozenset(alone.tolist()),
            site=graph.site,
        )
        return self._run(run, asked, pending, call_types(columns, alone))

    def _run(self, run: Run, asked: Outputs, pending: Integers, types: Integers) -> Any:
        """Schedule, wire and execute, again for what is left after each division of a launch."""
        place = run.place
        finished = Finished(run.columns, types)
        groups = [np.array(group, np.int64) for group in asked.batched]
        whole = np.array(asked.whole, np.int64) & CALL_MASK
        while True:
            first = len(place.rows)
            schedule = make_schedule(run.columns, self._graph, types, pending, self._policy)
            wiring = wire(run.columns, schedule, place, groups)
            executor = Executor(run, wiring)
            done = executor.execute(keep=set(place.launch[whole].tolist()))
            finished.calls += [launch.calls for launch in wiring.launches[:done]]
            if done == len(schedule):
                break
            del place.rows[first + done :]
            pending = np.sort(schedule.calls[schedule.bounds[done] :])
            place.launch[pending] = -1
            types = finished.types = divide(run, types, pending)
        self._finished = finished
        rows = map(executor.result, wiring.outputs)
        values = [
            next(rows) if isinstance(group, list) else run.value(group) for group in asked.groups
        ]
        return put_together(asked, values.__getitem__)

    def schedule(self, outputs: Any = None) -> Schedule:
        """Return which calls share a launch, and in which order the launches run.

        Parameters
        ----------
        outputs : optional
            What is asked for, as for `apply`; all recorded calls by default.

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
        columns = self._columns()
        alone, pending = columns.shared_calls, np.arange(len(columns))
        if outputs is not None:
            asked = take_apart(self, self._graph, outputs, len(columns.loose))
            alone = np.union1d(alone, np.array(asked.whole, np.int64) & CALL_MASK)
            pending = columns.ancestors(asked.calls)
        types = call_types(columns, alone)
        return make_schedule(columns, self._graph, types, pending, self._policy)

    def explain(self, outputs: Any = None) -> Explanation:
        """Return why calls of one op did not share a launch; see `Explanation`."""
        return Explanation.of(self.schedule(outputs), self._graph)

    def check(self, model: Any, outputs: Any, *, rtol: float | None = None) -> None:
        """Run the outputs batched and one call at a time; compare values and gradients.

        Gradients are those of a fixed random weighting of all floating outputs with respect to the
        parameters of the model, where the backend has gradients.

        Parameters
        ----------
        model, outputs
            As for `apply`.
        rtol : float, optional
            The largest difference allowed, relative to the largest magnitude of an array; by default
            as its dtype allows.

        Raises
        ------
        MismatchError
            If a value or a gradient differs; the message names it.

        Examples
        --------
        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.check({"f": lambda x: x * x}, [[fold.add("f", float(i)) for i in range(3)]])
        """
        from multifold.check import check

        check(self, model, outputs, rtol)

    def unroll(
        self,
        cell: Any,
        length: int,
        inputs: Any,
        begin_state: Any = None,
        layout: str = "NTC",
    ) -> tuple[Any, Any]:
        """Unroll a recurrent cell over one example; see `multifold.unroll.unroll`."""
        from multifold.unroll import unroll

        return unroll(self, cell, length, inputs, begin_state, layout)

    # ---- what a run needs from the graph -----------------------------------------------------

    def _columns(self) -> Columns:
        """Return the graph as arrays; calls are only ever appended, so their number tells all."""
        if self._kept_columns is None or len(self._kept_columns) != len(self._graph.signature):
            self._kept_columns = Columns.of(self._graph)
        elif len(self._kept_columns.parts) != len(self._graph.parts):
            self._kept_columns = Columns.of(self._graph)
        return self._kept_columns

    def _signatures_of(self, columns: Columns, calls: Integers) -> list[tuple[Any, int]]:
        """Return the distinct signatures of calls, each with its first call; warn of lambdas."""
        numbers, first, counts = np.unique(
            columns.signature[calls], return_index=True, return_counts=True
        )
        found = [
            (columns.signatures[number], int(calls[index]))
            for number, index in zip(numbers.tolist(), first.tolist(), strict=True)
        ]
        if not self._graph.warned:
            once: dict[Any, int] = {}
            for (signature, call), count in zip(found, counts.tolist(), strict=True):
                if isinstance(signature.op, FunctionType) and count == 1:
                    code = signature.op.__code__
                    if code in once:
                        self._warn(signature.name, once[code])
                        break
                    once[code] = call
        return found

    def _warn(self, name: str, call: int) -> None:
        self._graph.warned = True
        warnings.warn(
            f"A new function '{name}' is made for each call recorded at {self._graph.site(call)}: calls "
            "of different functions never share a launch.\n\nHint: define the function once, and pass "
            "what varies as an operand or as multifold.static(...).",
            stacklevel=4,
        )
