"""The calls of a trace, recorded once more: on a fold that records other examples as well.

Traces are merged into minibatches of traces only (`multifold._engine.traces.minibatch`). A server takes a
trace as one request among others, so its columns are appended to the graph of the server's fold:

>>> import multifold
>>> trace = multifold.trace(lambda fold, x: {"y": fold.add("double", x)}, 4)
>>> fold = multifold.Fold(backend="numpy")
>>> nodes = [fold.add("double", 1), record_again(fold, trace)["y"]]
>>> fold.apply({"double": lambda x: 2 * x}, [nodes])
[array([2, 8])]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.plan.each import filled
from multifold._engine.plan.outputs import Outputs
from multifold._engine.record.damage import DAMAGE, damaged
from multifold._engine.record.recorder import Recorder
from multifold._engine.traces.minibatch import Merger
from multifold._engine.traces.trace import Trace
from multifold.operands import Each


def record_again(recorder: Recorder, trace: Trace) -> Any:
    """Append the calls of a trace to the graph of a recorder, with their old lines.

    Returns what the traced function returned, with nodes of the recorder in the place of its nodes.

    Raises
    ------
    RecordError
        If the trace is damaged.
    """
    try:
        merged = Merger([trace])
        columns = merged.columns()
        asked = merged.outputs()
        files = [trace.vocabulary.files[number] for number in columns.signature.tolist()]
        sites = list(zip(files, trace.lines.tolist(), strict=True))
    except DAMAGE as error:
        raise damaged(f"{error}") from error
    graph = recorder._graph
    first = len(graph.signature)
    first_loose = len(graph.loose)
    numbers = np.array([graph.take_in(signature) for signature in columns.signatures], np.int64)
    parts = [0]
    # A part comes after the part that it is a part of, so the parent's number is known.
    for part in columns.parts[1:]:
        parts.append(graph.part(parts[part.parent], part.path[-1], part.length))
    part_numbers = np.array(parts, np.int64)

    def moved(refs: Integers) -> Integers:
        # References to loose values are negative. The first line makes nonsense of them, and the second one
        # drops it.
        calls = part_numbers[refs >> PART_BITS] << PART_BITS | (refs & CALL_MASK) + first
        return np.where(refs < 0, refs - first_loose, calls)

    graph.refs.extend(moved(columns.refs).tolist())
    graph.ints.extend(columns.ints.tolist())
    graph.floats.extend(columns.floats.tolist())
    graph.arrays.extend(columns.arrays)
    graph.lengths.extend(columns.lengths.tolist())
    graph.members.extend(moved(columns.members).tolist())
    graph.loose.extend(columns.loose)
    graph.signature.extend(numbers[columns.signature].tolist())
    graph.codes.extend(sites)
    # The sites say file and line themselves, so no instruction is looked up.
    graph.instructions.extend([0] * len(sites))

    def row(ref: int) -> Any:
        if ref < 0:
            return columns.loose[-1 - ref]
        return graph.node_type(graph, int(moved(np.array([ref]))[0]))

    return returned(asked, row)


def returned(asked: Outputs, row: Callable[[int], Any]) -> Any:
    """Return what a traced function returned: the structure of ``asked``, filled with ``row(reference)``.

    Parameters
    ----------
    asked : Outputs
        The outputs of the one trace.
    row : callable
        Reference -> the node; ``-1 - i`` -> loose value ``i``.
    """
    kept = iter(asked.kept)

    def group(refs: Integers | int) -> Any:
        if isinstance(refs, int):
            return row(refs).no_batch()
        return list(map(row, refs.tolist()))

    def result(wanted: str, groups: list[Integers | int]) -> Any:
        if wanted == "each":
            return Each(filled(next(kept), map(group, groups)))
        (found,) = map(group, groups)
        return found[0] if wanted == "row" else found

    results = map(result, asked.wanted, asked.by_result())
    return optree.tree_unflatten(asked.structure, results)
