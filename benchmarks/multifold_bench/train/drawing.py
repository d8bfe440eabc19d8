"""Learning curves: the loss of each step, and the score that chooses the best epoch, as one picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multifold_bench.train import checkpoint
from multifold_bench.train.tasks.task import TrainingTask

LOSS = "#bbbbbb"
MEAN = "#000000"
SCORE = "#0072B2"
BEST = "#D55E00"
"""Colours, after Okabe and Ito."""


def can_draw() -> bool:
    """Return whether Matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, task: TrainingTask, history: Sequence[Mapping[str, Any]], best: int | None) -> None:
    """Draw what `Result.history` says, into a PNG file; nothing where Matplotlib is not installed.

    The upper panel has the loss of each step and the mean of each epoch, the lower one the score on the
    development part after each epoch, and a mark at the best.
    """
    if not can_draw():
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    epochs = np.arange(1, len(history) + 1)
    at = [
        epoch - np.arange(len(x["losses"]))[::-1] / len(x["losses"]) for epoch, x in enumerate(history, 1)
    ]
    above.plot(
        np.concatenate(at), [loss for x in history for loss in x["losses"]], color=LOSS, linewidth=0.7
    )
    above.plot(epochs - 0.5, [x["loss"] for x in history], color=MEAN, marker="o", markersize=3)
    above.set(ylabel="loss", title=f"{task.name}: loss of each step (grey), mean of each epoch (black)")
    scores = np.array([x["dev"][task.criterion] for x in history], float)
    below.plot(epochs, scores, color=SCORE, marker="o", markersize=3)
    title = "development part"
    if best is not None:
        below.plot([best], scores[[best - 1]], color=BEST, marker="o", linestyle="none")
        title = f"{title}: {scores[best - 1]:.4g} after epoch {best}, the best"
    below.set(ylabel=task.criterion, xlabel="epoch", title=title)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    with checkpoint.replacing(path) as file:
        figure.savefig(file, format="png", dpi=100, metadata={"Software": None})
