"""Training with the optimizers and schedules of Keras, as `multifold_bench.train` asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np
import tensorflow as tf

import multifold

if TYPE_CHECKING:
    from multifold_bench.train import Settings

Loss = Callable[[Any, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@final
class TensorflowTrainer:
    """A `tf.Module` in training; see `multifold_bench.train.seam.Trainer`."""

    def __init__(self, model: Any, loss: Loss, settings: Settings, epoch_steps: int) -> None:
        self.model = model
        self.loss = loss
        self.fold = multifold.Fold(backend="tensorflow")
        self.variables = [attrgetter(name)(model) for name in model.names]
        self.optimizer = optimizer(settings, rate(settings, epoch_steps))
        self.optimizer.build(self.variables)
        # Op by op, Keras takes longer for an update than the gradients do.
        self.apply = tf.function(lambda gradients: self.optimizer.apply(gradients, self.variables))

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        with tf.GradientTape() as tape:
            outputs = self.fold.run(self.model, traces)
            given = (tf.convert_to_tensor(x, outputs.dtype) for x in (targets, weights))
            loss = self.loss(self.model, outputs, *given)
        gradients = tape.gradient(loss, self.variables, unconnected_gradients="zero")
        # As rows of an embedding, gradients would leave the moments of all other rows as they are.
        self.apply([tf.convert_to_tensor(gradient) for gradient in gradients])
        return float(loss)

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        found: np.ndarray = self.fold.run(self.model, traces).numpy()
        return found

    def state(self) -> dict[str, np.ndarray]:
        return {str(i): variable.numpy() for i, variable in enumerate(self.optimizer.variables)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for i, variable in enumerate(self.optimizer.variables):
            variable.assign(state[str(i)])


def rate(settings: Settings, epoch_steps: int) -> Any:
    """Return the schedule of a learning rate."""
    if settings.schedule == "exponential":
        return keras.optimizers.schedules.ExponentialDecay(
            settings.rate, epoch_steps, settings.decay, staircase=True
        )
    if settings.schedule == "cosine":
        return keras.optimizers.schedules.CosineDecay(settings.rate, epoch_steps * settings.epochs)
    return settings.rate


def optimizer(settings: Settings, rate: Any) -> keras.optimizers.Optimizer:
    """Return an optimizer that computes the formula of `multifold_bench.train.Settings`."""
    if settings.optimizer == "adagrad":
        return keras.optimizers.Adagrad(rate, initial_accumulator_value=settings.accumulator, epsilon=0.0)
    if settings.optimizer == "adam":
        return keras.optimizers.Adam(rate, epsilon=1e-8)
    return keras.optimizers.SGD(rate)


def trainer(model: Any, loss: Loss, settings: Settings, epoch_steps: int, fill: Any) -> TensorflowTrainer:
    """Return what trains a `tf.Module`; see `multifold_bench.train.seam`."""
    return TensorflowTrainer(model, loss, settings, epoch_steps)
