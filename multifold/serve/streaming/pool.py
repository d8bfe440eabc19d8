"""Running a function over examples in spawned processes, a chunk of examples at a time.

Each worker gets the function once, pickled, and builds the model itself. Chunks go out in order, at most
two for each worker are under way, and their results are yielded in order, so memory is bounded. How many
examples a chunk has follows from the calls that earlier chunks had, of which the results were yielded. It
never follows from how fast a worker is, so a stream has the same minibatches each time.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from multifold._engine.traces.minibatch import Minibatch, merge
from multifold._engine.traces.trace import Trace
from multifold._engine.traces.tracer import record_each
from multifold.errors import LaunchError, RecordError
from multifold.serve.streaming.minibatches import FIRST, Marked, StreamRunner, guarded, naming, next_size

AHEAD = 2
"""Chunks under way for each worker: one that it works on, and one that is there when it is done."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
"""The environment variables that say how many threads NumPy, PyTorch, MXNet and TensorFlow take."""


class Work(NamedTuple):
    """What a worker process is given when it starts.

    Attributes
    ----------
    fn : callable
        ``fn(fold, example)`` records an example.
    backend : str, Backend or type
        The framework.
    calls : int
        How many calls a minibatch has at least, unless it is the last one of its chunk.
    make_model : callable or None
        Returns the model; None for a worker that only traces.
    """

    fn: Callable[..., Any]
    backend: Any
    calls: int
    make_model: Callable[[], Any] | None


class Done(NamedTuple):
    """What a worker returns for a chunk of examples.

    Attributes
    ----------
    found : list
        The results of its examples, or the minibatches that were made of their traces.
    calls : int
        How many calls these examples have, all together.
    failure : Exception or None
        What the first example that failed has raised; the ones before it are in ``found``.
    """

    found: list[Any]
    calls: int
    failure: Exception | None


_told: list[bytes] = []
"""In a worker the pickle of its `Work`."""


def tell(work: bytes) -> None:
    """Store the pickle of this worker's `Work`; called in each worker when it starts.

    It is unpickled with the first chunk, so that an error of it is seen. Start a thread that ends this
    process when its parent has died.
    """
    _told.append(work)
    threading.Thread(target=end_with_the_parent, daemon=True).start()


def end_with_the_parent() -> None:
    """Wait until the parent process has ended, by SIGKILL say, and exit with it.

    Return at once without one. `ProcessPoolExecutor` leaves such a worker waiting for ever: it holds both
    ends of the pipe by which chunks come, so that it never sees the pipe closed.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def received_work() -> Work:
    """Return the `Work` of this worker, unpickled at the first call.

    Raise a `RecordError` if that fails.
    """
    try:
        work: Work = pickle.loads(_told[0])
    except Exception as error:
        raise RecordError(
            "Expected a function, a backend and make_model that a worker of multifold.stream can import. "
            f"It received some that it can't: {type(error).__name__}: {error}",
            "define them in a module that `import` finds by its name: a worker is a new process.",
        ) from error
    return work


@cache
def runner() -> StreamRunner:
    """Return the `StreamRunner` of this worker, made at the first call, when it also builds its model."""
    fn, backend, calls, make_model = received_work()
    if make_model is None:
        raise TypeError("A worker that only traces has no model.")
    made = StreamRunner(make_model(), fn, backend, calls)
    # Else each full collection would visit all that `import torch` has made, which a worker keeps.
    gc.freeze()
    return made


def run_chunk(examples: list[Any], first: int) -> Done:
    """Run a chunk of examples in this worker, up to the first that fails.

    ``first`` is the number of the first one. What was raised is in the `Done` that it returns.
    """
    mine = runner()
    before = mine.ran
    found = list[Any]()
    failures: list[Exception] = []
    for batch in guarded(mine.run(examples, first), failures):
        found += batch
    return Done(found, mine.ran - before, picklable_failure(failures))


def trace_chunk(examples: list[Any], first: int) -> Done:
    """Trace a chunk of examples in this worker, up to the first that fails.

    Return minibatches of the traces. ``first`` is the number of the first example. What was raised is in
    the `Done`.
    """
    fn, _, calls, _ = received_work()
    failures: list[Exception] = []
    made = list(guarded(iter(traced(Marked(fn), examples, first)), failures))
    return Done(list(minibatches_of(made, calls)), sum(map(len, made)), picklable_failure(failures))


def traced(fn: Callable[..., Any], examples: list[Any], first: int) -> Iterable[Trace]:
    """Return the traces of some examples, in order, up to the first that fails.

    Without a failure it is a list. Else it is an iterator, which raises the error where that example would
    come.
    """
    with contextlib.suppress(Exception):  # it is raised again by the example itself, which is named then
        return record_each(fn, examples)
    return one_by_one(fn, examples, first)


def one_by_one(fn: Callable[..., Any], examples: list[Any], first: int) -> Iterator[Trace]:
    """Yield the trace of each example, recorded by itself; what one raises gets a note with its number."""
    for number, example in enumerate(examples, first):
        with naming(number):
            found = record_each(fn, [example])
        yield from found


def minibatches_of(made: list[Trace], calls: int) -> Iterator[Minibatch]:
    """Merge traces, in order, to minibatches.

    Each ends with the trace that brings it to ``calls`` calls.
    """
    waiting: list[Trace] = []
    count = 0
    for trace in made:
        waiting.append(trace)
        count += len(trace)
        if count >= calls:
            yield merge(waiting)
            waiting = []
            count = 0
    if waiting:
        yield merge(waiting)


def picklable_failure(failures: list[Exception]) -> Exception | None:
    """Return the first of ``failures`` as an exception that can be pickled, with its traceback as a note.

    None if there is none. One that can't be pickled becomes a `LaunchError` with the name of its class.
    """
    if not failures:
        return None
    lines = "".join(traceback.format_exception(failures[0]))
    try:
        # An exception whose constructor takes other arguments than its message pickles, and fails only when
        # it is read.
        failure = pickle.loads(pickle.dumps(failures[0]))
    except Exception:  # noqa: BLE001 - an exception of the user may have any constructor
        failure = LaunchError(f"A worker raised an exception of class {type(failures[0]).__name__}.")
    failure.add_note(f"Raised in a worker:\n{lines}")
    return failure


def pooled(work: Work, workers: int, examples: Iterator[Any]) -> Iterator[list[Any]]:
    """Run or trace examples in worker processes.

    Yield a list for each chunk, in order, and raise the first failure. The list has a result for each
    example, or, if ``work`` has no ``make_model``, minibatches of traces.

    Parameters
    ----------
    work : Work
        What each worker is given when it starts.
    workers : int
        How many processes are spawned.
    examples : iterator
        The examples, which are read a chunk at a time.
    """
    told = pickled(work)
    run = trace_chunk if work.make_model is None else run_chunk
    failures: list[Exception] = []
    under_way: deque[tuple[int, int, Future[Done]]] = deque()
    first = 0
    size = FIRST
    source = guarded(examples, failures)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), tell, (told,))
    all_done = False
    try:
        while True:
            while len(under_way) < AHEAD * workers and (chunk := list(islice(source, size))):
                # `submit` starts workers as needed, and each reads the environment as it starts.
                with one_thread_each():
                    under_way.append((first, len(chunk), submitted(pool, run, chunk, first)))
                first += len(chunk)
            if not under_way:
                break
            number, count, future = under_way.popleft()
            done = result_of(future, number, number + count - 1)
            yield done.found
            if done.failure is not None:
                raise done.failure
            size = next_size(size, work.calls, count, done.calls)
        all_done = True
    finally:
        # Workers without work end at once. One that is busy, as the stream is closed or has failed, ends
        # with its chunk, which a caller should not wait for.
        pool.shutdown(wait=all_done, cancel_futures=True)
    if failures:
        raise failures[0]


def pickled(work: Work) -> bytes:
    """Return the pickle of ``work``.

    Raise a `RecordError` if the function or ``make_model`` can't be pickled.
    """
    try:
        return pickle.dumps(work)
    except Exception as error:
        raise RecordError(
            "Expected a function, a backend and make_model that can be pickled for the workers of "
            f"multifold.stream. Received some that can't: {error}",
            "define them at the top of a module; lambdas and functions inside of others can't be sent.",
        ) from error


def submitted(
    pool: ProcessPoolExecutor, run: Callable[[list[Any], int], Done], examples: list[Any], first: int
) -> Future[Done]:
    """Hand a chunk to the workers, and return its future.

    If a worker has died, that raises when it is waited for. ``first`` is the number of the first of
    ``examples``.
    """
    try:
        return pool.submit(run, examples, first)
    except BrokenProcessPool as error:
        failed: Future[Done] = Future()
        failed.set_exception(error)
        return failed


def result_of(future: Future[Done], first: int, last: int) -> Done:
    """Wait for a chunk, and return it; what is raised gets a note with the numbers of its examples.

    Raise a `LaunchError` if a worker has died.
    """
    try:
        with naming(first, last):
            return future.result()
    except BrokenProcessPool as error:
        raise LaunchError(
            f"A worker of multifold.stream died before examples {first} to {last} were done.",
            "it may have run out of memory: pass fewer calls or workers. A script that starts workers "
            'needs `if __name__ == "__main__":` around what it runs.',
        ) from error


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Return a context in which processes that start take one thread each, by environment variables.

    Those that the caller has set stay as they are.
    """
    said = [name for name in THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(said, "1"))
    try:
        yield
    finally:
        for name in said:
            os.environ.pop(name, None)
