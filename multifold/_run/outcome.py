"""Outcomes: what the result of a launch was, without its values, for later launches of the same kind.

Whether a result has a row for each node, whether its rows fit those that they meet, and whether
broadcasting could have mixed them follows from shapes, dtypes and devices alone. So a later launch of the
same signature on rows of the same classes need only compare what its op returns with what an earlier one
has returned, but for the number of rows. That is one comparison an array:

>>> import numpy as np
>>> from multifold._frameworks.numpy_backend import NumpyBackend
>>> state = np.zeros((2, 3))
>>> outcome = Outcome.of(NumpyBackend(), (state, state), [])
>>> outcome.fits(NumpyBackend(), (state + 1, state), 2), outcome.fits(NumpyBackend(), (state, state[:1]), 2)
(True, False)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from multifold._record.graph import Part
from multifold._run.values import CONTAINERS, steps_to
from multifold._wiring.wiring import Reading
from multifold.backend import Backend


@dataclass(slots=True)
class Outcome:
    """What the result of a launch was, without its values and the number of its rows.

    Attributes
    ----------
    kind : type
        The class of an array, or `tuple` for a flat tuple of arrays.
    kinds : tuple of type
        The class of each array.
    forms : tuple of Hashable
        What the rows of each array have in common.
    at : dict of int to int
        Which of the arrays a part is.
    """

    kind: type
    kinds: tuple[type, ...]
    forms: tuple[Hashable, ...]
    at: Mapping[int, int]

    @classmethod
    def of(cls, backend: Backend, result: Any, parts: Sequence[Part]) -> Outcome | None:
        """Return what is known after a launch that passed all checks; None where containers hold others.

        ``parts`` are the parts of results that calls read.
        """
        if not isinstance(result, CONTAINERS):
            return cls(type(result), (type(result),), (backend.signature(result),), {0: 0})
        if type(result) is not tuple or not all(map(backend.owns, result)):
            return None
        at = {}
        for number in range(1, len(parts)):
            (key, length), *rest = steps_to(parts, number)
            if not rest and type(key) is int and 0 <= key < len(result) and length in (None, len(result)):
                at[number] = key
        return cls(tuple, tuple(map(type, result)), tuple(map(backend.signature, result)), at)

    def fits(self, backend: Backend, result: Any, rows: int) -> bool:
        """Return whether a result is like this one, with so many rows."""
        if type(result) is not self.kind:
            return False
        arrays: Any = result if self.kind is tuple else (result,)
        if tuple(map(type, arrays)) != self.kinds:
            return False
        try:
            return backend.are_like(arrays, rows, self.forms)
        except (IndexError, TypeError):  # an array of 0 dimensions has no rows
            return False

    def has(self, readings: Sequence[Reading]) -> bool:
        """Return whether all that is read of a result is one of its arrays."""
        for reading in readings:  # noqa: SIM110 - all() with a generator takes three times as long
            if reading.part not in self.at:
                return False
        return True


@dataclass(slots=True)
class Met:
    """What launches have shown so far, by their class (`Executor.classes`); rounds share it.

    Attributes
    ----------
    apart : set of Hashable
        The classes of launches whose rows no broadcasting can mix, whatever their op returns: among their
        operands, no array of shape ``(n,)`` meets another one.
    sizes : dict of Hashable to set of int
        The trailing dimensions for which other launches may be ambiguous; see `trial.verify`.
    outcomes : dict of Hashable to Outcome or None
        What the result was; None after the first launch of a class, since most have none like them.
    """

    apart: set[Hashable] = field(default_factory=set)
    sizes: dict[Hashable, set[int]] = field(default_factory=dict)
    outcomes: dict[Hashable, Outcome | None] = field(default_factory=dict)


class PastRun(NamedTuple):
    """What the results of a run were that came to its end, and divided no launch."""

    results: Mapping[int, Outcome | None]
    """The result of each launch by its number; None where each run has to look at it in full."""
    classes: Mapping[tuple[int, int], Hashable]
    """What the rows of each part had in common, by launch and part."""
    distinct: Collection[Hashable]
    """The distinct ones of these classes."""
