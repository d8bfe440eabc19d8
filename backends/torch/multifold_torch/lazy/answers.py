"""Answers: what a function of PyTorch does that has met a pending tensor, where it is not recorded.

Shape, dtype and device are known. Conditions, numbers and text are *reads*: the example waits for the
value. Rows by integers are parts of what is recorded, and cost no launch. A change in place lets the
tensor stand for another call. What needs memory or a graph that are not there is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import optree
import torch
from torch import Tensor

from multifold.lazy.current import recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold.lazy.recorder import NumberRead
from multifold_torch.lazy.filling import is_number
from multifold_torch.lazy.in_place import changed, with_item
from multifold_torch.lazy.packing import RECURRENT_FUNCTIONS, of_packed, packed, padded
from multifold_torch.lazy.pending import (
    AS_CELL,
    Pending,
    needs_gradient,
    pending,
    record,
    refuse,
    refuse_backward,
    version_of,
)
from multifold_torch.lazy.written import is_pending


def reading(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``func`` that waits for pending arguments and gets their values."""

    def answer(x: Any, *args: Any, **kwargs: Any) -> Any:
        if type(x) is Pending and not args and not kwargs:  # most reads: `x.item()`, `bool(x)`
            return func(recording_of().recorder.read(x))
        return func(with_reads(x), *with_reads(args), **with_reads(kwargs))

    return answer


def reading_without_gradient(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``func`` like `reading`, which raises `RecordError` as `refuse_gradient` does."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        refuse_gradient(func, args)
        return func(*with_reads(args), **with_reads(kwargs))

    return answer


def chosen(condition: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer `torch.where`: record it with three arguments; given a condition alone, wait for its value."""
    if args or kwargs:
        return record(torch.where, condition, *args, **kwargs)
    return torch.where(with_reads(condition))


def holds_pending(args: Any) -> bool:
    """Return whether there is a pending tensor among the leaves of ``args``, a structure."""
    return any(map(is_pending, optree.tree_leaves(args)))


def refuse_gradient(func: Any, args: Any) -> None:
    """Raise `RecordError` if `needs_gradient`, since ``func`` reads values and would lose the gradient."""
    if needs_gradient(args):
        raise refusal(
            f"{func.__name__} reads values here, and its result would have no gradient.",
            "detach() what is read; x[mask] keeps the gradient.",
        )


def entry(x: Pending, index: int) -> Pending:
    """Return row ``index`` of ``x`` as a pending tensor.

    It is a part of what is recorded, and costs no launch. Inside of ``no_grad()`` it is a call of its own:
    no gradient flows through it, also where that is left.
    """
    found: Pending
    if x.form.requires_grad and not torch.is_grad_enabled():
        found = record(Tensor.__getitem__, x, index)
        found.place = x, index
        return found
    recording = recording_of()
    found = recording.recorder.entry(recording, x, index, x.form.entry)
    return found


def entries(x: Pending) -> Iterator[Pending]:
    """Return an iterator over the rows of a pending tensor, each as `entry` returns it.

    Raises `TypeError` for one without axes.
    """
    if not x.form.shape:
        raise TypeError("iteration over a 0-d tensor")
    return iter([entry(x, index) for index in range(x.form.shape[0])])


def unbound(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """Answer `torch.unbind`: return the parts of ``x`` along axis ``dim`` as a tuple."""
    return tuple(entries(x if dim == 0 else x.transpose(0, dim)))


def item_of(x: Any, index: Any) -> Any:
    """Answer ``x[index]``: return a row by an integer without a launch, else what is recorded.

    Masks and pending ends of slices are read first: the example waits for them.
    """
    if type(index) is int and isinstance(x, Pending) and x.form.shape:
        return entry(x, index)
    if is_number(index):
        return viewed(record(row_at, x, index), x)
    if not is_basic(index):
        index = with_known_numbers(index)
        if has_mask(index):
            index = without_masks(with_reads(index))
            if not holds_pending((x, index)):
                return x[index]
    found = record(Tensor.__getitem__, x, index)
    if isinstance(x, Pending) and is_basic(index):
        found.place = x, index
    return found


def masked(x: Any, mask: Any) -> Any:
    """Answer ``torch.masked_select(x, mask)``, which is ``x[mask]`` of both in one shape."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    x, mask = [y if y.shape == shape else y.expand(shape) for y in (x, mask)]
    return item_of(x, mask) if shape else item_of(x.reshape(1), mask.reshape(1))


def viewed(found: Pending, x: Any) -> Pending:
    """Return a new pending tensor as a view of ``x``, which cannot be changed in place; see `Pending`."""
    if isinstance(x, Pending):
        found.base = x if x.base is None else x.base
        found.seen = version_of(found.base)
        found.place = None, None
    return found


def row_at(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[index]`` for a tensor of one integer, as an operation that `torch.func.vmap` runs."""
    return x[index.reshape(1)].squeeze(0)


def selected(x: Any, dim: Any, index: Any) -> Any:
    """Answer `torch.index_select`: record it; a tensor without axes names a list of one row."""
    return record(torch.index_select, x, dim, index if index.dim() else index.reshape(1))


def repeated(x: Any, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Answer `torch.repeat_interleave`: wait for ``repeats``, and record a selection of rows by them."""
    if repeats is None:
        return torch.repeat_interleave(with_reads(x))
    if dim is None:
        x, dim = x.flatten(), 0
    counts = torch.as_tensor(with_reads(repeats)).expand(x.shape[dim])
    return torch.index_select(x, dim, torch.repeat_interleave(counts))


def with_known_numbers(index: Any) -> Any:
    """Return an index with Python integers where tensors name single rows or are ends of slices.

    Pending ones are read: the example waits for them.
    """
    if type(index) is tuple:
        return tuple([with_known_numbers(part) for part in index])
    if is_number(index):
        return operator.index(index)
    return with_reads(index) if type(index) is slice else index


def is_basic(index: Any) -> bool:
    """Return whether an index is made of integers, slices of integers, None and ``...`` alone.

    What it takes shares the memory of the tensor.
    """
    parts = index if type(index) is tuple else (index,)
    for part in parts:
        kind = type(part)
        if kind is slice:
            if not all(end is None or type(end) is int for end in (part.start, part.stop, part.step)):
                return False
        elif part is not None and part is not Ellipsis and kind is not int:
            return False
    return True


def has_mask(index: Any) -> bool:
    """Return whether an index holds a mask: then the shape of the result depends on values."""
    return any(map(is_mask, optree.tree_leaves(index)))


def is_mask(x: Any) -> bool:
    """Return whether ``x`` is a tensor of bools with at least one axis."""
    return isinstance(x, Tensor) and x.dtype == torch.bool and x.dim() > 0


def without_masks(index: Any) -> Any:
    """Return an index, as a tuple, with ``mask.nonzero(as_tuple=True)`` in the place of each mask."""
    parts = index if type(index) is tuple else (index,)
    return tuple([y for x in parts for y in (x.nonzero(as_tuple=True) if is_mask(x) else [x])])


def repeating(func: Any) -> Callable[..., Any]:
    """Return a version of ``func``, as `Tensor.expand`, whose recorded result cannot be changed in place.

    Such a result may have one number in several places.
    """

    def answer(*args: Any, **kwargs: Any) -> Any:
        found = record(func, *args, **kwargs)
        for x in optree.tree_leaves(found):
            x.place = None, None
        return found

    return answer


def set_item(x: Any, index: Any, value: Any) -> None:
    """Answer ``x[index] = value``: ``x`` then stands for a recorded copy with other values in that part."""
    index = with_known_numbers(index)
    if has_mask(index) or (isinstance(index, Tensor) and index.dtype == torch.bool):
        index = with_reads(index)
    if holds_pending((x, index, value)):
        changed(Tensor.__setitem__, with_item, (x, index, value), {}, {})
    else:
        x[index] = value


def data_of(x: Pending) -> Any:
    """Answer ``x.data``: return ``x`` without gradient, or itself if it has none: both are one memory."""
    return x.detach() if x.form.requires_grad else x


def moved(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer ``x.to(...)``: return ``x`` where nothing changes, else a recorded cast.

    Raises `RecordError` for another kind of device.
    """
    if args and isinstance(args[0], Tensor):
        args = args[0].device, args[0].dtype, *args[1:]
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    if not isinstance(x, Pending):
        is_same = device in (None, x.device) and dtype in (None, x.dtype) and not kwargs.get("copy")
        return x if is_same else x.to(device, dtype)
    if device is not None and device.type != x.form.device.type:
        refuse("moved to another device")
    if dtype in (None, x.form.dtype):
        return x.clone() if kwargs.get("copy") else x
    return record(converted, x, dtype)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x.to(dtype)``."""
    return x.to(dtype)


def on(device: str) -> Callable[..., Any]:
    """Return an answer for ``x.cpu()`` and the like, a function of a pending tensor.

    It returns the tensor if that is on the kind of device, ``"cpu"`` say, and raises `RecordError` if not.
    """
    return lambda x, *_, **__: x if x.form.device.type == device else refuse("moved to another device")


def like(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``func``, as `torch.zeros_like`, that makes a computed tensor of a pending one.

    Only shape, dtype and device of the pending tensor are used.
    """

    def made(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, Pending):
            x = x.form.real
        return func(x, *with_reads(args), **with_reads(kwargs))

    return made


def same_memory(x: Any, *_: Any, **__: Any) -> Any:
    """Answer ``x.contiguous()``: return a pending tensor of the same node, known as a view of ``x``.

    Whether it shares the memory of ``x`` depends on strides, which are not known; so it is refused once
    ``x`` changes.
    """
    recording_of().recorder.refuse_stale(x)
    return pending(x.node, x.form, x)


def from_meta(name: str) -> Callable[[Any], Any]:
    """Return a function that answers the attribute ``name`` of a pending tensor by its form."""
    return lambda x: getattr(x.form.like, name)


def refusing(what: str, hint: str | None = None) -> Callable[..., NoReturn]:
    """Return an answer that raises `RecordError`: a pending tensor cannot be ``what``, with a ``hint``."""
    return lambda *_, **__: refuse(what, hint)


def methods(names: str) -> list[Any]:
    """Return the methods of `torch.Tensor` whose names are the words of ``names``."""
    return [getattr(Tensor, name) for name in names.split()]


def getters(names: str) -> list[Any]:
    """Return the getters of attributes of `torch.Tensor` whose names are the words of ``names``."""
    return [getattr(Tensor, name).__get__ for name in names.split()]


READS = [
    *methods("tolist __index__ __complex__ __contains__ __format__"),
    *methods("nonzero equal allclose is_nonzero bincount argwhere"),
    *(torch.nonzero, torch.equal, torch.allclose, torch.is_nonzero, torch.bincount, torch.argwhere),
    torch._assert_async,
]
READS_WITHOUT_GRADIENT = [
    *methods("numpy __array__ unique unique_consecutive"),
    *(torch.unique, torch.unique_consecutive, torch.Tensor.masked_scatter),
]
NEW = [
    *methods("new new_zeros new_ones new_full new_empty new_tensor"),
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like, torch.randn_like),
    *(torch.rand_like, torch.randint_like),
]

REPEATING = [
    *methods("expand expand_as broadcast_to unfold"),
    *(torch.broadcast_to, torch.broadcast_tensors, torch.meshgrid),
]

STRIDED = [
    *methods("as_strided as_strided_ as_strided_scatter"),
    *(torch.as_strided, torch.as_strided_, torch.as_strided_scatter),
]

ANSWERS: dict[Any, Callable[..., Any]] = {
    **{
        getattr(Tensor, name).__get__: from_meta(name)
        for name in ("shape", "dtype", "ndim", "requires_grad", "layout")
    },
    **dict.fromkeys(getters("is_leaf is_meta is_sparse is_quantized"), lambda x: False),
    **dict.fromkeys(getters("grad_fn grad"), lambda x: None),
    **{func: like(func) for func in NEW},
    **{func: reading(func) for func in READS},
    Tensor.item: NumberRead(lambda number: number, reading(Tensor.item)),
    **{
        func: NumberRead(kind, reading(func))
        for func, kind in ((Tensor.__bool__, bool), (Tensor.__float__, float), (Tensor.__int__, int))
    },
    **{func: reading_without_gradient(func) for func in READS_WITHOUT_GRADIENT},
    Tensor.device.__get__: lambda x: x.form.device,
    Tensor._version.__get__: lambda x: x.version,
    Tensor.is_cuda.__get__: lambda x: x.form.device.type == "cuda",
    Tensor.data.__get__: data_of,
    Tensor.size: lambda x, dim=None: x.form.shape if dim is None else x.form.shape[dim],
    Tensor.dim: lambda x: len(x.form.shape),
    Tensor.numel: lambda x: x.form.shape.numel(),
    Tensor.__len__: lambda x: len(x.form.like),
    Tensor.__iter__: entries,
    Tensor.__getitem__: item_of,
    Tensor.__setitem__: set_item,
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), masked),
    **dict.fromkeys((Tensor.unbind, torch.unbind), unbound),
    torch.where: chosen,
    torch._is_all_true: lambda x: record(torch.all, x),  # vmap would look at the rows of all examples
    torch._is_any_true: lambda x: record(torch.any, x),
    **dict.fromkeys((torch.repeat_interleave, Tensor.repeat_interleave), repeated),
    torch.index_select: selected,
    Tensor.index_select: selected,
    **{func: repeating(func) for func in REPEATING},
    Tensor.contiguous: same_memory,
    Tensor.requires_grad_: lambda x, on=True: (
        x if on == x.form.requires_grad else refuse("a leaf", AS_CELL)
    ),
    Tensor.to: moved,
    Tensor.type_as: moved,
    Tensor.cpu: on("cpu"),
    Tensor.cuda: on("cuda"),
    **dict.fromkeys((Tensor.backward, torch.autograd.backward), lambda *_, **__: refuse_backward()),
    torch.autograd.grad: refusing("differentiated", AS_CELL),
    Tensor.register_hook: refusing("given a hook"),
    **{func: of_packed(func) for func in RECURRENT_FUNCTIONS},
    torch._VF._pack_padded_sequence: packed,
    torch._VF._pad_packed_sequence: padded,
    **dict.fromkeys(STRIDED, refusing("taken apart by its strides")),
    Tensor.retain_grad: refusing("asked for its gradient"),
    **dict.fromkeys(methods("data_ptr untyped_storage storage"), refusing("asked for its memory")),
}
