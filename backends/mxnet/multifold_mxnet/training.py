"""Training with `mxnet.gluon.Trainer` and MXNet's schedules, as `multifold_bench.train` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import multifold
from multifold.backend import Array
from multifold_mxnet.kit import constant

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

    def __init__(self, model: Any, loss: Loss, settings: Settings, epoch_steps: int) -> None:
        self.model = model
        self.loss = loss
        self.fold = multifold.Fold(backend="mxnet")
        self.parameters = list(model.collect_params().values())
        self.optimizer = optimizer(settings, schedule(settings, epoch_steps))
        self.trainer = gluon.Trainer(self.parameters, self.optimizer, kvstore=None)
        # Gluon makes the optimizer's states at the first step. A training that is resumed restores them
        # before that.
        self.updater = self.trainer._updaters[0]
        for i, parameter in enumerate(self.parameters):
            self.updater.states[i] = self.optimizer.create_state(i, parameter.data())
            self.updater.states_synced[i] = True

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        with autograd.record():
            outputs = self.fold.run(self.model, traces)
            given = (constant(x.astype(outputs.dtype), outputs.ctx) for x in (targets, weights))
            loss = self.loss(self.model, outputs, *given)
        loss.backward()
        for parameter in self.parameters:
            if not parameter.data()._fresh_grad:  # not used: the last step's gradient is still there
                parameter.zero_grad()
                parameter.data()._fresh_grad = True
        self.trainer.step(1)
        return float(loss.asnumpy().sum())

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        found: np.ndarray = self.fold.run(self.model, traces).asnumpy()
        return found

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


def trainer(model: Any, loss: Loss, settings: Settings, epoch_steps: int, fill: Any) -> MxnetTrainer:
    """Return what trains a block; see `multifold_bench.train.seam`."""
    return MxnetTrainer(model, loss, settings, epoch_steps)
