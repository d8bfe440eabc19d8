"""The markers by which a caller says how an operand enters a launch: shared, static or ragged.

Everything else is recognised by its type: nodes, arrays and numbers are batched, lists, tuples and
dictionaries nest, ``None``, strings and other hashable values are static. In

    fold.add("look_up", word, multifold.shared(table), multifold.ragged(children), scale=2)

``word`` is batched, a launch gets ``table`` once, and each node has as many rows as it has children.

`each` is the one marker for results: in the results of many examples, what it marks is a list with an entry
for each example, where other values are joined into one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from multifold.errors import RecordError, type_of


class Shared:
    """A value that enters a launch once, as it is; made by `shared`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Static:
    """A value that is passed on as it is and belongs to the signature; made by `static`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class RaggedOperand:
    """Any number of rows for one node; made by `ragged`."""

    __slots__ = ("items", "row_shape")

    def __init__(self, items: Iterable[Any], row_shape: RowShape | None) -> None:
        try:
            self.items = tuple(items)
        except (RecordError, TypeError):  # a node refuses to be iterated, a number can't be
            if isinstance(items, Iterable) and getattr(type(items), "no_batch", None) is None:
                raise
            raise RecordError(
                f"Expected a list of the rows of one node in ragged(...). Received {type_of(items)}.",
                "write the brackets: multifold.ragged([node]).",
            ) from None
        self.row_shape = None if row_shape is None else checked(row_shape, row_shape)


RowShape = tuple[Any, ...]
"""The shape of a row, ``(8,)``, or a tuple of such where a row is a tuple of arrays, ``((8,), (8,))``."""


def is_one(shape: RowShape) -> bool:
    """Return whether a shape is that of one array, and no tuple of shapes."""
    return not shape or not isinstance(shape[0], tuple)


def checked(shape: Any, given: Any) -> RowShape:
    """Return the shape of a row as tuples; refuse what is none."""
    if isinstance(shape, (tuple, list)):
        if all(isinstance(n, (int, np.integer)) for n in shape):
            return tuple(map(int, shape))
        if all(isinstance(part, (tuple, list)) for part in shape):
            return tuple(checked(part, given) for part in shape)
    raise RecordError(
        f"Expected row_shape to be a tuple of int. Received row_shape={given!r}.",
        "it is the shape of one row without its first axis: (width,), () for numbers, and "
        "((width,), (width,)) where the op of the rows returns a pair.",
    )


def shaped(make: Callable[[tuple[int, ...]], Any], shape: RowShape) -> Any:
    """Return what ``make`` makes of a shape, or a tuple of that for each shape of a tuple.

    Examples
    --------
    >>> shaped(len, (3, 4)), shaped(len, ((3, 4), (5,)))
    (2, (2, 1))
    """
    return make(shape) if is_one(shape) else tuple(shaped(make, part) for part in shape)


class Each:
    """A result that keeps its example; made by `each`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def shared(value: Any) -> Any:
    """Let a value enter each launch once, whole, instead of once for every node.

    Parameters
    ----------
    value : Node, array or other value
        A node stands for its whole result, of any shape, and its call runs in a launch of its own
        (as `Node.no_batch`). An array is passed as it is; a NumPy array becomes one of the backend. It is
        copied once, for all runs, so an op must not write to it; NumPy refuses that. One of more than 4 kB
        must not be changed before its calls have run. Anything else, as a list of arrays, is kept and
        compared as `static` does it. Two different shared values mean two launches, and so do two ways to
        one value, as ``pair[1]`` and ``pair.split(2)[1]``.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> fold = multifold.Fold(backend="numpy")
    >>> table = multifold.shared(np.array([10.0, 20.0, 30.0]))
    >>> rows = [fold.add(lambda t, i: t[i], table, 2)]
    >>> fold([rows])
    [array([30.])]
    """
    no_batch = getattr(type(value), "no_batch", None)
    return Shared(value) if no_batch is None else value.no_batch()


def static(value: Any) -> Static:
    """Pass a value to the op as it is; calls share a launch only where it is equal, types included.

    The value is copied when the call is recorded, and compared by all that an op can see of it: type,
    contents, order and attributes. Functions, modules, locks and other objects that are equal only to
    themselves are passed as they are; what a function's closure holds is not looked into.

    Raises
    ------
    RecordError
        When the call is recorded: for an object that has attributes but no ``__eq__`` to compare them by,
        an iterator, a view of a dictionary or of memory, and a value that contains itself.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> node = fold.add(lambda x, power: x**power, 3, multifold.static(2))
    >>> fold(node)
    array([9])
    """
    return Static(value)


def ragged(items: Iterable[Any], row_shape: RowShape | None = None) -> RaggedOperand:
    """Give one node any number of rows: all arities run in one launch.

    The op receives a `multifold.Ragged` with ``values`` of shape ``(total, *s)``, ``lengths`` of
    shape ``(n,)`` and ``segment_ids`` of shape ``(total,)``.

    Parameters
    ----------
    items : iterable of Node, number or array of shape ``(1, *s)``
        The rows of this node, in order; it may be empty. A node whose op returns a tuple is passed as
        it is, and ``values`` is then a tuple of arrays: ``h, c = rows.values``.
    row_shape : tuple of int, or tuple of such, optional
        ``s``; needed where every node of a launch may be without rows, to make a ``(0, *s)`` array
        of the default float. Of nodes whose op returns a pair ``((width,), (width,))``.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> fold = multifold.Fold(backend="numpy")
    >>> def total(rows):
    ...     return np.bincount(rows.segment_ids, rows.values, minlength=len(rows.lengths))
    >>> fold([[fold.add(total, multifold.ragged(r)) for r in ([1, 2, 3], [4], [5, 6])]])
    [array([ 6.,  4., 11.])]
    """
    return RaggedOperand(items, row_shape)


def each(value: Any) -> Each:
    """Mark a part of what an example returns: its caller gets a list with an entry for each example.

    Other results are put together: a node becomes an array with a row for each example, a group an array
    with the rows of all. Mark what must stay apart, as rows of different lengths, and what is no array, as
    the words of a sentence or a parse.

    Parameters
    ----------
    value : object
        Nodes, lists, tuples and dictionaries of them, and any other Python objects among them. It may
        have another structure in each example.

    Returns
    -------
    Each
        What a function returns to `Fold.run`, `traces` or `Fold.apply`, by itself or inside of lists,
        tuples and dictionaries. In the entry of an example a node is an array of shape ``(1, *s)``, a list
        of ``n`` nodes one of shape ``(n, *s)``, a `Node.no_batch` the whole result; everything else is as
        it was. `Fold.apply`, which knows of no examples, returns the entry itself. A program computes the
        rows, and its ``each`` makes the entries of them.

    Raises
    ------
    RecordError
        When the results are taken: for a mark inside of another one. As an operand.

    Examples
    --------
    >>> import multifold
    >>> def lengths(fold, sentence):
    ...     words = sentence.split()
    ...     nodes = [fold.add("length", len(word)) for word in words]
    ...     return {"all": nodes, "own": multifold.each((words, nodes))}
    >>> fold = multifold.Fold(backend="numpy")
    >>> found = fold.run({"length": lambda x: x}, ["a tree", "two of them"], lengths)
    >>> found["all"]
    array([1, 4, 3, 2, 4])
    >>> found["own"]
    [(['a', 'tree'], array([1, 4])), (['two', 'of', 'them'], array([3, 2, 4]))]
    """
    return Each(value)
