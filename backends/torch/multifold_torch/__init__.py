"""PyTorch as a backend of multifold: batched calls of modules, methods and functions, with autograd.

Nothing here changes a device, a dtype or a mode: autograd, autocast, ``no_grad``, ``train()`` and
``eval()``, hooks and parameter sharing act as they do in a loop over the examples.
"""

from __future__ import annotations

from multifold_torch.backend import TorchBackend
from multifold_torch.kit import TorchKit

__all__ = ["TorchBackend", "TorchKit"]
