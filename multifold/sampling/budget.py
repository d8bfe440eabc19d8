"""Minibatches of at most so many calls, shared out among shards so that each has as much to do.

An epoch is a random permutation of the examples, cut into steps that fill the budget. The examples of a
step are shared out by Graham's rule, the most expensive first, each to the shard that has least ("Bounds on
multiprocessing timing anomalies", 1969). Which examples meet in a step is as random as without a budget.
Only who computes them is not, and that changes no gradient.

Five examples on two shards, of at most ten calls a minibatch:

>>> share_out([9, 4, 3, 2, 1], range(5), shards=2, calls=10)
[[0, 4], [1, 2, 3]]
>>> share_out([9, 4, 3, 2, 2], range(5), shards=2, calls=10) is None  # 20 calls, but 9 and 11
True
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from multifold.errors import RecordError

Step = list[list[int]]
"""The examples of each shard."""


def share_out(costs: Sequence[float], examples: Sequence[int], shards: int, calls: float) -> Step | None:
    """Return a list of the examples of each shard; None if a shard would cost more than ``calls``.

    ``costs[i]`` is the cost of example ``i``, of those in ``examples``. The most expensive one comes first,
    and each goes to the shard that costs least so far, the first of several. An example that costs more
    than ``calls`` is alone on a shard, but for examples that cost nothing.
    """
    found: Step = [[] for _ in range(shards)]
    loads = [(0.0, shard) for shard in range(shards)]
    for example in sorted(examples, key=lambda example: -costs[example]):
        load, shard = heappop(loads)
        cost = costs[example]
        # On an empty shard an example may cost more than the budget, and an example without cost fits
        # anywhere.
        if load and cost and load + cost > calls:
            return None
        found[shard].append(example)
        heappush(loads, (load + cost, shard))
    return found


class CallBudget:
    """Indices of examples in minibatches of at most so many calls, alike in work on every shard.

    Every shard makes the same plan from the same arguments, so nothing is communicated. It is a
    ``batch_sampler`` of PyTorch's ``DataLoader``, and anything that takes lists of indices can iterate over
    it: one list for each step.

    Parameters
    ----------
    costs : sequence of float
        Of each example what its work is, as the number of its calls, ``len(trace)``. The time of
        a step follows it closely (docs/recipes.md).
    calls : float
        What a minibatch of one shard may cost at most. An example that costs more is one of its own.
    shards, shard : int
        How many shards there are, and which of them this one is, from 0 on.
    seed : int
        Of the order of the examples, which is another one in each epoch.

    Raises
    ------
    RecordError
        For costs that are negative or no numbers, a budget of less than 1, or a shard that there is not.

    Notes
    -----
    All shards have the same number of steps. Each example comes once an epoch, on one shard. Where a step
    has fewer examples than there are shards, some minibatches are empty lists: such a shard takes part in
    the step with gradients of zero.

    Examples
    --------
    >>> budgets = [CallBudget([9, 4, 3, 2, 1, 5], calls=10, shards=2, shard=i, seed=1) for i in (0, 1)]
    >>> for step in zip(*budgets):
    ...     print(step)
    ([0], [4])
    ([5, 3], [1, 2])
    >>> [len(budget) for budget in budgets]
    [2, 2]
    """

    def __init__(
        self,
        costs: Sequence[float],
        calls: float = 20_000,
        *,
        shards: int = 1,
        shard: int = 0,
        seed: int = 0,
    ) -> None:
        self.costs = checked(costs)
        if not calls >= 1:
            raise RecordError(
                f"Expected a budget of at least one call. Received {calls!r}.",
                "it is what a minibatch of one shard may cost, 20,000 by default.",
            )
        if not 0 <= shard < shards:
            raise RecordError(
                f"Expected a shard out of {shards}, from 0 on. Received {shard!r}.",
                "shards is the number of processes and shard the rank of this one, as "
                "torch.distributed.get_world_size() and get_rank().",
            )
        self.calls = calls
        self.shards = shards
        self.shard = shard
        self.seed = seed
        self.epoch = self.step = 0
        self._planned: tuple[int, list[Step]] | None = None

    def __len__(self) -> int:
        """Return the number of steps of the whole epoch, wherever iteration is: the same on every shard."""
        return len(self.steps())

    def __iter__(self) -> Iterator[list[int]]:
        """Yield a list of this shard's examples for each step that is left of the epoch.

        The first is the step that `set_epoch` has set, by default 0. The step that `state_dict` returns
        counts a list before it is yielded. When the epoch is done, the next iteration begins at step 0 of
        the same epoch, in the same order, unless `set_epoch` is called.
        """
        steps = self.steps()[self.step :]
        self.step = self.step
        for step in steps:
            # The step counts before it is handed out, so that a state which is saved meanwhile has it.
            self.step += 1
            yield step[self.shard]
        self.step = 0

    @property
    def sampler(self) -> CallBudget:
        """The budget itself: Lightning and accelerate set the epoch of the sampler of a batch sampler."""
        return self

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Set the epoch, each of which has an order of its own, and the step at which iteration begins.

        Parameters
        ----------
        epoch, step : int
            From 0 on. To go on where a run was stopped, say how many steps of the epoch it had made.
        """
        self.epoch = epoch
        self.step = step

    def state_dict(self) -> dict[str, int]:
        """Return ``{"epoch": ..., "step": ...}``: how many steps of which epoch were handed out.

        A loader with workers asks for minibatches before they are needed, so what was handed out is more
        than what was trained on: count the steps of the training loop, and call ``set_epoch(epoch, step)``.
        """
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Set the epoch and the step to those of a `state_dict`, so that iteration goes on from there."""
        self.set_epoch(state["epoch"], state["step"])

    def steps(self) -> list[Step]:
        """Return the steps of this epoch: ``steps[step][shard]`` is the list of a shard's examples.

        They are made once for each epoch, and are all of them, whatever step iteration is at.

        Examples
        --------
        >>> budget = CallBudget([5, 5, 5, 5], calls=5, shards=2, seed=0)
        >>> steps = budget.steps()
        >>> len(steps), sorted(example for step in steps for shard in step for example in shard)
        (2, [0, 1, 2, 3])
        """
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = self.epoch, self._plan()
        return self._planned[1]

    def _plan(self) -> list[Step]:
        """Return an epoch's steps: each takes as many examples as fit, the last two are alike in cost."""
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.costs)).tolist()
        # An example above the budget takes a whole shard of its step, and no more.
        done = np.minimum(self.costs[order], self.calls).cumsum()
        costs = self.costs.tolist()
        bounds = [0]
        steps = list[Step]()

        def shared(low: int, high: int) -> Step | None:
            return share_out(costs, order[low:high], self.shards, self.calls)

        while (low := bounds[-1]) < len(order):
            before = done[low - 1] if low else 0.0
            high = int(np.searchsorted(done, before + self.calls * self.shards, side="right"))
            step = None if high > low else shared(low, high := low + 1)
            while step is None and (step := shared(low, high)) is None:
                # It would fit if examples could be divided. To share out many examples takes long, so each
                # attempt leaves out a thousandth of them.
                high -= 1 + (high - low) // 1000
            bounds.append(high)
            steps.append(step)
        # The last step has what is left, perhaps one example. It and the step before share their examples
        # anew.
        if len(steps) > 1:
            before = done[bounds[-3] - 1] if bounds[-3] else 0.0
            middle = int(np.searchsorted(done, (before + done[-1]) / 2, side="right"))
            first = shared(bounds[-3], middle)
            second = shared(middle, len(order))
            if first is not None and second is not None:
                steps[-2:] = first, second
        return steps


def checked(costs: Any) -> np.ndarray:
    """Return costs as a float64 array of one axis.

    Raises
    ------
    RecordError
        If one of them is negative, infinite, NaN or no number.
    """
    try:
        found = np.array([*costs], np.float64)
    except (TypeError, ValueError):
        # NaN is refused below, with the same words as all other wrong costs.
        found = np.array([np.nan])
    if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any():
        raise RecordError(
            "Expected the cost of each example, numbers of at least 0. Received others.",
            "the number of its calls is one: [len(trace) for trace in traces].",
        )
    return found
