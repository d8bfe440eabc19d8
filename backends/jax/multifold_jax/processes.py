"""What processes of `jax.distributed` say to each other, so that their programs have one form."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils

FIRST = 4096
"""Bytes that are always sent, so that most messages need one exchange, and all of them one compilation."""


def exchange(said: bytes) -> list[bytes]:
    """Send ``said`` to all processes; return the bytes that each has sent, in order of `jax.process_index`.

    What `multifold.Fold.program` takes as ``exchange``. All processes call it at the same time.

    Parameters
    ----------
    said : bytes
        Another number of bytes in each process.

    Returns
    -------
    list of bytes
        One for each process.

    Examples
    --------
    >>> import multifold_jax
    >>> multifold_jax.exchange(b"eight rows")  # in the only process
    [b'eight rows']
    """
    if jax.process_count() == 1:
        return [said]
    own = np.frombuffer(len(said).to_bytes(8, "little") + said, np.uint8)
    found = gathered(own[:FIRST], FIRST)
    sizes = [int.from_bytes(row[:8].tobytes(), "little") for row in found]
    rest = max(sizes) + 8 - FIRST
    if rest > 0:
        # Of powers of two there are few, and each size is compiled once.
        more = gathered(own[FIRST:], 1 << (rest - 1).bit_length())
        found = np.concatenate([found, more], axis=1)
    return [row[8 : 8 + size].tobytes() for row, size in zip(found, sizes, strict=True)]


def gathered(own: np.ndarray, size: int) -> np.ndarray:
    """Return the bytes of all processes, padded by zeros: uint8 of shape ``(processes, size)``.

    Row ``i`` is that of the process whose `jax.process_index` is ``i``. ``own`` holds the bytes of this
    process as uint8, at most ``size`` of them; all processes must call it with one ``size``.
    """
    padded = np.zeros(size, np.uint8)
    padded[: len(own)] = own
    return np.asarray(multihost_utils.process_allgather(padded)).reshape(-1, size)
