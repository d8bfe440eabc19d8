"""Outcomes: what the result of a launch was, without its values, for later launches of the same kind.

Whether a result has a row for each node, whether its rows fit those that they meet, and whether
broadcasting could have mixed them follows from shapes, dtypes and devices alone. So a later launch of the
same signature on rows of the same classes need only compare what its op returns with what an earlier one
has returned, but for the number of rows. That is one comparison an array:

>>> import numpy as np
>>> from multifold._frameworks.numpy_backend import NumpyBackend
>>> state = np.zeros((2, 3))
>>> outcome = Outcome.of(NumpyBackend(), (state, state))
>>> outcome.fits(NumpyBackend(), (state + 1, state), 2), outcome.fits(NumpyBackend(), (state, state[:1]), 2)
(True, False)

An outcome says nothing of the op and the model: another model may run next, and is held to the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import optree

from multifold._record.signature import Signature
from multifold._run.trial import may_meet, shapes_of, trailing
from multifold._run.values import CONTAINERS, Steps
from multifold.backend import Backend

NOWHERE: frozenset[int] = frozenset()
"""The sizes of a launch whose rows no broadcasting can mix."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the result of a launch was, without its values and the number of its rows.

    Attributes
    ----------
    kind : type
        The class of an array, or `tuple` for a flat tuple of arrays.
    kinds : tuple of type
        The class of each array; none where the result is another container, and nothing fits it.
    forms : tuple of Hashable
        What the rows of each array have in common.
    form : Hashable
        What the rows of the whole result have in common, as `Values.class_of` says it.
    sizes : frozenset of int
        The trailing sizes with which broadcasting may mix rows: where a launch has as many rows, or a one
        is among them (`Launcher.suspects`). Empty where no array of shape ``(n,)`` meets another one.
    """

    kind: type
    kinds: tuple[type, ...]
    forms: tuple[Hashable, ...]
    form: Hashable
    sizes: frozenset[int]

    @classmethod
    def of(cls, backend: Backend, result: Any, sizes: frozenset[int] = NOWHERE) -> Outcome:
        """Return what is known after a launch that passed all checks."""
        if not isinstance(result, CONTAINERS):
            form = backend.signature(result)
            return cls(type(result), (type(result),), (form,), form, sizes)
        if type(result) is not tuple or not all(map(backend.owns, result)):
            return cls(type(result), (), (), None, sizes)
        forms = tuple(map(backend.signature, result))
        form = (optree.tree_structure(result), *forms)
        return cls(tuple, tuple(map(type, result)), forms, form, sizes)

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

    def read(self, result: Any, part: int, steps_to: Callable[[int], Steps]) -> tuple[Any, Hashable] | None:
        """Return a part of a result that fits, and what its rows have in common.

        None if it is neither the whole result nor one of its arrays.
        """
        if not self.kinds:
            return None
        if not part:
            return result, self.form
        if self.kind is not tuple:
            return None
        steps = steps_to(part)
        if len(steps) != 1:
            return None
        key, length = steps[0]
        count = len(self.kinds)
        if type(key) is not int or not 0 <= key < count or length not in (None, count):
            return None
        return result[key], self.forms[key]


def sizes_of(leaves: Sequence[Any], result: Any) -> frozenset[int]:
    """Return the trailing sizes of batched operands and of the result, where broadcasting may mix rows."""
    return frozenset(trailing(shapes_of(leaves), result)) if may_meet(leaves) else NOWHERE


class Outcomes:
    """What launches have shown, by signature and classes of rows; forgotten with the signature."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Signature, dict[Hashable, Outcome]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Outcomes], tuple[()]]:
        """Let a copy, and what is pickled, begin without any."""
        return Outcomes, ()

    def of(self, signature: Signature) -> dict[Hashable, Outcome]:
        """Return what launches of a signature have shown, by the classes of their rows."""
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = {}
        return found
