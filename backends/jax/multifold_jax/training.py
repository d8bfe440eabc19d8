"""Training with Optax in one compiled step, as `multifold_bench.train` asks for it.

The step takes the schedule as data, so it is compiled for few sizes, not for every minibatch. The rows that
are compared with targets would be such a size as well: one more trace fills them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

import multifold
import multifold_jax
from multifold.errors import BackendMissing

try:
    import optax
except ModuleNotFoundError as error:
    raise BackendMissing("Training with JAX needs Optax.", "pip install optax") from error

if TYPE_CHECKING:
    from multifold_bench.train import Settings

Loss = Callable[[Any, jax.Array, Any, Any], jax.Array]
Recipe = tuple[Loss, "Settings", int]
"""What a step is compiled for besides the sizes: the loss, the settings, the steps of an epoch."""


@final
class JaxTrainer:
    """A pytree in training; see `multifold_bench.train.seam.Trainer`."""

    def __init__(
        self, model: Any, loss: Loss, settings: Settings, epoch_steps: int, fill: Callable[[int], Any]
    ) -> None:
        self.model = model
        self.recipe = loss, settings, epoch_steps
        self.fold = multifold.Fold(backend="jax")
        self.fill = fill
        self.rows = 0
        self.moments = optimizer(settings, epoch_steps).init(model)

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        program, extra = self._program(traces, len(weights))
        given = (np.pad(x, [(0, extra), *[(0, 0)] * (x.ndim - 1)]) for x in (targets, weights))
        self.model, self.moments, loss = step(self.recipe, self.model, self.moments, program, *given)
        return float(loss)

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        program, _ = self._program(traces, rows)
        return np.asarray(run(self.model, program))[:rows]

    def state(self) -> dict[str, np.ndarray]:
        return {str(i): np.array(x) for i, x in enumerate(jax.tree.leaves(self.moments))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        leaves, structure = jax.tree.flatten(self.moments)
        given = [jax.numpy.asarray(state[str(i)], x.dtype) for i, x in enumerate(leaves)]
        self.moments = jax.tree.unflatten(structure, given)

    def _program(self, traces: Sequence[Any], rows: int) -> tuple[Any, int]:
        """Return the program of traces, filled up to as many rows as were ever met, and the rows added."""
        if rows >= self.rows:
            self.rows = 1 << rows.bit_length()
        extra = self.rows - rows
        return self.fold.program([*traces, self.fill(extra)]), extra


run = jax.jit(multifold_jax.run)


@partial(jax.jit, static_argnums=0)
def step(recipe: Recipe, model: Any, moments: Any, program: Any, targets: Any, weights: Any) -> Any:
    """Return the next model, what the optimizer remembers, and the loss before."""
    loss, settings, epoch_steps = recipe

    def value(model: Any) -> jax.Array:
        return loss(model, multifold_jax.run(model, program), targets, weights)

    found, gradients = jax.value_and_grad(value)(model)
    changes, moments = optimizer(settings, epoch_steps).update(gradients, moments, model)
    return optax.apply_updates(model, changes), moments, found


def rate(settings: Settings, epoch_steps: int) -> Any:
    """Return the schedule of a learning rate."""
    if settings.schedule == "exponential":
        return optax.exponential_decay(settings.rate, epoch_steps, settings.decay, staircase=True)
    if settings.schedule == "cosine":
        return optax.cosine_decay_schedule(settings.rate, epoch_steps * settings.epochs)
    return settings.rate


def optimizer(settings: Settings, epoch_steps: int) -> optax.GradientTransformation:
    """Return an optimizer that computes the formula of `multifold_bench.train.Settings`."""
    falling = rate(settings, epoch_steps)
    if settings.optimizer == "adagrad":
        return optax.adagrad(falling, initial_accumulator_value=settings.accumulator, eps=0.0)
    if settings.optimizer == "adam":
        return optax.adam(falling, eps=1e-8)
    return optax.sgd(falling)


def trainer(
    model: Any, loss: Loss, settings: Settings, epoch_steps: int, fill: Callable[[int], Any]
) -> JaxTrainer:
    """Return what trains a pytree; see `multifold_bench.train.seam`."""
    return JaxTrainer(model, loss, settings, epoch_steps, fill)
