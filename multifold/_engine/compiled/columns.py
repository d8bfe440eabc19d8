"""Columns of integers as the loops of this package read and write them, whether these are compiled or not.

A module such as `_calls` is compiled by Cython where a C compiler is at hand, and runs as it is elsewhere.
It writes ``columns.opened(column)`` and indexes what it gets. Compiled, that is a view of the array (see
`columns.pxd`, which has each name of this module once more, as C). Otherwise it is a list, which a Python
loop reads faster than an array.

=========================  ========================  ==============================
name                       compiled                  as Python
=========================  ========================  ==============================
``Int``, ``Bool``          64 bits, which wrap       ``int``, ``bool``
``Read``, ``Write``        view of an int64 array    list of int
``RawRead``, ``Raw``       pointer to a column       the same list
``Flags``                  view of an array of bytes ``bytearray``, or a list
``opened(array)``          view of it                list of its integers
``zeros(n)``, ``room(n)``  view of a new array       new list
``part(x, a, b)``          ``x[a:b]``, not a copy    new list of zeros: for scratch memory
``closed(array, column)``  nothing                   writes the list into the array
=========================  ========================  ==============================

A function opens a column in one of four ways: `opened` to read it, `writable` to read it and write it in
place, `fresh` to fill a new array, and `copied` to fill a new array that begins as a copy of another one.
The functions at the end, such as ``sort_by``, are loops that Python has built in.

Integers of Python do not wrap, and a list takes ``-1`` for its last entry. So a loop compares what comes
from a file with both bounds by itself, before it adds it to anything or takes it for an index.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import pack_into
from typing import Any, TypeAlias, TypeVar

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK as CALL_MASK
from multifold._engine.compiled.arrays import PART_BITS as PART_BITS
from multifold._engine.compiled.arrays import Integers

T = TypeVar("T")

Int: TypeAlias = int
Bool: TypeAlias = bool
Read: TypeAlias = Any
Write: TypeAlias = Any
RawRead: TypeAlias = Any
Raw: TypeAlias = Any
Small: TypeAlias = Any
Flags: TypeAlias = Any

MOST_SMALL = 1 << 31
"""Sizes that are multiplied or packed stay below it."""

MOST_CODES = 1 << 62
"""Two integers that are packed into one stay below it, and so one more than that has 64 bits."""

MOST_TYPES = 32
"""Up to so many types have a table of all pairs of them. Compiled, it is 1,024: C walks it faster."""

MOST_PAIRS = 1 << 10
"""The largest table of all pairs of launches. Compiled, it is ``1 << 16``."""


class cython:  # noqa: N801 - in the place of Cython's module of this name, which is not there at run time
    """What tells Cython how to compile a function; Python ignores it."""

    @staticmethod
    def cfunc(function: T) -> T:
        """Mark a C function, which Python does not see; as Python, return it as it is."""
        return function

    @staticmethod
    def ccall(function: T) -> T:
        """Mark a C function that Python sees, too; as Python, return it as it is."""
        return function

    @staticmethod
    def declare(*_: Any, **__: Any) -> Any:
        """Say what a field is, and that Python sees it; as Python, return None."""

    @staticmethod
    def cast(_: Any, x: T) -> T:
        """Say of which type a value is; as Python, return it as it is."""
        return x

    @staticmethod
    def cclass(kind: T) -> T:
        """Mark an extension type, whose annotations are its fields; as Python, return it as it is."""
        return kind

    @staticmethod
    def final(kind: T) -> T:
        """Mark a class that none inherits from, so that its methods are called directly.

        Return it as it is.
        """
        return kind

    @staticmethod
    def inline(function: T) -> T:
        """Ask the C compiler to put the function in where it is called; as Python, return it as it is."""
        return function

    @staticmethod
    def boundscheck(_: bool) -> Callable[[T], T]:
        """Say whether each index is checked; as Python, return a decorator that changes nothing."""
        return lambda function: function

    @staticmethod
    def exceptval(*_: Any, **__: Any) -> Callable[[T], T]:
        """Say which value a C function returns where it raises.

        As Python, return a decorator that changes nothing.
        """
        return lambda function: function


def missing() -> None:
    """Raise the IndexError of a damaged column, which refers to what is not there."""
    raise IndexError("A column of calls refers to what is not there.")


def opened(column: Any) -> Any:
    """Return a column for reading: a list of the integers of an array, or the same list."""
    return column if type(column) is list else np.asarray(column).tolist()


def writable(column: Any) -> Any:
    """Return a column for reading and for writing in place; `closed` writes it into the array."""
    return opened(column)


def fresh(made: Integers) -> Any:
    """Return a column of zeros, as long as ``made``, a new array; `closed` writes it into the array."""
    return [0] * len(made)


def closed(made: Any, column: Any) -> None:
    """Write a column into ``made``, the array that it was made for."""
    pack_into(f"{len(column)}q", made, 0, *column)  # NumPy would look at each integer by itself


def array(size: int) -> Integers:
    """Return an int64 array of length ``size``, whose integers are arbitrary until they are written."""
    return np.empty(size, np.int64)


def array_of_zeros(size: int) -> Integers:
    """Return an int64 array of ``size`` zeros."""
    return np.zeros(size, np.int64)


def zeros(size: int) -> Any:
    """Return a column of ``size`` zeros."""
    return [0] * size


def filled(size: int, value: int) -> Any:
    """Return a column that has ``value`` at each of ``size`` positions."""
    return [value] * size


room = zeros
"""Return a column of that many integers, whose values are arbitrary until they are written."""


def flags(size: int) -> Any:
    """Return ``size`` flags, which are all 0."""
    return bytearray(size)


def marks(made: Any) -> Any:
    """Return a column of flags, all 0, as long as ``made``, a new array of bools.

    `marked` copies them there.
    """
    return [0] * len(made)


def marked(made: Any, column: Any) -> None:
    """Write flags into ``made``, the array of bools that they were made for."""
    made[:] = column


def all_marked(column: Any) -> bool:
    """Return whether no flag is 0."""
    return 0 not in column


def kept(column: Any) -> Any:
    """Return a column for several functions to pass to `opened`: as Python it becomes a list only once."""
    return opened(column)


def width(column: Any, most: int) -> int:
    """Return one more than the largest integer of a column, 0 for an empty one.

    Raises IndexError for an integer that is negative, or not below ``most``.
    """
    if not column:
        return 0
    largest: int = max(column)
    if min(column) < 0 or largest >= most:
        missing()
    return largest + 1


def raw_read(column: Any) -> Any:
    """Return a column for reading at positions that the caller has checked."""
    return column


raw = raw_read
"""Return a column for writing at places that the caller has checked."""


def lines_of(made: Any) -> Any:
    """Return an int64 array of two dimensions as one column of its rows, which shares its memory."""
    return memoryview(made).cast("B").cast("q")


def part(column: Any, low: int, high: int) -> Any:
    """Return the positions ``low`` to ``high - 1`` of scratch memory, to write before they are read.

    As Python it is a new list of zeros.
    """
    return [0] * (high - low)


small = zeros
"""Return a column of that many integers of 32 bits, arbitrary until they are written."""

small_part = part
"""Return a part of scratch memory that holds small integers."""


def copied(made: Integers, column: Any) -> Any:
    """Return a column with the integers of ``column``; `closed` writes it into the array ``made``."""
    return column.copy() if type(column) is list else column.tolist()


def fill(column: Any, low: int, high: int, value: int) -> None:
    """Write ``value`` to the positions ``low`` to ``high - 1``, which have to be in the column."""
    column[low:high] = [value] * (high - low)


def has(column: Any, low: int, high: int, value: int) -> bool:
    """Return whether ``value`` is at one of the positions ``low`` to ``high - 1``."""
    return value in column[low:high]


def sort(keys: Any, values: Any, scratch: Any, count: int) -> None:
    """Sort the first ``count`` pairs ``keys[i], values[i]`` stably by key, in place.

    ``scratch`` is room for twice as many integers, which only compiled code needs.
    """
    order = sorted(range(count), key=keys.__getitem__)
    keys[:count] = [keys[i] for i in order]
    values[:count] = [values[i] for i in order]


def sort_by(column: Any, low: int, count: int, key: Any, keys: Any, values: Any, scratch: Any) -> None:
    """Sort ``count`` integers of a column from ``low`` on, stably, each integer ``x`` by ``key[x]``.

    The last three columns are scratch memory, which only compiled code needs.
    """
    own = column[low : low + count]
    own.sort(key=key.__getitem__)
    column[low : low + count] = own


def order_by(keys: Any, order: Any, limit: int) -> None:
    """Write ``0 .. len(keys) - 1`` to ``order``, sorted stably by their keys, which are below ``limit``."""
    order[:] = sorted(range(len(keys)), key=keys.__getitem__)


def copy(column: Any, at: int, other: Any, begin: int, count: int) -> None:
    """Copy ``other[begin : begin + count]`` to ``column[at : at + count]``.

    Raises IndexError if ``other`` is shorter; the caller keeps the target inside of the column.
    """
    own = other[begin : begin + count]
    # A slice of a list is cut short without a word where the list ends, and -1 would count from its end.
    if begin < 0 or len(own) != count:
        missing()
    column[at : at + count] = own


def bit(number: int) -> int:
    """Return 2 to the power of ``number``, which is from 0 to 63."""
    return 1 << number


def highest_bit(word: int) -> int:
    """Return the position, from 0, of the highest bit that is set in ``word``, which is not 0."""
    return word.bit_length() - 1


def varies(column: Any, low: int, count: int) -> bool:
    """Return whether the ``count`` integers of a column from ``low`` on are not all equal."""
    return len(set(column[low : low + count])) > 1


def differs(column: Any, low: int, other: int, count: int) -> bool:
    """Return whether the ``count`` integers from ``low`` on differ from those from ``other`` on."""
    first: list[int] = column[low : low + count]
    second: list[int] = column[other : other + count]
    return first != second


def lowest(column: Any, count: int) -> int:
    """Return the lowest of the first ``count`` integers of a column."""
    return min(column[:count])


def highest(column: Any, count: int) -> int:
    """Return the highest of the first ``count`` integers of a column."""
    return max(column[:count])


def count_distinct(column: Any, count: int, stamp: Any, mark: int) -> int:
    """Return how many of the first ``count`` integers of a column are distinct.

    Compiled, ``stamp[x] = mark`` notes each integer ``x`` that was met; no stamp may be ``mark`` before.
    """
    return len(set(column[:count]))
