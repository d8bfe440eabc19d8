"""Tasks: they run until they wait for values, and what they wait for becomes columns of integers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from multifold._compiled.arrays import Integers


def run_ready(
    ready: deque[tuple[Any, Callable[[Any], Any], Any]],
    waits: dict[Any, Any],
    kind: type[Any],
    graph: Any,
    context: Callable[[], Hashable],
    outside: Hashable,
    noted: Callable[[Any], None] | None,
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
    noted : callable or None
        Called with a task after each of its steps.

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
        if noted is not None:
            noted(task)
        if error is not None or (outside and context() != outside):
            try:
                return task, request, error
            finally:
                del error  # its traceback holds this frame: a circle, which would keep the task alive
        if type(request) is not kind or request.graph is not graph or not request.nodes:
            return task, request, None
        waits[task] = request
    return None


def awaited(waiting: list[tuple[Any, Any]], shared: type[Any]) -> tuple[Integers, Integers, list[int]]:
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
    whole : list of int
        The positions of those whose whole result is wanted.
    """
    nodes = [node for _, found in waiting for node in found]
    examples = [task.example for task, found in waiting for _ in found]
    whole = [i for i, node in enumerate(nodes) if isinstance(node, shared)]
    return np.array([node._ref for node in nodes], np.int64), np.array(examples, np.int64), whole
