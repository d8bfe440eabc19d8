"""The results of a program: what an executor computes, and which of it makes each result.

A group of rows, or a node, is one array. A result that is wanted whole has one of any shape for each
example. What `multifold.each` marks is the list of the rows of all examples, one array for each slab that
they lie in, and of the values that are wanted whole; `multifold.program.kept` gives each example its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.plan.each import holes
from multifold._engine.plan.outputs import Outputs
from multifold.program.kept import ExampleParts, HolePlace, entries
from multifold.program.layout import ProgramGroup

Group = tuple[ProgramGroup, "np.ndarray | None"]
"""A group of the outputs, and its rows; None for a whole value."""


class ProgramResults(NamedTuple):
    """The results of a program.

    Attributes
    ----------
    groups : list of Group
        What an executor computes.
    leaves : list of int or tuple of int
        See `Form.leaves`.
    kept : ExampleParts
        What is put beside it afterwards.
    """

    groups: list[Group]
    leaves: list[int | tuple[int, ...]]
    kept: ExampleParts


def lay_results(asked: Outputs, examples: int | None, groups: Sequence[Group]) -> ProgramResults:
    """Choose the groups that an executor computes, and say which of them make each leaf of the results.

    Returns `ProgramResults`. What `multifold.each` marks gets the joined groups (`join`) of all examples, a
    value that traces return whole one group for each example, and anything else one group.

    Parameters
    ----------
    asked : Outputs
        What is asked for.
    examples : int or None
        Of how many traces the outputs are; None for outputs of a recorder.
    groups : sequence of Group
        Where the rows of each group of ``asked`` lie.
    """
    left = iter(groups)
    forms = iter(asked.kept)
    made: list[Group] = []
    leaves: list[int | tuple[int, ...]] = []
    places: list[HolePlace] = []
    for one in asked.wanted:
        first = len(made)
        count = entries(examples) if one in ("whole", "each") else 1
        if one == "each":
            own = [next(left) for _ in range(count) for _ in holes(next(forms))]
            joined, found = join(own)
            made += joined
            places += found
        else:
            made += [next(left) for _ in range(count)]
        # Such a leaf is the list of its groups, however many there are; any other is one group.
        listed = one == "each" or (one == "whole" and examples is not None)
        leaves.append(tuple(range(first, len(made))) if listed else first)
    bare = Outputs(asked.structure, wanted=asked.wanted, kept=asked.kept)
    return ProgramResults(made, leaves, ExampleParts(bare, examples, tuple(places)))


def result_readers(asked: Outputs, examples: int | None) -> list[tuple[Any, ...] | None]:
    """Return a `Key` for each group of ``asked``, in order, which is equal in the programs of all shards.

    It is ``("group", structure, number of the result)``. It is None for a group of a result in which each
    example has an entry of its own: one that is wanted whole, or that `multifold.each` marks.
    """
    forms = iter(asked.kept)
    readers: list[tuple[Any, ...] | None] = []
    for number, one in enumerate(asked.wanted):
        if one in ("row", "group"):
            readers.append(("group", asked.structure, number))
        else:
            counts = [len(holes(next(forms))) if one == "each" else 1 for _ in range(entries(examples))]
            readers += [None] * sum(counts)
    return readers


def join(groups: Sequence[Group]) -> tuple[list[Group], list[HolePlace]]:
    """Put rows of groups that lie in one slab together; return the new groups, and where each old one is.

    First comes one group for each slab, in the order of their numbers, with the rows of its groups one
    after the other; then each whole value by itself, whose place has no ``high``.
    """
    slabs = sorted({group.slab for group, rows in groups if rows is not None})
    rows_of: list[list[np.ndarray]] = [[] for _ in slabs]
    done = [0] * len(slabs)
    places: list[HolePlace] = []
    wholes: list[Group] = []
    for group, rows in groups:
        if rows is None:
            places.append(HolePlace(len(slabs) + len(wholes)))
            wholes.append((group, rows))
            continue
        entry = slabs.index(group.slab)
        places.append(HolePlace(entry, done[entry], done[entry] + len(rows)))
        rows_of[entry].append(rows)
        done[entry] += len(rows)
    joined = zip(slabs, rows_of, strict=True)
    return [*((ProgramGroup(slab), np.concatenate(rows)) for slab, rows in joined), *wholes], places
