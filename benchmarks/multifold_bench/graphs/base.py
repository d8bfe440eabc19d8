"""What random graphs are, and the few things that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Rng = np.random.Generator
Example = Any
"""What one call of `RandomGraphs.sample` draws: tuples of numbers, picklable and comparable."""
Recorder = Any
"""Anything with ``add(op, *operands, **static) -> Node``."""
Node = Any

WORDS = 1000
"""Word ids run from 0 to ``WORDS - 1``."""
CHARACTERS = 64
CLASSES = 5


@dataclass(frozen=True)
class RandomGraphs:
    """Graphs of one sort, drawn at random.

    Attributes
    ----------
    sample : callable
        ``sample(rng) -> example`` draws one example.
    record : callable
        ``record(fold, example) -> nodes`` records it and returns its outputs, a list of nodes.
    batch : int
        The number of examples in a minibatch, unless another one is asked for.
    optimal : bool
        Whether typed levels are known to reach the lower bound of launches on all its graphs.

    Examples
    --------
    >>> import multifold
    >>> from multifold_bench.graphs import GRAPHS
    >>> fold = multifold.Fold(backend="numpy")
    >>> outputs = GRAPHS["early-exit"](fold, seed=0, batch=8)
    >>> len(outputs), fold.schedule([outputs]).certificate
    (8, 'optimal')
    """

    sample: Callable[[Rng], Example]
    record: Callable[[Recorder, Example], list[Node]]
    batch: int
    optimal: bool

    def examples(self, seed: int = 0, batch: int | None = None) -> list[Example]:
        """Draw the examples of a minibatch; the same seed draws the same ones."""
        rng = np.random.default_rng(seed)
        return [self.sample(rng) for _ in range(self.batch if batch is None else batch)]

    def __call__(self, fold: Recorder, seed: int = 0, batch: int | None = None) -> list[Node]:
        """Record a minibatch and return the outputs of all its examples, one list of nodes."""
        return [node for example in self.examples(seed, batch) for node in self.record(fold, example)]


def draw_length(rng: Rng, mean: float, spread: float, low: int, high: int) -> int:
    """Draw a length from a normal distribution, cut off at both ends."""
    return int(np.clip(round(rng.normal(mean, spread)), low, high))
