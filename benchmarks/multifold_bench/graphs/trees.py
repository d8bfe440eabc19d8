"""Random trees and the models that run over them.

A tree is the list of its nodes, children first: a word id at a leaf, and after two subtrees the name of the
op that joins them. The tree "(7 8) 9" is ``(7, 8, "children", 9, "children")``. A loop with a stack then
does what recursion does, at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from multifold_bench.graphs.base import CLASSES, WORDS, Node, Recorder, Rng, draw_length

T = TypeVar("T")

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


def sentence_tree(rng: Rng, ops: Sequence[str] = ("children",)) -> Tree:
    """Draw a tree as long and as deep as those of the Stanford Sentiment Treebank."""
    return draw_tree(rng, draw_length(rng, 20.5, 9.0, 2, 56), parse_split, ops)


def built(tree: Tree, leaf: Callable[[int], T], pair: Callable[[T, T], T]) -> T:
    """Build a tree of objects from its list of nodes, and return its root.

    Parameters
    ----------
    tree : Tree
    leaf : callable
        ``leaf(word)`` makes a leaf.
    pair : callable
        ``pair(left, right)`` makes an inner node, whatever the name of its op is.

    Examples
    --------
    >>> built((7, 8, "children", 9, "children"), str, lambda left, right: f"({left} {right})")
    '((7 8) 9)'
    """
    stack: list[T] = []
    for node in tree:
        if isinstance(node, str):
            right = stack.pop()
            left = stack.pop()
            stack.append(pair(left, right))
        else:
            stack.append(leaf(node))
    return stack[0]


def tree_states(fold: Recorder, tree: Tree, leaf: Callable[[Recorder, int], Node]) -> list[Any]:
    """Record a Tree-LSTM; return the states ``(h, c)`` of all nodes, the root's last."""
    states: list[tuple[Node, Node]] = []
    stack: list[tuple[Node, Node]] = []
    for node in tree:
        if isinstance(node, str):
            right = stack.pop()
            left = stack.pop()
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
            b, b_matrix = stack.pop()
            a, a_matrix = stack.pop()
            # V or W: a number that the op looks up, so that both sides share a launch.
            left = fold.add("project", fold.add("apply", b_matrix, a), 0)
            right = fold.add("project", fold.add("apply", a_matrix, b), 1)
            vector = fold.add("tanh", fold.add("sum", left, right))
            matrix = None
            if place < len(tree):
                stacked = fold.add("concat_matrices", a_matrix, b_matrix)
                matrix = fold.add("project_matrix", stacked)
        else:
            vector = fold.add("embed_vector", node)
            matrix = fold.add("embed_matrix", node)
        stack.append((vector, matrix))
    return [fold.add("logits", stack[0][0])]


def random_tree(rng: Rng) -> Tree:
    """Draw a tree of 14 to 22 leaves, cut anywhere."""
    return draw_tree(rng, int(rng.integers(14, 23)), uniform_split)


def tree_of_128(rng: Rng, split: Split) -> Tree:
    """Draw a tree of 128 leaves."""
    return draw_tree(rng, 128, split)


def tree_lstm(width: int, *, seed: int = 0) -> dict[str, Callable[..., Any]]:
    """Return NumPy ops that run `synthetic` and the other workloads that look words up at leaves.

    ``leaf(words) -> (h, c)``, ``children(left_h, left_c, right_h, right_c) -> (h, c)`` and
    ``logits(h)``, for words of shape ``(n,)`` and states of shape ``(n, width)``: a binary
    Tree-LSTM (Tai, Socher and Manning, ACL 2015).

    Examples
    --------
    >>> import multifold
    >>> from multifold_bench.graphs import GRAPHS
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
