"""The first fifty losses of three trainings, computed without any framework.

Values are NumPy's in float64, gradients are central differences of them, and the optimizers are the
formulas in the documentation of `multifold_bench.train.Settings`, written down once more. That takes
minutes, so the losses lie beside this file, and the tests compare every framework's with them::

    python -m multifold_bench.curves
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import multifold
from multifold_bench.made_up import MadeUpTask
from multifold_bench.train.settings import Settings

FILE = Path(__file__).with_name("curves.json")

STEP = 1e-5
"""Of the differences."""

CURVES: dict[str, dict[str, Any]] = {
    "adagrad": {"model": "binary", "optimizer": "adagrad", "rate": 0.05, "schedule": "cosine"},
    "adam": {
        "model": "child-sum",
        "optimizer": "adam",
        "rate": 0.05,
        "schedule": "exponential",
        "decay": 0.8,
    },
    "sgd": {"model": "binary", "optimizer": "sgd", "rate": 0.1, "l2": 0.01},
}
"""What differs from the usual settings, and from `COMMON`."""

COMMON: dict[str, Any] = {"width": 3, "epochs": 10, "batch": 4, "seed": 1}

Weights = dict[str, np.ndarray]


def reference() -> dict[str, list[float]]:
    """Return the losses that were kept."""
    kept: dict[str, list[float]] = json.loads(FILE.read_text())
    return kept


def losses(chosen: dict[str, Any], steps: int) -> list[float]:
    """Return the losses before each of the first steps with these settings."""
    task = MadeUpTask()
    settings = task.settings(**COMMON, **chosen)
    model = task.model(settings)
    weights = {name: x.astype(np.float64) for name, x in model.weights().items()}
    moments = {name: (np.zeros_like(x), np.zeros_like(x)) for name, x in weights.items()}
    count = len(task.parts["train"])
    epoch_steps = math.ceil(count / settings.batch)
    found = []
    for step in range(steps):
        epoch, place = divmod(step, epoch_steps)
        order = np.random.default_rng([settings.seed, epoch]).permutation(count)
        chosen_places = order[place * settings.batch : (place + 1) * settings.batch].tolist()
        examples = [task.parts["train"][i] for i in chosen_places]
        fold = multifold.Fold(backend="numpy")
        nodes = [node for example in examples for node in task.record(model, fold, example)]
        targets = np.concatenate([task.targets(model, example) for example in examples])

        def loss(fold: Any = fold, nodes: Any = nodes, targets: Any = targets) -> float:
            model._hold(weights, model.settings)
            logits = fold.apply(model, [nodes])[0]
            shifted = logits - logits.max(axis=1, keepdims=True)
            log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
            squares = sum(float((x * x).sum()) for x in weights.values())
            return float(-(log_p * targets).sum() / settings.batch + settings.l2 / 2 * squares)

        found.append(loss())
        if len(found) == steps:
            break
        rate = settings.rate
        if settings.schedule == "exponential":
            rate *= settings.decay**epoch
        if settings.schedule == "cosine":
            rate *= (1 + math.cos(math.pi * step / (settings.epochs * epoch_steps))) / 2
        gradients = {name: differences(loss, x) for name, x in weights.items()}
        for name, gradient in gradients.items():
            weights[name] -= rate * direction(settings, gradient, moments[name], step + 1)
    return found


def differences(loss: Callable[[], float], x: np.ndarray) -> np.ndarray:
    """Return the gradient of a loss by an array that it reads."""
    gradient = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        middle = x[at]
        ends = []
        for sign in (1, -1):
            x[at] = middle + sign * STEP
            ends.append(loss())
        x[at] = middle
        gradient[at] = (ends[0] - ends[1]) / (2 * STEP)
    return gradient


def direction(
    settings: Settings, gradient: np.ndarray, moments: tuple[np.ndarray, np.ndarray], count: int
) -> np.ndarray:
    """Return what a weight moves against, times the rate; update what the optimizer remembers."""
    first, second = moments
    if settings.optimizer == "adagrad":
        second += gradient**2
        return np.asarray(gradient / np.sqrt(settings.accumulator + second))
    if settings.optimizer == "adam":
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        return np.asarray(first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8))
    return gradient


def main() -> None:
    """Compute the losses anew."""
    found = {name: losses(chosen, steps=50) for name, chosen in CURVES.items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
