"""Damaged traces: one error for all of them, and the checksum that pickles and files of traces carry.

A trace is checked several times. A pickle and a row of a table carry a checksum, and `Trace` looks at the
sizes of what a row holds. Merging checks each integer in the loop that copies it, and counts what the calls
of each trace need. Scheduling refuses a call that reads a later one. Compiled functions raise `IndexError`,
which becomes the error of this module.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from multifold.errors import RecordError

LAYOUT = 4
"""The version of files and pickles of traces. Raise it with any change of columns, texts or checksum."""

DAMAGE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What Python raises while it reads a damaged trace; readers catch these and raise `damaged` instead."""


def damaged(what: object) -> RecordError:
    """Return, but do not raise, the `RecordError` for a damaged trace; ``str(what)`` says what is wrong."""
    return RecordError(
        f"Expected a trace as multifold.trace made it. Received a damaged one: {what}",
        "record the example again, or read the trace from a whole copy of the file or pickle.",
    )


def refuse_other_layout(layout: object) -> None:
    """Raise `RecordError` if ``layout``, the number in a file or pickle of traces, is not `LAYOUT`."""
    if layout != LAYOUT:
        raise RecordError(
            f"Expected traces in layout {LAYOUT}, which this version of multifold reads. "
            f"Received layout {layout!r}.",
            "read them with the version that wrote them, or record the examples again.",
        )


@contextmanager
def refusing_damage() -> Iterator[None]:
    """Return a context that turns an `IndexError` in it into the `RecordError` for a damaged trace.

    A recorded call reads earlier calls only, so compiled code can find a reference out of range only in a
    trace that was damaged.
    """
    try:
        yield
    except IndexError as error:
        raise damaged(error) from error


def checksum(parts: Sequence[int], columns: Sequence[Any]) -> int:
    """Return the CRC-32 of some checksums, ``parts``, and of the bytes of ``columns``, bytes or arrays.

    The sizes of the columns count, too: it matters where one ends and the next one begins.

    Examples
    --------
    >>> checksum([], [b"ab", b"c"]) == checksum([], [b"a", b"bc"])
    False
    """
    # Sizes are little-endian on every machine, since one may write a file and another check it.
    sizes = [len(parts), *(memoryview(column).nbytes for column in columns)]
    crc = zlib.crc32(np.array([*sizes, *parts], "<i8").tobytes())
    for column in columns:
        crc = zlib.crc32(column, crc)
    return crc


def bytes_of(values: Iterable[Any]) -> Iterable[bytes]:
    """Yield bytes that stand for some values in a `checksum`: class or dtype, shape and content of each.

    An array of objects has pointers for its content, so only its dtype and shape count here; the objects in
    it are left to pickle.
    """
    for x in values:
        if isinstance(x, (np.ndarray, np.generic)):
            yield f"{x.dtype.str} {x.shape}".encode()
            yield b"" if x.dtype.hasobject else x.tobytes()
        else:
            yield f"{type(x).__qualname__} {x!r}".encode()
