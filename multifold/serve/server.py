"""What callers of any thread and any event loop call: `Server`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import count, islice
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from multifold._engine.traces.trace import Trace
from multifold.backend import Backend
from multifold.errors import LaunchError, MultifoldError, RecordError, naming_keywords, type_of
from multifold.fold import Fold
from multifold.serve.admission import Admission
from multifold.serve.requests import Request
from multifold.serve.spans import find_spans
from multifold.serve.statistics import ServerStats, Tally
from multifold.serve.streamed import AnswerStream, Inbox
from multifold.serve.worker import Mode, Worker

if TYPE_CHECKING:
    from multifold.explain import RoundsExplanation


class Server:
    """Serves requests, examples of many callers: they share launches, and each gets a result of its own.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    fn : callable
        ``fn(fold, example)``, as for `multifold.Fold.run`; in an ``async def`` it may look at values. With
        ``yield`` in it, `stream` brings what it yields to the caller at once, and the result of a request
        is the list of all that.
    backend : str, Backend or type
        The framework.
    calls : int
        How many calls a round has room for, which bounds memory: new requests are taken while those under
        way have less, of which each counts for at most an eighth of that. A round of a request with more
        calls is for it alone.
    wait : float
        How many seconds the first request of an idle server waits for company. One that arrives while
        others are under way joins them as ``join`` says.
    queue : int
        How many requests may wait; one more is refused.
    timeout : float, optional
        How many seconds a request may take. None is no limit.
    host : bool
        Whether results are NumPy arrays on the host, or the framework's.
    mode : callable, optional
        Returns the context in which everything runs, on the thread of the server, as
        ``lambda: torch.autocast("cpu")``; by default the inference mode of the framework.
    join : str
        When new requests join those under way. ``"launches"``: if ``fn`` is ``async``, a round is one
        launch of each op, and they join at the next one, or with others that come, until they are a
        quarter of those under way, within 8 rounds or 10 ms. If not, its requests look at no value, and a
        round goes as deep as their results need. ``"rounds"``: each round goes as deep as the values need
        that requests wait for, and new ones join at the next.

    Raises
    ------
    RecordError
        If one of these is not what it should be.

    Notes
    -----
    One thread records and runs everything. An example may be a trace of one, as from `multifold.trace`;
    then ``fn`` is not called for it. `explain` tells of the last seconds, and `stats` of all so far.

    Examples
    --------
    >>> import asyncio, multifold
    >>> def encode(fold, tree):
    ...     if isinstance(tree, int):
    ...         return fold.add("leaf", tree)
    ...     return fold.add("add", *[encode(fold, child) for child in tree])
    >>> model = {"leaf": lambda x: x, "add": lambda a, b: a + b}
    >>> async def main():
    ...     async with multifold.Server(model, encode, backend="numpy") as server:
    ...         return await asyncio.gather(server(1), server((2, 3)), server(((4, 5), 6)))
    >>> asyncio.run(main())
    [array([1]), array([5]), array([15])]
    """

    @naming_keywords
    def __init__(
        self,
        model: Any,
        fn: Callable[[Fold, Any], Any],
        *,
        backend: str | Backend | type[Backend] = "auto",
        calls: int = 8192,
        wait: float = 0.002,
        queue: int = 1000,
        timeout: float | None = None,
        host: bool = True,
        mode: Mode | None = None,
        join: str = "launches",
    ) -> None:
        if not callable(fn):
            raise RecordError(
                f"Expected a function, fn(fold, example). Received a {type(fn).__qualname__}.",
                "the model comes first: multifold.Server(model, fn).",
            )
        refuse_wrong(calls=calls, wait=wait, queue=queue)
        if timeout is not None:
            refuse_wrong(timeout=timeout)
        if join not in ("launches", "rounds"):
            raise RecordError(
                f"Expected join of multifold.Server to be 'launches' or 'rounds'. Received {join!r}.",
                "'launches' is the default: rounds of an async function are one launch of each op.",
            )
        self.timeout = timeout
        self._tally = Tally()
        self._admission = Admission(queue, wait, self._tally)
        self._cancel = self._admission.cancel  # one method for all requests
        self._worker = Worker(self._admission, self._tally, model, fn, backend, calls, host, mode, join)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._numbers = count()
        self._spans = find_spans()

    async def __call__(self, example: Any, *, timeout: float | None = None, priority: int = 0) -> Any:
        """Submit an example and await its result; see `submit`. Cancelling the task cancels the request."""
        waiter = asyncio.get_running_loop().create_future()
        future = self._submit(example, timeout, priority, waiter)
        # Cancelling a coroutine cancels only the future that it awaits.
        waiter.add_done_callback(lambda done: future.cancel() if done.cancelled() else None)
        return await waiter

    def submit(self, example: Any, *, timeout: float | None = None, priority: int = 0) -> Future[Any]:
        """Submit an example, from any thread, and return at once a future of its result.

        Parameters
        ----------
        example : object
            What ``fn`` records; or a trace of one, made by `multifold.trace` in another process, say.
        timeout : float, optional
            How many seconds it may take; by default what the server was given.
        priority : int
            Requests with smaller numbers are taken first; equal ones in the order in which they came.

        Returns
        -------
        concurrent.futures.Future
            Its result is what ``fold.apply(model, fn(fold, example))`` returns: arrays of shape ``(1, *s)``
            for nodes and ``(n, *s)`` for lists of n nodes, in the structure that ``fn`` returns. Its
            exception is what the example raised, or `DeadlineExceeded`.

        Raises
        ------
        Overloaded
            If the queue is full; its ``retry_after`` says in how many seconds to try again.
        LaunchError
            If the server does not run.
        """
        return self._submit(example, timeout, priority, None)

    def stream(self, example: Any, *, timeout: float | None = None, priority: int = 0) -> AnswerStream:
        """Submit an example from an event loop, and return what brings the items that ``fn`` yields for it.

        Parameters
        ----------
        example : object
            What ``fn`` records, an async generator function; no trace.
        timeout, priority : float, int
            As of `submit`; the time counts until the last item.

        Returns
        -------
        AnswerStream
            ``async for item in server.stream(example)`` has each item as soon as it is yielded, and raises
            what the request fails with after the items before that. Leaving the loop cancels the request,
            as soon as nothing refers to the stream; its ``cancel()`` and ``await aclose()`` do so at once,
            and so does cancelling the task that waits for an item.

        Raises
        ------
        Overloaded, LaunchError
            As `submit`, before anything is read.
        RecordError
            If ``fn`` is no async generator function, or the example is a trace.

        Examples
        --------
        >>> import asyncio, multifold
        >>> async def halves(fold, x):
        ...     while x >= 1:
        ...         x = await fold.value(fold.add("half", x))
        ...         yield x
        >>> async def main():
        ...     async with multifold.Server({"half": lambda x: x / 2}, halves, backend="numpy") as server:
        ...         return [x async for x in server.stream(5.0)], await server(3.0)
        >>> asyncio.run(main())
        ([2.5, 1.25, 0.625], [1.5, 0.75])
        """
        if not self._worker.streams or isinstance(example, Trace):
            given = "a trace" if isinstance(example, Trace) else type_of(self._worker.fn)
            raise RecordError(
                "Expected an example for a function that yields what is streamed, an `async def` with "
                f"`yield` in it. Received {given}.",
                "await server(example) returns the result of any request.",
            )
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop)
        waiter = loop.create_future()
        waiter.add_done_callback(inbox.end)
        return AnswerStream(inbox, self._submit(example, timeout, priority, waiter, inbox).cancel)

    def _submit(
        self, example: Any, timeout: Any, priority: int, waiter: Any, inbox: Inbox | None = None
    ) -> Request:
        refuse_wrong(priority=priority)
        if timeout is None:
            timeout = self.timeout
        else:
            refuse_wrong(timeout=timeout)
        now = monotonic()
        deadline = float("inf") if timeout is None else now + timeout
        number = next(self._numbers)
        span = None if self._spans is None else self._spans.request(number)
        request = Request(priority, number, example, now, deadline, self._cancel, waiter, span, inbox)
        if span is not None:
            request.add_done_callback(span.end)  # type: ignore[arg-type]  # which is called with it
        try:
            self._admission.submit(request)
        except MultifoldError as error:
            # No caller gets this future, but its outcome ends the span.
            request.set_exception(error)
            raise
        return request

    def stats(self) -> ServerStats:
        """Return what the server has counted since it was made: a copy, which prints as a table."""
        return self._tally.stats(len(self._admission))

    def explain(self, seconds: float = 10.0) -> RoundsExplanation:
        """Return the launches of the rounds that began in the last ``seconds``, of at most 64 rounds.

        Numbers of examples are those of requests, as in errors and spans. See `multifold.Fold.explain`.
        """
        from multifold.explain import RoundsExplanation

        since = monotonic() - seconds
        # A copy: the thread appends to the deque meanwhile, and a loop over it would raise.
        reports = [report for began, report in [*self._worker.recent] if began >= since]
        return RoundsExplanation.of(reports)

    async def warm(self, examples: Iterable[Any]) -> None:
        """Run examples and drop their results: what waits for first requests is done before they come.

        That is what the framework compiles, and the trials which show that ops keep rows apart. An op that
        the examples use has none after this, whatever number of rows it is launched with, unless it draws
        random numbers, or the rows that it has met are too few or too large to tell.

        Parameters
        ----------
        examples : iterable
            They come in portions, each as large as the queue, and have no deadline. If the framework
            compiles for each number of rows, as JAX does, half of a portion comes again, then a quarter,
            and so on, and their launches run in pieces of 1, 2, 4, ... rows and what is left: so they have
            as many rows as with fewer requests under way. So give it as many examples as may be under way
            at once: a warning says so if requests wait for a compilation later.

        Raises
        ------
        Overloaded
            If requests of others leave no room in the queue.
        """
        worker = self._worker
        worker.warmed(False)
        worker.settle(True)
        left = iter(examples)
        try:
            while portion := [*islice(left, self._admission.most)]:
                worker.divide(False)
                while portion:
                    # Infinity, since None would stand for the server's own timeout.
                    await asyncio.gather(*[self(example, timeout=float("inf")) for example in portion])
                    worker.divide(worker.backend.pads)
                    portion = portion[: len(portion) // 2 if worker.backend.pads else 0]
        finally:
            worker.divide(False)
            worker.settle(False)
        worker.warmed(True)

    def swap(self, model: Any) -> None:
        """Run requests that have not begun by another model; the others keep the one that they have.

        Parameters
        ----------
        model : object
            Where op names are looked up; of the same framework.

        Raises
        ------
        BackendError
            If it is of another framework; the server keeps the one that it has.
        """
        self._worker.swap(model)

    @naming_keywords
    def change(
        self,
        *,
        calls: int | None = None,
        wait: float | None = None,
        queue: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Change settings of the server, from any thread, also while it runs; those left out stay.

        Requests that wait or are under way go on: a shorter queue drops none, a new ``timeout`` is that of
        requests to come, and so is a new number of ``calls``, in rounds of their own.

        Parameters
        ----------
        calls, wait, queue, timeout : int, float, int, float
            See the class; a timeout of ``math.inf`` is no limit.

        Raises
        ------
        RecordError
            If one of these is not what it should be; then none is changed.
        """
        given = {"calls": calls, "wait": wait, "queue": queue, "timeout": timeout}
        refuse_wrong(**{name: x for name, x in given.items() if x is not None})
        self.timeout = self.timeout if timeout is None else timeout
        self._admission.change(queue, wait)
        if calls is not None:
            self._worker.resize(calls)

    def start(self) -> Self:
        """Start the thread that serves requests, and return the server.

        Raise a `LaunchError` if it runs already.
        """
        with self._starting:
            if self._thread is not None:
                raise LaunchError(
                    "Expected a multifold.Server that does not run yet. Received one that runs.",
                    "start it once: `with server:` does so as well.",
                )
            self._admission.open()
            # A daemon, so that a server that is never stopped does not keep the process alive.
            thread = threading.Thread(target=self._worker.serve, name="multifold.Server", daemon=True)
            thread.start()
            self._thread = thread  # only now may others wait for its end
        return self

    def stop(self, drain: bool = True) -> None:
        """Refuse new requests from now on, and return when the others have ended and the thread with them.

        It does nothing more if the server does not run, and returns at once if an op calls it, on the
        thread of the server.

        Parameters
        ----------
        drain : bool
            Whether requests that wait or are under way are served to their end. Else they are cancelled.
        """
        self._admission.stop(drain)
        thread = self._thread
        # An op may stop its own server, and a thread can't wait for itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            if self._thread is thread:  # another one may have been started meanwhile
                self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(drain=kind is None)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To wait here for the thread would block the event loop, in which callers still take their results.
        await asyncio.to_thread(self.stop, kind is None)


def is_time(x: Any) -> bool:
    """Return whether ``x`` is a number of seconds: an int or a float, but no bool and not nan.

    It may be negative or infinite.
    """
    return is_integer(x) or (isinstance(x, float) and x == x)  # not nan


def is_integer(x: Any) -> bool:
    """Return whether ``x`` is an integer of at most 53 bits, which a float holds, and no bool."""
    return isinstance(x, int) and not isinstance(x, bool) and abs(x) < 1 << 53


def is_count(x: Any) -> bool:
    """Return whether ``x`` is a positive integer, as `is_integer` says."""
    return is_integer(x) and x > 0


SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "calls": (is_count, "a positive integer"),
    "queue": (is_count, "a positive integer"),
    "wait": (lambda x: is_time(x) and x >= 0, "0 s or more"),
    "timeout": (lambda x: is_time(x) and x > 0, "more than 0 s"),
    "priority": (is_integer, "an integer"),
}
"""What values of arguments of `Server` and its methods are right, and how a message says that."""


def refuse_wrong(**given: Any) -> None:
    """Raise a `RecordError` if one of these values, by the name of the argument of `Server`, is wrong."""
    for name, x in given.items():
        is_right, what = SETTINGS[name]
        if not is_right(x):
            raise RecordError(
                f"Expected {name} of multifold.Server to be {what}. Received {x!r}.",
                "calls=8192, wait=0.002, queue=1000, timeout=None and priority=0 are the defaults.",
            )
