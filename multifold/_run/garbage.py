"""Python's collector while something is timed: what was there before is none of its business."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Spare the collector what is there already, until the block ends: it is called for every step."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
