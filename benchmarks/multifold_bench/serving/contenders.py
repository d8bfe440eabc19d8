"""Three ways to serve requests, behind one method: `Service.submit`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from types import TracebackType
from typing import Any, Self, final

from multifold import Fold, Server
from multifold_bench.serving.windows import WindowThread
from multifold_bench.serving.workloads import Traffic

Answer = Callable[[Sequence[int], Sequence[Any]], object]
"""Called with numbers of requests and their results, from any thread."""


class Service(abc.ABC):
    """Serves requests while its ``with`` block lasts.

    Parameters
    ----------
    workload : Traffic
        What is served.
    answer : callable
        Called with what is done.
    """

    def __init__(self, workload: Traffic, answer: Answer) -> None:
        self.workload = workload
        self.answer = answer

    @abc.abstractmethod
    def submit(self, number: int, example: Any) -> None:
        """Take a request."""

    @abc.abstractmethod
    def rows_a_launch(self) -> float:
        """Return the mean number of calls in a launch."""

    @abc.abstractmethod
    def __enter__(self) -> Self:
        """Begin to serve."""

    @abc.abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop what is not done."""


class Queued(Service):
    """Takes waiting requests together, and answers them all when all are done.

    Parameters
    ----------
    most, wait
        As for `WindowThread`.
    """

    def __init__(self, workload: Traffic, answer: Answer, most: int, wait: float) -> None:
        super().__init__(workload, answer)
        self._windows = WindowThread(self._serve, most, wait)

    def submit(self, number: int, example: Any) -> None:
        """Take a request."""
        self._windows.put((number, example))

    def _serve(self, window: list[tuple[int, Any]]) -> None:
        numbers, examples = zip(*window, strict=True)
        try:
            with self.workload.backend.inference():
                results = self.run(examples)
        except Exception as error:  # noqa: BLE001 - compared with the right result, and shown
            results = [error] * len(numbers)
        self.answer(numbers, results)

    @abc.abstractmethod
    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return the results of some examples, in arrays of NumPy."""

    def __enter__(self) -> Self:
        self._windows.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._windows.stop()


@final
class Alone(Queued):
    """One request at a time, as a model is served by whoever does not batch."""

    def __init__(self, workload: Traffic, answer: Answer) -> None:
        super().__init__(workload, answer, most=1, wait=0)

    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Run one example, call by call."""
        return [self.workload.loop(example) for example in examples]

    def rows_a_launch(self) -> float:
        """Return 1: every call is one."""
        return 1.0


@final
class Windows(Queued):
    """Windows of whole requests."""

    def __init__(self, workload: Traffic, answer: Answer, most: int, wait: float) -> None:
        super().__init__(workload, answer, most, wait)
        self.fold = Fold(backend=workload.backend)
        self.calls = self.launches = 0

    def run(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Run a window as one minibatch."""
        results = self.fold.run(self.workload.model, examples, self.workload.fn)
        self.calls += len(self.fold)
        # `explain` would look for reasons, within the time of a window.
        self.launches += sum(len(report.notes.calls) for report in self.fold._last)
        return self.workload.parted(results)

    def rows_a_launch(self) -> float:
        """Return the mean number of calls in a launch."""
        return self.calls / max(self.launches, 1)


@final
class Joining(Service):
    """`multifold.Server`: requests join those under way."""

    def __init__(self, workload: Traffic, answer: Answer, **options: Any) -> None:
        super().__init__(workload, answer)
        self.server = Server(
            workload.model, workload.fn, backend=workload.backend, queue=1_000_000, **options
        )

    def submit(self, number: int, example: Any) -> None:
        """Take a request."""
        self.server.submit(example).add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: Any) -> None:
        try:
            result = future.result()
        except CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - compared with the right result, and shown
            result = error
        self.answer([number], [result])

    def rows_a_launch(self) -> float:
        """Return the mean number of calls in a launch."""
        return self.server.stats().rows_a_launch

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop(drain=False)
