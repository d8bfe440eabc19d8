"""A future that costs little until somebody waits for it in a thread.

`concurrent.futures.Future` makes a `threading.Condition` when it is made: eight objects that Python's
garbage collector counts, so that the collector ran once in 50 requests. Each question enters it.
Requests are awaited in event loops, or have callbacks: hardly any thread waits for one. So the condition is
made when it is first asked for. Until then one lock, which all futures share, guards their state.

This relies on the attributes ``_state``, ``_result``, ``_exception``, ``_waiters``, ``_done_callbacks`` and
``_condition`` of `Future`, which Python has had under these names since 3.2.

>>> future = LightFuture()
>>> future.add_done_callback(lambda done: print("done:", done.result()))
>>> future.settle(3, None)
done: 3
True
>>> future.made
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, RLock
from typing import Any

PENDING = "PENDING"
FINISHED = "FINISHED"
"""What `Future` calls two of its states."""

LOCK = RLock()
"""Held while a condition is made, and while a future without one changes: a microsecond.

Making a condition may start the garbage collector, and what that calls may ask a future in the same thread.
"""


class LightFuture(Future[Any]):
    """A future whose condition is made when somebody waits.

    Attributes
    ----------
    made : Condition or None
        The condition, if anything has asked for it.
    """

    def __init__(self) -> None:
        self.made: Condition | None = None
        self._state = PENDING
        self._result = None
        self._exception = None
        self._done_callbacks: list[Callable[[Future[Any]], object]] = []

    @property
    def _condition(self) -> Condition:  # type: ignore[override]  # an attribute that `Future.__init__` sets, which is not called
        if self.made is None:
            with LOCK:
                if self.made is None:
                    self._waiters = []
                    self.made = Condition()
        return self.made

    def settle(self, result: Any, error: BaseException | None) -> bool:
        """Set the outcome. If the future was cancelled, tell the threads that wait, and return False."""
        with LOCK:
            light = self.made is None
            if light:  # so it can't have been cancelled, which asks for the condition
                self._result = result
                self._exception = error
                self._state = FINISHED  # last, since `result` reads it without the lock
        if light:
            self._invoke_callbacks()  # type: ignore[attr-defined]  # of `Future`, which is not public
        elif not self.set_running_or_notify_cancel():
            return False
        elif error is None:
            self.set_result(result)
        else:
            self.set_exception(error)
        return True

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call a function with the future once it has its outcome; see `Future`."""
        with LOCK:
            waits = self.made is None and self._state == PENDING
            if waits:
                self._done_callbacks.append(fn)
        if not waits:
            super().add_done_callback(fn)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, or raise what there is instead; see `Future`."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the request has raised, or None; see `Future`."""
        return self._exception if self._state == FINISHED else super().exception(timeout)

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        return self._state not in (PENDING, FINISHED) and super().cancelled()
