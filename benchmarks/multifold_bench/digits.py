"""The workload ``mnist``: digits, whose examples all have one structure.

It shows where not to fold, since the plain program on all images at once is what anybody would write.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from multifold._measure.benchmark import Examples, Tell, Workload, drawn_from
from multifold._measure.files import PathLike
from multifold.models import MLP, Model
from multifold_bench.datasets import DatasetError, idx
from multifold_bench.examples import kept
from multifold_bench.recorded import ModelBenchmark


def read_mnist(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the training files of MNIST in a folder; without one, take scikit-learn's digits."""
    if path is None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DatasetError(
                "expected --data DIR for the workload 'mnist', or scikit-learn for its digits: "
                "pip install scikit-learn.",
                idx.SOURCE,
            ) from error
        images = load_digits().data.astype(np.float32) / 16
    else:
        files = [next(iter(sorted(Path(path).glob(f"train-{x}*"))), None) for x in ("images", "labels")]
        if files[0] is None or files[1] is None:
            raise DatasetError("expected train-images* and train-labels*.", idx.SOURCE, path=path)
        digits = kept(idx.read(files[0], files[1]), limit, tell, path)
        images = np.stack([digit.image.ravel() for digit in digits]).astype(np.float32) / 255
    rows = [image[None] for image in images]
    return Examples(partial(drawn_from, rows), images.shape[1], 10)


@final
class MnistBenchmark(ModelBenchmark):
    """An MLP of two hidden layers that is fed one image at a time."""

    family = "mnist"

    def model(self) -> Model:
        return MLP(self.examples.words, (self.width, self.width), self.examples.classes)

    def record(self, fold: Any, image: np.ndarray) -> Any:
        return self.program.classify(fold, image)

    def stack(self, examples: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate(examples)


WORKLOADS = {"mnist": Workload(read_mnist, MnistBenchmark)}
"""By name."""
