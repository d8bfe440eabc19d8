"""Patches: calls of modules and autograd functions, seen while programs record."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from multifold.recording import CELL, CURRENT
from multifold_torch.plain.changes import ATTRIBUTE_SETS, LAYERS, Called, Layer
from multifold_torch.plain.pending import refuse
from multifold_torch.plain.written import is_pending


class Patches:
    """Lets calls be seen while any program records, in any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply them until the last program has ended."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.call = nn.Module.__call__
                self.set = nn.Module.__setattr__
                self.apply = torch.autograd.Function.__dict__["apply"]
                Variable.__new__ = staticmethod(variable)
                nn.Module.__setattr__ = module_setattr
                nn.Module.__call__ = module_call
                torch.autograd.Function.apply = classmethod(function_apply)
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    nn.Module.__call__ = self.call
                    nn.Module.__setattr__ = self.set
                    torch.autograd.Function.apply = self.apply
                    del Variable.__new__
                    ATTRIBUTE_SETS.forget()


PATCHES = Patches()


def module_call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module; a cell and a layer are recorded."""
    recording = CURRENT.recording
    if recording is not None:
        values: Any = recording.values
        if self._buffers:
            values.shares(self)
        rows = getattr(type(self), CELL, None)  # an instance would look among its modules, too
        if rows is not None:
            return values.call(recording, values.called(Called, self), rows, args, kwargs)
        if type(self) in LAYERS and is_plain(self) and args and isinstance(args[0], Tensor) and not kwargs:
            return values.call(recording, values.called(Layer, self), False, args, kwargs)
        if isinstance(self, torch.jit.ScriptModule):  # compiled code takes no pending tensors
            return values.call(recording, values.called(Called, self), False, args, kwargs)
        if (self._backward_hooks or self._backward_pre_hooks) and any(map(is_pending, args)):
            refuse("given to a module that has backward hooks")
        self = getattr(self, "_orig_mod", self)  # torch.compile makes no graphs of pending tensors
    return PATCHES.call(self, *args, **kwargs)


def is_plain(module: Any) -> bool:
    """Return whether nobody watches a module by hooks, and it works on each row for itself."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return False
    # What these do depends on all ids that an embedding meets at once.
    return type(module) is not nn.Embedding or not (module.max_norm or module.scale_grad_by_freq)


def module_setattr(self: nn.Module, name: str, value: Any) -> None:
    """Set an attribute of a module, and count it if it is another object: ``eval()`` may change nothing."""
    if CURRENT.recording is not None and vars(self).get(name, self) is not value:
        ATTRIBUTE_SETS.note(self)
    PATCHES.set(self, name, value)


def function_apply(cls: Any, *args: Any) -> Any:
    """Apply an autograd function; one that meets a pending tensor is recorded."""
    recording = CURRENT.recording
    if recording is None or not any(map(is_pending, args)):
        return PATCHES.apply.__func__(cls, *args)
    function: Any = Applied(cls)
    return recording.values.call(recording, function, False, args, {})


def variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a ``Variable``, as programs did before tensors had gradients: a tensor that is detached."""
    if not args or not is_pending(args[0]):
        return torch._C._LegacyVariableBase.__new__(cls, *args, **kwargs)
    if True in (*args[1:2], kwargs.get("requires_grad")):
        refuse("a leaf")
    return args[0].detach()


class Applied(NamedTuple):
    """An autograd function as a function."""

    function: Any

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *args: Any) -> Any:
        return PATCHES.apply.__func__(self.function, *args)
