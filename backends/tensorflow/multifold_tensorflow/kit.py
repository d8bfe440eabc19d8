"""Trainable variables of a model and their gradients, for `Fold.check`, the tests and benchmarks.

The one idea: the names are read off the model as it is, by attributes, items and Keras paths, since
TensorFlow has neither one class for models nor unique names of variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from multifold.backend import TrainingKit, Transfers
from multifold.errors import BackendError

OPAQUE = {"builtins", "numpy", "tensorflow", "keras"}
"""Packages whose objects have attributes that are none of a model's."""


@final
class TensorflowKit(TrainingKit):
    """Gradients of `tf.Variable` through a `tf.GradientTape`."""

    def variable(self, values: np.ndarray, device: Any = None) -> tf.Variable:
        with tf.device(device or ""):
            return tf.Variable(values)

    def parameters(self, model: Any) -> dict[str, tf.Variable]:
        found: dict[str, tf.Variable] = {}
        for name, variable in named_variables(model):
            found[name if name not in found else f"{name}#{len(found)}"] = variable
        return found

    def value_and_grad(
        self, fn: Callable[[Any], Any], model: Any
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        with tf.GradientTape() as tape:
            value = fn(model)
        parameters = self.parameters(model)  # now: Keras may have built layers on the way
        # Where the value is: an eager op without a variable runs on the default device.
        with tf.device(place_of(value)):
            gradients = tape.gradient(value, parameters, unconnected_gradients="zero")
        return value, {name: tf.convert_to_tensor(grad) for name, grad in gradients.items()}

    def dot(self, x: Any, weights: np.ndarray) -> tf.Tensor:
        with tf.device(place_of(x)):
            return tf.reduce_sum(x * tf.cast(tf.constant(weights), x.dtype))

    @contextlib.contextmanager
    def transfers(self) -> Iterator[Transfers]:
        """Let TensorFlow refuse hidden copies; of int32 it makes some by itself, for sizes of arrays."""
        devices = tf.config.list_logical_devices()
        before = tf.config.experimental.get_device_policy()
        if len(devices) < 2:
            raise BackendError("This process has one logical device, so nothing can be copied between two.")
        tf.config.experimental.set_device_policy("silent_for_int32")
        try:
            yield Transfers(devices[-1].name)
        finally:
            tf.config.experimental.set_device_policy(before)


def place_of(x: Any) -> str:
    """Return the device of an array, or "" in a graph, which is placed as a whole later."""
    return x.device if tf.executing_eagerly() else ""


def named_variables(model: Any, *, trained: bool = True) -> Iterator[tuple[str, tf.Variable]]:
    """Yield every trainable variable of a model once, with a name that may not be unique.

    Those that are not trained, as running means and seeds, come instead if ``trained`` is False.
    """
    seen: dict[int, Any] = {}  # keeps alive what was found, so that no id comes twice
    pending: list[tuple[str, Any]] = [("", model)]
    while pending:
        path, value = pending.pop()
        value = value.value if isinstance(value, keras.Variable) else value
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if not isinstance(value, tf.Variable):
            parts = [(f"{path}.{key}" if path else str(key), part) for key, part in _parts(value, trained)]
            pending += reversed(parts)
            continue
        inexact = value.dtype.is_floating or value.dtype.is_complex
        if value.trainable and inexact if trained else not value.trainable:
            yield path or value.name, value


def _parts(value: Any, trained: bool) -> Iterable[tuple[Any, Any]]:
    """Return the named parts of one object: what Keras trains in it or not, its items, its attributes."""
    if isinstance(value, keras.Layer):
        own = value.trainable_variables if trained else value.variables
        return [(variable.path, variable) for variable in own]
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if type(value).__module__.partition(".")[0] in OPAQUE:
        return ()
    attributes = getattr(value, "__dict__", {}).items()
    return [(key, part) for key, part in attributes if not key.startswith("_self_")]  # tf.Module's
