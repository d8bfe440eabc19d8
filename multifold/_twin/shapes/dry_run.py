"""A dry run: an example is recorded as always, and each kind of call is seen once, without its values.

The numbers and NumPy arrays of the example become zeros, and a backend tells what an op returns for one
row of them (`Backend.abstract`): PyTorch, TensorFlow and JAX can tell from shapes alone, NumPy and MXNet
run the op on that row. Calls of one kind are asked about once, so a tree of 10,000 nodes costs little more
than its recording.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import optree

from multifold._engine.ops.reach import owners_of
from multifold._engine.ops.state import aside
from multifold._engine.ops.values import opened
from multifold._engine.plan.outputs import put_together, take_apart
from multifold._engine.record.kinds import number_type
from multifold._engine.record.node import Node
from multifold._engine.record.signature import Signature, Slot
from multifold._twin.replay import Replay
from multifold._twin.shapes.report import CallShapes, Shapes, row_shape
from multifold._twin.unfold import Unfold
from multifold.backend import Ragged
from multifold.errors import RecordError


def shapes(
    model: Any, fn: Callable[[Any, Any], Any], example: Any, *, backend: Any = "auto", device: Any = None
) -> Shapes:
    """Return the shapes and dtypes of all that an example computes, without computing it.

    The function records the example as for `multifold.Fold.run`. What each op returns is found from the
    shapes of its operands: by FakeTensorMode in PyTorch, `jax.eval_shape` in JAX, and a graph that is never
    run in TensorFlow. NumPy and MXNet have no such means: there each kind of call runs once, on one row of
    zeros, and so does an op of the others that must see values. PyTorch's fake tensors multiply integers
    with floats, which a run refuses: look for ``int64[]`` where an op wants floats.

    Parameters
    ----------
    model : object
        Where op names are looked up; its own weights say what an op returns. It is not changed.
    fn : callable
        ``fn(fold, example)`` records the example and returns nodes, as for `multifold.Fold.run`. It must
        not ``await`` values: there are none.
    example : object
        Any example; its numbers and NumPy arrays count by their type, shape and dtype only.
    backend, device
        As for `multifold.Fold`.

    Returns
    -------
    Shapes
        Prints as a table; ``.calls`` has a `CallShapes` for each kind of call: op, file, line, operands,
        results, and how many there are. ``.outputs`` is what ``fn`` returned.

    Raises
    ------
    LaunchError
        For the first call that does not fit: an op that raises for such operands, a result without one row
        for each node, or rows of two shapes in one group. It names the op, the line and the operands.
    RecordError
        If ``fn`` awaits values.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> weights = np.ones((8, 4), np.float32)
    >>> model = {"embed": lambda i: weights[i], "join": lambda x, y: np.concatenate([x, y], axis=1)}
    >>> def record(fold, pair):
    ...     return fold.add("join", *[fold.add("embed", i) for i in pair])
    >>> found = multifold.shapes(model, record, (3, 5), backend="numpy")
    >>> [str(call) for call in found]
    ['embed(int64[]) -> float32[4]', 'join(float32[4], float32[4]) -> float32[8]']
    >>> found["join"][0].results.shape, str(found.outputs)
    ((8,), 'float32[8]')
    """
    recorder = DryRun(model, backend=backend, device=device)
    result = fn(recorder, example)
    if inspect.isawaitable(result):
        getattr(result, "close", refuse_values)()  # so that Python does not warn of a coroutine
        refuse_values()
    return recorder.report(result)


def refuse_values(*_: Any) -> NoReturn:
    """Raise `RecordError`, whatever the arguments: ``fn`` awaits values, and a dry run has none."""
    raise RecordError(
        "Expected a function that needs no values. Received one that awaits some; a dry run has none.",
        "multifold.Unfold(model).run(None, [example], fn) runs one example call by call.",
    )


class DryReplay(Replay):
    """Runs the first call of each kind on zeros, and returns its result for all others of that kind.

    A kind is a signature and the classes of the operands (`class_of`).

    Attributes
    ----------
    known : dict
        Kind -> the result, and the shapes of the operands as `row_shape` returns them, nested as they were.
    kinds : list
        The kind of each call, in the order of recording.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.known: dict[Hashable, tuple[Any, Sequence[Any]]] = {}
        self.kinds: list[Hashable] = []

    def launch(self, signature: Signature, leaves: list[Any], call: int) -> Any:
        kind = (self.graph.signature[call], *map(self.class_of, signature.slots, leaves))
        self.kinds.append(kind)
        if kind not in self.known:
            result = super().launch(signature, leaves, call)
            seen = [
                row_shape(self.arrays.backend, x, rows=1 if slot.kind.batched else None)
                for slot, x in zip(signature.slots, leaves, strict=True)
            ]
            self.known[kind] = result, signature.nested(seen)
        return self.known[kind][0]

    def result_of(self, fn: Callable[..., Any], signature: Signature, leaves: list[Any]) -> Any:
        backend = self.arrays.backend
        arrays, operands = taken_out(backend.owns, leaves)
        results = []  # puts arrays back into what the op returned

        def compute(arrays: Sequence[Any]) -> list[Any]:
            result = backend.call(fn, signature.nested(operands(arrays)), signature.keywords())
            found, build = taken_out(backend.owns, opened(result))
            results.append(build)
            return found

        owners = owners_of(backend, self.model, fn)
        # The op may change its model, as a running mean: `aside` puts that back.
        with aside(backend, owners), np.errstate(all="ignore"):
            try:
                found = backend.abstract(compute, arrays, owners)
            except Exception:  # noqa: BLE001 - an op that must see values; what is wrong raises again
                found = compute(arrays)
        return results[-1](found)

    def class_of(self, slot: Slot, x: Any) -> Hashable:
        """Return a hashable key of the operand ``x``: calls of one kind have equal keys for each slot.

        For rows it is `Values.class_of`: trailing shape, dtype and device; for a ragged operand that of its
        rows, and whether there are any; for a whole result its shape and dtype. It is None for a value that
        the signature holds.
        """
        if slot.kind.column is None:
            return None  # the signature holds the value, and so tells these apart
        if isinstance(x, Ragged):
            return self.arrays.class_of(x.values), self.arrays.backend.rows(x.values) > 0
        if slot.kind.batched:
            return self.arrays.class_of(x)
        return str(row_shape(self.arrays.backend, x, rows=None))

    def operand(self, slot: Slot, entry: Any) -> Any:
        own = slot.kind.number is not None or slot.kind.array
        return super().operand(slot, zero(entry) if own else entry)

    def rows(self, refs: Iterable[int], loose: Sequence[Any]) -> list[Any]:
        return super().rows(refs, list(map(zero, loose)))


def zero(x: Any) -> Any:
    """Return a zero of the type of a number, or zeros like a NumPy array; anything else as it is."""
    if isinstance(x, np.ndarray):
        return np.zeros_like(x)
    number = number_type(x)
    return x if number is None else number(0)


def taken_out(owns: Callable[[Any], bool], x: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the arrays that ``owns`` finds in ``x``, and a function that puts as many others there.

    Examples
    --------
    >>> arrays, build = taken_out(lambda x: isinstance(x, float), [1.5, "a", (2.5,)])
    >>> arrays, build([3.5, 4.5])
    ([1.5, 2.5], [3.5, 'a', (4.5,)])
    """
    leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
    places = [place for place, leaf in enumerate(leaves) if owns(leaf)]

    def build(arrays: Sequence[Any]) -> Any:
        others = dict(zip(places, arrays, strict=True))
        return optree.tree_unflatten(structure, [others.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[place] for place in places], build


class DryRun(Unfold):
    """An `Unfold` that records one example, and runs each kind of call once, on zeros."""

    knows_shapes: ClassVar[bool] = True
    _replay_type = DryReplay
    value = values = gather = refuse_values  # type: ignore[assignment]

    def shape_of(self, node: Node) -> Any:
        """Return the `RowShape` of a node's value, a structure of them if the value is one of arrays."""
        replay = self._values()
        return row_shape(replay.arrays.backend, replay.value(self._reference(node)))

    def report(self, result: Any) -> Shapes:
        """Return the `Shapes` of all calls that were recorded, and of ``result``, what ``fn`` returned."""
        replay: Any = self._values()
        graph = self._graph
        backend = replay.arrays.backend
        found: dict[Hashable, list[int]] = {}
        for call, kind in enumerate(replay.kinds):
            # Calls of one kind that two lines have recorded are two rows of the table.
            found.setdefault((kind, graph.line(call)), []).append(call)
        calls = []
        for first, *others in found.values():
            signature = graph.signatures[graph.signature[first]]
            file, line = graph.line(first)
            value, operands = replay.known[replay.kinds[first]]
            results = row_shape(backend, value)
            count = 1 + len(others)
            static = signature.static
            calls.append(CallShapes(signature.name, file, line, tuple(operands), static, results, count))
        asked = take_apart(self, result, len(graph.loose))
        # An int is a node, and not a group: of a node one row is asked, or the whole result.
        groups = [1 if isinstance(group, int) else len(group) for group in asked.groups]
        values = zip(replay.groups(asked), groups, strict=True)
        shapes = [row_shape(backend, value, rows=rows) for value, rows in values]
        return Shapes(tuple(calls), put_together(asked, shapes))
