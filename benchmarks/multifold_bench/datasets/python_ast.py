"""Functions as syntax trees, compared by value; the core's reader finds them.

``multifold compare`` reads the same files, so `multifold._measure.python_ast` says which functions count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multifold._measure import python_ast
from multifold._measure.files import PathLike, Progress
from multifold._measure.python_ast import SIZES, SOURCE, Function, files
from multifold_bench.datasets.trees import Tree

__all__ = ["SIZES", "SOURCE", "Function", "SyntaxTree", "files", "read"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SyntaxTree(Tree):
    """A node of a syntax tree: the name of its type in `ast`, and its children in their order."""

    name: str
    children: tuple[SyntaxTree, ...] = ()


def read(path: PathLike | None = None, progress: Progress | None = None) -> Iterator[Function]:
    r"""Read the functions of all Python files in a folder; see `multifold._measure.python_ast.read`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "m.py").write_text("def get_sum(xs):\n    return 1 + sum(x * x for x in xs)")
    >>> function, = read(folder)
    >>> function.word, function.tree
    ('get', SyntaxTree(name='FunctionDef', children=<2>))
    """
    return python_ast.read(path, SyntaxTree, progress)
