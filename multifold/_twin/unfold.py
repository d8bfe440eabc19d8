"""`Unfold`: the eager twin of `Fold`. The same methods, but every call runs at once, one row each.

Use it to debug: a breakpoint inside an op shows one example. The tests and `Fold.check` compare a fold with
it, so it records as a fold does, but shares none of the code that schedules, wires and runs launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import optree

from multifold._engine.frameworks.framework_recorder import FrameworkRecorder
from multifold._engine.ops.values import (
    Values,
)
from multifold._engine.plan.outputs import put_together, take_apart
from multifold._engine.record.anatomy import Identity
from multifold._engine.record.lines import users_frame
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.rounds.awaitables import Awaiting
from multifold._engine.rounds.fetch import plain, whole_on_host
from multifold._engine.rounds.results import merged_results
from multifold._engine.rounds.tasks import Tasks, collects_failures
from multifold._engine.traces.minibatch import refuse_misplaced
from multifold._twin.replay import Replay
from multifold.errors import RecordError


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
    _seats = False  # each call runs at once, and no other shares its launch

    def __init__(
        self, model: Any = None, *, backend: Any = "auto", device: Any = None, debug: bool = False
    ) -> None:
        super().__init__(backend, device=device)
        self.model = model
        self._debug = debug
        self._replay: Replay | None = None
        self._backend_of(model)

    def reset(self) -> None:
        """Forget all calls and their values: nodes recorded before are refused from now on.

        Raises
        ------
        RecordError
            While this object runs examples.
        """
        self._refuse_within("reset()")
        super().reset()
        self._replay = None

    def shared_key(self, x: Any) -> Hashable:
        """Return a key that is equal for the same object only; an array may decide the backend."""
        super().shared_key(x)
        return Identity(x)

    def shared_value(self, x: Any) -> Any:
        """Return a shared value itself, not a copy: its call runs before the caller can change it."""
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
        """Return the values of outputs, computed already, in the structure that `Fold.apply` returns.

        Raises
        ------
        RecordError
            If ``model`` is neither None nor the one that this object was made with, or for what
            `take_apart` refuses.
        LaunchError
            If a result that is asked for as a row is not one row, or the rows of a group cannot be joined.
        """
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
        """Run ``fn`` over examples one by one, and return what `Fold.run` does.

        ``model`` is None or the one that this object was made with. With ``on_error="collect"`` exceptions
        of examples are kept instead of raised, and the result is a pair: the results of the others, or None
        if all failed, and a dictionary, number of the example -> exception.

        Raises
        ------
        RecordError
            For another model, for no examples, or while this object runs others.

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
        self._answer_at_once_by(lambda nodes: [self._on_host(node) for node in nodes])
        collects = collects_failures(on_error, fn)
        refuse_misplaced(examples, fn)
        self._refuse_within("other run of the same fold")
        tasks = Tasks(self, self._contexts(self._backend_of(self.model)), collect=collects)
        with tasks.running():
            for example in examples:
                tasks.start(fn, example)
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
                            tasks.answer([task], values)
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
        """Return the replay that has the values of all calls; where there is none yet, a new one.

        To make it may set the backend (`_backend_of`), and `str` of a node shows its value from then on.
        """
        if self._replay is None:
            values = Values(self._backend_of(self.model), self._device)
            self._replay = self._replay_type(self._graph, self.model, values, debug=self._debug)
            self._graph.computed_by(self._replay.value)
        return self._replay

    def _on_host(self, node: Node) -> Any:
        """Return what ``await fold.value(node)`` does: a row without axis 0, or a whole result.

        The second is of `no_batch`. Arrays are NumPy's.
        """
        replay = self._values()
        backend = replay.arrays.backend
        if isinstance(node, SharedNode):
            return whole_on_host(backend, replay.value(node._ref))
        return optree.tree_map(lambda x: plain(backend.to_numpy(x)[0]), replay.row(node._ref))

    def __call__(self, outputs: Any) -> Any:
        """Return the values of outputs: `apply` without a model."""
        return self.apply(None, outputs)
