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
