"""A clock for tests of batched programs: the test says how long an example takes, either way."""

from __future__ import annotations

from typing import Any

from multifold.lazy import batching
from multifold.lazy.current import CURRENT


class Clock:
    """Stands for the time.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
        What puts it in the place of the time.
    in_loop, batched : float
        How many seconds an example takes either way.
    """

    def __init__(self, monkeypatch: Any, in_loop: float, batched: float) -> None:
        self.now = 0.0
        self.in_loop, self.batched = in_loop, batched
        self.looped = 0
        monkeypatch.setattr(batching, "moment", lambda backend, timed: self.now)

    def took(self) -> None:
        """Let the time go on by one example."""
        alone = CURRENT.recording is None
        self.looped += alone
        self.now += self.in_loop if alone else self.batched

    def count(self) -> int:
        """Return how many examples the loop has run since this was called last."""
        found, self.looped = self.looped, 0
        return found
