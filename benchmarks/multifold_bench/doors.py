"""What a program pays that changes only its import: recording through a door of `multifold.compat`.

One real program, a tree with a state of two parts at each node, is recorded natively and through a door.
Both ways run the same recursion over the same trees with the same operands, so that their ratio is what the
door costs. TorchFold's own recording takes its turn where its package is installed.

    door         native               through the door
    torchfold    Fold(cse=True).add   multifold.compat.torchfold.Fold().add
    mxnet_fold   Fold(cse=True).add   multifold.compat.mxnet_fold.Fold().record

Both predecessors record equal calls once, so the native fold does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np

import multifold
from multifold import _compiled, load_backend
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.timing import UNTIMED, Step, take_turns
from multifold._compare.workloads import BinaryBenchmark, BinaryTree
from multifold.errors import RecordError
from multifold_bench.harness import quartiles
from multifold_bench.workloads import read_synthetic

DOORS = ("torchfold", "mxnet_fold")

OPERANDS = ("numbers", "numpy", "arrays")
"""What a leaf is given: numbers, rows of NumPy, or rows of the framework that is asked for."""

PREDECESSORS = {"torchfold": "torchfold"}
"""Door -> the package that it stands for. mxnet-jit-batch is no package that can be imported."""

WIDTH = 8


def leaf(x: Any, scale: Any = 2) -> tuple[Any, Any]:
    """Return the two parts of a leaf's state."""
    return x * scale, x + scale


def join(h1: Any, c1: Any, h2: Any, c2: Any) -> tuple[Any, Any]:
    """Return the two parts of the state above two others."""
    return h1 + h2, c1 - c2


class TreeOps:
    """Where `Fold.apply` looks the ops up by name, as TorchFold's programs want it."""

    leaf = staticmethod(leaf)
    join = staticmethod(join)


Operands = Mapping[int, tuple[Any, ...]]
"""Word -> the operands of the call of its leaf, which were made before."""


def by_name(fold: Any, tree: BinaryTree, operands: Operands) -> Any:
    """Record a tree with the names of ops, as a program for TorchFold does."""
    if tree.left is None:
        return fold.add("leaf", *operands[tree.word]).split(2)
    h1, c1 = by_name(fold, tree.left, operands)
    h2, c2 = by_name(fold, tree.right, operands)
    return fold.add("join", h1, c1, h2, c2).split(2)


def by_function(fold: Any, tree: BinaryTree, operands: Operands) -> Any:
    """Record a tree with the ops themselves."""
    if tree.left is None:
        return fold.add(leaf, *operands[tree.word]).split(2)
    h1, c1 = by_function(fold, tree.left, operands)
    h2, c2 = by_function(fold, tree.right, operands)
    return fold.add(join, h1, c1, h2, c2).split(2)


def by_record(fold: Any, tree: BinaryTree, operands: Operands) -> Any:
    """Record a tree as a program for mxnet-jit-batch does."""
    if tree.left is None:
        return fold.record(0, leaf, *operands[tree.word]).split(2)
    h1, c1 = by_record(fold, tree.left, operands)
    h2, c2 = by_record(fold, tree.right, operands)
    return fold.record(0, join, h1, c1, h2, c2).split(2)


@dataclass(frozen=True)
class DoorWay:
    """One way to record the trees: which fold, which program, and the operands of its leaves."""

    fold: Callable[[], Any]
    program: Callable[[Any, BinaryTree, Operands], Any]
    operands: Operands


def operands_of(kind: str, backend: str, words: Sequence[int], door: str) -> tuple[Operands, Operands]:
    """Return the operands of leaves for the native program and for the one that uses a door.

    A number is a row of a batch for TorchFold. For mxnet-jit-batch it is passed on as it is, which the
    native program spells `multifold.static`, and comes after the row that each call needs there.
    """
    rows = {word: np.full((1, WIDTH), 1.0 + word % 7, np.float32) for word in words}
    seam = load_backend(backend)
    if kind == "numbers" and door == "torchfold":
        found: Operands = {word: (word,) for word in words}
        return found, found
    if kind == "numbers":
        native = {word: (rows[word], multifold.static(word % 4)) for word in words}
        return native, {word: (rows[word], word % 4) for word in words}
    if kind == "arrays":
        found = {word: (seam.constant(row, None),) for word, row in rows.items()}
        return found, found
    found = {word: (row,) for word, row in rows.items()}
    return found, found


def ways_of(door: str, backend: str, kind: str, words: Sequence[int]) -> dict[str, DoorWay]:
    """Return the ways to record for a door; the first is the native one."""
    compat = import_module(f"multifold.compat.{door}")
    native, through = operands_of(kind, backend, words, door)
    if door == "mxnet_fold":
        return {
            "native": DoorWay(partial(multifold.Fold, backend, cse=True), by_function, native),
            "door": DoorWay(partial(compat.Fold, backend=backend), by_record, through),
        }
    ways = {
        "native": DoorWay(partial(multifold.Fold, backend, cse=True), by_name, native),
        "door": DoorWay(partial(compat.Fold, backend=backend), by_name, through),
    }
    if installed(door) and backend == "torch" and kind != "numpy":  # TorchFold takes no arrays of NumPy
        ways["predecessor"] = DoorWay(import_module(PREDECESSORS[door]).Fold, by_name, through)
    return ways


def installed(door: str) -> bool:
    """Return whether the package that a door stands for is installed."""
    return door in PREDECESSORS and find_spec(PREDECESSORS[door]) is not None


def step_of(way: DoorWay, backend: str, trees: Sequence[BinaryTree]) -> Step:
    """Record all trees into a new fold."""
    program, operands, fold = way.program, way.operands, way.fold()
    start = time.perf_counter()
    roots = [program(fold, tree, operands) for tree in trees]
    seconds = time.perf_counter() - start

    def values() -> dict[str, np.ndarray]:
        groups = [[h for h, _ in roots], [c for _, c in roots]]
        found = fold.apply(TreeOps(), groups)
        return dict(zip(("h", "c"), map(load_backend(backend).to_numpy, found), strict=True))

    return Step(seconds, values)


def measure_doors(
    doors: Sequence[str],
    backend: str = "numpy",
    *,
    batch: int = 64,
    rounds: int = 30,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Record one minibatch of random binary trees natively and through doors, by turns.

    Parameters
    ----------
    doors : sequence of str
        Names of `DOORS`.
    backend : str
        The framework. With another one than NumPy, its own arrays are operands as well.
    batch : int
        Trees in the minibatch.
    rounds : int
        How often each way records them.
    seed : int
        Of the trees.
    advance : callable
        Told what runs next.

    Returns
    -------
    A row for each door and kind of operand, with the quartiles of microseconds a call, as ``native_us``
    and ``door_us``, and the median of the ratios within each round, as ``to_native``. ``predecessor_us``
    is None where the predecessor can't record the same.

    Raises
    ------
    RecordError
        For a door that there is not.
    MismatchError
        If a door does not return what the native program does.

    Examples
    --------
    >>> [(row["door"], row["operands"]) for row in measure_doors(["torchfold"], batch=2, rounds=1)]
    [('torchfold', 'numbers'), ('torchfold', 'numpy')]
    """
    unknown = [door for door in doors if door not in DOORS]
    if unknown:
        raise RecordError(f"Expected doors out of {', '.join(DOORS)}. Received '{', '.join(unknown)}'.")
    benchmark = BinaryBenchmark(read_synthetic(None, 0, lambda done, total: None), width=1)
    (minibatch,) = islice(benchmark.minibatches(batch, seed), 1)
    rows = []
    for door in doors:
        for kind in kinds_of(backend):
            row: Row = {"command": "bench doors", "door": door, "backend": backend, "operands": kind}
            row |= {"batch": batch, "rounds": rounds, "seed": seed}
            row |= {"version": "compiled" if _compiled.in_use else "plain Python"}
            rows.append(row | measure_door(door, backend, kind, minibatch.examples, rounds, advance))
    return rows


def kinds_of(backend: str) -> tuple[str, ...]:
    """Return the kinds of operands of leaves: NumPy has no arrays of another framework."""
    return OPERANDS[:2] if backend == "numpy" else OPERANDS


def measure_door(
    door: str,
    backend: str,
    kind: str,
    trees: Sequence[BinaryTree],
    rounds: int,
    advance: Callable[[str], object],
) -> Row:
    """Return what a call costs in each way."""
    words = sorted({word for tree in trees for word in words_of(tree)})
    calls = sum(2 * len(words_of(tree)) - 1 for tree in trees)
    ways = ways_of(door, backend, kind, words)
    steps = {name: partial(step_of, way, backend, trees) for name, way in ways.items()}
    seconds, _ = take_turns(steps, rounds, advance=lambda way: advance(f"{door} {kind} {way}"))
    timed = {name: [1e6 * x / calls for x in found[UNTIMED:]] for name, found in seconds.items()}
    ratios = [door / native for native, door in zip(timed["native"], timed["door"], strict=True)]
    row: Row = {"calls": calls, "to_native": statistics.median(ratios)}
    row |= {"predecessor_installed": installed(door), "predecessor_us": None}
    row |= {f"{name}_us": list(quartiles(found)) for name, found in timed.items()}
    return row | {"environment": machine.describe(load_backend(backend))}


def words_of(tree: BinaryTree) -> list[int]:
    """Return the words at the leaves of a tree."""
    if tree.left is None:
        return [tree.word]
    return words_of(tree.left) + words_of(tree.right)
