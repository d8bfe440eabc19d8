"""What tasks do with coroutines, requests and nodes: as Python here, and as C in `coroutines.pxd`.

`multifold._engine.compiled.columns` says how a module such as `_tasks` has both.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def sent(context: Any, coroutine: Any, argument: Any, returned: type) -> Any:
    """Send ``argument`` to a coroutine in a context; return what it awaits, and raise what it raises.

    Where it returns, return ``returned(value)``.
    """
    try:
        return context.run(coroutine.send, argument)
    except StopIteration as ended:
        return returned(ended.value)


def once(request: Any) -> Generator[Any, Any, Any]:
    """Return an iterator that yields ``request`` and returns what is sent to it then."""
    return (yield request)


def await_as(kind: type, base: type) -> None:
    """Let ``await`` do with objects of a class what it does with those of a class that it inherits from.

    As Python it does anyway; compiled, it would look up a method each time.
    """


def new(kind: Any) -> Any:
    """Return a new object of a class, whose ``__init__`` was not called."""
    return kind.__new__(kind)


def is_node(x: Any, graph: Any) -> bool:
    """Return whether ``x`` is a node of this graph, or a view of one."""
    return isinstance(x, graph.node_type) and x._graph is graph


def ref_of(node: Any) -> int:
    """Return the reference of a node."""
    ref: int = node._ref
    return ref
