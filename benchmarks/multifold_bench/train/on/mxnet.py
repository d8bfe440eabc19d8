"""Training with `mxnet.gluon.Trainer` and MXNet's schedules, as `multifold_bench.train` asks for it.

Two things differ from the other frameworks: schedules count steps from 1 (`FromZero`), and the gradient of
a parameter that a minibatch has not used is still that of an earlier step, so it is set to zero.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import mxnet as mx
import numpy as np
from multifold_mxnet.alive import watch
from multifold_mxnet.kit import constant
from mxnet import autograd, gluon

import multifold
from multifold.backend import Array

if TYPE_CHECKING:
    from multifold_bench.train import Settings

Loss = Callable[[Any, Array, Array, Array], Array]


class FromZero(mx.lr_scheduler.LRScheduler):
    """A schedule that counts steps from 0, as the other frameworks do; MXNet counts from 1."""

    def __init__(self, inner: mx.lr_scheduler.LRScheduler) -> None:
        super().__init__(base_lr=inner.base_lr)
        self.inner = inner

    def __call__(self, num_update: int) -> float:
        """Return the rate of a step."""
        return float(self.inner(num_update - 1))


@final
class MxnetTrainer:
    """A block in training; see `multifold_bench.train.seam.Trainer`."""

    def __init__(
        self,
        model: Any,
        loss: Loss,
        settings: Settings,
        epoch_steps: int,
        fill: Any = None,
        ranks: MxnetRanks | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.ranks = ranks
        self.fold = multifold.Fold(backend="mxnet")
        self.parameters = [x for x in model.collect_params().values() if x.grad_req != "null"]
        self.optimizer = optimizer(settings, schedule(settings, epoch_steps))
        self.trainer = gluon.Trainer(self.parameters, self.optimizer, kvstore=None)
        # Gluon makes the optimizer's states at the first step. A training that is resumed restores them
        # before that.
        self.updater = self.trainer._updaters[0]
        for i, parameter in enumerate(self.parameters):
            self.updater.states[i] = self.optimizer.create_state(i, parameter.data())
            self.updater.states_synced[i] = True

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        loss = self.loss_of(traces, targets, weights) if traces else mx.nd.zeros(1)  # of an empty share
        for parameter in self.parameters:
            if not parameter.data()._fresh_grad:  # not used: the last step's gradient is still there
                parameter.zero_grad()
                parameter.data()._fresh_grad = True
        if self.ranks is not None:
            self.ranks.total([loss, *(parameter.grad() for parameter in self.parameters)])
        self.trainer.step(1)
        return float(loss.asnumpy().sum())

    def loss_of(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> Array:
        """Return the loss of some traces; its gradients are with the parameters then."""
        with autograd.record():
            outputs = self.fold.run(self.model, traces)
            given = (constant(x.astype(outputs.dtype), outputs.ctx) for x in (targets, weights))
            loss = self.loss(self.model, outputs, *given)
        loss.backward()
        return loss

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        found: np.ndarray = self.fold.run(self.model, traces).asnumpy()
        return found

    def skip(self, traces: Sequence[Any], rows: int) -> None:
        pass  # nothing here depends on earlier minibatches

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: x.asnumpy() for name, x in self._moments().items()}
        return {"steps": np.array(self.optimizer.num_update), **arrays}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for name, array in self._moments().items():
            array[:] = mx.nd.array(state[name], dtype=array.dtype)
        steps = int(state["steps"])
        self.optimizer.begin_num_update = self.optimizer.num_update = steps

    def _moments(self) -> dict[str, Array]:
        """Return what the optimizer keeps of each parameter, by name."""
        found: dict[str, Array] = {}
        for i, parameter in enumerate(self.parameters):
            kept = self.updater.states[i]
            arrays = kept if isinstance(kept, (list, tuple)) else [kept]
            found |= {f"{parameter.name}/{k}": x for k, x in enumerate(arrays) if x is not None}
        return found


trainer = MxnetTrainer
"""The name that `multifold_bench.train.seam` asks for."""


def schedule(settings: Settings, epoch_steps: int) -> mx.lr_scheduler.LRScheduler | None:
    """Return the schedule of the learning rate; None if that stays."""
    if settings.schedule == "exponential":
        return mx.lr_scheduler.FactorScheduler(
            epoch_steps, settings.decay, stop_factor_lr=0.0, base_lr=settings.rate
        )
    if settings.schedule == "cosine":
        steps = epoch_steps * settings.epochs
        return FromZero(mx.lr_scheduler.CosineScheduler(steps, base_lr=settings.rate))
    return None


def optimizer(settings: Settings, schedule: mx.lr_scheduler.LRScheduler | None) -> mx.optimizer.Optimizer:
    """Return an optimizer that computes the formula of `multifold_bench.train.Settings`."""
    common = {"learning_rate": settings.rate, "lr_scheduler": schedule}
    if settings.optimizer == "adagrad":
        # Sums begin at 0, and eps is added to them below the root: where sums begin elsewhere.
        return mx.optimizer.AdaGrad(eps=settings.accumulator, **common)
    if settings.optimizer == "adam":
        return mx.optimizer.Adam(epsilon=1e-8, **common)
    return mx.optimizer.SGD(**common)


@final
class MxnetRanks:
    """The workers of a kvstore; see `multifold_bench.train.ranks.Ranks`.

    A kvstore adds up what workers push, in the order in which it comes. So each worker pushes a table of
    zeros in which its own line is filled, and gets the lines of all. Gradients of two workers do without,
    since their sum is the same in either order.
    """

    def __init__(self) -> None:
        self.store = mx.kv.create("dist_sync")
        watch(self.store)
        self.count = self.store.num_workers
        self.rank = self.store.rank
        self.keys: set[str] = set()

    def total(self, arrays: list[Array]) -> None:
        """Add up arrays over all processes, in place: they travel as one."""
        flat = mx.nd.concat(*(x.reshape(-1) for x in arrays), dim=0)
        flat = self.added(flat) if self.count == 2 else self.table(flat).sum(axis=0)
        start = 0
        for x in arrays:
            x[:] = flat[start : start + x.size].reshape(x.shape)
            start += x.size

    def added(self, array: Array) -> Array:
        """Return the sum of an array over all processes."""
        key = f"{array.shape}"
        if key not in self.keys:
            self.store.init(key, mx.nd.zeros_like(array))
            self.keys.add(key)
        found = mx.nd.zeros_like(array)
        self.store.push(key, array)
        self.store.pull(key, found)
        return found

    def table(self, line: Array) -> Array:
        """Return the lines of all processes, by rank."""
        table = mx.nd.zeros((self.count, *line.shape))
        table[self.rank] = line
        return self.added(table)

    def exchange(self, said: bytes) -> list[bytes]:
        """Return what each process says; bytes travel as float32, which the kvstore has."""
        own = np.frombuffer(len(said).to_bytes(8, "little") + said, np.uint8)
        sizes = self.table(mx.nd.array(own[:8])).asnumpy().astype(np.uint8).copy().view("<i8")[:, 0]
        padded = np.zeros(1 << int(sizes.max()).bit_length(), np.float32)  # few sizes, each with a key
        padded[: len(said)] = own[8:]
        lines = self.table(mx.nd.array(padded)).asnumpy().astype(np.uint8)
        return [line[:size].tobytes() for line, size in zip(lines, sizes, strict=True)]


@functools.cache
def ranks() -> MxnetRanks | None:
    """Return the workers that the environment tells of; None where this process is alone."""
    alone = os.environ.get("DMLC_ROLE") != "worker" or int(os.environ["DMLC_NUM_WORKER"]) == 1
    return None if alone else MxnetRanks()


def commands(shards: int, port: Callable[[], int]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what starts that many processes on this machine, and a server that adds for them.

    A scheduler and a server serve as soon as they import MXNet, until the workers have ended.
    """
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port()),
        "DMLC_NUM_WORKER": str(shards),
        "DMLC_NUM_SERVER": "1",
    }
    roles = {"the scheduler": "scheduler", "the server": "server"}
    roles |= {f"process {i}": "worker" for i in range(shards)}
    return {name: ([sys.executable], {**common, "DMLC_ROLE": role}) for name, role in roles.items()}
