"""Readers of data sets: a path in, examples out, one module per format (see README.md here).

The files are never part of the package: their owners give them away, under terms of their own.
Every module says in `SOURCE` where to get them, and so does the error if they are missing.
`python_ast` needs no file: it reads the standard library of the Python that runs. It and `sst` lean
on readers of the core, since ``multifold compare`` reads such files, too.
"""

from __future__ import annotations

from multifold._measure.files import DatasetError
from multifold.models.layers import bottom_up, postorder
from multifold_bench.datasets import python_ast, sst
from multifold_bench.datasets.trees import Tree
from multifold_bench.datasets.words import WordIds

__all__ = ["DatasetError", "Tree", "WordIds", "bottom_up", "depth", "postorder", "python_ast", "sst"]


def depth(tree: Tree) -> int:
    """Return the number of edges on the longest path from the root to a leaf.

    Examples
    --------
    >>> from multifold_bench.datasets.snli import ParseTree
    >>> depth(ParseTree("trees"))
    0
    """
    return bottom_up(tree, lambda _, depths: 1 + max(depths) if depths else 0)
