"""Replays: the calls of a graph, run one at a time in the order in which they were recorded.

`Unfold` runs each call by a replay when it is recorded, and `check` those of a fold that it compares with.
Two others run calls on stand-ins, to learn what they return: the dry run behind `multifold.shapes`, and
`multifold.program` where it learns the classes of results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS
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
from multifold._engine.plan.outputs import Outputs
from multifold._engine.record.freezing import snapshot
from multifold._engine.record.graph import Graph
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.node import Node
from multifold._engine.record.signature import Signature, Slot
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError


class Replay:
    """Runs the calls of a graph one at a time, in the order in which they were recorded.

    ``values`` has the result of each call that was run, by its number.
    """

    def __init__(self, graph: Graph, model: Any, arrays: Values, *, debug: bool) -> None:
        self.graph = graph
        self.debug = debug  # compare operands before and after each call
        self.model = model
        self.arrays = arrays
        self.values: dict[int, Any] = {}
        self.next = 0
        self.cursor = dict.fromkeys((*COLUMNS, "members"), 0)

    def go_to(self, backend: Backend, device: Any) -> None:
        """Run the calls to come on another backend and device; results so far stay."""
        self.arrays = Values(backend, device)

    def next_of(self, column: str, count: int = 1) -> int:
        """Return the position of the next unread entry of a column, and pass over ``count`` entries."""
        at = self.cursor[column]
        self.cursor[column] = at + count
        return at

    def step(self, *, run: bool = True) -> None:
        """Run the next call and keep its result; with ``run=False`` only pass over its operands.

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
        """Return what the next call has in the column of one slot, and pass over it.

        It is a reference, a number, an array, the list of references of a ragged operand's rows, or the
        value in the slot.
        """
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
        """Run call number ``call`` on its operands, one for each slot; return what the op returned.

        Raises
        ------
        LaunchError
            If the op raises, or is seen to write to an operand.
        """
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
        """Return what the op ``fn`` returns for the operands of one call; `DryReplay` overrides it."""
        return self.arrays.backend.call(fn, signature.nested(leaves), signature.keywords())

    def operand(self, slot: Slot, entry: Any) -> Any:
        """Return what the op receives for what `entry` returned: one row if the operand is batched."""
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
        """Return a ragged operand of one node from references; ``-1 - i`` is the graph's loose value ``i``.

        Raises
        ------
        LaunchError
            If the rows cannot be put into one array (`agreeing`).
        """
        rows = self.rows(members, self.graph.loose)
        return self.arrays.ragged(self.agreeing(rows), slot.value)

    def agreeing(self, rows: list[Any]) -> list[Any]:
        """Return ``rows`` as they are; raise `LaunchError` if they cannot be put into one array.

        They can if they have one class (`Values.class_of`: structure, trailing shapes, dtypes and devices),
        or differ in dtypes only that the backend promotes; and if there are none.
        """
        classes = dict.fromkeys(map(self.arrays.class_of, rows))
        if classes and self.arrays.agreed(classes) is None:
            hint = "ask for rows of two shapes as two groups, and pass them as two operands."
            raise classes_differ("one array", classes, hint)
        return rows

    def rows(self, refs: Iterable[int], loose: Sequence[Any]) -> list[Any]:
        """Return a list with the row of each reference; ``-1 - i`` stands for ``loose[i]``."""
        protected = self.arrays.protected
        stack = self.arrays.stack
        return [protected(self.row(ref)) if ref >= 0 else stack([loose[-1 - ref]]) for ref in refs]

    def groups(self, asked: Outputs) -> list[Any]:
        """Return a list with the value of each group of ``asked``: an array of rows, or a whole result.

        Loose value ``i`` is entry ``i`` of those of the graph and, after them, of ``asked``.

        Raises
        ------
        LaunchError
            If a value in a group is not one row, or the rows cannot be put into one array.
        """
        loose = [*self.graph.loose, *asked.loose]
        with self.arrays.placed():
            return [
                self.arrays.unprotected(self.value(group))
                if isinstance(group, int)
                else self.fresh(self.agreeing(self.rows(group.tolist(), loose)))
                for group in asked.groups
            ]

    def fresh(self, rows: list[Any]) -> Any:
        """Return a list of values of one row each as one new array of all these rows, in their order.

        Even of one row it is a copy where arrays can be written to: the user may do that, and later calls
        read the rows.
        """
        if len(rows) > 1 or not self.arrays.backend.writeable:
            return self.arrays.concat(rows)
        return self.arrays.gather(rows[0], self.arrays.numbers([0], int))

    def value(self, ref: int) -> Any:
        """Return the whole value that a reference stands for: the result of its call, or the part of it.

        Raises
        ------
        LaunchError
            If the result has no such part.
        """
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
        """Return the value that a reference stands for, which must be one row: each array in it has one.

        Raises
        ------
        LaunchError
            If it is anything else.
        """
        value = opened(self.value(ref))
        instead = self.arrays.mismatch(value, 1)
        if instead is not None:
            raise LaunchError(
                f"The call of {Node(self.graph, ref)!r}, recorded at "
                f"{self.graph.site(ref & CALL_MASK)}, returned {instead.text} for 1 node.",
                instead.hint + READ_WHOLE * instead.array,
            )
        return value
