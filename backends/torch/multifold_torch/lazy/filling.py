"""Tensors that a program fills part by part: nothing is recorded for a part that is written or read.

A state for each node of a graph often lies in one tensor, made empty and written row by row::

    states = torch.zeros(3, 4)
    states[0] = cell(x[0], none)
    states[1] = cell(x[1], states[0])
    states[2] = cell(x[2], states[[0, 1]].sum(0))
    return states.mean(0)

Recorded as they stand, these lines would copy all of ``states`` again and again, in launches of few rows,
since examples differ in size. But what ``states[0]`` is was written just before. So parts are kept as they
were written, by their indices: ``states[0]`` is what the first cell has returned, ``states[[0, 1]]`` puts
two of them together, and the ``mean`` all three. From then on the tensor stands for what was put together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from multifold.lazy.current import recording_of
from multifold_torch.lazy.forms import TensorForm, form_of_tensor
from multifold_torch.lazy.pending import Pending, record

WHOLE = slice(None)
"""The index of all of an axis."""

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
"""The dtypes of tensors that are integers in an index. One of bytes is a mask."""

NEVER = -2
"""The version that no tensor has: a view of it is out of date."""


class PartPlace(NamedTuple):
    """Where a part lies: on ``axes`` that follow each other it has the index ``key``, and else all.

    ``x[2]`` and ``x[2, :]`` have the axis 0 and the key ``(2,)``, ``x[:, 1, 3]`` the axes 1, 2 and the key
    ``(1, 3)``.
    """

    axes: tuple[int, ...]
    key: tuple[int, ...]


def place_of(index: Any, shape: Sequence[int]) -> PartPlace | None:
    """Return the place that an index names in a tensor of a shape; None for any other kind of index.

    >>> place_of((slice(None), -1), (2, 3)), place_of(slice(0, 2), (2, 3)), place_of(5, (2, 3))
    (PartPlace(axes=(1,), key=(2,)), None, None)
    """
    parts = index if type(index) is tuple else (index,)
    if len(parts) > len(shape):
        return None
    whole = [*map(is_whole, parts, shape)]
    first = whole.index(False) if False in whole else len(parts)
    end = whole.index(True, first) if True in whole[first:] else len(parts)
    numbers = [x for x in map(number_in, parts[first:end]) if x is not None]
    if first == end or len(numbers) < end - first or not all(whole[end:]):
        return None
    sizes = shape[first:end]
    key = [x + size if x < 0 else x for x, size in zip(numbers, sizes, strict=True)]
    if not all(0 <= x < size for x, size in zip(key, sizes, strict=True)):
        return None
    return PartPlace((*range(first, end),), (*key,))


def is_whole(x: Any, size: int) -> bool:
    """Return whether a part of an index takes all of its axis, which has a length of ``size``."""
    return type(x) is slice and (x == WHOLE or x == slice(0, size))


def number_in(x: Any) -> int | None:
    """Return the integer that a part of an index is; None for anything else."""
    if type(x) is int:
        return x
    return operator.index(x) if isinstance(x, np.integer) or (type(x) is Tensor and is_number(x)) else None


def is_number(x: Any) -> bool:
    """Return whether a part of an index is a tensor of integers without axes, which names one row."""
    return isinstance(x, Tensor) and not x.dim() and x.dtype in INTEGERS


def numbers_in(x: Any, size: int) -> list[int] | None:
    """Return the integers of a list, or of a computed tensor of one axis; None for any other index.

    They count from the beginning of an axis of length ``size``, as negative ones do not.
    """
    if type(x) is Tensor and x.dim() == 1 and x.dtype == torch.int64:
        x = x.tolist()
    if type(x) is not list or not all(type(i) is int and -size <= i < size for i in x):
        return None
    return [i + size if i < 0 else i for i in x]


class Filling:
    """What a computed tensor stands for while a program writes pending parts into it, and reads them.

    Parameters
    ----------
    x : Tensor
        The tensor, which needs no gradient. Its memory stays what it was.

    Attributes
    ----------
    form : TensorForm
        Of the tensor.
    version : int
        How often it was changed in place.
    """

    def __init__(self, x: Tensor) -> None:
        self.form: TensorForm = form_of_tensor(x)
        self.version = 0 if x.is_inference() else x._version
        self.before = x.detach()
        self.with_gradients = torch.is_grad_enabled()
        self.axes: tuple[int, ...] = ()
        self.parts: dict[tuple[int, ...], Pending] = {}
        self.made = recording_of().made
        self.begin: int | None = None  # where the first view of a part is among these

    def write(self, index: Any, value: Any) -> bool:
        """Take ``value`` for the part at ``index``, if both are of the kind that is kept here."""
        own = getattr(value, "stands_for", None)
        if own is self or torch.is_grad_enabled() != self.with_gradients:
            return False
        value = value if own is None else value.pending
        if type(value) is Pending and value.form.requires_grad and not self.with_gradients:
            value = value.detach()
        numbers = self.numbers_in(index)
        if numbers is not None:
            return self.write_rows(numbers, value)
        place = place_of(index, self.form.shape)
        if place is None or (self.parts and place.axes != self.axes):
            return False
        shape = torch.Size([n for i, n in enumerate(self.form.shape) if i not in place.axes])
        if type(value) is not Pending or not self.is_like(value, shape):
            return False
        recording_of().recorder.refuse_stale(value)
        self.axes = place.axes
        self.put(place.key, value if value.form.shape == shape else record(Tensor.reshape, value, shape))
        self.version += 1
        return True

    def write_rows(self, numbers: Sequence[int], value: Any) -> bool:
        """Take the rows of ``value`` for parts along the first axis, if they are as many, and differ."""
        rows = torch.Size([len(numbers), *self.form.shape[1:]])
        if type(value) is not Pending or value.form.shape != rows or not self.is_like(value, rows):
            return False
        if not numbers or len(set(numbers)) < len(numbers):
            return False
        recording = recording_of()
        recording.recorder.refuse_stale(value)
        self.axes = (0,)
        for row, number in enumerate(numbers):
            self.put((number,), recording.recorder.entry(recording, value, row, value.form.entry))
        self.version += 1
        return True

    def put(self, key: tuple[int, ...], value: Pending) -> None:
        """Let ``value`` be the part with a key; views of that are out of date then."""
        part = self.parts.get(key)
        if part is None:
            self.parts[key] = part_of(value)
        else:
            part.node, part.form, part.host = value.node, value.form, value.host
            part.version += 1

    def read(self, index: Any) -> Any:
        """Return the part at ``index``, or the parts that a list names; None if it is not kept here."""
        numbers = self.numbers_in(index)
        if numbers is not None:
            return self.listed(numbers)
        place = place_of(index, self.form.shape)
        if place is None or place.axes[: len(self.axes)] != self.axes:
            return None
        if torch.is_grad_enabled() != self.with_gradients:
            return None
        key, rest = place.key[: len(self.axes)], place.key[len(self.axes) :]
        part = self.parts.get(key)
        recording = recording_of()
        if part is None:  # what was there before becomes a part, which is written with what is read here
            begun = self.before[self.index(key)]
            value = recording.recorder.recorded(recording, None, Tensor.clone, (begun,), {})
            part = self.parts[key] = part_of(value)
        self.begin = len(self.made) if self.begin is None else self.begin
        found = recording.recorder.new(recording, part.node, part.form, part)
        recording.recorder.note_part(found, part, ...)
        return found[rest] if rest else found

    def selected(self, axis: int, index: Tensor) -> Any:
        """Return the parts that a tensor names, as `torch.index_select` does; None if that is not known."""
        numbers = self.numbers_in(index) if axis == 0 else None
        return None if numbers is None else self.listed(numbers)

    def numbers_in(self, index: Any) -> list[int] | None:
        """Return the integers of an index that is a list or tensor; None if it may not be one."""
        if type(index) is tuple or not self.form.shape or (self.parts and self.axes != (0,)):
            return None
        return numbers_in(index, self.form.shape[0])

    def listed(self, numbers: Sequence[int]) -> Tensor:
        """Return a new tensor of the parts with these indices along the first axis."""
        parts = [self.parts.get((i,)) for i in numbers]
        if all(x is None for x in parts):
            return self.before[[*numbers]]
        rows = [self.before[i] if x is None else x for i, x in zip(numbers, parts, strict=True)]
        found: Tensor = record(torch.stack, rows)
        return found

    def together(self) -> Pending:
        """Record what puts all parts together, where a part that was not written is what it was before."""
        keys = sorted(self.parts)
        parts = [self.parts[key] for key in keys]
        shape = self.form.shape
        found: Pending
        with torch.set_grad_enabled(self.with_gradients):
            if len(keys) < math.prod(shape[i] for i in self.axes):
                found = record(with_parts, self.before, self.axes[0], tuple(keys), parts)
            else:
                found = record(torch.stack, parts, self.axes[0])
                found = found if len(self.axes) == 1 else record(Tensor.reshape, found, shape)
        found.version = self.version
        self.hand_over(found)
        return found

    def hand_over(self, found: Pending) -> None:
        """Make views of the parts, as ``states[0]``, views of what these were put together to."""
        keys = {id(part): key for key, part in self.parts.items()}
        for one in self.made[self.begin :] if self.begin is not None else ():
            x = one()
            key = keys.get(id(x.base)) if type(x) is Pending else None
            if key is not None:
                part = self.parts[key]
                if x.place is not None and x.place[0] is part:
                    x.place = found, self.index(key)
                x.seen = found.version if x.seen == part.version else NEVER
                x.base = found

    def index(self, key: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the index of the part with a key."""
        return (*[WHOLE] * self.axes[0], *key)

    def note_view(self, x: Pending, index: Any) -> None:
        """Make ``x``, which was just written to the part at ``index``, a view of it."""
        place = place_of(index, self.form.shape)
        if place is not None:
            part = self.parts[place.key]
            x.base, x.place, x.seen = part, (part, ...), part.version
            self.begin = 0

    def is_like(self, value: Pending, shape: torch.Size) -> bool:
        """Return whether a value may be written to a part of a shape as it is, but for axes of length 1."""
        form = value.form
        more = len(form.shape) - len(shape)
        is_same = form.shape == shape or (
            more > 0 and form.shape[more:] == shape and form.shape[:more].numel() == 1
        )
        return is_same and (form.dtype, form.device) == (self.form.dtype, self.form.device)


def part_of(value: Pending) -> Pending:
    """Return a pending tensor for what ``value`` stands for now, which no change of ``value`` changes.

    The program does not hold it, so it is none of those that the example has made.
    """
    part: Pending = value.form.new()
    part.node, part.form, part.host = value.node, value.form, value.host
    part.base = part.place = None
    part.version = 0
    return part


def with_parts(x: Tensor, axis: int, keys: Sequence[Sequence[int]], parts: Sequence[Tensor]) -> Tensor:
    """Return a copy of ``x`` in which each of ``parts`` lies at its key on the axes from ``axis`` on.

    >>> with_parts(torch.zeros(3, 2), 0, [(2,)], [torch.ones(2)])
    tensor([[0., 0.],
            [0., 0.],
            [1., 1.]])
    """
    found = x.clone()
    places = [torch.tensor(own, device=x.device) for own in zip(*keys, strict=True)]
    found[(*[WHOLE] * axis, *places)] = torch.stack([*parts], axis)
    return found


def of_form(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers ``func`` of a tensor that is being filled by its form alone."""
    return lambda filling, *args, **kwargs: func(filling.form.real, *args, **kwargs)


OF_FORM: Sequence[Any] = [
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    *(Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.ndim.__get__),
    *(Tensor.new, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor),
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like),
]
"""Functions of a tensor that do not ask for its values."""

FILLED: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: Filling.read,
    **dict.fromkeys((torch.index_select, Tensor.index_select), Filling.selected),
    **{func: of_form(func) for func in OF_FORM},
}
"""What is asked of a tensor that is being filled, and how it is answered; None if it cannot be."""
