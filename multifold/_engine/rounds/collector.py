"""Python's collector of circles, which rests while examples run.

Each call that an example records makes some objects that live until the run ends. The collector would go
through them again and again, for a fifth of the time of a run. What the examples drop is freed without it,
except for circles, which `relieve` looks for once there are many objects.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY = 200_000
"""So many objects, made and not freed, are left to the collector while it rests."""


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """Return a context in which the collector is off, if it was on."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def relieve() -> None:
    """Collect circles if the collector rests and many objects were made since; see `MANY`."""
    if not gc.isenabled() and gc.get_count()[0] > MANY:
        gc.collect(1)
