"""A tagger of two layers in each direction, which spells rare words by two layers in each direction.

`multifold_bench.models.BiLSTMTagger` has one layer in each.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

from multifold import ops
from multifold._measure.benchmark import Examples, Tell, Workload
from multifold._measure.files import PathLike
from multifold.backend import Array
from multifold.models import Model
from multifold.models.layers import Initial, linear, lstm
from multifold_bench.examples import drawn, no_files
from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS, Rng
from multifold_bench.graphs.sequences import sample_tagged
from multifold_bench.recorded import RowsBenchmark

LAYERS = ("lower", "upper")
DIRECTIONS = ("right", "left")


@final
class DeepTagger(Model):
    """Tags the words of a sentence by two stacks of two LSTMs, one to the right and one to the left.

    Examples
    --------
    >>> import multifold
    >>> model = DeepTagger(vocabulary=100, characters=30, tags=5, width=8)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.tag(fold, [17, (3, 1, 20), 2])   # the second word is spelled
    >>> fold.apply(model, [nodes])[0].shape
    (3, 5)
    """

    def __init__(self, vocabulary: int, characters: int, tags: int, width: int) -> None:
        initial = Initial(0, "float32")
        parameters = {
            "words": initial.embedding(vocabulary, width),
            "characters": initial.embedding(characters, width),
        }
        for level, size in (("sentence", width), ("word", width // 2)):
            parameters |= {f"{level}.begin_h": initial.state(size), f"{level}.begin_c": initial.state(size)}
            for direction in DIRECTIONS:
                parameters |= initial.lstm(f"{level}.{direction}.lower", width, size)
                parameters |= initial.lstm(f"{level}.{direction}.upper", size, size)
        parameters |= initial.linear("hidden", 2 * width, width)
        parameters |= initial.linear("output", width, tags)
        super().__init__(parameters)

    def look_up(self, word: Array) -> Array:
        """Return the vectors of words: ids ``(n,)`` give ``(n, width)``."""
        return ops.take(self.words, word)

    def look_up_character(self, character: Array) -> Array:
        """Return the vectors of characters: ids ``(n,)`` give ``(n, width)``."""
        return ops.take(self.characters, character)

    def begin(self, level: str) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before a ``"sentence"`` or a ``"word"``: one row for all."""
        group = getattr(self, level)
        return group.begin_h, group.begin_c

    def step(
        self, x: Array, h: Array, c: Array, level: str, direction: str, layer: str
    ) -> tuple[Array, Array]:
        """Return the state after one more vector; which LSTM it is, is static."""
        return lstm(getattr(getattr(getattr(self, level), direction), layer), x, h, c)

    def join(self, right: Array, left: Array) -> Array:
        """Return the vectors of spelled words from the last states of both directions."""
        return ops.concat([right, left], axis=1)

    def logits(self, right: Array, left: Array) -> Array:
        """Return the scores of the tags from the states of both directions: ``(n, tags)``."""
        return linear(self.output, ops.tanh(linear(self.hidden, right, left)))

    def tag(self, fold: Any, words: Sequence[int | Sequence[int]]) -> list[Any]:
        """Record a sentence, words by their ids and rare ones by those of their characters."""
        vectors = [
            fold.add("look_up", word) if isinstance(word, int) else self._spell(fold, word)
            for word in words
        ]
        right, left = self._read(fold, vectors, "sentence")
        return [fold.add("logits", *states) for states in zip(right, left, strict=True)]

    def _spell(self, fold: Any, characters: Sequence[int]) -> Any:
        vectors = [fold.add("look_up_character", character) for character in characters]
        right, left = self._read(fold, vectors, "word")
        return fold.add("join", right[-1], left[0])

    def _read(self, fold: Any, vectors: Sequence[Any], level: str) -> tuple[list[Any], list[Any]]:
        begin = fold.add("begin", level).split(2)

        def read(vectors: Sequence[Any], direction: str) -> list[Any]:
            for layer in LAYERS:
                h, c = begin
                states = []
                for x in vectors:
                    h, c = fold.add("step", x, h, c, level, direction, layer).split(2)
                    states.append(h)
                vectors = states
            return states

        return read(vectors, "right"), read(vectors[::-1], "left")[::-1]


def sentence(rng: Rng, rare: float) -> list[Any]:
    """Draw a sentence of 3 to 60 words, 24 on average, of which some are spelled."""
    return [word for word, _ in sample_tagged(rng, rare)]


def read(path: PathLike | None, limit: int, tell: Tell, rare: float, name: str) -> Examples:
    """Draw sentences, a share of whose words is rare."""
    no_files(path, name)
    return drawn(partial(sentence, rare=rare), WORDS, CLASSES)


@final
class DeepTaggerBenchmark(RowsBenchmark):
    """Tags every word of a sentence."""

    family = "deep_tagger"

    def model(self) -> Model:
        return DeepTagger(self.examples.words, CHARACTERS, self.examples.classes, self.width)

    def record(self, fold: Any, words: Sequence[Any]) -> Any:
        return self.program.tag(fold, words)


WORKLOADS = {
    "deep-tagger": Workload(partial(read, rare=0.0, name="deep-tagger"), DeepTaggerBenchmark),
    "deep-tagger-spelling": Workload(
        partial(read, rare=0.36, name="deep-tagger-spelling"), DeepTaggerBenchmark
    ),
}
"""By name."""
