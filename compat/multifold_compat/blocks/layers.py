"""Layers with weights: `FC` and `Embedding`, and the model that holds the weights of a block.

A layer is an op that a model has, by name, so that a block holds no arrays: it pickles, enters traces,
and runs on every framework. `Layers(block)` looks through a block, gives a name to each layer without one,
and makes the weights, whose sizes it knows from the types. ``Layers(block).on("torch")`` is a module of
PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multifold import ops
from multifold.backend import Array, Backend
from multifold.models.held import hold
from multifold.models.layers import Initial, linear
from multifold.models.model import Model
from multifold_compat.blocks.block import Layer, as_block
from multifold_compat.blocks.inference import use_of, uses_in
from multifold_compat.blocks.inputs import InputTransform
from multifold_compat.blocks.types import BlockError, Known, TensorType, kind_of, shown


class Weighted(Layer):
    """Base of the layers: blocks that hold one layer object share its weights."""

    def __init__(self, default: str, name: str | None) -> None:
        self.default = default
        self.name = name

    def named(self, name: str) -> None:
        """Set the name of the layer: that of its weights in the model."""
        self.name = name

    def key(self) -> str:
        """Return the name of the layer; raise `BlockError` if it has none."""
        if self.name is None:
            raise BlockError(
                f"Expected {self!r} to have a name. Received one without, which no model knows.",
                "Layers(block) makes the weights and names the layers; or give it a name.",
            )
        return self.name

    def parameters(self, given: Known, initial: Initial) -> dict[str, np.ndarray]:
        """Return new weights, name -> NumPy array, for rows of type ``given``; ``initial`` draws them.

        Raises `BlockError` if the type does not say their sizes.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.default if self.name in (None, self.default) else f"{self.default} {self.name}"


class FC(Weighted):
    """A fully connected layer, for `Function`: a row of any width gives a row of ``num_units_out`` numbers.

    Parameters
    ----------
    num_units_out : int
        The width of the output.
    activation : callable, optional
        A function of `multifold.ops` that is applied to the result; None for none.
    name : str, optional
        Of the weights. `Layers` gives one to each layer without.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, Layers, Vector
    >>> block = Vector(3) >> Function(FC(8)) >> Function(FC(2, activation=None))
    >>> multifold.Fold(backend="numpy").run(Layers(block), [[1, 2, 3], [4, 5, 6]], block).shape
    (2, 2)
    """

    accepts = TensorType((None,), None)

    def __init__(
        self,
        num_units_out: int,
        activation: Callable[[Array], Array] | None = ops.relu,
        name: str | None = None,
    ) -> None:
        super().__init__(f"FC_{num_units_out}", name)
        if not (activation is None or callable(activation)):
            raise BlockError(f"Expected a function in FC. Received {activation!r}.", "ops.tanh is one.")
        self.output_size = num_units_out
        self.activation = activation

    def call(self) -> tuple[str, dict[str, Any]]:
        return "fully_connected", {"layer": self.key(), "activation": self.activation}

    def result(self, given: Known) -> Known:
        return TensorType((self.output_size,), "float32")

    def parameters(self, given: Known, initial: Initial) -> dict[str, np.ndarray]:
        shape = given.shape if isinstance(given, TensorType) else None
        if not shape or shape[0] is None:
            raise BlockError(
                f"Expected the width of what goes into {self!r}, to make its weights. Received "
                f"{shown(given)}.",
                "say Function(op, out=16); or, of a cell, rnn.set_output_type((SequenceType(16), 16)).",
            )
        return initial.linear(self.key(), shape[0], self.output_size)


class Embedding(Weighted):
    """A table with a row for each integer, for `Function`.

    Parameters
    ----------
    num_buckets, num_units_out : int
        How many rows, and how wide they are. An integer is taken modulo ``num_buckets``.
    name : str, optional
        Of the weights.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Function, Layers, Scalar
    >>> block = Scalar("int") >> Function(Embedding(10, 4))
    >>> multifold.Fold(backend="numpy").run(Layers(block), [3, 7, 13], block).shape
    (3, 4)
    """

    accepts = TensorType((), None)

    def __init__(self, num_buckets: int, num_units_out: int, name: str | None = None) -> None:
        super().__init__(f"Embedding_{num_buckets}_{num_units_out}", name)
        self.num_buckets = num_buckets
        self.num_units_out = num_units_out

    def call(self) -> tuple[str, dict[str, Any]]:
        return "embedded", {"layer": self.key(), "buckets": self.num_buckets}

    def result(self, given: Known) -> Known:
        dtype = given.dtype if isinstance(given, TensorType) else None
        if dtype is not None and kind_of(dtype) not in "iu":
            raise BlockError(
                f"Expected an integer as the input of {self!r}. Received {given}.",
                "Scalar('int32') makes one; Scalar() makes a float.",
            )
        return TensorType((self.num_units_out,), "float32")

    def parameters(self, given: Known, initial: Initial) -> dict[str, np.ndarray]:
        return {f"{self.key()}.weight": initial.embedding(self.num_buckets, self.num_units_out)}


class Layers(Model):
    """The weights of all layers of a block, and their ops; a subclass may add ops of its own.

    Parameters
    ----------
    block : block
        Its `FC` and `Embedding` layers get names, in the order in which ``print(block)`` shows them. Layers
        of a framework in it become parts of the module that ``on`` makes, like its attributes: not copies,
        since the block calls these objects.
    seed, dtype
        Of the initial values.

    Raises
    ------
    BlockError
        If the width of what goes into a layer is not known, or two layers have one name.

    Examples
    --------
    >>> from multifold_compat.blocks import Function, Vector
    >>> list(Layers(Vector(3) >> Function(FC(8)) >> Function(FC(8))).weights())
    ['FC_8.weight', 'FC_8.bias', 'FC_8_1.weight', 'FC_8_1.bias']
    """

    called: Sequence[Any] = ()

    def __init__(self, block: Any, *, seed: int = 0, dtype: str = "float32") -> None:
        uses = list(uses_in(use_of(as_block(block))))
        found = [(x.block.op, x.given) for x in uses if isinstance(getattr(x.block, "op", None), Weighted)]
        initial = Initial(seed, dtype)
        parameters = dict[str, np.ndarray]()
        give_names([layer for layer, _ in found])
        for layer, given in found:
            made = layer.parameters(given, initial)
            for name, value in made.items():
                if name in parameters and parameters[name].shape != value.shape:
                    raise BlockError(
                        f"Expected rows of one width in all uses of {layer!r}. Received {shown(given)}, "
                        f"and elsewhere {parameters[name].shape[0]}.",
                        "make a layer for each width.",
                    )
                # A layer that stands in several places has one set of weights: the first.
                parameters.setdefault(name, value)
        super().__init__(parameters)
        # What an InputTransform calls is done before anything is recorded, and is no part of the model.
        self.called = [x.block.__getstate__() for x in uses if not isinstance(x.block, InputTransform)]

    def on(self, backend: str | Backend, device: Any = None) -> Any:
        return hold(self, super().on(backend, device), self.called, backend, device)

    def fully_connected(
        self, x: Array, *, layer: str, activation: Callable[[Array], Array] | None = None
    ) -> Array:
        """Return ``activation(x @ weight + bias)`` of the layer named ``layer``.

        ``x`` is ``(n, inputs)``, the result ``(n, units)``.
        """
        group = self._of(layer, x)
        made = linear(group, ops.cast(x, group.weight))
        return made if activation is None else activation(made)

    def embedded(self, i: Array, *, layer: str, buckets: int) -> Array:
        """Return rows ``i % buckets`` of the table of the layer named ``layer``.

        The integers ``i`` are ``(n,)``, the result is ``(n, units)``.
        """
        return ops.take(self._of(layer, i).weight, i % buckets)

    def _of(self, layer: str, x: Array) -> Any:
        group = getattr(self, layer)
        if isinstance(group.weight, np.ndarray) and not isinstance(x, np.ndarray):
            raise BlockError("Received a tensor for weights of NumPy.", "say Layers(block).on('torch').")
        return group


def give_names(layers: list[Weighted]) -> None:
    """Give a name to each layer without one: its default, or with ``_1``, ``_2`` if that is taken.

    Raises `BlockError` if two layer objects have one name.
    """
    taken: dict[str, Weighted] = {}
    for layer in layers:
        if layer.name is not None and taken.setdefault(layer.name, layer) is not layer:
            raise BlockError(
                f"Expected one layer of the name {layer.name!r}. Received two, {layer!r} and "
                f"{taken[layer.name]!r}.",
                "blocks share weights by holding the same layer object.",
            )
    for layer in layers:
        if layer.name is None:
            names = (layer.default, *(f"{layer.default}_{i}" for i in range(1, len(layers) + 1)))
            name = next(name for name in names if name not in taken)
            taken[name] = layer
            layer.named(name)
