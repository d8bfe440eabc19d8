"""Outcomes: what the result of a launch was, without its values, for the next run of the same wiring.

Whether a result has a row for each node, whether its rows fit those that they meet, and whether
broadcasting could have mixed them follows from shapes, dtypes and devices alone. So a later run need only
compare what an op returns with what it has returned before, which is one comparison:

>>> import numpy as np
>>> from multifold._frameworks.numpy_backend import NumpyBackend
>>> from multifold._record.signature import Signature
>>> call, state = Signature("cell", (), None, {}), np.zeros((2, 3))
>>> outcome = Outcome.of(NumpyBackend(), call, [], (state, state), [])
>>> outcome.fits(NumpyBackend(), (state + 1, state)), outcome.fits(NumpyBackend(), (state, state[:1]))
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from multifold._record.signature import Signature
from multifold._run.values import CONTAINERS, Steps
from multifold._wiring.wiring import Reading
from multifold.backend import Backend


@dataclass(slots=True)
class Outcome:
    """What the result of a launch was, without its values.

    Attributes
    ----------
    kind : type
        The class of an array, or `tuple` for a flat tuple of arrays.
    form : tuple
        The number of rows of an array, and what its rows have in common; of a tuple those of each array.
    kinds : tuple of type
        The class of each array of a tuple.
    readings : sequence of (int or None, Reading)
        How it is read: the number of an array of the tuple, or None for a result that is an array.
    guarded : tuple of int
        The operands that the op must not write to, all of them arrays.
    """

    kind: type
    form: Any
    kinds: tuple[type, ...]
    readings: Sequence[tuple[int | None, Reading]]
    guarded: tuple[int, ...]

    @classmethod
    def of(
        cls,
        backend: Backend,
        signature: Signature,
        leaves: Sequence[Any],
        result: Any,
        readings: Sequence[tuple[Steps, Reading]],
    ) -> Outcome | None:
        """Return what is known after a launch that passed all checks; None where containers hold others.

        Parameters
        ----------
        backend : Backend
            What the arrays belong to.
        signature : Signature
            The signature of the calls of the launch.
        leaves, result
            What the op has received and returned.
        readings : sequence of (Steps, Reading)
            How the result is read, with the way to each part.
        """
        form: Callable[[Any], Any] = backend.rows_and_signature
        kind, guarded = type(result), signature.recorded
        if not all(backend.owns(leaves[i]) for i in guarded):
            return None
        if not isinstance(result, CONTAINERS):
            return cls(kind, form(result), (), [(None, reading) for _, reading in readings], guarded)
        if kind is not tuple or not all(map(backend.owns, result)):
            return None
        if any(len(steps) != 1 or type(steps[0][0]) is not int for steps, _ in readings):
            return None
        found = [(steps[0][0], reading) for steps, reading in readings]
        return cls(tuple, tuple(map(form, result)), tuple(map(type, result)), found, guarded)

    def fits(self, backend: Backend, result: Any) -> bool:
        """Return whether a result is like this one."""
        kind: type = type(result)
        if kind is not self.kind:
            return False
        try:
            if self.kind is not tuple:
                return bool(backend.rows_and_signature(result) == self.form)
            if tuple(map(type, result)) != self.kinds:
                return False
            return tuple(map(backend.rows_and_signature, result)) == self.form
        except (IndexError, TypeError):  # an array of 0 dimensions has no rows
            return False


class PastRun(NamedTuple):
    """What the results of a run were that came to its end, and divided no launch."""

    results: Mapping[int, Outcome | None]
    """The result of each launch by its number; None where each run has to look at it in full."""
    classes: Mapping[tuple[int, int], Hashable]
    """What the rows of each part had in common, by launch and part."""
    distinct: Collection[Hashable]
    """The distinct ones of these classes."""
