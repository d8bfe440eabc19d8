"""Cells as sequences: the functions of PyTorch that a cell calls, each on the rows of all examples.

`torch.func.vmap` costs some microseconds for each function inside of it, forward and backward, and its
gradients are those of general rules. Most cells need none of that: each function that they call has a rule
of `rules`, so a launch calls these one after another, as if the cell was written for rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optree
from torch import Tensor

from multifold.lazy.current import Recording
from multifold.lazy.sequence import ENTRY, CallSequence, SequenceNode
from multifold_torch.lazy.pending import Pending

if TYPE_CHECKING:
    from multifold_torch.lazy.calls import CellCall


class CellSequence:
    """The calls of one cell, as the current run has recorded them; see `multifold.lazy.sequence`.

    Parameters
    ----------
    call : CellCall
        The cell, which has run for one example before.
    recorder : TorchRecorder
        What records its calls.

    Raises
    ------
    NotASequence
        If the cell does something besides calling functions of PyTorch that run on rows.
    Exception
        What the cell raises where its operands have no values.
    """

    def __init__(self, call: CellCall, recorder: Any) -> None:
        self.modes = call.modes
        sequence = self.sequence = CallSequence(len(call.operands))
        recording = Recording(recorder, call.backend, sequence)
        recording.note_takes_host(False)  # constants are rows of PyTorch
        recording.enters(getattr(call.func, "module", None))
        stand_ins = [
            recorder.new(recording, node, form, None)
            for node, form in zip(sequence.operands, call.operands, strict=True)
        ]
        found = sequence.recorded(recording, lambda: call.one(*stand_ins))
        leaves = recorder.flatten(found)[0]
        if sequence.asked or not all(isinstance(x, Tensor) for x in leaves):
            raise NotASequence
        self.results = [self.node_of(x) for x in leaves]
        if any(step.op is not ENTRY and step.op.way != "rule" for step in sequence.steps):
            raise NotASequence
        # What a cell draws by itself is another number for each example.
        if sequence.constants and call.draws:
            raise NotASequence
        sequence.finish(self.results)

    def node_of(self, x: Tensor) -> SequenceNode:
        """Return the node of a result, which may be a tensor that the cell has computed at once."""
        if isinstance(x, Pending):
            node: SequenceNode = x.node
            return node
        return SequenceNode(self.sequence, self.sequence.place_of(x[None]))

    def run(self, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the cell on the rows of all examples; return its results as rows."""
        return tuple(self.sequence.run(rows, self.results, self.run_one, repeated))

    def run_one(self, call: Any, rows: Sequence[Tensor]) -> Any:
        """Run one call of the cell on rows, in the modes in which the cell makes it."""
        if call.modes == self.modes:
            found = call.on_rows(rows)
        else:
            with call.modes.applied():
                found = call.on_rows(rows)
        return found if call.is_single else optree.tree_leaves(found)


class NotASequence(Exception):
    """Says that a cell cannot run as a sequence of calls."""


def repeated(x: Tensor, rows: int) -> Tensor:
    """Return a tensor of one row as one of so many equal rows, in the same memory."""
    return x.expand(rows, *x.shape[1:])
