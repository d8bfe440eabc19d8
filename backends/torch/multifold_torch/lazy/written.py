"""Tensors that were computed, and that a program then writes pending values into.

``out = torch.zeros(3, 4); out[0] = layer(x)``: from there on ``out`` stands for a pending tensor, under all
names that the program has for it. Its memory is taken away, so that whatever else asks for it gets an
error. That is right where nothing else sees the memory: no other tensor, and no array of NumPy.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import optree
import torch
from torch import Tensor

from multifold.errors import RecordError
from multifold.lazy.current import recording_of
from multifold_torch.lazy.filling import FILLED, Filling
from multifold_torch.lazy.pending import Pending, Settled


class Written(Tensor):
    """A computed tensor that now stands for a pending one: functions that get it get ``pending``.

    Attributes
    ----------
    stands_for : Pending or Filling
        What it stands for: a pending tensor, or parts that are put together when it is first asked for.
    """

    stands_for: Pending | Filling

    @property
    def pending(self) -> Pending:
        """The pending tensor that it stands for."""
        found = self.stands_for
        if isinstance(found, Filling):
            found = found.together()
            found.written = weakref.ref(self)
            self.stands_for = found
        return found

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        filling = args[0].stands_for if args and type(args[0]) is Written else None
        if isinstance(filling, Filling):
            if func is Tensor.__setitem__ and filling.write(*args[1:]):
                return None
            found = FILLED[func](filling, *args[1:], **(kwargs or {})) if func in FILLED else None
            if found is not None:
                return found
        return func(*with_pending(args), **with_pending(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*with_pending(args), **with_pending(kwargs or {}))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, **_: Any) -> str:
        return repr(self.pending)

    def __str__(self) -> str:
        return str(self.pending)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.pending.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.pending.__deepcopy__(memo)


def is_pending(x: Any) -> bool:
    """Return whether ``x`` is a pending or settled tensor, or a computed one that stands for such."""
    return isinstance(x, (Pending, Written))


def with_pending(x: Any) -> Any:
    """Return a structure in which each `Written` tensor is replaced by its pending tensor."""
    return optree.tree_map(lambda y: y.pending if type(y) is Written else y, x, none_is_leaf=True)


def let_stand(x: Tensor, found: Pending) -> None:
    """Turn the computed ``x`` into a `Written` tensor for ``found``, as if it were changed in place.

    Its memory is freed. Both must have one form.
    """
    found.version = 1 if x.is_inference() else x._version + 1
    stand(x, found)
    found.written = weakref.ref(x)


def may_fill(x: Tensor, index: Any, value: Any) -> bool:
    """Let a pending ``value`` be the part of the computed ``x`` at ``index``; return whether it is.

    Then ``x`` is a `Written` tensor, whose parts are kept as they are written; see `Filling`. It is not if
    it needs a gradient, or is a view. The order in which numbers are drawn depends on strides, so with a
    seed nothing is kept.
    """
    recording = recording_of()
    if recording.seed is not None or x.requires_grad or x._is_view():
        return False
    filling = Filling(x)
    if not filling.write(index, value):
        return False
    stand(x, filling)
    recording.recorder.note_filled(recording, x)
    return True


def stand(x: Tensor, found: Pending | Filling) -> None:
    """Make a `Written` tensor of the computed ``x``, which stands for ``found``."""
    torch._C._swap_tensor_impl(x, found.form.new())  # the new one goes, with the memory
    x.__class__ = Written
    x.stands_for = found


def give_back(found: Settled) -> None:
    """Let the `Written` tensor that stands for ``found``, if any, be a tensor as any other, with its value.

    What asks for its memory gets that then. It stays as it is where PyTorch keeps its value for a gradient.
    """
    x = found.written() if hasattr(found, "written") else None
    if type(x) is not Written or x.stands_for is not found:
        return
    try:
        found.own()
        torch._C._swap_tensor_impl(x, found.value)
    except (RecordError, RuntimeError):
        return
    del x.stands_for
    x.__class__ = Tensor
    found.host = x


def is_alone(x: Tensor) -> bool:
    """Return whether no tensor or NumPy array shares the memory of ``x``, besides the base of a view."""
    if type(x) is not Tensor or x.layout is not torch.strided:
        return False
    storage = x.untyped_storage()
    owners = torch._C._storage_Use_Count(storage._cdata)
    # That of an array of NumPy cannot be resized. Each tensor is an owner, and so is `storage`.
    return storage.resizable() and owners == (3 if x._is_view() else 2)


def index_of(x: Tensor, base: Tensor) -> tuple[Any, ...] | None:
    """Return the index of integers and slices that takes ``x`` out of ``base``; None if there is none.

    >>> base = torch.zeros(3, 4, 5)
    >>> index_of(base[1, :, 2], base), index_of(base.flatten(), base)
    ((1, slice(0, 4, None), 2), None)
    """
    offset = x.storage_offset() - base.storage_offset()
    if not base.is_contiguous() or not base.numel():
        return None
    starts = [offset // step % size for step, size in zip(base.stride(), base.shape, strict=True)]
    for axes in itertools.combinations(range(base.dim()), x.dim()):
        sizes = dict(zip(axes, x.shape, strict=True))
        index = tuple([slice(i, i + sizes[axis]) if axis in sizes else i for axis, i in enumerate(starts)])
        like = base.detach()[index]
        if (like.shape, like.stride(), like.storage_offset()) == (x.shape, x.stride(), x.storage_offset()):
            return index
    return None
