"""The training kit for PyTorch: parameters, and gradients through autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import torch

from multifold.backend import TrainingKit


@final
class TorchKit(TrainingKit):
    """Gradients with `torch.autograd.grad`; the ``.grad`` of a user's parameters is left alone."""

    def variable(self, values: np.ndarray, device: Any = None) -> torch.Tensor:
        return torch.tensor(values, device=device, requires_grad=values.dtype.kind == "f")

    def parameters(self, model: Any) -> dict[str, torch.Tensor]:
        if isinstance(model, torch.nn.Module):
            found = dict(model.named_parameters())
        elif isinstance(model, Mapping):
            found = nested(model.items())
        elif isinstance(model, (list, tuple)):
            found = nested(enumerate(model))
        else:
            found = nested(getattr(model, "__dict__", {}).items())
        return {name: x for name, x in found.items() if x.requires_grad}

    def value_and_grad(
        self, fn: Callable[[Any], torch.Tensor], model: Any
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        parameters = self.parameters(model)
        with torch.enable_grad():
            value = fn(model)
            if not parameters or not value.requires_grad:
                return value, {name: torch.zeros_like(x) for name, x in parameters.items()}
            grads = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        return value, {
            name: torch.zeros_like(x) if grad is None else grad
            for (name, x), grad in zip(parameters.items(), grads, strict=True)
        }

    def dot(self, x: torch.Tensor, weights: np.ndarray) -> torch.Tensor:
        return (x * torch.as_tensor(weights, dtype=x.dtype, device=x.device)).sum()


def nested(entries: Any) -> dict[str, torch.Tensor]:
    """Return tensors among the entries, and the parameters of modules among them."""
    found: dict[str, torch.Tensor] = {}
    for key, value in entries:
        if isinstance(value, torch.Tensor):
            found[str(key)] = value
        elif isinstance(value, torch.nn.Module):
            found |= {f"{key}.{name}": x for name, x in value.named_parameters()}
    return found
