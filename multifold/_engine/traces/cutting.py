"""Cutting: calls of many examples, recorded on one graph one after the other, become a trace for each.

A call of an example has another number in its trace than on the graph: the calls of a trace begin at 0, and
so do its signatures and parts, in the order in which the example meets them. So a trace does not depend on
the examples that were recorded before it.

Examples
--------
Two examples are recorded on one graph. The second one has calls 1 and 2, and its op ``double`` has number 1
there though the first example met it first.

>>> from multifold._engine.traces.tracer import TraceRecorder
>>> recorder = TraceRecorder()
>>> recorded = RecordedExamples(recorder, recorder.known, 0)
>>> recorded.take(recorder.add("double", 5))
>>> recorded.take([recorder.add("half", 7), recorder.add("double", 9)])
>>> list(recorder._graph.signature), recorded.calls
([0, 1, 0], [0, 1, 3])

Each trace begins with eight sizes and the size of its one result. Its signatures and ints
follow, and at last the rows of its result: call 0, and calls 0 and 1.

>>> for trace in cut(recorded):
...     print([signature.name for signature in trace.vocabulary.signatures], trace.integers[9:].tolist())
['double'] [0, 5, 0]
['half', 'double'] [0, 1, 7, 9, 0, 1]
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, starts
from multifold._engine.compiled.forms import own
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.each import copied
from multifold._engine.plan.outputs import take_apart
from multifold._engine.record.graph import Graph, line_of
from multifold._engine.record.node import Node
from multifold._engine.record.recorder import Recorder
from multifold._engine.traces.known import Learned
from multifold._engine.traces.trace import Trace
from multifold.errors import RecordError


class RecordedExamples:
    """Examples that were recorded on one graph, one after the other, and what each of them returned.

    Attributes
    ----------
    recorder : Recorder
        Recorded all of them; its graph holds their calls.
    known : Learned
        The signatures, parts and structures that the graph numbers.
    first : int
        The number, in the caller's list, of the first example here.
    calls, loose : lists of int
        How many calls, and loose values inside ragged operands, the graph had before each example and after
        the last one; one entry more than examples.
    structures : list of int
        For each example the number of the structure of its results: the position in ``known.results``.
    results : list of int
        How many results each example has.
    sizes : list of int
        How many rows each result has, over all examples.
    rows : array of int64
        All these rows: references, or ``-1 - i`` for loose value ``i`` of the example.
    values : dict of int to tuple
        Position of an example here -> the loose values among its results; examples without are left out.
    kept : dict of int to tuple
        Position of an example here -> the forms of its results that `multifold.each` marks; examples
        without are left out.
    """

    def __init__(self, recorder: Recorder, known: Learned, first: int) -> None:
        self.recorder = recorder
        self.known = known
        self.first = first
        self.calls = [0]
        self.loose = [0]
        self.structures: list[int] = []
        self.results: list[int] = []
        self.sizes: list[int] = []
        self.rows = array("q")
        self.values: dict[int, tuple[Any, ...]] = {}
        self.kept: dict[int, tuple[Any, ...]] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def take(self, result: Any) -> None:
        """Append the example that was recorded last: where its calls end, and the ``result`` it returned.

        ``result`` is a node, a structure of nodes, or the coroutine of an ``async def``, which runs here.
        Raises `RecordError` where `at_once` or `take_apart` does.
        """
        graph = self.recorder._graph
        loose = len(graph.loose)
        if type(result) is Node and result._graph is graph:  # one row: what most examples return
            self.structures.append(self.known.one_row)
            self.results.append(1)
            self.sizes.append(1)
            self.rows.append(result._ref)
        else:
            # An `async def` may record an example, too, as long as it awaits no value.
            if inspect.iscoroutine(result):
                result = at_once(result)
            # Loose values inside of the example's ragged operands have the first numbers, and those of its
            # results follow.
            asked = take_apart(self.recorder, result, loose - self.loose[-1], fewest=0)
            if asked.loose:
                self.values[len(self)] = tuple(map(own, asked.loose))
            if asked.kept:
                self.kept[len(self)] = tuple(map(copied, asked.kept))
            self.structures.append(self.known.number_of(asked.structure, tuple(asked.wanted)))
            self.results.append(len(asked.wanted))
            for groups in asked.by_result():
                rows = [ref for x in groups for ref in ([x] if isinstance(x, int) else x.tolist())]
                self.sizes.append(len(rows))
                self.rows.extend(rows)
        self.calls.append(len(graph.signature))
        self.loose.append(loose)


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine of an ``async def`` to its end, and return what it returns.

    Raises `RecordError` if it awaits a value; the coroutine is closed then.
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RecordError(
        "Expected no value to be awaited in a trace, which holds calls and no values.",
        "fold.run(model, examples, fn) runs examples that look at values.",
    )


def cut(recorded: RecordedExamples) -> list[Trace]:
    """Return a new trace for each recorded example, in their order.

    Raises
    ------
    RecordError
        If an example reads a node of another one.
    """
    graph = recorded.recorder._graph
    known = recorded.known
    calls = recorded.calls
    loose = recorded.loose
    known.note_calls(graph)
    try:
        integers, lines, ends = compiled.cut(
            calls, loose, graph.signature, known.widths, graph.refs, graph.ints, graph.lengths,
            graph.members, known.parents, recorded.results, recorded.sizes, recorded.rows, graph.codes,
            graph.instructions, line_of,
        )  # fmt: skip
    except IndexError:
        # Compiled code knows that a reference leaves its example, but not which one. This looks for it.
        refuse_strangers(recorded, graph)
        raise
    return compiled.traces_of(Trace, recorded, graph, integers, lines, ends)


def refuse_strangers(recorded: RecordedExamples, graph: Graph) -> None:
    """Raise `RecordError` for the first example that reads a node of another one; return None if none does.

    The message names both examples, by the caller's numbers, and the line that recorded the node.
    """
    columns = Columns.of(graph)
    calls = np.array(recorded.calls)
    # Where the reads of each example begin: among references, ragged rows, and rows of its results.
    refs = columns.ref_starts[calls]
    rows = columns.member_starts[columns.ragged_starts[calls]]
    results = starts(np.array(recorded.sizes, np.int64))[starts(np.array(recorded.results, np.int64))]
    reads = (columns.refs, refs), (columns.members, rows), (np.array(recorded.rows, np.int64), results)
    for i, (first, end) in enumerate(pairwise(recorded.calls)):
        own = np.concatenate([column[bounds[i] : bounds[i + 1]] for column, bounds in reads])
        call = own & CALL_MASK
        strange = np.flatnonzero((own >= 0) & ((call < first) | (call >= end)))
        if len(strange):
            node = Node(graph, int(own[strange[0]]))
            source = int(call[strange[0]])
            other = int(calls.searchsorted(source, side="right")) - 1
            raise RecordError(
                f"Expected each example to read its own nodes. Example {recorded.first + i} reads "
                f"{node!r}, which example {recorded.first + other} recorded at {graph.site(source)}.",
                "a trace is one example by itself: record what the examples share in each of them.",
            )
