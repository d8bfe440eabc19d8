"""The coroutines of many examples, each run until it can't go on: no event loop, threads or timers.

A coroutine stops where it awaits values or other coroutines. What it awaits reaches `Tasks` through
``send``, as in any event loop, but nothing here waits for time or for the outside: when no task is
ready, whoever drives the tasks computes what they wait for. Coroutines that are joined are tasks of
their own, so they overlap, and their depth is not limited by Python's stack.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from contextvars import Context, copy_context
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import optree

from multifold._compiled.plain import own
from multifold._record.graph import Graph
from multifold._record.node import Node
from multifold.errors import RecordError


class Unawaited:
    """What stands for values that are not there yet: nothing can be done with it but to await it."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise RecordError(
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


class Values(Unawaited):
    """What `Fold.value` and `Fold.values` return; awaited, it is the values on the host."""

    __slots__ = ("graph", "nodes", "recorder", "structure")

    def __init__(self, recorder: Awaiting, nodes: list[Node], structure: Any) -> None:
        self.recorder = recorder
        self.graph = recorder._graph
        self.nodes = nodes
        self.structure = structure

    def answer(self, values: Iterator[Any]) -> Any:
        """Return what ``await`` gives; take the value of each node from the front of all that are left."""
        if self.structure is None:
            return next(values)
        return optree.tree_unflatten(self.structure, islice(values, len(self.nodes)))

    def __await__(self) -> Generator[Any, Any, Any]:
        self.recorder._refuse_outside()
        return (yield self)


class Join(Unawaited):
    """What `Fold.gather` returns; awaited, it is the list of what the coroutines returned."""

    __slots__ = ("coroutines", "joined", "recorder")

    def __init__(self, recorder: Awaiting, coroutines: list[Coroutine[Any, Any, Any]]) -> None:
        self.recorder = recorder
        self.joined = False
        self.coroutines = coroutines

    def __await__(self) -> Generator[Any, Any, Any]:
        self.recorder._refuse_outside()
        return (yield self)


class Awaiting:
    """The half of a recorder that coroutines await; mixed into `multifold.Fold` and its eager twin."""

    _graph: Graph
    _tasks: Tasks | None = None

    def value(self, node: Node) -> Awaitable[Any]:
        """Wait for the value of a node, inside an ``async`` function that `run` was given.

        Parameters
        ----------
        node : Node
            Of this fold. Its row is computed together with what other examples wait for.

        Returns
        -------
        awaitable
            ``await`` gives a NumPy array of the shape of one row, ``s`` where the op returns
            ``(n, *s)``; a Python number where a row is a single number; for a `Node.no_batch` the
            whole result; for a tuple, list or dictionary the same of those. It is a copy on the
            host, outside of any gradient.

        Raises
        ------
        RecordError
            If ``node`` is no node of this fold.

        Examples
        --------
        >>> import multifold
        >>> async def halve(fold, x):
        ...     steps = 0
        ...     while await fold.value(x := fold.add("halve", x)) >= 1:
        ...         steps += 1
        ...     return x
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.run({"halve": lambda x: x / 2}, [3.0, 20.0, 1.0], halve)
        array([0.75 , 0.625, 0.5  ])
        """
        return Values(self, [self._own(node)], None)

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
        leaves, structure = optree.tree_flatten(nodes, none_is_leaf=True)
        return Values(self, [self._own(leaf) for leaf in leaves], structure)

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
        refused = [x for x in awaitables if not inspect.isawaitable(x)]
        coroutines = list(filter(inspect.iscoroutine, awaitables))
        if refused or len(set(map(id, coroutines))) < len(coroutines):  # a coroutine runs once
            for coroutine in coroutines:
                coroutine.close()
            received = f"a {type(refused[0]).__qualname__}" if refused else "one of them twice"
            raise RecordError(
                f"Expected coroutines in fold.gather(...). Received {received}.",
                "call the async function: fold.gather(encode(fold, left), encode(fold, right)).",
            )
        return Join(self, [x if inspect.iscoroutine(x) else waiting(x) for x in awaitables])

    def _own(self, node: Any) -> Node:
        """Return a node of this recorder; refuse everything else."""
        if not isinstance(node, Node):
            raise RecordError(
                f"Expected a node, whose value can be awaited. Received a {type(node).__qualname__}.",
                "fold.add(...) returns one, node.split(n) and node[i] return parts of it.",
            )
        if node._graph is not self._graph:
            self._refuse(node)  # type: ignore[attr-defined]
        return node

    def _refuse_outside(self) -> None:
        if self._tasks is None:
            raise RecordError(
                "Expected values of nodes to be awaited inside fold.run(model, examples, fn). "
                "Nothing is being run.",
                "fold.apply(model, outputs) returns values without any await.",
            )

    def _refuse_within(self, what: str) -> None:
        if self._tasks is not None:
            raise RecordError(
                f"Expected no {what} while fold.run(model, examples, fn) is in progress.",
                "use another Fold inside of the function.",
            )


async def waiting(awaitable: Awaitable[Any]) -> Any:
    """Return what an awaitable gives, as a coroutine."""
    return await awaitable


class Task:
    """One coroutine: an example's own, or one that another task joins."""

    __slots__ = (
        "children", "context", "coroutine", "done", "example", "left", "parent", "place", "request",
        "results",
    )  # fmt: skip

    def __init__(
        self,
        example: int,
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
        parent: Task | None = None,
        place: int = 0,
    ) -> None:
        self.example = example
        self.coroutine = coroutine
        self.context = context  # its own `contextvars`, as a task of asyncio has
        self.parent = parent
        self.place = place
        self.done = False
        self.request: Values | None = None
        self.children: list[Task] = []
        self.results: list[Any] = []
        self.left = 0


class Tasks:
    """The tasks of a run.

    Parameters
    ----------
    recorder : Fold or Unfold
        Whose values they may await.
    context : callable
        Returns what a framework's ``with`` statements have changed (`Backend.context`); what is false
        before the run is not looked at.
    collect : bool
        Keep the exceptions of examples in ``failures``, instead of raising the first.

    Attributes
    ----------
    results : dict of int to object
        What each finished example returned.
    failures : dict of int to Exception
        What each failed example raised.
    started : int
        The number of examples.
    """

    def __init__(
        self, recorder: Awaiting, context: Callable[[], Hashable], *, collect: bool = False
    ) -> None:
        self.recorder = recorder
        self.context = context
        self.outside = context()
        self.collect = collect
        self.results: dict[int, Any] = {}
        self.failures: dict[int, Exception] = {}
        self.started = 0
        self._ready: deque[tuple[Task, Callable[[Any], Any], Any]] = deque()
        self._open: dict[Task, None] = {}

    def start(self, fn: Callable[..., Any], *arguments: Any) -> None:
        """Call the function of the next example; if it is a coroutine, it becomes a task."""
        example = self.started
        self.started += 1
        context = copy_context()
        try:
            result = context.run(fn, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self._example_failed(example, error)
            return
        if isinstance(result, Join):
            result = waiting(result)
        if inspect.iscoroutine(result):
            self._open_task(Task(example, result, context))
        else:
            self.results[example] = kept(result)

    def refuse_none(self) -> None:
        """Refuse a run without examples: what it returns would have no structure."""
        if not self.started:
            raise RecordError(
                "Expected at least one example to run. Received none.",
                "leave out minibatches without examples.",
            )

    def proceed(self) -> None:
        """Run all tasks until each of them has finished or waits for values.

        Raises
        ------
        Exception
            What an example raises, unless failures are collected.
        """
        while self._ready:
            task, method, argument = self._ready.popleft()
            if not task.done:
                self._step(task, method, argument)

    def requests(self) -> list[tuple[Task, list[Node]]]:
        """Return the tasks that wait for values, and for which, in the order in which they were made."""
        return [(task, task.request.nodes) for task in self._open if task.request is not None]

    def answer(self, task: Task, values: Iterator[Any]) -> None:
        """Let a task go on with the values that it waits for, from the front of all that are left."""
        request = task.request
        task.request = None
        self._ready.append((task, task.coroutine.send, request.answer(values)))  # type: ignore[union-attr]

    def throw(self, task: Task, error: Exception) -> None:
        """Raise what a launch raised where a task waits for its values."""
        task.request = None
        self._step(task, task.coroutine.throw, error)

    def fail(self, example: int, error: Exception) -> None:
        """Give an example up, whatever it waits for."""
        for task in [task for task in self._open if task.example == example]:
            self._close(task, error)
        self.results.pop(example, None)
        self._example_failed(example, error)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the recorder's values be awaited until the block ends, then close what did not finish.

        What an example raises while it is closed becomes a note of what ended the block.
        """
        self.recorder._tasks = self
        hooks = sys.get_asyncgen_hooks()  # an event loop's would close its generators after the run
        sys.set_asyncgen_hooks(None, None)
        try:
            yield
        except BaseException as error:
            for task in list(self._open):
                self._close(task, error)
            raise
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self.recorder._tasks = None

    # ---- one step of one task ------------------------------------------------------------------

    def _open_task(self, task: Task) -> None:
        self._open[task] = None
        self._ready.append((task, task.coroutine.send, None))

    def _step(self, task: Task, method: Callable[[Any], Any], argument: Any) -> None:
        """Run a task until it waits, returns or raises."""
        try:
            request = task.context.run(method, argument)
        except StopIteration as stop:
            if self.outside and self.context() != self.outside:
                self.outside = self.context()
                self._failed(task, RecordError(*left_open(task.example)))
            else:
                self._finished(task, stop.value)
        except RecursionError as error:
            self.outside = self.context()
            self._failed(task, too_deep(task.example, error))
        except Exception as error:  # noqa: BLE001 - whatever the user's coroutine raises
            self.outside = self.context()  # so that no other example is blamed
            self._failed(task, error)
        else:
            if self.outside and self.context() != self.outside:
                self._refuse_inside(task, request)
            else:
                self._wait(task, request)

    def _refuse_inside(self, task: Task, request: Any) -> None:
        """Let a task leave the ``with`` in which it waits: the other examples would go on inside of it."""
        for coroutine in request.coroutines if isinstance(request, Join) else ():
            coroutine.close()
        self._step(task, task.coroutine.throw, RecordError(*left_open(task.example)))

    def _wait(self, task: Task, request: Any) -> None:
        """Note what a task waits for; start the coroutines that it joins."""
        if isinstance(request, Unawaited) and (stale := self._stale(request)):
            for coroutine in request.coroutines if isinstance(request, Join) and not request.joined else ():
                coroutine.close()
            self._ready.append((task, task.coroutine.throw, RecordError(*stale)))
        elif isinstance(request, Values):
            task.request = request
            if not request.nodes:
                self.answer(task, iter(()))
        elif isinstance(request, Join):
            request.joined = True
            task.left = len(request.coroutines)
            task.results = [None] * task.left
            task.children = [
                Task(task.example, coroutine, task.context.copy(), task, place)
                for place, coroutine in enumerate(request.coroutines)
            ]
            for child in task.children:
                self._open_task(child)
            if not task.left:
                self._ready.append((task, task.coroutine.send, []))
        else:
            error = RecordError(
                f"Expected example {task.example} of fold.run to await values of nodes. "
                f"Received {request!r}.",
                "await fold.value(node), fold.values([...]) or fold.gather(...); there is no event "
                "loop here, so files and sockets are read before.",
            )
            self._ready.append((task, task.coroutine.throw, error))

    def _stale(self, request: Any) -> tuple[str, str] | None:
        """Return what is wrong with a request that is not of this run."""
        if request.recorder is not self.recorder:
            return (
                "Expected values of the fold that runs this function. Received a request of another one.",
                "await those of the outer fold before the inner fold.run, and hand them in.",
            )
        if isinstance(request, Values) and request.graph is not self.recorder._graph:
            return (
                "Expected values of nodes of this run. Received those of nodes from before a reset.",
                "what a run records is forgotten when the next one begins.",
            )
        if isinstance(request, Join) and request.joined:
            return (
                "Expected each fold.gather(...) to be awaited once. Received it a second time.",
                "keep what `await` returned.",
            )
        return None

    def _finished(self, task: Task, result: Any) -> None:
        task.done = True
        del self._open[task]
        parent = task.parent
        if parent is None:
            self.results[task.example] = kept(result)
            return
        parent.results[task.place] = result
        parent.left -= 1
        if not parent.left:
            self._ready.append((parent, parent.coroutine.send, parent.results))
            parent.children, parent.results = [], []

    def _failed(self, task: Task, error: Exception) -> None:
        task.done = True
        del self._open[task]
        parent = task.parent
        if parent is None:
            self._example_failed(task.example, error)
            return
        pending: list[Task] = list(parent.children)
        parent.children, parent.results = [], []
        while pending:
            child = pending.pop()
            pending += child.children
            self._close(child, error)
        self._ready.append((parent, parent.coroutine.throw, error))

    def _example_failed(self, example: int, error: Exception) -> None:
        add_note(error, f"Raised by example {example} of fold.run.")
        if not self.collect:
            raise error
        self.failures[example] = error

    def _close(self, task: Task, reason: BaseException) -> None:
        """Close a coroutine; one that awaits again while it is closed is left to itself.

        What it raises becomes a note of the reason, which must not be lost.
        """
        if not task.done:
            task.done, task.request = True, None
            del self._open[task]
            try:
                task.context.run(task.coroutine.close)
            except Exception as error:  # noqa: BLE001 - whatever the user's cleanup raises
                if str(error) == "coroutine ignored GeneratorExit":
                    return
                said = f"{type(error).__name__}: {error}".rstrip(": ")
                add_note(reason, f"While it was closed, example {task.example} of fold.run raised {said}.")


def left_open(example: int) -> tuple[str, str]:
    """Return what to say when an example stops inside of a framework's ``with`` statement."""
    return (
        f"Expected example {example} of fold.run to leave the framework's `with` statements, as those that "
        "turn gradients off, before it waits or returns. It did not, so that the other examples would go "
        "on in one.",
        "leave the `with` before `await`, or open it around all of fold.run: calls are run there, "
        "wherever they were recorded.",
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless it refuses any change."""
    with contextlib.suppress(Exception):
        error.add_note(note)


def collects_failures(on_error: str) -> bool:
    """Return whether failures are collected; refuse what is neither ``"raise"`` nor ``"collect"``."""
    if on_error not in ("raise", "collect"):
        raise RecordError(
            f"Expected on_error to be 'raise' or 'collect'. Received {on_error!r}.",
            "'collect' returns a pair, (results, {number of the example: exception}).",
        )
    return on_error == "collect"


def kept(result: Any) -> Any:
    """Return what an example returned as it is now: with copies of its NumPy arrays."""
    if isinstance(result, Node):
        return result
    leaves, structure = optree.tree_flatten(result, none_is_leaf=True)
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return result
    return optree.tree_unflatten(structure, map(own, leaves))


def refuse_swapped(examples: Any, fn: Any) -> None:
    """Refuse a function in the place of the examples, and anything else in that of the function."""
    if not callable(fn) or not isinstance(examples, Iterable):
        raise RecordError(
            f"Expected examples and a function. Received a {type(examples).__qualname__} and a "
            f"{type(fn).__qualname__}.",
            "the examples come first: fold.run(model, examples, fn).",
        )


def plain(value: Any) -> Any:
    """Return an array, or a Python number where it has no dimensions."""
    return value.item() if np.ndim(value) == 0 else value


def too_deep(example: int, error: RecursionError) -> RecordError:
    """Return what to say when a coroutine awaits itself deeper than Python's stack goes."""
    refused = RecordError(
        f"Example {example} of fold.run nests deeper than Python's recursion limit of "
        f"{sys.getrecursionlimit()} allows.",
        "let each level be a task of its own, `(state,) = await fold.gather(encode(fold, child))`, "
        "or write the recursion as a loop: `while chain: state = fold.add('cell', state, chain.pop()); "
        "score = await fold.value(state)`.",
    )
    refused.__cause__ = error
    return refused
