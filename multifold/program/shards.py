"""Shards: programs of one form, one for each device, as one stack.

Five examples of 4, 1, 1, 3 and 3 calls on two shards, shared out by Graham's rule as
`multifold.sampling.CallBudget` shares them out:

>>> import multifold
>>> def power(fold, n):
...     x = 1.0
...     for _ in range(n):
...         x = fold.add("scale", x)
...     return x
>>> fold = multifold.Fold(backend="numpy")
>>> shards = fold.program(multifold.traces(power, [4, 1, 1, 3, 3]), shards=2)
>>> [own.tolist() for own in shards.examples], shards.weights.tolist()
([[0, 1, 2], [3, 4]], [1.2000000476837158, 0.800000011920929])

What belongs to an example, as its label does, goes the same way, and results come back in their order:

>>> labels = shards.split([10, 11, 12, 13, 14])
>>> labels
array([[10, 11, 12],
       [13, 14,  0]])
>>> shards.join(labels)
array([10, 11, 12, 13, 14])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import optree

from multifold._engine.traces.trace import Trace
from multifold.errors import RecordError
from multifold.program.layout import Form, Program
from multifold.sampling.budget import share_out
from multifold.sampling.weights import mean_weight


def share_by_calls(traces: Sequence[Trace], shards: int) -> list[np.ndarray]:
    """Share out traces so that all shards have about as many calls.

    Returns an int64 array for each shard: the positions of its traces, ascending. Raises `RecordError` if
    ``shards`` is no integer of at least 1.
    """
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise RecordError(
            f"Expected shards to be an integer of at least 1. Received {shards!r}.",
            "it is the number of devices of this process, len(jax.local_devices()).",
        )
    # A trace without calls still is a row of the results.
    costs = [max(len(trace), 1) for trace in traces]
    # Without a budget no shard has too much, so it is never None.
    shared = share_out(costs, range(len(costs)), shards, float("inf")) or []
    return [np.array(sorted(own), np.int64) for own in shared]


class Shards(Sequence[Program]):
    """Programs of one form, one for each shard; made by `multifold.Fold.program` with ``shards``.

    A sequence of programs. To JAX it is a pytree, as a program is, whose arrays have one axis more in
    front: the shards. `jax.vmap` and `jax.shard_map` take it as an argument, and a function that they map
    receives a program.

    Attributes
    ----------
    examples : list of int64 arrays
        The numbers of the examples of each shard, in order.
    counts : int64 array of shape ``(shards,)``
        How many examples each shard has, also none.
    weights : float32 array of shape ``(shards,)``
        What the mean loss of each shard is multiplied by before it is averaged over all shards, as
        `multifold.sampling.mean_weight` says: then that average is the mean over all examples.
    """

    def __init__(self, programs: Sequence[Program], examples: Sequence[np.ndarray], counts: Sequence[int]):
        self._programs = tuple(programs)
        self._all = counts  # of the shards of all processes
        self.examples = list(examples)
        self.counts = np.array([len(own) for own in examples], np.int64)
        weights = [mean_weight(len(own), len(counts), lambda _: sum(counts)) for own in examples]
        self.weights = np.array(weights, np.float32)

    @property
    def form(self) -> Form:
        """What an executor compiles for: the form that all of the programs have."""
        return self._programs[0].form

    @cached_property
    def arrays(self) -> tuple[Any, ...]:
        """`Program.arrays` of all programs, stacked: the new axis 0 of each array is the shards.

        Raises `RecordError` for ragged programs, whose arrays differ in length.
        """
        if not self.form.tiled:
            raise RecordError(
                "Expected programs of fixed sizes to stack. Received ragged ones, whose arrays differ in "
                "length.",
                "a fold for JAX makes programs of fixed sizes; take ragged ones one by one.",
            )
        return tuple(optree.tree_map(lambda *xs: np.stack(xs), *[program.arrays for program in self]))

    @cached_property
    def rows(self) -> int:
        """How many rows each shard has of a result with one row for each example, padding included.

        Without fixed sizes it is the number of examples of the largest shard of all processes.
        """
        kept = self._programs[0].kept
        pairs = zip(self.form.leaves, kept.outputs.wanted if kept else (), strict=False)
        groups = (self.form.groups[leaf] for leaf, one in pairs if one == "row" and isinstance(leaf, int))
        # Without fixed sizes, a result has as many rows as the largest shard of all processes has examples.
        return next((group.rows for group in groups if group.rows is not None), max(self._all))

    def __len__(self) -> int:
        return len(self._programs)

    @overload
    def __getitem__(self, shard: int) -> Program: ...
    @overload
    def __getitem__(self, shard: slice) -> Sequence[Program]: ...
    def __getitem__(self, shard: int | slice) -> Program | Sequence[Program]:
        return self._programs[shard]

    def __str__(self) -> str:
        lines = [f"{len(self)} programs of one form, of {' + '.join(map(str, self.counts))} examples"]
        return "\n".join([*lines, *map(str, self)])

    def split(self, values: Any, fill: Any = 0) -> np.ndarray:
        """Arrange values of the examples, such as labels, as the results of the shards will be.

        Parameters
        ----------
        values : array of shape ``(examples, *s)``
            In the order of the traces.
        fill : number
            What stands where a shard has fewer examples than its results have rows.

        Returns
        -------
        array of shape ``(shards, rows, *s)``

        Raises
        ------
        RecordError
            For another number of values than examples.
        """
        values = np.asarray(values)
        if not values.ndim or len(values) != self.counts.sum():
            raise RecordError(
                f"Expected a value for each of {self.counts.sum()} examples. Received {values.shape}.",
                "axis 0 counts the traces that the programs were made of, in their order.",
            )
        found = np.full((len(self), self.rows, *values.shape[1:]), fill, values.dtype)
        for shard, own in enumerate(self.examples):
            found[shard, : len(own)] = values[own]
        return found

    def join(self, result: Any) -> Any:
        """Put results with a row for each example into the order of the traces, without padding.

        Parameters
        ----------
        result : array of shape ``(shards, rows, *s)``, or a structure of such arrays
            As `jax.vmap` or `jax.shard_map` returns it.

        Returns
        -------
        arrays of NumPy in the same structure, of shape ``(examples, *s)``
        """

        def one(rows: Any) -> np.ndarray:
            rows = np.asarray(rows)
            found = np.empty((self.counts.sum(), *rows.shape[2:]), rows.dtype)
            for own, of_shard in zip(self.examples, rows, strict=True):
                # Rows after those of the examples are padding.
                found[own] = of_shard[: len(own)]
            return found

        return optree.tree_map(one, result)
