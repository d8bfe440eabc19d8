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
    """The form of a pending array; it tells, too, whether that is a number of NumPy, as a sum is."""

    __slots__ = ("is_number",)

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], is_number: bool) -> None:
        super().__init__(PendingArray, shape, dtype)
        self.is_number = is_number

    def stand_in(self) -> Any:
        """Return an array of this form for a dry run: its numbers may look something up."""
        make = np.zeros if self.dtype.kind in "iub" else np.ones
        found = make(self.shape, self.dtype)
        return found[()] if self.is_number else found


FORMS = PendingForms(ArrayForm)


def form_of(x: Any) -> ArrayForm:
    """Return the form of an array or a number of NumPy."""
    found: ArrayForm = FORMS.get(x.shape, x.dtype, isinstance(x, np.generic))
    return found


class PendingArray(PendingNumbers, NDArrayOperatorsMixin):
    """An array whose values are not computed yet; `LazyRecorderBase` of the engine names its slots."""

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
        if kwargs.get("out") is not None:
            refuse("written to out=")
        return dispatch(func, args, kwargs)

    @property
    def T(self) -> Any:  # noqa: N802 - as NumPy calls it
        """The array with its axes in the other order."""
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
        """Stand for a value from now on."""
        SET_CLASS(self, SettledArray)
        self.value = value
        self.node = self.host = self.base = self.place = None

    def _becomes(self, found: PendingArray) -> PendingArray:
        """Stand for what another one stands for, as if it were changed in place."""
        if found.shape != self.form.shape:
            raise refusal(
                f"A change in place would make {found.shape} of {self!r}.", "write it out of place."
            )
        self.node, self.host = found.node, None
        self.version += 1
        if self.place is not None:  # what it is a part of has it, too
            whole, index = self.place
            whole._becomes(record(with_item, whole, index, self))
            self.seen = self.base.version
        elif type(self.base) is PendingArray:  # it has other values now, and so have other views of it
            self.base._is_spoilt()
            self.base = None
        elif self.base is not None:
            refuse("changed in place, as a view of an array that the program did not compute")
        return self

    def _is_spoilt(self) -> None:
        """Note that a view was changed: the values are others now."""
        self.version = -1

    def __repr__(self) -> str:
        return f"<pending array {self.form.shape} {self.form.dtype}, {self.node!r}>"

    def __copy__(self) -> Any:
        return dispatch(np.copy, (self,), {})

    def __deepcopy__(self, memo: Any) -> Any:
        return self if CURRENT.recording is None else self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse("pickled")


class SettledArray(PendingArray):
    """An array that was pending, after its run: whatever is done with it is done with its value."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*with_values(inputs), **with_values(kwargs))

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)

    def __copy__(self) -> Any:
        return copy.copy(self.value)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.value, memo)

    @property
    def T(self) -> Any:  # noqa: N802 - as NumPy calls it
        """The array with its axes in the other order."""
        return self.value.T


def with_values(x: Any) -> Any:
    """Return arguments with values in the place of settled arrays."""
    return optree.tree_map(lambda y: y.value if type(y) is SettledArray else y, x, none_is_leaf=True)


def dispatch(func: Any, args: Any, kwargs: Any) -> Any:
    """Record a function that has met a pending array."""
    recording = recording_of()
    return recording.recorder.dispatch(recording, func, tuple(args), kwargs)


def record(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a function with pending arrays among its arguments."""
    recording = recording_of()
    return recording.recorder.recorded(recording, None, func, args, kwargs)


def is_basic(index: Any) -> bool:
    """Return whether an index takes a part that shares the memory of its array, and needs no read."""
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
    """Return an index with the numbers of rows in the place of masks: how many they are is known then."""
    parts = index if type(index) is tuple else (index,)
    found: list[Any] = []
    for part in parts:
        is_mask = isinstance(part, np.ndarray) and part.dtype == bool and part.ndim > 0
        found.extend(np.nonzero(part) if is_mask else [part])
    return tuple(found) if len(found) > 1 or type(index) is tuple else found[0]


def with_item(x: np.ndarray, index: Any, value: Any) -> np.ndarray:
    """Return an array with other values in one part."""
    found = x.copy()
    found[index] = value
    return found


def converted(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Return an array in another dtype."""
    return np.asarray(x).astype(dtype)


def changed(x: Any, func: Any, inputs: Any, kwargs: Any) -> Any:
    """Let an array stand for what a function computes, as if that were written to it."""
    if type(x) is not PendingArray:
        return func(*with_reads(inputs), **with_reads(kwargs), out=(x,))
    found = record(func, *inputs, **kwargs)
    if x.form.is_number:
        return found  # the name gets another number
    if found.form.dtype != x.form.dtype:
        if not np.can_cast(found.form.dtype, x.form.dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast ufunc {func.__name__!r} output from {found.form.dtype!r} to {x.form.dtype!r} "
                "with casting rule 'same_kind'"
            )
        found = record(converted, found, x.form.dtype)
    return x._becomes(found)


def refuse(what: str) -> NoReturn:
    """Raise the error of what a pending array cannot do."""
    raise refusal(f"An array that is not computed yet cannot be {what}.", after_run())


def own_value(form: ArrayForm, x: Any) -> Any:
    """Return a value as the loop has it: a number of NumPy, or an array that nobody else has."""
    return np.asarray(x, form.dtype)[()] if form.is_number else np.array(x, form.dtype).reshape(form.shape)


def reading(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads the pending arrays among its arguments."""

    @functools.wraps(func)
    def answer(*args: Any, **kwargs: Any) -> Any:
        return func(*with_reads(args), **with_reads(kwargs))

    return answer


def recorded(name: str) -> Callable[..., Any]:
    """Return a method of arrays that is recorded."""
    func = of_arrays(name)
    return lambda x, *args, **kwargs: dispatch(func, (x, *args), kwargs)


RECORDED = {name: recorded(name) for name in METHODS.split()}
"""Methods that are recorded, by name."""

READ = frozenset(["item", "tolist", "tobytes", "nonzero"])
"""Methods of which the value is read."""


def like(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a real array of the shape and dtype of a pending one."""

    def made(x: Any, *args: Any, **kwargs: Any) -> Any:
        model = np.empty(x.shape, x.dtype) if type(x) is PendingArray else x
        return func(model, *with_reads(args), **with_reads(kwargs))

    return made


READS = (
    *(np.nonzero, np.unique, np.array_equal, np.allclose, np.argwhere, np.flatnonzero, np.searchsorted),
    *(np.array2string, np.array_repr, np.array_str, np.iscomplexobj, np.bincount),
)

ANSWERS: dict[Any, Callable[..., Any]] = {
    **{func: reading(func) for func in READS},
    **{func: like(func) for func in (np.zeros_like, np.ones_like, np.empty_like, np.full_like)},
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
}
"""Functions that are not recorded, and what answers them."""
