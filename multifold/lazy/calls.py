"""Calls of one example that run on the rows of all.

A call is a function of the framework, or a cell, with all its arguments but arrays. An adapter has a
subclass of `LazyCall`, which says how it runs on rows: by a rule, by the framework's vmap, or row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multifold._engine.record.signature import LazyOp
from multifold.errors import RecordError

BY_ROWS = "row by row"
"""What `explain` says of calls that run for one example after the other."""


def argument_text(x: Any, is_operand: bool) -> str:
    """Return an argument of a call as `explain` shows it.

    An operand, which is an array, is its shape; None, a bool, an int, a float or a text its ``repr``; all
    else the name of its type.

    >>> argument_text(2.5, False), argument_text([1], False)
    ('2.5', 'list')
    """
    if is_operand:
        return str(tuple(x.shape))
    return repr(x) if x is None or isinstance(x, (bool, int, float, str)) else type(x).__name__


class LazyCall(LazyOp):
    """A function of one example with its arguments other than arrays; subclasses run it on rows of all.

    Parameters
    ----------
    func : callable
        The function.
    structure : PyTreeSpec or PyTreeDef
        How its arguments ``(args, kwargs)`` are nested; it has ``unflatten``.
    leaves : list
        All its arguments, in the order of ``structure``. Arrays among them are not kept.
    places : list of int
        The positions in ``leaves`` of arrays: the operands.
    shared : list of bool
        For each operand, whether it is the same for all examples. It may be left out where `mapped` is not
        used.

    Attributes
    ----------
    is_cell : bool
        Whether it is a function of the program, and not of the framework.
    called_with : str
        Its arguments for `explain`: the shapes of operands, and the constants.
    """

    is_cell = False

    runs_code = False
    """Whether it calls code of the program, which may return another thing in a later run."""

    def __init__(
        self,
        func: Any,
        structure: Any,
        leaves: Sequence[Any],
        places: Sequence[int],
        shared: Sequence[bool] = (),
    ) -> None:
        self.func = func
        self.structure = structure
        self.places = places
        self.shared = shared
        self.leaves = [None if i in places else x for i, x in enumerate(leaves)]
        self.called_with = ", ".join([argument_text(x, i in places) for i, x in enumerate(leaves)])
        self.__name__ = self.__qualname__ = getattr(func, "__name__", type(func).__name__)

    def is_like(self, other: LazyCall) -> bool:
        """Return whether another call of the same kind runs in the same way."""
        return True

    def arguments(
        self, operands: Sequence[Any], leaves: Sequence[Any] | None = None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return ``(args, kwargs)`` of the function, with ``operands`` where it takes arrays.

        There is one operand for each of ``places``, in their order. ``leaves`` are the other arguments, by
        default those of the recorded call; the list itself is not changed.
        """
        filled = [*(self.leaves if leaves is None else leaves)]
        for place, x in zip(self.places, operands, strict=True):
            filled[place] = x
        found: Any = self.structure.unflatten(filled)
        return found

    def one(self, *operands: Any) -> Any:
        """Run the function on the operands of one example, without an axis of rows; return its result."""
        args, kwargs = self.arguments(operands)
        return self.func(*args, **kwargs)

    def mapped(self, function: Callable[[Any], Any], operands: Sequence[Any]) -> list[Any]:
        """Return the operands, with ``function(x)`` in the place of each ``x`` that has rows.

        Those that are the same for all examples (see ``shared``) have no rows, and stay as they are.
        """
        pairs = zip(self.shared, operands, strict=True)
        return [x if is_shared else function(x) for is_shared, x in pairs]

    def as_rows(self, x: Any) -> Any:
        """Return an operand ``(n, 1, *s)`` as rows ``(n, *s)``, for a cell made by `op`.

        Raise a `RecordError` if axis 1 has another size than 1.
        """
        if x.shape[1:2] != (1,):
            raise RecordError(
                f"The cell {self.__name__} takes rows, so the first axis of its arguments has size 1.",
                "x[None] adds one; multifold.cell instead of multifold.op takes any shape.",
            )
        return x[:, 0]

    def named(self, name: str) -> None:
        """Set ``__name__`` and ``__qualname__``, by which `explain` calls it."""
        self.__name__ = self.__qualname__ = name

    hint_by_shape = "its result depends on values: read what decides before the call."
    """What to do where results have another shape than those of the dry run."""

    @property
    def hint_by_rows(self) -> str:
        """What `explain` says to do about a cell that runs for one example after the other."""
        return "multifold.op on a function that takes a row for each example; or no cell."

    def runs_by_rows(self, what: str = BY_ROWS) -> None:
        """Add ``" (row by row)"``, or ``what`` in brackets, to its name in `explain`, once."""
        if BY_ROWS not in self.__name__:
            self.named(f"{self.__name__} ({what})")
