"""Random sentences and the models that read them word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS, Node, Recorder, Rng, draw_length


def sentence(rng: Rng) -> tuple[int, ...]:
    """Draw the words of a sentence."""
    return tuple(rng.integers(WORDS, size=rng.integers(3, 61)).tolist())


def chain(fold: Recorder, words: Sequence[int]) -> list[Node]:
    """Classify a sentence by the last state of an LSTM."""
    states = run_cell(fold, "cell", [fold.add("embed", word) for word in words])
    return [fold.add("logits", states[-1][0])]


def run_cell(fold: Recorder, cell: str, inputs: Sequence[Node], state: Any = None) -> list[Any]:
    """Run an LSTM cell along a sequence; return its state ``(h, c)`` after each input."""
    state = fold.add("begin").split(2) if state is None else state
    states = []
    for x in inputs:
        state = fold.add(cell, x, *state).split(2)
        states.append(state)
    return states


def bidirectional(fold: Recorder, layer: int, inputs: Sequence[Node]) -> list[Node]:
    """Run one layer in both directions and join the two states of each place."""
    begin = fold.add("begin").split(2)
    forward = run_cell(fold, f"forward_{layer}", inputs, begin)
    backward = run_cell(fold, f"backward_{layer}", inputs[::-1], begin)[::-1]
    return [
        fold.add(f"join_{layer}", left, right)
        for (left, _), (right, _) in zip(forward, backward, strict=True)
    ]


def sample_tagged(rng: Rng, rare: float) -> tuple[Any, ...]:
    """Draw a sentence: for each word its id or, if it is rare, its characters; and its tag."""
    words = []
    for _ in range(draw_length(rng, 24.4, 10.0, 3, 60)):
        word: Any = int(rng.integers(WORDS))
        if rare and rng.random() < rare:
            word = tuple(rng.integers(CHARACTERS, size=rng.integers(3, 13)).tolist())
        words.append((word, int(rng.integers(CLASSES))))
    return tuple(words)


def spell(fold: Recorder, characters: Sequence[int]) -> Node:
    """Embed a rare word by its characters, read in both directions."""
    inputs = [fold.add("embed_character", character) for character in characters]
    begin = fold.add("begin_word").split(2)
    left, _ = run_cell(fold, "character_forward", inputs, begin)[-1]
    right, _ = run_cell(fold, "character_backward", inputs[::-1], begin)[-1]
    return fold.add("join_word", left, right)


def tag(fold: Recorder, sentence: Sequence[Any]) -> list[Node]:
    """Record a tagger with two bidirectional layers; a loss at each word."""
    states = [
        spell(fold, word) if isinstance(word, tuple) else fold.add("embed", word) for word, _ in sentence
    ]
    for layer in (1, 2):
        states = bidirectional(fold, layer, states)
    return [
        fold.add("loss", fold.add("logits", state), label)
        for state, (_, label) in zip(states, sentence, strict=True)
    ]


def sample_translation(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw two sentences of unequal lengths."""
    source, target = (rng.integers(WORDS, size=rng.integers(4, 41)).tolist() for _ in range(2))
    return tuple(source), tuple(target)


def translate(fold: Recorder, pair: tuple[Sequence[int], Sequence[int]]) -> list[Node]:
    """Record an encoder and a decoder; a loss at each word of the second sentence."""
    source, target = pair
    state = run_cell(fold, "encode", [fold.add("embed_source", word) for word in source])[-1]
    inputs = [fold.add("embed_target", word) for word in target]
    states = run_cell(fold, "decode", inputs, state)
    return [
        fold.add("loss", fold.add("logits", hidden), word)
        for (hidden, _), word in zip(states, target, strict=True)
    ]


def sample_lattice(rng: Rng) -> tuple[Any, ...]:
    """Draw characters, each with the words of a lexicon that end there: (first place, word id)."""
    places = []
    for place in range(draw_length(rng, 44.0, 12.0, 5, 90)):
        starts = [place - back for back in (1, 2, 3) if back <= place and rng.random() < 0.1]
        words = tuple((start, int(rng.integers(WORDS))) for start in starts[:2])
        places.append((int(rng.integers(CHARACTERS)), words))
    return tuple(places)


def lattice(
    fold: Recorder, places: Sequence[Any], gather: Callable[[Sequence[Node]], Any] = list
) -> list[Node]:
    """Record a lattice LSTM (Zhang and Yang, ACL 2018): words jump over the characters in them.

    ``gather`` makes the operand that holds the rows to add up: a list has one type per arity, a
    `multifold.ragged` one for all.
    """
    hidden, cell = fold.add("begin").split(2)
    states: list[tuple[Node, Node]] = []
    for character, words in places:
        x = fold.add("embed", character)
        gate, candidate, output = fold.add("character_cell", x, hidden).split(3)
        gates = [gate]
        cells = [candidate]
        for start, word in words:
            jumped = fold.add("word_cell", fold.add("embed_word", word), *states[start])
            gates.append(fold.add("link", x, jumped))
            cells.append(jumped)
        hidden, cell = fold.add("merge", cell, output, gather(gates), gather(cells)).split(2)
        states.append((hidden, cell))
    return [fold.add("logits", hidden) for hidden, _ in states]


def sample_nested(rng: Rng) -> tuple[tuple[int, ...], ...]:
    """Draw sentences as lists of word ids: 20 to 40 of 20 to 40."""
    return tuple(
        tuple(rng.integers(WORDS, size=rng.integers(20, 41)).tolist()) for _ in range(rng.integers(20, 41))
    )


def nested(fold: Recorder, sentences: Sequence[Sequence[int]]) -> list[Node]:
    """Record an RNN whose every step runs another RNN, which starts from its state."""
    outer = fold.add("begin")
    for sentence in sentences:
        inner = outer
        for word in sentence:
            inner = fold.add("inner", word, inner)
        outer = fold.add("outer", outer, inner)
    return [fold.add("logits", outer)]
