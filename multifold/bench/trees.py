"""Trees as a person would write them down, of word ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold.bench import generators


class BinaryTree:
    """A tree as a person would write it down: a word id at a leaf, two subtrees elsewhere."""

    __slots__ = ("left", "right", "word")

    def __init__(self, word: Any, left: Any = None, right: Any = None) -> None:
        self.word = word
        self.left = left
        self.right = right


class Branch:
    """A tree of any arity with a word id at every node."""

    __slots__ = ("children", "word")

    def __init__(self, word: int, children: Sequence[Branch]) -> None:
        self.word = word
        self.children = children


def binary_tree(nodes: generators.Tree) -> BinaryTree:
    """Return the tree behind a list of nodes, children first.

    Examples
    --------
    >>> binary_tree((7, 8, "children")).right.word
    8
    """
    stack: list[BinaryTree] = []
    for node in nodes:
        if isinstance(node, str):
            right, left = stack.pop(), stack.pop()
            stack.append(BinaryTree(None, left, right))
        else:
            stack.append(BinaryTree(node))
    return stack[0]
