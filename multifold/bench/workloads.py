"""The workloads by name: how their examples are read or drawn, and the tasks that run on them.

Here are the three that frameworks are compared on most, trees of two kinds and a tagger, whose plain
programs are written out: the same recursion over the same objects, and nothing is looked up twice there
that a careful person would keep. The others are in `typed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from multifold.backend import Array
from multifold.bench import generators, parser, typed
from multifold.bench.task import (
    Examples,
    Minibatch,
    OneByOne,
    Rng,
    Task,
    Tell,
    Workload,
    drawn_from,
)
from multifold.bench.trees import BinaryTree, Branch, binary_tree
from multifold.datasets import (
    DatasetError,
    Vocabulary,
    bottom_up,
    conll,
    postorder,
    python_ast,
    sst,
)
from multifold.datasets.files import PathLike
from multifold.errors import MultifoldError
from multifold.models import BiLSTMTagger, BinaryTreeLSTM, ChildSumTreeLSTM, Model
from multifold.operands import ragged

__all__ = ["WORKLOADS", "Minibatch", "OneByOne", "Task"]

Word = int | tuple[int, ...]
"""A word's id or, if it is rare, the ids of its characters."""


# ---- examples ------------------------------------------------------------------------------------


def random_trees(rng: Rng, count: int) -> list[BinaryTree]:
    """Draw binary trees of 14 to 22 leaves, cut anywhere: 36 calls on average with the output."""
    return [binary_tree(generators.random_tree(rng)) for _ in range(count)]


def read_synthetic(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees, which need no file."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload 'synthetic'. Received --data {path}.")
    return Examples(random_trees, generators.WORDS, generators.CLASSES)


def read_sst(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read all trees of a file of the Stanford Sentiment Treebank, of a folder its ``train.txt``."""
    if path is None:
        raise DatasetError("expected --data DIR for the workload 'sst'.", sst.SOURCE)
    file = Path(path) / "train.txt" if Path(path).is_dir() else Path(path)
    size = file.stat().st_size if file.is_file() else 0
    trees = list(sst.read(file, lambda done: tell(done, size)))
    if not trees:
        raise DatasetError("expected a tree, received the end of the file.", path=file, line=1)
    words = Vocabulary(node.word for tree in trees for node in postorder(tree) if node.word)

    def convert(node: sst.SentimentTree, children: Sequence[BinaryTree]) -> BinaryTree:
        return BinaryTree(None, *children) if children else BinaryTree(words[str(node.word)])

    kept = [bottom_up(tree, convert) for tree in trees]
    return Examples(partial(drawn_from, kept), len(words), len(sst.LABELS))


def read_python_ast(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the first functions of the standard library, or of a folder."""
    functions = []
    for function in islice(python_ast.read(path), limit):
        functions.append(function)
        tell(len(functions), limit)
    if not functions:
        raise DatasetError("expected functions of 15 nodes or more, found none.", path=path)
    names = Vocabulary(node.name for function in functions for node in postorder(function.tree))

    def convert(node: python_ast.SyntaxTree, children: Sequence[Branch]) -> Branch:
        return Branch(names[node.name], tuple(children))

    kept = [bottom_up(function.tree, convert) for function in functions]
    return Examples(partial(drawn_from, kept), len(names), classes=50)


def read_tagger(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the sentences of a file of CoNLL columns; without one, draw some of such lengths."""
    if path is None:
        return Examples(random_sentences, generators.WORDS, generators.CLASSES)
    sentences = list(conll.read(path))
    if not sentences:
        raise DatasetError("expected a sentence, received the end of the file.", path=path, line=1)
    words = Vocabulary((word for x in sentences for word in x.words), least=5)

    def convert(word: str) -> Word:
        spelled = tuple(ord(character) % generators.CHARACTERS for character in word)
        return words[word] if word in words else spelled  # noqa: SIM401 - a Vocabulary has no get

    kept = [[convert(word) for word in x.words] for x in sentences]
    tags = {tag for x in sentences for tag in x.tags}
    return Examples(partial(drawn_from, kept), len(words), len(tags))


def random_sentences(rng: Rng, count: int) -> list[list[Word]]:
    """Draw sentences of 3 to 60 words, 24 on average; a third of the words is rare."""
    return [[word for word, _ in generators.sample_tagged(rng, rare=0.36)] for _ in range(count)]


class BinaryTask(Task):
    """A binary Tree-LSTM with its output at the root (Tai, Socher and Manning, ACL 2015)."""

    kind = "binary"

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
    """Record a tree; return the nodes of its state ``(h, c)``."""
    if tree.left is None:
        return fold.add("leaf", tree.word).split(2)
    left_h, left_c = encode_binary(fold, tree.left)
    right_h, right_c = encode_binary(fold, tree.right)
    return fold.add("children", left_h, left_c, right_h, right_c).split(2)


class ChildSumTask(Task):
    """A child-sum Tree-LSTM over trees of any arity (Tai, Socher and Manning, ACL 2015)."""

    kind = "child_sum"

    def model(self) -> Model:
        return ChildSumTreeLSTM(**self.sizes)

    def record(self, fold: Any, tree: Branch) -> Any:
        return fold.add("logits", encode_any(fold, tree)[0])

    def loop(self, one: OneByOne, tree: Branch) -> Array:
        model = one.model

        def encode(tree: Branch) -> tuple[Array, Array]:
            word = one.word(tree.word)
            if not tree.children:
                return model.leaf(word)
            states = [encode(child) for child in tree.children]
            hs, cs = (one.ragged(rows) for rows in zip(*states, strict=True))
            return model.node(word, hs, cs)

        return model.logits(encode(tree)[0])


def encode_any(fold: Any, tree: Branch) -> Any:
    """Record a tree of any arity; return the nodes of its state ``(h, c)``."""
    if not tree.children:
        return fold.add("leaf", tree.word).split(2)
    states = [encode_any(fold, child) for child in tree.children]
    hs, cs = (ragged(rows) for rows in zip(*states, strict=True))
    return fold.add("node", tree.word, hs, cs).split(2)


class TaggerTask(Task):
    """A tagger that reads in both directions, and spells rare words (Neubig et al., NIPS 2017)."""

    kind = "tagger"

    def model(self) -> Model:
        return BiLSTMTagger(
            self.examples.words,
            generators.CHARACTERS,
            self.examples.classes,
            width=self.width,
            inputs=2 * self.width,
        )

    def rows(self, example: Any) -> int:
        return len(example)

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        return [node for example in examples for node in self.record(fold, example)]

    def record(self, fold: Any, words: Sequence[Word]) -> Any:
        def read(vectors: Sequence[Any], begin: Any, level: str, direction: str) -> list[Any]:
            h, c = begin
            states = []
            for x in vectors:
                h, c = fold.add("step", x, h, c, level, direction).split(2)
                states.append(h)
            return states

        def spell(characters: Sequence[int]) -> Any:
            vectors = [fold.add("look_up_character", character) for character in characters]
            begin = fold.add("begin", "word").split(2)
            right = read(vectors, begin, "word", "right")
            left = read(vectors[::-1], begin, "word", "left")
            return fold.add("join", right[-1], left[-1])

        vectors = [spell(word) if isinstance(word, tuple) else fold.add("look_up", word) for word in words]
        begin = fold.add("begin", "sentence").split(2)
        right = read(vectors, begin, "sentence", "right")
        left = read(vectors[::-1], begin, "sentence", "left")[::-1]
        return [fold.add("logits", *states) for states in zip(right, left, strict=True)]

    def loop(self, one: OneByOne, words: Sequence[Word]) -> Array:
        model = one.model

        def read(vectors: Sequence[Any], begin: Any, level: str, direction: str) -> list[Any]:
            h, c = begin
            states = []
            for x in vectors:
                h, c = model.step(x, h, c, level, direction)
                states.append(h)
            return states

        def spell(characters: Sequence[int]) -> Any:
            vectors = [model.look_up_character(one.word(character)) for character in characters]
            begin = model.begin("word")
            right = read(vectors, begin, "word", "right")
            left = read(vectors[::-1], begin, "word", "left")
            return model.join(right[-1], left[-1])

        vectors = [
            spell(word) if isinstance(word, tuple) else model.look_up(one.word(word)) for word in words
        ]
        begin = model.begin("sentence")
        right = read(vectors, begin, "sentence", "right")
        left = read(vectors[::-1], begin, "sentence", "left")[::-1]
        rows = [model.logits(*states) for states in zip(right, left, strict=True)]
        return one.backend.concat(rows) if len(rows) > 1 else rows[0]


WORKLOADS = {
    "python-ast": Workload(read_python_ast, ChildSumTask),
    "sentences": Workload(typed.read_phrases, BinaryTask),
    "sst": Workload(read_sst, BinaryTask),
    "synthetic": Workload(read_synthetic, BinaryTask),
    "tagger": Workload(read_tagger, TaggerTask),
    **parser.WORKLOADS,
    **typed.WORKLOADS,
}
"""What ``--workload`` takes."""
