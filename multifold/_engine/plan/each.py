"""Results that keep their example: what `multifold.each` marks, taken apart and filled in again.

The value that an example marks may be of any structure, another one in each example. Its nodes, and its
lists of nodes, become groups of rows, as in outputs of their own; everything else stays as it is:

>>> from multifold import Fold
>>> fold = Fold(backend="numpy")
>>> first, second = (fold.add("leaf", i) for i in range(2))
>>> groups = []
>>> form = form_of({"words": ["a", "b"], "best": first, "rows": [second, first]}, groups)
>>> form
{'words': ['a', 'b'], 'best': Hole(rows=1, whole=False), 'rows': Hole(rows=2, whole=False)}
>>> filled(form, iter(["row 0", "rows 1 and 0"]))
{'words': ['a', 'b'], 'best': 'row 0', 'rows': 'rows 1 and 0'}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.record.anatomy import Identity, refuse_awaitable
from multifold._engine.record.freezing import freeze
from multifold._engine.record.node import Node, SharedNode
from multifold.errors import RecordError, type_of
from multifold.operands import Each, RaggedOperand, Shared, Static


class RowsOfEach(Each):
    """A tuple of nodes, as `multifold.each` marks it, whose rows may be joined with those of all examples.

    All examples of a run return one then, and say the same of `are_joined`.
    """

    __slots__ = ()

    @property
    def are_joined(self) -> bool:
        """Whether the result of the run is a tuple of arrays, each with a row for each example.

        Else it is a list with an entry for each example.
        """
        return False


class Hole(NamedTuple):
    """Stands for a group of ``rows`` rows, or for a whole result, in a value that `each` marks."""

    rows: int
    whole: bool
    """Whether it is the whole result of a call, of any number of rows."""


PLAIN = frozenset({int, float, bool, str, bytes, NoneType})
"""Types of values that have nothing inside, and of which results are mostly made: words, heads, pieces."""


def each_of(x: Any, change: Callable[[Any], Any]) -> Any:
    """Return a list, tuple or dictionary like ``x`` with ``change(y)`` for its entries; else ``x`` itself.

    A named tuple and an OrderedDict are rebuilt so, too; an object of any other subclass is returned
    itself. Keys stay as they are, and so do entries of the types in `PLAIN`, except in a named tuple or as
    values of a dictionary.
    """
    # Types are compared exactly: a subclass may be made in ways that are not known here, so it stays whole.
    if type(x) is list:
        return [y if type(y) in PLAIN else change(y) for y in x]
    if type(x) is tuple:
        return tuple([y if type(y) in PLAIN else change(y) for y in x])
    if type(x) is dict or type(x) is OrderedDict:
        return type(x)((key, change(value)) for key, value in x.items())
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        # A named tuple takes its fields as arguments, a tuple takes one iterable.
        return type(x)(*map(change, x))
    return x


def form_of(x: Any, groups: list[list[Any]]) -> Any:
    """Return a value with a `Hole` for each node and each list of nodes; append these to ``groups``.

    A node is appended as a list of one. A list of nodes is a group, whose rows become one array. Any other
    list stays a list: a sentence, the heads of a parse, or nodes beside their names.

    Raises
    ------
    RecordError
        For a mark inside of another one, or an awaitable that was not awaited.
    """
    if isinstance(x, Node):
        groups.append([x])
        return Hole(1, whole=isinstance(x, SharedNode))
    # A shared node is a whole result of any number of rows, so a list of these is no group.
    if type(x) is list and x and all(isinstance(y, Node) and not isinstance(y, SharedNode) for y in x):
        groups.append(x)
        return Hole(len(x), whole=False)
    if isinstance(x, (Each, Shared, Static, RaggedOperand)):
        raise RecordError(
            f"Expected nodes and plain values in multifold.each(...). Received {type_of(x)}.",
            "mark the whole value once: multifold.each((words, node)).",
        )
    refuse_awaitable(x)
    return each_of(x, lambda value: form_of(value, groups))


def holes(form: Any) -> list[Hole]:
    """Return the holes of a form that `form_of` returned: one for each of its ``groups``, in order."""
    found: list[Hole] = []

    def look(x: Any) -> Any:
        if type(x) is Hole:
            found.append(x)
            return x
        return each_of(x, look)

    look(form)
    return found


def key_of_form(form: Any) -> Hashable:
    """Return a hashable key of what `form_of` returned: equal for equal types, contents and order.

    A form that `freeze` refuses, as one with an object of the user without ``__eq__``, equals itself only.
    """
    try:
        return freeze(form)
    except RecordError:
        return Identity(form)


def copied(form: Any) -> Any:
    """Return a form, what `form_of` returned, with new containers and copies of its NumPy arrays."""
    return form.copy() if isinstance(form, np.ndarray) else each_of(form, copied)


def filled(form: Any, values: Iterator[Any]) -> Any:
    """Return a form, what `form_of` returned, with the next of ``values`` in each hole, in their order.

    Its containers and arrays are new: the caller may change them, and the form be filled again by the next
    run of a trace.
    """
    if type(form) is Hole:
        return next(values)
    return form.copy() if isinstance(form, np.ndarray) else each_of(form, lambda x: filled(x, values))
