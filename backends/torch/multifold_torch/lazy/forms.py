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
    """The shape, dtype, device and need of a gradient of a pending tensor; `form_of` makes each once.

    ``strides`` are those that the tensor has in the loop, if they are known and it is not contiguous; else
    None.
    """

    __slots__ = ("_entry", "_meta", "_real", "device", "requires_grad", "strides")

    def __init__(
        self,
        shape: torch.Size,
        dtype: torch.dtype,
        device: torch.device,
        requires_grad: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        # PyTorch reads arguments without names in half of the time; the three are strides, offset, layout.
        new = partial(
            Tensor._make_wrapper_subclass, Pending, shape, None, None, None, dtype, torch.strided, device
        )
        super().__init__(new, shape, dtype)
        self.device = device
        self.requires_grad = requires_grad
        self.strides = strides
        self._entry: TensorForm | None = None
        self._meta: Tensor | None = None
        self._real: Tensor | None = None

    def meta(self) -> Tensor:
        """Return a new tensor of this form on the meta device, without values."""
        found = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return self.laid_out(found).requires_grad_(self.requires_grad)

    def laid_out(self, x: Tensor) -> Tensor:
        """Return ``x``, a contiguous tensor of this shape, or one like it with the strides of this form."""
        if self.strides is None:
            return x
        first = x[tuple([slice(1 if step == 0 else None) for step in self.strides])]
        found = torch.empty_strided(first.shape, self.strides, dtype=x.dtype, device=x.device)
        # An axis that `expand` has made is one entry in memory.
        return found.copy_(first).expand(x.shape)

    @property
    def like(self) -> Tensor:
        """A tensor of this form on the meta device, made once: never change it."""
        if self._meta is None:
            self._meta = self.meta()
        return self._meta

    @property
    def real(self) -> Tensor:
        """Zeros of this form on its device, in the memory of one number, made once: never change them."""
        if self._real is None:
            zero = torch.zeros((), dtype=self.dtype, device=self.device)
            self._real = self.laid_out(zero.expand(self.shape))
        return self._real

    @property
    def entry(self) -> TensorForm:
        """The form of one row of a tensor of this form: its shape without the first axis."""
        if self._entry is None:
            strides = None if self.strides is None else strides_of(self.like[0])
            self._entry = form_of(self.shape[1:], self.dtype, self.device, self.requires_grad, strides)
        return self._entry

    def computes_as(self, other: TensorForm) -> bool:
        """Return whether shape, dtype and device are equal; the need of a gradient may differ."""
        return (self.shape, self.dtype, self.device) == (other.shape, other.dtype, other.device)


FORMS = PendingForms(TensorForm)


def form_of(
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    strides: tuple[int, ...] | None = None,
) -> TensorForm:
    """Return the one `TensorForm` of these values; it is made the first time.

    >>> form_of(torch.Size([2]), torch.float32, torch.device("cpu"), False) is form_of_tensor(torch.ones(2))
    True
    """
    found: TensorForm = FORMS.get(shape, dtype, device, requires_grad, strides)
    return found


def form_of_tensor(x: Tensor, *, with_strides: bool = False) -> TensorForm:
    """Return the `TensorForm` of a computed tensor; its strides are left out unless ``with_strides``."""
    return form_of(x.shape, x.dtype, x.device, x.requires_grad, strides_of(x) if with_strides else None)


def strides_of(x: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor; None for a contiguous one, or one without strides."""
    return None if x.layout is not torch.strided or x.is_contiguous() else x.stride()


class Modes(NamedTuple):
    """The modes of PyTorch in one thread: whether gradients are recorded, and what autocast does.

    ``autocast`` has (kind of device, whether on, dtype) for CPU and CUDA; it is empty where both are off.
    """

    grad: bool
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls) -> Modes:
        """Return the modes of this thread now."""
        if not torch._C._is_any_autocast_enabled():
            return GRADIENTS if torch.is_grad_enabled() else NO_GRADIENTS
        kinds = ("cpu", "cuda")
        return cls(
            torch.is_grad_enabled(),
            tuple([(x, torch.is_autocast_enabled(x), torch.get_autocast_dtype(x)) for x in kinds]),
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which these modes are in force; at its end those before are again.

        Under autocast PyTorch keeps the weights that it has cast, until the outermost context is left.
        """
        before = Modes.now()
        if before is not self:
            self.enter()
            if self.autocast:
                torch.autocast_increment_nesting()
        try:
            yield
        finally:
            if before is not self:
                if self.autocast and not torch.autocast_decrement_nesting():
                    torch.clear_autocast_cache()
                before.enter()

    def enter(self) -> None:
        """Put these modes into force in this thread."""
        torch._C._set_grad_enabled(self.grad)
        for kind, on, dtype in self.autocast or WITHOUT_AUTOCAST:
            torch.set_autocast_enabled(kind, on)
            torch.set_autocast_dtype(kind, dtype)


WITHOUT_AUTOCAST = tuple([(kind, False, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")])
GRADIENTS, NO_GRADIENTS = Modes(True, ()), Modes(False, ())
