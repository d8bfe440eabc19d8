"""Streams: any number of examples, one result for each, in order and in bounded memory.

`stream` is the function. It reads examples as results are taken, and hands them on in three ways:

- `minibatches`: in this process, in minibatches of as many examples as a budget of calls allows
- `pool`: in spawned processes that build the model and do the same, a chunk of examples at a time
- or in processes that only trace, and this one runs the traces

Every way yields results in the order of the examples. It stops at the first example that fails, after
everything before it was yielded, and names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from multifold.backend import Backend
from multifold.errors import RecordError, naming_keywords, type_of
from multifold.serve.streaming.minibatches import StreamRunner, awaits

__all__ = ["stream"]


@naming_keywords
def stream(
    model: Any,
    examples: Iterable[Any],
    fn: Callable[[Any, Any], Any],
    *,
    backend: str | Backend | type[Backend] = "auto",
    calls: int = 20_000,
    workers: int = 1,
    make_model: Callable[[], Any] | None = None,
    key: Callable[[Any], Any] | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Yield a key and the result of each example, in order, however many there are.

    Parameters
    ----------
    model : object
        Where op names are looked up; None with ``make_model``.
    examples : iterable
        Read as results are taken, never all at once: a generator over a file, say.
    fn : callable
        ``fn(fold, example)`` records an example, as for `Fold.run`; or an ``async def`` that awaits values.
    backend : str or Backend
        The framework, as for `Fold`.
    calls : int
        A minibatch ends with the example that brings it to so many calls, which bounds the memory of its
        results. An ``async def`` runs as many examples at once as had so many calls before.
    workers : int
        With 1 everything runs in this process. With more, that many processes are spawned
        (`concurrent.futures.ProcessPoolExecutor`), each with one thread unless ``OMP_NUM_THREADS`` says
        otherwise; ``fn`` and the examples are pickled. Hand out what is cheap to pickle, a line or the name
        of a file, and let ``fn`` read it: then workers parse as well, and not this process alone.
    make_model : callable, optional
        Returns the model; called once in each worker. Without it the workers only trace, and the model runs
        here: worth it where recording takes longer than the ops.
    key : callable, optional
        ``key(example)`` identifies an example; by default it is its number, from 0 on.
    progress : callable, optional
        Called with the number of examples that are done, after each minibatch or chunk.

    Yields
    ------
    key, result
        The result is what ``fn`` returned, as `multifold.each` returns it: a node is an array of shape
        ``(1, *s)``, a list of ``n`` nodes one of shape ``(n, *s)``, anything else as it was. Arrays are
        those of NumPy, on the host; nothing is recorded for gradients.

    Raises
    ------
    RecordError
        For both a model and ``make_model``, a budget or a number of workers below 1, or what can't be
        pickled for the workers.
    LaunchError
        If an op fails, or if a worker dies; it says in which examples.
    Exception
        What ``fn`` or ``examples`` raise, with the number of the example as a note.

    Examples
    --------
    >>> import multifold
    >>> def spell(fold, word):
    ...     return [fold.add("code", ord(letter)) for letter in word]
    >>> for word, codes in multifold.stream({"code": lambda x: x}, ["a", "bcd"], spell, key=str):
    ...     print(word, codes)
    a [97]
    bcd [ 98  99 100]
    """
    check(model, fn, calls, workers, make_model)
    keys: list[Any] = []  # of the examples that were read, and of which no result was yielded yet
    read = noting(examples, key, keys)
    if workers > 1:
        found = in_workers(model, fn, backend, calls, workers, make_model, read)
    else:
        found = StreamRunner(model if make_model is None else make_model(), fn, backend, calls).run(read)
    return reported(found, keys, progress)


def check(model: Any, fn: Any, calls: int, workers: int, make_model: Callable[[], Any] | None) -> None:
    """Raise a `RecordError` if the arguments of `stream` with these names do not fit."""
    for name, number in (("calls", calls), ("workers", workers)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise RecordError(
                f"Expected {name} to be an integer of at least 1. Received {number!r}.",
                "calls bounds a minibatch, 20,000 by default; workers is a number of processes.",
            )
    if not callable(fn):
        raise RecordError(
            f"Expected a function fn(fold, example). Received {type_of(fn)}.",
            "the order is multifold.stream(model, examples, fn).",
        )
    if make_model is not None and model is not None:
        raise RecordError(
            "Expected a model or make_model. Received both.",
            "pass None as the model: each worker builds its own.",
        )
    if workers > 1 and make_model is None and awaits(fn):
        raise RecordError(
            "Expected make_model for a function that awaits values, in workers. Received a model only.",
            "an async def can't be traced, so its workers need a model each: "
            "multifold.stream(None, examples, fn, workers=2, make_model=load).",
        )


def noting(examples: Iterable[Any], key: Callable[[Any], Any] | None, keys: list[Any]) -> Iterator[Any]:
    """Yield the examples, and append the key of each to ``keys`` as it is read.

    The key is ``key(example)``, or the number of the example, from 0, if ``key`` is None.
    """
    for number, example in enumerate(examples):
        keys.append(number if key is None else key(example))
        yield example


def in_workers(
    model: Any,
    fn: Callable[[Any, Any], Any],
    backend: Any,
    calls: int,
    workers: int,
    make_model: Callable[[], Any] | None,
    examples: Iterator[Any],
) -> Iterator[list[Any]]:
    """Yield a list of results for each chunk of examples, in order.

    Workers run them, or trace them for this process. Other arguments are those of `stream`. Workers only
    trace if ``make_model`` is None.
    """
    # Imported here: it loads the multiprocessing of Python, which `import multifold` need not wait for.
    from multifold.serve.streaming.pool import Work, pooled

    chunks = pooled(Work(fn, backend, calls, make_model), workers, examples)
    if make_model is not None:
        return chunks
    runner = StreamRunner(model, fn, backend, calls)
    return runner.overlapped(chunks, runner.traced)


def reported(
    found: Iterator[list[Any]], keys: list[Any], progress: Callable[[int], Any] | None
) -> Iterator[tuple[Any, Any]]:
    """Yield ``(key, result)`` for each example, in order.

    Call ``progress`` with the count after each list in ``found``. ``keys`` are those of all examples that
    were read. The ones of yielded results are removed.
    """
    count = 0
    for results in found:
        # There are more keys than results: examples are read ahead of their results.
        yield from zip(keys, results, strict=False)
        del keys[: len(results)]
        count += len(results)
        if progress is not None and results:
            progress(count)
