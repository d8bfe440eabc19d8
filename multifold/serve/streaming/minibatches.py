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
    """A function of examples that marks its whole result by `multifold.each`: it keeps its example."""

    def __init__(self, fn: Callable[[Any, Any], Any]) -> None:
        self.fn = fn

    def __call__(self, fold: Any, example: Any) -> Any:
        """Return what the function returns, all of it marked."""
        result = self.fn(fold, example)
        return _marked_later(result) if inspect.isawaitable(result) else each(unmarked(result))


async def _marked_later(result: Any) -> Each:
    return each(unmarked(await result))


def unmarked(x: Any) -> Any:
    """Return results without the marks of `multifold.each` inside of them."""
    return unmarked(x.value) if isinstance(x, Each) else each_of(x, unmarked)


def awaits(fn: Callable[..., Any]) -> bool:
    """Return whether a function, or an object that is called, is an ``async def``."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


class StreamRunner:
    """Runs a function over examples, in the inference mode of the framework.

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
        """Yield the results of each minibatch; the examples are numbered from ``first`` on."""
        source = enumerate(examples, first)
        return self.rounds(source) if self.awaits else self.overlapped(self.recorded(source), self.apply)

    def overlapped(self, batches: Iterator[Any], launch: Callable[[Any], list[Any]]) -> Iterator[list[Any]]:
        """Yield the results of each minibatch that is launched, as soon as the next one is there.

        A device works on one minibatch while the host makes the next. The copy of results waits for the
        device, so it comes after that, and before the next launches, which it would have to wait for, too.
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
        """Record examples one after the other; yield them when they have as many calls as allowed."""
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
        """Launch what some examples recorded."""
        first = batch[0][0]
        last = batch[-1][0]
        with self.inference(), naming(first, last):
            found = self.fold.apply(self.model, [marked for _, marked in batch])
        self.ran += len(self.fold)
        self.fold.reset()
        return found

    def traced(self, batches: Iterable[Minibatch]) -> list[Any]:
        """Launch traces that another process has merged."""
        with self.inference():
            return [x for batch in batches for x in self.fold.run(self.model, batch)]

    def rounds(self, source: Iterable[tuple[int, Any]]) -> Iterator[list[Any]]:
        """Run as many examples at once as had the calls that are allowed before."""
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
        """Return a context in which nothing is recorded for gradients."""
        return self.fold._backend_of(self.model).inference()

    def hosted(self, results: list[Any]) -> list[Any]:
        """Return results with arrays of NumPy in the place of the framework's."""
        return list(map(partial(hosted, self.fold._backend_of(self.model)), results))


def guarded(source: Iterator[Any], failures: list[Exception]) -> Iterator[Any]:
    """Yield what a source yields; keep what it raises, as if it had ended there."""
    try:
        yield from source
    except Exception as error:  # noqa: BLE001 - raised when what came before it was run
        failures.append(error)


def next_size(size: int, calls: int, examples: int, recorded: int) -> int:
    """Return how many examples to take next, after some that had so many calls: at most twice as many.

    Examples
    --------
    >>> next_size(8, calls=1000, examples=8, recorded=80), next_size(64, 1000, 64, 6400)
    (16, 10)
    """
    return max(1, min(2 * size, calls, calls * examples // max(recorded, 1)))


@contextlib.contextmanager
def naming(first: int, last: int | None = None) -> Iterator[None]:
    """Add to what is raised which examples it was raised by."""
    try:
        yield
    except Exception as error:
        one = last is None or first == last
        where = f"example {first}" if one else f"examples {first} to {last}"
        with contextlib.suppress(Exception):  # an exception may refuse any change
            error.add_note(f"Raised by {where} of multifold.stream.")
        raise
