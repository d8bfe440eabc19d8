"""Weights: which tensors modules have at a call, since a program may give them others.

`torch.func.functional_call`, inner steps of meta-learning and hypernetworks write into the tables of
parameters and buffers of a module, ``module._parameters["weight"] = w``, call it, and put back what was
there. A recorded call runs later, so it must know which tensors it has met:

>>> layer = nn.Linear(2, 2)
>>> weights = Weights([layer])
>>> layer._parameters["bias"] = nn.Linear(2, 2).bias
>>> weights.are_now()
False
>>> with weights.put_back():
...     weights.are_now()
True
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from multifold.lazy.recorder import tables_hold
from multifold_torch.lazy.written import is_pending

GROWING = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that may have no part, and get some."""


MET: set[int] = set()
"""The modules, by ``id``, that were looked at. What is set of others, as of one that an example has just
made, changes nothing that was found out."""


class OtherWeights(Exception):
    """Says that a module has weights that are no parameters, so that it cannot be recorded as one call."""


def size_of(x: Tensor) -> torch.Size | None:
    """Return the shape of a tensor; None for a lazy parameter, which has none yet."""
    return None if torch.nn.parameter.is_lazy(x) else x.shape


class Weights:
    """The tensors that are parameters and buffers of some modules, and whether each needs a gradient.

    Parameters
    ----------
    modules : iterable of Module
        The modules; those inside of them are not looked at.
    alone : iterable of Tensor
        Other tensors. Of them only whether they need gradients is compared.

    Attributes
    ----------
    part_tables, parts : list of dict, list of Module
        The dictionaries of parts of the modules, and what they hold, one after the other.
    marks : list
        Of each tensor whether it needs a gradient, its dtype, device and shape.
    identity : tuple
        Equal for the same objects, if the same ones need gradients, and dtypes, devices and shapes are the
        same.
    has_hooks : bool
        Whether a module has backward hooks, which a launch would not call.
    """

    def __init__(self, modules: Iterable[nn.Module], alone: Iterable[Tensor] = ()) -> None:
        modules = [*modules]
        MET.update(map(id, modules))
        modules = [x for x in modules if not isinstance(x, torch.jit.ScriptModule)]  # theirs are compiled
        self.has_hooks = any(x._backward_hooks for x in modules)
        self.parameters = [x._parameters for x in modules if x._parameters]
        self.buffers = [x._buffers for x in modules if x._buffers]
        self.tables: list[dict[str, Any]] = [*self.parameters, *self.buffers]
        self.kept = [dict(table) for table in self.tables]
        self.part_tables = [x._modules for x in modules if x._modules or isinstance(x, GROWING)]
        self.parts = [x for table in self.part_tables for x in table.values()]
        self.tensors = [x for table in self.tables for x in table.values()]
        found = [x for x in self.tensors if isinstance(x, Tensor)]
        self.marks = [(x.requires_grad, x.dtype, x.device, size_of(x)) for x in (*found, *alone)]
        self.identity = (*map(id, self.tensors), *self.marks)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.identity)

    def has_parts(self) -> bool:
        """Return whether the modules have the same parts."""
        return tables_hold(self.part_tables, self.parts)

    def are_now(self) -> bool:
        """Return whether the modules have the same tensors; who needs gradients is not looked at."""
        return tables_hold(self.tables, self.tensors)

    def are_others(self) -> bool:
        """Return whether a parameter is a tensor that is no `nn.Parameter`, or a buffer is pending."""
        return any(not is_parameter(x) for table in self.parameters for x in table.values()) or any(
            is_pending(x) for table in self.buffers for x in table.values()
        )

    def refuse_others(self) -> None:
        """Raise `OtherWeights` if `are_others`."""
        if self.are_others():
            raise OtherWeights

    def replaced(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return ``(table, what it had)`` of each table that has other tensors than it had."""
        pairs = zip(self.tables, self.kept, strict=True)
        return [(table, kept) for table, kept in pairs if not same_values(table, kept)]

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Return a context in which the modules have these tensors; at its end those of before."""
        changed = [(table, dict(table), kept) for table, kept in self.replaced()]
        for table, _, kept in changed:
            table.update(kept)
        try:
            yield
        finally:
            for table, now, _ in changed:
                table.update(now)


def is_parameter(x: Any) -> bool:
    """Return whether ``x`` is a parameter, or None, in the place of one that a module lacks."""
    # To ask with `isinstance` takes ten times as long.
    return type(x) is nn.Parameter or x is None or isinstance(x, nn.Parameter)


def same_values(some: dict[str, Any], others: dict[str, Any]) -> bool:
    """Return whether two dictionaries have the same objects under the same names."""
    return some.keys() == others.keys() and all(some[name] is x for name, x in others.items())
