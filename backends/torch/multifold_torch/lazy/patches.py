"""Patches: calls of modules and autograd functions, seen while programs record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parameter import is_lazy

from multifold.lazy.current import CURRENT
from multifold.lazy.patches import Replacements
from multifold.lazy.writes import is_users_class
from multifold_torch.lazy.changes import ATTRIBUTE_SETS, VERSIONS, Called, Layer, has_mode
from multifold_torch.lazy.mapped import RECURRENT, is_mapped, on_rows
from multifold_torch.lazy.packing import call_of_each, takes_packed
from multifold_torch.lazy.pending import refuse
from multifold_torch.lazy.watching import has_parameters, recording_all
from multifold_torch.lazy.weights import MET, OtherWeights
from multifold_torch.lazy.written import is_pending
from multifold_torch.trials import RESERVED


def seen_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``nn.Module.__call__``, which is ``call``.

    While a program records, it records cells, layers of `LAYERS` and scripted modules. Under vmap in a
    launch it runs recurrent layers on the rows of all examples.
    """

    def module_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None:
            recorder: Any = recording.recorder
            if self._buffers:
                recorder.shares(self)
            kind = type(self)
            rows, is_layer, is_compiled = recorder.module_kinds.get(kind) or recorder.kind_of_module(kind)
            is_layer = is_layer and is_plain(self)
            try:
                if rows is not None and recording.inside is not self:
                    return recorder.call(recording, recorder.called(Called, self), rows, args, kwargs)
                if is_layer and args and isinstance(args[0], Tensor) and not kwargs:
                    layer = recorder.stamped(self)
                    if type(layer) is not Layer:
                        layer = recorder.called(Layer, self)
                    return recorder.call(recording, layer, False, args, kwargs)
                if is_layer and isinstance(self, nn.RNNBase) and takes_packed(self, *args, **kwargs):
                    return call_of_each(self, *args, **kwargs)
            except OtherWeights:
                with recording_all() if is_layer else contextlib.nullcontext():
                    return self._call_impl(*args, **kwargs)
            if isinstance(self, torch.jit.ScriptModule):  # compiled code takes no pending tensors
                return recorder.call(recording, recorder.called(Called, self), False, args, kwargs)
            if (self._backward_hooks or self._backward_pre_hooks) and any(map(is_pending, args)):
                refuse("given to a module that has backward hooks")
            if is_compiled:  # PyTorch's compiler makes no graphs of pending tensors
                if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks:
                    refuse("given to a compiled module that has hooks", "hook the module that it compiles.")
                self = self._orig_mod
            return self._call_impl(*args, **kwargs)  # what module.compile() has set would be called else
        if type(self) in RECURRENT and not kwargs and is_plain(self) and is_mapped(args, self):
            return on_rows(Layer(self), args)
        return call(self, *args, **kwargs)

    return module_call


def is_plain(module: Any) -> bool:
    """Return whether a module has no hooks, and computes what its class does, each row by itself.

    An embedding with ``max_norm`` or ``scale_grad_by_freq`` does not: it depends on all its ids at once.
    """
    own = vars(module)
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"]:
        return False
    if "forward" in own:  # it is another one than that of its class
        return False
    # What these do depends on all ids that an embedding meets at once.
    return type(module) is not nn.Embedding or not (module.max_norm or module.scale_grad_by_freq)


PARTS = ("_parameters", "_buffers", "_modules")
"""The dictionaries in which a module has weights and parts; a scripted one has none."""


def is_part(module: nn.Module, name: str, value: Any) -> bool:
    """Return whether an attribute may count for code that does not name it.

    Code of PyTorch names weights, parts, modes, and options of layers.
    """
    own = vars(module)
    return (
        isinstance(value, (nn.Module, nn.Parameter))
        or any(name in own.get(table, ()) for table in PARTS)
        or name in RESERVED
        or hasattr(nn.Module, name)
        or any(
            not is_users_class(kind) and kind not in (nn.Module, object) for kind in type(module).__mro__
        )
    )


def seen_setattr(set_attribute: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of ``nn.Module.__setattr__`` that counts when another object is set.

    Modules that were never looked at do not count, as those that an example makes; ``eval()`` may change
    nothing. The counts begin anew where no program has recorded before.
    """
    ATTRIBUTE_SETS.forget()
    ATTRIBUTE_SETS.parts.forget()
    ATTRIBUTE_SETS.idle.forget()
    MET.clear()

    def module_setattr(self: nn.Module, name: str, value: Any) -> None:
        is_met = CURRENT.recording is not None and id(self) in MET
        is_new = is_met and vars(self).get(name, self) is not value
        if is_new and name == "training" and not has_mode(self):
            ATTRIBUTE_SETS.idle.note(self)
        if is_new and not name.startswith("_flat_weight"):  # recurrent layers list their parameters there
            ATTRIBUTE_SETS.note(self)
            if is_part(self, name, value):
                ATTRIBUTE_SETS.parts.note(self)
        set_attribute(self, name, value)

    return module_setattr


def seen_apply(apply: Any) -> Any:
    """Return a replacement of ``Function.apply``: an autograd function of pending tensors is recorded.

    Where a trace is made, so is one of parameters and of tensors of the example.
    """

    def function_apply(cls: Any, *args: Any) -> Any:
        recording = CURRENT.recording
        if recording is None:
            return apply.__func__(cls, *args)
        if (cls.__module__, cls.__name__) == CHECKPOINT:  # what it saves is not kept here, either
            code, _, *own = args
            # It has gradients only if one of its arguments has.
            needed = any(isinstance(x, Tensor) and x.requires_grad for x in own)
            with contextlib.nullcontext() if needed else torch.no_grad():
                return code(*own)
        if not (any(map(is_pending, args)) or has_parameters(recording, args)):
            # Calls recorded inside of it would have no gradients; a trace needs them to see weights change.
            with contextlib.nullcontext() if recording.is_trace else recording.paused():
                return apply.__func__(cls, *args)
        function: Any = Applied(cls, apply.__func__)
        return recording.recorder.call(recording, function, False, args, {})

    return classmethod(function_apply)


CHECKPOINT = "torch.utils.checkpoint", "CheckpointFunction"
"""The autograd function that computes a function again in the backward pass, to save memory."""


def seen_new(new: Callable[..., Any]) -> Any:
    """Return a replacement of ``Variable.__new__``: for a pending tensor it returns ``x.detach()``.

    ``Variable(x)`` is how old programs detach. With ``requires_grad=True`` it raises `RecordError`.
    """

    def variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not args or not is_pending(args[0]):
            return new(cls, *args, **kwargs)
        if True in (*args[1:2], kwargs.get("requires_grad")):
            refuse("a leaf")
        return args[0].detach()

    return staticmethod(variable)


def seen_data(data: Any) -> Any:
    """Return a replacement of ``Tensor.data``: while a program records, ``x.data`` is ``x.detach()``.

    So changes in place are counted, as those of ``x`` itself. Other memory, by ``x.data = y``, is noted.
    """

    def get(self: Tensor) -> Tensor:
        if is_pending(self):  # PyTorch would look for this replacement, by its name
            return type(self).__torch_function__(data.__get__, (), (self,))
        as_it_is = CURRENT.recording is None or is_lazy(self)  # this has no numbers yet
        return data.__get__(self) if as_it_is else self.detach()

    def give(self: Tensor, value: Tensor) -> None:
        if CURRENT.recording is not None:
            if is_pending(self) or is_pending(value):
                refuse("given another attribute")
            VERSIONS.differs(self)
        data.__set__(self, value)

    return property(get, give)


def seen_requires_grad(requires_grad: Any) -> Any:
    """Return a replacement of ``Parameter.requires_grad`` that counts when it is set."""

    def give(self: nn.Parameter, value: bool) -> None:
        note_gradient(self, value)
        requires_grad.__set__(self, value)

    return property(requires_grad.__get__, give)


def seen_requires_grad_(requires_grad_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a replacement of ``Parameter.requires_grad_`` that counts its calls."""

    def method(self: nn.Parameter, requires_grad: bool = True) -> Tensor:
        note_gradient(self, requires_grad)
        return requires_grad_(self, requires_grad)

    return method


def note_gradient(x: nn.Parameter, needed: bool) -> None:
    """Note that a parameter is told whether it needs a gradient, if it was the other way before."""
    if CURRENT.recording is not None and x.requires_grad is not needed:
        ATTRIBUTE_SETS.note_gradient()
        VERSIONS.differs(x)


@dataclass(frozen=True)
class Applied:
    """An autograd function as a plain function: called, it calls ``apply`` of its class."""

    function: Any
    apply: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *args: Any) -> Any:
        return self.apply(self.function, *args)


PATCHES = Replacements(
    (nn.Module, "__call__", seen_call),
    (nn.Module, "__setattr__", seen_setattr),
    (torch.autograd.Function, "apply", seen_apply),
    (Variable, "__new__", seen_new),
    (Tensor, "data", seen_data),
    (nn.Parameter, "requires_grad", seen_requires_grad),
    (nn.Parameter, "requires_grad_", seen_requires_grad_),
)
"""What sees them."""
