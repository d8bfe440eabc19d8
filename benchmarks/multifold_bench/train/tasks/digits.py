"""Handwritten digits, one image at a time: MNIST, or the small ones that scikit-learn brings."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold.models import MLP
from multifold_bench.datasets import DatasetError, idx
from multifold_bench.datasets.idx import Digit
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.parts import Tell, divided
from multifold_bench.train.tasks.task import Choice, TrainingTask

CLASSES = 10
FILES = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}


@final
class DigitsTask(TrainingTask):
    """A row of grey values goes through two layers; the score is the accuracy.

    Parameters
    ----------
    path : path, optional
        The folder of MNIST's four files; the last tenth of its training part is for development. Without
        one, scikit-learn's digits are read and divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.
    """

    name = "digits"
    criterion = "accuracy"
    models: ClassVar = {
        "mlp": Choice(lambda task, width, seed: MLP(task.pixels, (width, width), CLASSES, seed=seed), 128)
    }
    proposed: ClassVar = {"batch": 128, "epochs": 20, "schedule": "cosine"}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(_small() if path is None else _mnist(Path(path), tell))
        first = self.parts["train"][0].image
        self.pixels = first.size
        self.brightest = max(int(digit.image.max()) for digit in self.parts["train"]) or 1

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        row = (example.image / self.brightest).astype(np.float32).reshape(1, -1)
        return [model.classify(fold, row)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(CLASSES)[[example.label]]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        expected = np.array([example.label for example in examples])
        return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), expected)}


def _mnist(folder: Path, tell: Tell) -> dict[str, list[Digit]]:
    parts = {}
    for part, names in FILES.items():
        images, labels = (_only(folder, name) for name in names)
        size = images.stat().st_size + labels.stat().st_size
        parts[part] = list(idx.read(images, labels, partial(_tell_of, tell, size)))
        highest = max((digit.label for digit in parts[part]), default=0)
        if highest >= CLASSES:
            raise DatasetError(f"expected labels below {CLASSES}, received {highest}.", path=labels)
    held = max(1, len(parts["train"]) // 10)
    return parts | {"train": parts["train"][:-held], "dev": parts["train"][-held:]}


def _tell_of(tell: Tell, size: int, done: int) -> None:
    tell(done, size)


def _only(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}*"))
    if len(found) != 1:
        raise DatasetError(f"expected one file {name}*, found {len(found)}.", idx.SOURCE, path=folder)
    return found[0]


def _small() -> dict[str, list[Digit]]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise DatasetError(
            "expected the path of MNIST's files, or scikit-learn, which brings small digits: "
            "pip install scikit-learn.",
            idx.SOURCE,
        ) from error
    digits = load_digits()
    pairs = zip(digits.images, digits.target.tolist(), strict=True)
    return divided([Digit(image, label) for image, label in pairs], "scikit-learn")
