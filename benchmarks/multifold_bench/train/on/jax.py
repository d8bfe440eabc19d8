"""Training with Optax in one compiled step, as `multifold_bench.train` asks for it.

The step takes the schedule as data, so it is compiled for few sizes, not for every minibatch. The rows that
are compared with targets would be such a size as well: one more trace fills them up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import jax
import multifold_jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import multifold
from multifold.errors import BackendMissing

try:
    import optax
except ModuleNotFoundError as error:
    raise BackendMissing("Training with JAX needs Optax.", "pip install optax") from error

if TYPE_CHECKING:
    from multifold_bench.train import Settings

Loss = Callable[[Any, jax.Array, Any, Any], jax.Array]


@final
class JaxTrainer:
    """A pytree in training; see `multifold_bench.train.seam.Trainer`."""

    def __init__(
        self,
        model: Any,
        loss: Loss,
        settings: Settings,
        epoch_steps: int,
        fill: Callable[[int], Any],
        ranks: JaxRanks | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.recipe = settings, epoch_steps
        self.ranks = ranks
        # Sizes grow with the minibatches that were met. Those of steps are the same in a run that goes on,
        # whatever was predicted in between.
        self.programs, self.predicted = (Sized(fill) for _ in range(2))
        self.moments = optimizer(*self.recipe).init(model)

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        program, extra = self.programs.make(traces, len(weights))
        given = (np.pad(x, [(0, extra), *[(0, 0)] * (x.ndim - 1)]) for x in (targets, weights))
        found = value_and_gradients(self.loss, self.model, program, *given)
        if self.ranks is not None:
            found = self.ranks.total(found)
        loss, gradients = found
        self.model, self.moments = update(self.recipe, self.model, self.moments, gradients)
        return float(loss)

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        program, _ = self.predicted.make(traces, rows)
        return np.asarray(run(self.model, program))[:rows]

    def skip(self, traces: Sequence[Any], rows: int) -> None:
        self.programs.make(traces, rows)

    def state(self) -> dict[str, np.ndarray]:
        return {str(i): np.array(x) for i, x in enumerate(jax.tree.leaves(self.moments))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        leaves, structure = jax.tree.flatten(self.moments)
        given = [jax.numpy.asarray(state[str(i)], x.dtype) for i, x in enumerate(leaves)]
        self.moments = jax.tree.unflatten(structure, given)


@final
class Sized:
    """Makes programs of few sizes."""

    def __init__(self, fill: Callable[[int], Any]) -> None:
        self.fold = multifold.Fold(backend="jax")
        self.fill = fill
        self.rows = 0

    def make(self, traces: Sequence[Any], rows: int) -> tuple[Any, int]:
        """Return the program of traces, filled up to as many rows as were ever met, and the rows added."""
        if rows >= self.rows:
            self.rows = 1 << rows.bit_length()
        extra = self.rows - rows
        return self.fold.program([*traces, self.fill(extra)]), extra


run = jax.jit(multifold_jax.run)


@partial(jax.jit, static_argnums=0)
def value_and_gradients(loss: Loss, model: Any, program: Any, targets: Any, weights: Any) -> Any:
    """Return the loss, and the gradients of a model."""

    def value(model: Any) -> jax.Array:
        return loss(model, multifold_jax.run(model, program), targets, weights)

    return jax.value_and_grad(value)(model)


@partial(jax.jit, static_argnums=0)
def update(recipe: tuple[Settings, int], model: Any, moments: Any, gradients: Any) -> Any:
    """Return the next model, and what the optimizer remembers."""
    changes, moments = optimizer(*recipe).update(gradients, moments, model)
    return optax.apply_updates(model, changes), moments


trainer = JaxTrainer
"""The name that `multifold_bench.train.seam` asks for."""


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


LAUNCHERS = ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
"""Where a launcher says how many processes there are. JAX asks Slurm and Open MPI for all else."""


@final
class JaxRanks:
    """The processes of `jax.distributed`; see `multifold_bench.train.ranks.Ranks`."""

    def __init__(self) -> None:
        self.count = jax.process_count()
        self.rank = jax.process_index()
        devices = [next(x for x in jax.devices() if x.process_index == i) for i in range(self.count)]
        mesh = Mesh(devices, "ranks")
        self.split = NamedSharding(mesh, PartitionSpec("ranks"))
        self.add = jax.jit(lambda rows: rows.sum(0), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def total(self, value: Any) -> Any:
        """Return a pytree whose arrays are the sums of those of all processes; they travel as one."""
        flat, restore = ravel_pytree(value)
        shape = self.count, *flat.shape
        table = jax.make_array_from_single_device_arrays(shape, self.split, [flat[None]])
        return restore(self.add(table).addressable_data(0))

    def exchange(self, said: bytes) -> list[bytes]:
        return multifold_jax.exchange(said)


def ranks() -> JaxRanks | None:
    """Return the processes that the environment tells of; None where this one is alone."""
    if not jax.distributed.is_initialized():
        if all(int(os.environ.get(name, "1")) == 1 for name in LAUNCHERS):
            return None
        given = {
            name: int(os.environ[variable])
            for name, variable in (("num_processes", LAUNCHERS[0]), ("process_id", "JAX_PROCESS_ID"))
            if variable in os.environ
        }
        jax.distributed.initialize(**given)
    return JaxRanks() if jax.process_count() > 1 else None


def commands(shards: int, port: Callable[[], int]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what starts that many processes on this machine."""
    common = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port()}",
        "JAX_NUM_PROCESSES": str(shards),
        "JAX_ENABLE_PREEMPTION_SERVICE": "false",  # it keeps a process from ending at SIGTERM
    }
    return {f"process {i}": ([sys.executable], {**common, "JAX_PROCESS_ID": str(i)}) for i in range(shards)}
