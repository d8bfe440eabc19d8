"""Running a function over any number of examples in one process, a minibatch at a time.

A fold of its own records examples until they have as many calls as the budget allows, runs them, and
forgets them. What fails ends the stream, after everything before it was run and yielded:

>>> import multifold
>>> def halve(fold, x):
...     return fold.add("half", float(x))
>>> runner = StreamRunner({"half": lambda x: x / 2}, halve, "numpy", calls=2)
>>> found = runner.run([1, 2, 3, "four", 5])
>>> next(found), next(found)
([array([0.5]), array([1.])], [array([1.5])])
>>> next(found)
Traceback (most recent call last):
ValueError: could not convert string to float: 'four'
Raised by example 3 of multifold.stream.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from multifold._engine.plan.each import each_of
from multifold._engine.rounds.fetch import hosted
from multifold._engine.traces.minibatch import Minibatch
from multifold.backend import Backend
from multifold.fold import Fold
from multifold.operands import Each, each

FIRST = 8
"""How many examples of an ``async def`` run before it is known how many calls they have."""


class Marked:
    """Wraps the function of a stream: what it returns is marked by `multifold.each`.

    So the results of an example are not put together with those of others.
    """

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __call__(self, fold: Any, example: Any) -> Any:
        """Return ``each(fn(fold, example))``, without marks of `each` inside.

        For an ``async def`` return an awaitable of that.
        """
        result = self.fn(fold, example)
        return _marked_later(result) if inspect.isawaitable(result) else each(unmarked(result))


async def _marked_later(result: Any) -> Each:
    return each(unmarked(await result))


def unmarked(x: Any) -> Any:
    """Return a nested result without the marks that `multifold.each` has put around parts of it.

    >>> unmarked([each(1), {"two": each(2)}])
    [1, {'two': 2}]
    """
    return unmarked(x.value) if isinstance(x, Each) else each_of(x, unmarked)


def awaits(fn: Callable[..., Any]) -> bool:
    """Return whether a function, or the ``__call__`` of an object, is an ``async def``."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


class StreamRunner:
    """Runs a function over examples in this process, a minibatch at a time, without gradients.

    Attributes
    ----------
    ran : int
        The calls of all examples that were run.
    """

    def __init__(
        self, model: Any, fn: Callable[..., Any], backend: str | Backend | type[Backend], calls: int
    ) -> None:
        self.model = model
        self.fn = Marked(fn)
        self.awaits = awaits(fn)
        self.fold = Fold(backend=backend)
        self.calls = calls
        self.ran = 0

    def run(self, examples: Iterable[Any], first: int = 0) -> Iterator[list[Any]]:
        """Yield a list with the results of each minibatch, in order.

        The first example has number ``first``. Results have NumPy arrays in them. What an example raises
        gets a note with its number.
        """
        source = enumerate(examples, first)
        return self.rounds(source) if self.awaits else self.overlapped(self.recorded(source), self.apply)

    def overlapped(self, batches: Iterator[Any], launch: Callable[[Any], list[Any]]) -> Iterator[list[Any]]:
        """Yield a list of the results of each batch, after ``launch(batch)`` has run for the next one.

        A device works on one minibatch while the host makes the next. The copy of results waits for the
        device, so it comes after that, and before the next launches, which it would have to wait for, too.
        What ``batches`` or ``launch`` raises is raised after the results of all batches before.
        """
        failures: list[Exception] = []
        launched: list[Any] = []
        for batch in guarded(batches, failures):
            before = self.hosted(launched)
            try:
                launched = launch(batch)
            finally:  # a launch that fails loses nothing of what came before
                if before:
                    yield before
        if launched:
            yield self.hosted(launched)
        if failures:
            raise failures[0]

    def recorded(self, source: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
        """Record examples one after the other on the fold, and yield them in batches.

        A batch is a list of ``(number, result)`` pairs. It ends with the example that brings the fold to
        ``calls`` calls, or the batch to as many examples. What the function raises is raised after the
        examples before it were yielded.
        """
        waiting: list[tuple[int, Any]] = []
        try:
            for number, example in source:
                with naming(number):
                    waiting.append((number, self.fn(self.fold, example)))
                if max(len(self.fold), len(waiting)) >= self.calls:  # examples may have no calls at all
                    batch = waiting
                    waiting = []
                    yield batch
        except Exception:
            if waiting:  # what was recorded before, not what failed itself
                yield waiting
            raise
        if waiting:
            yield waiting

    def apply(self, batch: list[tuple[int, Any]]) -> list[Any]:
        """Run the calls of a batch from `recorded`.

        Return the result of each example, and empty the fold.
        """
        first = batch[0][0]
        last = batch[-1][0]
        with self.inference(), naming(first, last):
            found = self.fold.apply(self.model, [marked for _, marked in batch])
        self.ran += len(self.fold)
        self.fold.reset()
        return found

    def traced(self, batches: Iterable[Minibatch]) -> list[Any]:
        """Run minibatches of traces, which another process has merged.

        Return the result of each example, in order.
        """
        with self.inference():
            return [x for batch in batches for x in self.fold.run(self.model, batch)]

    def rounds(self, source: Iterable[tuple[int, Any]]) -> Iterator[list[Any]]:
        """Yield a list of the results of each batch of an ``async def``, whose examples run at once.

        ``source`` has pairs of number and example. A batch has 8 examples at first; then as many as should
        have ``calls`` calls by those of the batch before, see `next_size`. The first failure, by number, is
        raised with a note of its number, after the results of the examples before it were yielded.
        """
        left = iter(source)
        size = FIRST
        failures: list[Exception] = []
        while not failures and (batch := list(islice(guarded(left, failures), size))):
            first = batch[0][0]
            with self.inference(), naming(first, batch[-1][0]):
                found, failed = self.fold.run(
                    self.model, [example for _, example in batch], self.fn, on_error="collect"
                )
            if failed:
                number = min(failed)
                # Examples before the first that failed are done: yield their results before the error.
                if number:
                    yield self.hosted(found[:number])
                with naming(first + number):
                    raise failed[number]
            yield self.hosted(found)
            self.ran += len(self.fold)
            size = next_size(size, self.calls, len(batch), len(self.fold))
        if failures:
            raise failures[0]

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        """Return the framework's context of inference, in which it records nothing for gradients."""
        return self.fold._backend_of(self.model).inference()

    def hosted(self, results: list[Any]) -> list[Any]:
        """Return nested results with NumPy arrays in the place of the framework's."""
        return list(map(partial(hosted, self.fold._backend_of(self.model)), results))


def guarded(source: Iterator[Any], failures: list[Exception]) -> Iterator[Any]:
    """Yield what ``source`` yields; if it raises, append the exception to ``failures`` and end."""
    try:
        yield from source
    except Exception as error:  # noqa: BLE001 - raised when what came before it was run
        failures.append(error)


def next_size(size: int, calls: int, examples: int, recorded: int) -> int:
    """Return how many examples to take next to get about ``calls`` calls; at most twice ``size``.

    ``examples`` is how many were taken, and ``recorded`` how many calls these had.

    Examples
    --------
    >>> next_size(8, calls=1000, examples=8, recorded=80), next_size(64, 1000, 64, 6400)
    (16, 10)
    """
    return max(1, min(2 * size, calls, calls * examples // max(recorded, 1)))


@contextlib.contextmanager
def naming(first: int, last: int | None = None) -> Iterator[None]:
    """Return a context that adds a note with the numbers of examples to what is raised in it.

    The note is ``Raised by examples 3 to 7 of multifold.stream.``; without ``last`` it names one example.
    """
    try:
        yield
    except Exception as error:
        one = last is None or first == last
        where = f"example {first}" if one else f"examples {first} to {last}"
        with contextlib.suppress(Exception):  # an exception may refuse any change
            error.add_note(f"Raised by {where} of multifold.stream.")
        raise
