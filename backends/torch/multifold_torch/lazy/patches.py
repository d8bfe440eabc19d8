"""Patches: calls of modules and autograd functions, seen while programs record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from multifold.lazy.current import CELL, CURRENT
from multifold.lazy.patches import Replacements
from multifold_torch.lazy.changes import ATTRIBUTE_SETS, LAYERS, Called, Layer
from multifold_torch.lazy.mapped import RECURRENT, is_mapped, on_rows
from multifold_torch.lazy.pending import refuse
from multifold_torch.lazy.written import is_pending


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
            rows = getattr(type(self), CELL, None)  # an instance would look among its modules, too
            if rows is not None:
                return recorder.call(recording, recorder.called(Called, self), rows, args, kwargs)
            is_layer = type(self) in LAYERS and is_plain(self)
            if is_layer and args and isinstance(args[0], Tensor) and not kwargs:
                return recorder.call(recording, recorder.called(Layer, self), False, args, kwargs)
            if isinstance(self, torch.jit.ScriptModule):  # compiled code takes no pending tensors
                return recorder.call(recording, recorder.called(Called, self), False, args, kwargs)
            if (self._backward_hooks or self._backward_pre_hooks) and any(map(is_pending, args)):
                refuse("given to a module that has backward hooks")
            self = getattr(self, "_orig_mod", self)  # torch.compile makes no graphs of pending tensors
        elif type(self) in RECURRENT and not kwargs and is_plain(self) and is_mapped(args):
            return on_rows(Layer(self), args)
        return call(self, *args, **kwargs)

    return module_call


def is_plain(module: Any) -> bool:
    """Return whether a module has no hooks and treats each row by itself.

    An embedding with ``max_norm`` or ``scale_grad_by_freq`` does not: it depends on all its ids at once.
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return False
    # What these do depends on all ids that an embedding meets at once.
    return type(module) is not nn.Embedding or not (module.max_norm or module.scale_grad_by_freq)


def seen_setattr(set_attribute: Callable[..., None]) -> Callable[..., None]:
    """Return a replacement of ``nn.Module.__setattr__`` that counts when another object is set.

    ``eval()`` may change nothing. The counts begin anew where no program has recorded before.
    """
    ATTRIBUTE_SETS.forget()

    def module_setattr(self: nn.Module, name: str, value: Any) -> None:
        if CURRENT.recording is not None and vars(self).get(name, self) is not value:
            ATTRIBUTE_SETS.note(self)
        set_attribute(self, name, value)

    return module_setattr


def seen_apply(apply: Any) -> Any:
    """Return a replacement of ``Function.apply``: an autograd function of pending tensors is recorded."""

    def function_apply(cls: Any, *args: Any) -> Any:
        recording = CURRENT.recording
        if recording is None or not any(map(is_pending, args)):
            return apply.__func__(cls, *args)
        function: Any = Applied(cls, apply.__func__)
        return recording.recorder.call(recording, function, False, args, {})

    return classmethod(function_apply)


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
)
"""What sees them."""
