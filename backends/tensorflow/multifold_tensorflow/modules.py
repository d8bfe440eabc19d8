"""The models of `multifold.models` as `tf.Module`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multifold.errors import BackendError


class Group(tf.Module):
    """Variables by name."""


class TensorflowModel(tf.Module):
    """The half that is TensorFlow's: variables. The class it is mixed with has the ops."""

    kind: type
    held: tuple[str, ...] = ()

    def __init__(self, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.held_layers: dict[str, keras.Layer] = {}
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

    def hold(self, name: str, layer: Any, device: Any) -> None:
        """Make a built layer, or a variable, a part of the model; where its arrays are stays as it is."""
        if isinstance(layer, tf.Variable):
            self.names += (name,)
        elif not layer.built:
            raise BackendError(
                f"Expected the layer {layer.name!r}, a {name}, to have its variables when a model takes it "
                "over. Received one that is not built.",
                "layer.build((None, 16)) makes them, for rows of 16 numbers.",
            )
        else:
            self.held_layers[name] = layer
        setattr(self, name, layer)
        self.held += (name,)

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """The model's own variables, and those of its layers, which a `tf.Module` doesn't look into."""
        return (
            *super().variables,
            *(x.value for layer in self.held_layers.values() for x in layer.variables),
        )

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """Those of ``variables`` that are trained."""
        trained = (x.value for layer in self.held_layers.values() for x in layer.trainable_variables)
        return (*super().trainable_variables, *trained)

    @property
    def parameters(self) -> dict[str, tf.Variable]:
        """All variables by name; those of a layer by their position in it, since Keras counts its names."""
        found = {name: attrgetter(name)(self) for name in self.names}
        for name, layer in self.held_layers.items():
            found |= {f"{name}.{i}.{x.name}": x.value for i, x in enumerate(layer.variables)}
        return found

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of the variables' values by name, on the host; bfloat16 as float32."""
        found = {name: x.numpy() for name, x in self.parameters.items()}
        return {name: x.astype("float32") if x.dtype.kind == "V" else x for name, x in found.items()}

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace the values of variables."""
        for name, variable in self.parameters.items():
            variable.assign(tf.cast(weights[name], variable.dtype))


def on(
    kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any
) -> TensorflowModel:
    """Return a model of a class written once as a module."""
    return _module_class(kind)(weights, settings, device)


def layers() -> tuple[type, ...]:
    """Return the classes of what a model trains beside its own variables."""
    return keras.Layer, tf.Variable


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
