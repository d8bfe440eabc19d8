"""The models of `multifold.models` as `tf.Module`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import tensorflow as tf

from multifold.errors import BackendError


class Group(tf.Module):
    """Variables by name."""


class TensorflowModel(tf.Module):
    """The half that is TensorFlow's: variables. The class it is mixed with has the ops."""

    kind: type

    def __init__(self, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.settings = dict(settings)
        for name, value in settings.items():
            setattr(self, name, value)
        for path, value in weights.items():
            *groups, name = path.split(".")
            module: tf.Module = self
            for group in groups:
                if not hasattr(module, group):
                    setattr(module, group, Group())
                module = getattr(module, group)
            with tf.device(device or ""):
                setattr(module, name, tf.Variable(value, name=path.replace(" ", "_")))

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of the variables' values by name, on the host; bfloat16 as float32."""
        found = {name: attrgetter(name)(self).numpy() for name in self.names}
        return {name: x.astype("float32") if x.dtype.kind == "V" else x for name, x in found.items()}

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace the values of variables."""
        for name in self.names:
            variable = attrgetter(name)(self)
            variable.assign(tf.cast(weights[name], variable.dtype))


def on(
    kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any
) -> TensorflowModel:
    """Return a model of a class written once as a module."""
    return _module_class(kind)(weights, settings, device)


@functools.cache
def _module_class(kind: Any) -> type[TensorflowModel]:
    """Return the class that has the ops of one class and is a module."""
    shared = kind.shared_names(tf.Module)
    if shared:
        raise BackendError(
            f"Expected {kind.__name__} to have other methods than a tf.Module. "
            f"Received {', '.join(shared)}.",
            "give them other names.",
        )
    members = {"kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (TensorflowModel, kind), members)
