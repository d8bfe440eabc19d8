"""Lattice LSTM: characters in a row, and words that jump over the characters in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, gated, linear
from multifold.models.model import Classifier


@final
class LatticeLSTM(Classifier):
    """Tags every character of a sentence that is written without spaces.

    Parameters
    ----------
    characters, words : int
        The numbers of character ids and of ids of the lexicon's words.
    tags : int
        The number of tags.
    width : int
        The width of ``h`` and ``c``.
    inputs : int, optional
        The width of the vectors of characters and words; ``width`` by default.
    seed, dtype
        Of the initial values.

    References
    ----------
    Zhang and Yang, Chinese NER Using Lattice LSTM, ACL 2018, section 3.3 (one direction).

    Examples
    --------
    >>> import multifold
    >>> model = LatticeLSTM(characters=50, words=20, tags=4, width=8)
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = model.tag_characters(fold, [(7, ()), (9, ()), (3, ((0, 11), (1, 4)))])
    >>> fold.apply(model, [nodes])[0].shape
    (3, 4)
    """

    def __init__(
        self,
        characters: int,
        words: int,
        tags: int,
        width: int,
        *,
        inputs: int | None = None,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        inputs = width if inputs is None else inputs
        parameters = {
            "characters": initial.embedding(characters, inputs),
            "words": initial.embedding(words, inputs),
            "begin.h": initial.state(width),
            "begin.c": initial.state(width),
            **initial.linear("character", inputs + width, 3 * width),
            **initial.linear("word", inputs + width, 3 * width, slice(width, 2 * width)),
            **initial.linear("link", inputs + width, width),
            **initial.linear("output", width, tags),
        }
        super().__init__(parameters)

    def start(self) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before the first character; one row."""
        return self.begin.h, self.begin.c

    def jump(self, word: Array, h: Array, c: Array) -> Array:
        """Return what words bring to their last characters: ids ``(n,)`` give ``(n, width)``.

        ``h`` and ``c`` are the states after their first characters.
        """
        gates = linear(self.word, ops.take(self.words, word), h)
        (take_in, keep), candidate = gated(gates, 2)
        return keep * c + take_in * candidate

    def step(self, character: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` after characters, ids ``(n,)``, where no word ends."""
        _, take_in, out, candidate = self._read(character, h)
        c = (1 - take_in) * c + take_in * candidate
        return out * ops.tanh(c), c

    def merge(self, character: Array, h: Array, jumps: Ragged) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` after characters where words end, whose vectors `jump` brings.

        A softmax over the gates of the character and of the words says how much each counts.
        """
        x, take_in, out, candidate = self._read(character, h)
        read = ops.concat([ops.take(x, jumps.segment_ids), jumps.values], axis=1)
        link = ops.exp(ops.sigmoid(linear(self.link, read)))  # gates: no power is large
        own = ops.exp(take_in)
        total = own + ops.segment_sum(link, jumps)
        c = (own * candidate + ops.segment_sum(link * jumps.values, jumps)) / total
        return out * ops.tanh(c), c

    def _read(self, character: Array, h: Array) -> tuple[Array, Array, Array, Array]:
        x = ops.take(self.characters, character)
        (take_in, out), candidate = gated(linear(self.character, x, h), 2)
        return x, take_in, out, candidate

    def tag_characters(
        self, fold: Any, sentence: Sequence[tuple[int, Sequence[tuple[int, int]]]]
    ) -> list[Any]:
        """Record a sentence and return the `logits` of its characters.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        sentence : sequence of pairs
            For each character its id, and the words that end there: for each word the position of its
            first character, and its id.
        """
        h, c = fold.add("start").split(2)
        states: list[tuple[Any, Any]] = []
        for character, words in sentence:
            jumps = [fold.add("jump", word, *states[first]) for first, word in words]
            if jumps:
                h, c = fold.add("merge", character, h, multifold.ragged(jumps)).split(2)
            else:
                h, c = fold.add("step", character, h, c).split(2)
            states.append((h, c))
        return [fold.add("logits", h) for h, _ in states]
