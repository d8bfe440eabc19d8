"""Parameters of a pytree and their gradients, for `Fold.check`, the tests and the benchmarks.

A model is opened into a dictionary of trainable arrays and a function that puts other arrays, for
instance tracers, in their place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from multifold.backend import TrainingKit, Transfers
from multifold.errors import BackendError

Parameters = dict[str, Any]
LEAF = jax.tree.structure(0)


def device_of(device: Any) -> Any:
    """Return the device of JAX that a name means, ``"cpu"`` or ``"gpu:1"``; another value as it is."""
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    return jax.devices(platform)[int(number or 0)]


@final
class JaxKit(TrainingKit):
    """Gradients of the floating point arrays of a pytree; of a Flax NNX model, those in `Param`."""

    def variable(self, values: np.ndarray, device: Any = None) -> jax.Array:
        return jax.device_put(values.copy(), device_of(device))  # JAX may keep reading what it was given

    def parameters(self, model: Any) -> Parameters:
        return _open(model)[0]

    def value_and_grad(self, fn: Callable[[Any], Any], model: Any) -> tuple[jax.Array, Parameters]:
        parameters, rebuild = _open(model)
        value, pullback = jax.vjp(lambda values: fn(rebuild(values)), parameters)
        # `jax.value_and_grad` uploads the 1 that it begins with by itself, which a transfer guard refuses.
        (gradients,) = pullback(jax.device_put(np.ones((), value.dtype)))
        return value, gradients

    def dot(self, x: jax.Array, weights: np.ndarray) -> jax.Array:
        return (x * jax.device_put(weights.astype(x.dtype))).sum()

    @contextlib.contextmanager
    def transfers(self) -> Iterator[Transfers]:
        """Return a context in which JAX raises for each transfer but `jax.device_put` and `jax.device_get`.

        It yields a `Transfers` in which nothing is counted.
        """
        with jax.transfer_guard("disallow"):
            yield Transfers()


def _trainable(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _open(model: Any) -> tuple[Parameters, Callable[[Parameters], Any]]:
    """Return the trainable arrays of a model, name -> array, and a function that rebuilds the model.

    The function takes a dictionary name -> array and returns a copy of the model with those arrays in their
    places; a name that is left out keeps its array. Of a Flax NNX model only `nnx.Param` and bare arrays
    are trainable.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None:
        leaves = jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, nnx.Variable))
        if any(isinstance(leaf, nnx.Variable) for leaf in leaves):
            # Only nnx.split keeps a Param that is used in two places one parameter. Beside Params,
            # arrays outside of modules are trained; those in other variables (averages) are not.
            trained = nnx.Any(nnx.Param, lambda path, leaf: _trainable(leaf))
            definition, state, rest = nnx.split(model, trained, ...)
            parameters, rebuild = _open_pytree(state)
            return parameters, lambda values: nnx.merge(definition, rebuild(values), rest)
    return _open_pytree(model)


def _open_pytree(model: Any) -> tuple[Parameters, Callable[[Parameters], Any]]:
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    if structure == LEAF and any(map(_trainable, getattr(model, "__dict__", {}).values())):
        raise BackendError(
            f"Expected a pytree. Received a {type(model).__name__}, whose arrays JAX cannot see.",
            "register its class, with jax.tree_util.register_dataclass for instance.",
        )
    named = [(_name(path), leaf) for path, leaf in paths]
    parameters = {name: leaf for name, leaf in named if _trainable(leaf)}

    def rebuild(values: Parameters) -> Any:
        return structure.unflatten([values.get(name, leaf) for name, leaf in named])

    return parameters, rebuild


def _name(path: tuple[Any, ...]) -> str:
    """Return a path of `jax.tree_util` as text, like ``encoder.cell.weight``.

    A ``.value`` at its end, as inside an `nnx.Param`, is left out.
    """
    return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")
