"""What is watched: small programs, each of which spends its work in one room of the core.

A workload is a generator with one ``yield``. What comes before prepares and is not counted; what comes
after is. Its examples are the same on every machine, since Python's own random numbers are, and its ops do
next to nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

import multifold
from multifold import Fold, blocks
from multifold._schedule.schedule import call_types, make_schedule
from multifold._traces.minibatch import Merger
from multifold._wiring.place import Place
from multifold._wiring.wiring import wire

Workload = Callable[[], Iterator[None]]

MODEL = {
    "leaf": lambda x: x * 2.0,
    "add": lambda a, b: a + b,
    "scale": lambda x, by: x * by,
    "sum": lambda rows, **options: np.add.reduceat(rows.values, np.cumsum(rows.lengths) - rows.lengths),
    "pair": lambda x: (x, x),
}


def trees(count: int, leaves: int = 20, seed: int = 0) -> list[Any]:
    """Draw nested pairs of numbers, cut anywhere."""
    rng = Random(seed)

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return rng.random()
        left = 1 + int(rng.random() * (leaves - 1))
        return tree(left), tree(leaves - left)

    return [tree(leaves) for _ in range(count)]


def total(fold: Any, tree: Any) -> Any:
    """Record a tree: a call for each leaf, and one for each pair."""
    if isinstance(tree, float):
        return fold.add("leaf", tree)
    return fold.add("add", *[total(fold, child) for child in tree])


def mixed(fold: Any, number: float) -> Any:
    """Record what the simplest programs have not: parts, ragged, shared and static operands, arrays."""
    first, second = fold.add("pair", fold.add("leaf", np.full((1, 3), number))).split(2)
    scaled = fold.add("scale", first, multifold.shared(2.0))
    return fold.add("sum", multifold.ragged([scaled, second, first]), how="sum")


def recorded(examples: list[Any], fn: Any = total, schedule: str = "auto") -> tuple[Fold, list[Any]]:
    """Record examples into a new fold."""
    fold = Fold(backend="numpy", schedule=schedule)
    return fold, [[fn(fold, example) for example in examples]]


def recording() -> Iterator[None]:
    """Trees into a new fold, which compiled code does but for the fold itself."""
    examples = trees(64)
    yield
    recorded(examples)


def recording_operands() -> Iterator[None]:
    """Every kind of operand into a new fold."""
    examples = [float(i) for i in range(64)]
    yield
    recorded(examples, mixed)


def recording_blocks() -> Iterator[None]:
    """A model as blocks, which run a function that they wrote themselves."""
    leaf = blocks.Scalar() >> blocks.Function("leaf")
    block = blocks.Map(leaf) >> blocks.Reduce(blocks.Function("add"))
    fold = Fold(backend="numpy")
    yield
    fold.run(MODEL, [[float(i) for i in range(n)] for n in range(2, 18)], block)


def planning() -> Iterator[None]:
    """A schedule by levels, from columns to launches."""
    fold, outputs = recorded(trees(64))
    yield
    fold.schedule(outputs)


def two_ops(fold: Any, tree: Any) -> Any:
    """Record a tree of two ops by turns that nobody foresees: levels alone are no schedule of it."""
    if isinstance(tree, float):
        return fold.add("leaf", tree)
    left, right = (two_ops(fold, child) for child in tree)
    return fold.add("add" if str(tree).count("1") % 2 else "sub", left, right)


def planning_in_a_circle() -> Iterator[None]:
    """A schedule of ops that read each other, by the small beam of "auto"."""
    fold, outputs = recorded(trees(16, leaves=30), two_ops)
    yield
    fold.schedule(outputs)


def planning_by_search() -> Iterator[None]:
    """The same with a beam as wide as the budget allows."""
    fold, outputs = recorded(trees(16, leaves=30), two_ops, schedule="search")
    yield
    fold.schedule(outputs)


def merging() -> Iterator[None]:
    """Traces into one minibatch, and its schedule."""
    traces = multifold.traces(total, trees(64))
    yield
    merger = Merger(traces)
    columns, asked = merger.columns(), merger.outputs()
    types = call_types(columns, columns.shared_calls)
    make_schedule(columns, columns, types, columns.ancestors(asked.sources), "auto")


def wiring() -> Iterator[None]:
    """Which rows go where, for a schedule that is there."""
    fold, outputs = recorded(trees(64))
    columns, schedule = fold._columns(), fold.schedule(outputs)
    asked = [np.array([node._ref for node in outputs[0]])]
    place = Place.nowhere(len(columns))
    yield
    wire(columns, schedule, place, asked)


def applying() -> Iterator[None]:
    """A new fold from beginning to end."""
    examples = trees(1)
    yield
    fold, outputs = recorded(examples)
    fold.apply(MODEL, outputs)


def applying_operands() -> Iterator[None]:
    """The same with parts, ragged, shared and static operands."""
    examples = [float(i) for i in range(16)]
    yield
    fold, outputs = recorded(examples, mixed)
    fold.apply(MODEL, outputs)


def resetting() -> Iterator[None]:
    """A fold that is reset between minibatches, the structure of which it has not seen."""
    fold = Fold(backend="numpy")
    minibatches = [trees(1, seed=seed) for seed in range(1, 9)]
    yield
    for examples in minibatches:
        fold.reset()
        fold.apply(MODEL, [[total(fold, example) for example in examples]])


def resetting_alike() -> Iterator[None]:
    """The same structure again and again, whose plan is kept."""
    fold = Fold(backend="numpy")
    examples = trees(1)
    yield
    for _ in range(8):
        fold.reset()
        fold.apply(MODEL, [[total(fold, example) for example in examples]])


def running_traces() -> Iterator[None]:
    """A minibatch of traces from merging to the results."""
    fold, traces = Fold(backend="numpy"), multifold.traces(total, trees(16))
    yield
    fold.run(MODEL, traces)


async def halved(fold: Any, number: float) -> Any:
    """Halve until the value is small, and take a leaf as well in each round."""
    node = fold.add("leaf", number)
    while await fold.value(node) > 1.0:
        node = fold.add("scale", fold.add("add", node, fold.add("leaf", 0.0)), multifold.shared(0.5))
    return node


def awaiting() -> Iterator[None]:
    """Examples that look at a value in each of their rounds."""
    examples = [float(2**n) for n in range(1, 9)]
    yield
    Fold(backend="numpy").run(MODEL, examples, halved)


def making_traces() -> Iterator[None]:
    """A trace of each example."""
    examples = trees(64)
    yield
    multifold.traces(total, examples)


def pickling() -> Iterator[None]:
    """Traces to bytes and back."""
    traces = multifold.traces(total, trees(64))
    yield
    pickle.loads(pickle.dumps(traces))


def laying_out() -> Iterator[None]:
    """A program of traces, as data for a compiled executor."""
    fold, traces = Fold(backend="numpy"), multifold.traces(total, trees(16))
    yield
    fold.program(traces, MODEL)


def explaining() -> Iterator[None]:
    """The table of what shares a launch, and why the rest does not."""
    fold, outputs = recorded(trees(8))
    yield
    str(fold.explain(outputs))


WORKLOADS: tuple[Workload, ...] = (
    recording,
    recording_operands,
    recording_blocks,
    planning,
    planning_in_a_circle,
    planning_by_search,
    merging,
    wiring,
    applying,
    applying_operands,
    resetting,
    resetting_alike,
    running_traces,
    awaiting,
    making_traces,
    pickling,
    laying_out,
    explaining,
)
