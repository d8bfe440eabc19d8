"""What is served: trees, a parser that looks at its scores, and a decoder that ends when it likes.

A workload is an ordinary function for one example, a model, and examples. Those in which two scores are
nearly equal are left out: rounding, which differs with the number of rows, would decide how they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np

import multifold
from multifold import Unfold, ops
from multifold._measure.files import PathLike
from multifold._measure.workloads import BinaryTree, encode_binary
from multifold.backend import Array, Backend
from multifold.models import BinaryTreeLSTM, Model
from multifold.models.layers import Initial, linear, lstm
from multifold_bench.datasets import DatasetError, WordIds, postorder, sst
from multifold_bench.examples import binary_tree
from multifold_bench.graphs.base import WORDS
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.greedy import DOUBT, classified, margin, parse
from multifold_bench.models import ShiftReduceParser

WIDTH = 128
CLASSES = 5

LAUNCHES = 8
"""A request of trees has at least so many launches: a launch for the words, one a level, and the last."""

PIECES = 64
"""How many different pieces the decoder writes; the last one is the end."""

END = (np.arange(PIECES) == PIECES - 1).astype("float32")
"""The score that ends a text."""

IMPATIENCE = 4.0
"""By how much the score of the end grows while as many pieces are written as words were read."""


@dataclass
class Traffic:
    """What a contender serves.

    Attributes
    ----------
    name : str
    backend : Backend
    model : object
        Of that framework.
    fn : callable
        Records one example.
    examples : list
        Of which requests are drawn.
    """

    name: str
    backend: Backend
    model: Any
    fn: Callable[[Any, Any], Any]
    examples: list[Any]

    def loop(self, example: Any) -> Any:
        """Return the result of one example, computed call by call."""
        return self.parted(Unfold(self.model, backend=self.backend).run(None, [example], self.fn))[0]

    def parted(self, results: Any) -> list[Any]:
        """Return the result of each example, on the host."""
        if isinstance(results, list):  # of `multifold.each`: numbers of the decoder
            return [np.array(result) for result in results]
        return [*self.backend.to_numpy(results)[:, None]]


def classify_tree(fold: Any, tree: BinaryTree) -> Any:
    """Record the sentiment of a sentence, from its tree."""
    return fold.add("logits", encode_binary(fold, tree)[0])


def levels(tree: BinaryTree) -> int:
    """Return how many nodes lie on the longest way from the root to a word."""
    if tree.left is None or tree.right is None:
        return 1
    return 1 + max(levels(tree.left), levels(tree.right))


@final
class Decoder(Model):
    """Reads words by one LSTM and writes pieces by another, until it writes the end."""

    def __init__(self, vocabulary: int, width: int) -> None:
        initial = Initial(0, "float32")
        parameters = {
            "nothing": initial.state(2 * width),
            "words": initial.embedding(vocabulary, width),
            "pieces": 3 * initial.embedding(PIECES, width),
            **initial.lstm("reader", width, width),
            **initial.lstm("writer", width, width),
            "score.weight": 2 * initial.weight(width, PIECES),
            "score.bias": -IMPATIENCE * END,
            "end": END[None],
        }
        super().__init__(parameters, width=width)

    def begin(self) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before the first word, one row."""
        h, c = ops.split(self.nothing, 2, axis=1)
        return h, c

    def read(self, word: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return the state after a word, from ids ``(n,)`` and states ``(n, width)``."""
        return lstm(self.reader, ops.take(self.words, word), h, c)

    def say(self, piece: Array, steps: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
        """Return the state after a piece, and the scores ``(n, PIECES)`` of the next one.

        The score of the end grows with the steps, of shape ``(n, 1)``, so every text ends.
        """
        h, c = lstm(self.writer, ops.take(self.pieces, piece), h, c)
        return h, c, linear(self.score, h) + steps * self.end


async def decode(fold: Any, words: Sequence[int]) -> tuple[list[int], float]:
    """Translate a sentence; return its pieces, and how near two best scores came."""
    h, c = fold.add("begin").split(2)
    for word in words:
        h, c = fold.add("read", word, h, c).split(2)
    pieces = [0]
    doubt = np.inf
    while pieces[-1] != PIECES - 1:
        steps = np.full((1, 1), IMPATIENCE * len(pieces) / len(words), "float32")
        h, c, scores = fold.add("say", pieces[-1], steps, h, c).split(3)
        found = await fold.value(scores)
        pieces.append(int(found.argmax()))
        second, best = np.partition(found, -2)[-2:]
        doubt = min(doubt, best - second)
    return pieces[1:], doubt


async def translate(fold: Any, words: Sequence[int]) -> Any:
    """Translate a sentence greedily, piece by piece."""
    pieces, _ = await decode(fold, words)
    return multifold.each(tuple(pieces))


async def decoders_doubt(fold: Any, words: Sequence[int]) -> Any:
    """Return how near two best scores came."""
    return multifold.each((await decode(fold, words))[1])


def read_trees(path: PathLike | None, count: int) -> tuple[list[BinaryTree], int]:
    """Return trees of a file of the Stanford Sentiment Treebank, or drawn ones, and the number of words."""
    if path is None:
        rng = np.random.default_rng(0)
        return [binary_tree(sentence_tree(rng)) for _ in range(count)], WORDS
    trees = list(islice(sst.read(path), count))
    if not trees:
        raise DatasetError("expected a tree, received the end of the file.", path=path, line=1)
    ids = WordIds(str(node.word) for tree in trees for node in postorder(tree) if node.word is not None)

    def numbered(tree: Any) -> BinaryTree:
        if tree.word is not None:
            return BinaryTree(ids[str(tree.word)])
        return BinaryTree(None, *map(numbered, tree.children))

    return [numbered(tree) for tree in trees], len(ids)


def words_of(tree: BinaryTree) -> list[int]:
    """Return the words of a tree, from left to right."""
    if tree.left is None or tree.right is None:
        return [int(tree.word or 0)]
    return words_of(tree.left) + words_of(tree.right)


def sure(model: Model, doubt: Callable[..., Any], sentences: list[list[int]]) -> list[list[int]]:
    """Return the sentences of which every decision is clear."""
    doubts = multifold.Fold(backend="numpy").run(model, sentences, doubt)
    return [sentence for sentence, found in zip(sentences, doubts, strict=True) if found > DOUBT]


def make_workload(
    name: str, backend: Backend, path: PathLike | None, count: int = 512, longest: int | None = None
) -> Traffic:
    """Return a workload by name: ``"trees"``, ``"parser"`` or ``"decoder"``.

    Parameters
    ----------
    name : str
    backend : Backend
        The framework of the model.
    path : path, optional
        A file of the Stanford Sentiment Treebank, whose trees and sentences are served; without it some of
        such sizes are drawn.
    count : int
        How many examples are read.
    longest : int, optional
        Sentences of more words are not parsed or translated; by default all are.
    """
    trees, words = read_trees(path, count)
    if name == "trees":
        deep = [tree for tree in trees if levels(tree) + 1 >= LAUNCHES]
        model: Model = BinaryTreeLSTM(words, WIDTH, CLASSES)
        return Traffic(name, backend, model.on(backend), classify_tree, deep)
    sentences = [sentence for sentence in map(words_of, trees) if 2 < len(sentence) <= (longest or np.inf)]
    if name == "parser":
        model = ShiftReduceParser(words, WIDTH, CLASSES)
        kept = sure(model, margin(parse), sentences)
        return Traffic(name, backend, model.on(backend), classified(parse), kept)
    model = Decoder(words, WIDTH)
    return Traffic(name, backend, model.on(backend), translate, sure(model, decoders_doubt, sentences))
