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
        """Return a context in which TensorFlow raises for copies between devices that no line asks for.

        It yields a `Transfers` with the device to copy to. Copies of int32, which TensorFlow makes itself
        for sizes of arrays, are allowed. Raises `BackendError` where there is only one device.
        """
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
    """Return the name of an array's device; "" while a graph is drawn, which is placed as a whole later."""
    return x.device if tf.executing_eagerly() else ""


def named_variables(model: Any, *, trained: bool = True) -> Iterator[tuple[str, tf.Variable]]:
    """Yield each trainable variable of a model once, as (name, variable); two names may be equal.

    With ``trained=False`` yield those that are not trained instead, such as running means and seeds.
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
    """Return the parts of one object as pairs (key, part): its variables, its items or its attributes.

    Of a Keras layer only the variables that are trained, or all of them if ``trained`` is False; of an
    object of NumPy, TensorFlow or Python itself none.
    """
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
