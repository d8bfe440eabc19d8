"""The source of functions as syntax trees, which can be changed and compiled again.

A tree is taken for the source of a function only if it compiles to the very code that the function has: a
file may have been changed since it was imported, and several functions may stand in one line.

>>> source = source_of(textwrap.indent)
>>> source.tree.name, source_of(len)
('indent', None)
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import symtable
import textwrap
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any

from multifold.lazy.candidates import codes_in
from multifold.lazy.statements import with_fields

FUTURE = sum([getattr(__future__, name).compiler_flag for name in __future__.all_feature_names])
"""The flags of code that say which ``from __future__ import`` it was compiled with."""

NO_PLAIN_FUNCTION = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class FunctionSource:
    """The source of a function, as a tree.

    Parameters
    ----------
    function : function
        The function.
    tree : ast.FunctionDef
        Its source.
    imported : list of str
        Names that its module imports: Python compiles calls of what they have in another way.
    """

    def __init__(self, function: FunctionType, tree: ast.FunctionDef, imported: Sequence[str]) -> None:
        self.function = function
        self.tree = tree
        self.imported = imported

    def compiled(self, tree: ast.FunctionDef, around: Iterable[str]) -> CodeType:
        """Return the code of a function that stands where this one does.

        ``around`` are variables of functions around it, which it may use.
        """
        code = self.function.__code__
        around = [*around]
        # Where it names itself, it means what the module has, unless it stands in a function.
        itself = [] if tree.name in around else [ast.Global([tree.name])]
        body: ast.stmt = function_tree("around", around, [*itself, tree])
        *_, owner, _ = ["", *self.function.__qualname__.split(".")]
        if owner.isidentifier():  # in a class Python takes ``self.__x`` for ``self._Class__x``
            body = with_fields(ast.parse("class A: ...").body[0], name=owner, body=[body])
        names = [ast.Import([ast.alias(name)]) for name in self.imported]
        module = ast.Module([*names, body], [])
        for x in (*names, body):
            ast.copy_location(x, tree)
        ast.fix_missing_locations(module)
        flags = code.co_flags & FUTURE
        compiled = compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True)
        return next(x for x in codes_in(compiled) if x.co_name == tree.name)


def source_of(function: Any) -> FunctionSource | None:
    """Return the source of a function; None if there is none, or for a generator or a coroutine."""
    if not isinstance(function, FunctionType) or function.__code__.co_flags & NO_PLAIN_FUNCTION:
        return None
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(tree, ast.FunctionDef):
        return None
    ast.increment_lineno(tree, first - 1)
    source = FunctionSource(function, tree, imported_in(function))
    code = function.__code__
    return source if do_the_same(source.compiled(tree, code.co_freevars), code) else None


def imported_in(function: FunctionType) -> tuple[str, ...]:
    """Return the names that the module of a function imports, as its file tells."""
    return imports_of("".join(inspect.findsource(function)[0]))


@functools.lru_cache(maxsize=64)
def imports_of(text: str) -> tuple[str, ...]:
    """Return the names that the text of a module imports, without those of ``import *``.

    >>> imports_of("import torch.nn as nn, os.path; from math import *")
    ('nn', 'os')
    """
    try:
        names = symtable.symtable(text, "module", "exec").get_symbols()
    except (SyntaxError, ValueError):
        return ()
    return tuple([x.get_name() for x in names if x.is_imported()])


def do_the_same(code: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same, wherever they stand and whatever they are called."""
    codes, others = [*codes_in(code)], [*codes_in(other)]
    return len(codes) == len(others) and all(
        what_does(x) == what_does(y) for x, y in zip(codes, others, strict=True)
    )


def what_does(code: CodeType) -> tuple[Any, ...]:
    """Return what a code object does: instructions, parameters, names, and constants that are no code."""
    constants = [repr(x) for x in code.co_consts if not isinstance(x, CodeType)]
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    flags = code.co_flags & ~inspect.CO_NESTED
    return code.co_code, code.co_exceptiontable, flags, counts, names, constants


def function_tree(name: str, parameters: Sequence[str], body: list[Any]) -> ast.FunctionDef:
    """Return a function with some parameters, as a tree."""
    arguments = ast.arguments([], [ast.arg(x) for x in parameters], None, [], [], None, [])
    # Later versions of Python have more fields, which are empty here.
    empty: Any = ast.parse("def f(): ...").body[0]
    found: ast.FunctionDef = with_fields(empty, name=name, args=arguments, body=body)
    return found
