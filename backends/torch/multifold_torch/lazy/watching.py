"""Watching what a program computes at once, of computed tensors: no pending value sees that.

Functions of pending values are recorded by these. Three contexts here see all other functions of tensors:
`recording_all`, in which they are recorded too, `tracing`, for what is computed with parameters, and
`beginning`, for programs whose first functions take parameters and no pending value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import optree
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from multifold.lazy.current import CURRENT, Recording, refusal
from multifold_torch.lazy.answers import (
    ANSWERS,
    NEW,
    READS,
    READS_WITHOUT_GRADIENT,
    getters,
    has_mask,
    methods,
    row_at,
    with_known_numbers,
    without_masks,
)
from multifold_torch.lazy.filling import is_number
from multifold_torch.lazy.in_place import changed, may_stand, out_of_place, with_item
from multifold_torch.lazy.pending import Pending, refuse_real
from multifold_torch.lazy.written import is_pending


class recording_all(TorchFunctionMode):  # noqa: N801 - it is used as a function
    """A context in which functions of tensors are recorded where none of these is pending, too.

    Questions for shapes and the like, and changes in place, are answered at once.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recording = CURRENT.recording
        tensors = tensors_in((args, kwargs))
        is_at_once = func in ANSWERS or is_getter(func) or out_of_place(func) is not None
        if recording is None or not tensors or any(map(is_pending, tensors)) or is_at_once:
            return func(*args, **kwargs)
        return recording.recorder.recorded(recording, None, func, args, kwargs)


class tracing(TorchFunctionMode):  # noqa: N801 - it is used as a function
    """The context in which traces are made: what is computed with parameters or buffers is recorded.

    A trace would hold its value else, and not see an optimizer change it. A function that says the value
    itself, as ``item``, is refused.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recording = CURRENT.recording
        if (
            recording is None
            or func in QUESTIONS
            or (args and type(args[0]) is Pending and func not in NEW)
        ):
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        if any(map(is_pending, tensors)) and func not in NEW:
            return func(*args, **kwargs)
        found = [x for x in tensors if not is_pending(x) and may_learn(recording, x)]
        if not found or (func in NEW and all(x is args[0] for x in found)):
            return func(*args, **kwargs)
        return of_parameters(recording, func, args, kwargs)


class beginning(TorchFunctionMode):  # noqa: N801 - it is used as a function
    """A context in which functions of a weight and of a tensor of the example are recorded, as layers are.

    ``F.linear(x, self.weight)`` of a computed ``x`` is such a function; see `BEGINNINGS`. Without the
    context it is computed at once, and so is all that follows.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recording = CURRENT.recording
        is_pending_first = bool(args) and type(args[0]) is Pending  # most calls: nothing else is looked at
        if recording is None or func not in BEGINNINGS or is_pending_first or "out" in kwargs:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        shared = [recording.recorder.is_shared(x) for x in tensors]
        if all(shared) or not any(shared) or any(map(is_pending, tensors)):
            return func(*args, **kwargs)
        if func is Tensor.__getitem__:
            if not shared[0] or not isinstance(args[1], Tensor) or has_mask(args[1]):
                return func(*args, **kwargs)
            func = row_at if is_number(args[1]) else func
        recording.recorder.note_begun()
        return recording.recorder.recorded(recording, None, func, args, kwargs)


def tensors_in(x: Any) -> list[Tensor]:
    """Return the tensors among the leaves of a structure."""
    return [leaf for leaf in optree.tree_leaves(x) if isinstance(leaf, Tensor)]


def may_learn(recording: Recording, x: Tensor) -> bool:
    """Return whether a computed tensor may have other values when a trace is replayed.

    It is a parameter or buffer, or needs a gradient.
    """
    recorder: Any = recording.recorder
    return bool(recorder.is_shared(x) or x.requires_grad)


def has_parameters(recording: Recording, args: Sequence[Any]) -> bool:
    """Return whether a trace is made, and the arguments of an autograd function have parameters or buffers.

    Raise a `RecordError` if all tensors among them are such, so that it could not be recorded.
    """
    tensors = tensors_in(args) if recording.is_trace else []
    if tensors and all(recording.recorder.is_shared(x) for x in tensors):
        raise refusal(
            "An autograd function of parameters or buffers alone is called while a trace is made, which "
            "would not see them change.",
            "run the program without traces, or give the function a tensor of the example, too.",
        )
    return any(may_learn(recording, x) for x in tensors)


def is_getter(func: Any) -> bool:
    """Return whether a function reads an attribute of a tensor, as its shape."""
    return getattr(func, "__name__", "") == "__get__"


def of_parameters(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a function of parameters or buffers, and of computed tensors of the example, for a trace.

    Return what it returns, with pending tensors in it. What tells nothing of their values, or returns one
    of them, is called at once. Raise a `RecordError` for what tells a value, or changes one in place.
    """
    if func in VALUES:
        refuse_value(func)
    if func is Tensor.__iter__:
        return iter(of_parameters(recording, Tensor.unbind, args, kwargs))
    if func is Tensor.grad.__get__:
        return args[0].grad if args[0].grad is None else refuse_value(func)
    if is_getter(func) and func not in VIEWED:
        return func(*args, **kwargs)
    if func in SAME:
        found = func(*args, **kwargs)
        if found is args[0]:
            return found
    if func is Tensor.__getitem__:
        return item_of(recording, *args)
    if kwargs.get("out") is not None or kwargs.get("inplace") or is_in_place(func):
        return changed_in_place(recording, func, args, kwargs)
    return recorded(recording, func, args, kwargs)


def recorded(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a function of parameters; one of them alone gets an operand that it does not use.

    A call of a trace has operands; so the rows of all examples have the one result.
    """
    recorder: Any = recording.recorder
    if all(recorder.is_shared(x) for x in tensors_in((args, kwargs))):
        found = recorder.recorded(recording, None, OfParameters(func), (NOTHING, *args), kwargs)
    else:
        found = recorder.recorded(recording, None, func, args, kwargs)
    if shares_memory(recording, func, args, kwargs):
        for x in optree.tree_leaves(found):
            if is_pending(x):
                x.place = None, None  # it is a part of a parameter, and must not be changed in place
    return found


def shares_memory(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function, as `Tensor.view`, returns a tensor in the memory of an argument."""
    tensors = {id(x): torch.empty_like(x, device="meta") for x in tensors_in((args, kwargs))}
    own = optree.tree_map(lambda x: tensors.get(id(x), x), (args, kwargs), none_is_leaf=True)
    with recording.paused(), torch.no_grad():
        found = tensors_in(func(*own[0], **own[1]))
    return any(torch._C._is_alias_of(x, y) for x in found for y in tensors.values())


def item_of(recording: Recording, x: Tensor, index: Any) -> Any:
    """Record ``x[index]``, where ``x`` or a part of ``index`` is a parameter or buffer."""
    if is_number(index) and not recording.recorder.is_shared(index):
        return recorded(recording, row_at, (x, index), {})
    own = [part for part in tensors_in(index) if not recording.recorder.is_shared(part)]
    if len(own) == len(tensors_in(index)):
        index = with_known_numbers(index)
        index = without_masks(index) if has_mask(index) else index
    return recorded(recording, Tensor.__getitem__, (x, index), {})


def is_in_place(func: Any) -> bool:
    """Return whether a function changes its first argument in place."""
    return func is Tensor.__setitem__ or out_of_place(func) is not None


def changed_in_place(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a function that changes a tensor in place, and has a parameter or buffer among its arguments.

    A tensor of the example stands for a recorded call then. A count, which is a buffer of an integer, is
    changed at once. Raise a `RecordError` for other parameters and buffers.
    """
    x = args[0]
    recorder: Any = recording.recorder
    if may_learn(recording, x):
        if x.is_floating_point() or len(tensors_in((args, kwargs))) > 1:
            raise refusal(
                f"{name_of(func)} changes a parameter or buffer while a trace is made, which replays would "
                "not do again.",
                "run the program, which does it each time, or change it outside.",
            )
        return func(*args, **kwargs)
    if not may_stand(x):
        refuse_real("A tensor")
    if func is Tensor.__setitem__:
        return changed(func, with_item, args, {}, {})
    return recorder.dispatch_unknown(func, args, kwargs)


def refuse_value(func: Any) -> NoReturn:
    """Raise a `RecordError`: ``func`` tells the values of a parameter or buffer while a trace is made."""
    raise refusal(
        f"{name_of(func)} tells the values of a parameter or buffer, and a trace would not see these "
        "change.",
        "run the program without traces; or compute with the tensor itself, which is recorded.",
    )


def name_of(func: Any) -> str:
    """Return how an error calls a function of PyTorch, as ``torch.Tensor.item``."""
    return resolve_name(func) or getattr(func, "__name__", str(func))


@dataclasses.dataclass(frozen=True)
class OfParameters:
    """A function of parameters alone, which takes one more operand, and does not use it."""

    func: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return str(self.func.__name__)

    def __call__(self, nothing: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.func(*args, **kwargs)


BEGINNINGS: set[Any] = {
    *[getattr(torch.nn.functional, name) for name in ["linear", "bilinear", "embedding", "layer_norm"]],
    *[getattr(torch.nn.functional, name) for name in ["conv1d", "conv2d", "conv3d"]],
    *[
        getattr(torch, name)
        for name in ["addmm", "addmv", "baddbmm", "bmm", "dot", "einsum", "matmul", "mm", "mv", "tensordot"]
    ],
    *[getattr(torch, name) for name in ["add", "sub", "mul", "div", "index_select"]],
    *methods("addmm addmv baddbmm bmm dot matmul mm mv __matmul__ __rmatmul__ __getitem__ index_select"),
    *methods("add __add__ __radd__ sub __sub__ __rsub__ mul __mul__ __rmul__ div __truediv__ __rtruediv__"),
}
"""Functions of a weight and of a tensor of the example, in which programs without layers begin."""

NOTHING = torch.zeros(())
"""The operand of `OfParameters`."""

QUESTIONS: set[Any] = {
    *methods("__hash__ __repr__ data_ptr get_device is_pinned is_shared is_inference is_set_to"),
    *methods("requires_grad_ register_hook retain_grad untyped_storage storage _is_view"),
    *methods("register_post_accumulate_grad_hook size dim"),
    *getters("shape dtype device ndim requires_grad layout is_leaf grad_fn _version"),
}
"""Functions that tell nothing of the values of a tensor: some that are often called, and those that one
without values would answer differently."""

VIEWED: Sequence[Any] = getters("T H mT mH real imag data")
"""Attributes that are tensors with the values of the tensor."""

SAME: set[Any] = {*methods("to cpu cuda contiguous float double half bfloat16 type"), torch.as_tensor}
"""Functions that return the tensor itself if it is what they are to make of it."""

VALUES: set[Any] = {
    *READS,
    *READS_WITHOUT_GRADIENT,
    *NEW,
    *methods("__deepcopy__ __reduce_ex__ __dlpack__"),
    torch.tensor,
} - {Tensor.bincount, torch.bincount}
"""Functions that tell the values of a tensor."""
