"""Seeded workloads: the graphs that schedules are compared on, recorded as a user would do it.

A `RandomGraphs` draws examples (plain tuples of numbers, the same for the same seed) and records one at
a time through ``fold.add``, so it serves whatever has that method: a `Fold`, an `Unfold`, the
recorder of a trace. Lengths and shapes are drawn from distributions chosen so that a minibatch of
the default size has about as many calls, types and levels as the data it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from multifold.operands import ragged

Rng = np.random.Generator
Example = Any
"""What one call of `RandomGraphs.sample` draws: tuples of numbers, picklable and comparable."""
Recorder = Any
"""Anything with ``add(op, *operands, **static) -> Node``."""
Node = Any

WORDS = 1000
"""Word ids run from 0 to ``WORDS - 1``."""
CHARACTERS = 64
CLASSES = 5


@dataclass(frozen=True)
class RandomGraphs:
    """A kind of graph, drawn at random.

    Attributes
    ----------
    sample : callable
        ``sample(rng) -> example`` draws one example.
    record : callable
        ``record(fold, example) -> nodes`` records it and returns its outputs, a list of nodes.
    batch : int
        The number of examples in a minibatch, unless another one is asked for.
    optimal : bool
        Whether typed levels are known to reach the lower bound of launches on all its graphs.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> outputs = GRAPHS["early-exit"](fold, seed=0, batch=8)
    >>> len(outputs), fold.schedule([outputs]).certificate
    (8, 'optimal')
    """

    sample: Callable[[Rng], Example]
    record: Callable[[Recorder, Example], list[Node]]
    batch: int
    optimal: bool

    def examples(self, seed: int = 0, batch: int | None = None) -> list[Example]:
        """Draw the examples of a minibatch; the same seed draws the same ones."""
        rng = np.random.default_rng(seed)
        return [self.sample(rng) for _ in range(self.batch if batch is None else batch)]

    def __call__(self, fold: Recorder, seed: int = 0, batch: int | None = None) -> list[Node]:
        """Record a minibatch and return the outputs of all its examples, one list of nodes."""
        return [node for example in self.examples(seed, batch) for node in self.record(fold, example)]


# ---- trees ---------------------------------------------------------------------------------------
#
# A tree is the list of its nodes, children first: a word id at a leaf, and behind two subtrees the
# name of the op that joins them. A loop with a stack then does what recursion does, at any depth.

Tree = tuple[int | str, ...]
Split = Callable[[Rng, int], int]
"""Draws how many of a tree's leaves are in its left subtree."""


def draw_tree(rng: Rng, leaves: int, split: Split, ops: Sequence[str] = ("children",)) -> Tree:
    """Draw a binary tree with that many leaves; each inner node gets one of ``ops`` at random."""
    nodes: list[int | str] = []
    sizes = [leaves]
    while sizes:
        size = sizes.pop()
        if size == 1:
            nodes.append(int(rng.integers(WORDS)))
        else:
            left = split(rng, size)
            nodes.append(ops[int(rng.integers(len(ops)))] if len(ops) > 1 else ops[0])
            sizes += [left, size - left]
    return tuple(reversed(nodes))  # root first and last child first, read backwards


def uniform_split(rng: Rng, leaves: int) -> int:
    """Cut anywhere with equal probability: trees of about ``4.3 log(leaves)`` levels at most."""
    return int(rng.integers(1, leaves))


def parse_split(rng: Rng, leaves: int) -> int:
    """Cut like a parser of English: often one word is split off on the left, else anywhere."""
    return 1 if rng.random() < 0.65 else uniform_split(rng, leaves)


def balanced_split(rng: Rng, leaves: int) -> int:
    """Cut in the middle."""
    return leaves // 2


def comb_split(rng: Rng, leaves: int) -> int:
    """Split one word off on the left: a tree as deep as it can be."""
    return 1


def draw_length(rng: Rng, mean: float, spread: float, low: int, high: int) -> int:
    """Draw a length from a normal distribution, cut off at both ends."""
    return int(np.clip(round(rng.normal(mean, spread)), low, high))


def sentence_tree(rng: Rng, ops: Sequence[str] = ("children",)) -> Tree:
    """Draw a tree as long and as deep as those of the Stanford Sentiment Treebank."""
    return draw_tree(rng, draw_length(rng, 20.5, 9.0, 2, 56), parse_split, ops)


def tree_states(fold: Recorder, tree: Tree, leaf: Callable[[Recorder, int], Node]) -> list[Any]:
    """Record a Tree-LSTM; return the states ``(h, c)`` of all nodes, the root's last."""
    states: list[tuple[Node, Node]] = []
    stack: list[tuple[Node, Node]] = []
    for node in tree:
        if isinstance(node, str):
            right, left = stack.pop(), stack.pop()
            state = fold.add(node, *left, *right).split(2)
        else:
            state = leaf(fold, node).split(2)
        stack.append(state)
        states.append(state)
    return states


def embedded_leaf(fold: Recorder, word: int) -> Node:
    """Look the word up in a call of its own, as a model with a shared embedding does."""
    return fold.add("leaf", fold.add("embed", word))


def word_leaf(fold: Recorder, word: int) -> Node:
    """Let the cell of the leaves look the word up."""
    return fold.add("leaf", word)


def output_at_root(
    fold: Recorder, tree: Tree, leaf: Callable[[Recorder, int], Node] = embedded_leaf
) -> list[Node]:
    """Classify a tree by the state of its root."""
    hidden, _ = tree_states(fold, tree, leaf)[-1]
    return [fold.add("logits", hidden)]


def output_at_every_node(fold: Recorder, tree: Tree) -> list[Node]:
    """Classify every subtree."""
    return [fold.add("logits", hidden) for hidden, _ in tree_states(fold, tree, embedded_leaf)]


def matrix_vector(fold: Recorder, tree: Tree) -> list[Node]:
    """Record MV-RNN (Socher et al., EMNLP 2012), each operation a call of its own.

    A phrase has a vector and a matrix. With those of its parts, (a, A) and (b, B), its vector is
    ``tanh(V (B a) + W (A b))`` and its matrix ``M [A; B]``; the root needs no matrix.
    """
    stack: list[tuple[Node, Node]] = []
    for place, node in enumerate(tree, 1):
        if isinstance(node, str):
            (b, b_matrix), (a, a_matrix) = stack.pop(), stack.pop()
            # V or W: a number that the op looks up, so that both sides share a launch.
            left = fold.add("project", fold.add("apply", b_matrix, a), 0)
            right = fold.add("project", fold.add("apply", a_matrix, b), 1)
            vector, matrix = fold.add("tanh", fold.add("sum", left, right)), None
            if place < len(tree):
                stacked = fold.add("concat_matrices", a_matrix, b_matrix)
                matrix = fold.add("project_matrix", stacked)
        else:
            vector, matrix = fold.add("embed_vector", node), fold.add("embed_matrix", node)
        stack.append((vector, matrix))
    return [fold.add("logits", stack[0][0])]


# ---- sequences -----------------------------------------------------------------------------------


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
        gates, cells = [gate], [candidate]
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


# ---- control flow --------------------------------------------------------------------------------


def shift_reduce(fold: Recorder, tree: Tree) -> list[Node]:
    """Record SPINN (Bowman et al., ACL 2016) along a known parse: a tracker sees every step."""
    tracker = fold.add("begin").split(2)
    stack = [fold.add("empty").split(2)]
    for node in tree:
        if isinstance(node, str):
            tracker = fold.add("track", stack[-2][0], stack[-1][0], *tracker).split(2)
            right, left = stack.pop(), stack.pop()
            stack.append(fold.add("reduce", *left, *right, tracker[0]).split(2))
        else:
            word = fold.add("embed", node).split(2)
            tracker = fold.add("track", stack[-1][0], word[0], *tracker).split(2)
            stack.append(word)
    return [fold.add("logits", stack[-1][0])]


def sample_growth(rng: Rng) -> tuple[tuple[int, bool], ...]:
    """Draw a tree, parents first: for each node a label and whether it has children."""
    nodes = []
    levels = [0]
    while levels:
        level = levels.pop()
        grows = level < 2 or (level < 11 and rng.random() < 0.4)
        nodes.append((int(rng.integers(CLASSES)), grows))
        if grows:
            levels += [level + 1, level + 1]
    return tuple(nodes)


def grow(fold: Recorder, nodes: Sequence[tuple[int, bool]]) -> list[Node]:
    """Record a decoder of trees: told a label after guessing it, it goes on to the children."""
    pending = [fold.add("begin")]
    losses = []
    for label, grows in nodes:
        state = pending.pop()
        loss, state = fold.add("tell", fold.add("guess", state), state, label).split(2)
        losses.append(loss)
        if grows:
            pending += [fold.add("right", state), fold.add("left", state)]
    return losses


def sample_exit(rng: Rng) -> tuple[int, int]:
    """Draw an input and after how many of 12 layers its answer is certain enough."""
    return int(rng.integers(WORDS)), int(rng.integers(1, 13))


def early_exit(fold: Recorder, example: tuple[int, int]) -> list[Node]:
    """Record a deep network that asks after each layer whether to stop there.

    The answer weighs in how certain the network was on the way, after however many layers.
    """
    word, layers = example
    state = fold.add("embed", word)
    doubts = []
    for _ in range(layers):
        state = fold.add("layer", state)
        doubts.append(fold.add("confidence", state))
    return [fold.add("logits", state, ragged(doubts))]


def sample_grid(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the two sequences whose elements are compared, all with all."""
    first, second = (rng.integers(WORDS, size=rng.integers(4, 16)).tolist() for _ in range(2))
    return tuple(first), tuple(second)


def grid(fold: Recorder, pair: tuple[Sequence[int], Sequence[int]]) -> list[Node]:
    """Record a two-dimensional RNN: each cell reads its neighbours above and to the left."""
    rows, columns = ([fold.add("embed", word) for word in words] for words in pair)
    above = [fold.add("embed", 0)] * (len(columns) + 1)  # beyond the edges stands word 0
    for row in rows:
        states = above[:1]
        for place, column in enumerate(columns):
            states.append(fold.add("cell", row, column, above[place + 1], states[place]))
        above = states
    return [fold.add("logits", above[-1])]


def sample_dag(rng: Rng) -> tuple[tuple[int, ...], ...]:
    """Draw calls in layers of 16: (0,) for an input, else a type and the places that it reads.

    A type from 1 to 5 has one, two or three operands, all from the two layers before.
    """
    calls: list[tuple[int, ...]] = [(0,)] * 16
    for place in range(16, 355):
        kind = int(rng.integers(1, 6))
        layer = place - place % 16
        places = rng.integers(max(0, layer - 32), layer, size=1 + kind % 3)
        calls.append((kind, *places.tolist()))
    return tuple(calls)


def typed_dag(fold: Recorder, calls: Sequence[Sequence[int]]) -> list[Node]:
    """Record calls that read earlier results, whatever made them; every result is an output."""
    nodes: list[Node] = []
    for kind, *places in calls:
        operands = [nodes[place] for place in places] or [len(nodes)]
        nodes.append(fold.add(f"op_{kind}", *operands))
    return nodes


# ---- a model for the trees -----------------------------------------------------------------------


def tree_lstm(width: int, *, seed: int = 0) -> dict[str, Callable[..., Any]]:
    """Return NumPy ops that run `synthetic` and the other workloads that look words up at leaves.

    ``leaf(words) -> (h, c)``, ``children(left_h, left_c, right_h, right_c) -> (h, c)`` and
    ``logits(h)``, for words of shape ``(n,)`` and states of shape ``(n, width)``: a binary
    Tree-LSTM (Tai, Socher and Manning, ACL 2015).

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> outputs = GRAPHS["synthetic"](fold, batch=3)
    >>> fold.apply(tree_lstm(width=8), [outputs])[0].shape
    (3, 5)
    """
    rng = np.random.default_rng(seed)
    scale = width**-0.5
    embedding = rng.normal(size=(WORDS, 3 * width))
    weight = rng.normal(scale=scale, size=(2 * width, 5 * width))
    output = rng.normal(scale=scale, size=(width, CLASSES))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 0.5 * (np.tanh(0.5 * x) + 1)

    def leaf(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, o, u = np.split(embedding[words], 3, axis=1)
        c = sigmoid(i) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c

    def children(
        left_h: np.ndarray, left_c: np.ndarray, right_h: np.ndarray, right_c: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        gates = np.concatenate([left_h, right_h], axis=1) @ weight
        i, left, right, o, u = np.split(gates, 5, axis=1)
        c = sigmoid(i) * np.tanh(u) + sigmoid(left) * left_c + sigmoid(right) * right_c
        return sigmoid(o) * np.tanh(c), c

    def logits(h: np.ndarray) -> np.ndarray:
        return h @ output

    return {"leaf": leaf, "children": children, "logits": logits}


# ---- the registry --------------------------------------------------------------------------------


def random_tree(rng: Rng) -> Tree:
    """Draw a tree of 14 to 22 leaves, cut anywhere."""
    return draw_tree(rng, int(rng.integers(14, 23)), uniform_split)


def tree_of_128(rng: Rng, split: Split) -> Tree:
    """Draw a tree of 128 leaves."""
    return draw_tree(rng, 128, split)


def sentence(rng: Rng) -> tuple[int, ...]:
    """Draw the words of a sentence."""
    return tuple(rng.integers(WORDS, size=rng.integers(3, 61)).tolist())


WORD_TREES = partial(output_at_root, leaf=word_leaf)

GRAPHS: Mapping[str, RandomGraphs] = {
    "sst-root": RandomGraphs(sentence_tree, output_at_root, 64, optimal=True),
    "sst-nodes": RandomGraphs(sentence_tree, output_at_every_node, 64, optimal=True),
    "sst-two-cells": RandomGraphs(
        partial(sentence_tree, ops=("children_a", "children_b")),
        output_at_every_node,
        64,
        optimal=False,
    ),
    "mv-rnn": RandomGraphs(sentence_tree, matrix_vector, 64, optimal=True),
    "tagger": RandomGraphs(partial(sample_tagged, rare=0.0), tag, 64, optimal=True),
    "tagger-chars": RandomGraphs(partial(sample_tagged, rare=0.36), tag, 64, optimal=True),
    "lattice": RandomGraphs(sample_lattice, lattice, 64, optimal=False),
    "lattice-ragged": RandomGraphs(sample_lattice, partial(lattice, gather=ragged), 64, optimal=False),
    "encoder-decoder": RandomGraphs(sample_translation, translate, 64, optimal=True),
    "nested-rnn": RandomGraphs(sample_nested, nested, 8, optimal=False),
    "shift-reduce": RandomGraphs(sentence_tree, shift_reduce, 64, optimal=False),
    "top-down": RandomGraphs(sample_growth, grow, 64, optimal=False),
    "early-exit": RandomGraphs(sample_exit, early_exit, 64, optimal=True),
    "grid": RandomGraphs(sample_grid, grid, 16, optimal=True),
    "typed-dag": RandomGraphs(sample_dag, typed_dag, 16, optimal=False),
    "synthetic": RandomGraphs(random_tree, WORD_TREES, 128, optimal=True),
    "random-trees": RandomGraphs(partial(tree_of_128, split=uniform_split), WORD_TREES, 64, optimal=True),
    "balanced-trees": RandomGraphs(
        partial(tree_of_128, split=balanced_split), WORD_TREES, 64, optimal=True
    ),
    "comb-trees": RandomGraphs(partial(tree_of_128, split=comb_split), WORD_TREES, 64, optimal=True),
    "chains": RandomGraphs(sentence, chain, 64, optimal=True),
}
"""All workloads by name.

``synthetic`` stands for small trees of all shapes (128 of 14 to 22 leaves, cut uniformly: about
4,600 calls on 13 levels); ``random-trees`` and ``balanced-trees`` are the two cases, all different
and all alike, of TensorFlow Fold's own benchmark (128 leaves).
"""
