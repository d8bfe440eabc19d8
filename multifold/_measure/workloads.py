"""The two workloads of ``multifold compare``: syntax trees of functions, and sentences with sentiment.

Their plain programs are written out: the same recursion over the same objects as the recording one, and
nothing is looked up twice there that a careful person would keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from multifold._measure import python_ast, sst
from multifold._measure.benchmark import Benchmark, Examples, OneByOne, Tell, Workload, drawn_from
from multifold._measure.files import DatasetError, PathLike
from multifold.backend import Array
from multifold.models import BinaryTreeLSTM, ChildSumTreeLSTM, Model
from multifold.models.layers import bottom_up
from multifold.operands import ragged


class BinaryTree:
    """A binary tree: a word id at each leaf, and two trees, ``left`` and ``right``, elsewhere."""

    __slots__ = ("left", "right", "word")

    def __init__(self, word: Any, left: Any = None, right: Any = None) -> None:
        self.word = word
        self.left = left
        self.right = right


class Branch:
    """A tree whose nodes each have a word, or its id, and any number of children."""

    __slots__ = ("children", "word")

    def __init__(self, word: Any, children: Sequence[Branch]) -> None:
        self.word = word
        self.children = children


class Ids(dict[str, int]):
    """A dictionary of word -> number: a word that is looked up first gets the next number, from 0.

    >>> ids = Ids()
    >>> [ids[word] for word in ("a", "b", "a")]
    [0, 1, 0]
    """

    def __missing__(self, word: str) -> int:
        return self.setdefault(word, len(self))


def read_sst(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return the trees of a file of the Stanford Sentiment Treebank, as `Examples`.

    Of a folder the file ``train.txt`` is read. ``limit`` is ignored. ``tell`` is called with how many bytes
    were read, and how many there are. Raise a `DatasetError` if there is no file, or no tree in it.
    """
    if path is None:
        raise DatasetError("expected --data DIR for the workload 'sst'.", sst.SOURCE)
    file = Path(path) / "train.txt" if Path(path).is_dir() else Path(path)
    size = file.stat().st_size if file.is_file() else 0
    ids = Ids()

    def make(label: int, word: str | None, children: Sequence[BinaryTree]) -> BinaryTree:
        return BinaryTree(None, *children) if word is None else BinaryTree(ids[word])

    trees = list(sst.read(file, make, lambda done: tell(done, size)))
    if not trees:
        raise DatasetError("expected a tree, received the end of the file.", path=file, line=1)
    return Examples(partial(drawn_from, trees), len(ids), len(sst.LABELS))


def read_python_ast(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return the first ``limit`` functions of Python files in a folder, as `Examples` of trees.

    ``path`` None stands for the standard library. ``tell`` is called with how many functions were read, and
    ``limit``. Raise a `DatasetError` if there are none.
    """
    kept = []
    ids = Ids()

    def number(node: Branch, children: Sequence[Branch]) -> Branch:
        return Branch(ids[node.word], tuple(children))

    for function in islice(python_ast.read(path, Branch), limit):
        kept.append(bottom_up(function.tree, number))
        tell(len(kept), limit)
    if not kept:
        raise DatasetError("expected functions of 15 nodes or more, found none.", path=path)
    return Examples(partial(drawn_from, kept), len(ids), classes=50)


class BinaryBenchmark(Benchmark):
    """A binary Tree-LSTM with its output at the root (Tai, Socher and Manning, ACL 2015)."""

    family = "binary"

    def model(self) -> Model:
        return BinaryTreeLSTM(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", encode_binary(fold, tree)[0])

    def loop(self, one: OneByOne, tree: BinaryTree) -> Array:
        model = one.model

        def encode(tree: BinaryTree) -> tuple[Array, Array]:
            if tree.left is None:
                return model.leaf(one.word(tree.word))
            left_h, left_c = encode(tree.left)
            right_h, right_c = encode(tree.right)
            return model.children(left_h, left_c, right_h, right_c)

        return model.logits(encode(tree)[0])


def encode_binary(fold: Any, tree: BinaryTree) -> Any:
    """Record a binary tree on a fold; return the nodes of its state, ``(h, c)``."""
    if tree.left is None:
        return fold.add("leaf", tree.word).split(2)
    left_h, left_c = encode_binary(fold, tree.left)
    right_h, right_c = encode_binary(fold, tree.right)
    return fold.add("children", left_h, left_c, right_h, right_c).split(2)


class ChildSumBenchmark(Benchmark):
    """A child-sum Tree-LSTM over trees of any arity (Tai, Socher and Manning, ACL 2015)."""

    family = "child_sum"

    def model(self) -> Model:
        return ChildSumTreeLSTM(**self.sizes)

    def record(self, fold: Any, tree: Branch) -> Any:
        return fold.add("logits", encode_any(fold, tree)[0])

    def loop(self, one: OneByOne, tree: Branch) -> Array:
        model = one.model

        def encode(tree: Branch) -> tuple[Array, Array]:
            embedded = model.embed(one.word(tree.word))
            if not tree.children:
                return model.leaf(embedded)
            states = [encode(child) for child in tree.children]
            hs, cs = (one.ragged(rows) for rows in zip(*states, strict=True))
            return model.node(embedded, hs, cs)

        return model.logits(encode(tree)[0])


def encode_any(fold: Any, tree: Branch) -> Any:
    """Record a tree of any arity on a fold; return the nodes of its state, ``(h, c)``."""
    embedded = fold.add("embed", tree.word)
    if not tree.children:
        return fold.add("leaf", embedded).split(2)
    states = [encode_any(fold, child) for child in tree.children]
    hs, cs = (ragged(rows) for rows in zip(*states, strict=True))
    return fold.add("node", embedded, hs, cs).split(2)


WORKLOADS = {
    "python-ast": Workload(read_python_ast, ChildSumBenchmark),
    "sst": Workload(read_sst, BinaryBenchmark),
}
"""What ``multifold compare --workload`` takes."""
