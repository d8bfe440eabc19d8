"""PyTorch as a backend of multifold: batched calls of modules, methods and functions, with autograd.

Nothing here changes a device, a dtype or a mode: autograd, autocast, ``no_grad``, ``train()`` and
``eval()``, hooks and parameter sharing act as they do in a loop over the examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multifold_torch.backend import TorchBackend
from multifold_torch.folded import Folded
from multifold_torch.hooks import tell
from multifold_torch.kit import TorchKit
from multifold_torch.program import run
from multifold_torch.program.step import ProgramStep

if TYPE_CHECKING:
    from multifold_torch.compile import Compiler

__all__ = ["Compiler", "Folded", "ProgramStep", "TorchBackend", "TorchKit", "run"]

tell()


def __getattr__(name: str) -> Any:
    """Return `Compiler`, imported now: `torch._dynamo` takes seconds to import.

    Raise `AttributeError` for any other name.
    """
    if name == "Compiler":
        from multifold_torch.compile import Compiler

        return Compiler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
