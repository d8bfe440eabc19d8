"""A batched program of a module is a module, too: it has its parameters, modes and state.

Its state has the names of the module inside. So a checkpoint that was saved from either of the two can be
loaded into the other:

>>> from multifold import batched
>>> model = nn.Linear(2, 2)
>>> list(batched(model).state_dict())
['weight', 'bias']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from multifold.errors import RecordError

INSIDE = "module."
"""How the names of parameters begin, that of the attribute which is the module inside."""


class BatchedModule(nn.Module):
    """A module that `multifold.batched` makes of a module of one example: it takes many examples."""

    def __init__(self, module: nn.Module, run: Any) -> None:
        super().__init__()
        self.module = module
        self.run = run
        self._register_load_state_dict_pre_hook(name_inside, with_module=True)  # public since PyTorch 2.5

    def extra_repr(self) -> str:
        """Return what the last run did, for the text of the module."""
        return repr(self.run)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the module inside, under its own names."""
        return self.module.state_dict(*args, **kwargs)

    def forward(self, *iterables: Any, **shared: Any) -> Any:
        """Return what the module returns for each example, joined, as `multifold.batched` says."""
        return self.run(*iterables, **shared)

    def loop(self, *iterables: Any, **shared: Any) -> Any:
        """Return what a call returns, computed by running one example after the other."""
        return self.run.loop(*iterables, **shared)

    def traces(self, *iterables: Any, **shared: Any) -> Any:
        """Return traces, one for each example, which `replay` runs."""
        return self.run.traces(*iterables, **shared)

    def replay(self, made: Any) -> Any:
        """Return what a call returns for the examples of these traces."""
        return self.run.replay(made)

    def explain(self, *, all: bool = False) -> Any:
        """Return the explanation of the last run, as `multifold.Batched.explain` does."""
        return self.run.explain(all=all)

    def check(self, *iterables: Any, **shared: Any) -> None:
        """Raise if the results of these examples differ from those of the loop."""
        self.run.check(*iterables, **shared)


def name_inside(
    batched: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any], *_: Any
) -> None:
    """Let a state that has the names of the module inside be loaded into a batched one.

    PyTorch calls this before it loads ``state``, of which the names of this module begin with ``prefix``.
    Names that PyTorch itself finds in this module, as `named_parameters` gives them, stay.
    """
    own = {prefix + name for name, _ in [*batched.named_parameters(), *batched.named_buffers()]}
    for name in [name for name in state if name.startswith(prefix) and name not in own]:
        state[prefix + INSIDE + name[len(prefix) :]] = state.pop(name)


def refuse_circle(owner: nn.Module, name: str, part: Any) -> None:
    """Raise a `RecordError` if a module becomes a part of itself, as by ``self.run = batched(self)``."""
    if isinstance(part, BatchedModule) and any(x is owner for x in part.modules()):
        raise RecordError(
            f"The {type(owner).__name__} keeps a batched program of itself as attribute {name!r}, and "
            "would be a part of itself.",
            f"keep it outside, {name} = multifold.batched(model); or in a list, which PyTorch does not "
            f"look into: self.{name}s = [multifold.batched(self)].",
        )


register_module_module_registration_hook(refuse_circle)
