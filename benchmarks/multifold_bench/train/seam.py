"""What an adapter brings to train: a module ``training`` in its package with a function ``trainer``.

``trainer(model, loss, settings, epoch_steps, fill)`` returns a `Trainer` around the framework's own
optimizer and schedule, set so that they compute the formulas of `Settings`. What a minibatch is made of
are traces and NumPy arrays; the loss is written once, over `multifold.ops`. ``fill(rows)`` returns a trace
of that many rows, with which a framework that compiles for sizes makes minibatches alike; the rows that
it adds have the weight 0.

An adapter may train in several processes (`multifold_bench.train.ranks`). Then its module has ``ranks()``,
which returns the `Ranks` that the environment tells of, or None, and ``commands(shards, port)``, which
returns what starts that many processes on this machine, each under its name; ``port()`` is a free one. Its
trainer takes the `Ranks` last. `Trainer.step` then gets this process's share of a minibatch, which may be
empty, and adds up gradients and loss over all of them. Whatever else they tell each other, scores for
example, travels as bytes through `Ranks.exchange`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import multifold
from multifold._engine.traces.trace import Trace
from multifold.backend import Backend
from multifold.errors import BackendError, BackendMissing
from multifold_bench.train.on import training_of

__all__ = ["Trainer", "load_backend", "make_trainer"]


class Trainer(Protocol):
    """A model in training.

    Attributes
    ----------
    model : object
        What `multifold.models.Model.on` returned; its weights are those after the last step.
    """

    model: Any

    def step(self, traces: Sequence[Trace], targets: np.ndarray, weights: np.ndarray) -> float:
        """Move the weights once; return the loss before that, of all processes together.

        A parameter that the minibatch does not use has a gradient of zeros.

        Parameters
        ----------
        traces : sequence of Trace
            Each returned one group of nodes.
        targets : float32 array
            A row for each node of the groups.
        weights : float32 array of shape ``(rows,)``
        """

    def predict(self, traces: Sequence[Trace], rows: int) -> np.ndarray:
        """Return that many rows of the groups of all traces, without gradients."""

    def skip(self, traces: Sequence[Trace], rows: int) -> None:
        """See the minibatch of a step that was done before the run was interrupted.

        A framework that compiles for sizes then has, for the next steps, the sizes that it would have had:
        other ones change the order in which float32 numbers are added.
        """

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the next steps depend on besides the weights."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` returned in another process."""


def load_backend(backend: str | Backend) -> Backend:
    """Return a backend that trains.

    Raises
    ------
    BackendError
        If it is not installed, has no gradients, its adapter has no module ``training``, or what that
        needs is not installed.
    """
    backend = multifold.load_backend(backend) if isinstance(backend, str) else backend
    if "kit" in backend.gaps():
        raise BackendError(
            f"Backend '{backend.name}' cannot train: {backend.gaps()['kit'].partition('; ')[0]}.",
            "train with torch, tensorflow, mxnet or jax; NumPy runs what they have trained.",
        )
    try:
        training_of(backend)
    except BackendMissing:
        raise
    except BackendError as error:
        raise BackendError(
            f"Backend '{backend.name}' cannot train: its adapter has no module 'training'.",
            "multifold_bench.train.seam says what such a module holds.",
        ) from error
    return backend


def make_trainer(backend: Backend, *arguments: Any) -> Trainer:
    """Return the trainer of an adapter; the arguments are those of its ``trainer``."""
    trainer: Trainer = training_of(backend).trainer(*arguments)
    return trainer
