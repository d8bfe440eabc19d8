"""Pending arrays: what a program of NumPy holds in the place of an array that is not computed yet.

NumPy asks an object what its functions do with it (``__array_ufunc__``, ``__array_function__``). A pending
array records them. Where NumPy needs the numbers, it asks for ``__array__``: that is a read, and so are
conditions, numbers and text. To ``isinstance`` it is an array, or a number of NumPy where the loop has one.

As in PyTorch, a change in place lets the pending array stand for another call, and a view of what was
changed is refused wherever it is used.
"""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from types import MethodType
from typing import Any, NoReturn

import numpy as np
import optree
from numpy.lib.mixins import NDArrayOperatorsMixin

from multifold._numpy.lazy.rules import of_arrays
from multifold.lazy.current import CURRENT, after_run, recording_of, refusal
from multifold.lazy.forms import PendingForm, PendingForms
from multifold.lazy.pending_array import METHODS, PendingNumbers, with_reads

SET_CLASS = object.__dict__["__class__"].__set__  # `__class__` says what the loop has
"""Makes an object one of another class."""


class ArrayForm(PendingForm):
    """The form of a pending array: shape, dtype, and whether it is a scalar of NumPy, as a sum is."""

    __slots__ = ("is_number",)

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], is_number: bool) -> None:
        super().__init__(PendingArray, shape, dtype)
        self.is_number = is_number

    def stand_in(self) -> Any:
        """Return an array of this form for a dry run: zeros for integers and bools, else ones.

        Integers may be indices, and 0 is a valid one for any array that is not empty. The array is a scalar
        of NumPy if ``is_number``.
        """
        make = np.zeros if self.dtype.kind in "iub" else np.ones
        found = make(self.shape, self.dtype)
        return found[()] if self.is_number else found


FORMS = PendingForms(ArrayForm)


def form_of(x: Any) -> ArrayForm:
    """Return the form (shape, dtype, scalar or not) of an array or a scalar of NumPy.

    Equal forms are one object, which is made when it is first asked for.
    """
    found: ArrayForm = FORMS.get(x.shape, x.dtype, isinstance(x, np.generic))
    return found


class PendingArray(PendingNumbers, NDArrayOperatorsMixin):
    """A NumPy array that is not computed yet, or a scalar; functions and operators on it are recorded.

    To `isinstance` it is what the loop has there. `LazyRecorderBase` says what its slots hold.
    """

    __slots__ = (
        *("base", "form", "host", "node", "place", "seen", "value", "version"),
        *(() if hasattr(NDArrayOperatorsMixin, "__weakref__") else ("__weakref__",)),  # NumPy 1 has it
    )

    base: Any
    form: ArrayForm
    host: Any
    node: Any
    place: Any
    seen: int
    value: Any
    version: int

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self.form.dtype.type if self.form.is_number else np.ndarray

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        func = ufunc if method == "__call__" else getattr(ufunc, method)
        out = kwargs.get("out")
        if out is None:
            return dispatch(func, inputs, kwargs)
        if method == "at" or len(out) != 1:
            refuse(f"changed by {ufunc.__name__}.{method}")
        del kwargs["out"]
        return changed(out[0], func, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        found = dispatch(func, args, kwargs)
        if out is None:
            return found
        np.copyto(out, found)
        return out

    @property
    def T(self) -> Any:  # noqa: N802 - as NumPy calls it
        """A pending array with the axes in reverse order."""
        return dispatch(np.transpose, (self,), {})

    def __getattr__(self, name: str) -> Any:
        if name in RECORDED:
            return MethodType(RECORDED[name], self)
        if name in READ:
            return getattr(self._read(), name)
        if hasattr(np.ndarray, name) and not name.startswith("__"):  # those say what kind of object it is
            refuse(f"asked for {name!r}")
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self.form.shape:
            row = np.empty(self.form.shape[1:], self.form.dtype)
            form = form_of(row if row.shape else row[()])
            recording = recording_of()
            return recording.recorder.entry(recording, self, index, form)
        if not is_basic(index):
            return dispatch(operator.getitem, (self, without_masks(with_reads(index))), {})
        found = dispatch(operator.getitem, (self, index), {})
        if type(found) is PendingArray and found.base is not None:
            recording_of().recorder.note_part(found, self, index)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        self._becomes(record(with_item, self, with_reads(index), value))

    def __contains__(self, x: Any) -> bool:
        return with_reads(x) in self._read()

    def _settle(self, value: Any) -> None:
        """Become a `SettledArray` that stands for ``value``, and let go of the node and of the base."""
        SET_CLASS(self, SettledArray)
        self.value = value
        self.node = self.host = self.base = self.place = None

    def _becomes(self, found: PendingArray) -> PendingArray:
        """Stand for the same call as ``found`` from now on, as after a change in place.

        Return this array. A larger array of which it is a part by indices changes as well; if it is another
        view, as ``x.T``, its base and all other views of that are out of date from now on. Raise a
        `RecordError` if the shapes differ, or if it is a view of an array that is no pending one.
        """
        if found.shape != self.form.shape:
            raise refusal(
                f"A change in place would make {found.shape} of {self!r}.", "write it out of place."
            )
        recording_of().note_changed(self)
        self.node, self.host = found.node, None
        self.version += 1
        if self.place is not None:  # what it is a part of has it, too
            whole, index = self.place
            whole._becomes(record(with_item, whole, index, self))
            self.seen = self.base.version
        elif type(self.base) is PendingArray:  # it has other values now, and so have other views of it
            self.base._spoil()
            self.base = None
        elif self.base is not None:
            refuse("changed in place, as a view of an array that the program did not compute")
        return self

    def _spoil(self) -> None:
        """Mark this array as out of date, since a view of it was changed in place.

        Whatever uses it raises a `RecordError`.
        """
        self.version = -1

    def __repr__(self) -> str:
        return f"<pending array {self.form.shape} {self.form.dtype}, {self.node!r}>"

    def __str__(self) -> str:
        return str(self._read())

    def __hash__(self) -> int:
        return hash(self._read())  # of a number it is that of Python's; NumPy refuses that of an array

    def __copy__(self) -> Any:
        return dispatch(np.copy, (self,), {})

    def __deepcopy__(self, memo: Any) -> Any:
        return self if CURRENT.recording is None else self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse("pickled")


class SettledArray(PendingArray):
    """A pending array whose run has ended: whatever is done with it is done with its ``value``."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        kwargs = with_values(kwargs)
        if any(issubclass(type(x), np.generic) for x in kwargs.get("out", ())):  # as in x += 1
            del kwargs["out"]  # the name gets another number
        return getattr(ufunc, method)(*with_values(inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*with_values(args), **with_values(kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.value[index] = value

    def _read(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)

    def __copy__(self) -> Any:
        return copy.copy(self.value)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.value, memo)

    @property
    def T(self) -> Any:  # noqa: N802 - as NumPy calls it
        """The value with its axes in reverse order."""
        return self.value.T


def with_values(x: Any) -> Any:
    """Return nested arguments with values in the place of `SettledArray`s."""
    return optree.tree_map(lambda y: y.value if type(y) is SettledArray else y, x, none_is_leaf=True)


def dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    """Record ``func(*args, **kwargs)``, or answer it: `ANSWERS` has functions that are not recorded.

    Those read values, or make arrays at once. Return a pending array for each array of the result, or the
    answer. Raise a `RecordError` outside of a batched program.
    """
    recording = recording_of()
    return recording.recorder.dispatch(recording, func, tuple(args), kwargs)


def record(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Record ``func(*args, **kwargs)`` as a call, and return its result with pending arrays.

    If no pending array is among the arguments, and all arrays there are the same for all examples, it runs
    at once, and its own result is returned. Raise a `RecordError` outside of a batched program.
    """
    recording = recording_of()
    return recording.recorder.recorded(recording, None, func, args, kwargs)


def is_basic(index: Any) -> bool:
    """Return whether an index has only int, slices of int, None and ``...``, so that it takes a view."""
    parts = index if type(index) is tuple else (index,)
    return all(
        part is None
        or part is Ellipsis
        or type(part) is int
        or (
            type(part) is slice
            and all(end is None or type(end) is int for end in (part.start, part.stop, part.step))
        )
        for part in parts
    )


def without_masks(index: Any) -> Any:
    """Return an index with arrays of row numbers in the place of boolean masks.

    The length of such an array tells the shape of what is indexed by it; that of a mask does not.

    >>> without_masks(np.array([True, False, True]))
    array([0, 2])
    """
    parts = index if type(index) is tuple else (index,)
    found: list[Any] = []
    for part in parts:
        is_mask = isinstance(part, np.ndarray) and part.dtype == bool and part.ndim > 0
        found.extend(np.nonzero(part) if is_mask else [part])
    return tuple(found) if len(found) > 1 or type(index) is tuple else found[0]


def with_item(x: np.ndarray, index: Any, value: Any) -> np.ndarray:
    """Return a copy of ``x`` in which ``x[index]`` is ``value``."""
    found = x.copy()
    found[index] = value
    return found


def converted(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Return a copy of ``x`` with another dtype."""
    return np.asarray(x).astype(dtype)


def changed(x: Any, func: Any, inputs: Any, kwargs: Any) -> Any:
    """Run ``func(*inputs, **kwargs, out=(x,))``, and return ``x``, or what stands for it now.

    A pending ``x`` stands for the result from now on; see `PendingArray._becomes`. If it is a scalar, the
    result is returned and ``x`` stays: ``x += 1`` gives the name another number. Raise a `TypeError` if the
    dtype of the result can't be cast to that of ``x``.
    """
    if type(x) is not PendingArray:
        return func(*with_reads(inputs), **with_reads(kwargs), out=(x,))
    runs_at_once = recording_of().recorder.raises()
    found = dispatch(func, inputs, kwargs) if runs_at_once else record(func, *inputs, **kwargs)
    if x.form.is_number:
        return found  # the name gets another number
    if found.dtype != x.form.dtype:
        if not np.can_cast(found.dtype, x.form.dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast ufunc {func.__name__!r} output from {found.dtype!r} to {x.form.dtype!r} "
                "with casting rule 'same_kind'"
            )
        found = record(converted, found, x.form.dtype) if type(found) is PendingArray else found
    return x._becomes(found if type(found) is PendingArray else record(with_item, x, ..., found))


def refuse(what: str) -> NoReturn:
    """Raise the `RecordError` which says that a pending array cannot be ``what``, as ``"pickled"``."""
    raise refusal(f"An array that is not computed yet cannot be {what}.", after_run())


def own_value(form: ArrayForm, x: Any) -> Any:
    """Return a copy of ``x`` with the shape and dtype of ``form``; a NumPy scalar if ``form.is_number``."""
    return np.asarray(x, form.dtype)[()] if form.is_number else np.array(x, form.dtype).reshape(form.shape)


def reading(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads pending arrays among its arguments, and then runs ``func`` at once."""

    @functools.wraps(func)
    def answer(*args: Any, **kwargs: Any) -> Any:
        return func(*with_reads(args), **with_reads(kwargs))

    return answer


def recorded(name: str) -> Callable[..., Any]:
    """Return a function ``f(x, ...)`` that records the call ``x.name(...)`` of the pending array ``x``.

    It returns pending arrays, or an answer; see `dispatch`.
    """
    func = of_arrays(name)
    return lambda x, *args, **kwargs: dispatch(func, (x, *args), kwargs)


RECORDED = {name: recorded(name) for name in METHODS.split()}
"""Methods that are recorded, by name."""

READ = frozenset(["item", "tolist", "tobytes", "nonzero"])
"""Methods of which the value is read."""


def like(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the arguments of ``func``, `numpy.zeros_like` say, which runs at once.

    In the place of its first argument, if that is pending, ``func`` gets an empty array of its shape and
    dtype. Other pending arguments are read: the example waits.
    """

    def made(x: Any, *args: Any, **kwargs: Any) -> Any:
        model = np.empty(x.shape, x.dtype) if type(x) is PendingArray else x
        return func(model, *with_reads(args), **with_reads(kwargs))

    return made


def writing(func: Any) -> Callable[..., Any]:
    """Return an answer for a function, as `numpy.copyto`, that writes to its first argument.

    A pending one stands for a recorded copy with what is written; into another one values are written that
    are read.
    """

    @functools.wraps(func, assigned=("__name__",))
    def with_written(x: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        found = x.copy()
        func(found, *args, **kwargs)
        return found

    def answer(x: Any, *args: Any, **kwargs: Any) -> None:
        if type(x) is PendingArray:
            x._becomes(record(with_written, x, *args, **kwargs))
        else:
            func(x, *with_reads(args), **with_reads(kwargs))

    return answer


WRITES = np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis


def of_sizes(func: Any) -> Callable[..., Any]:
    """Return an answer for a function, as `numpy.repeat`, whose result has a shape by its other arguments.

    Those are read, if they are pending; the first one is not.
    """

    def answer(x: Any, *sizes: Any, **options: Any) -> Any:
        return record(func, x, *with_reads(sizes), **with_reads(options))

    return answer


OF_SIZES = (
    *(np.repeat, np.tile, np.pad, np.split, np.array_split, np.reshape, np.resize, np.broadcast_to),
    *(of_arrays("repeat"), of_arrays("reshape")),
)


def chosen(condition: Any, *args: Any) -> Any:
    """Answer `numpy.where`: record it with three arguments; given a condition alone, wait for its value."""
    return record(np.where, condition, *args) if args else np.where(with_reads(condition))


READS = (
    *(np.nonzero, np.unique, np.array_equal, np.allclose, np.argwhere, np.flatnonzero, np.searchsorted),
    *(np.array2string, np.array_repr, np.array_str, np.iscomplexobj, np.bincount),
    *(np.save, np.savez, np.savez_compressed, np.savetxt),
)

ANSWERS: dict[Any, Callable[..., Any]] = {
    **{func: reading(func) for func in READS},
    **{func: like(func) for func in (np.zeros_like, np.ones_like, np.empty_like, np.full_like)},
    **{func: writing(func) for func in WRITES},
    **{func: of_sizes(func) for func in OF_SIZES},
    np.where: chosen,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
}
"""Functions that are not recorded, and what answers them."""
