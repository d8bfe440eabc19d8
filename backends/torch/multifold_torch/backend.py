"""The seam for PyTorch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, final

import numpy as np
import torch

from multifold.backend import Backend, Bidirectional, Cell, Stack, cached_pieces
from multifold_torch.cells import cell_of
from multifold_torch.kit import TorchKit, tensors

WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
FLOATS = {torch.float64: np.float64, torch.float16: np.float16}
"""The default dtypes that NumPy has, besides float32."""


@final
class TorchBackend(Backend):
    """Batched calls on `torch.Tensor`.

    Parameters
    ----------
    compiler : callable, optional
        ``compiler(op, operands, static)`` runs the launches: a `multifold_torch.Compiler`.
    """

    name: ClassVar[str] = "torch"
    kit = TorchKit()

    def __init__(self, compiler: Callable[..., Any] | None = None) -> None:
        self.compiler = compiler

    def owns(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    def signature(self, x: torch.Tensor) -> Hashable:
        return x.shape[1:], x.dtype, x.device

    def rows(self, x: torch.Tensor) -> int:
        return x.shape[0]

    def constant(self, values: np.ndarray, device: Any) -> torch.Tensor:
        # from_numpy costs 2-8 us where tensor(list) costs 10-40; it wants memory that may be written.
        if not values.flags.writeable or any(stride < 0 for stride in values.strides):
            values = values.copy()
        kind = values.dtype.kind  # a dtype's name takes NumPy microseconds to spell
        if kind == "V" and values.dtype.name == "bfloat16":  # that of ml_dtypes has no NumPy type number
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16).to(device)
        constant = torch.from_numpy(values)
        return constant if device is None else constant.to(device, non_blocking=True)

    def concat(self, xs: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(xs))

    def split(self, x: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        return torch.split_with_sizes(x, sizes)

    def gather(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows)

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        if self.compiler is not None:
            return self.compiler(fn, operands, static)
        return fn(*operands, **static)

    def unwrap(self, model: Any) -> Any:
        while isinstance(model, WRAPPERS) or hasattr(model, "_orig_mod"):
            warn_unsynchronised(model)
            model = model.module if isinstance(model, WRAPPERS) else model._orig_mod
        return model

    def device(self, model: Any) -> Any:
        if isinstance(model, torch.Tensor):
            return model.device
        arrays: Iterable[torch.Tensor]
        if isinstance(model, torch.nn.Module):
            arrays = chain(model.parameters(), model.buffers())  # frozen ones too
        else:
            arrays = tensors(model).values()
        return next((x.device for x in arrays), None)

    def pieces(self, rows: int, device: Any) -> int:
        pieces = cached_pieces(rows)
        if pieces > 1:
            place = torch.get_default_device() if device is None else torch.device(device)
            return pieces if place.type == "cpu" else 1
        return pieces

    def number_dtype(self, kind: type) -> np.dtype:
        if kind is float:
            return np.dtype(FLOATS.get(torch.get_default_dtype(), np.float32))
        return super().number_dtype(kind)

    def to_numpy(self, x: torch.Tensor) -> np.ndarray:
        x = x.detach().cpu()
        return (x.float() if x.dtype is torch.bfloat16 else x).numpy().copy()

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        return cell_of(cell)

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        return torch.profiler.record_function(label)

    def synchronize(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def warn_unsynchronised(model: Any) -> None:
    """Warn where gradients of a `DistributedDataParallel` would stay those of each process.

    It averages them for what its own ``forward`` computed, which a fold of the wrapped module goes past.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel) or not torch.is_grad_enabled():
        return
    if model.require_backward_grad_sync and torch.distributed.get_world_size(model.process_group) > 1:
        warnings.warn(
            "A fold of a DistributedDataParallel goes past its forward, so that gradients will not be "
            "averaged over the processes.\n\nHint: fold inside of the module's own forward, and call the "
            "wrapped module; README of multifold-torch shows it.",
            UserWarning,
            stacklevel=2,
        )
