"""Which examples make a minibatch: balanced by their work, on one device or on several.

- `CallBudget`: minibatches of at most so many calls, and as many steps on every shard
- `mean_weight`: what makes a mean over unequal shards the mean over all examples

Examples differ in size by a hundred times, and a step takes as long as its slowest shard. Minibatches of
as many examples each leave the other shards waiting. `budget` shows how calls are shared out instead.
"""

from __future__ import annotations

from multifold.sampling.budget import CallBudget
from multifold.sampling.weights import mean_weight

__all__ = ["CallBudget", "mean_weight"]
