"""Trees as lines of text, what records one of them, and what makes the model: a worker imports these."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from multifold._compare.workloads import BinaryTree
from multifold.models import BinaryTreeLSTM
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import random_tree
from multifold_bench.trees import binary_tree

DISTINCT = 2_000
"""How many different trees are drawn; they come again after these."""


@dataclass(frozen=True)
class MakeModel:
    """Makes a binary Tree-LSTM; a stream calls it in each worker."""

    backend: str
    width: int

    def __call__(self) -> Any:
        """Return a model with the same weights each time."""
        return BinaryTreeLSTM(WORDS, self.width, CLASSES).on(self.backend)


def draw_lines(count: int, seed: int) -> list[str]:
    """Return trees of 14 to 22 leaves as JSON: a number is a word, and a pair its two subtrees.

    Examples
    --------
    >>> lines = draw_lines(2001, seed=0)
    >>> len(lines), lines[0] == lines[2000], lines[0] == lines[1]
    (2001, True, False)
    """
    rng = np.random.default_rng(seed)
    drawn = [json.dumps(nested(binary_tree(random_tree(rng)))) for _ in range(min(count, DISTINCT))]
    return list(islice(cycle(drawn), count))


def nested(tree: BinaryTree) -> Any:
    """Return a tree as pairs of pairs of words."""
    return tree.word if tree.left is None else [nested(tree.left), nested(tree.right)]


def read(fold: Any, line: str) -> Any:
    """Record the logits of a tree that is read from its line."""
    return record(fold, json.loads(line))


def record(fold: Any, tree: Any) -> Any:
    """Record the logits of a tree."""
    return fold.add("logits", encode(fold, tree)[0])


def encode(fold: Any, tree: Any) -> Any:
    """Record a tree; return the nodes of its state ``(h, c)``."""
    if isinstance(tree, int):
        return fold.add("leaf", tree).split(2)
    left, right = tree
    return fold.add("children", *encode(fold, left), *encode(fold, right)).split(2)
