"""What a small minibatch costs beside its ops: a few calls, a tree, sixteen trees.

The ops here do next to nothing, so a row says what a run takes that has few rows in each launch: recording,
planning, wiring, putting operands together, and the checks. Two floors stand beside them: the ops alone, on
operands that were put together before; and all calls of the framework that a run makes, which also put
operands together, cut results and upload numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

import multifold
from multifold import Fold, load_backend
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.timing import UNTIMED, Step, take_turns
from multifold.errors import RecordError
from multifold.testing import Counting
from multifold_bench.harness import quartiles

REPEATS = 100
"""Minibatches a round, since one takes a tenth of a millisecond: more than a fold keeps plans of."""

LEAVES = 20

MODEL: dict[str, Callable[..., Any]] = {"leaf": lambda x: x * 2.0, "add": lambda a, b: a + b}

Tree = Any
"""A number, or a pair of trees."""


def tree(rng: Random, leaves: int) -> Tree:
    """Draw a tree of some leaves, cut anywhere."""
    if leaves == 1:
        return rng.random()
    left = rng.randint(1, leaves - 1)
    return tree(rng, left), tree(rng, leaves - left)


def total(fold: Any, example: Tree) -> Any:
    """Record a tree: a call for each leaf, and one for each pair."""
    if isinstance(example, float):
        return fold.add("leaf", example)
    return fold.add("add", *[total(fold, child) for child in example])


def pair(rng: Random) -> Tree:
    """Draw what two launches compute: two leaves and their sum."""
    return rng.random(), rng.random()


def alike(draw: Callable[[Random], list[Tree]], rng: Random) -> list[list[Tree]]:
    """Return a minibatch again and again, as a program does that is asked the same thing each time."""
    return [draw(rng)] * REPEATS


def different(draw: Callable[[Random], list[Tree]], rng: Random) -> list[list[Tree]]:
    """Return minibatches that have nothing in common but their sizes."""
    return [draw(rng) for _ in range(REPEATS)]


def trees(count: int, rng: Random) -> list[Tree]:
    """Draw some trees."""
    return [tree(rng, LEAVES) for _ in range(count)]


WORKLOADS: dict[str, Callable[[Random], list[list[Tree]]]] = {
    "two-launches": partial(alike, lambda rng: [pair(rng)]),
    "one-tree": partial(alike, partial(trees, 1)),
    "other-trees": partial(different, partial(trees, 1)),
    "sixteen-trees": partial(alike, partial(trees, 16)),
}
"""Name -> the minibatches of a round."""


Calls = list[tuple[Callable[..., Any], tuple[Any, ...]]]
"""What is called, one after the other, with which operands."""

ROW_OPERATIONS = ("constants", "concat", "split", "gather")
"""What a run asks of a backend besides its ops."""


def captured(backend: str, minibatch: list[Tree]) -> tuple[Calls, Calls]:
    """Return the ops of the launches of a minibatch, and all calls of the framework, ops among them."""
    ops: Calls = []
    calls: Calls = []

    def keeping(call: Callable[..., Any], *lists: Calls) -> Callable[..., Any]:
        def kept(*operands: Any) -> Any:
            for found in lists:
                found.append((call, operands))
            return call(*operands)

        return kept

    seam = Counting(backend)
    for name in ROW_OPERATIONS:
        setattr(seam, name, keeping(getattr(seam.inner, name), calls))
    fold = Fold(backend=seam)
    model = {name: keeping(op, ops, calls) for name, op in MODEL.items()}
    fold.apply(model, [[total(fold, example) for example in minibatch]])
    return ops, calls


def ways_of(backend: str, minibatches: Sequence[list[Tree]]) -> dict[str, Callable[[], Step]]:
    """Return the ways to run the minibatches, each of which takes a step."""
    seam = load_backend(backend)
    kept, traced = Fold(backend=backend), Fold(backend=backend)
    once = {id(minibatch): minibatch for minibatch in minibatches}  # alike ones are one object
    traces = {key: [multifold.trace(total, x) for x in minibatch] for key, minibatch in once.items()}
    plain = {key: captured(backend, minibatch) for key, minibatch in once.items()}

    def new(minibatch: list[Tree]) -> Any:
        fold = Fold(backend=backend)
        return fold.apply(MODEL, [[total(fold, example) for example in minibatch]])[0]

    def reset(minibatch: list[Tree]) -> Any:
        kept.reset()
        return kept.apply(MODEL, [[total(kept, example) for example in minibatch]])[0]

    def run(minibatch: list[Tree]) -> Any:
        return traced.run(MODEL, traces[id(minibatch)])

    def ops(minibatch: list[Tree]) -> None:
        for op, operands in plain[id(minibatch)][0]:
            op(*operands)

    def calls(minibatch: list[Tree]) -> None:
        for call, operands in plain[id(minibatch)][1]:
            call(*operands)

    def step(way: Callable[[list[Tree]], Any]) -> Step:
        start = time.perf_counter()
        found = list(map(way, minibatches))
        seconds = (time.perf_counter() - start) / len(minibatches)
        # The last launch of several trees holds the root of one of them, so the floors are not compared.
        values = [new(minibatches[0])] if found[0] is None else found[:1]
        return Step(seconds, lambda: {"sums": np.concatenate(list(map(seam.to_numpy, values)))})

    ways = new, reset, run, calls, ops
    return {name: partial(step, way) for name, way in zip(NAMES, ways, strict=True)}


NAMES = ("new", "reset", "traced", "calls", "ops")
"""A new fold for each minibatch, one fold that is reset, traces that were made before, and the floors: all
calls of the framework that a run makes, and the ops alone."""


def measure_small(
    backend: str,
    workloads: Sequence[str],
    *,
    rounds: int = 15,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Run small minibatches in each way, by turns, and return a row for each workload.

    Parameters
    ----------
    backend : str
        The framework.
    workloads : sequence of str
        Names of `WORKLOADS`.
    rounds : int
        How often each way runs all minibatches of a workload.
    seed : int
        Of the examples.
    advance : callable
        Told what runs next.

    Returns
    -------
    Rows with ``calls`` and ``launches`` of a minibatch, and for each of `NAMES` the quartiles of
    microseconds a minibatch, as ``new_us``.

    Raises
    ------
    RecordError
        For a workload that there is not.
    MismatchError
        If two ways do not return the same sums.

    Examples
    --------
    >>> (row,) = measure_small("numpy", ["two-launches"], rounds=1)
    >>> row["calls"], row["launches"], row["ops_us"][1] < row["traced_us"][1]
    (3, 2, True)
    """
    rows = []
    for name in workloads:
        if name not in WORKLOADS:
            raise RecordError(f"Expected a workload out of {', '.join(WORKLOADS)}. Received '{name}'.")
        minibatches = WORKLOADS[name](Random(seed))
        fold = Fold(backend=backend)
        schedule = fold.schedule([[total(fold, example) for example in minibatches[0]]])
        ways = ways_of(backend, minibatches)
        seconds, _ = take_turns(ways, rounds, advance=partial(said, advance, name))
        row: Row = {"command": "bench small", "backend": backend, "workload": name, "rounds": rounds}
        row |= {"seed": seed, "calls": len(fold), "launches": len(schedule)}
        row |= {f"{way}_us": [1e6 * x for x in quartiles(seconds[way][UNTIMED:])] for way in NAMES}
        rows.append(row | {"environment": machine.describe(load_backend(backend))})
    return rows


def said(advance: Callable[[str], object], workload: str, way: str) -> None:
    """Tell what runs next."""
    advance(f"{workload} {way}")


def each_launch(rows: Mapping[str, Row], way: str) -> float:
    """Return microseconds of each launch of a tree after the first two, beside calls of the framework."""
    two, one = rows["two-launches"], rows["one-tree"]
    beside = [row[f"{way}_us"][1] - row["calls_us"][1] for row in (two, one)]
    return (beside[1] - beside[0]) / (one["launches"] - two["launches"])
