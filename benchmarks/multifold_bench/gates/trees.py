"""Gates (a) and (b): binary Tree-LSTMs over drawn trees, recorded at each step or traced before.

Each step has a minibatch that was not seen before, and a fold of its own. Traces are made outside of the
time, as they are made once for a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold.models import BinaryTreeLSTM
from multifold_bench.gates.figures import (
    Figure,
    ModelStep,
    Numbers,
    Results,
    Step,
    milliseconds,
    share,
    summed,
)
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import Tree, built, random_tree

WIDTH = 100


class PairOrWord(NamedTuple):
    """A word at a leaf, and two trees elsewhere."""

    word: int | None
    left: Any = None
    right: Any = None


def tree_of(nodes: Tree) -> PairOrWord:
    """Return the tree behind a list of nodes, children first; see `multifold_bench.graphs.trees`."""
    return built(nodes, PairOrWord, partial(PairOrWord, None))


def encode(fold: Any, tree: PairOrWord) -> Any:
    """Record a tree; return the state ``(h, c)`` of its root."""
    if tree.word is not None:
        return fold.add("leaf", tree.word).split(2)
    left = encode(fold, tree.left)
    right = encode(fold, tree.right)
    return fold.add("children", *left, *right).split(2)


def classify(fold: Any, tree: PairOrWord) -> Any:
    """Record a tree; return the node of its logits."""
    return fold.add("logits", encode(fold, tree)[0])


def minibatch(number: int, size: int) -> tuple[list[PairOrWord], np.ndarray]:
    """Draw trees of 14 to 22 words, and the weights of the loss."""
    rng = np.random.default_rng(number)
    trees = [tree_of(random_tree(rng)) for _ in range(size)]
    return trees, rng.standard_normal((size, CLASSES)) / size


def recorded(framework: str, trees: Sequence[PairOrWord], model: Any) -> Any:
    """Record and run a minibatch."""
    fold = multifold.Fold(backend=framework)
    nodes = [classify(fold, tree) for tree in trees]
    return fold.apply(model, nodes)


def traced(framework: str, traces: Sequence[Any], model: Any) -> Any:
    """Merge and run the traces of a minibatch."""
    return multifold.Fold(backend=framework).run(model, traces)


def traces_of(trees: Sequence[PairOrWord]) -> list[Any]:
    """Return the traces of a minibatch."""
    return [multifold.trace(classify, tree) for tree in trees]


def large_step(framework: str, size: int, train: bool, quick: bool) -> Step:
    """Return what takes a step of both ways on one minibatch."""
    subject = ModelStep(framework, BinaryTreeLSTM(WORDS, WIDTH, CLASSES).on(framework), train)

    def step(number: int) -> tuple[Numbers, Results]:
        trees, weights = minibatch(number, size // 8 if quick else size)
        traces = traces_of(trees)
        by_recording, first = subject.step(partial(recorded, framework, trees), weights)
        by_traces, second = subject.step(partial(traced, framework, traces), weights)
        numbers = {"recorded": by_recording, "traced": by_traces}
        return numbers, {"recorded": first, "traced": second}

    return step


def small_step(size: int, keep: bool, quick: bool) -> Step:
    """Return what runs the traces of some small minibatches, in a fold of their own or all in one."""
    subject = ModelStep("torch", BinaryTreeLSTM(WORDS, WIDTH, CLASSES).on("torch"), train=False)
    kept = multifold.Fold(backend="torch")
    steps = 4 if quick else 480 // (8 + size)

    def forward(traces: Sequence[Any]) -> Callable[[Any], Any]:
        if keep:
            return lambda model: kept.run(model, traces)
        return partial(traced, "torch", traces)

    def step(number: int) -> tuple[Numbers, Results]:
        # A fold that is kept meets the same minibatches again, so it may keep what it planned.
        first = 0 if keep else number
        trees = [minibatch(1000 * first + i, size)[0] for i in range(steps)]
        runs = [forward(traces_of(x)) for x in trees]
        seconds, results = summed(subject.step(run, np.zeros(0)) for run in runs)
        return {"traced": seconds / steps}, {"traced": results}

    return step


def large(framework: str, size: int, train: bool) -> Figure:
    """Return a figure of gate (a)."""
    lines = [milliseconds("recorded", beside=1.03), milliseconds("traced", beside=1.03)]
    if size == 512:
        lines.append(share("recorded", "traced", most=1.15 if train else 1.3))
    name = f"{size} trees, {'training' if train else 'inference'}"
    return Figure("a", name, framework, partial(large_step, framework, size, train), tuple(lines))


def small(size: int, keep: bool) -> Figure:
    """Return a figure of gate (b)."""
    name = f"{size} tree{'s' * (size > 1)}, inference, {'a fold that is kept' if keep else 'new folds'}"
    return Figure(
        "b", name, "torch", partial(small_step, size, keep), (milliseconds("traced", beside=1.08),)
    )


FIGURES = [
    *[
        large(framework, size, train)
        for framework in ("torch", "tensorflow")
        for size in (128, 512)
        for train in (True, False)
    ],
    *[small(size, keep) for size in (16, 1) for keep in (False, True)],
]
