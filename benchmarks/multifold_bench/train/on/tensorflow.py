"""Training with the optimizers and schedules of Keras, as `multifold_bench.train` asks for it.

In a long run each step is one call of a `tf.function` that takes the minibatch as a program; in a short one
the ops run one by one, since tracing the function would take longer than it saves (`SHORT`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np
import tensorflow as tf
from multifold_tensorflow.program import run
from multifold_tensorflow.program.tensors import as_tensors

import multifold

if TYPE_CHECKING:
    from multifold_bench.train import Settings

Loss = Callable[[Any, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


SHORT = 200
"""A run of fewer steps is over before programs pay: tracing one takes as long as dozens of steps save."""
FORMS = 4
STEPS_PER_FORM = 8
"""More than 4 + steps / 8 forms do not pay either."""


@final
class TensorflowTrainer:
    """A `tf.Module` in training; see `multifold_bench.train.seam.Trainer`.

    A minibatch is one call of a `tf.function` that takes its program as data, which is several times faster
    than an op at a time, once it is traced for the form of the program. Where nearly every minibatch has a
    form of its own, as query plans have whose operators differ, the trainer goes on without programs.
    """

    def __init__(
        self,
        model: Any,
        loss: Loss,
        settings: Settings,
        epoch_steps: int,
        fill: Any = None,
        ranks: TensorflowRanks | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.ranks = ranks
        self.fold = multifold.Fold(backend="tensorflow")
        self.fold.programs.budget = sys.maxsize  # no warning: `_programs_pay` looks at the number of forms
        self.variables = [x for x in model.parameters.values() if x.trainable]
        self.optimizer = optimizer(settings, rate(settings, epoch_steps))
        self.optimizer.build(self.variables)
        # Op by op, Keras takes longer for an update than the gradients do.
        self.apply = tf.function(lambda gradients: self.optimizer.apply(gradients, self.variables))
        self.runs = 0
        self.is_long = epoch_steps * settings.epochs >= SHORT
        options = {"autograph": False, "reduce_retracing": True}
        self.of_program = tf.function(
            lambda program, *given: self._gradients(lambda: run(model, program), *given), **options
        )
        self.results_of_program = tf.function(lambda program: run(model, program), **options)

    def step(self, traces: Sequence[Any], targets: np.ndarray, weights: np.ndarray) -> float:
        # A process whose share is empty has zeros.
        found = [tf.zeros(()), *map(tf.zeros_like, self.variables)]
        if traces:
            given = tf.constant(targets, tf.float32), tf.constant(weights, tf.float32)
            if self._programs_pay():
                found = self.of_program(as_tensors(self.fold.program(traces)), *given)
            else:
                found = self._gradients(lambda: self.fold.run(self.model, traces), *given)
        if self.ranks is not None:
            found = self.ranks.total(found)
        self.apply(found[1:])
        return float(found[0])

    def _gradients(self, outputs: Callable[[], Any], *given: tf.Tensor) -> list[tf.Tensor]:
        """Return the loss of what a function returns, and the gradients of all variables."""
        with tf.GradientTape() as tape:
            found = outputs()
            loss = self.loss(self.model, found, *(tf.cast(x, found.dtype) for x in given))
        gradients = tape.gradient(loss, self.variables, unconnected_gradients="zero")
        # As rows of an embedding, gradients would leave the moments of all other rows as they are.
        return [loss, *map(tf.convert_to_tensor, gradients)]

    def _programs_pay(self) -> bool:
        """Return whether a run is long and its forms are few so far; count one more use."""
        self.runs += 1
        return self.is_long and len(self.fold.programs.forms) <= FORMS + self.runs // STEPS_PER_FORM

    def predict(self, traces: Sequence[Any], rows: int) -> np.ndarray:
        if self._programs_pay():
            outputs = self.results_of_program(as_tensors(self.fold.program(traces)))
        else:
            outputs = self.fold.run(self.model, traces)
        found: np.ndarray = outputs.numpy()
        return found

    def skip(self, traces: Sequence[Any], rows: int) -> None:
        pass  # nothing here depends on earlier minibatches

    def state(self) -> dict[str, np.ndarray]:
        return {str(i): variable.numpy() for i, variable in enumerate(self.optimizer.variables)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for i, variable in enumerate(self.optimizer.variables):
            variable.assign(state[str(i)])


trainer = TensorflowTrainer
"""The name that `multifold_bench.train.seam` asks for."""


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


@final
class TensorflowRanks:
    """The workers of `TF_CONFIG`; see `multifold_bench.train.ranks.Ranks`."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.count = strategy.num_replicas_in_sync
        self.rank = strategy.cluster_resolver.task_id

        # TensorFlow numbers the collectives of a function when it is traced, so each is traced once.
        @tf.function(input_signature=[tf.TensorSpec((None,), tf.float32)])
        def add(flat: tf.Tensor) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(tf.identity, (flat,)), axis=None)

        @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
        def join(said: tf.Tensor) -> tf.Tensor:
            return strategy.gather(strategy.run(tf.identity, (said,)), axis=0)

        self.add = add
        self.join = join

    def total(self, arrays: list[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of arrays over all processes; they travel as one."""
        flat = self.add(tf.concat([tf.reshape(x, [-1]) for x in arrays], 0))
        parts = tf.split(flat, [x.shape.num_elements() for x in arrays])
        return [tf.reshape(part, x.shape) for part, x in zip(parts, arrays, strict=True)]

    def exchange(self, said: bytes) -> list[bytes]:
        """Return what each process says; bytes travel as int32, the smallest type that is gathered."""
        sizes = self.join([len(said)]).numpy()
        found = self.join(np.frombuffer(said.ljust(-(-len(said) // 4) * 4), np.int32)).numpy()
        parts = np.split(found, np.cumsum(-(-sizes // 4))[:-1])
        return [part.tobytes()[:size] for part, size in zip(parts, sizes, strict=True)]


@functools.cache
def ranks() -> TensorflowRanks | None:
    """Return the processes that the environment tells of; None where this one is alone.

    The first call comes before any other of TensorFlow: it starts what the processes talk through.
    """
    workers = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", [])
    if len(workers) < 2:
        return None
    if int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1) < 2:
        # An all-reduce waits in a thread of the pool; with a pool of one it waits for ever.
        tf.config.threading.set_intra_op_parallelism_threads(2)
    return TensorflowRanks(tf.distribute.MultiWorkerMirroredStrategy())


def commands(shards: int, port: Callable[[], int]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return what starts that many processes on this machine."""
    cluster = {"worker": [f"127.0.0.1:{port()}" for _ in range(shards)]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(shards)]
    return {
        f"process {i}": ([sys.executable], {"TF_CONFIG": json.dumps(task)}) for i, task in enumerate(tasks)
    }
