"""The models of `multifold.models` as pytrees, for `jax.grad`, `jax.jit` and Optax."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import jax
import numpy as np

from multifold.errors import BackendError
from multifold_jax.kit import device_of


class JaxModel:
    """The half of a model that JAX needs: it makes the model a pytree.

    The class it is mixed with has the ops.
    """

    kind: type
    names: tuple[str, ...]
    settings: dict[str, Any]

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace each array of the model by ``weights[name]``, cast to its dtype and put on its device.

        Raises `KeyError` if a name is missing.
        """
        for name, x in _named(self):
            value = weights[name].astype(x.dtype)
            group, _, last = name.rpartition(".")
            owner = attrgetter(group)(self) if group else self
            setattr(owner, last, jax.device_put(value, x.sharding if x.committed else None))

    def hold(self, name: str, layer: Any, device: Any) -> None:
        """Raise `BackendError` always: a pytree of JAX cannot hold a layer.

        Gradients are those of a function's arguments, and nothing would pass this layer as one.
        """
        raise BackendError(
            f"Expected what JAX differentiates in the model. Received a {name}, which a block calls as an "
            "object, so it would never be trained.",
            "make it a part of a pytree of your own, and let the block name it: Function('linear').",
        )

    def __reduce__(self) -> Any:
        return _rebuild, (self.kind, tuple(_named(self)), self.settings)


def on(kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any) -> Any:
    """Return a model of class ``kind`` as a pytree, whose leaves are copies of ``weights`` on ``device``.

    Raises `BackendError` for a dtype of 64 bits where ``jax_enable_x64`` is off.
    """
    wide = [name for name, x in weights.items() if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype]
    if wide:
        raise BackendError(
            f"Backend 'jax' has no {weights[wide[0]].dtype} switched on, the dtype of {wide[0]}.",
            "call jax.config.update('jax_enable_x64', True) first, or make the model in float32.",
        )
    place = device_of(device)
    arrays = ((name, jax.device_put(x.copy(), place)) for name, x in weights.items())
    return _rebuild(kind, arrays, settings)


def layers() -> tuple[type, ...]:
    """Return the classes `flax.nnx.Module` and `equinox.Module`, each only if its package is imported."""
    places = (("flax.nnx", "Module"), ("equinox", "Module"))
    return tuple(getattr(sys.modules[name], kind) for name, kind in places if name in sys.modules)


def _rebuild(kind: type, named: Iterable[tuple[str, Any]], settings: Mapping[str, Any]) -> Any:
    model: Any = object.__new__(_pytree_class(kind))
    model._hold(dict(named), settings)
    return model


def _named(model: Any) -> list[tuple[str, Any]]:
    return [(name, attrgetter(name)(model)) for name in model.names]


@functools.cache
def _pytree_class(kind: type) -> type:
    """Return a subclass of ``kind`` and `JaxModel`, made once a class, that JAX knows as a pytree."""
    members = {"kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
    made = type(kind.__name__, (JaxModel, kind), members)

    def flatten(model: Any) -> tuple[Any, Any]:
        pairs = [(jax.tree_util.GetAttrKey(name), x) for name, x in _named(model)]
        return pairs, (model.names, tuple(model.settings.items()))

    def unflatten(fixed: Any, leaves: Any) -> Any:
        names, settings = fixed
        return _rebuild(kind, zip(names, leaves, strict=True), dict(settings))

    jax.tree_util.register_pytree_with_keys(made, flatten, unflatten)
    return made
