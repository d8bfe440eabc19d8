"""What examples returned, put together: a row, a group's rows or a whole value of each, in their order.

The same rules as for traces: all examples return one structure; a node becomes an array with a row for
each example, a group all examples' rows in order, a `Node.no_batch` a list of whole values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optree

from multifold._run.values import groups_differ
from multifold._schedule.columns import Integers
from multifold._schedule.outputs import Outputs, refuse_no_rows, said, take_apart
from multifold.errors import MultifoldError, RecordError


@dataclass
class Results:
    """The results of some examples, taken apart.

    Attributes
    ----------
    structure : PyTreeSpec or None
        What each example returned; None if there are no examples.
    whole : tuple of bool
        Which leaves are wanted whole.
    asked : Outputs
        What has to be computed: a group for each leaf, or one for each example and whole leaf.
    examples : int
        The number of examples.
    """

    structure: Any = None
    whole: tuple[bool, ...] = ()
    asked: Outputs = field(default_factory=Outputs)
    examples: int = 0

    def put_together(self, values: Sequence[Any]) -> Any:
        """Return the structure with the values of the groups; None if there are no examples."""
        if not self.examples:
            return None
        entries = iter(values)
        leaves = [
            [next(entries) for _ in range(self.examples)] if whole else next(entries)
            for whole in self.whole
        ]
        return optree.tree_unflatten(self.structure, leaves)


def take_apart_one(recorder: Any, example: int, result: Any, first_loose: int) -> Outputs:
    """Return what one example returned as references; say which example it was if that fails."""
    try:
        return take_apart(recorder, recorder._graph, result, first_loose, fewest=0)
    except RecordError as error:
        error.add_note(f"Returned by example {example} of fold.run.")
        raise


def refuse_other(first: int, model: Outputs, example: int, other: Outputs) -> None:
    """Refuse what an example returned if it has another structure than what the first one did."""
    if other.structure != model.structure or other.kinds != model.kinds:
        raise RecordError(
            "Expected all examples of a run to return one structure. Received "
            f"{said(model.structure, model.kinds)} from example {first} and "
            f"{said(other.structure, other.kinds)} from example {example}.",
            "return the same tuple, list or dict of nodes and groups from every branch.",
        )


Refuse = Callable[[int, Outputs, int, Outputs], None]
"""Refuses what an example returned, beside what the first one did."""


def refuser_of_rows(classes_of: Callable[[Integers], list[Any]]) -> Refuse:
    """Return what refuses rows that can't be put together with those of the examples before.

    ``classes_of`` says what the rows behind some references must have in common.
    """
    known: dict[int, Any] = {}  # by the number of the group

    def refuse(first: int, model: Outputs, example: int, other: Outputs) -> None:
        found = {}
        for place, rows in enumerate(other.groups):
            if isinstance(rows, int) or not len(rows):
                continue
            classes = [known[place]] if place in known else []
            classes = [*dict.fromkeys([*classes, *classes_of(rows)])]
            if len(classes) > 1:
                raise groups_differ(classes)
            found[place] = classes[0]
        known.update(found)

    return refuse


def without_others(
    taken: Mapping[int, Outputs], refuse: Refuse, fail: Callable[[int, Exception], None]
) -> dict[int, Outputs]:
    """Return what examples returned, without those that do not fit to the others: they fail."""
    kept: dict[int, Outputs] = {}
    for example, outputs in taken.items():
        first = next(iter(kept), example)
        try:
            refuse(first, taken[first], example, outputs)
        except MultifoldError as error:
            fail(example, error)
        else:
            kept[example] = outputs
    return kept


def merge_results(outputs: Mapping[int, Outputs]) -> Results:
    """Return the outputs of all examples as those of one minibatch.

    Raises
    ------
    RecordError
        If two examples returned different structures.
    """
    if not outputs:
        return Results()
    first, model = next(iter(outputs.items()))
    for example, other in outputs.items():
        refuse_other(first, model, example, other)
    whole = tuple(kind == "whole" for kind in model.kinds)
    asked = Outputs(structure=model.structure)
    for leaf, is_whole in enumerate(whole):
        groups = [output.groups[leaf] for output in outputs.values()]
        if is_whole:
            asked.groups += groups
            continue
        rows = np.concatenate(groups)
        if not len(rows):
            refuse_no_rows()
        asked.groups.append(rows)
    for output in outputs.values():
        asked.loose += output.loose
    return Results(model.structure, whole, asked, len(outputs))
