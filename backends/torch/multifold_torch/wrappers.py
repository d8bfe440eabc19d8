"""Models inside of other modules, and what a fold may do with them on several ranks.

Ops are looked up on the module that a wrapper holds, and called without the wrapper's own ``forward``.
There `DistributedDataParallel` prepares to average gradients, and FSDP gathers the sharded parameters. So
on several ranks a fold belongs inside of the ``forward`` of the module that is wrapped
(`multifold_torch.Folded` is such a module), and anywhere else it is refused: gradients would silently be
those of each rank.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from multifold.errors import BackendError

WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)

HINT = (
    "fold inside of the forward of the module that is wrapped, and call the wrapped module: "
    "DistributedDataParallel(multifold_torch.Folded(model, fn)), or fully_shard of that."
)


def unwrapped(model: Any) -> Any:
    """Return the module inside of DDP, DataParallel and `torch.compile`, on which op names are looked up.

    Raises `BackendError` as `refuse_unsynchronised` and `refuse_sharded`.
    """
    while isinstance(model, WRAPPERS) or is_compiled(model):
        refuse_unsynchronised(model)
        model = model.module if isinstance(model, WRAPPERS) else model._orig_mod
    # Where FSDP was not imported nothing is sharded, and to import it takes long.
    if "torch.distributed.fsdp" in sys.modules and isinstance(model, torch.nn.Module):
        refuse_sharded(model)
    return model


def is_compiled(model: Any) -> bool:
    """Return whether a model is a module that `torch.compile` returned."""
    return isinstance(model, torch.nn.Module) and "_orig_mod" in model._modules


def refuse_unsynchronised(model: Any) -> None:
    """Raise `BackendError` for a `DistributedDataParallel` whose gradients would differ among ranks.

    Raises
    ------
    BackendError
        If gradients are recorded, outside of ``no_sync``, on several ranks.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel) or not torch.is_grad_enabled():
        return
    if model.require_backward_grad_sync and torch.distributed.get_world_size(model.process_group) > 1:
        raise BackendError(
            "Expected a fold inside of forward on several ranks. Received a DistributedDataParallel: a "
            "fold of it goes past its forward, so gradients would not be averaged over the ranks.",
            HINT,
        )


def refuse_sharded(model: torch.nn.Module) -> None:
    """Raise `BackendError` for a module whose parameters, or those of a part of it, FSDP has not gathered.

    Raises
    ------
    BackendError
        If a part of the module is sharded by itself, or the fold is outside of the forward of the module.
    """
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    parts = [part for part in model.modules() if isinstance(part, (FSDPModule, FullyShardedDataParallel))]
    inner = next((part for part in parts if part is not model), None)
    if inner is not None:
        names = {id(part): name for name, part in model.named_modules()}
        raise BackendError(
            f"Expected FSDP of the whole module. Received the part '{names[id(inner)]}' sharded by "
            "itself: it gathers parameters in each of its launches, on all ranks at once, and ranks differ "
            "in launches.",
            "shard the root only: fully_shard(multifold_torch.Folded(model, fn)).",
        )
    if parts and any(hasattr(x, "device_mesh") for x in model.parameters()):  # a DTensor
        raise BackendError(
            "Expected a fold inside of forward for a module that FSDP shards. Received one outside of it, "
            "where parameters are not gathered.",
            HINT,
        )
