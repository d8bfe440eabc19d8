"""Readers of data sets: a path in, examples out, one module per format (see README.md here).

The files are never part of the package: their owners give them away, under terms of their own.
Every module says in `SOURCE` where to get them, and so does the error if they are missing.
`python_ast` needs no file: it reads the standard library of the Python that runs.
"""

from __future__ import annotations

from multifold.datasets.errors import DatasetError
from multifold.datasets.trees import Tree, bottom_up, depth, postorder
from multifold.datasets.vocabulary import Vocabulary

__all__ = ["DatasetError", "Tree", "Vocabulary", "bottom_up", "depth", "postorder"]
