"""The models of `multifold.models` as `torch.nn.Module`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from multifold.errors import BackendError


class TorchModel(torch.nn.Module):
    """The half of a model that PyTorch needs: parameters. The class it is mixed with has the ops."""

    kind: type
    held: tuple[str, ...] = ()

    def __init__(self, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any) -> None:
        super().__init__()
        self.names = tuple(weights)
        self.settings = dict(settings)
        self.__dict__.update(settings)
        for path, value in weights.items():
            *groups, name = path.split(".")
            module: torch.nn.Module = self
            for group in groups:
                if group not in module._modules:
                    module.add_module(group, torch.nn.Module())
                module = module.get_submodule(group)
            parameter = torch.nn.Parameter(torch.tensor(value, device=device))
            module.register_parameter(name, parameter)

    def weights(self) -> dict[str, np.ndarray]:
        """Return copies of parameters and buffers, name -> NumPy array; bfloat16 as float32."""
        found = {}
        for name, x in self.state_dict().items():  # with what a layer counts, as running means
            x = x.cpu()
            found[name] = (x.float() if x.dtype is torch.bfloat16 else x).numpy().copy()
        return found

    @torch.no_grad()
    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copy ``weights[name]`` into each parameter and buffer; `KeyError` if one is missing."""
        for name, x in self.state_dict().items():
            x.copy_(torch.as_tensor(weights[name]))

    def hold(self, name: str, layer: Any, device: Any) -> None:
        """Make a layer, or a parameter, the attribute ``name`` of the model; move a layer to ``device``."""
        if isinstance(layer, torch.nn.Module):
            layer.to(device=device)
        setattr(self, name, layer)
        self.held += (name,)

    def __reduce__(self) -> Any:
        if self.held:
            raise BackendError(
                f"Expected {', '.join(self.held)} to be copied with the block that calls them. "
                f"Received their model, a {self.kind.__name__}, alone.",
                "copy its state_dict(); or write an nn.Module with these layers, and Function('linear').",
            )
        # Pickle finds classes by module and name, and this one was made by a call: make it again there.
        return _blank, (self.kind,), vars(self)


def on(
    kind: type, weights: Mapping[str, np.ndarray], settings: Mapping[str, Any], device: Any
) -> TorchModel:
    """Return a model of class ``kind`` as a module whose parameters are copies of ``weights``.

    They lie on ``device``. Each of ``settings`` becomes an attribute.
    """
    return _module_class(kind)(weights, settings, device)


def layers() -> tuple[type, ...]:
    """Return ``(nn.Module, nn.Parameter)``, which a model may hold and train besides its own parameters."""
    return torch.nn.Module, torch.nn.Parameter


def _blank(kind: type) -> TorchModel:
    return TorchModel.__new__(_module_class(kind))


@functools.cache
def _module_class(kind: Any) -> type[TorchModel]:
    """Return a subclass of ``kind`` and `TorchModel`, made once a class.

    Raises `BackendError` if ``kind`` has a private method that `torch.nn.Module` has too.
    """
    shared = kind.shared_names(torch.nn.Module)
    hidden = [name for name in shared if name.startswith("_")]
    if hidden:
        raise BackendError(
            f"Expected {kind.__name__} to have other private methods than a torch.nn.Module. "
            f"Received {', '.join(hidden)}.",
            "give them other names.",
        )
    members = {"kind": kind, "__doc__": kind.__doc__, "__module__": kind.__module__}
    for name in shared:
        members[name] = _op_or_own(getattr(kind, name), getattr(torch.nn.Module, name))
    return type(kind.__name__, (TorchModel, kind), members)


def _op_or_own(op: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls ``op`` if it gets arguments, else ``own``, the module's of that name.

    Modules have a method ``children()``, which ``to``, ``train`` and ``apply`` rely on; an op may
    be called that too, and takes at least one operand.
    """

    @functools.wraps(op)
    def either(self: Any, *operands: Any, **static: Any) -> Any:
        return op(self, *operands, **static) if operands or static else own(self)

    return either
