"""Benchmarks that have one program only: the recording one also runs as the plain loop.

For trees and parsers the plain loop is written out, as `multifold._measure.workloads` does. For the other
models that would be a second program as long as the first. `Plain` has the ``add`` of a fold and calls the
op at once with one row, which costs one Python call more for each op than a loop that is written out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from multifold._measure.benchmark import Benchmark, OneByOne
from multifold.backend import Array, Ragged
from multifold.operands import RaggedOperand


class Returned(tuple[Array, ...]):
    """The arrays that an op returned."""

    __slots__ = ()

    def split(self, count: int) -> Returned:
        """Return the arrays themselves, as a recorded node has it."""
        return self


class Plain:
    """What a recording program is given to compute at once, one row a call: ops are called, that is all.

    Parameters
    ----------
    one : OneByOne
        The model, and its index arrays.
    """

    def __init__(self, one: OneByOne) -> None:
        self.one = one

    def add(self, op: str, /, *operands: Any, **static: Any) -> Any:
        """Call an op of the model."""
        result = getattr(self.one.model, op)(*map(self.operand, operands), **static)
        return Returned(result) if isinstance(result, tuple) else result

    def operand(self, x: Any) -> Any:
        """Return what an op receives: arrays and names as they are, numbers as batches of one."""
        if isinstance(x, int):
            return self.one.word(x)
        if isinstance(x, np.ndarray):
            return self.one.constant(x)
        if not isinstance(x, RaggedOperand):
            return x
        items = x.items
        segments = self.one.segments_of(len(items))
        if not items:
            dtype = self.one.backend.number_dtype(float)
            made = x.missing.made(lambda shape, _: self.one.constant(np.zeros((0, *shape), dtype)))
            return Ragged(made, *segments)
        if isinstance(items[0], int):
            return Ragged(self.one.constant(np.array(items, self.one.index_dtype)), *segments)
        return Ragged(self.one.join(items), *segments)


class ModelBenchmark(Benchmark):
    """A benchmark whose model brings its recording program along, which is also run as the loop."""

    @cached_property
    def program(self) -> Any:
        """The model as it was written, for its recording program."""
        return self.model()

    def loop(self, one: OneByOne, example: Any) -> Array:
        """Compute the logits of one example."""
        logits = self.record(Plain(one), example)
        return one.join(logits) if isinstance(logits, list) else logits


class RowsBenchmark(ModelBenchmark):
    """A benchmark whose examples have a row of logits for each of their entries: words, nodes of a tree."""

    def rows(self, example: Any) -> int:
        """Return how many rows the logits of an example have."""
        return len(example)

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        """Record examples; return the nodes of all their logits, in order."""
        return [node for example in examples for node in self.record(fold, example)]
