"""Training with `torch.optim` and its schedules, as `multifold_bench.train` asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

import multifold

if TYPE_CHECKING:
    from multifold_bench.train import Settings
    from multifold_bench.train.ranks import Ranks

Loss = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@final
class TorchTrainer:
    """A module in training; see `multifold_bench.train.seam.Trainer`."""

    def __init__(
        self,
        model: Any,
        loss: Loss,
        settings: Settings,
        epoch_steps: int,
        fill: Any = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.ranks = ranks
        self.fold = multifold.Fold(backend="torch")
        trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
        self.names = list(trained)
        self.parameters = list(trained.values())
        self.optimizer = optimizer(self.parameters, settings)
        self.scheduler = LambdaLR(
            self.optimizer, lambda step: settings.rate_at(step, epoch_steps) / settings.rate
        )
        # An optimizer skips a parameter whose grad is None. Zeros instead let Adam's moments decay at each
        # step, as they do in the other frameworks, also for a parameter that no example has read yet.
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        self.model.train()
        self.optimizer.zero_grad(set_to_none=False)
        nothing = self.parameters[0].new_zeros(())  # of a process whose share is empty
        found = self.loss_of(traces, targets, weights) if traces else nothing
        if self.ranks is not None:
            sum_over_ranks([found, *(x.grad for x in self.parameters)])
        self.optimizer.step()
        self.scheduler.step()
        return float(found)

    def loss_of(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> torch.Tensor:
        """Return the loss of some traces, and add its gradients to those that are there."""
        outputs = self.fold.run(self.model, traces)
        given = (torch.as_tensor(x, dtype=outputs.dtype, device=outputs.device) for x in (targets, weights))
        loss = self.loss(self.model, outputs, *given)
        loss.backward()
        return loss.detach()

    @torch.no_grad()
    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        self.model.eval()  # dropout and the like, of a user's layers
        found: np.ndarray = self.fold.run(self.model, traces).cpu().numpy()
        return found

    def skip(self, traces: Sequence[Any], rows: int) -> None:
        pass  # nothing here depends on earlier minibatches

    def state(self) -> dict[str, np.ndarray]:
        found = {"steps": np.array(self.scheduler.last_epoch)}
        for index, entries in self.optimizer.state_dict()["state"].items():
            for key, value in entries.items():
                if value is not None:
                    found[f"{self.names[index]}/{key}"] = value.cpu().numpy().copy()
        return found

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        entries: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in state.items():
            parameter, slash, key = name.rpartition("/")
            if slash:
                entries.setdefault(self.names.index(parameter), {})[key] = torch.from_numpy(value)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": entries, "param_groups": groups})
        steps = self.scheduler.last_epoch = int(state["steps"])
        lambdas = zip(self.optimizer.param_groups, self.scheduler.base_lrs, strict=True)
        for group, rate in lambdas:
            group["lr"] = rate * self.scheduler.lr_lambdas[0](steps)


trainer = TorchTrainer
"""The name that `multifold_bench.train.seam` asks for."""


def optimizer(parameters: list[torch.nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    """Return an optimizer that computes the formula of `multifold_bench.train.Settings`."""
    if settings.optimizer == "adagrad":
        return torch.optim.Adagrad(
            parameters, settings.rate, initial_accumulator_value=settings.accumulator, eps=0.0
        )
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, settings.rate, eps=1e-8)
    return torch.optim.SGD(parameters, settings.rate)


@final
class TorchRanks:
    """The processes of `torchrun`; see `multifold_bench.train.ranks.Ranks`."""

    def __init__(self) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group()
        self.count = torch.distributed.get_world_size()
        self.rank = torch.distributed.get_rank()

    def exchange(self, said: bytes) -> list[bytes]:
        found = [b""] * self.count
        torch.distributed.all_gather_object(found, said)
        return found


def ranks() -> Ranks | None:
    """Return the processes that the environment tells of; None where this one is alone."""
    return TorchRanks() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None


def commands(shards: int, port: Callable[[], int]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what starts that many processes on this machine: `torchrun`."""
    launcher = ("torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    command = [sys.executable, "-m", *launcher, "--nproc-per-node", str(shards)]
    return {"torchrun": (command, {})}


def sum_over_ranks(arrays: list[torch.Tensor]) -> None:
    """Add up arrays over all processes, in place: they travel as one."""
    flat = torch.cat([x.reshape(-1) for x in arrays])
    torch.distributed.all_reduce(flat)
    for x, part in zip(arrays, flat.split([x.numel() for x in arrays]), strict=True):
        x.copy_(part.view_as(x))
