"""The sizes of tiled programs: each is rounded up, so that executors compile few programs."""

from __future__ import annotations

from typing import NamedTuple

from multifold._engine.compiled.arrays import Integers

OVERHEAD = 24
"""What a tile costs beside its rows, in rows. A loop of 100 tiles of 8 rows costs as much as 3,200 rows."""

WIDTHS = (8, 16, 32, 64, 128, 256)
"""The rows that a tile may have. The wider they are, the fewer tiles there are and the more rows pad."""

NARROW = (16,)
"""The rows of a tile of a loop that `no_batch()` divides into several phases of few launches each."""

FEWEST = 4
"""The tiles that a loop has at least, so that small minibatches, of one tile to four, have one size."""

CLOSE = 1.5
"""A loop keeps tiles and cycle of the last program unless others would be that many times cheaper."""

MOST_WORK = 1.6
"""A program whose kernels take turns may cost that many times what its tiles cost in their best order. What
would cost more stays ragged (`Unfit`)."""


class PhaseSize(NamedTuple):
    """The sizes of a phase.

    Attributes
    ----------
    loop : bool
        Whether it is a loop; any other phase is one tile.
    tile, launches : int
        The rows of a tile, and how many tiles there are.
    kernels : tuple of int
        The tiles of each kernel.
    edges : tuple of tuples of int
        For each kernel and ragged operand the members of a tile.
    turn : tuple of int
        See `Phase`.
    """

    loop: bool
    tile: int
    launches: int
    kernels: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]
    turn: tuple[int, ...] = ()


class Sizes(NamedTuple):
    """All sizes of a tiled program: of its phases, of its given rows, and of the results."""

    phases: tuple[PhaseSize, ...]
    given: tuple[int, ...]
    groups: tuple[int, ...]


def bucket(count: int, least: int = 8) -> int:
    """Round ``count`` up to one of four sizes for each power of two, and to ``least`` at least.

    Examples
    --------
    >>> [bucket(count) for count in (1, 9, 100, 1000, 1030)]
    [8, 10, 112, 1024, 1280]
    """
    # The step is a quarter of the power of two below: 256 from 1,024 to 2,048.
    step = 1 << max((count - 1).bit_length() - 3, 0)
    return max(-(-count // step) * step, least)


def members_of(tile: int, lengths: Integers) -> int:
    """Return how many members, rows of a ragged operand, each tile of ``tile`` calls gets.

    ``lengths`` has the members of each call. It is the larger of two numbers, rounded up by `bucket`: the
    members of the longest call and ``tile - 1``, one for each row of padding beside it; and one more than
    ``tile`` times the mean, for a full tile.
    """
    most = int(lengths.max(initial=0))
    mean = int(lengths.sum()) / max(len(lengths), 1)
    return bucket(max(most + tile - 1, round(tile * mean) + 1))


def covers(sizes: tuple[int, ...], needs: tuple[int, ...]) -> bool:
    """Return whether each of ``sizes`` is at least the entry of ``needs`` at the same position.

    Raises ValueError for tuples of different lengths.
    """
    return all(size >= need for size, need in zip(sizes, needs, strict=True))


def most_of(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the larger entry at each position of two tuples of one length."""
    return tuple(map(max, a, b))
