"""What examples returned, put together: a row, a group's rows or a whole value of each, in their order.

The rules are those for traces: all examples return one structure; a node becomes an array with a row for
each example, a group all examples' rows in order, a `Node.no_batch` a list of whole values. Where failures
are collected, an example whose result does not fit to the others fails, and the others are put together
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.values import groups_differ
from multifold._engine.plan.each import Hole, RowsOfEach
from multifold._engine.plan.outputs import ONE, Outputs, refuse_no_rows, structure_text, take_apart
from multifold._engine.rounds.tasks import Tasks, add_note
from multifold.errors import MultifoldError, RecordError
from multifold.operands import Each

Compute = Callable[[dict[int, Outputs]], None]
"""Computes what the results of some examples need; fails the examples for which that fails."""

Classes = Callable[[Integers, list[Any]], list[Any]]
"""Returns what the rows of some references must have in common, given all loose values of the run."""


Agreed = Callable[[Collection[Hashable]], Hashable | None]
"""Returns the class of rows of several classes when they are put together; None if they can't be."""


def merged_results(
    recorder: Any, tasks: Tasks, compute: Compute, classes_of: Classes, agreed: Agreed
) -> Outputs | None:
    """Take apart what each finished example returned, and put all of it together as one `Outputs`.

    Raises `RecordError` if an example returned another structure than the first. If ``tasks.collect`` is
    set, it fails instead (`Tasks.fail`), and so does one whose rows do not fit to those before.

    Parameters
    ----------
    recorder : Fold or Unfold
        What the examples recorded on.
    tasks : Tasks
        The examples, with what each returned.
    compute : callable
        Takes a dictionary, example -> its outputs, and computes these; called only if ``tasks.collect``.
    classes_of : callable
        Takes references that ``compute`` has computed, and all loose values; returns the classes of their
        rows (`Values.class_of`).
    agreed : callable
        Takes such classes; returns that of the rows joined, or None if they can't be.

    Returns
    -------
    Outputs or None
        A group for each result, but one for each example and result that is wanted whole; None if there
        are no examples.
    """
    graph = recorder._graph
    found = tasks.results
    if not tasks.collect:  # nearly always each example has returned a row, or some rows of its own
        results = [found[example] for example in sorted(found)]
        refs = compiled.rows_of(results, graph)
        if results and refs is not None:
            return Outputs(ONE, [refs], wanted=["row"])
        own = kept_rows(results, graph)
        if own and isinstance(results[0], RowsOfEach) and results[0].are_joined:
            columns = [np.array([x._ref for x in rows], np.int64) for rows in zip(*own, strict=True)]
            structure = optree.tree_structure((0,) * len(columns))
            return Outputs(structure, [*columns], [], ["row"] * len(columns))
        if own is not None:
            groups: list[Integers | int] = [np.array([x._ref], np.int64) for rows in own for x in rows]
            return Outputs(ONE, groups, [], ["each"], [(ROW,) * len(rows) for rows in own])
    taken: dict[int, Outputs] = {}
    loose = list(graph.loose)
    for example, result in sorted(tasks.results.items()):
        try:
            outputs = take_apart(recorder, result, len(loose), fewest=0)
            first, model = next(iter(taken.items()), (example, outputs))
            refuse_other(first, model, example, outputs)
        except Exception as error:
            add_note(error, f"Returned by example {example} of fold.run.")
            if not tasks.collect:
                raise
            tasks.fail(example, error)
        else:
            taken[example] = outputs
            loose += outputs.loose
    if tasks.collect:
        compute(taken)
        fail_misfits(taken, lambda refs: classes_of(refs, loose), agreed, tasks)
        taken = {example: outputs for example, outputs in taken.items() if example not in tasks.failures}
    return merge(taken, loose[len(graph.loose) :]) if taken else None


def kept_rows(results: Sequence[Any], graph: Any) -> list[tuple[Any, ...]] | None:
    """Return the nodes of each result that is ``each((node, node))``; None unless all results are so."""
    if not results or not all(isinstance(result, Each) for result in results):
        return None
    try:
        found = [result.value for result in results]
    except RecordError:  # which is raised again where the example is known
        return None
    are_rows = all(type(rows) is tuple and compiled.rows_of(rows, graph) is not None for rows in found)
    return found if are_rows else None


ROW = Hole(1, whole=False)
"""The place of a node in a result that keeps its example."""


def refuse_other(first: int, model: Outputs, example: int, other: Outputs) -> None:
    """Raise `RecordError` if an example returned another structure than the first one did.

    ``model`` is what example ``first`` returned, and ``other`` what ``example`` did. They must be equal in
    nesting, and in what is wanted of each place: a row, a group or a whole value (`Outputs.wanted`).
    """
    if other.structure != model.structure or other.wanted != model.wanted:
        raise RecordError(
            "Expected all examples of a run to return one structure. Received "
            f"{structure_text(model.structure, model.wanted)} from example {first} and "
            f"{structure_text(other.structure, other.wanted)} from example {example}.",
            "return the same tuple, list or dict of nodes and groups from every branch.",
        )


def fail_misfits(
    taken: Mapping[int, Outputs],
    classes_of: Callable[[Integers], list[Any]],
    agreed: Agreed,
    tasks: Tasks,
) -> None:
    """Call `Tasks.fail` for each example whose rows can't be put together with those of earlier examples.

    ``taken`` maps the number of an example to its outputs. The rows of a group must be of classes (trailing
    shapes, dtypes and devices) that ``agreed`` brings to one. Examples without rows in a group say nothing
    of it, nor do those that fail, here or before. What `multifold.each` keeps apart is compared in itself
    only.
    """
    known: dict[int, Any] = {}  # by the number of the group
    for example, outputs in taken.items():
        if example in tasks.failures:
            continue
        found = dict(known)
        try:
            pairs = enumerate(zip(outputs.wanted, outputs.by_result(), strict=True))
            for number, rows, keeps in [(i, x, one == "each") for i, (one, xs) in pairs for x in xs]:
                if isinstance(rows, int) or not len(rows):
                    continue
                classes = dict.fromkeys([None if keeps else found.get(number), *classes_of(rows)])
                classes.pop(None, None)  # no example before has a row in this group
                found[number] = agreed(classes)
                if found[number] is None:
                    raise groups_differ(classes)
        except MultifoldError as error:
            tasks.fail(example, error)
        else:
            known = found  # only now: an example that fails says nothing about the others


def merge(taken: Mapping[int, Outputs], loose: list[Any]) -> Outputs:
    """Join the outputs of all examples, in their order, as the outputs of one minibatch.

    ``taken`` maps the number of an example to its outputs, and is not empty. ``loose`` holds the loose
    values (numbers and arrays in groups) of all of them, and of any that failed after they were counted.
    """
    model = next(iter(taken.values()))
    groups: list[Integers | int] = []
    by_result = [outputs.by_result() for outputs in taken.values()]
    for leaf, wanted in enumerate(model.wanted):
        mine = [group for found in by_result for group in found[leaf]]
        if wanted in ("whole", "each"):
            groups += mine
            continue
        rows = np.concatenate(mine)
        if not len(rows):
            refuse_no_rows(model.structure, leaf)
        groups.append(rows)
    kept = [
        form for forms in zip(*[outputs.kept for outputs in taken.values()], strict=True) for form in forms
    ]
    return Outputs(model.structure, groups, loose, model.wanted, kept)
