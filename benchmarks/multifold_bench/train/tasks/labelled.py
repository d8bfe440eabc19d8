"""Classification by any function of one example, such as a block: no class of one's own is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multifold.models import Model
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.settings import SettingsError
from multifold_bench.train.tasks.function import FunctionTask


class LabelledTask(FunctionTask):
    """Pairs of an input and its class, and a function that records the scores of the classes for one input.

    Parameters
    ----------
    name : str
        What the task is called.
    fn : callable
        ``fn(fold, x)`` returns a node with a row of ``classes`` scores: a block, or any function.
    make_model : callable
        ``make_model(seed)`` returns the model with its initial weights, as ``Layers(block, seed=seed)`` is.
    parts : mapping of str to list of (x, int)
        The examples of ``"train"``, ``"dev"`` and ``"test"``.
    classes : int
        How many classes there are.
    **proposed
        Those of `multifold_bench.train.Settings` that are other than Adam with a rate of 0.003, which goes
        down along a cosine, and minibatches of 64.

    Examples
    --------
    >>> from multifold_compat.blocks import FC, Function, Layers, Vector
    >>> block = Vector(2) >> Function(FC(2, activation=None))
    >>> pairs = [((0, 1), 0), ((1, 0), 1)]
    >>> parts = {"train": pairs, "dev": pairs, "test": pairs}
    >>> task = LabelledTask("sides", block, lambda seed: Layers(block, seed=seed), parts, classes=2)
    >>> task.targets(None, pairs[1]).tolist()
    [[0.0, 1.0]]
    """

    def __init__(
        self,
        name: str,
        fn: Callable[[Any, Any], Any],
        make_model: Callable[[int], Model],
        parts: Mapping[str, Sequence[tuple[Any, int]]],
        *,
        classes: int,
        **proposed: Any,
    ) -> None:
        def score(labels: Sequence[int], outputs: Sequence[np.ndarray]) -> dict[str, float]:
            return {"accuracy": accuracy(np.concatenate(outputs).argmax(axis=1), np.array(labels))}

        def target(label: int) -> np.ndarray:
            if not isinstance(label, (int, np.integer)) or not 0 <= label < classes:
                raise SettingsError(
                    f"Expected a class from 0 to {classes - 1}, an int. Received {label!r}.",
                    "classes=... says how many there are; a dictionary makes numbers of names.",
                )
            return np.eye(classes)[[label]]

        super().__init__(
            name, fn, make_model, parts, target=target, score=score, criterion="accuracy", **proposed
        )
