"""A tagger of two layers in each direction, in DyNet, which spells rare words in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def deep_tagger(net: Any, words: Sequence[Any]) -> list[Any]:
    """Tag the words of a sentence: ids, and for rare words lists of the ids of their characters."""
    vectors = [net.look_up("words", word) if isinstance(word, int) else spell(net, word) for word in words]
    right, left = read(net, vectors, "sentence", net.width)
    return [tag(net, *states) for states in zip(right, left, strict=True)]


def tag(net: Any, right: Any, left: Any) -> Any:
    """Score the tags of a word."""
    hidden = net.affine("hidden", net.dy.concatenate([right, left]))
    return net.affine("output", net.dy.tanh(hidden))


def spell(net: Any, characters: Sequence[int]) -> Any:
    """Return the vector of a word from its characters."""
    vectors = [net.look_up("characters", character) for character in characters]
    right, left = read(net, vectors, "word", net.width // 2)
    return net.dy.concatenate([right[-1], left[0]])


def read(net: Any, vectors: Sequence[Any], level: str, width: int) -> tuple[list[Any], list[Any]]:
    """Return the states of the upper layer at each vector, to the right and to the left."""
    begin = net.whole(f"{level}.begin_h"), net.whole(f"{level}.begin_c")

    def one_way(vectors: Sequence[Any], direction: str) -> list[Any]:
        for layer in ("lower", "upper"):
            h, c = begin
            states = []
            for x in vectors:
                h, c = cell(net, f"{level}.{direction}.{layer}", width, x, h, c)
                states.append(h)
            vectors = states
        return states

    return one_way(vectors, "right"), one_way(vectors[::-1], "left")[::-1]


def cell(net: Any, name: str, width: int, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    """Return the next state of an LSTM, as DyNet's own builder computes it."""
    dy = net.dy
    gates = net.affine(name, x, h)
    take_in, keep, out, candidate = (dy.pick_range(gates, i * width, (i + 1) * width) for i in range(4))
    c = dy.cmult(dy.logistic(keep), c) + dy.cmult(dy.logistic(take_in), dy.tanh(candidate))
    return dy.cmult(dy.logistic(out), dy.tanh(c)), c
