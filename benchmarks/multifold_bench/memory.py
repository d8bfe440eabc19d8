"""How much memory a step needs: how far it raises the memory of this process, which Linux tells."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multifold_bench.harness import Contender

PROCESS = Path("/proc/self")


def measure_memory(contenders: Sequence[Contender], batch: Any) -> dict[str, int | None]:
    """Let each contender take one step, and return the bytes by its name; None where nothing tells."""
    found = {}
    for contender in contenders:
        prepared = contender.prepare(batch)
        gc.collect()
        with peak_memory() as memory:
            contender.step(prepared)
        found[contender.name] = memory.peak_bytes
    return found


@dataclass
class Memory:
    """The most memory that was held inside a `peak_memory` block; None where the system does not tell."""

    peak_bytes: int | None = None


@contextlib.contextmanager
def peak_memory() -> Iterator[Memory]:
    """Measure how far the memory of this process rises inside the block, on Linux.

    Yields
    ------
    Memory
        ``peak_bytes`` is the rise of the resident set, filled in when the block ends.
    """
    memory = Memory()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else the step lives on what others have freed
    before = None
    with contextlib.suppress(OSError):
        (PROCESS / "clear_refs").write_text("5")  # resets the high-water mark: man 5 proc
        before = resident("VmRSS")
    yield memory
    if before is not None:
        after = resident("VmHWM")
        memory.peak_bytes = None if after is None else max(0, after - before)


def resident(field: str) -> int | None:
    """Return a field of ``/proc/self/status`` in bytes."""
    with contextlib.suppress(OSError):
        for line in (PROCESS / "status").read_text().splitlines():
            if line.startswith(field):
                return 1024 * int(line.split()[1])
    return None
