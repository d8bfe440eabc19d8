"""Drawn trees as the objects that a person would write them down as."""

from __future__ import annotations

from multifold._compare.workloads import BinaryTree
from multifold_bench.graphs.trees import Tree


def binary_tree(nodes: Tree) -> BinaryTree:
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
