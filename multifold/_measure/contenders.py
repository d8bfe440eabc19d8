"""The two ways that ``multifold compare`` times: one example at a time, and folded.

Each is ``forward(model, payload) -> logits`` for the same model and the same examples; `step` adds what
all ways share, the loss and the gradients. `multifold_bench.contenders` has the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from multifold._measure.benchmark import Benchmark, OneByOne
from multifold._measure.timing import Step
from multifold.backend import Array, Backend
from multifold.fold import Fold


class Subject(NamedTuple):
    """What is timed: a benchmark and its model on a backend, with or without gradients."""

    benchmark: Benchmark
    backend: Backend
    model: Any
    train: bool


Forward = Callable[[Any, Any], Array]
"""``forward(model, payload) -> logits`` of shape ``(rows, classes)``."""


def step(subject: Subject, forward: Forward, payload: Any, weights: np.ndarray) -> Step:
    """Compute logits, or the loss and all gradients, once.

    Return a `Step` with the seconds and the results. ``payload`` are the examples in the form that
    ``forward`` takes. The loss is the sum of the logits times ``weights``, which differ for each minibatch:
    one operation in any framework, so that the batching is compared and not the loss.
    """
    _, backend, model, train = subject
    with contextlib.nullcontext() if train else backend.inference():
        start = time.perf_counter()
        if train:
            kit = backend.kit
            value, gradients = kit.value_and_grad(
                lambda model: kit.dot(forward(model, payload), weights), model
            )
            arrays = {"the loss": value}
            arrays |= {f"the gradient of {name}": x for name, x in gradients.items()}
        else:
            arrays = {"the logits": forward(model, payload)}
        # A framework that queues work for a device returns before the work is done.
        backend.synchronize()
        seconds = time.perf_counter() - start
    # Results are copied to the host when they are compared, outside of the time.
    return Step(seconds, lambda: {name: backend.to_numpy(x) for name, x in arrays.items()})


def loop(subject: Subject) -> Forward:
    """Return ``forward(model, examples)``, which runs the plain program for each example in turn."""
    benchmark, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        one = OneByOne(backend, model)
        return one.join([benchmark.loop(one, example) for example in examples])

    return forward


def fold(subject: Subject) -> Forward:
    """Return ``forward(model, examples)``, which records all examples on a new fold, and runs them."""
    benchmark, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        return benchmark.apply(Fold(backend=backend), model, examples)

    return forward
