"""What is known of a tensor without its values, and the modes in which a call is recorded."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class TensorForm(NamedTuple):
    """What is known of a pending tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, x: Tensor) -> TensorForm:
        """Return the form of a real tensor."""
        return cls(x.shape, x.dtype, x.device, x.requires_grad)

    def meta(self) -> Tensor:
        """Return a new tensor of this form, without values."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad)


@functools.lru_cache(maxsize=4096)
def meta_of(form: TensorForm) -> Tensor:
    """Return a tensor of a form, without values, which nobody may change."""
    return form.meta()


class Modes(NamedTuple):
    """What ``with`` statements of PyTorch have changed in this thread."""

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> Modes:
        """Return those of now."""
        if not torch._C._is_any_autocast_enabled():
            return GRADIENTS if torch.is_grad_enabled() else NO_GRADIENTS
        kinds = ("cpu", "cuda")
        return cls(
            torch.is_grad_enabled(),
            tuple([(x, torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in kinds]),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let these be in force, and afterwards those that were."""
        before = Modes.now()
        self.enter()
        try:
            yield
        finally:
            if before is not self:
                before.enter()

    def enter(self) -> None:
        """Let these be in force."""
        torch._C._set_grad_enabled(self.grad)
        for kind, on, dtype in self.autocast or WITHOUT_AUTOCAST:
            torch.set_autocast_enabled(kind, on)
            torch.set_autocast_dtype(kind, dtype)


WITHOUT_AUTOCAST = tuple([(kind, False, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")])
GRADIENTS, NO_GRADIENTS = Modes(True, ()), Modes(False, ())
