"""Pending arrays of frameworks that let any class stand for one: what they answer, by form or by value."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multifold.lazy.current import recording_of


def with_reads(x: Any) -> Any:
    """Return arguments, nested in tuples, lists and dicts, with values in the place of pending arrays.

    The example waits for these values. It waits in Python code alone: a function of C++ that calls back
    into Python, as that of optree, does not bear that another stack goes on meanwhile.
    """
    recorder = recording_of().recorder
    if type(x) is recorder.pending:
        return recorder.read(x)
    if type(x) in (tuple, list):
        return type(x)([with_reads(part) for part in x])
    if type(x) is dict:
        return {name: with_reads(part) for name, part in x.items()}
    if type(x) is slice:
        return slice(*[None if end is None else operator.index(end) for end in (x.start, x.stop, x.step)])
    return x


METHODS = """
    all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten max mean min
    prod ravel repeat reshape round squeeze std sum swapaxes take trace transpose var
"""
"""Methods of arrays that are recorded, in NumPy and in JAX."""


@functools.cache
def method(kind: type, name: str) -> Callable[..., Any]:
    """Return a function ``call(x, ...)`` that calls ``x.name(...)``: the same object each time for a name.

    It takes its ``__name__`` from the class ``kind``. ``x`` may be a number of NumPy in the place of an
    array.
    """

    @functools.wraps(getattr(kind, name), assigned=("__name__",))
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    return call


class PendingNumbers:
    """A pending array: its shape is known, and its value is computed where the program needs it.

    Pending means not computed yet. A subclass has a ``form`` with shape and dtype, and is the class of
    pending values of a `LazyRecorder`. ``bool(x)``, ``float(x)``, ``np.asarray(x)`` and the like make the
    example wait for the value.
    """

    __slots__ = ()

    form: Any

    def _read(self) -> Any:
        """Wait until the value is computed, while other examples go on; return it, as it is on the host."""
        return recording_of().recorder.read(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that it stands for, a tuple of int; known without computing it."""
        shape: tuple[int, ...] = self.form.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The dtype of the array that it stands for; known without computing it."""
        return self.form.dtype

    @property
    def ndim(self) -> int:
        """The number of axes: ``len(shape)``."""
        return len(self.form.shape)

    @property
    def size(self) -> int:
        """The number of entries: the product of the shape, 1 without axes."""
        return math.prod(self.form.shape)

    def __len__(self) -> int:
        if not self.form.shape:
            raise TypeError("len() of unsized object")
        return int(self.form.shape[0])

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __bool__(self) -> bool:
        return bool(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __index__(self) -> int:
        return operator.index(self._read())

    def __complex__(self) -> complex:
        return complex(self._read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._read(), dtype)

    def __format__(self, spec: str) -> str:
        return format(self._read(), spec)

    __hash__ = object.__hash__
