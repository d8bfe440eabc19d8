"""Tasks: they run until they wait for values; these become integers; and whose calls are whose."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Growing, Integers
from multifold._compiled.reference import rounds


class Owners:
    """Which example has recorded each call, and how many calls each example under way has.

    Parameters
    ----------
    graph : Graph
        Where calls are recorded.
    share : int
        As how many calls an example counts at most.

    Attributes
    ----------
    total : int
        How many calls the examples under way have.
    load : int
        The same, but each example counts for `share` calls at most.

    Examples
    --------
    Example 0 records two calls, and example 1 one. Then example 0 goes on with another two.

    >>> from multifold import Fold
    >>> fold = Fold(backend="numpy")
    >>> owners = Owners(fold._graph, 3)
    >>> for example, calls in ((0, 2), (1, 1), (0, 2)):
    ...     for _ in range(calls):
    ...         leaf = fold.add("leaf", 3)
    ...     owners.note(example)
    >>> owners.of_calls.tolist(), owners.total, owners.load
    ([0, 0, 1, 0, 0], 5, 4)
    >>> owners.end(0), owners.total, owners.load
    (4, 1, 1)
    """

    def __init__(self, graph: Any, share: int) -> None:
        self.graph = graph
        self.share = share
        self.total = self.load = 0
        self._owner = Growing()
        self._counts: dict[int, int] = {}  # -1 for an example that has ended

    @property
    def of_calls(self) -> Integers:
        """The example that has recorded each call."""
        found: Integers = self._owner.values
        return found

    def note(self, example: int) -> None:
        """Note that an example has recorded the calls that no example owns yet."""
        first = self._owner.size
        new = len(self.graph.signature) - self._owner.size
        if not new:
            return
        self._owner.grow(new)
        self._owner.values[first:] = example
        before = self._counts.get(example, 0)
        if before >= 0:
            self._counts[example] = before + new
            self.total += new
            self.load += min(before + new, self.share) - min(before, self.share)

    def end(self, example: int) -> int:
        """Count an example no more, whatever it goes on to record; return how many calls it had."""
        count = max(self._counts.get(example, 0), 0)
        self._counts[example] = -1
        self.total -= count
        self.load -= min(count, self.share)
        return count


def run_ready(
    ready: deque[tuple[Any, Callable[[Any], Any], Any]],
    waits: dict[Any, Any],
    kind: type[Any],
    graph: Any,
    context: Callable[[], Hashable],
    outside: Hashable,
    owners: Owners | None,
) -> tuple[Any, Any, Exception | None] | None:
    """Run tasks that are ready, until one does anything else than to wait for values.

    Parameters
    ----------
    ready : deque of (task, callable, object)
        Tasks, and what is called in the context of each, with which argument; taken from the front.
    waits : dict
        All open tasks, and the request that each waits for; filled in. Other tasks do not run.
    kind, graph : type, object
        What the request of a task that waits for values is: of this class, and for nodes of this graph.
    context, outside : callable, Hashable
        What the framework's ``with`` statements have changed, now and before. If that was nothing that
        can change, it is false.
    owners : Owners or None
        What notes after each step of a task the calls that its example has recorded.

    Returns
    -------
    task, request, error
        The task that does something else: what it waits for, or what it has raised. None if all tasks wait.
    """
    while ready:
        task, method, argument = ready.popleft()
        if task not in waits:
            continue
        request: Any = None
        error = None
        try:
            request = task.context.run(method, argument)
        except Exception as raised:  # noqa: BLE001 - whatever the user's coroutine raises
            error = raised
        if owners is not None:
            owners.note(task.example)
        if error is not None or (outside and context() != outside):
            try:
                return task, request, error
            finally:
                del error  # its traceback holds this frame: a circle, which would keep the task alive
        if type(request) is not kind or request.graph is not graph or not request.nodes:
            return task, request, None
        waits[task] = request
    return None


def awaited(
    waiting: list[tuple[Any, Any]], shared: type[Any]
) -> tuple[Integers, Integers, list[int], list[int]]:
    """Return what tasks wait for.

    Parameters
    ----------
    waiting : list of (task, sequence of Node)
        The tasks, and the nodes whose values each of them waits for.
    shared : type
        The class of nodes whose whole result is wanted.

    Returns
    -------
    refs, examples : int64 arrays
        The reference of each node, and the example that waits for it.
    sizes : list of int
        How many nodes each task waits for.
    whole : list of int
        The positions of those whose whole result is wanted.
    """
    nodes = [node for _, found in waiting for node in found]
    examples = [task.example for task, found in waiting for _ in found]
    whole = [i for i, node in enumerate(nodes) if isinstance(node, shared)]
    sizes = [len(found) for _, found in waiting]
    return np.array([node._ref for node in nodes], np.int64), np.array(examples, np.int64), sizes, whole


def located(
    refs: Integers, launch: Integers, row: Integers, rows: list[int]
) -> tuple[list[tuple[int, int, int]], Integers, Integers, bool]:
    """Return which parts of results hold the rows of some references, and where.

    Parameters
    ----------
    refs : int64 array
        What is read.
    launch, row : int64 arrays
        The launch and the row of each call.
    rows : list of int
        The rows of each launch.

    Returns
    -------
    sources : list of (int, int, int)
        The launches and parts that are read, and how many of the references read each of them.
    source, at : int64 arrays
        Of each reference, which of these, and the row in it.
    straight : bool
        Whether the references are all rows of one part, in their order: then nothing has to be moved.

    Examples
    --------
    Calls 0 and 1 are the rows of launch 0, and call 2 is that of launch 1.

    >>> launch, row, rows = np.array([0, 0, 1]), np.array([0, 1, 0]), [2, 1]
    >>> sources, source, at, straight = located(np.array([1, 2, 0]), launch, row, rows)
    >>> sources, source.tolist(), at.tolist(), straight
    ([(0, 0, 2), (1, 0, 1)], [0, 1, 0], [1, 0, 0], False)
    >>> located(np.array([0, 1]), launch, row, rows)[-1]
    True
    """
    calls = refs & CALL_MASK
    if ((refs < 0) | (launch[calls] < 0) | (launch[calls] >= len(rows))).any():
        raise IndexError("A column of calls refers to what is not there.")
    keys, source, counts = rounds.distinct((refs >> PART_BITS) * len(rows) + launch[calls])
    pairs = [divmod(key, len(rows))[::-1] for key in keys.tolist()]
    sources = [(*pair, count) for pair, count in zip(pairs, counts.tolist(), strict=True)]
    at = row[calls]
    straight = len(pairs) == 1 and np.array_equal(at, np.arange(rows[pairs[0][0]]))
    return sources, source, at, straight
