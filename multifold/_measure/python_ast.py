"""Functions as syntax trees: the running interpreter's own standard library, nothing to download.

A model reads the tree of node-type names that `ast` gives for a function, and guesses the first
word of its name (``get``, ``set``, ``is``, ...): a benchmark with thousands of trees of all shapes, on
any machine that runs Python. The order is that of the file names and of the lines in them, so two
runs of one interpreter see the same examples; another version of Python has other functions.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multifold._measure.files import DatasetError, PathLike, Progress, existing_folder

SOURCE = "leave the path out to read the standard library of the running Python."

LEFT_OUT = frozenset(
    [
        *("site-packages", "dist-packages", "lib-dynload"),
        *("test", "tests", "idle_test"),
        *("distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtledemo"),
    ]
)
"""Folders that are not read: what was installed, tests, and what many installations lack."""

SIZES = range(15, 351)
"""How many nodes a tree may have: smaller ones say nothing, larger ones would fill a minibatch."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIRST_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


Make = Callable[[str, tuple[Any, ...]], Any]
"""``make(name, children) -> tree``, where the name is that of the node's type in `ast`."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a Python file.

    Attributes
    ----------
    name : str
        Its name, ``_get_items`` for instance.
    word : str
        The first word of the name, in lower case: ``get``. What a model is to guess.
    tree : object
        Its definition, as `Make` made it; the names in it do not appear.
    path : str
        The file, relative to the folder that was read.
    line : int
        The line of its ``def``.
    """

    name: str
    word: str
    tree: Any
    path: str
    line: int


def read(path: PathLike | None, make: Make, progress: Progress | None = None) -> Iterator[Function]:
    r"""Return an iterator of the functions of all Python files in a folder and the folders below.

    Nested functions are examples of their own, after the function around them. Names that Python
    prescribes (``__init__``) say nothing about their author's choice and are left out, as are trees
    whose number of nodes is not in `SIZES`, and files that this Python cannot parse.

    Parameters
    ----------
    path : str or path or None
        The folder; the standard library if None.
    make : callable
        Makes each node of a tree; see `Make`.
    progress : callable, optional
        Called after each file with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no such folder, or no Python file in it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "m.py").write_text("def get_sum(xs):\n    return 1 + sum(x * x for x in xs)")
    >>> function, = read(folder, lambda name, children: (name, len(children)))
    >>> function.word, function.tree
    ('get', ('FunctionDef', 2))
    """
    folder = Path(sysconfig.get_path("stdlib")) if path is None else Path(path)
    return _functions(existing_folder(folder, SOURCE), files(folder), make, progress)


def files(path: PathLike | None = None) -> list[Path]:
    """Return the files that `read` reads, in its order, of the standard library if ``path`` is None.

    Raise a `DatasetError` if there are none.
    """
    folder = Path(sysconfig.get_path("stdlib")) if path is None else Path(path)
    found = sorted(
        file.relative_to(folder)
        for file in folder.rglob("*.py")
        if LEFT_OUT.isdisjoint(file.relative_to(folder).parts) and file.is_file()
    )
    if not found:
        raise DatasetError("expected Python files, found none.", SOURCE, path=folder)
    return [folder / file for file in found]


def first_word(name: str) -> str | None:
    """Return the first word of a name in lower case, or None if it has none.

    Examples
    --------
    >>> [first_word(name) for name in ("get_value", "_setUp", "isHTTP", "HTTPServer", "_")]
    ['get', 'set', 'is', 'http', None]
    """
    word = _FIRST_WORD.search(name)
    return word.group().lower() if word else None


def _functions(
    folder: Path, files: list[Path], make: Make, progress: Progress | None
) -> Iterator[Function]:
    done = 0
    for file in files:
        source = file.read_bytes()
        module = _parse(source)
        if module is not None:
            for definition, tree in _definitions(module, make):
                word = first_word(definition.name)
                if word is not None:
                    place = file.relative_to(folder).as_posix()
                    yield Function(definition.name, word, tree, place, definition.lineno)
        done += len(source)
        if progress is not None:
            progress(done)


def _parse(source: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warnings are about other people's code
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _definitions(
    module: ast.Module, make: Make
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Any]]:
    """Return an iterator of a module's functions and their trees, in the order of the file."""
    nodes: list[tuple[ast.AST, int]] = []  # every node before its children, the last child first
    stack: list[ast.AST] = [module]
    while stack:
        node = stack.pop()
        children = list(ast.iter_child_nodes(node))
        nodes.append((node, len(children)))
        stack.extend(children)
    found = []
    built: list[tuple[Any, int]] = []  # trees without a parent yet, and their sizes
    for node, arity in reversed(nodes):
        first = len(built) - arity
        tree = make(type(node).__name__, tuple(child for child, _ in built[first:]))
        size = 1 + sum(size for _, size in built[first:])
        built[first:] = [(tree, size)]
        if isinstance(node, _FUNCTIONS) and size in SIZES and not _prescribed(node.name):
            found.append((node, tree))
    # The loop reaches a function after the functions nested in it. Sort by position in the file, so that
    # the outer function comes first: ``def f`` on line 1, then ``def g`` on line 2, which stands in it.
    return iter(sorted(found, key=lambda pair: (pair[0].lineno, pair[0].col_offset)))


def _prescribed(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
