"""The workloads by name: how their examples are read or drawn, and the tasks that run on them.

Here are the three that frameworks are compared on most, two families of trees and a tagger, whose plain
programs are written out: the same recursion over the same objects, and nothing is looked up twice there
that a careful person would keep. The others are in `pairs`, `parser`, `peers`, `shapes`, `typed` and
`units`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from multifold._compare.benchmark import (
    Batch,
    Benchmark,
    Examples,
    OneByOne,
    Rng,
    Tell,
    Workload,
    drawn_from,
)
from multifold._compare.files import PathLike
from multifold._compare.workloads import (
    BinaryBenchmark,
    BinaryTree,
    ChildSumBenchmark,
    read_python_ast,
    read_sst,
)
from multifold.backend import Array
from multifold.errors import MultifoldError
from multifold.models import BiLSTMTagger, Model
from multifold_bench import pairs, parser, peers, shapes, typed, units
from multifold_bench.datasets import (
    DatasetError,
    WordIds,
    conll,
)
from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS
from multifold_bench.graphs.sequences import sample_tagged
from multifold_bench.graphs.trees import random_tree
from multifold_bench.trees import binary_tree

__all__ = ["WORKLOADS", "Batch", "Benchmark", "OneByOne"]

Word = int | tuple[int, ...]
"""A word's id or, if it is rare, the ids of its characters."""


# ---- examples ------------------------------------------------------------------------------------


def random_trees(rng: Rng, count: int) -> list[BinaryTree]:
    """Draw binary trees of 14 to 22 leaves, cut anywhere: 36 calls on average with the output."""
    return [binary_tree(random_tree(rng)) for _ in range(count)]


def read_synthetic(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees, which need no file."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload 'synthetic'. Received --data {path}.")
    return Examples(random_trees, WORDS, CLASSES)


def read_tagger(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the sentences of a file of CoNLL columns; without one, draw some of such lengths."""
    if path is None:
        return Examples(random_sentences, WORDS, CLASSES)
    sentences = list(conll.read(path))
    if not sentences:
        raise DatasetError("expected a sentence, received the end of the file.", path=path, line=1)
    words = WordIds((word for x in sentences for word in x.words), least=5)

    def convert(word: str) -> Word:
        spelled = tuple(ord(character) % CHARACTERS for character in word)
        return words[word] if word in words else spelled  # noqa: SIM401 - a WordIds has no get

    kept = [[convert(word) for word in x.words] for x in sentences]
    tags = {tag for x in sentences for tag in x.tags}
    return Examples(partial(drawn_from, kept), len(words), len(tags))


def random_sentences(rng: Rng, count: int) -> list[list[Word]]:
    """Draw sentences of 3 to 60 words, 24 on average; a third of the words is rare."""
    return [[word for word, _ in sample_tagged(rng, rare=0.36)] for _ in range(count)]


class TaggerBenchmark(Benchmark):
    """A tagger that reads in both directions, and spells rare words (Neubig et al., NIPS 2017)."""

    family = "tagger"

    def model(self) -> Model:
        return BiLSTMTagger(
            self.examples.words,
            CHARACTERS,
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
    "python-ast": Workload(read_python_ast, ChildSumBenchmark),
    "sentences": Workload(typed.read_phrases, BinaryBenchmark),
    "sst": Workload(read_sst, BinaryBenchmark),
    "synthetic": Workload(read_synthetic, BinaryBenchmark),
    "tagger": Workload(read_tagger, TaggerBenchmark),
    **parser.WORKLOADS,
    **pairs.WORKLOADS,
    **peers.WORKLOADS,
    **shapes.WORKLOADS,
    **typed.WORKLOADS,
    **units.WORKLOADS,
}
"""What ``--workload`` takes."""
