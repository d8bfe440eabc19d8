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
    """Return the error for a damaged trace; ``what`` says what is wrong."""
    return RecordError(
        f"Expected a trace as multifold.trace made it. Received a damaged one: {what}",
        "record the example again, or read the trace from a whole copy of the file or pickle.",
    )


def refuse_other_layout(layout: object) -> None:
    """Refuse traces that another version of multifold wrote or pickled."""
    if layout != LAYOUT:
        raise RecordError(
            f"Expected traces in layout {LAYOUT}, which this version of multifold reads. "
            f"Received layout {layout!r}.",
            "read them with the version that wrote them, or record the examples again.",
        )


@contextmanager
def refusing_damage() -> Iterator[None]:
    """Turn an `IndexError` of compiled code into the error for a damaged trace.

    A recorded call reads earlier calls only, so compiled code can find a reference out of range only in a
    trace that was damaged.
    """
    try:
        yield
    except IndexError as error:
        raise damaged(error) from error


def checksum(parts: Sequence[int], columns: Sequence[Any]) -> int:
    """Return one checksum of the bytes of ``columns`` and of ``parts``, which are checksums themselves.

    Where one column ends and the next one begins counts, too.

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
    """Yield bytes of numbers and arrays for their checksum: class or dtype, shape and content.

    An array of objects has pointers for its content; the objects in it are left to pickle.
    """
    for x in values:
        if isinstance(x, (np.ndarray, np.generic)):
            yield f"{x.dtype.str} {x.shape}".encode()
            yield b"" if x.dtype.hasobject else x.tobytes()
        else:
            yield f"{type(x).__qualname__} {x!r}".encode()
