"""What the examples of a program keep beside its results: what `multifold.each` marks.

Most results have one form for all minibatches, so an executor puts them together itself. What is marked has
another form in each example, and may hold words beside rows. So a program computes only its rows: the rows
of all examples that lie in one slab are one group, and `Program.each`, outside of what is compiled, gives
each example its rows and everything else that it keeps.

Two sentences of two words and one word; of each the words and a row for each of them are marked:

>>> import multifold
>>> from multifold.program import run
>>> def lengths(fold, words):
...     return multifold.each((words, [fold.add("length", len(word)) for word in words]))
>>> traces = multifold.traces(lengths, [["a", "tree"], ["two"]])
>>> program = multifold.Fold(backend="numpy").program(traces)
>>> found = run({"length": lambda x: x}, program)
>>> found
[array([1, 4, 3])]
>>> program.each(found)
[(['a', 'tree'], array([1, 4])), (['two'], array([3]))]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.plan.each import holes
from multifold._engine.plan.outputs import Outputs, put_together
from multifold.errors import RecordError


class HolePlace(NamedTuple):
    """Where one hole finds its rows: ``[low:high]`` of an entry of its result, all if ``high`` is None."""

    entry: int
    low: int = 0
    high: int | None = None

    def cut(self, arrays: Sequence[Any]) -> Any:
        """Return a copy of this hole's rows of ``arrays[entry]``, an array or a structure of arrays.

        A hole is the place of a row, or of a group of rows, in what `multifold.each` marks. Raises
        `RecordError` if an array is too short.
        """
        return optree.tree_map(self.copied_rows, arrays[self.entry])

    def copied_rows(self, x: np.ndarray) -> np.ndarray:
        """Return a copy of ``x[low:high]``, or of all of ``x`` if ``high`` is None.

        Raises `RecordError` if ``x`` has fewer than ``high`` rows.
        """
        if self.high is None:
            return x.copy()
        if len(x) < self.high:
            raise not_of_this_program(f"an array of {len(x)} rows, of which it needs {self.high}")
        return x[self.low : self.high].copy()


@dataclass(frozen=True)
class ExampleParts:
    """What the examples of a program keep beside what is computed.

    Attributes
    ----------
    outputs : Outputs
        The structure of the results, and the forms that examples keep; without references.
    examples : int or None
        How many there are; None for outputs that are no results of examples.
    places : tuple of HolePlace
        Of each hole of the forms, one form after the other.
    """

    outputs: Outputs
    examples: int | None
    places: tuple[HolePlace, ...]

    def fill(self, result: Any) -> Any:
        """Put the parts that examples keep into ``result``, what an executor returned.

        Each result that `multifold.each` marks becomes a list with an entry for each example. Raises
        `RecordError` if the result has another structure, or too few rows.
        """
        try:
            leaves = self.outputs.structure.flatten_up_to(result)
        except (TypeError, ValueError) as error:
            raise not_of_this_program(f"another structure: {error}") from error
        forms = iter(self.outputs.kept)
        places = iter(self.places)
        values: list[Any] = []
        for leaf, one in zip(leaves, self.outputs.wanted, strict=True):
            if one == "each":
                # To the host at once: JAX would compile a slice for each pair of bounds.
                arrays = [optree.tree_map(np.asarray, rows) for rows in leaf]
                for _ in range(entries(self.examples)):
                    values += [next(places).cut(arrays) for _ in holes(next(forms))]
            elif one == "whole" and self.examples is not None:
                values += leaf
            else:
                values.append(leaf)
        return put_together(self.outputs, values, self.examples)


def not_of_this_program(what: str) -> RecordError:
    """Return, and don't raise, the error for results of another program; ``what`` says what came."""
    return RecordError(
        f"Expected the results of this program, as its executor returned them. Received {what}.",
        "call each() of the program that was run, before anything else is done to its results.",
    )


def entries(examples: int | None) -> int:
    """Return how many entries a marked result has: ``examples``, or 1 if that is None."""
    return 1 if examples is None else examples
