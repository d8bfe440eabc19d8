"""A batched program of a module is a module, too: it has its parameters, modes and state."""

from __future__ import annotations

from typing import Any

from torch import nn


class BatchedModule(nn.Module):
    """A module that `multifold.batched` makes of a module of one example: it takes many examples."""

    def __init__(self, module: nn.Module, run: Any) -> None:
        super().__init__()
        self.module = module
        self.run = run

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

    def explain(self) -> Any:
        """Return the explanation of the last run, as `multifold.Fold.explain` does."""
        return self.run.explain()

    def check(self, *iterables: Any, **shared: Any) -> None:
        """Raise if the results of these examples differ from those of the loop."""
        self.run.check(*iterables, **shared)
