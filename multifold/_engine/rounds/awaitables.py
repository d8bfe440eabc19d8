"""What `Fold.value`, `Fold.values` and `Fold.gather` return, and what is checked about it.

Nothing is computed when one of them is called: each returns a small object that says what is wanted. An
``await`` hands that object to the tasks of the run (`multifold._engine.rounds.tasks`), which send back the
answer.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, NoReturn

import optree

from multifold._engine import compiled
from multifold._engine.record.freezing import refuse_itself
from multifold._engine.record.graph import Graph
from multifold._engine.record.misuse import NoAttributeError
from multifold._engine.record.node import Node
from multifold.errors import RecordError, type_of

OF_ANOTHER_FOLD = (
    "Expected values of the fold that runs this function. Received a request of another one.",
    "await those of the outer fold before the inner fold.run, and hand them in.",
)
FORGOTTEN = (
    "Expected values of nodes of this run. Received those of nodes from before a reset.",
    "what a run records is forgotten when the next one begins.",
)
TWICE = (
    "Expected each fold.gather(...) to be awaited once. Received it a second time.",
    "keep what `await` returned.",
)


class Unawaited:
    """What stands for values that are not computed yet; whatever uses it without ``await`` is refused.

    The refusals matter most where Python would not complain: a forgotten ``await`` in an ``if`` would
    always be true, and one in ``==`` always false.
    """

    __slots__ = ()

    recorder: Awaiting

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            if not self.recorder._in_progress:
                self.recorder._refuse_outside()
            return (yield self)
        except BaseException:  # also a key press
            self.close()
            raise

    def close(self) -> None:
        """Give the request up: nothing will await it. One that holds coroutines closes them."""

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse(error=NoAttributeError)  # so that `hasattr` says no

    def _refuse(self, *_: Any, error: type[RecordError] = RecordError) -> NoReturn:
        raise error(
            "Expected the value of a node. Received what fold.value, fold.values or fold.gather return: "
            "the value is not there yet.",
            "write `await fold.value(node)`, inside of an `async def`.",
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __iter__ = __len__ = __contains__ = __getitem__ = _refuse
    __int__ = __float__ = __index__ = __array__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = _refuse
    __hash__ = object.__hash__


@compiled.requests_are
class ValuesRequest(compiled.RequestBase, Unawaited):
    """What `Fold.value` and `Fold.values` return; awaited, it becomes the values on the host."""

    __slots__ = ()

    def nested(self, values: list[Any]) -> Any:
        """Return what ``await`` of `Fold.values` gives: the values of all nodes in their structure."""
        if self.structure is tuple:
            return tuple(values)
        return values if self.structure is list else optree.tree_unflatten(self.structure, values)

    def problem(self, recorder: Awaiting) -> tuple[str, str] | None:
        """Return why a run of ``recorder`` can't answer this, as (message, hint); None if it can.

        It can't if the request is of another fold, or of nodes from before a reset.
        """
        if self.recorder is not recorder:
            return OF_ANOTHER_FOLD
        return None if self.graph is recorder._graph else FORGOTTEN


class GatherRequest(Unawaited):
    """What `Fold.gather` returns; awaited, it becomes the list of what the coroutines returned."""

    __slots__ = ("coroutines", "recorder")

    def __init__(self, recorder: Awaiting, coroutines: list[Coroutine[Any, Any, Any]]) -> None:
        self.recorder = recorder
        self.coroutines: list[Coroutine[Any, Any, Any]] | None = coroutines

    def taken(self) -> None:
        """Set ``coroutines`` to None: they are tasks now. Awaited a second time, the request is refused."""
        self.coroutines = None

    def problem(self, recorder: Awaiting) -> tuple[str, str] | None:
        """Return why a run of ``recorder`` can't answer this, as (message, hint); None if it can.

        It can't if the request is of another fold, or was awaited before.
        """
        if self.recorder is not recorder:
            return OF_ANOTHER_FOLD
        return TWICE if self.coroutines is None else None

    def close(self) -> None:
        """Close the coroutines, so that Python does not warn of them; nothing happens after `taken`.

        Then the request is taken, too: it can't be awaited any more.
        """
        for coroutine in self.coroutines or ():
            coroutine.close()
        self.taken()


class Awaiting(compiled.AwaitingBase):
    """The half of a recorder that coroutines await; mixed into `multifold.Fold` and its eager twin."""

    _graph: Graph
    _in_progress = False
    _values_at_once: Callable[[Sequence[Node]], list[Any]]
    """Returns the values of nodes on the host, while a run is in progress; no other example goes on."""

    def values(self, nodes: Any) -> Awaitable[Any]:
        """Wait for the values of several nodes at once; see `value`.

        Parameters
        ----------
        nodes : list, tuple or dict of nodes
            May nest.

        Returns
        -------
        awaitable
            ``await`` gives the same structure with values in place of nodes.
        """
        kind = type(nodes)
        if (kind is tuple or kind is list) and compiled.are_nodes(nodes, self._graph):
            return ValuesRequest(self, [*nodes], kind)
        try:
            leaves, structure = optree.tree_flatten(nodes, none_is_leaf=True)
        except RecursionError:
            refuse_itself(nodes, "fold.values(...)")
            raise
        for leaf in leaves:
            if not isinstance(leaf, Node) or leaf._graph is not self._graph:
                self._refuse_node(leaf)
        return ValuesRequest(self, leaves, structure)

    def gather(self, *awaitables: Awaitable[Any]) -> Awaitable[list[Any]]:
        """Run several coroutines of one example side by side, and wait for all of them.

        What they wait for is computed together, and their calls share launches. Each is a task of its
        own: recursion through ``gather`` may go deeper than Python's stack.

        Parameters
        ----------
        *awaitables
            Coroutines, or what `value`, `values` and `gather` return.

        Returns
        -------
        awaitable
            ``await`` gives the list of what they returned, in order. If one raises, the others are
            closed and ``await`` raises its exception.

        Raises
        ------
        RecordError
            If one of them can't be awaited.

        Examples
        --------
        >>> import multifold
        >>> async def largest(fold, tree):
        ...     if isinstance(tree, int):
        ...         return await fold.value(fold.add("leaf", tree))
        ...     return max(await fold.gather(*[largest(fold, child) for child in tree]))
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.run({"leaf": lambda x: -x}, [((1, 2), 3), (4, (5, 6))], largest)
        array([-1, -4])
        """
        try:
            return GatherRequest(self, coroutines_of(awaitables))
        except BaseException:  # also a key press
            for x in filter(inspect.iscoroutine, awaitables):
                x.close()
            raise

    def _answer_at_once_by(self, compute: Callable[[Sequence[Node]], list[Any]]) -> None:
        """Let ``compute`` return the values of nodes that code asks for which cannot ``await`` them."""
        self._values_at_once = compute

    def _refuse_node(self, node: Any) -> None:
        """Raise `RecordError` for anything but a node of this recorder, made since its last reset."""
        if not isinstance(node, Node):
            raise RecordError(
                f"Expected a node, whose value can be awaited. Received {type_of(node)}.",
                "fold.add(...) returns one, node.split(n) and node[i] return parts of it; "
                "fold.values(nodes) takes a list of them.",
            )
        self._reference(node)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _awaitable(self) -> Iterator[None]:
        """Return a context manager; inside of it a run is in progress, and values may be awaited.

        Entering raises `RecordError` if a run is in progress already. After leaving, none is.
        """
        if self._in_progress:  # another thread has begun in the meantime
            self._refuse_within("other run of the same fold")
        self._in_progress = True
        try:
            with self._with_meanwhile():  # type: ignore[attr-defined]
                yield
        finally:
            self._in_progress = False

    def _refuse_outside(self) -> NoReturn:
        raise RecordError(
            "Expected values of nodes to be awaited inside fold.run(model, examples, fn). "
            "Nothing is being run.",
            "fold.apply(model, outputs) returns values without any await.",
        )

    def _refuse_within(self, what: str) -> None:
        if self._in_progress:
            raise RecordError(
                f"Expected no {what} while fold.run(model, examples, fn) is in progress.",
                "use another Fold inside of the function, and one fold for each thread.",
            )


def refuse_values(nodes: Sequence[Node]) -> list[Any]:
    """Raise an `AssertionError`: what returns values at once while no run is in progress."""
    raise AssertionError("no run is in progress")


def coroutines_of(awaitables: Sequence[Awaitable[Any]]) -> list[Coroutine[Any, Any, Any]]:
    """Return a coroutine for each awaitable, in order: itself, or one that awaits it.

    Raises `RecordError` for what can't be awaited, and for a coroutine that comes twice.
    """
    refused = [x for x in awaitables if not inspect.isawaitable(x)]
    coroutines = list(filter(inspect.iscoroutine, awaitables))
    if refused or len(set(coroutines)) < len(coroutines):  # Python runs a coroutine only once
        received = type_of(refused[0]) if refused else "one of them twice"
        raise RecordError(
            f"Expected coroutines in fold.gather(...). Received {received}.",
            "call the async function: fold.gather(encode(fold, left), encode(fold, right)), or "
            "fold.gather(*coroutines) for a list of what it returned.",
        )
    return [x if inspect.iscoroutine(x) else awaiting(x) for x in awaitables]


async def awaiting(awaitable: Awaitable[Any]) -> Any:
    """Await anything awaitable, and return what it gives; a call of this is a coroutine for a task."""
    return await awaitable
