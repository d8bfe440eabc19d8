"""Windows of whole requests, as ``@serve.batch`` and Triton's dynamic batcher make them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, final


@final
class WindowThread:
    """A thread that takes waiting requests together, from `start` to `stop`.

    Parameters
    ----------
    run : callable
        ``run(requests)`` answers all requests of a window. It is called in the thread, and must not raise.
    most : int
        How many requests it takes together.
    wait : float
        How many seconds the first of them waits for others, where there are fewer.
    """

    def __init__(self, run: Callable[[list[Any]], object], most: int, wait: float) -> None:
        self._run = run
        self._most = most
        self._wait = wait
        self._changed = threading.Condition()
        self._queue: deque[tuple[Any, float]] = deque()
        self._open = True
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def put(self, request: Any) -> None:
        """Let a request wait for its window."""
        with self._changed:
            self._queue.append((request, monotonic()))
            if len(self._queue) in (1, self._most):
                self._changed.notify()

    def _take(self) -> list[Any]:
        """Return the requests of the next window; none if there will be no more."""
        with self._changed:
            while self._open and not self._queue:
                self._changed.wait()
            while self._open and len(self._queue) < self._most:
                left = self._queue[0][1] + self._wait - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            count = min(self._most, len(self._queue)) if self._open else 0
            return [self._queue.popleft()[0] for _ in range(count)]

    def _serve(self) -> None:
        while window := self._take():
            self._run(window)

    def start(self) -> None:
        """Begin to take requests."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for the window that is running, and drop the requests that wait."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()
