"""Answers in items: what an async generator yields reaches its caller while the request goes on.

The function of a server may be an async generator. It runs as a coroutine, `send_items`, that goes from one
``yield`` to the next and puts each item into the request's `Inbox`. The thread of the server hands items on
when all functions wait, before the launches run that they wait for; so an event loop is woken once for the
items of all its callers, and these can go on while the launches run:

======================  =======================================================
thread of the server    ``yield "a"`` in ``fn``: `send_items` adds it to ``fresh``
thread of the server    `hand_out` wakes the event loop
event loop              `put_all` adds it to ``queue``
event loop              ``async for item in server.stream(example)``
======================  =======================================================

The server waits for no caller: items that were not read yet stay in the queue.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import types
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Self, final

import optree

from multifold._engine.record.node import Node
from multifold._engine.rounds.awaitables import Unawaited
from multifold._engine.rounds.tasks import copied
from multifold.errors import RecordError
from multifold.operands import each

MANY = 64
"""After so many items of one request the callers get theirs, and it may end by its deadline."""

PLAIN = frozenset([int, float, bool, str, bytes, type(None)])
"""Classes of items that are sent as they are."""


@final
class End:
    """The last entry of a queue: ``error`` is what the request has ended with, None if it is done."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@final
class Inbox:
    """The items of one request, on their way from its function to its caller.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
        In which the caller reads them.

    Attributes
    ----------
    queue : asyncio.Queue
        What the caller may read: items, and at last an `End`. Only the thread of the loop uses it.
    fresh : list
        Items that are not in the queue yet. Only the thread of the server uses it.
    """

    __slots__ = ("fresh", "loop", "queue")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.fresh: list[Any] = []

    def take(self) -> list[Any]:
        """Return the items in ``fresh``, and forget them."""
        found = self.fresh
        self.fresh = []
        return found

    def end(self, waiter: asyncio.Future[Any]) -> None:
        """Put an `End` into the queue: ``waiter`` has got the outcome of the request."""
        error = asyncio.CancelledError() if waiter.cancelled() else waiter.exception()
        self.queue.put_nowait(End(error))


@final
class AnswerStream:
    """The items of one request, for ``async for``; `multifold.Server.stream` returns it.

    The request is cancelled when this is closed, when nothing refers to it any more, and when a task is
    cancelled that waits for an item.

    Parameters
    ----------
    inbox : Inbox
        Where the items come in.
    give_up : callable
        Cancels the request, if it has no outcome yet; any thread may call it.
    """

    def __init__(self, inbox: Inbox, give_up: Callable[[], object]) -> None:
        self._inbox = inbox
        self._give_up = give_up
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        try:
            found = await self._inbox.queue.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if type(found) is not End:
            return found
        self._ended = True
        raise StopAsyncIteration if found.error is None else found.error

    def cancel(self) -> None:
        """Cancel the request, unless it has its outcome already; no item comes any more."""
        self._ended = True
        self._give_up()

    async def aclose(self) -> None:
        """Do what `cancel` does; ``async with contextlib.aclosing(...)`` calls this."""
        self.cancel()

    def __del__(self) -> None:
        if not self._ended:
            self.cancel()


def is_generator(fn: Any) -> bool:
    """Return whether a function is an async generator, or an object whose ``__call__`` is one."""
    return inspect.isasyncgenfunction(fn) or inspect.isasyncgenfunction(type(fn).__call__)


async def send_items(
    fn: Callable[[Any, Any], AsyncGenerator[Any, Any]],
    request: Any,
    fresh: list[Inbox],
    fold: Any,
    example: Any,
) -> Any:
    """Run an async generator to its end, and put what it yields into an inbox.

    Return None, or all items in a list if there is no inbox, as `multifold.each`. An item with nodes, or
    with values that were not awaited, is refused by a `RecordError` at its ``yield``. A generator that
    awaits nothing lets nobody else go on, so items are handed out on the way, and it ends with its request.

    Parameters
    ----------
    fn : callable
        ``fn(fold, example)`` is the generator.
    request : Request
        Its inbox gets the items, if it has one.
    fresh : list of Inbox
        Those with items that were not handed out; the one of the request is appended if it gets some.
    fold, example : object
        What ``fn`` is called with.
    """
    generator = fn(fold, example)
    inbox: Inbox | None = request.inbox
    found: list[Any] = []
    step: Any = generator.__anext__()
    for count in itertools.count(1):
        try:
            item = await whole(step)
        except StopAsyncIteration:
            break
        try:
            item = checked(item, fold)
        except RecordError as error:
            step = generator.athrow(error)
            continue
        step = generator.__anext__()
        if inbox is None:
            found.append(item)
        else:
            if not inbox.fresh:
                fresh.append(inbox)
            inbox.fresh.append(item)
        if count % MANY == 0:
            hand_out(fresh)
            if request.cancelled() or monotonic() >= request.deadline:
                step.close()
                await whole(generator.aclose())
                raise request.late(monotonic())
    return each(found if inbox is None else None)


@types.coroutine
def whole(step: Any) -> Generator[Any, Any, Any]:
    """Wait for one step of an async generator, as its ``__anext__`` returns, and return the item.

    Raise what the generator raises. To await the step would do the same but for one thing: where the
    coroutine that awaits it is closed, Python 3.11 does not close the generator, whose ``finally`` would
    run only when nothing refers to it any more.
    """
    method = step.send
    argument: Any = None
    while True:
        try:
            request = method(argument)
        except StopIteration as ended:
            return ended.value
        try:
            argument = yield request
            method = step.send
        except BaseException as error:  # noqa: BLE001 - a GeneratorExit, for one
            argument = error
            method = step.throw


def checked(item: Any, fold: Any) -> Any:
    """Return what a generator has yielded, with copies of its arrays.

    Raise a `RecordError` if there is a node in it, or something that was not awaited.
    """
    if type(item) in PLAIN:  # nearly every item, and to look for leaves takes 3 us
        return item
    item = copied(item)
    leaves = [item] if isinstance(item, Node) else optree.tree_leaves(item)
    backend = fold._backend
    if backend is not None and any(map(backend.owns, leaves)):
        item = optree.tree_map(lambda x: backend.copy(x) if backend.owns(x) else x, item)
    refused = next((leaf for leaf in leaves if isinstance(leaf, (Node, Unawaited))), None)
    if refused is not None:
        what = "a node" if isinstance(refused, Node) else "a value that was not awaited"
        raise RecordError(
            f"Expected values in what the function of a multifold.Server yields. Received {what}.",
            "`yield await fold.value(node)`: what is yielded is sent at once, so it has to be there.",
        )
    return item


def hand_out(inboxes: list[Inbox]) -> None:
    """Let each event loop move the fresh items of its inboxes to their queues, and empty the list.

    Each loop is woken once. Items for a loop that is closed are forgotten.
    """
    for loop in {inbox.loop for inbox in inboxes}:
        mine = [(inbox.queue, inbox.take()) for inbox in inboxes if inbox.loop is loop]
        with suppress(RuntimeError):  # the loop is closed, and its callers wait no more
            loop.call_soon_threadsafe(put_all, mine)
    inboxes.clear()


def put_all(pairs: Sequence[tuple[asyncio.Queue[Any], list[Any]]]) -> None:
    """Put items into queues; ``pairs`` has each queue, and its items in order."""
    for queue, items in pairs:
        for item in items:
            queue.put_nowait(item)
