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
    """A module whose attributes are variables or other groups, as ``cell`` for ``"cell.bias"``."""


class TensorflowModel(tf.Module):
    """The half of a model that TensorFlow needs: variables. The class it is mixed with has the ops."""

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
        """Make a built layer, or a variable, the attribute ``name`` of the model.

        It stays on the device where it is. Raises `BackendError` for a layer that is not built.
        """
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
        """The trainable variables of the model and of its layers."""
        trained = (x.value for layer in self.held_layers.values() for x in layer.trainable_variables)
        return (*super().trainable_variables, *trained)

    @property
    def parameters(self) -> dict[str, tf.Variable]:
        """All variables, those of held layers too: name -> variable.

        Variables of a held layer are named by their position in it, since Keras counts its names:
        ``"dense.0.kernel"``.
        """
        found = {name: attrgetter(name)(self) for name in self.names}
        for name, layer in self.held_layers.items():
            found |= {f"{name}.{i}.{x.name}": x.value for i, x in enumerate(layer.variables)}
        return found

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of the values of `parameters`, name -> NumPy array; bfloat16 as float32."""
        found = {name: x.numpy() for name, x in self.parameters.items()}
        return {name: x.astype("float32") if x.dtype.kind == "V" else x for name, x in found.items()}

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Assign ``weights[name]``, cast to its dtype, to each variable; `KeyError` if one is missing."""
        for name, variable in self.parameters.items():
            variable.assign(tf.cast(weights[name], variable.dtype))


def on(
    kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any
) -> TensorflowModel:
    """Return a model of class ``kind`` as a `tf.Module` whose variables have the values of ``weights``.

    They lie on ``device``. Each of ``settings`` becomes an attribute.
    """
    return _module_class(kind)(weights, settings, device)


def layers() -> tuple[type, ...]:
    """Return ``(keras.Layer, tf.Variable)``, which a model may hold and train besides its own variables."""
    return keras.Layer, tf.Variable


@functools.cache
def _module_class(kind: Any) -> type[TensorflowModel]:
    """Return a subclass of ``kind`` and `TensorflowModel`, made once a class.

    Raises `BackendError` if ``kind`` and `tf.Module` have methods of one name.
    """
    shared = kind.shared_names(tf.Module)
    if shared:
        raise BackendError(
            f"Expected {kind.__name__} to have other methods than a tf.Module. "
            f"Received {', '.join(shared)}.",
            "give them other names.",
        )
    members = {"kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (TensorflowModel, kind), members)
