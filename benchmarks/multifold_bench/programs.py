"""The contender `fold-program`: a schedule as data, in shapes that repeat, run by one function.

JAX and TensorFlow compile that function once; PyTorch runs it as it stands. Traces of the examples are
there already, as for `fold-traced`. A step lays the schedule out, hands it to the function with the weights
of the loss, and waits for the result. One fold serves all steps, so
that programs keep their form.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import multifold
from multifold._measure.benchmark import Batch, Benchmark
from multifold._measure.timing import Step
from multifold.errors import BackendError
from multifold_bench.harness import Contender

Executor = Callable[[Any, Any], Any]
"""``run(program, weights)`` returns the logits, or the loss and its gradients by name."""


class ByProgram(Contender):
    """A step of one compiled function.

    Parameters
    ----------
    benchmark, backend, model, train
        As in `contenders.Subject`.

    Raises
    ------
    BackendError
        If the backend does not run programs.
    """

    name = "fold-program"

    def __init__(self, benchmark: Benchmark, backend: Any, model: Any, train: bool) -> None:
        make = EXECUTORS.get(backend.name)
        if make is None:
            raise BackendError(
                f"Backend '{backend.name}' runs no programs; {', '.join(EXECUTORS)} do.",
                "take fold-traced.",
            )
        self.benchmark = benchmark
        self.backend = backend
        self.train = train
        self.fold = multifold.Fold(backend=backend)
        self.run = make(backend, model, train)

    def prepare(self, minibatch: Batch) -> Any:
        """Trace the examples."""
        traces = [multifold.trace(self.benchmark.record, example) for example in minibatch.examples]
        return traces, minibatch.weights.astype(np.float32)

    def step(self, prepared: Any) -> Step:
        """Lay the schedule out and run it, to the end."""
        traces, weights = prepared
        start = time.perf_counter()
        result = self.run(self.fold.program(traces), weights)
        if self.train:
            value, gradients = result
            arrays = {"the loss": value}
            arrays |= {f"the gradient of {name}": x for name, x in gradients.items()}
        else:
            arrays = {"the logits": result}
        self.backend.synchronize()
        seconds = time.perf_counter() - start
        return Step(seconds, lambda: {name: self.backend.to_numpy(x) for name, x in arrays.items()})


def adapter(backend: Any) -> Any:
    """Return the package that a backend comes from, which runs programs beside it."""
    return importlib.import_module(type(backend).__module__.partition(".")[0])


def jax(backend: Any, model: Any, train: bool) -> Executor:
    """Compile by `jax.jit`."""
    import jax

    run = adapter(backend).run

    @jax.jit
    def infer(model: Any, program: Any, weights: Any) -> Any:
        return run(model, program)

    @jax.jit
    def loss(model: Any, program: Any, weights: Any) -> Any:
        def weighted(model: Any) -> Any:
            return (run(model, program) * weights).sum()

        return backend.kit.value_and_grad(weighted, model)

    def compiled(program: Any, weights: Any) -> Any:
        return jax.block_until_ready((loss if train else infer)(model, program, weights))

    return compiled


def tensorflow(backend: Any, model: Any, train: bool) -> Executor:
    """Trace by `tf.function`."""
    import tensorflow as tf

    run = adapter(backend).run
    as_tensors = adapter(backend).as_tensors

    def infer(program: Any, weights: Any) -> Any:
        return run(model, program)

    def loss(program: Any, weights: Any) -> Any:
        def weighted(model: Any) -> Any:
            return tf.reduce_sum(run(model, program) * weights)

        return backend.kit.value_and_grad(weighted, model)

    function = tf.function(loss if train else infer, autograph=False, reduce_retracing=True)
    return lambda program, weights: function(as_tensors(program), tf.constant(weights))


def torch(backend: Any, model: Any, train: bool) -> Executor:
    """Run the tiles one after the other, with nothing compiled."""
    run = adapter(backend).run

    def infer(program: Any, weights: Any) -> Any:
        with backend.inference():
            return run(model, program)

    def loss(program: Any, weights: Any) -> Any:
        held = backend.constant(weights, backend.device(model))
        return backend.kit.value_and_grad(lambda model: (run(model, program) * held).sum(), model)

    return loss if train else infer


EXECUTORS: Mapping[str, Callable[[Any, Any, bool], Executor]] = {
    "jax": jax,
    "tensorflow": tensorflow,
    "torch": torch,
}
"""Backend -> what makes the function that runs a program."""
