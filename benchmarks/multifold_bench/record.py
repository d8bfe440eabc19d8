"""What recording costs: microseconds for each call of `Fold.add`, beside the user's bare recursion."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import multifold
from multifold import _compiled, load_backend
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.workloads import BinaryBenchmark, BinaryTree
from multifold_bench.harness import quartiles
from multifold_bench.workloads import read_synthetic


def walk(tree: BinaryTree) -> tuple[Any, Any]:
    """Recurse over a tree as the recording program does, and do nothing else."""
    if tree.left is None:
        return tree.word, tree
    left, _ = walk(tree.left)
    _, right = walk(tree.right)
    return left, right


def walk_all(trees: Sequence[BinaryTree]) -> list[Any]:
    """Recurse over some trees."""
    return [walk(tree) for tree in trees]


def measure_recording(
    batch: int, rounds: int, seed: int = 0, advance: Callable[[str], object] = lambda what: None
) -> Row:
    """Record minibatches of random binary trees and say what a call costs.

    Parameters
    ----------
    batch : int
        Trees in a minibatch.
    rounds : int
        How many minibatches; each is recorded once, by a new fold.
    seed : int
        Of the trees.
    advance : callable
        Told what runs next.

    Returns
    -------
    A row with the quartiles, over the rounds, of microseconds a call: ``record_us`` with all that the
    recording program does, ``bare_us`` of its recursion alone.

    Examples
    --------
    >>> row = measure_recording(batch=4, rounds=3)
    >>> row["record_us"][1] > row["bare_us"][1]
    True
    """
    benchmark = BinaryBenchmark(read_synthetic(None, 0, lambda done, total: None), width=1)
    minibatches = [one.examples for one in islice(benchmark.minibatches(batch, seed), rounds + 1)]
    record, bare, calls = [], [], []
    for trees in minibatches:
        advance("recording")
        fold = multifold.Fold(backend="numpy")
        bare_seconds = timed(walk_all, trees)
        seconds = timed(partial(benchmark.record_all, fold), trees)
        calls.append(len(fold))
        record.append(1e6 * seconds / len(fold))
        bare.append(1e6 * bare_seconds / len(fold))
    return {
        "command": "bench record",
        "workload": "synthetic",
        "batch": batch,
        "rounds": rounds,
        "seed": seed,
        "version": "compiled" if _compiled.in_use else "plain Python",
        "calls": quartiles(calls[1:])[1],
        "record_us": list(quartiles(record[1:])),
        "bare_us": list(quartiles(bare[1:])),
        "environment": machine.describe(load_backend("numpy")),
    }


def timed(program: Callable[[Sequence[Any]], object], examples: Sequence[Any]) -> float:
    """Return the seconds of a program, whose result is dropped outside of the time."""
    gc.collect()
    start = time.perf_counter()
    kept = program(examples)
    seconds = time.perf_counter() - start
    del kept
    return seconds
