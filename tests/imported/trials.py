"""What several files of trials in `tests/engine/ops` share: ops, groups of calls, and what they noted."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from multifold import LaunchError


class Seen(list):
    """What an op has met; a trial would leave a plain list as it was."""


def column(s, rank=2):
    """Return numbers as a column: what each framework spells ``s[:, None]``."""
    for axis in range(1, rank):
        s = s.expand_dims(axis) if hasattr(s, "expand_dims") else s[(slice(None),) * axis + (None,)]
    return s


def scaled(fold, op, rows, numbers):
    """Return one group: ``op`` of each row and number."""
    return [[fold.add(op, x, s) for x, s in zip(rows, numbers, strict=True)]]


def one_group(fold, op, xs):
    """Return one group: an op of each row."""
    return [[fold.add(op, x) for x in xs]]


def mean_of(x):
    """Return the mean of each column, of shape ``(1, k)``."""
    if hasattr(x, "mean"):
        return x.mean(0)[None]
    return importlib.import_module("tensorflow").reduce_mean(x, 0)[None]


MIXING_OPS = {
    "mean": lambda x: x - mean_of(x),
    "first": lambda x: x + x[:1],
    "one row before": lambda x: x + x[[0, *range(len(x) - 1)]],
    "place": lambda x: x * np.arange(1.0, len(x) + 1)[:, None],
    "scale": lambda x: x / abs(x).max(),
    "sorted": lambda x: np.sort(x, 0),
}


def normal(rows, width=3):
    """Return rows of normal numbers, each as an array of one row."""
    return np.random.default_rng(0).normal(size=(rows, 1, width))


def refuse_in(fold, model, outputs, match="mixes its rows"):
    """Expect a launch to be refused."""
    with pytest.raises(LaunchError, match=match):
        fold.apply(model, outputs)
