"""What models over trees have in common: they record each node after the nodes that it is made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from multifold.models.layers import parts, postorder
from multifold.models.model import Model

Pair = tuple[Any, Any]
"""What a model computes for each node: ``(h, c)``, or a vector and a matrix."""


class TreeModel(Model):
    """A model of trees, by default binary ones: ops ``leaf`` and ``children`` that return pairs."""

    def encode(self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")) -> Pair:
        """Record a tree and return the pair of its root: two nodes, such as those of ``h`` and ``c``.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        tree : object
            A node with the attributes ``word``, None above the leaves, and there ``left`` and ``right``; of
            models with any number of children ``word`` and ``children``, a tuple or list. May be as deep as
            it likes.
        word : callable, optional
            Takes a node; returns the id of its word. By default the word is the id.
        """
        return deque(self._pairs(fold, tree, word), maxlen=1).pop()

    def encode_all(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> list[Pair]:
        """Record a tree; return the pairs of all its nodes, children first. Arguments as for `encode`."""
        return list(self._pairs(fold, tree, word))

    def _pairs(self, fold: Any, tree: Any, word: Callable[[Any], int]) -> Iterator[Pair]:
        """Record a tree and yield the pairs of its nodes; the root's is the last.

        Pairs are dropped as soon as they were read, and `encode` keeps only the last one. Python's garbage
        collector looks through all living objects again and again, and a large batch has millions of nodes.
        """
        waiting: list[Pair] = []
        for node in postorder(tree, parts):
            if node.word is None:
                right = waiting.pop()
                left = waiting.pop()
                pair = fold.add("children", *left, *right).split(2)
            else:
                pair = fold.add("leaf", word(node)).split(2)
            waiting.append(pair)
            yield pair
