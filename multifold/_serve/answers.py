"""What a request waits for, and its result as soon as all of it is there.

`multifold.Fold.apply` plans how the rows of its outputs are put together, as for any operand. A server
would do that for each request, so it reads rows from the results of launches instead: one copy to the host
for all requests that end together, and one small array for each group of each request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from multifold._await.fetch import LEAF, HostRows, host_rows, hosted
from multifold._await.tasks import ExampleTask
from multifold._compiled.arrays import Integers
from multifold._record.node import Node, SharedNode
from multifold._run.run import Run
from multifold._schedule.outputs import Outputs, put_together


@dataclass(slots=True)
class Want:
    """The values that a task waits for, or those of the result of a request.

    Attributes
    ----------
    example : int
        Whose want it is.
    task : ExampleTask or None
        Who waits; None for a result.
    refs, whole : lists of int
        References of what is wanted, and the positions of those that are wanted whole.
    result : object
        What the example returned.
    asked : Outputs or None
        That, taken apart; its loose values are numbered from 0 on. None also for a result that is one row.
    """

    example: int
    task: ExampleTask | None
    refs: Sequence[int]
    whole: Sequence[int]
    result: Any = None
    asked: Outputs | None = None

    @classmethod
    def of_task(cls, task: ExampleTask, nodes: Sequence[Node]) -> Want:
        """Return what a task waits for."""
        whole = [i for i, node in enumerate(nodes) if isinstance(node, SharedNode)]
        return cls(task.example, task, [node._ref for node in nodes], whole)

    @classmethod
    def of_node(cls, example: int, node: Node) -> Want:
        """Return what a result needs that is one row, as most are: nothing is taken apart for it."""
        return cls(example, None, (node._ref,), (), node)

    @classmethod
    def of_result(cls, example: int, result: Any, asked: Outputs) -> Want:
        """Return what a result needs."""
        refs = list[int]()
        whole = list[int]()
        for group in asked.groups:
            if isinstance(group, int):
                whole.append(len(refs))
                refs.append(group)
            else:
                refs += [ref for ref in group.tolist() if ref >= 0]
        return cls(example, None, refs, whole, result, asked)

    @property
    def rows(self) -> Sequence[int]:
        """References of what is wanted by rows."""
        return [ref for i, ref in enumerate(self.refs) if i not in self.whole] if self.whole else self.refs


def results_of(
    wants: Sequence[Want], found: HostRows | None, whole: Callable[[int], Any]
) -> dict[int, Any]:
    """Return the results of requests on the host, by example; without those that have to be planned.

    These are requests with loose values in a group, or with rows of several classes: whether such rows fit
    together, and to what, is for the framework to say.

    Parameters
    ----------
    wants : sequence of Want
        The results.
    found : HostRows or None
        The rows of all that is wanted by rows, in the order of the wants; None if nothing is.
    whole : callable
        Reference -> its whole value on the host.
    """
    results = dict[int, Any]()
    row = 0
    sources, at = ([], []) if found is None else (found.source.tolist(), found.at.tolist())
    for want in wants:
        if want.asked is None:
            results[want.example] = row_of(found, sources[row], at[row])  # type: ignore[arg-type]  # a row is wanted, so some were fetched
            row += 1
            continue
        values: list[Any] = []
        for group in want.asked.groups:
            if isinstance(group, int):
                values.append(optree.tree_map(own, whole(group)))
            else:
                count = int(np.count_nonzero(group >= 0))
                rows = slice(row, row + count)
                values.append(group_of(found, rows) if found and count == len(group) else None)
                row += count
        if not any(value is None for value in values):
            results[want.example] = put_together(want.asked, values.__getitem__)
    return results


def results_of_run(
    run: Run, wants: Sequence[Want], renumbered: Callable[[Integers], Integers]
) -> dict[int, Any]:
    """Return the results of requests that a run has computed or read; see `results_of`.

    ``renumbered`` gives references the numbers that calls have in the run.
    """
    rows = [ref for want in wants for ref in (want.rows if want.whole else want.refs)]
    refs = np.array(rows, np.int64)
    found = host_rows(run, renumbered(refs)) if len(refs) else None

    def whole(ref: int) -> Any:
        return hosted(run.backend, run.whole(int(renumbered(np.array([ref]))[0])))

    return results_of(wants, found, whole)


def row_of(found: HostRows, source: int, at: int) -> Any:
    """Return one row as a value of shape ``(1, *s)``, a copy: a view would keep the rows of all others."""
    structure = found.structures[source]
    leaves = found.leaves[source]
    if structure is LEAF:
        return leaves[0][at : at + 1].copy()
    return optree.tree_unflatten(structure, [x[at : at + 1].copy() for x in leaves])


def group_of(found: HostRows, rows: slice) -> Any:
    """Return the rows of a group as one value of shape ``(n, *s)``; None if they are of several classes."""
    sources = found.source[rows]
    at = found.at[rows]
    if not len(at):
        return None
    distinct = set(sources.tolist())
    if len(distinct) == 1:
        (source,) = distinct
        leaves = [leaf[at] for leaf in found.leaves[source]]
        return optree.tree_unflatten(found.structures[source], leaves)
    forms = {(found.structures[i], *[(x.dtype, x.shape[1:]) for x in found.leaves[i]]) for i in distinct}
    if len(forms) > 1:
        return None
    pairs = list(zip(sources.tolist(), at.tolist(), strict=True))
    columns = range(len(found.leaves[pairs[0][0]]))
    leaves = [np.stack([found.leaves[source][leaf][i] for source, i in pairs]) for leaf in columns]
    return optree.tree_unflatten(found.structures[pairs[0][0]], leaves)


def own(x: Any) -> Any:
    """Return a copy of an array, and anything else as it is."""
    return x.copy() if isinstance(x, np.ndarray) else x
