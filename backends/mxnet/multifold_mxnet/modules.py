"""The models of `multifold.models` as `mxnet.gluon.Block`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from multifold.backend import Array
from multifold.errors import BackendError
from multifold_mxnet.kit import context_of


class ParameterBlock(gluon.Block):
    """A block of named parameters; reading one as an attribute, ``block.weight``, returns its array."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix=prefix)

    def add(self, name: str, value: np.ndarray, device: Any) -> None:
        """Make a parameter ``name`` on ``device``, of the shape, dtype and values of ``value``."""
        parameter = self.params.get(name, shape=value.shape, dtype=value.dtype, init=mx.init.Constant(0))
        parameter.initialize(ctx=device)
        parameter.set_data(_array(value))
        self._reg_params[name] = parameter  # where save_parameters looks

    def __getattr__(self, name: str) -> Array:
        try:
            return self.__dict__["_reg_params"][name].data()
        except KeyError:
            raise AttributeError(f"A {type(self).__name__} has no attribute {name!r}.") from None


class MxnetModel(ParameterBlock):
    """The half of a model that MXNet needs: its parameters; the class it is mixed with has the ops.

    The parameter ``"cell.bias"`` is in a block of its own, the attribute ``cell``.
    """

    kind: type
    held: tuple[str, ...] = ()

    def __init__(self, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any) -> None:
        super().__init__(prefix="")  # so that parameters have the same names everywhere
        self.names = tuple(weights)
        self.settings = dict(settings)
        for name, value in settings.items():
            setattr(self, name, value)
        for path, value in weights.items():
            *groups, name = path.split(".")
            block: ParameterBlock = self
            for group in groups:
                if group not in block._children:
                    setattr(block, group, ParameterBlock(f"{block.prefix}{group}."))
                block = block._children[group]
            block.add(name, value, device)

    def hold(self, name: str, layer: gluon.Block, device: Any) -> None:
        """Make an initialised layer the attribute and child ``name`` of the model.

        The layer moves to ``device`` unless that is None. Raises `BackendError` if one of its parameters
        has no array yet.
        """
        try:
            for parameter in layer.collect_params().values():
                parameter.list_data()
        except RuntimeError as error:
            raise BackendError(
                f"Expected the layer {layer.name!r}, a {name}, to have its arrays when a model takes it "
                f"over. Received one of which {parameter.name} has none.",
                "nn.Dense(8, in_units=16) and layer.initialize() make them.",
            ) from error
        if device is not None:
            layer.collect_params().reset_ctx(context_of(device))
        setattr(self, name, layer)
        self.held += (name,)

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters' values, those of held layers too: name -> NumPy array."""
        named = self._collect_params_with_prefix()  # by attributes: Gluon counts the names of its layers
        return {name: parameter.list_data()[0].asnumpy() for name, parameter in named.items()}

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set each parameter, on all its contexts, to ``weights[name]``; `KeyError` if one is missing."""
        for name, parameter in self._collect_params_with_prefix().items():
            parameter.set_data(_array(weights[name]))


def on(
    kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any
) -> MxnetModel:
    """Return a model of class ``kind`` as a Gluon block whose parameters are copies of ``weights``.

    They lie on ``device``. Each of ``settings`` becomes an attribute.
    """
    return _block_class(kind)(weights, settings, context_of(device))


def layers() -> tuple[type, ...]:
    """Return ``(gluon.Block,)``: the classes that a model may hold and train besides its parameters."""
    return (gluon.Block,)


@functools.cache
def _block_class(kind: Any) -> type[MxnetModel]:
    """Return a subclass of ``kind`` and `MxnetModel`, made once a class.

    Raises `BackendError` if ``kind`` and `gluon.Block` have methods of one name, but for ``save`` and
    ``load``.
    """
    # A block has a save and a load too, of its structure; of weights it has save_parameters.
    members = {"save": kind.save, "load": kind.load}
    shared = set(kind.shared_names(gluon.Block)) - set(members)
    if shared:
        raise BackendError(
            f"Expected {kind.__name__} to have other methods than a gluon.Block. "
            f"Received {', '.join(sorted(shared))}.",
            "give them other names.",
        )
    members |= {"kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
    return type(kind.__name__, (MxnetModel, kind), members)


def _array(values: np.ndarray) -> Array:
    """Return ``values`` as an `mx.np` array if the user switched MXNet to them, else as `mx.nd`.

    The dtype stays.
    """
    array = mx.np.array(values, dtype=values.dtype)
    return array if mx.util.is_np_array() else array.as_nd_ndarray()
