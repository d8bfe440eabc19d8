"""Cells as sequences: the functions of PyTorch that a cell calls, each on the rows of all examples.

`torch.func.vmap` costs some microseconds for each function inside of it, forward and backward, and its
gradients are those of general rules. Most cells need none of that: each function that they call has a rule
of `rules`, so a launch calls these one after another, as if the cell was written for rows.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import optree
from torch import Tensor
from torch.nn import Parameter

from multifold.lazy.current import Recording
from multifold.lazy.sequence import ENTRY, CallSequence, SequenceNode
from multifold_torch.lazy.changes import Layer
from multifold_torch.lazy.pending import Pending
from multifold_torch.lazy.watching import BEGINNINGS


class Told(NamedTuple):
    """What tells the calls of a cell in one run from those in another: the code may find other things then.

    These are the forms of its results, or the types of others; for each result the position of the first
    one that is the same tensor; how they are nested; and the functions that it calls, in order.
    """

    forms: list[Any]
    firsts: list[int]
    nesting: Any
    functions: list[Any]


class CellSequence:
    """The calls of one cell, as the current run has recorded them; see `multifold.lazy.sequence`.

    Parameters
    ----------
    call : CellCall
        The cell.
    recorder : TorchRecorder
        What records its calls.
    guard : context manager, optional
        The context in which the cell runs.

    Attributes
    ----------
    call : CellCall
        The cell.
    stand_ins : list of Pending
        What stood for its operands.
    found : object
        What it has returned, with pending tensors in it.
    leaves : list of Tensor
        The tensors in that.
    changes_arguments : bool
        Whether the cell changes a container that is an argument of it.
    shares_containers : bool
        Whether the cell returns a container that it was given, that is empty, or the same one twice.
    has_rules : bool
        Whether each call has a rule for rows, so that `run` can be called.
    told : Told
        What tells it from that of another run.
    computed_with : sequence of (Tensor, (int, bool))
        The tensors that its constants come from, and their `state_now`.

    Raises
    ------
    CellReads, NotASequence
        If the cell reads a value; or returns other than tensors, or has caught that error.
    Exception
        What the cell raises where its operands have no values.
    """

    def __init__(
        self,
        call: Any,
        recorder: Any,
        guard: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        self.call = call  # sequences are found by the ``id`` of their calls, which no other may get
        self.modes = call.modes
        sequence = self.sequence = CallSequence(len(call.operands))
        # Constants are rows of PyTorch, and a cell that is a module is run through.
        module = getattr(call.func, "module", None)
        recording = Recording(recorder, call.backend, sequence, takes_host=False, inside=module)
        self.stand_ins = [
            recorder.new(recording, node, form, None)
            for node, form in zip(sequence.operands, call.operands, strict=True)
        ]

        given = call.arguments(self.stand_ins)  # in new containers
        before = recorder.flatten(given)

        def code() -> Any:
            args, kwargs = given
            with guard or contextlib.nullcontext():
                found = call.func(*args, **kwargs)
            recorder.complete(recording)
            return found

        self.found = sequence.recorded(recording, code)
        self.shares_containers = shares_containers(self.found, given)
        after = recorder.flatten(given)
        same = after[1] == before[1] and all(x is y for x, y in zip(after[0], before[0], strict=True))
        self.changes_arguments = not same
        leaves = self.leaves = recorder.flatten(self.found)[0]
        if sequence.asked or not leaves or not all(isinstance(x, Tensor) for x in leaves):
            raise NotASequence("it reads a value" if sequence.asked else "it returns other than tensors")
        self.results = [self.node_of(x) for x in leaves]
        self.calls = [step.op for step in sequence.steps if step.op is not ENTRY]
        # What a cell draws by itself is another number for each example.
        draws_own = sequence.constants and call.draws
        self.has_rules = not draws_own and all(one.way == "rule" for one in self.calls)
        forms = [x.form if isinstance(x, Pending) else type(x) for x in leaves]
        ids = [*map(id, leaves)]
        firsts = [*map(ids.index, ids)]
        nesting = recorder.flatten(self.found)[1]
        self.told = Told(forms, firsts, nesting, [one.func for one in self.calls])
        sequence.finish(self.results)
        self.computed_with: Sequence[tuple[Tensor, tuple[int, bool]]] = ()

    def keep(self, tensors: Sequence[tuple[Tensor, tuple[int, bool]]]) -> None:
        """Keep the tensors that the cell has computed with; see ``computed_with``."""
        self.computed_with = tensors

    def node_of(self, x: Tensor) -> SequenceNode:
        """Return the node of a result, which may be a tensor that the cell has computed at once."""
        if isinstance(x, Pending):
            node: SequenceNode = x.node
            return node
        return SequenceNode(self.sequence, self.sequence.place_of(x[None]))

    def begins_with_layers(self, *, with_weights: bool) -> bool:
        """Return whether all results depend on layers: programs record these even of computed tensors.

        ``with_weights`` says that they record functions of `BEGINNINGS` that get a parameter, too.
        """
        found = set[int]()
        for step in self.sequence.steps:
            is_layer = step.op is not ENTRY and isinstance(step.op.func, Layer)
            if with_weights and step.op is not ENTRY and step.op.func in BEGINNINGS:
                is_layer = any(isinstance(x, Parameter) for x in step.op.leaves)
            if is_layer or not found.isdisjoint(step.places):
                found.update(range(step.result, step.result + (step.parts or 1)))
        return all(x.place in found for x in self.results)

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
        if isinstance(found, Tensor) and call.is_single:
            return found
        leaves = optree.tree_leaves(found)
        return leaves[0] if call.is_single else leaves


def containers_in(x: Any) -> list[Any]:
    """Return the containers in something nested that may be changed, each as often as it is there."""
    if isinstance(x, Mapping):
        entries: Iterable[Any] = x.values()
    elif isinstance(x, (list, tuple, set, deque)):
        entries = x
    else:
        return []
    return [*([] if isinstance(x, tuple) else [x]), *[y for part in entries for y in containers_in(part)]]


def shares_containers(found: Any, given: Any) -> bool:
    """Return whether a result holds a container that others may hold, too, or twice the same one.

    A recorded call returns new containers, so that would show. An empty one may be held elsewhere; one with
    tensors in it is new, since the call has made these tensors and changes no container of others.
    """
    own = containers_in(found)
    ids = [*map(id, own)]
    known = {*map(id, containers_in(given))}
    return len({*ids}) < len(ids) or not known.isdisjoint(ids) or not all(own)


class NotASequence(Exception):
    """Says that a cell cannot run as a sequence of calls."""


def repeated(x: Tensor, rows: int) -> Tensor:
    """Return a tensor of one row as one of so many equal rows, in the same memory."""
    return x.expand(rows, *x.shape[1:])
