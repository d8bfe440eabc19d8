"""What traces cost: microseconds an example beside recording on a fold, and bytes in a pickle."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import multifold
from multifold import _compiled, load_backend
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.workloads import BinaryBenchmark, BinaryTree
from multifold.errors import MismatchError
from multifold_bench.harness import quartiles
from multifold_bench.record import timed
from multifold_bench.workloads import read_synthetic

LEAVES = (1, 10, 40)
"""How many leaves the trees have."""

WAYS = ("record", "traces", "trace")
"""Recording on a fold that knows the forms of calls; all examples at once; one at a time."""


def tree_of(leaves: int, draw: np.random.Generator) -> BinaryTree:
    """Return a random tree of that many leaves."""
    if leaves == 1:
        return BinaryTree(int(draw.integers(1000)))
    left = int(draw.integers(1, leaves))
    return BinaryTree(None, tree_of(left, draw), tree_of(leaves - left, draw))


def measure_traces(
    batch: int,
    rounds: int,
    leaves: int,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> Row:
    """Record minibatches of random trees in three ways, in turn, and say what an example costs.

    Parameters
    ----------
    batch : int
        Trees in a minibatch.
    rounds : int
        How many minibatches; each is recorded in each way.
    leaves : int
        How many leaves each tree has.
    seed : int
        Of the trees.
    advance : callable
        Told what runs next.

    Returns
    -------
    A row with the quartiles, over the rounds, of microseconds an example by each of `WAYS`: ``record_us``
    and so on; and the medians of bytes, ``list_bytes`` of a pickled list of traces and ``merged_bytes`` of
    a pickled minibatch.

    Raises
    ------
    MismatchError
        If the ways make different traces; then nothing is timed.

    Examples
    --------
    >>> row = measure_traces(batch=4, rounds=2, leaves=3)
    >>> row["calls"], row["list_bytes"] < 20 * row["calls"] + 4096, row["trace_us"][1] > 0
    (24, True, True)
    """
    benchmark = BinaryBenchmark(read_synthetic(None, 0, lambda done, total: None), width=1)
    draw = np.random.default_rng(seed)
    minibatches = [[tree_of(leaves, draw) for _ in range(batch)] for _ in range(rounds + 1)]
    refuse_unequal(benchmark, minibatches[0])
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    sizes: dict[str, list[int]] = {"list_bytes": [], "merged_bytes": []}
    for trees in minibatches:
        fold = multifold.Fold(backend="numpy")
        benchmark.record_all(fold, trees[:1])
        made = multifold.traces(benchmark.record, trees)
        programs = (
            partial(benchmark.record_all, fold),
            partial(multifold.traces, benchmark.record),
            partial(one_by_one, benchmark.record),
        )
        for way, program in zip(WAYS, programs, strict=True):
            advance(way)
            times[way].append(1e6 * timed(program, trees) / batch)
        sizes["list_bytes"].append(len(pickle.dumps(made)))
        sizes["merged_bytes"].append(len(pickle.dumps(multifold.merge(made))))
    return {
        "command": "bench trace",
        "workload": "synthetic",
        "batch": batch,
        "leaves": leaves,
        "rounds": rounds,
        "seed": seed,
        "version": "compiled" if _compiled.in_use else "plain Python",
        "calls": sum(map(len, made)),
        **{f"{way}_us": list(quartiles(found[1:])) for way, found in times.items()},
        **{name: int(quartiles(found)[1]) for name, found in sizes.items()},
        "environment": machine.describe(load_backend("numpy")),
    }


def one_by_one(fn: Callable[[Any, Any], Any], examples: Sequence[Any]) -> list[multifold.Trace]:
    """Make the traces of some examples one at a time."""
    return [multifold.trace(fn, example) for example in examples]


def refuse_unequal(benchmark: BinaryBenchmark, trees: Sequence[BinaryTree]) -> None:
    """Refuse to time ways that make different traces."""
    made = multifold.traces(benchmark.record, trees)
    again = pickle.loads(pickle.dumps(made))
    if not made == one_by_one(benchmark.record, trees) == again:
        raise MismatchError(
            "Expected multifold.traces, multifold.trace and a pickle to make equal traces.",
            "run the tests of traces: tests/test_traces.py.",
        )
