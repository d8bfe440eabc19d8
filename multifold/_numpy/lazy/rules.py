"""Rules: how a function of NumPy of one example runs on the rows of many.

``np.concatenate([a, b])`` of one example is ``np.concatenate([A, B], 1)`` of all, where ``A`` has a row for
each example on an axis before the others. A rule gets a function, its arguments for one example and which
of these have rows. It returns what runs on the same arguments with rows; None where it does not hold: then
the function runs for one example after the other.

>>> rows, one = np.zeros((7, 2, 3)), np.zeros((2, 3))
>>> on_rows(np.concatenate, ([one, one], 1), {}, lambda x: True)([rows, rows], 1).shape
(7, 2, 6)
>>> on_rows(np.linalg.det, (one[:, :2],), {}, lambda x: True) is None
True
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multifold.lazy.pending_array import method

of_arrays = functools.partial(method, np.ndarray)
"""Returns a method of arrays as a function, by its name."""

OnRows = Callable[..., Any]
HasRows = Callable[[Any], bool]
Rule = Callable[[Any, Sequence[Any], Mapping[str, Any], HasRows], OnRows | None]


def on_rows(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Return a function that runs ``func`` on rows of all examples; None if no rule fits.

    ``args`` and ``kwargs`` are those of one example, and ``has_rows(x)`` says whether an argument will have
    a row for each example on axis 0. The function is called with the same arguments, the latter with rows.
    """
    if isinstance(func, np.ufunc):
        return (product if func is np.matmul else elementwise)(func, args, kwargs, has_rows)
    rule = RULES.get(func)
    return None if rule is None else rule(func, args, kwargs, has_rows)


def elementwise(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows
) -> OnRows | None:
    """Rule for ufuncs: arguments with fewer axes get axes of size 1 after that of the examples.

    So each row broadcasts as one example did. Return None for lists, options other than ``dtype`` and
    ``casting``, or scalars beside arrays of another dtype.
    """
    if getattr(func, "signature", None) is not None or kwargs.keys() - {"dtype", "casting"}:
        return None
    if any(isinstance(x, (list, tuple)) for x in args):
        return None
    # Numbers of NumPy count like arrays for the dtype of a result only from NumPy 2 on.
    dtypes = {x.dtype for x in args if isinstance(x, (np.ndarray, np.generic))}
    if len(dtypes) > 1 and any(has_rows(x) and not np.ndim(x) for x in args):
        return None
    most = max(np.ndim(x) for x in args)
    ranks = [np.ndim(x) if has_rows(x) else most for x in args]

    def aligned(*rows: Any, **options: Any) -> Any:
        return func(
            *[
                x.reshape(len(x), *[1] * (most - rank), *x.shape[1:]) if rank < most else x
                for x, rank in zip(rows, ranks, strict=True)
            ],
            **options,
        )

    return aligned


def product(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Rule for `numpy.matmul` and `numpy.dot` of vectors and matrices, one for each row or one for all.

    Return None for options, or for arguments with other numbers of axes than 1 or 2.
    """
    if kwargs or len(args) != 2:
        return None
    x, y = args
    ranks = np.ndim(x), np.ndim(y)
    if not set(ranks) <= {1, 2}:
        return None
    if has_rows(x) and has_rows(y):
        letters = {1: ("a", "a"), 2: ("ba", "ac")}
        left, right = letters[ranks[0]][0], letters[ranks[1]][1]
        result = left[:-1] + right[1:]
        return lambda x, y: np.einsum(f"n{left},n{right}->n{result}", x, y, optimize=ranks == (2, 2))
    if has_rows(x):
        return np.matmul if ranks[1] == 2 or ranks[0] == 2 else (lambda x, y: x @ y)
    if ranks[0] == 1:  # a vector, the same for all, with a vector or a matrix of each row
        return (lambda x, y: y @ x) if ranks[1] == 1 else np.matmul
    return (lambda x, y: y @ x.T) if ranks[1] == 1 else np.matmul


def along(position: int, default: int | None, whole: bool = False) -> Rule:
    """Return a rule for functions that work along an axis: for rows, the axis is one further back.

    Parameters
    ----------
    position : int
        The position of the axis among the arguments, if it is not given by name.
    default : int or None
        The axis if it is not given; None for all axes.
    whole : bool
        Whether the first argument is a sequence of arrays, all of which have rows.
    """

    def rule(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
        axis = args[position] if len(args) > position else kwargs.get("axis", default)
        parts = args[0] if whole else args[:1]
        others = {name for name in kwargs if name not in ("axis", "keepdims", "dtype", "ddof")}
        if others or len(args) > position + 1 or not isinstance(parts, (list, tuple)):
            return None
        if not all(map(has_rows, parts)) or len({np.ndim(x) for x in parts}) > 1:
            return None
        rank = np.ndim(parts[0])
        if axis is None and func.__name__ in ("argmax", "argmin"):
            return None
        if axis is None:
            own: Any = tuple(range(1, rank + 1))
        elif type(axis) is int:
            own = axis + 1 if axis >= 0 else axis
        else:
            return None
        options = {name: value for name, value in kwargs.items() if name != "axis"}
        return lambda x, *_, **__: func(x, axis=own, **options)

    return rule


def reshaped(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Rule for ``reshape``: the axis of the examples stays in front of the new shape.

    Return None for options, as ``order=``, and for an ``x`` without rows.
    """
    x, *shape = args
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if kwargs or not has_rows(x) or not all(type(size) is int for size in sizes):
        return None
    own = np.empty(np.shape(x)).reshape(sizes).shape  # says what -1 is
    return lambda x, *_: x.reshape(len(x), *own)


def turned(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Rule for ``transpose`` without ``axes``: the axis of the examples stays first.

    The other axes are reversed. Return None if ``axes`` are given.
    """
    if kwargs or len(args) > 1:
        return None
    order = 0, *range(np.ndim(args[0]), 0, -1)
    return lambda x: x.transpose(order)


def indexed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Rule for ``x[index]`` by integers, slices, None and ``...``, taken in each row.

    Return None for an index with arrays or lists, and for an ``x`` without rows.
    """
    x, index = args
    parts = index if type(index) is tuple else (index,)
    if not has_rows(x) or not all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts):
        return None
    return lambda x, _: x[(slice(None), *parts)]


def as_it_is(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], has_rows: HasRows) -> OnRows | None:
    """Rule for functions that compute each number by itself, as ``round``: they run on rows as they are.

    Return None if the first argument has no rows, or another one has.
    """
    others = (*args[1:], *kwargs.values())
    return None if not has_rows(args[0]) or any(map(has_rows, others)) else func


REDUCTIONS = "sum mean max min prod any all argmax argmin"

RULES: dict[Any, Rule] = {
    **{getattr(np, name): along(1, None) for name in REDUCTIONS.split()},
    **{of_arrays(name): along(1, None) for name in REDUCTIONS.split()},
    **dict.fromkeys((np.std, np.var, of_arrays("std"), of_arrays("var")), along(1, None)),
    np.concatenate: along(1, 0, whole=True),
    np.stack: along(1, 0, whole=True),
    np.where: elementwise,
    np.dot: product,
    of_arrays("dot"): product,
    **dict.fromkeys((np.reshape, of_arrays("reshape")), reshaped),
    **dict.fromkeys((np.transpose, of_arrays("transpose")), turned),
    operator.getitem: indexed,
    **dict.fromkeys((np.copy, np.round, np.clip, np.nan_to_num, np.real), as_it_is),
    **dict.fromkeys(
        (of_arrays("copy"), of_arrays("astype"), of_arrays("clip"), of_arrays("round")), as_it_is
    ),
}
