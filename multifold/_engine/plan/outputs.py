"""The outputs of a run: nodes, groups of rows, and the structure around them.

Outputs are taken apart before a run: each node, or group of nodes, numbers and arrays, becomes a list of
references, as an operand is. The structure is kept, and the results are put back into it.

Examples
--------
A dictionary of a group and a node has two results. The group has the rows of calls 0 and 1 and the loose
number 7, which is written as -1:

>>> from multifold import Fold
>>> fold = Fold(backend="numpy")
>>> nodes = [fold.add("leaf", i) for i in range(3)]
>>> asked = take_apart(fold, {"x": [*nodes[:2], 7], "y": nodes[2]}, first_loose=0)
>>> [group.tolist() for group in asked.groups], asked.loose, asked.wanted
([[0, 1, -1], [2]], [7], ['group', 'row'])
>>> put_together(asked, ["result 0", "result 1"])
{'x': 'result 0', 'y': 'result 1'}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.plan.columns import NO_INTEGERS
from multifold._engine.plan.each import filled, form_of, holes
from multifold._engine.record.anatomy import refuse_awaitable
from multifold._engine.record.freezing import refuse_itself
from multifold._engine.record.kinds import number_type
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.record.recorder import Recorder
from multifold.errors import RecordError, type_of
from multifold.operands import Each

ONE = optree.tree_structure(0, none_is_leaf=True)
"""The structure of outputs that are one result."""


@dataclass
class Outputs:
    """What a caller asked for: each result as references, and the structure into which the values go.

    Attributes
    ----------
    structure : PyTreeSpec
        Where the results go.
    groups : list of int64 array or int
        For each result the references of its rows (``-1 - i`` for loose value ``i``), or the one
        reference of a value that is wanted whole.
    loose : list
        Numbers and arrays inside the groups.
    wanted : list of str
        ``"row"``, ``"group"``, ``"whole"`` or ``"each"`` for each result: one row, a list of them, a value
        that is wanted whole, or one that keeps its example, which has any number of groups.
    kept : list
        The forms of the results that keep their example, one result after the other; see `form_of`.
    """

    structure: Any = None
    groups: list[Integers | int] = field(default_factory=list)
    loose: list[Any] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def by_result(self) -> list[list[Integers | int]]:
        """Return a list of groups for each result, in order: one, or several where ``wanted`` is "each".

        There it has one for each node and each list of nodes in what `multifold.each` marks.
        """
        left = iter(self.groups)
        kept = iter(self.kept)
        counts = [len(holes(next(kept))) if one == "each" else 1 for one in self.wanted]
        return [[next(left) for _ in range(count)] for count in counts]

    @property
    def batched(self) -> list[Integers]:
        """The ``groups`` that are arrays of references, in order; values wanted whole are left out."""
        return [group for group in self.groups if not isinstance(group, int)]

    @property
    def whole_calls(self) -> Integers:
        """The calls whose results are wanted whole: int64, in the order of the groups."""
        found = [group & CALL_MASK for group in self.groups if isinstance(group, int)]
        return np.array(found, np.int64) if found else NO_INTEGERS

    @property
    def sources(self) -> Integers:
        """The call that each row of the results is read from: int64, without loose values.

        Rows of the groups come first, in their order, then the calls that are wanted whole.
        """
        # Negative references are loose values, which no call has computed.
        refs = np.concatenate([*self.batched, self.whole_calls])
        return refs[refs >= 0] & CALL_MASK

    @property
    def calls(self) -> Integers:
        """The distinct calls that the results are read from, ascending: int64."""
        return compiled.distinct(self.sources)[0]


NESTED = frozenset({list, tuple, dict})
"""Types of which a structure of outputs is made: none of these is a result itself."""


class _Group:
    """One result, a leaf of the structure of outputs: its rows, and its word in `Outputs.wanted`."""

    __slots__ = ("rows", "wanted")

    def __init__(self, wanted: str, rows: list[Any]) -> None:
        self.wanted = wanted
        # For ``"each"`` these are the groups of its form, and last the form itself.
        self.rows = rows


def is_result(recorder: Recorder, x: Any) -> bool:
    """Return whether ``x`` can be a row of a group: a node, a number or an array of one row.

    It is False for anything else, lists and other containers too.

    Raises
    ------
    RecordError
        For an array of another number of rows.
    """
    if isinstance(x, Node):
        return True
    if type(x) in NESTED:
        return False
    try:
        return number_type(x) is not None or recorder.array_class(x) is not None
    except RecordError as error:
        raise RecordError(
            f"Expected nodes, numbers and arrays of one row among the outputs. {error.message}",
            "what is an array already, as labels may be, need not pass through the fold: leave it out, or "
            "ask for a list of its numbers, as in labels.tolist().",
        ) from error


def take_apart(recorder: Recorder, outputs: Any, first_loose: int, *, fewest: int = 1) -> Outputs:
    """Return what is asked for as `Outputs`; its first loose value is reference ``-1 - first_loose``.

    ``outputs`` is what `Fold.apply` takes. Nothing asked for, as ``[]`` or ``{}``, has no groups.

    Raises
    ------
    RecordError
        For a group of less than ``fewest`` rows, a node of another fold, a leaf that is neither node,
        number, array nor marked by `multifold.each`, or outputs that contain themselves.
    """
    # In a trace, where ``fewest`` is 0, an empty list is a group: the other examples may have rows for it.
    if isinstance(outputs, (list, tuple, dict) if fewest else (tuple, dict)) and not outputs:
        return Outputs(structure=optree.tree_structure(outputs, none_is_leaf=True))

    groups: list[Any]
    try:
        marked = _mark(recorder, outputs, fewest)
        if type(marked) is _Group:  # one result, as most functions of examples return
            groups, structure = [marked], ONE
        else:
            groups, structure = optree.tree_flatten(marked, none_is_leaf=True)
    except RecursionError:
        refuse_itself(outputs, "the outputs")
        raise
    result = Outputs(structure=structure)
    graph = recorder._graph
    for group in groups:
        if group.wanted == "each":
            *rows, form = group.rows
            result.kept.append(form)
            refs_of = [[recorder._reference(node) for node in nodes] for nodes in rows]
            pairs = zip(refs_of, holes(form), strict=True)
            result.groups.extend(refs[0] if x.whole else np.array(refs, np.int64) for refs, x in pairs)
            result.wanted.append("each")
            continue
        if len(group.rows) == 1 and isinstance(group.rows[0], SharedNode):
            result.groups.append(recorder._reference(group.rows[0]))
            result.wanted.append("whole")
            continue
        refs = []
        for row in group.rows:
            if isinstance(row, Node):
                # Most rows are nodes of this graph, and need no call of `_reference`.
                refs.append(row._ref if row._graph is graph else recorder._reference(row))
            else:
                # `_number` refuses an int of more than 64 bits; its answer is not used.
                recorder._number(row)
                result.loose.append(row)
                refs.append(-first_loose - len(result.loose))
        result.groups.append(np.array(refs, np.int64))
        result.wanted.append(group.wanted)
    return result


def _mark(recorder: Recorder, x: Any, fewest: int) -> Any:
    """Return outputs with a `_Group` in the place of each result; raise for what `take_apart` refuses.

    A list of nodes, numbers and arrays of one row is a "group"; but if one of them is a `SharedNode`, it
    stays a list, with a result for each. Any other list nests. This function stands in the module, not in
    `take_apart`: there it would refer to itself, and the cycle would keep the fold alive until Python's
    garbage collector finds it.
    """
    if isinstance(x, list):
        if len(x) < fewest:
            raise RecordError(
                "Expected at least one row in each group of the outputs. Received an empty list.",
                "leave the group out when there is nothing to ask for.",
            )
        kinds = set(map(type, x))
        # A group of nodes only, as nearly all are, need not be looked at row by row.
        if kinds == {recorder._graph.node_type}:
            return _Group("group", x)
        if NESTED.isdisjoint(kinds) and all(is_result(recorder, row) for row in x):
            # A whole result has any number of rows. It would not be clear whose rows a common array holds,
            # so each has an array of its own.
            if any(isinstance(row, SharedNode) for row in x):
                return [_Group("row", [row]) for row in x]
            return _Group("group", x)
        return [_mark(recorder, item, fewest) for item in x]
    if isinstance(x, tuple):
        items = [_mark(recorder, item, fewest) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    if isinstance(x, dict):
        mapping = OrderedDict if isinstance(x, OrderedDict) else dict
        return mapping((key, _mark(recorder, item, fewest)) for key, item in x.items())
    if isinstance(x, Each):
        rows: list[Any] = []
        try:
            form = form_of(x.value, rows)
        except RecursionError:
            refuse_itself(x.value, "the outputs")
            raise
        return _Group("each", [*rows, form])
    if is_result(recorder, x):
        return _Group("row", [x])
    refuse_awaitable(x)
    raise RecordError(
        "Expected the outputs to be nodes, groups (lists of nodes, numbers or arrays) or lists, "
        f"tuples and dicts of those. Received {type_of(x)} among them.",
        f"{'' if x is not None else 'is a `return` missing? Else '}mark what is no result of the fold by "
        "multifold.each(...), or leave it out. Examples come with their function: (model, examples, fn).",
    )


def structure_text(structure: Any, wanted: Sequence[str]) -> str:
    """Return a structure for a message, with a word for each leaf: ``{'x': a group, 'y': a row}``."""
    return str(optree.tree_unflatten(structure, [Bare(f"a {one}") for one in wanted]))


class Bare(str):
    """A string whose ``repr`` has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def refuse_no_rows(structure: Any, leaf: int) -> NoReturn:
    """Raise `RecordError` for result number ``leaf``: a group for which no example has a row."""
    name = "".join([f"[{key!r}]" for key in structure.paths()[leaf]])
    raise RecordError(
        "Expected at least one row in each group of the results. "
        f"Received none from any example for results{name}.",
        "leave the group out of what the examples return, or mark it with multifold.each(...): then each "
        "example has a list of its own, which may be empty.",
    )


def put_together(outputs: Outputs, values: Iterable[Any], examples: int | None = None) -> Any:
    """Return the structure of some outputs with a value in place of each result.

    Parameters
    ----------
    outputs : Outputs
        The outputs, or those of one of several examples that ask for the same.
    values : iterable
        The value of each of ``outputs.groups``, in their order.
    examples : int, optional
        How many examples there are. Then a result that is wanted whole, or that keeps its example, has an
        entry for each of them, and becomes the list of them; each other result has one group, with the rows
        of all examples.
    """
    left = iter(values)
    kept = iter(outputs.kept)

    # Both iterators are consumed in the order of `wanted`, as `take_apart` has filled the lists.
    def entry(one: str) -> Any:
        return filled(next(kept), left) if one == "each" else next(left)

    leaves = [
        [entry(one) for _ in range(examples)]
        if examples is not None and one in ("whole", "each")
        else entry(one)
        for one in outputs.wanted
    ]
    return leaves[0] if outputs.structure is ONE else optree.tree_unflatten(outputs.structure, leaves)
