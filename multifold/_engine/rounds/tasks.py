"""The coroutines of many examples, each run until it can't go on: no event loop, threads or timers.

A coroutine stops where it awaits values or other coroutines. `Tasks` gets what it awaits from ``send``, as
any event loop does, but nothing here waits for time or for a socket: when no task is ready, the caller
computes what the tasks wait for (`multifold._engine.rounds.rounds`) and answers them. Coroutines that
`Fold.gather` joins are tasks of their own, so they overlap, and their depth is not limited by Python's
stack.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextvars import copy_context
from types import CoroutineType
from typing import Any, NoReturn

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.forms import own
from multifold._engine.ops.messages import said_by
from multifold._engine.record.freezing import refuse_itself
from multifold._engine.record.node import Node
from multifold._engine.rounds import collector
from multifold._engine.rounds.awaitables import Awaiting, GatherRequest, Unawaited, ValuesRequest, awaiting
from multifold.errors import RecordError
from multifold.operands import Each

PYTHON_SAYS = {
    "object Node can't be used in 'await'": "`await fold.value(node)` computes the value of a node.",
    "no running event loop": "fold.run has no event loop: read files and sockets before it.",
    "object has no attribute 'add'": "the fold comes first: fn(fold, example).",
}
"""What Python says of mistakes in the function of a run -> what to do about it."""


class ExampleTask(compiled.TaskBase):
    """One coroutine: an example's own, or one that another task of the example joins."""

    __slots__ = ("_left",)

    def refuse_begun(self) -> NoReturn:
        """Raise `RecordError` for a coroutine that has begun already, as one has that another task runs."""
        raise RecordError(
            "Expected coroutines that have not begun in fold.gather(...). Received one that runs "
            "already, or has run: itself, or one that was gathered before.",
            "call the async function for each: fold.gather(encode(fold, left), encode(fold, right)).",
        )

    def join(self, coroutines: list[Coroutine[Any, Any, Any]]) -> Iterable[ExampleTask]:
        """Make a task of each coroutine and wait for all of them; return the tasks, in order.

        Each has this one as its parent, and a copy of its context. None of them runs yet.
        """
        tasks = [ExampleTask(self.example, x, self.context.copy(), self) for x in coroutines]
        self.children = dict.fromkeys(tasks)
        self._left = len(tasks)  # children that have not returned yet
        return tasks

    def returned(self, child: ExampleTask, result: Any) -> bool:
        """Keep what a child, a task that `join` has made, returned; return whether it was the last one."""
        self.children[child] = result
        self._left -= 1
        return not self._left

    def leave(self) -> dict[ExampleTask, Any]:
        """Stop waiting for the children.

        Return child -> what it returned, None if it has not, in their order.
        """
        children = self.children
        self.children = {}
        return children


class Tasks(compiled.TasksBase):
    """The tasks of a run.

    Parameters
    ----------
    recorder : Fold or Unfold
        Whose values they may await.
    context : callable
        Tells which ``with`` statements of the framework are open, which no example may leave open: as
        `Backend.context`. If that is false before the run, there are none, and the tasks never ask again.
    collect : bool
        Keep the exceptions of examples in ``failures``, instead of raising the first.

    Attributes
    ----------
    failures : dict of int to Exception
        What each failed example raised.
    started : int
        The number of examples.
    """

    def __init__(self, recorder: Awaiting, context: Callable[[], Hashable], *, collect: bool) -> None:
        super().__init__(recorder._graph, context)  # nothing is reset while tasks run
        self.recorder = recorder
        self.collect = collect
        self.failures: dict[int, Exception] = {}
        self.started = 0

    def start(self, fn: Callable[[Any, Any], Any], given: Any) -> None:
        """Call ``fn(recorder, given)`` for the next example; a coroutine that it returns becomes a task.

        A `GatherRequest` does, too; anything else is the example's result, of which NumPy arrays are
        copied. The task does not run before `proceed`. What ``fn`` raises is raised, or kept in
        ``failures`` if ``collect`` is set.
        """
        example = self.started
        self.started += 1
        if not example % 64:
            collector.relieve()
        context = copy_context()
        try:
            result = context.run(fn, self.recorder, given)
        except BaseException as raised:  # noqa: BLE001 - whatever the user's function raises
            error = self.ends(example, raised)
            if isinstance(error, RecursionError):
                error = too_deep(self.named(example), error)
            elif error.__traceback__ is not None and error.__traceback__.tb_next is None:
                add_note(error, "Hint: a function of a run takes two arguments: fn(fold, example).")
            self._example_failed(example, error)
            return
        try:
            if type(result) is GatherRequest:
                result = awaiting(result)
            if isinstance(result, CoroutineType):
                self.open_task(ExampleTask(example, result, context))
            else:
                self._example_returned(example, result)
        except BaseException:  # a key press may come before the coroutine is a task
            if isinstance(result, CoroutineType):
                result.close()
            raise

    def refuse_none(self) -> None:
        """Raise `RecordError` if no example was started: what the run returns would have no structure."""
        if not self.started:
            raise RecordError(
                "Expected at least one example to run. Received none.",
                "leave out minibatches without examples.",
            )

    def proceed(self) -> list[tuple[ExampleTask, list[Node]]]:
        """Run all tasks until each of them has finished or waits for values.

        Returns the tasks that wait, each with the nodes it waits for, in the order in which the tasks were
        made.

        Raises
        ------
        Exception
            What an example raises, unless failures are collected.
        """
        collector.relieve()
        while (found := self.run_ready()) is not None:
            self._take(*found)
        return self.waiting()

    def is_open(self, task: ExampleTask) -> bool:
        """Return whether a task has not finished: it has neither returned, failed nor been closed."""
        return task in self._open

    def waits_for(self, task: ExampleTask, nodes: list[Node]) -> bool:
        """Return whether a task still waits for ``nodes``, the list that `proceed` returned with it."""
        return task in self._open and task.request is not None and task.request.nodes is nodes

    def throw(self, task: ExampleTask, error: Exception) -> None:
        """Raise ``error`` in a task at the ``await`` where it waits for values, and run it on from there.

        It runs at once, until it waits again, returns or raises; what it raises goes to its parent, or
        fails the example.
        """
        task.wait(None)
        self._step(task, error)

    def fail(self, example: int, error: Exception) -> None:
        """Close all tasks of an example, drop its result, and keep or raise ``error``.

        It is kept in ``failures`` if ``collect`` is set, else raised; a note names the example.
        """
        for task in [task for task in self._open if task.example == example]:
            self._close(task, error)
        self.results.pop(example, None)
        self._example_failed(example, error)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Return a context manager; inside of it the recorder's values may be awaited.

        Entering raises `RecordError` if a run is in progress. If the body raises, all tasks that have not
        finished are closed; what an example raises while it is closed becomes a note of that exception.
        Leaving raises an error if another thread has reset the recorder meanwhile.
        """
        # Inside a running event loop, its hooks would adopt the async generators of the examples and close
        # them after the run, when values can't be awaited any more.
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            with self.recorder._awaitable():
                try:
                    yield
                except BaseException as error:
                    with contextlib.ExitStack() as closing:  # goes on where one raises another key press
                        for task in reversed(self._open):
                            closing.callback(self._close, task, error)
                    raise
                finally:
                    if self.recorder._graph is not self.graph:  # another thread has reset it meanwhile
                        raise self.graph.tear()
        finally:
            sys.set_asyncgen_hooks(*hooks)

    def named(self, example: int) -> str:
        """Return the name of an example in messages: ``"example 3 of fold.run"``."""
        return f"example {example} of fold.run"

    def ends(self, example: int, error: BaseException) -> Exception:
        """Return ``error`` if it is an `Exception`, with which an example may fail.

        Anything else, as `KeyboardInterrupt`, is raised: it ends the run.
        """
        if isinstance(error, Exception):
            return error
        raise error

    def _step(self, task: ExampleTask, error: Exception) -> None:
        """Raise ``error`` in a task, run it until it waits, returns or raises, and act on that."""
        raised: BaseException | None
        try:
            request = task.context.run(task.coroutine.throw, error)
        except BaseException as found:  # noqa: BLE001 - whatever the user's coroutine raises
            request = None
            raised = found
        else:
            raised = None
        self._note(task)
        self._take(task, request, raised)

    def _note(self, task: ExampleTask) -> None:
        """Tell ``owners``, if there is one, which example has recorded the calls of the last step."""
        if self.owners is not None:
            self.owners.note(task.example)

    def _take(self, task: ExampleTask, request: Any, error: BaseException | None) -> None:
        """Act on the end of a step: ``request`` is what the task awaits, ``error`` what it raised instead.

        If that raises, the request is closed.
        """
        try:
            self._understand(task, request, error)
        except BaseException:  # a key press may come before the coroutines of a gather are tasks
            if isinstance(request, Unawaited):
                request.close()
            raise

    def _understand(self, task: ExampleTask, request: Any, error: BaseException | None) -> None:
        """Act on the end of a step: ``error`` is `StopIteration` if the task returned, None if it waits.

        What a task returned goes to its parent or is the example's result; another error fails it
        (`_failed`). A task that waits or returns inside of a framework's ``with`` statement gets the error
        of `with_left_open`.
        """
        if isinstance(error, StopIteration):
            if self._left_open():
                self._failed(task, with_left_open(self.named(task.example)))
            else:
                self._finished(task, error.value)
        elif error is not None:
            self._left_open()
            failure = self.ends(task.example, error)
            deep = isinstance(failure, RecursionError)
            self._failed(task, too_deep(self.named(task.example), failure) if deep else failure)
        elif self.leaves_open():
            # The other examples would go on inside of the `with` in which this task waits. The exception
            # makes the task leave it, so what is outside stays as it is.
            if isinstance(request, Unawaited):
                request.close()
            self._step(task, with_left_open(self.named(task.example)))
        else:
            self._wait(task, request)

    def _left_open(self) -> bool:
        """Return whether the last step has left a ``with`` statement of the framework open.

        What is open now counts as outside from then on, so that no other example is blamed for it.
        """
        found: bool = self.leaves_open()
        if found:
            self.look()
        return found

    def _wait(self, task: ExampleTask, request: Any) -> None:
        """Note the request that a task has just made; make tasks of the coroutines that it gathers.

        If there is nothing to wait for, the task is ready to go on. One that awaits anything else, or a
        request that can't be answered (`problem`), gets a `RecordError` at its ``await``.
        """
        if not isinstance(request, (ValuesRequest, GatherRequest)):
            error = RecordError(
                f"Expected {self.named(task.example)} to await values of nodes. Received {request!r}.",
                "await fold.value(node), fold.values([...]) or fold.gather(...); there is no event "
                "loop here, so files and sockets are read before.",
            )
            self.go_on(task, error, raises=True)
        elif problem := request.problem(self.recorder):
            request.close()
            self.go_on(task, RecordError(*problem), raises=True)
        elif isinstance(request, ValuesRequest):
            if request.nodes:
                task.wait(request)
            else:  # `fold.values([])`, which needs no round
                self.go_on(task, request.nested([]))
        else:
            children = task.join(request.coroutines or [])
            for child in children:
                self.open_task(child)
            request.taken()
            if not children:
                self.go_on(task, [])

    def _finished(self, task: ExampleTask, result: Any) -> None:
        del self._open[task]
        parent = task.parent
        if parent is None:
            self._example_returned(task.example, result)
        elif parent.returned(task, result):
            self.go_on(parent, [*parent.leave().values()])

    def _failed(self, task: ExampleTask, error: Exception) -> None:
        """End a task; its error is raised in its parent, after closing all else that the parent waits for.

        Without a parent the example has failed: the error is kept in ``failures`` if ``collect`` is set,
        else raised.
        """
        del self._open[task]
        if task.parent is None:
            self._example_failed(task.example, error)
            return
        pending = list(task.parent.leave())
        while pending:  # the children of children too, depth first
            child = pending.pop()
            pending += child.leave()
            self._close(child, error)
        self.go_on(task.parent, error, raises=True)

    def _example_returned(self, example: int, result: Any) -> None:
        try:
            self.results[example] = copied(result)
        except Exception as error:  # noqa: BLE001 - objects of the user may raise anything
            self._example_failed(example, error)

    def _example_failed(self, example: int, error: Exception) -> None:
        add_note(error, f"Raised by {self.named(example)}.")
        for words, hint in PYTHON_SAYS.items():
            if not isinstance(error, RecordError) and words in said_by(error):
                add_note(error, f"Hint: {hint}")
        if not self.collect:
            raise error
        self.failures[example] = error

    def _close(self, task: ExampleTask, reason: BaseException) -> None:
        """Close a task that has not finished; one that awaits again while it is closed is left to itself.

        What it raises becomes a note of ``reason``, which must not be lost.
        """
        if task in self._open:
            del self._open[task]
            try:
                task.context.run(task.coroutine.close)
            except BaseException as raised:  # noqa: BLE001 - whatever the user's cleanup raises
                if said_by(raised) == "coroutine ignored GeneratorExit":
                    return
                error = self.ends(task.example, raised)
                said = f"{type(error).__name__}: {said_by(error)}".rstrip(": ")
                add_note(reason, f"While it was closed, {self.named(task.example)} raised {said}.")
            finally:
                self._note(task)


def with_left_open(example: str) -> RecordError:
    """Return, and don't raise, the error of an example that stops in a framework's ``with`` statement.

    ``example`` is its name in messages.
    """
    return RecordError(
        f"Expected {example} to leave the framework's `with` statements, as those that "
        "turn gradients off, before it waits or returns. It did not, so that the other examples would go "
        "on in one.",
        "leave the `with` before `await`, or open it around all of fold.run: calls are run there, "
        "wherever they were recorded.",
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; one that refuses any change stays as it is."""
    with contextlib.suppress(Exception):
        error.add_note(note)


def collects_failures(on_error: str, fn: Callable[..., Any] | None) -> bool:
    """Return whether ``on_error`` is ``"collect"``.

    Raises `RecordError` for anything but ``"raise"`` and ``"collect"``, and for ``"collect"`` if ``fn`` is
    None.
    """
    if on_error not in ("raise", "collect"):
        raise RecordError(
            f"Expected on_error to be 'raise' or 'collect'. Received {on_error!r}.",
            "'collect' returns a pair, (results, {number of the example: exception}).",
        )
    if on_error == "collect" and fn is None:
        raise RecordError(
            "Expected a function with on_error='collect'. Received traces.",
            "fold.run(model, examples, fn, on_error='collect') sets aside the examples that fail.",
        )
    return on_error == "collect"


def copied(result: Any) -> Any:
    """Return what an example returned with copies of its NumPy arrays.

    Without such an array, ``result`` itself. Examples often fill one buffer again and again; without a copy
    all of them would return what the last one wrote. Raises `RecordError` for a structure that contains
    itself.
    """
    if isinstance(result, (Node, Each)):
        return result
    try:
        leaves, structure = optree.tree_flatten(result)
    except RecursionError:
        refuse_itself(result, "what an example returns")
        raise
    if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
        return result
    return optree.tree_unflatten(structure, map(own, leaves))


def too_deep(example: str, error: Exception) -> RecordError:
    """Return, and don't raise, the error of a function that calls itself deeper than Python's stack goes.

    ``example`` is its name in messages, and ``error`` becomes the cause.
    """
    try:
        raise RecordError(
            f"{example[0].upper()}{example[1:]} nests deeper than Python's recursion limit of "
            f"{sys.getrecursionlimit()} allows.",
            "in an `async def` let each level be a task: `(state,) = await fold.gather(encode(fold, x))`; "
            "or write the recursion as a loop: `while chain: state = fold.add('cell', state, chain.pop())` "
            "or allow more levels by sys.setrecursionlimit(n).",
        ) from error  # which says where the stack ended
    except RecordError as refused:
        return refused
