"""Python's garbage collector while something is timed.

A full collection looks through all objects of a framework, which takes longer than many steps do. What was
there before the block is left out of it:

>>> with only_new_garbage():
...     gc.get_freeze_count() > 0
True
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Return a context in which Python's collector leaves objects from before it alone."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
