"""Several processes that train one model: each takes a share of every minibatch, and gradients are summed.

A launcher such as ``torchrun`` starts the processes and tells each which one it is. The order of the
examples is NumPy's in all of them, so they agree on each minibatch without a message; its examples are
shared out by their calls. What travels is one sum a step, of the gradients and the loss. So the losses are
those of one process with the same minibatches, up to the order in which float32 numbers are added.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from multifold.backend import Backend
from multifold.ops.tables import adapter_module
from multifold.sampling.budget import share_out
from multifold_bench.train.settings import SettingsError


class Ranks(Protocol):
    """The processes that train together, as one of them sees them.

    Attributes
    ----------
    count, rank : int
        How many there are, and which of them this one is. The first one, 0, writes the files.
    """

    count: int
    rank: int

    def gather(self, value: Any) -> list[Any]:
        """Return what each process gives, by rank."""

    def first(self, value: Any) -> Any:
        """Return what the first process gives."""


@final
class OneRank:
    """One process."""

    count, rank = 1, 0

    def gather(self, value: Any) -> list[Any]:
        """Return the only value."""
        return [value]

    def first(self, value: Any) -> Any:
        """Return the value."""
        return value


def join_ranks(backend: Backend, shards: int | None = None) -> Ranks:
    """Return the processes that a launcher has started, as its environment says; one where there is none.

    Parameters
    ----------
    backend : Backend
        What trains. The module ``training`` of its adapter may have a function ``ranks``.
    shards : int, optional
        How many processes are expected.

    Raises
    ------
    SettingsError
        If there are others, or if the framework trains in one process only.
    """
    join: Callable[[], Ranks | None] | None = getattr(adapter_module(backend, "training"), "ranks", None)
    found: Ranks = (join and join()) or OneRank()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if join is None and max(started, shards or 1) > 1:
        raise SettingsError(
            f"Expected one process to train with backend '{backend.name}'. Received {shards or started}.",
            "train with torch on several ones.",
        )
    if shards is not None and found.count not in (1, shards):
        raise SettingsError(
            f"Expected {shards} processes, as --shards says. Received {found.count} from the launcher.",
            "leave --shards out: the launcher says how many there are.",
        )
    return found


def start_ranks(backend: Backend, shards: int, arguments: Sequence[str]) -> int:
    """Start processes here that run ``multifold`` with arguments; return the status of their launcher."""
    status: int = adapter_module(backend, "training").start(shards, arguments)
    return status


def share(examples: list[int], costs: Sequence[int], ranks: Ranks) -> list[int]:
    """Return which examples of a minibatch are those of this process.

    The first process has an example in each minibatch; with fewer of them than processes the last ones have
    none.

    Examples
    --------
    >>> share([2, 0, 1], [9, 4, 5], OneRank())
    [2, 0, 1]
    """
    if ranks.count == 1:
        return examples
    shares = share_out(costs, examples, ranks.count, math.inf) or []
    return shares[ranks.rank]
