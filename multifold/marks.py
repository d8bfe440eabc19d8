"""Marks: what the author of an op knows of it, and a trial cannot find out or would get wrong.

The first launch of each op is tried with other rows (`multifold._engine.ops.trial`). An op that is meant to
see all rows of its launch is marked by `mixing`, one that must not run twice by `trusted`:

>>> import numpy as np
>>> @mixing
... def centered(x):
...     return x - x.mean(0)
>>> from multifold import Fold
>>> fold = Fold(backend="numpy")
>>> fold.apply(None, [[fold.add(centered, np.array([[x]])) for x in (1.0, 2.0, 6.0)]])[0].ravel()
array([-2., -1.,  3.])
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from multifold.errors import BackendError, type_of

Op = TypeVar("Op")

ATTRIBUTE = "multifold_mark"
"""The attribute of an op that holds its mark."""

MIXING = "mixing"
TRUSTED = "trusted"


def mixing(op: Op) -> Op:
    """Mark an op that is meant to see all rows of its launch, as batch normalisation in training.

    Which rows share a launch follows from the minibatch and its schedule, so its results depend on these.
    It is not tried, its launches are never divided into pieces, and it is refused where others' requests or
    padding would be among the rows: in `multifold.Server`, in programs, and by a backend that pads rounds.

    Parameters
    ----------
    op : callable
        A function, a method in the body of its class, a module, or a class of modules. The model or the
        recording program names the same object as its op.

    Returns
    -------
    callable
        The same object.

    Raises
    ------
    BackendError
        If the object can have no attribute; wrap it in a function then.
    """
    return marked(op, MIXING)


def trusted(op: Op) -> Op:
    """Mark an op that keeps its rows apart and must not run twice, as a step of a game or a request.

    It is not tried. For the parameters, the result and what is raised see `mixing`.

    Examples
    --------
    >>> sent = []
    >>> @trusted
    ... def send(x):
    ...     sent.extend(x.tolist())
    ...     return x
    >>> from multifold import Fold
    >>> fold = Fold(backend="numpy")
    >>> fold.apply(None, [[fold.add(send, i) for i in (1, 2)]])
    [array([1, 2])]
    >>> sent
    [1, 2]
    """
    return marked(op, TRUSTED)


def marked(op: Op, mark: str) -> Op:
    """Set the mark, `MIXING` or `TRUSTED`, as an attribute of an op, and return that op.

    Raises
    ------
    BackendError
        If the op can have no attribute, as a bound method.
    """
    try:
        setattr(op, ATTRIBUTE, mark)
    except (AttributeError, TypeError):
        raise BackendError(
            f"Expected an op that can be marked, as a function or a module. Received {type_of(op)}.",
            "mark a method in the body of its class; write a function around anything else, and mark that.",
        ) from None
    return op


def mark_of(op: Any) -> str | None:
    """Return "mixing" or "trusted" for an op that is marked, else None.

    A method has its function's mark, a `functools.partial` that of what it calls.
    """
    while isinstance(op, functools.partial) and not hasattr(op, ATTRIBUTE):
        op = op.func
    # An object whose `__getattr__` answers to any name has no mark.
    found = getattr(op, ATTRIBUTE, None)
    return found if isinstance(found, str) else None
