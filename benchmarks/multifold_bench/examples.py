"""How the examples of a workload are read from files, or drawn one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from multifold._measure.benchmark import Examples, Rng, Tell
from multifold._measure.files import PathLike
from multifold._measure.workloads import BinaryTree
from multifold.errors import MultifoldError
from multifold_bench.datasets import DatasetError
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import Tree, built, sentence_tree


def kept(examples: Iterable[Any], limit: int, tell: Tell, path: PathLike) -> list[Any]:
    """Read the first examples of a file, at least one."""
    found = []
    for example in islice(examples, limit):
        found.append(example)
        tell(len(found), limit)
    if not found:
        raise DatasetError("expected an example, received the end of the file.", path=path, line=1)
    return found


def no_files(path: PathLike | None, name: str) -> None:
    """Refuse a path for what is always drawn."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload '{name}'. Received --data {path}.")


def drawn(sample: Callable[[Rng], Any], words: int, classes: int) -> Examples:
    """Return examples that are drawn one by one."""
    return Examples(lambda rng, count: [sample(rng) for _ in range(count)], words, classes)


def binary_tree(nodes: Tree) -> BinaryTree:
    """Return the tree behind a list of nodes, children first.

    Examples
    --------
    >>> binary_tree((7, 8, "children")).right.word
    8
    """
    return built(nodes, BinaryTree, partial(BinaryTree, None))


def read_phrases(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees as long and as deep as those of the Stanford Sentiment Treebank."""
    no_files(path, "sentences")
    return drawn(lambda rng: binary_tree(sentence_tree(rng)), WORDS, CLASSES)
