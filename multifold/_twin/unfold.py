"""`Unfold`: the eager twin of `Fold`. The same methods, but every call runs at once, one row each.

Use it to debug: a breakpoint inside an op shows one example. The tests and `Fold.check` compare a fold with
it, so it records as a fold does, but shares none of the code that schedules, wires and runs launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import optree

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS
from multifold._engine.frameworks.framework_recorder import FrameworkRecorder
from multifold._engine.ops.hints import Failure, hint_for
from multifold._engine.ops.lookup import resolve
from multifold._engine.ops.messages import error_text, listing
from multifold._engine.ops.values import (
    PARTS_HINT,
    READ_WHOLE,
    Values,
    classes_differ,
    follow,
    opened,
    steps_to,
)
from multifold._engine.ops.writes import Watch
from multifold._engine.plan.outputs import Outputs, put_together, take_apart
from multifold._engine.record.anatomy import Identity
from multifold._engine.record.freezing import snapshot
from multifold._engine.record.graph import Graph
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.lines import users_frame
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.record.signature import Signature, Slot
from multifold._engine.rounds.awaitables import Awaiting
from multifold._engine.rounds.fetch import plain, whole_on_host
from multifold._engine.rounds.results import merged_results
from multifold._engine.rounds.tasks import Tasks, collects_failures
from multifold._engine.traces.minibatch import refuse_misplaced
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, RecordError


class Replay:
    """Runs the calls of a graph one at a time, in the order in which they were recorded."""

    def __init__(self, graph: Graph, model: Any, arrays: Values, *, debug: bool) -> None:
        self.graph = graph
        self.debug = debug  # compare operands before and after each call
        self.model = model
        self.arrays = arrays
        self.values: dict[int, Any] = {}
        self.next = 0
        self.cursor = dict.fromkeys((*COLUMNS, "members"), 0)

    def go_to(self, backend: Backend, device: Any) -> None:
        """Run the calls to come on another backend or device."""
        self.arrays = Values(backend, device)

    def next_of(self, column: str, count: int = 1) -> int:
        """Return where the next entry of a column is, and pass over it, or over several."""
        at = self.cursor[column]
        self.cursor[column] = at + count
        return at

    def step(self, *, run: bool = True) -> None:
        """Run the next call, or only pass over its operands.

        A signature says how many entries a call has in each column, but no call stores where they begin. So
        the calls are read in the order in which they were recorded, each from where the last one ended.
        """
        graph = self.graph
        call = self.next
        self.next += 1
        signature = graph.signatures[graph.signature[call]]
        entries = [self.entry(slot) for slot in signature.slots]
        if run:
            with self.arrays.placed():
                leaves = list(map(self.operand, signature.slots, entries))
                if signature.beside:
                    leaves = list(self.arrays.narrowed(leaves, signature.beside))
                self.values[call] = self.launch(signature, leaves, call)

    def entry(self, slot: Slot) -> Any:
        """Return what the call has for one operand; of a ragged one the rows."""
        graph = self.graph
        column = slot.kind.column
        if column is None:
            return slot.value
        at = self.next_of(column)
        if slot.kind.ragged:
            first = self.next_of("members", graph.lengths[at])
            return graph.members[first : first + graph.lengths[at]]
        return getattr(graph, column)[at]

    def launch(self, signature: Signature, leaves: list[Any], call: int) -> Any:
        """Run one call."""
        site = self.graph.site(call)
        backend = self.arrays.backend
        fn = resolve(backend, self.model, signature.op, site)
        watch = Watch(backend, signature, leaves, debug=self.debug)
        try:
            result = self.result_of(fn, signature, leaves)
            watch.refuse_changes()
            return result
        except backend.passes:
            raise
        except Exception as error:
            raise LaunchError(
                f"The call of op '{signature.name}' for 1 node, recorded at {site}, raised "
                f"{error_text(error)}. Operands: {listing(signature, leaves)}.",
                hint_for(Failure(error, backend, fn, self.model, signature, leaves)),
            ) from error

    def result_of(self, fn: Callable[..., Any], signature: Signature, leaves: list[Any]) -> Any:
        """Return what an op returns for the operands of one call."""
        return self.arrays.backend.call(fn, signature.nested(leaves), signature.keywords())

    def operand(self, slot: Slot, entry: Any) -> Any:
        """Return what the op receives: one row of each batched operand."""
        kind = slot.kind
        if kind.ref:
            return self.arrays.protected(self.row(entry) if kind.batched else self.value(entry))
        if kind.number is not None:
            return self.arrays.stack([kind.number(entry)])
        if kind.ragged:
            return self.ragged(slot, entry)
        if kind.array:
            return self.arrays.stack([entry])
        return self.arrays.shared(entry) if kind.shared else snapshot(entry)

    def ragged(self, slot: Slot, members: list[int]) -> Ragged:
        """Return the rows of one ragged operand."""
        rows = self.rows(members, self.graph.loose)
        return self.arrays.ragged(self.agreeing(rows), slot.value)

    def agreeing(self, rows: list[Any]) -> list[Any]:
        """Return rows that are to be put together; refuse rows whose classes do not agree."""
        classes = dict.fromkeys(map(self.arrays.class_of, rows))
        if classes and self.arrays.agreed(classes) is None:
            hint = "ask for rows of two shapes as two groups, and pass them as two operands."
            raise classes_differ("one array", classes, hint)
        return rows

    def rows(self, refs: Iterable[int], loose: Sequence[Any]) -> list[Any]:
        """Return the row of each reference; ``-1 - i`` stands for loose value ``i``."""
        protected = self.arrays.protected
        stack = self.arrays.stack
        return [protected(self.row(ref)) if ref >= 0 else stack([loose[-1 - ref]]) for ref in refs]

    def groups(self, asked: Outputs) -> list[Any]:
        """Return the value of each group of some outputs; their loose values follow those of the graph."""
        loose = [*self.graph.loose, *asked.loose]
        with self.arrays.placed():
            return [
                self.arrays.unprotected(self.value(group))
                if isinstance(group, int)
                else self.fresh(self.agreeing(self.rows(group.tolist(), loose)))
                for group in asked.groups
            ]

    def fresh(self, rows: list[Any]) -> Any:
        """Return rows as one array that the user may write to: later calls read the rows themselves."""
        if len(rows) > 1 or not self.arrays.backend.writeable:
            return self.arrays.concat(rows)
        return self.arrays.gather(rows[0], self.arrays.numbers([0], int))

    def value(self, ref: int) -> Any:
        """Return the whole value behind a reference."""
        graph = self.graph
        call = ref & CALL_MASK

        def refuse(what: str) -> LaunchError:
            name = graph.signatures[graph.signature[call]].name
            site = graph.site(call)
            return LaunchError(
                f"The result of op '{name}' for 1 node, recorded at {site}, {what}; "
                f"{Node(graph, ref)!r} is read of it.",
                PARTS_HINT,
            )

        return follow(self.values[call], steps_to(graph.parts, ref >> PART_BITS), refuse)

    def row(self, ref: int) -> Any:
        """Return a value that must be one row."""
        value = opened(self.value(ref))
        instead = self.arrays.mismatch(value, 1)
        if instead is not None:
            raise LaunchError(
                f"The call of {Node(self.graph, ref)!r}, recorded at "
                f"{self.graph.site(ref & CALL_MASK)}, returned {instead.text} for 1 node.",
                instead.hint + READ_WHOLE * instead.array,
            )
        return value


class Unfold(FrameworkRecorder, Awaiting):
    """The eager twin of `Fold`: the same methods, every call runs at once, one row each.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    backend, device, debug
        As for `Fold`.

    Examples
    --------
    >>> import multifold
    >>> unfold = multifold.Unfold({"double": lambda x: 2 * x})
    >>> unfold.apply(None, [[unfold.add("double", i) for i in range(3)]])
    [array([0, 2, 4])]
    """

    _replay_type: ClassVar[type[Replay]] = Replay

    def __init__(
        self, model: Any = None, *, backend: Any = "auto", device: Any = None, debug: bool = False
    ) -> None:
        super().__init__(backend, device=device)
        self.model = model
        self._debug = debug
        self._replay: Replay | None = None
        self._backend_of(model)

    def reset(self) -> None:
        """Forget all calls and their values."""
        self._refuse_within("reset()")
        super().reset()
        self._replay = None

    def shared_key(self, x: Any) -> Hashable:
        """Return what makes a shared value the same in two calls: here only that it is the same object."""
        super().shared_key(x)
        return Identity(x)

    def shared_value(self, x: Any) -> Any:
        """Return a shared value as it is: its call runs before the caller can change it."""
        return x

    def add(self, op: str | Callable[..., Any], /, *operands: Any, **static: Any) -> Node:
        """Run one call at once; see `Fold.add`, which takes the same and refuses the same.

        Raises
        ------
        LaunchError
            If the op raises: here, at the line that calls it. Where it returns another number of rows
            than one, the first call or output that reads the node says so.

        Examples
        --------
        >>> import multifold
        >>> unfold = multifold.Unfold({"double": lambda x: 2 * x})
        >>> node = unfold.add("double", unfold.add("double", 1))  # both calls have run
        >>> unfold.apply(None, node)
        array([4])
        """
        graph = self._graph
        arrays = len(graph.arrays)
        loose = len(graph.loose)
        with graph.at(users_frame()):
            node = super().add(op, *operands, **static)
        signature = graph.signatures[graph.signature[-1]]
        recent = SimpleNamespace(
            signatures=[signature], arrays=graph.arrays[arrays:], loose=graph.loose[loose:]
        )
        # With ``backend="auto"`` the first calls run on NumPy if they hold numbers only. The first array of
        # a framework, or op that is one of its modules, decides for all calls after it.
        backend = self._backend_of(self.model, recent)
        replay = self._values()
        device = replay.arrays.device
        if device is None:
            device = self._device_of(backend, self.model, recent)
        replay.go_to(backend, device)
        replay.step()
        return node

    def apply(self, model: Any, outputs: Any) -> Any:
        """Return the outputs, put together as `Fold.apply` does; ``model`` may be None."""
        self._refuse_other(model)
        asked = take_apart(self, outputs, len(self._graph.loose))
        return put_together(asked, self._values().groups(asked))

    def run(
        self,
        model: Any,
        examples: Iterable[Any],
        fn: Callable[[Unfold, Any], Any],
        *,
        on_error: str = "raise",
    ) -> Any:
        """Run a function over examples, one after the other; see `Fold.run`. ``model`` may be None.

        Examples
        --------
        >>> import multifold
        >>> async def until(fold, x):
        ...     while await fold.value(x) < 100:
        ...         x = fold.add("double", x)
        ...     return x
        >>> unfold = multifold.Unfold({"double": lambda x: 2 * x, "same": lambda x: x})
        >>> unfold.run(None, [3, 70], lambda fold, x: until(fold, fold.add("same", x)))
        array([192, 140])
        """
        self._refuse_other(model)
        collects = collects_failures(on_error, fn)
        refuse_misplaced(examples, fn)
        self._refuse_within("other run of the same fold")
        tasks = Tasks(self, self._backend_of(self.model).context, collect=collects)
        with tasks.running():
            for example in examples:
                tasks.start(fn, self, example)
                waiting = tasks.proceed()
                while waiting:
                    for task, nodes in waiting:
                        try:
                            values = [self._on_host(node) for node in nodes]
                        except Exception as error:
                            if not collects:
                                raise
                            tasks.fail(task.example, error)
                        else:
                            tasks.answer((task,), iter(values))
                    waiting = tasks.proceed()
            tasks.refuse_none()
            replay = self._values()
            merged = None

            def classes_of(refs: np.ndarray, loose: list[Any]) -> list[Any]:
                return list(map(replay.arrays.class_of, replay.rows(refs.tolist(), loose)))

            asked = merged_results(self, tasks, lambda taken: None, classes_of, replay.arrays.agreed)
            if asked is not None:
                merged = put_together(asked, replay.groups(asked), len(tasks.results))
        return (merged, tasks.failures) if collects else merged

    def _refuse_other(self, model: Any) -> None:
        if model is not None and model is not self.model:
            raise RecordError(
                "Expected the model that Unfold was made with: its calls have run already. Received "
                f"another {type(model).__qualname__}.",
                "make an Unfold(model) for each model.",
            )

    def _values(self) -> Replay:
        """Return the values of all calls."""
        if self._replay is None:
            values = Values(self._backend_of(self.model), self._device)
            self._replay = self._replay_type(self._graph, self.model, values, debug=self._debug)
            self._graph.computed_by(self._replay.value)
        return self._replay

    def _on_host(self, node: Node) -> Any:
        """Return the value that is awaited: a row without its axis 0, or the whole result."""
        replay = self._values()
        backend = replay.arrays.backend
        if isinstance(node, SharedNode):
            return whole_on_host(backend, replay.value(node._ref))
        return optree.tree_map(lambda x: plain(backend.to_numpy(x)[0]), replay.row(node._ref))

    def __call__(self, outputs: Any) -> Any:
        """Return the outputs; see `apply`."""
        return self.apply(None, outputs)
