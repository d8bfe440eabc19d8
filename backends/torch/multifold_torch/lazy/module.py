"""A batched program of a module is a module, too: it has its parameters, modes and state."""

from __future__ import annotations

from typing import Any

from torch import nn


class BatchedModule(nn.Module):
    """A module of one example as one of many; made by `multifold.batched`."""

    def __init__(self, module: nn.Module, run: Any) -> None:
        super().__init__()
        self.module = module
        self.run = run

    def forward(self, *iterables: Any, **shared: Any) -> Any:
        """Return what the module returns for each example, joined."""
        return self.run(*iterables, **shared)

    def loop(self, *iterables: Any, **shared: Any) -> Any:
        """Return what a call returns, by running one example after the other."""
        return self.run.loop(*iterables, **shared)

    def traces(self, *iterables: Any, **shared: Any) -> Any:
        """Record each example once, for `replay`."""
        return self.run.traces(*iterables, **shared)

    def replay(self, made: Any) -> Any:
        """Return what a call returns for the examples of some traces."""
        return self.run.replay(made)

    def explain(self) -> Any:
        """Return the explanation of the last run."""
        return self.run.explain()

    def check(self, *iterables: Any, **shared: Any) -> None:
        """Compare the results with those of the loop."""
        self.run.check(*iterables, **shared)
