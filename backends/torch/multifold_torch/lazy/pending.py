"""Pending tensors: a `torch.Tensor` without storage, whose shape, dtype and device are known.

It is a tensor for ``isinstance``, and compiled code that asks for its memory gets an error, never
garbage. Once the run has ended it stands for its value, wherever the program has kept it.

A program may change a tensor in place. The pending tensor then stands for another call, as a name does
for another value; but tensors that share memory with it do not change. So each view knows its base, and
how often that was changed: a view of an older one is *stale*, and refused wherever it is used.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NoReturn

import optree
import torch
from torch import Tensor

from multifold.lazy.current import CURRENT, after_run, recording_of, refusal
from multifold_torch.hooks import step_over

NUMBERS = torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default
DETACH = torch.ops.aten.detach.default
"""What compiled code of PyTorch calls that needs a number, as ``torch.arange(x)``, and a copy of values."""

AS_CELL = "make a cell of the function that does it: multifold.cell, or batched(fn, cells=[...])."
"""The hint for what runs inside of a cell alone."""


class Pending(Tensor):
    """A tensor whose values are not computed yet: functions of PyTorch that get it are recorded.

    Attributes
    ----------
    node : Node
        The call that computes it, or a part of its result.
    form : TensorForm
        Shape, dtype, device, and whether it needs a gradient.
    host : Tensor or None
        Its value as it was read, without a gradient; of a settled one, its value.
    rows : Tensor
        Of a settled one, the row that was computed, on an axis of its own.
    base : Tensor or None
        What it is a view of.
    place : tuple or None
        A tensor and an index, if it is a part of that tensor which is written with it; twice None if it
        has one number in several places, and cannot be written.
    version : int
        How often it was changed in place; -1 once a view of it was.
    seen : int
        The version of ``base`` when it was made.
    written : weak reference
        To a computed tensor that stands for it, if there is one; else it has no such attribute.
    """

    node: Any
    form: Any  # a `TensorForm`, whose module knows this class
    rows: Tensor | None
    host: Tensor | None
    base: Tensor | None
    place: tuple[Any, Any] | None
    version: int
    seen: int
    written: Any

    # A dictionary for each would be one more object for Python's collector.
    __slots__ = ("base", "form", "host", "node", "place", "rows", "seen", "version", "written")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        recording = recording_of()
        return recording.recorder.dispatch(recording, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_number = func in NUMBERS
        if is_number or (func is DETACH and not is_from_parameter(sys._getframe(1))):
            value: Tensor = recording_of().recorder.read(args[0])
            return value.item() if is_number else value.clone()
        raise refusal(
            f"PyTorch asks for the values of a pending tensor inside of {func}, which cannot be recorded.",
            AS_CELL,
        )

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, **_: Any) -> str:
        return f"<pending tensor {tuple(self.form.shape)} {self.form.dtype}, {self.node!r}>"

    def __str__(self) -> str:
        return str(recording_of().recorder.read(self))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse("pickled")

    def __deepcopy__(self, memo: Any) -> Any:
        if CURRENT.recording is None:
            return self
        if self.form.requires_grad:
            raise RuntimeError("deepcopy copies no tensor that a gradient flows through, as in the loop.")
        return self.clone()


# Functions that are compiled run as they were written.
step_over(vars(Pending)["__torch_function__"].__func__)


class Settled(Pending):
    """A pending tensor after its run: functions of PyTorch that get it get its value instead."""

    __slots__ = ()

    @property
    def value(self) -> Tensor:
        """Its value; taken out of ``rows`` when it is first asked for, and kept."""
        if self.host is None:
            with torch.inference_mode(False):  # it turns gradients on, too
                self.host = first_of(self.rows, self.form.requires_grad)
        return self.host

    def own(self) -> None:
        """Give its value memory of its own, before it is changed in place.

        It is a row of a launch until then, whose other rows are the values of others, and whose changes
        PyTorch counts together. The value stays the same object. Raises `RecordError` if PyTorch keeps it.
        """
        if self.rows is None:
            return
        value = self.value
        with torch.inference_mode(False):  # it turns gradients on, too
            copied = value.clone()
            for _ in range(0 if value.is_inference() else value._version):  # the count of changes goes on
                copied.detach().copy_(value.detach())
        try:
            torch._C._swap_tensor_impl(value, copied)
        except RuntimeError as error:
            raise refusal(
                "A tensor of a run before is changed in place, and is needed for a gradient.",
                "write the change out of place: x = x + y for x += y.",
            ) from error
        self.rows = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for x in changed_by(func, args, kwargs):
            if type(x) is Settled:
                x.own()
        return func(*with_values(args), **with_values(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*with_values(args), **with_values(kwargs or {}))

    def __repr__(self, **_: Any) -> str:
        return repr(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self.value, memo)


def changed_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Iterable[Any]:
    """Return the arguments of a function that it changes in place: the first one, or those at ``out=``."""
    name = getattr(func, "__name__", "")
    if kwargs and kwargs.get("out") is not None:
        out = kwargs["out"]
        return out if isinstance(out, (tuple, list)) else (out,)
    is_method = name.endswith("_") and not name.endswith("__")
    if args and (is_method or name in CHANGERS or (kwargs and kwargs.get("inplace"))):
        return args[:1]
    return ()


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
STATEMENTS = {f"__i{name}__" for name in OPERATORS}
"""Operators in place, by the names of their methods."""

CHANGERS = {*STATEMENTS, "__setitem__"}
"""Methods that change their tensor, besides those with an underscore at the end of the name."""


def record(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record a call of a function with pending tensors; return its result with pending tensors in it."""
    return recording_of().recorder.glue(func, args, kwargs)


def needs_gradient(args: Any) -> bool:
    """Return whether gradients are recorded and a pending tensor among ``args`` needs one."""
    return torch.is_grad_enabled() and any(
        isinstance(x, Pending) and x.form.requires_grad for x in optree.tree_leaves(args)
    )


def is_from_parameter(frame: FrameType) -> bool:
    """Return whether a frame makes a parameter of a tensor, whose memory it would share."""
    return str(frame.f_globals.get("__name__")) == "torch.nn.parameter"


def pending(node: Any, form: Any, base: Any = None) -> Pending:
    """Return a new pending tensor for what ``node`` computes.

    ``base`` is the tensor it is a view of, or None.
    """
    recording = recording_of()
    found: Pending = recording.recorder.new(recording, node, form, base)
    return found


def settle(x: Pending, rows: Tensor) -> None:
    """Turn a pending tensor into a `Settled` one, whose value is the one row of ``rows``, ``(1, *s)``."""
    x.__class__ = Settled
    x.rows = rows
    x.node = x.host = x.base = x.place = None


def first_of(rows: Tensor, requires_grad: bool) -> Tensor:
    """Return ``rows[0]``, detached unless ``requires_grad``."""
    return rows[0] if requires_grad else rows[0].detach()


def with_values(x: Any) -> Any:
    """Return a structure in which each `Settled` tensor is replaced by its value."""
    return optree.tree_map(lambda y: y.value if type(y) is Settled else y, x, none_is_leaf=True)


def version_of(x: Any) -> int:
    """Return how often a tensor, pending or computed, was changed in place."""
    return x.version if type(x) is Pending else x._version


def refuse(what: str, hint: str | None = None) -> NoReturn:
    """Raise `RecordError`: a pending tensor cannot be ``what``, as "pickled".

    The hint is by default to do it after the run.
    """
    raise refusal(f"A tensor that is not computed yet cannot be {what}.", hint or after_run())


def refuse_backward() -> NoReturn:
    """Raise `RecordError` for a backward pass that begins at a pending tensor."""
    sums = "sum the losses of all examples, which share a graph, and call backward() once: "
    total = "after the with statement." if recording_of().is_block else "run(examples).sum().backward()."
    refuse("the start of a backward pass", sums + total)


def refuse_real(what: str) -> NoReturn:
    """Raise `RecordError`: something else sees the memory of ``what``, "A tensor" say.

    So it cannot stand for a pending tensor.
    """
    raise refusal(
        f"{what} that is not pending is changed in place by a pending one, which needs a gradient; and "
        "something else sees its memory: a view, another tensor, an array of NumPy or other examples.",
        "write it out of place: total = total + x for total += x, torch.stack(parts) for out[i] = x.",
    )
