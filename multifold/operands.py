"""The markers by which a caller says how an operand enters a launch: shared, static or ragged.

Everything else is recognised by its type: nodes, arrays and numbers are batched, lists, tuples and
dictionaries nest, ``None``, strings and other hashable values are static. In

    fold.add("look_up", word, multifold.shared(table), multifold.ragged(children), scale=2)

``word`` is batched, a launch gets ``table`` once, and each node has as many rows as it has children.

`each` is the one marker for results: in the results of many examples, what it marks is a list with an entry
for each example, where other values are joined into one array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from multifold.errors import RecordError, type_of


class Shared:
    """A value that enters a launch once, as it is; made by `shared` of anything but a node."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Static:
    """A value that is passed on as it is and belongs to the signature; made by `static`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class RaggedOperand:
    """Any number of rows for one node, in the tuple ``items``; made by `ragged`.

    ``missing`` is its `MissingRows`, None if neither row_shape nor an array says what a row is.
    """

    __slots__ = ("items", "missing")

    def __init__(self, items: Iterable[Any], row_shape: RowShape | None, dtype: Any) -> None:
        try:
            self.items = tuple(rows_of(items))
        except (RecordError, TypeError):
            # A node refuses to be iterated, and a number cannot be, so the brackets are missing. If a
            # generator of the user has failed, its own error goes on.
            is_list = isinstance(items, Iterable) and not hasattr(items, "shape")
            if is_list and getattr(type(items), "no_batch", None) is None:
                raise
            raise RecordError(
                f"Expected a list of the rows of one node in ragged(...). Received {type_of(items)}.",
                "write the brackets: multifold.ragged([node]).",
            ) from None
        self.missing: Any = None
        if row_shape is None and dtype is None and is_array_of_rows(items):
            row_shape, dtype = tuple(items.shape[1:]), items.dtype
        if row_shape is not None:
            self.missing = missing_rows(checked(row_shape, row_shape), dtype)
        elif dtype is not None or not self.items:
            # Beside the rows of other calls it could do without a shape; by itself it could not.
            raise RecordError(
                "Expected row_shape in ragged(...)"
                + (" without rows." if dtype is None else f" beside dtype={dtype!r}."),
                "say what a row is: ragged(items, row_shape=(width,)), row_shape=() for a number. "
                "dtype='int64' says that it is no float.",
            )


def rows_of(items: Any) -> Iterable[Any]:
    """Return the rows of a ragged operand: those of an array ``(k, *s)`` as ``(k, 1, *s)``, else ``items``.

    A NumPy array of shape ``(k,)`` is returned itself: it is a list of numbers.
    """
    return items[:, None] if is_array_of_rows(items) else items


def is_array_of_rows(items: Any) -> TypeGuard[np.ndarray]:
    """Return whether ``items`` is one array of rows: of a framework with an axis, or of NumPy with two.

    ``np.array([1, 2])`` is a list of numbers.
    """
    # An array of a framework needs one axis and NumPy's two, since ``np.array([1, 2])`` is a list of
    # numbers.
    return len(getattr(items, "shape", ())) > isinstance(items, np.ndarray)


RowShape = tuple[Any, ...]
"""The shape of a row, ``(8,)``, or a tuple of such where a row is a tuple of arrays, ``((8,), (8,))``."""


class MissingRows(NamedTuple):
    """The shape and dtype of the rows of a ragged operand, for a node that has none.

    Such a node receives the same alone and beside other calls.

    Attributes
    ----------
    shape : RowShape
        The shape of a row.
    dtype : str, or tuple of str
        The name of its dtype, nested as the shape is; ``"float"``, ``"int"`` and ``"bool"`` are what the
        backend makes of such numbers of Python.
    """

    shape: RowShape
    dtype: Any = "float"

    def made(self, make: Callable[[tuple[int, ...], str], Any]) -> Any:
        """Return ``make(shape, dtype)``, or a tuple of one for each array where a row is a tuple.

        Examples
        --------
        >>> MissingRows(((3, 4), (5,)), ("float", "int8")).made(lambda shape, dtype: (len(shape), dtype))
        ((2, 'float'), (1, 'int8'))
        """
        if is_one(self.shape):
            return make(self.shape, self.dtype)
        return tuple([part.made(make) for part in map(MissingRows, self.shape, self.dtype)])


def is_one(shape: RowShape) -> bool:
    """Return whether a row shape is that of one array, as ``(8,)`` or ``()``, not a tuple of shapes."""
    return not shape or not isinstance(shape[0], tuple)


def missing_rows(shape: RowShape, dtype: Any) -> MissingRows:
    """Return the `MissingRows` of a row shape and a dtype, whose name it has by `name_of_dtype`.

    A dtype of None is "float". Where ``shape`` is a tuple of shapes, for a row that is a tuple of arrays,
    ``dtype`` is one for all of them, or a tuple with one for each; the names are a tuple then.

    Raises
    ------
    RecordError
        If a tuple of dtypes has another length than the shape, or for what is no dtype.
    """
    if is_one(shape):
        return MissingRows(shape, "float" if dtype is None else name_of_dtype(dtype))
    dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * len(shape)
    if len(dtypes) != len(shape):
        raise RecordError(
            f"Expected a dtype for each array of a row. Received row_shape={shape!r}, dtype={dtype!r}.",
            "one dtype is that of all arrays; a tuple has one for each shape.",
        )
    return MissingRows(shape, tuple(missing_rows(*part).dtype for part in zip(shape, dtypes, strict=True)))


@lru_cache(256)
def name_of_dtype(dtype: Any) -> str:
    """Return NumPy's name of a dtype, which is given as an object or by a name: "int64" for "i8".

    The object may be NumPy's or a framework's, as ``torch.int64``. The strings "float", "int", "bool" and
    "bfloat16" are returned as they are: "float" and "int" stand for the dtypes that a backend gives to
    numbers of Python, so the string "int" stays "int", while the type `int` is "int64".

    Raises
    ------
    RecordError
        For what NumPy takes for no dtype.

    Examples
    --------
    >>> name_of_dtype("i8"), name_of_dtype(np.float32), name_of_dtype("int"), name_of_dtype("bfloat16")
    ('int64', 'float32', 'int', 'bfloat16')
    """
    if isinstance(dtype, str) and dtype in ("float", "int", "bool", "bfloat16"):
        return dtype
    named = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", dtype)).rpartition(".")[2]
    # NumPy itself does not know bfloat16. ``named`` is int32 for tf.int32 and for torch.int32.
    for like in (dtype, named):
        with contextlib.suppress(TypeError):
            return "bfloat16" if named == "bfloat16" else np.dtype(like).name
    raise RecordError(
        f"Expected the name of a dtype. Received {dtype!r}.",
        "'float32', 'int64' and 'bool' are names; 'float' and 'int' are the defaults of a backend.",
    )


def checked(shape: Any, given: Any) -> RowShape:
    """Return a row shape as a tuple of int, or a tuple of such, from tuples or lists of integers.

    Raises
    ------
    RecordError
        For anything else; the message shows ``given``, the whole shape of which this may be a part.
    """
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


class Each:
    """A result that becomes a list with an entry for each example; made by `each`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def shared(value: Any) -> Any:
    """Let a value enter each launch once, whole, instead of as one row for each node.

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
    # A node is known by this method: its class is defined in the engine, which imports this module.
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


def ragged(items: Iterable[Any], row_shape: RowShape | None = None, dtype: Any = None) -> RaggedOperand:
    """Give one node any number of rows: nodes with 0, 1 or 9 rows run in one launch.

    The op receives a `multifold.Ragged` with ``values`` of shape ``(total, *s)``, ``lengths`` of shape
    ``(n,)`` and ``segment_ids`` of shape ``(total,)``.

    Parameters
    ----------
    items : iterable of Node, number or array of shape ``(1, *s)``, or array
        The rows of this node, in order; it may be empty. A node whose op returns a tuple is passed as
        it is, and ``values`` is then a tuple of arrays: ``h, c = rows.values``. An array of shape
        ``(k, *s)`` is ``k`` rows.
    row_shape : tuple of int, or tuple of such, optional
        ``s``; needed where there are no items, ``()`` for numbers. Of nodes whose op returns a pair
        ``((width,), (width,))``.
    dtype : str, NumPy dtype, one of the framework, or tuple of such, optional
        The dtype of missing rows, by default ``"float"``, the backend's for numbers of Python; so is
        ``"int"``. A node without rows receives the same alone and in company: it shares the launches of
        rows of this shape and dtype only. Rows that are there keep their own.

    Raises
    ------
    RecordError
        For no items without ``row_shape``, and for ``dtype`` without ``row_shape``.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> fold = multifold.Fold(backend="numpy")
    >>> def total(rows):
    ...     return np.bincount(rows.segment_ids, rows.values, minlength=len(rows.lengths))
    >>> fold([[fold.add(total, multifold.ragged(r)) for r in ([1, 2, 3], [4], [5, 6])]])
    [array([ 6.,  4., 11.])]
    >>> words = [multifold.ragged(x, row_shape=(), dtype="int") for x in ([2, 0], [])]
    >>> def look_up(words):
    ...     return total(words._replace(values=np.array([0.5, 1.5, 2.5])[words.values]))
    >>> fold([[fold.add(look_up, x) for x in words]])
    [array([3., 0.])]
    """
    return RaggedOperand(items, row_shape, dtype)


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
        When the results are taken apart, for a mark inside of another one; when a call is recorded, for
        a mark among its operands.

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
