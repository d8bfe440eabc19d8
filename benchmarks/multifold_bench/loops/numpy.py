"""Loops of NumPy, one example a call; the last is one where batching does not pay."""

# ruff: noqa: D101, D102 - the models are the known ones, and their methods say what they compute

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold._measure.workloads import BinaryTree
from multifold_bench.examples import binary_tree
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.sequences import sentence
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.loops import PlainLoop

Array = np.ndarray[Any, Any]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Return weights."""
    return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


class TreeNet:
    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.words = normal(rng, WORDS, width)
        self.weights, self.bias = normal(rng, 2 * width, width), normal(rng, width)
        self.scores = normal(rng, width, CLASSES)

    def leaf(self, word: Array) -> Array:
        return np.tanh(self.words[word])

    def join(self, left: Array, right: Array) -> Array:
        return np.tanh(np.concatenate([left, right], axis=1) @ self.weights + self.bias)

    def output(self, state: Array) -> Array:
        return state @ self.scores

    def encode(self, tree: BinaryTree) -> Array:
        if tree.left is None:
            return self.leaf(np.array([tree.word]))
        return self.join(self.encode(tree.left), self.encode(tree.right))

    def classify(self, tree: BinaryTree) -> Array:
        return self.output(self.encode(tree))


def trees(width: int, count: int) -> PlainLoop:
    """A recursive network over binary trees, with its output at the root."""
    rng = np.random.default_rng(0)
    model = TreeNet(width, rng)

    def encode(fold: Any, tree: BinaryTree) -> Any:
        if tree.left is None:
            return fold.add("leaf", tree.word)
        return fold.add("join", encode(fold, tree.left), encode(fold, tree.right))

    def record(fold: Any, tree: BinaryTree) -> Any:
        return fold.add("output", encode(fold, tree))

    return PlainLoop(model.classify, record, model, [binary_tree(sentence_tree(rng)) for _ in range(count)])


class Recurrent:
    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.words = normal(rng, WORDS, width)
        self.zeros = np.zeros((1, width), np.float32)
        self.gates, self.new = normal(rng, 2 * width, 2 * width), normal(rng, 2 * width, width)
        self.scores = normal(rng, width, CLASSES)

    def start(self) -> Array:
        return self.zeros

    def step(self, word: Array, h: Array) -> Array:
        x = self.words[word]
        keep, reset = np.split(sigmoid(np.concatenate([x, h], axis=1) @ self.gates), 2, axis=1)
        new = np.tanh(np.concatenate([x, reset * h], axis=1) @ self.new)
        return keep * h + (1 - keep) * new

    def output(self, h: Array) -> Array:
        return h @ self.scores

    def classify(self, words: Sequence[int]) -> Array:
        h = self.zeros
        for word in words:
            h = self.step(np.array([word]), h)
        return self.output(h)


def sequences(width: int, count: int) -> PlainLoop:
    """A GRU over sentences, with its output at the end."""
    rng = np.random.default_rng(0)
    model = Recurrent(width, rng)

    def record(fold: Any, words: Sequence[int]) -> Any:
        h = fold.add("start")
        for word in words:
            h = fold.add("step", word, h)
        return fold.add("output", h)

    return PlainLoop(model.classify, record, model, [sentence(rng) for _ in range(count)])


class Attention:
    def __init__(self, width: int, rng: np.random.Generator) -> None:
        self.keys, self.values = normal(rng, width, width), normal(rng, width, width)
        self.scores = normal(rng, width, CLASSES)

    def attend(self, x: Array) -> Array:
        found = np.exp(x @ self.keys @ np.swapaxes(x, -1, -2) / np.sqrt(x.shape[-1]))
        return found / found.sum(axis=-1, keepdims=True) @ (x @ self.values)

    def output(self, x: Array) -> Array:
        return x.mean(axis=-2) @ self.scores

    def classify(self, x: Array) -> Array:
        return self.output(self.attend(self.attend(x)))


def attention(width: int, count: int) -> PlainLoop:
    """Two layers of attention over texts of many lengths: few share one, and each is much work."""
    rng = np.random.default_rng(0)
    model = Attention(width, rng)

    def record(fold: Any, x: Array) -> Any:
        return fold.add("output", fold.add("attend", fold.add("attend", x)))

    lengths = rng.integers(20, 200, size=count).tolist()
    texts = [rng.normal(size=(1, length, width)).astype(np.float32) for length in lengths]
    return PlainLoop(model.classify, record, model, texts)
