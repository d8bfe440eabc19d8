"""Tags for the words of a sentence, read in both directions; rare words are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, linear, lstm
from multifold.models.model import Model

State = tuple[Any, Any]


@final
class BiLSTMTagger(Model):
    """Tags every word of a sentence by a bidirectional LSTM.

    Frequent words are looked up; rare ones are read character by character, by another
    bidirectional LSTM. That is where sentences of one length come to differ in structure.

    Parameters
    ----------
    vocabulary, characters : int
        The numbers of word and character ids.
    tags : int
        The number of tags.
    width : int
        The width of the states in each direction.
    inputs : int
        The width of word vectors, which is even: half of it comes from each direction of spelling.
    character_inputs : int
        The width of character vectors.
    hidden : int
        The width of the layer below the tags.
    seed, dtype
        Of the initial values.

    References
    ----------
    Neubig et al., On-the-fly Operation Batching in Dynamic Computation Graphs, NIPS 2017, section 4
    ("BiLSTM tagger with character features").

    Examples
    --------
    >>> import multifold
    >>> model = BiLSTMTagger(vocabulary=100, characters=30, tags=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.tag_words(fold, [17, (3, 1, 20), 2])   # the second word is spelled
    >>> fold.apply(model, [nodes])[0].shape
    (3, 5)
    """

    def __init__(
        self,
        vocabulary: int,
        characters: int,
        tags: int,
        *,
        width: int = 50,
        inputs: int = 128,
        character_inputs: int = 20,
        hidden: int = 32,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        half = inputs // 2
        parameters = {
            "words": initial.embedding(vocabulary, inputs),
            "characters": initial.embedding(characters, character_inputs),
        }
        for level, below, size in (("sentence", inputs, width), ("word", character_inputs, half)):
            parameters |= {f"{level}.begin_h": initial.state(size)}
            parameters |= {f"{level}.begin_c": initial.state(size)}
            parameters |= initial.lstm(f"{level}.right", below, size)
            parameters |= initial.lstm(f"{level}.left", below, size)
        parameters |= initial.linear("hidden", 2 * width, hidden)
        parameters |= initial.linear("output", hidden, tags)
        super().__init__(parameters)

    def look_up(self, word: Array) -> Array:
        """Return the vectors of words: ids ``(n,)`` give ``(n, inputs)``."""
        return ops.take(self.words, word)

    def look_up_character(self, character: Array) -> Array:
        """Return the vectors of characters: ids ``(n,)`` give ``(n, character_inputs)``."""
        return ops.take(self.characters, character)

    def begin(self, level: str) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before a ``"sentence"`` or a ``"word"``: one row for all."""
        group = getattr(self, level)
        return group.begin_h, group.begin_c

    def step(self, x: Array, h: Array, c: Array, level: str, direction: str) -> tuple[Array, Array]:
        """Return the state after one more vector; level and direction are static."""
        return lstm(getattr(getattr(self, level), direction), x, h, c)

    def join(self, right: Array, left: Array) -> Array:
        """Return the vectors of spelled words from the last states of both directions."""
        return ops.concat([right, left], axis=1)

    def logits(self, right: Array, left: Array) -> Array:
        """Return the scores of the tags from the states of both directions: ``(n, tags)``."""
        return linear(self.output, ops.tanh(linear(self.hidden, self.join(right, left))))

    def tag_words(self, fold: Any, words: Sequence[int | Sequence[int]]) -> list[Any]:
        """Record a sentence and return the `logits` of its words.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        words : sequence
            For each word its id or, for a rare one, the ids of its characters.
        """
        vectors = [
            fold.add("look_up", word) if isinstance(word, (int, np.integer)) else self._spell(fold, word)
            for word in words
        ]
        right, left = self._read(fold, vectors, "sentence")
        return [fold.add("logits", *states) for states in zip(right, left, strict=True)]

    def _spell(self, fold: Any, characters: Sequence[int]) -> Any:
        vectors = [fold.add("look_up_character", character) for character in characters]
        right, left = self._read(fold, vectors, "word")
        return fold.add("join", right[-1], left[0])

    def _read(self, fold: Any, vectors: Sequence[Any], level: str) -> tuple[list[Any], list[Any]]:
        """Return the states at each vector, read to the right and to the left."""
        begin = fold.add("begin", level).split(2)

        def read(vectors: Sequence[Any], direction: str) -> list[Any]:
            h, c = begin
            states = []
            for x in vectors:
                h, c = fold.add("step", x, h, c, level, direction).split(2)
                states.append(h)
            return states

        return read(vectors, "right"), read(vectors[::-1], "left")[::-1]
