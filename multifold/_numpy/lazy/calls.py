"""Calls: a function of NumPy with all its arguments but arrays, run on the rows of all examples.

A function runs by a rule (`multifold._numpy.lazy.rules`), or for one example after the other. A cell is
run once for all: its code gets `RowArray` in the place of arrays, each of which looks like the array of one
example, and holds the rows of all. So each function in it runs by its rule. Where the code looks at values,
it runs for one example after the other, and `explain` says so.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import optree
from numpy.lib.mixins import NDArrayOperatorsMixin

from multifold._engine.ops.state import KeptState
from multifold._numpy.lazy.pending import ArrayForm, PendingArray, form_of, is_basic
from multifold._numpy.lazy.rules import of_arrays, on_rows
from multifold.errors import RecordError
from multifold.lazy.calls import LazyCall
from multifold.lazy.current import Recording, refusal
from multifold.lazy.keeping import AS_IT_DRAWS, KeepingWatch, draws_own, keeps, refuse_draws
from multifold.marks import mark_of, trusted


@trusted  # it runs each row as the loop does, so it cannot mix them
class ArrayCall(LazyCall):
    """A recorded call of a NumPy function, run on rows by its rule, or for one example after the other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.forms: list[ArrayForm] = []
        self.is_single = True
        self.errors = np.geterr()
        self.draws = self.caches = False
        self.rule: Any = None

    @property
    def runs_code(self) -> bool:  # type: ignore[override]
        return self.is_cell or any(isinstance(x, FunctionType) for x in self.leaves)

    def is_like(self, other: ArrayCall) -> bool:  # type: ignore[override]
        return (self.draws, self.caches) == (other.draws, other.caches)

    def learn(self, recording: Recording, stand_ins: Sequence[Any]) -> Any:
        """Run the function on arrays of one example, return what it returns, and store the results' forms.

        ``stand_ins`` has such an array for each operand, in their order. Nothing stays of what the function
        changes. It also chooses how the call will run on rows; see `choose_way`.
        """
        args, kwargs = self.arguments(stand_ins)
        with recording.aside(self.owners()) as kept, np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            watch = KeepingWatch(kept)
            found = self.func(*args, **kwargs)
            self.look_at(kept, watch, stand_ins)
        results = [x for x in optree.tree_leaves(found) if isinstance(x, (np.ndarray, np.generic))]
        self.is_single = isinstance(found, (np.ndarray, np.generic))
        self.forms = [form_of(x) for x in results]
        self.choose_way(args, kwargs, stand_ins)
        if self.draws:
            self.draw_by_rows(recording)
        return found

    def draw_by_rows(self, recording: Recording) -> None:
        """Let a cell that draws random numbers run row by row; with a seed raise `RecordError`."""
        refuse_draws(self.__name__, recording.seed)
        self.rule = None
        self.runs_by_rows(AS_IT_DRAWS)

    def look_at(self, kept: KeptState, watch: KeepingWatch, stand_ins: Sequence[Any]) -> None:
        """Look at what a dry run on ``stand_ins`` has drawn and kept; a function of NumPy does nothing.

        ``kept`` is the state that is put back, and ``watch`` what objects held before the run.
        """

    def owners(self) -> list[Any]:
        """Return the objects whose changes are undone after the dry run in `learn`.

        For a function of NumPy there are none; for a cell it is the cell's function.
        """
        return []

    def choose_way(self, args: Sequence[Any], kwargs: Mapping[str, Any], stand_ins: Sequence[Any]) -> None:
        """Store in ``rule`` the function that runs on rows; None to run for one example after the other.

        ``args`` and ``kwargs`` have the arrays of one example in them, which are also listed in
        ``stand_ins``.
        """
        pairs = zip(self.shared, stand_ins, strict=True)
        with_rows = {id(x) for is_shared, x in pairs if not is_shared}
        self.rule = on_rows(self.func, args, kwargs, lambda x: id(x) in with_rows)

    def __call__(self, *operands: Any) -> Any:
        rows = len(operands[self.shared.index(False)])
        with np.errstate(**self.errors):
            found = None if self.rule is None else self.by_rule(operands, rows)
            if found is None:
                found = self.row_by_row(operands, rows)
        return found[0] if self.is_single else tuple(found)

    def by_rule(self, operands: Sequence[Any], rows: int) -> list[Any] | None:
        """Run ``rule`` on operands with a row for each example; return a list of the arrays of its result.

        Return None if these are not ``rows`` rows of what `learn` found; see `fit`.
        """
        args, kwargs = self.arguments(operands)
        found = optree.tree_leaves(self.rule(*args, **kwargs))
        return found if self.fit(found, rows) else None

    def fit(self, found: Sequence[Any], rows: int) -> bool:
        """Return whether results are rows of the shapes and dtypes that `learn` found.

        The shapes come after an axis of ``rows`` rows, and there are as many results.
        """
        return len(found) == len(self.forms) and all(
            np.shape(x) == (rows, *form.shape) and x.dtype == form.dtype
            for x, form in zip(found, self.forms, strict=True)
        )

    def row_by_row(self, operands: Sequence[Any], rows: int) -> list[Any]:
        """Run the function for one example after the other; return each result, stacked.

        Raise a `RecordError` if a result has another shape or dtype than `learn` found.
        """
        self.runs_by_rows()
        results = []
        for i in range(rows):
            own = self.mapped(operator.itemgetter(i), operands)
            args, kwargs = self.arguments(own)
            results.append(optree.tree_leaves(self.func(*args, **kwargs)))
        columns = [np.stack(column) for column in zip(*results, strict=True)]
        mixed = any(len({np.asarray(x).dtype for x in column}) > 1 for column in zip(*results, strict=True))
        if mixed or not self.fit(columns, rows):
            raise RecordError(
                f"{self.func!r} returned arrays of other forms than for ones.",
                self.hint_by_shape,
            )
        return columns


class ArrayCell(ArrayCall):
    """A call of a cell, a function of the program that is recorded as one call, in NumPy."""

    is_cell = True

    def learn(self, recording: Recording, stand_ins: Sequence[Any]) -> Any:
        own = [x.copy() if type(x) is np.ndarray else x for x in stand_ins]
        found = super().learn(recording, own)
        pairs = zip(map(np.asarray, stand_ins), map(np.asarray, own), strict=True)
        if any(x.tobytes() != y.tobytes() for x, y in pairs):
            raise refusal(
                f"The cell {self.__name__} changes an array in place that is an argument of it.",
                "return what is new: x = x + 1 in place of x += 1.",
            )
        return found

    def owners(self) -> list[Any]:
        return [self.func, *[x for x in self.leaves if hasattr(x, "__dict__")]]

    def look_at(self, kept: KeptState, watch: KeepingWatch, stand_ins: Sequence[Any]) -> None:
        self.draws = draws_own(kept)

        def again(by: float = 1) -> None:
            self.one(*[x * by if np.asarray(x).dtype.kind == "f" else x for x in stand_ins])

        self.caches = keeps(self.__name__, kept, watch, again, partial(again, 0.5))

    def choose_way(self, args: Sequence[Any], kwargs: Mapping[str, Any], stand_ins: Sequence[Any]) -> None:
        results = optree.tree_leaves(self.forms)
        if not results:
            raise refusal(f"Expected the cell {self.__name__} to return arrays.")
        self.rule = self.func

    def by_rule(self, operands: Sequence[Any], rows: int) -> list[Any] | None:
        if self.caches:  # what it caches must be an array of one example
            self.one(*self.mapped(operator.itemgetter(0), operands))
            self.caches = False
        try:
            args, kwargs = self.arguments(self.mapped(RowArray, operands))
            found = [rows_of(x, rows) for x in optree.tree_leaves(self.func(*args, **kwargs))]
        except ReadsValues:
            return None
        return found if self.fit(found, rows) else None


class ArrayRowsCell(ArrayCell):
    """A call of a cell made by `op`, which takes and returns a row for each example.

    The results are arrays of shape ``(n, *s)``, or a tuple of them, with an axis 1 of one row added.
    """

    def draw_by_rows(self, recording: Recording) -> None:
        if recording.seed is not None:
            refuse_draws(self.__name__, recording.seed)

    def look_at(self, kept: KeptState, watch: KeepingWatch, stand_ins: Sequence[Any]) -> None:
        if mark_of(self.func) is None:  # else its author knows what it does
            super().look_at(kept, watch, stand_ins)

    @property
    def multifold_mark(self) -> str | None:
        """The mark of the cell's author, as ``@multifold.trusted`` sets it, or None.

        Without a mark the cell is tried, as any op is: its first launches show whether it mixes rows.
        """
        return mark_of(self.func)

    def __call__(self, *operands: Any) -> Any:
        args, kwargs = self.arguments(self.mapped(self.as_rows, operands))
        with np.errstate(**self.errors):
            found = [x[:, None] for x in optree.tree_leaves(self.func(*args, **kwargs))]
        return found[0] if self.is_single else tuple(found)


class ReadsValues(Exception):
    """Raised where the code of a cell needs the numbers in an array, which differ from row to row."""


def rows_of(x: Any, rows: int) -> Any:
    """Return a result of a cell as rows; one that depends on no example is repeated for each.

    What is no `RowArray` depends on no example. The shape is ``(rows, *s)``.
    """
    if type(x) is RowArray:
        return x.rows
    return np.broadcast_to(x, (rows, *np.shape(x))).copy()


class RowArray(NDArrayOperatorsMixin):
    """Looks like the array of one example to the code of a cell, and holds the rows of all.

    Parameters
    ----------
    rows : array of shape ``(n, *s)``
        A row for each of ``n`` examples.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.rows.dtype.type if self.rows.ndim == 1 else np.ndarray

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        found = on_row_arrays(ufunc if method == "__call__" else getattr(ufunc, method), inputs, kwargs)
        if out is None:
            return found
        if type(out[0]) is not RowArray:
            raise ReadsValues
        if out[0].rows.ndim == 1:  # a number: the name gets another one
            return found
        # Parts of the array are parts of its rows, and see the change as in the loop.
        np.copyto(out[0].rows, found.rows, casting="same_kind")
        return out[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return on_row_arrays(func, args, kwargs)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise ReadsValues

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "dtype", "size"):
            return getattr(self.rows[0], name)
        if name == "T":
            return on_row_arrays(np.transpose, (self,), {})
        if name.startswith("_") or name in ("item", "tolist", "tobytes") or not hasattr(np.ndarray, name):
            raise ReadsValues
        return lambda *args, **kwargs: on_row_arrays(of_arrays(name), (self, *args), kwargs)

    def __len__(self) -> int:
        return len(self.rows[0])

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        if not is_basic(index):
            raise ReadsValues
        return RowArray(self.rows[(slice(None), *(index if type(index) is tuple else (index,)))])

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self[index].rows
        new = value.rows if type(value) is RowArray else value
        if np.ndim(new) != (part.ndim if type(value) is RowArray else 0):
            raise ReadsValues
        self.rows[(slice(None), *(index if type(index) is tuple else (index,)))] = new

    def __bool__(self) -> bool:
        raise ReadsValues

    __float__ = __int__ = __index__ = __complex__ = __contains__ = __format__ = __bool__  # type: ignore[assignment]
    __hash__ = object.__hash__


def on_row_arrays(func: Any, args: Any, kwargs: Any) -> Any:
    """Run a function of NumPy on the rows of each `RowArray` among its arguments, by its rule.

    Return its result with a `RowArray` in the place of each array. Raise `ReadsValues` if no rule tells how
    it runs on rows, or if the result has another number of rows.
    """
    leaves, structure = optree.tree_flatten((tuple(args), dict(kwargs)), none_is_leaf=True)
    with_rows = [x for x in leaves if type(x) is RowArray]
    ones = [x.rows[0] if type(x) is RowArray else x for x in leaves]
    own = {id(one) for one, x in zip(ones, leaves, strict=True) if type(x) is RowArray}
    own_args, own_kwargs = optree.tree_unflatten(structure, ones)
    rule = on_rows(func, own_args, own_kwargs, lambda x: id(x) in own)
    if rule is None:
        raise ReadsValues
    filled = [x.rows if type(x) is RowArray else x for x in leaves]
    args_of_rows, kwargs_of_rows = optree.tree_unflatten(structure, filled)
    found = rule(*args_of_rows, **kwargs_of_rows)
    if len(found) != len(with_rows[0].rows):
        raise ReadsValues
    return optree.tree_map(RowArray, found)


def stand_in(x: Any) -> Any:
    """Return an array in the form of a pending one, for a dry run; anything else as it is.

    The array has ones or zeros in it; see `ArrayForm.stand_in`.
    """
    return x.form.stand_in() if type(x) is PendingArray else x
