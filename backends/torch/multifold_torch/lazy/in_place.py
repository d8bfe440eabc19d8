"""Changes in place: a pending tensor that is changed stands for another call from then on.

``x += 1``, ``x[i] = y``, ``relu_(x)`` and ``add(a, b, out=x)`` are recorded as what computes the same out
of place. A computed tensor that is changed by a pending one stands for such a call as well, if nothing else
sees its memory; else the values are read, and it is changed itself.
"""

from __future__ import annotations

import functools
from typing import Any

import optree
import torch
from torch import Tensor

from multifold.lazy.current import recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold_torch.lazy.forms import form_of_tensor
from multifold_torch.lazy.pending import (
    STATEMENTS,
    Pending,
    needs_gradient,
    record,
    refuse,
    refuse_real,
    version_of,
)
from multifold_torch.lazy.rules import with_gradient_of
from multifold_torch.lazy.written import (
    index_of,
    is_alone,
    is_pending,
    let_stand,
    may_fill,
    with_pending,
)


def with_item(x: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy of ``x`` in which the part at ``index`` is ``value``."""
    found = x.clone()
    found[index] = value
    return found


def copied(x: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
    """Return a new tensor equal to ``x`` after ``x.copy_(source)``."""
    return x.clone().copy_(source)


def filled(x: Tensor, value: Any) -> Tensor:
    """Return a new tensor equal to ``x`` after ``x.fill_(value)``."""
    return x.clone().fill_(value)


def zeroed(x: Tensor) -> Tensor:
    """Return zeros of the shape and dtype of ``x``."""
    return x.clone().zero_()


@functools.cache
def in_place(func: Any) -> Any:
    """Return a version of ``func``, as `Tensor.add_`, that changes and returns a copy of its argument.

    Unlike the function out of place it keeps dtype and shape, or raises.
    """

    @functools.wraps(func, assigned=("__name__",))
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return func(x.clone(), *args, **kwargs)

    return call


DRAWS = "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
"""Methods that fill a tensor with random numbers."""

IN_PLACE = {
    Tensor.copy_: copied,
    Tensor.fill_: filled,
    Tensor.zero_: zeroed,
    **{getattr(Tensor, name): in_place(getattr(Tensor, name)) for name in DRAWS.split()},
}


@functools.cache
def out_of_place(func: Any) -> Any:
    """Return what computes the same out of place: `Tensor.add` for `Tensor.add_`, None for `Tensor.add`.

    Raises `RecordError` for a function in place that has no such partner, and for setting an attribute.
    """
    if func in IN_PLACE:
        return IN_PLACE[func]
    name = getattr(func, "__name__", "")
    if name.startswith("__i") and name in STATEMENTS:
        return getattr(Tensor, f"__{name[3:]}")
    if name == "__set__":
        refuse("given another attribute")
    if name.endswith("_") and not name.endswith("__"):
        return getattr(Tensor, name[:-1], None) or refuse(f"changed by {name}")
    return None


def changed(func: Any, other: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Any) -> Any:
    """Answer a function that changes its first argument in place; return that argument.

    It then stands for a recorded call of ``other(*args, **options)``, which computes the same out of place.
    A computed tensor that cannot stand for a call is changed by ``func`` itself, on values that are read.
    """
    x = args[0] if args else kwargs["input"]
    is_real = not isinstance(x, Pending)
    if is_real and not may_stand(x):
        return write_real(func, x, args, kwargs)
    if is_real and func is Tensor.__setitem__ and may_fill(*args):
        return x
    found = record(other, *args, **options)
    if not found.form.computes_as(x.form if isinstance(x, Pending) else form_of_tensor(x)):
        found = record(in_place(func), *args, **kwargs)
    if is_real:
        rewritten(x, found)
    else:
        renamed(x, found)
    return x


def may_stand(x: Tensor) -> bool:
    """Return whether a computed tensor may stand for a pending one: nothing else may see its memory.

    It must be no parameter, shared by no other tensor or array, and, as a view, a basic index of its base.
    """
    whole = whole_of(x)
    is_shared = recording_of().recorder.is_shared
    if type(whole) is not Tensor or is_shared(x) or is_shared(whole) or not is_alone(x):
        return False
    if whole.requires_grad and (whole.is_leaf or not torch.is_grad_enabled()):
        return False  # its gradient is that of what it was before
    return whole is x or index_of(x, whole) is not None


def whole_of(x: Tensor) -> Tensor:
    """Return the tensor that ``x`` is a view of, or ``x`` itself if it is no view."""
    return x if x._base is None else x._base


def write_real(func: Any, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``func``, which changes the computed tensor ``x`` in place, on the values of pending arguments.

    Raises `RecordError` if a pending argument needs a gradient.
    """
    whole = whole_of(x)
    is_error = whole.requires_grad and whole.is_leaf and torch.is_grad_enabled()
    if needs_gradient((args, kwargs)) and not is_error:
        refuse_real("A tensor")
    return func(*with_reads(args), **with_reads(kwargs))


def rewritten(x: Tensor, found: Pending) -> None:
    """Let the computed tensor ``x`` stand for the pending ``found``.

    If it is a view, its base changes with it.
    """
    whole = whole_of(x)
    if whole is not x:
        index = index_of(x, whole)
        if may_fill(whole, index, found):
            whole.stands_for.note_view(found, index)
        else:
            new = record(with_item, whole, index, found)
            let_stand(whole, new)
            found.base, found.place, found.seen = new, (new, index), new.version
    let_stand(x, found)


def renamed(x: Pending, found: Any) -> None:
    """Let the pending ``x`` stand for what ``found`` stands for, as if it were changed in place.

    Tensors that it is a part of change with it, and other views of them are refused from then on. Inside of
    ``no_grad()`` its value changes, and its gradient is that of before.
    """
    if x.form.requires_grad and not found.form.requires_grad:
        with torch.enable_grad():
            found = record(with_gradient_of, x, found)
    recording_of().note_changed(x)
    x.node, x.form, x.host = found.node, found.form, None
    x.version += 1
    if x.place is not None:  # what it is a part of has it, too
        whole, index = x.place
        if whole is None:
            refuse("changed in place where several of its numbers are one, as those of expand()")
        renamed(whole, x if index is ... else record(with_item, whole, index, x))
        x.seen = version_of(x.base)
    elif isinstance(x.base, Pending):  # it has other values now, and so have other views of it
        x.base.version, x.base = -1, None
    elif x.base is not None:
        refuse_real("A view of a tensor")


def written_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a function with ``out=``: the tensors there are changed to what it computes, and returned.

    Raises what PyTorch raises if an argument needs a gradient, and `RecordError` for another shape or
    dtype.
    """
    out = kwargs["out"]
    kwargs = {name: x for name, x in kwargs.items() if name != "out"}
    if torch.is_grad_enabled() and any(
        isinstance(x, Tensor) and x.requires_grad for x in optree.tree_leaves((args, kwargs, out))
    ):
        raise RuntimeError(
            f"{func.__name__}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad."
        )
    found = func(*args, **kwargs)
    if isinstance(out, Tensor):
        fill(with_pending(out), found)
        return out
    for x, part in zip(with_pending(out), found, strict=True):
        fill(x, part)
    return type(found)(out)


def fill(out: Tensor, found: Any) -> None:
    """Change ``out`` in place to ``found``; an empty one takes its shape.

    Raises `RecordError` for another dtype, or another shape.
    """
    if out.dtype == found.dtype and out.shape == found.shape:
        changed(Tensor.copy_, copied, (out, found), {}, {})
        return
    is_empty = out.dtype == found.dtype and type(out) is Tensor and not out.numel()
    if is_empty and is_pending(found) and may_stand(out):
        let_stand(out, found)
        return
    raise refusal(
        f"out= is a tensor {tuple(out.shape)} {out.dtype}, and what is computed and not known yet is "
        f"{tuple(found.shape)} {found.dtype}.",
        "use the result itself: y = f(x) for f(x, out=y).",
    )
