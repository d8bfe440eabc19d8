"""Recording for one framework: whose arrays are leaves, which backend runs them, and on which device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

import numpy as np

from multifold._engine.frameworks import registry
from multifold._engine.record.graph import Graph
from multifold._engine.record.lines import users_frame
from multifold._engine.record.node import Node
from multifold._engine.record.population import Seat, seat_of
from multifold._engine.record.recorder import Recorder, numpy_class, refuse_rows
from multifold._engine.record.unroll import named_cell, time_steps, unroll
from multifold.backend import Backend, Bidirectional, Cell, Stack
from multifold.errors import BackendError, type_of


class FrameworkRecorder(Recorder):
    """A recorder whose leaf arrays belong to one framework, or to NumPy.

    With ``backend="auto"`` the framework is that of the first array or model that it meets.
    """

    _node_type: type[Node] = Node

    _seats: ClassVar[bool] = True
    """Whether modules of one form are recorded as one op, with the number of the module as an operand."""

    def __init__(
        self, backend: str | Backend | type[Backend] = "auto", *, device: Any = None, cse: bool = False
    ) -> None:
        self._graph = Graph(self._node_type, cse)
        self._backend = find_backend(backend)
        self._device = device
        self._decided_by: str | None = None if self._backend is None else f"backend={self._backend.name!r}"
        self._array_types: dict[type, Backend | None] = {}
        self._cells: dict[Any, tuple[Any, Cell | Stack | Bidirectional]] = {}

    def reset(self) -> None:
        """Forget all calls; nodes recorded before are refused from now on.

        The backend stays, and the new graph takes over forms of calls and copies of arrays
        (`Graph.lasting`, `Graph.lasting_copies`).
        """
        # The new graph takes over what the old one knows of forms, so the next minibatch records quickly.
        self._graph = Graph(self._node_type, self._graph.merged is not None, self._graph)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickles and copies, name -> value, with {} for ``_cells``.

        That has the recurrent cells which `_cell` has made, and its keys are ids of this process.
        """
        return {**self.__dict__, "_cells": {}}

    def shared_key(self, x: Any) -> Hashable:
        """Return a key of a shared value: calls may share a launch only if their keys of it are equal.

        The key is that of `SharedCopies.key`. An array of a framework decides the backend of a fold of
        ``backend="auto"`` that has none yet.
        """
        self._note_kept(x)
        return super().shared_key(x)

    def _note_kept(self, x: Any) -> None:
        backend = self._array_types.get(type(x)) or self._owner(x)
        if backend is not None and backend.counts_changes:
            self._note_array(backend, x)

    def _note_array(self, backend: Backend, x: Any) -> None:
        """Note that the next call reads an array of a framework that counts changes."""
        graph = self._graph
        # An eager twin has computed the calls before this one, so its arrays may have changed since.
        graph.counted.note(x, backend.version, len(graph.signature), graph.value_of is not None)

    def array_class(self, x: Any) -> Hashable | None:
        """Return a key of an array: arrays with equal ones may share a launch. None if ``x`` is no array.

        It holds the shape of a row, the dtype and, for arrays of a framework, the device.

        Raises
        ------
        RecordError
            If the array has other than one row, or was changed since an earlier call was recorded with it.
        BackendError
            If it belongs to another framework than arrays or models before.
        """
        if isinstance(x, np.ndarray):
            return numpy_class(x)
        backend = self._array_types.get(type(x)) or self._owner(x)
        if backend is None:
            return None
        try:
            rows, signature = backend.rows_and_signature(x)
        except (IndexError, TypeError):
            # An array without axes has no rows.
            rows = None
            signature = None
        if rows != 1:
            refuse_rows(x, rows)
        if backend.counts_changes:
            self._note_array(backend, x)
        return signature

    def _seat_of(self, op: Any) -> Seat | None:
        """Return the population of a module and its number there; None if it has no other of its form."""
        return seat_of(self._backend, op) if self._seats else None

    def _owner(self, x: Any) -> Backend | None:
        """Return the backend of an array of a framework, None for anything else, NumPy arrays too.

        With ``backend="auto"``, the first such array decides which backend the fold has.

        Raises
        ------
        BackendError
            If the array belongs to another backend than the fold's.
        """
        cls = type(x)
        if cls in self._array_types:
            return self._array_types[cls]
        # Arrays of all frameworks have both, so other operands are not shown to each adapter.
        if not hasattr(x, "shape") or not hasattr(x, "dtype"):
            return None
        mine = self._backend is not None and self._backend.owns(x)
        found = self._backend if mine else registry.owner(x)
        if found is not None:
            self._settle(found, f"an array of type {cls.__module__}.{cls.__qualname__}")
            self._array_types[cls] = found
        return found

    def _settle(self, backend: Backend, what: str) -> None:
        """Set the fold's backend if it has none; raise `BackendError` if it has one of another name.

        ``what`` is what belongs to ``backend``, for the message: "a model of type Linear".
        """
        if self._backend is None:
            self._backend = backend
            self._decided_by = what
        elif self._backend.name != backend.name:
            raise BackendError(
                f"Expected arrays and models of one framework in a fold: it has {self._decided_by}. "
                f"Received {what}, of backend '{backend.name}'.",
                "use one fold for each framework, and convert what passes between them.",
            )

    def _backend_of(self, model: Any, graph: Any = None) -> Backend:
        """Return the backend that runs a model: the fold's, else the model's, an op's, or NumPy's.

        It is set as the fold's backend, unless it is NumPy's by default. ``graph`` has the ``signatures``
        whose ops are looked at, by default the recorder's own graph.

        Raises
        ------
        BackendError
            If the model belongs to another backend than the fold's.
        BackendMissing
            If the model or an op belongs to a framework whose adapter is not installed.
        """
        # If the fold has a backend and the model is of it, no other is asked. Else the model decides, or
        # `_settle` refuses it as one of a second framework.
        if self._backend is None or not self._backend.hosts(model):
            found = None if model is None else registry.host(model, but=self._backend)
            if found is not None:
                self._settle(found, f"a model of type {type(model).__qualname__}")
        # A model of no framework may still have layers of one among its attributes, and an op may be one.
        if self._backend is None:
            ops = [signature.op for signature in (graph or self._graph).signatures]
            parts = [*ops, *getattr(model, "__dict__", {}).values()]
            found = registry.host(dict(enumerate(parts)))
            if found is not None:
                self._settle(found, "an op or a part of the model")
            else:
                registry.refuse_strangers([model, *ops])
        return registry.load_backend("numpy") if self._backend is None else self._backend

    @property
    def _is_settled(self) -> bool:
        """Whether the backend is decided on: no array to come can belong to another framework."""
        return self._backend is not None or not registry.imported()

    def _contexts(self, backend: Backend) -> Callable[[], Hashable]:
        """Return a function that tells which ``with`` statements are open, as `Backend.context` does.

        It is that of ``backend``, the answer of `_backend_of`. Before the backend `_is_settled`, it asks
        all frameworks that are imported.
        """
        if self._is_settled:
            return backend.context
        several = [registry.load_backend(name).context for name in registry.imported()]
        return lambda: tuple([context() for context in several])

    def _device_of(self, backend: Backend, model: Any, graph: Any = None, told: Any = None) -> Any:
        """Return the device for numbers and NumPy arrays: the fold's, ``told``, the model's, or an array's.

        The array is the first one of the framework among the operands in ``graph``, a `Graph` or `Columns`,
        by default the recorder's own. None is the framework's default device.
        """
        if self._device is not None or told is not None:
            return told if self._device is None else self._device
        # No walrus: where a framework converts Python to graphs, it may meet this line, and warns of one.
        device = None if model is None else backend.device(model)
        if device is not None:
            return device
        graph = self._graph if graph is None else graph
        for values in (graph.arrays, graph.loose, *[s.shared for s in graph.signatures if s.shared]):
            for x in values:
                if not isinstance(x, np.ndarray) and backend.owns(x):
                    return backend.device(x)
        return None

    def unroll(
        self, cell: Any, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC"
    ) -> tuple[list[Node], Any]:
        """Record the calls of a recurrent cell over one example of ``length`` steps.

        Parameters
        ----------
        cell : object
            A recurrent cell of the fold's framework, a list of cells on top of each other, a
            `multifold.Cell`, `Stack` or `Bidirectional`, or the name of an op of the model that takes
            ``(x, *states)`` and returns ``(output, *states)``; that needs ``begin_state``.
        length : int
            The number of steps, at least 1.
        inputs : list of Node or arrays, or array
            One node or array of shape ``(1, C)`` a step; or an array of shape ``(1, length, C)`` for
            layout NTC, ``(length, 1, C)`` for TNC.
        begin_state : optional
            The states before the first step, nodes or arrays of shape ``(1, *s)``: one state or a list
            of them for a cell, a list with an entry for each layer of a stack, a pair for both
            directions. By default what the cell begins with.
        layout : str
            ``"NTC"`` or ``"TNC"``.

        Returns
        -------
        outputs : list of Node
            The output of each step.
        states : list
            The last states, nested like ``begin_state``.

        Raises
        ------
        RecordError
            If the inputs do not have ``length`` steps of one row.

        Examples
        --------
        >>> import multifold, numpy as np
        >>> total = multifold.Cell(lambda x, s: (s + x, s + x), lambda: (np.zeros((1, 2)),), 1)
        >>> fold = multifold.Fold(backend="numpy")
        >>> outputs, states = fold.unroll(total, 3, np.arange(6.0).reshape(1, 3, 2))
        >>> fold([outputs])
        [array([[0., 1.],
               [2., 4.],
               [6., 9.]])]
        """
        steps = time_steps(length, inputs, layout, self._split)
        opened = named_cell(cell, begin_state) if isinstance(cell, str) else self._cell(cell)
        with self._graph.at(users_frame()):
            return unroll(self, opened, steps, begin_state)

    def _split(self, x: Any, sizes: list[int]) -> Sequence[Any]:
        """Return sections of an array along axis 0, in order: section ``i`` has ``sizes[i]`` rows.

        The array is of the fold's framework or of NumPy; it may decide the backend, or be refused
        (`_owner`).
        """
        owner = None if isinstance(x, np.ndarray) else self._owner(x)
        return (registry.load_backend("numpy") if owner is None else owner).split(x, sizes)

    def _cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        """Return a recurrent cell, or a list of cells, as a `Cell`, `Stack` or `Bidirectional`.

        One of these is returned itself, and a sequence of cells becomes a `Stack`. Any other cell is turned
        into one by its backend (`_backend_of`, `Backend.cell`), which raises `BackendError` for a cell that
        it does not know. The same cell, or a list of the same cells, has the same object each time, so that
        its calls share launches.
        """
        if isinstance(cell, (Cell, Stack, Bidirectional)):
            return cell
        # A list of cells is a stack, and so is a framework's container of them, as PyTorch's ModuleList. A
        # mapping has `keys`, and does not say in which order its cells stack.
        sequence = isinstance(cell, (list, tuple)) or (
            hasattr(cell, "__getitem__")
            and hasattr(cell, "__len__")
            and not hasattr(cell, "keys")
            and not isinstance(cell, (str, bytes, np.ndarray))
        )
        parts = tuple(cell[i] for i in range(len(cell))) if sequence else None
        key = id(cell) if parts is None else tuple(map(id, parts))
        if key not in self._cells:
            if parts is None:
                made = self._backend_of(cell).cell(cell)
            else:
                made = Stack(tuple(map(self._cell, parts)))
            # Keep the cell alive, as Python gives the id of an object that is gone to a new one.
            self._cells[key] = (cell if parts is None else parts, made)
        return self._cells[key][1]


def find_backend(backend: str | Backend | type[Backend]) -> Backend | None:
    """Return the backend of that name, a new one of that class, or the given one; None for ``"auto"``.

    Raises
    ------
    BackendError
        If it is none of these, or no backend has that name.
    BackendMissing
        If its adapter is not installed.
    """
    if isinstance(backend, Backend):
        return backend
    if isinstance(backend, type) and issubclass(backend, Backend):
        return backend()
    if backend == "auto":
        return None
    if not isinstance(backend, str):
        raise BackendError(
            f"Expected backend to be a name or a multifold.Backend. Received {type_of(backend)}.",
            "the model is for `apply` and `run`: fold.apply(model, outputs).",
        )
    return registry.load_backend(backend)
