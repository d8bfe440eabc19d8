"""Lattices of LSTM cells, one for each arc, be it a character or a word; where arcs meet, states add up.

In `multifold_bench.models.LatticeLSTM`, the lattice of Zhang and Yang, a softmax weighs the arcs instead.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import multifold
from multifold import ops
from multifold._measure.benchmark import Examples, Tell, Workload
from multifold._measure.files import PathLike
from multifold.backend import Array, Ragged
from multifold.models import Model
from multifold.models.layers import Initial, lstm
from multifold.models.model import Classifier
from multifold_bench.examples import drawn, no_files
from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS
from multifold_bench.graphs.sequences import sample_lattice
from multifold_bench.recorded import RowsBenchmark

Places = Sequence[tuple[int, Sequence[tuple[int, int]]]]
"""For each character its id, and of each word that ends there the place where it begins, and its id."""


@final
class LatticeOfLSTMs(Classifier):
    """A lattice of LSTM cells, one for characters and one for words.

    Examples
    --------
    >>> import multifold
    >>> model = LatticeOfLSTMs(characters=50, words=20, tags=4, width=8)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.tag(fold, [(7, ()), (9, ()), (3, ((0, 11), (1, 4)))])
    >>> fold.apply(model, [nodes])[0].shape
    (3, 4)
    """

    def __init__(self, characters: int, words: int, tags: int, width: int) -> None:
        initial = Initial(0, "float32")
        parameters = {
            "characters": initial.embedding(characters, width),
            "words": initial.embedding(words, width),
            "begin.h": initial.state(width),
            "begin.c": initial.state(width),
            **initial.lstm("character", width, width),
            **initial.lstm("word", width, width),
            **initial.linear("output", width, tags),
        }
        super().__init__(parameters)

    def start(self) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before the first character; one row."""
        return self.begin.h, self.begin.c

    def step(self, character: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return what characters, ids ``(n,)``, make of the states before them, ``(n, width)``."""
        return lstm(self.character, ops.take(self.characters, character), h, c)

    def jump(self, word: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return what words, ids ``(n,)``, make of the states after their first characters."""
        return lstm(self.word, ops.take(self.words, word), h, c)

    def meet(self, h: Ragged, c: Ragged) -> tuple[Array, Array]:
        """Return the sums of the states of all arcs that end at one place."""
        return ops.segment_sum(h.values, h), ops.segment_sum(c.values, c)

    def tag(self, fold: Any, places: Places) -> list[Any]:
        """Record a lattice; return the `logits` of its characters."""
        state = fold.add("start").split(2)
        states: list[Any] = []
        for character, words in places:
            arcs = [fold.add("step", character, *state).split(2)]
            arcs += [fold.add("jump", word, *states[first]).split(2) for first, word in words]
            state = arcs[0]
            if len(arcs) > 1:
                h, c = zip(*arcs, strict=True)
                state = fold.add("meet", multifold.ragged(h), multifold.ragged(c)).split(2)
            states.append(state)
        return [fold.add("logits", h) for h, _ in states]


def read(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Draw sentences of characters in which words of a lexicon begin and end."""
    no_files(path, "lattice-lstm")
    return drawn(sample_lattice, CHARACTERS, CLASSES)


@final
class LatticeBenchmark(RowsBenchmark):
    """Every character of a lattice is tagged."""

    family = "lattice_lstm"

    def model(self) -> Model:
        return LatticeOfLSTMs(self.examples.words, WORDS, self.examples.classes, self.width)

    def record(self, fold: Any, places: Places) -> Any:
        return self.program.tag(fold, places)


WORKLOADS = {"lattice-lstm": Workload(read, LatticeBenchmark)}
"""By name."""
