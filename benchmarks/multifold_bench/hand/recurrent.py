"""The tagger by hand: sequences sorted by length, so that those still running are the first rows of a step.

What differs between frameworks is four operations (`Tools`); the way is the same in all that run eagerly.
All inputs of a direction are gathered at once and cut into steps, and so are its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from multifold.backend import Array


class Tools(NamedTuple):
    """What a framework does with rows.

    Attributes
    ----------
    upload : callable
        ``upload(indices, sizes)`` brings index arrays to the device at once and cuts them.
    gather, split, concat : callable
        ``gather(x, rows)``, ``split(x, sizes)``, ``concat(xs)``.
    repeat : callable
        ``repeat(row, count)`` makes rows of one.
    """

    upload: Callable[[np.ndarray, Sequence[int]], Sequence[Array]]
    gather: Callable[[Array, Array], Array]
    split: Callable[[Array, Sequence[int]], Sequence[Array]]
    concat: Callable[[Sequence[Array]], Array]
    repeat: Callable[[Array, int], Array]


class Runs(NamedTuple):
    """Sequences by length, the longest first.

    Attributes
    ----------
    order : int64 array
        The sequences in that order.
    active : list of int
        How many are still running at each step.
    right, left : int64 arrays
        Which element of the sequences, laid end to end in that order, is read next: from step to
        step, and in each the running sequences in order.
    """

    order: np.ndarray
    active: list[int]
    right: np.ndarray
    left: np.ndarray


def runs_of(lengths: Sequence[int]) -> Runs:
    """Sort sequences by length and say which elements each step reads.

    Examples
    --------
    >>> runs = runs_of([1, 3])
    >>> runs.order.tolist(), runs.active, runs.right.tolist(), runs.left.tolist()
    ([1, 0], [2, 1, 1], [0, 3, 1, 2], [2, 3, 1, 0])
    """
    given = np.array(lengths, np.int64)
    order = np.argsort(-given, kind="stable")
    lasting = given[order]
    begins = np.cumsum(lasting) - lasting
    steps = np.arange(lasting[0] if len(lasting) else 0)
    active = np.searchsorted(-lasting, -steps, side="left")
    step = np.repeat(steps, active)
    which = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
    right, left = begins[which] + step, begins[which] + lasting[which] - 1 - step
    return Runs(order, active.tolist(), right, left)


class Prepared(NamedTuple):
    """A minibatch of sentences as index arrays, and the runs of its rare words and its sentences."""

    indices: np.ndarray
    sizes: list[int]
    words: Runs
    sentences: Runs


def prepare(sentences: Sequence[Sequence[Any]]) -> Prepared:
    """Prepare sentences of word ids and, for rare words, tuples of character ids.

    The index arrays are: ids of frequent words; characters of rare words as they are read to the
    right, then to the left; rows of the word vectors (frequent words, then rare ones) as sentences are
    read to the right, and to the left; rows of the outputs of either direction, in the order of
    the sentences.
    """
    words = [word for sentence in sentences for word in sentence]
    rare = [word for word in words if isinstance(word, tuple)]
    frequent = [word for word in words if not isinstance(word, tuple)]
    spelled = runs_of([len(word) for word in rare])
    characters = np.array([x for i in spelled.order.tolist() for x in rare[i]], np.int64)
    is_rare = np.array([isinstance(word, tuple) for word in words])
    vector = np.empty(len(words), np.int64)
    vector[~is_rare] = np.arange(len(frequent))
    rank = np.empty(len(rare), np.int64)
    rank[spelled.order] = np.arange(len(rare))
    vector[is_rare] = len(frequent) + rank

    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    runs = runs_of(lengths.tolist())
    begins = np.cumsum(lengths) - lengths
    lasting = lengths[runs.order]
    inside = np.arange(len(words)) - np.repeat(np.cumsum(lasting) - lasting, lasting)
    given = np.repeat(begins[runs.order], lasting) + inside  # sorted place -> place as given
    pieces = [
        np.array(frequent, np.int64),
        np.concatenate([characters[spelled.right], characters[spelled.left]]),
        vector[given[runs.right]],
        vector[given[runs.left]],
    ]
    for read in (runs.right, runs.left):
        output = np.empty(len(words), np.int64)
        output[given[read]] = np.arange(len(words))
        pieces.append(output)
    return Prepared(np.concatenate(pieces), [len(piece) for piece in pieces], spelled, runs)


def tagger(model: Any, sentences: Sequence[Sequence[Any]], tools: Tools) -> Array:
    """Return the logits of all words, sentence by sentence."""
    prepared = prepare(sentences)
    frequent, characters, right, left, order_right, order_left = tools.upload(
        prepared.indices, prepared.sizes
    )

    def read(vectors: Array, active: Sequence[int], begin: Any, level: str, direction: str) -> list[Array]:
        h, c = (tools.repeat(row, active[0]) for row in begin)
        states = []
        for x, count in zip(tools.split(vectors, active), active, strict=True):
            if count < len(h):
                h, c = h[:count], c[:count]
            h, c = model.step(x, h, c, level, direction)
            states.append(h)
        return states

    def spelled() -> Array:
        active, begin = prepared.words.active, model.begin("word")
        both = tools.split(model.look_up_character(characters), [prepared.sizes[1] // 2] * 2)
        last = []
        for vectors, direction in zip(both, ("right", "left"), strict=True):
            states = read(vectors, active, begin, "word", direction)
            ended = zip(states, [*active[1:], 0], active, strict=True)
            pieces = [h[running:] for h, running, count in ended if running < count]
            last.append(tools.concat(pieces[::-1]))
        return model.join(*last)

    vectors = [model.look_up(frequent)] if prepared.sizes[0] else []
    if prepared.words.active:
        vectors.append(spelled())
    table = tools.concat(vectors)
    begin = model.begin("sentence")

    def outputs(rows: Array, order: Array, direction: str) -> Array:
        vectors = tools.gather(table, rows)
        states = read(vectors, prepared.sentences.active, begin, "sentence", direction)
        return tools.gather(tools.concat(states), order)

    return model.logits(outputs(right, order_right, "right"), outputs(left, order_left, "left"))
