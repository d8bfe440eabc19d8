"""The same recording with the same weights on every backend gives the same values and gradients.

Backends that cannot share an environment meet through files: each writes its answers from an
environment of its own, then all are compared with NumPy in float64, whose gradients are central
differences::

    python -m multifold_bench.same_answers --backend torch --out answers
    python -m multifold_bench.same_answers --compare answers
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multifold._engine.frameworks import registry
from multifold.errors import MismatchError
from multifold.fold import Fold
from multifold.models import BinaryTreeLSTM, ChildSumTreeLSTM
from multifold.models.model import Model

VALUES = 1e-5
GRADIENTS = 1e-4
"""Differences allowed in float32, relative to the largest magnitude of an array."""

STEP = 1e-5
"""Step of the central differences in float64."""


@dataclass(frozen=True)
class WordTree:
    """A tree that both models can read: a word at the leaves, or at every node."""

    word: int | None
    children: tuple[WordTree, ...] = ()

    @property
    def left(self) -> WordTree:
        """The first child."""
        return self.children[0]

    @property
    def right(self) -> WordTree:
        """The last child."""
        return self.children[-1]


def tree(rng: np.random.Generator, words: int, binary: bool) -> WordTree:
    """Return a random tree."""
    if words == 1:
        return WordTree(int(rng.integers(5)))
    parts = 2 if binary else int(rng.integers(1, min(words, 4) + 1))
    sizes = rng.multinomial(words - parts, np.full(parts, 1 / parts)) + 1
    children = tuple(tree(rng, int(size) - (parts == 1), binary) for size in sizes)
    return WordTree(None if binary else int(rng.integers(5)), children)


def workloads(dtype: str) -> Iterator[tuple[str, Model, list[WordTree]]]:
    """Yield a name, a model with NumPy weights, and its examples."""
    rng = np.random.default_rng(0)
    binary = BinaryTreeLSTM(vocabulary=5, width=3, classes=2, dtype=dtype)
    yield "binary", binary, [tree(rng, int(n), True) for n in rng.integers(1, 9, 12)]
    ragged = ChildSumTreeLSTM(vocabulary=5, width=3, classes=2, dtype=dtype)
    yield "child-sum", ragged, [tree(rng, int(n), False) for n in rng.integers(1, 9, 12)]


def record(fold: Fold, model: Any, trees: list[WordTree]) -> list[Any]:
    """Record the trees and return the nodes of their scores."""
    return [fold.add("logits", model.encode(fold, tree)[0]) for tree in trees]


def loss_weights(trees: list[WordTree]) -> np.ndarray:
    """Return the fixed weights that make a scalar of all scores."""
    return np.random.default_rng(1).standard_normal((len(trees), 2))


def answers(backend: str) -> dict[str, np.ndarray]:
    """Return the values and gradients of a backend in float32, by workload and name."""
    seam = registry.load_backend(backend)
    found: dict[str, np.ndarray] = {}
    for name, written, trees in workloads("float32"):
        model = written.on(backend)
        fold = Fold(backend=backend)
        nodes = record(fold, written, trees)
        found[f"{name}: values"] = seam.to_numpy(fold.apply(model, nodes))
        if "kit" in seam.gaps():
            continue
        weights = loss_weights(trees)

        def loss(m: Any, fold: Fold = fold, nodes: list[Any] = nodes, weights: Any = weights) -> Any:
            return seam.kit.dot(fold.apply(m, nodes), weights)

        _, grads = seam.kit.value_and_grad(loss, model)
        found |= {f"{name}: gradient of {key}": seam.to_numpy(grad) for key, grad in grads.items()}
    return found


def reference() -> dict[str, np.ndarray]:
    """Return the values of NumPy in float64, and central differences as gradients."""
    found: dict[str, np.ndarray] = {}
    for (name, single, trees), (_, model, _) in zip(
        workloads("float32"), workloads("float64"), strict=True
    ):
        model.assign({key: x.astype(np.float64) for key, x in single.parameters.items()})
        fold = Fold(backend="numpy")
        nodes = record(fold, model, trees)
        weights = loss_weights(trees)
        found[f"{name}: values"] = fold.apply(model, nodes)
        for key, x in model.parameters.items():
            grad = np.zeros_like(x)
            for at in np.ndindex(x.shape):
                kept = x[at]
                sides = []
                for step in (STEP, -STEP):
                    x[at] = kept + step
                    sides.append(float((fold.apply(model, nodes) * weights).sum()))
                x[at] = kept
                grad[at] = (sides[0] - sides[1]) / (2 * STEP)
            found[f"{name}: gradient of {key}"] = grad
    return found


def compare(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest relative difference; raise `MismatchError` beyond what is allowed."""
    largest = 0.0
    for name, values in got.items():
        wanted = expected[name]
        if values.shape != wanted.shape or values.dtype != np.float32:
            raise MismatchError(
                f"Expected the {name} to be {wanted.shape} float32. Received {values.shape} {values.dtype}."
            )
        scale = max(1.0, float(np.abs(wanted).max()))
        difference = float(np.abs(values - wanted).max()) / scale
        allowed = VALUES if name.endswith("values") else GRADIENTS
        if not difference <= allowed:
            raise MismatchError(
                f"Expected the {name} to equal those of NumPy in float64 to {allowed:.0e}. "
                f"Received a difference of {difference:.2e}."
            )
        largest = max(largest, difference)
    return largest


def main(arguments: list[str] | None = None) -> None:
    """Write the answers of one backend, or compare all that were written."""
    parser = argparse.ArgumentParser(description="The same answers on every backend.")
    parser.add_argument("--backend", help="the backend whose answers are written")
    parser.add_argument("--out", type=Path, help="the folder that they are written into")
    parser.add_argument("--compare", type=Path, help="the folder of answers to compare")
    options = parser.parse_args(arguments)
    if options.compare is None:
        options.out.mkdir(parents=True, exist_ok=True)
        found: dict[str, Any] = answers(options.backend)
        np.savez(options.out / f"{options.backend}.npz", **found)
        return
    expected = reference()
    for file in sorted(options.compare.glob("*.npz")):
        with np.load(file) as kept:
            got = {name: kept[name] for name in kept.files}
        if len(got) < len(expected) and file.stem != "numpy":
            raise MismatchError(f"Expected values and gradients of '{file.stem}' in {file}.")
        largest = compare(got, expected)
        sys.stdout.write(f"{file.stem}: {len(got)} arrays, largest difference {largest:.1e}\n")


if __name__ == "__main__":
    main()
