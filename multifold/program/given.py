"""Given rows: leaf arrays, and the numbers and arrays inside ragged operands and groups.

A slab holds them beside results, so that one column of integers tells what an operand reads, whatever it
is. While a program is laid out, references stand for both. A reference to a node is ``part << 40 | call``.
A given row gets a negative one, ``-1 - (given << 40 | row)``: row 2 of the array of given rows number 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from multifold._compiled.arrays import PART_BITS, Integers
from multifold._record.kinds import number_type
from multifold._run.values import as_dtype
from multifold.backend import Backend


class GivenRows:
    """The given rows of a program in the course of being laid out.

    Attributes
    ----------
    rows : dict of Hashable to list
        The values of each class: they become one array of the program.
    """

    def __init__(self, backend: Backend, loose: Sequence[Any]) -> None:
        self.backend = backend
        self.values = loose
        self.rows: dict[Hashable, list[Any]] = {}

    def add(self, key: Hashable, values: Sequence[Any]) -> Integers:
        """Keep values of one class, and return the references to them."""
        rows = self.rows.setdefault(key, [])
        first = len(rows)
        rows += values
        return -1 - (np.arange(first, len(rows)) | list(self.rows).index(key) << PART_BITS)

    def loose(self, refs: Integers) -> Integers:
        """Return references in which given rows stand for loose values.

        The graph refers to its i-th loose value by ``-1 - i``.
        """
        if not len(refs) or refs.min() >= 0:
            return refs
        refs = refs.copy()
        by_class: dict[Hashable, list[int]] = {}
        for entry in np.flatnonzero(refs < 0).tolist():
            by_class.setdefault(self.class_of(self.values[~refs[entry]]), []).append(entry)
        for key, entries in by_class.items():
            refs[entries] = self.add(key, [self.values[~ref] for ref in refs[entries].tolist()])
        return refs

    def class_of(self, value: Any) -> Hashable:
        """Return what the values of one array of given rows have in common."""
        # Numbers and NumPy arrays get classes of ours: the program holds them as NumPy arrays, whatever
        # backend will run it, and only a backend knows the class of an array of its own.
        number = number_type(value)
        if number is not None:
            return "number", (), number
        if isinstance(value, np.ndarray):
            return "numpy", value.shape[1:], value.dtype
        return self.backend.signature(value)

    def stacked(self) -> tuple[Any, ...]:
        """Return all given rows, the values of each class as one array."""
        return tuple(self.stack(key, values) for key, values in self.rows.items())

    def stack(self, key: Any, values: list[Any]) -> Any:
        """Return values of one class as one array."""
        if key[0] == "number":
            return self.numbers(np.array(values, key[2]), key[2])
        if key[0] == "numpy":
            return np.concatenate(values) if values else np.zeros((0, *key[1]), key[2])
        return self.backend.concat(values) if len(values) > 1 else values[0]

    def numbers(self, values: np.ndarray, number: type) -> np.ndarray:
        """Return numbers in the dtype that the backend gives to their type."""
        return as_dtype(values, self.backend.number_dtype(number))
