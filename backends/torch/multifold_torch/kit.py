"""The training kit for PyTorch: parameters, and gradients through autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multifold.backend import TrainingKit, Transfers, owner_of


@final
class TorchKit(TrainingKit):
    """Gradients with `torch.autograd.grad`; the ``.grad`` of a user's parameters is left alone."""

    def variable(self, values: np.ndarray, device: Any = None) -> torch.Tensor:
        return torch.tensor(values, device=device, requires_grad=values.dtype.kind == "f")

    def parameters(self, model: Any) -> dict[str, torch.Tensor]:
        return {name: x for name, x in tensors(model).items() if x.requires_grad}

    def value_and_grad(
        self, fn: Callable[[Any], torch.Tensor], model: Any
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parameters = self.parameters(model)
        with torch.enable_grad():
            value = fn(model)
            # `torch.autograd.grad` refuses a value that depends on no parameter.
            if not parameters or not value.requires_grad:
                return value, {name: torch.zeros_like(x) for name, x in parameters.items()}
            grads = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        return value, {
            name: torch.zeros_like(x) if grad is None else grad
            for (name, x), grad in zip(parameters.items(), grads, strict=True)
        }

    def dot(self, x: torch.Tensor, weights: np.ndarray) -> torch.Tensor:
        return (x * torch.as_tensor(weights, dtype=x.dtype, device=x.device)).sum()

    @contextlib.contextmanager
    def transfers(self) -> Iterator[Transfers]:
        """Return a context that counts uploads in a `Transfers`, whose device is `meta`.

        That device has shapes and no values, so to read a value there is an error.
        """
        seen = Transfers("meta")
        with CountUploads(seen):
            yield seen


class CountUploads(TorchDispatchMode):
    """Adds 1 to ``seen.uploads`` for each tensor copied from the CPU to another device, backward too."""

    def __init__(self, seen: Transfers) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # `_to_copy` has what it copies as its first argument, `copy_` as its second.
        position = {torch.ops.aten._to_copy: 0, torch.ops.aten.copy_: 1}.get(func.overloadpacket)
        if position is not None:
            self.seen.uploads += args[position].device.type == "cpu" != result.device.type
        return result


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the parameters of a module, or of a mapping, list or object: name -> tensor.

    Tensors, modules and bound methods of modules inside count, and their names are joined:
    ``"encoder.weight"``. Each tensor comes once.
    """
    if isinstance(model, torch.nn.Module):
        return dict(model.named_parameters())
    entries: Any = getattr(model, "__dict__", {}).items()
    if isinstance(model, Mapping):
        entries = model.items()
    elif isinstance(model, (list, tuple)):
        entries = enumerate(model)
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for key, value in entries:
        part = owner_of(value, value)  # the module of a bound method
        if isinstance(part, torch.Tensor):
            found.setdefault(id(part), (str(key), part))
        elif isinstance(part, torch.nn.Module):
            for name, x in part.named_parameters():
                found.setdefault(id(x), (f"{key}.{name}", x))
    return dict(found.values())
