"""The training kit beside an adapter: parameters, gradients, and how many copies to a device there were."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifold.backend.arrays import Array
from multifold.errors import BackendError


@dataclass
class Transfers:
    """What a context of `TrainingKit.transfers` has counted so far."""

    device: Any = None
    """The device to run on, None for the default."""
    uploads: int = 0
    """Copies from the host to the device."""
    waits: int = 0
    """How often the host read an array back, or waited for one."""


class TrainingKit(abc.ABC):
    """What `Fold.check`, the tests and the benchmarks need to compare gradients.

    A *model* is whatever the framework's users hand around (modules, layers, pytrees), or a plain
    dictionary of arrays made by `variable`.
    """

    @abc.abstractmethod
    def variable(self, values: np.ndarray, device: Any = None) -> Array:
        """Return a new trainable array on ``device`` with these values, copied, and their dtype."""

    @abc.abstractmethod
    def parameters(self, model: Any) -> dict[str, Array]:
        """Return the trainable arrays of a model, name -> array, in the same order each time."""

    @abc.abstractmethod
    def value_and_grad(self, fn: Callable[[Any], Array], model: Any) -> tuple[Array, dict[str, Array]]:
        """Return ``fn(model)``, a scalar array, and its gradients by the names of `parameters`.

        A parameter that ``fn`` does not use has a gradient of zeros. ``fn`` may be called with a copy of
        the model whose parameters are tracers.
        """

    @abc.abstractmethod
    def dot(self, x: Array, weights: np.ndarray) -> Array:
        """Return the scalar array ``sum(x * weights)``, the weights cast to the dtype of ``x``."""

    def transfers(self) -> contextlib.AbstractContextManager[Transfers]:
        """Return a context that yields a `Transfers`, and counts or refuses hidden copies between devices.

        The conformance suite runs a whole step inside. A framework that raises for a hidden copy need not
        count.

        Raises
        ------
        BackendError
            When the framework has no means for that here; the suite then skips the test with this reason.
        """
        raise BackendError(
            "The training kit does not tell how its framework copies between devices.",
            "its method transfers() may refuse or count them; backends/README.md says how others do.",
        )
