"""What is known of a tensor without its values, and the modes in which a call is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from multifold.lazy.forms import PendingForm, PendingForms
from multifold_torch.lazy.pending import Pending


class TensorForm(PendingForm):
    """The form of a pending tensor; it tells its device, too, and whether it needs a gradient."""

    __slots__ = ("_entry", "_meta", "_real", "device", "requires_grad")

    def __init__(
        self, shape: torch.Size, dtype: torch.dtype, device: torch.device, requires_grad: bool
    ) -> None:
        new = partial(Tensor._make_wrapper_subclass, Pending, shape, dtype=dtype, device=device)
        super().__init__(new, shape, dtype)
        self.device = device
        self.requires_grad = requires_grad
        self._entry: TensorForm | None = None
        self._meta: Tensor | None = None
        self._real: Tensor | None = None

    def meta(self) -> Tensor:
        """Return a new tensor of this form, without values."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta", requires_grad=self.requires_grad)

    @property
    def like(self) -> Tensor:
        """A tensor of this form, without values, which nobody may change."""
        if self._meta is None:
            self._meta = self.meta()
        return self._meta

    @property
    def real(self) -> Tensor:
        """A tensor of this form on its device, of any values in little memory, which nobody may change."""
        if self._real is None:
            self._real = torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)
        return self._real

    @property
    def entry(self) -> TensorForm:
        """The form of a row inside of a tensor of this form."""
        if self._entry is None:
            self._entry = form_of(self.shape[1:], self.dtype, self.device, self.requires_grad)
        return self._entry

    def computes_as(self, other: TensorForm) -> bool:
        """Return whether two forms are equal but for gradients."""
        return (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device)


FORMS = PendingForms(TensorForm)


def form_of(shape: torch.Size, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> TensorForm:
    """Return the one form of these, by which calls are told apart.

    >>> form_of(torch.Size([2]), torch.float32, torch.device("cpu"), False) is form_of_tensor(torch.ones(2))
    True
    """
    found: TensorForm = FORMS.get(shape, dtype, device, requires_grad)
    return found


def form_of_tensor(x: Tensor) -> TensorForm:
    """Return the form of a real tensor."""
    return form_of(x.shape, x.dtype, x.device, x.requires_grad)


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
        if before is not self:
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
