r"""Statements of functions as syntax trees: what they assign, use and compute.

>>> tree = ast.parse("def f(x, n):\n    return g(x), n").body[0]
>>> with_results(tree, {"x", "n"})
>>> print(ast.unparse(tree))
def f(x, n):
    multifold_result_0 = g(x)
    return (multifold_result_0, n)
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any, TypeVar

from multifold.lazy.writes import NUMBER_MAKERS

NUMBERS = {
    *("shape", "ndim", "dtype", "device", "size", "dim", "numel", "index", "count", "range", "enumerate"),
    *NUMBER_MAKERS,
}
"""Attributes, methods and functions that are numbers, or return them."""

BRANCHES = (
    *(ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Starred, ast.JoinedStr, ast.Not),
    *(ast.Is, ast.IsNot, ast.In, ast.NotIn),
)
"""What no piece holds: a part that may not run, or has variables of its own, or reads."""

Node = TypeVar("Node", bound=ast.AST)
"""A node of a syntax tree."""

RESULT = "multifold_result"
"""How variables begin that stand for what a statement computes before it does something with it."""


def with_results(tree: ast.FunctionDef, own: Collection[str]) -> None:
    """Divide statements of a function that do more than to assign to variables.

    ``return f(x), y`` becomes ``result = f(x)`` and ``return result, y``; and likewise what is assigned to
    an attribute or entry, added to a variable, or appended to a list that is one. ``own`` are variables
    that nothing but the function itself can change.
    """
    numbers = count()
    for block in [*blocks_in(tree.body)]:
        found: list[ast.stmt] = []
        for statement in block:
            parts = values_in(statement, own)
            computes = [any(isinstance(x, (ast.Call, ast.BinOp)) for x in ast.walk(part)) for part in parts]
            for number, x in enumerate(parts):
                # What comes before something that computes is looked up before that, too.
                is_fixed = isinstance(x, ast.Constant) or (isinstance(x, ast.Name) and x.id in own)
                if any(computes[number:]) and not is_fixed:
                    name = f"{RESULT}_{next(numbers)}"
                    found.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], x), x))
                    parts[number] = ast.copy_location(ast.Name(name, ast.Load()), x)
            # The list of a tuple, or of the arguments of a call, has them already.
            is_changed = has_one_value(statement) and len(parts) > 0
            found.append(with_fields(statement, value=parts[0]) if is_changed else statement)
        block[:] = found


def values_in(statement: ast.stmt, own: Collection[str]) -> list[ast.expr]:
    """Return the expressions that a statement computes before it does something with them.

    For ``return f(x), y`` that is the list of the entries of the tuple itself, so that who replaces an
    entry changes the statement; for ``return f(x)`` a list of one, and for ``pass`` an empty one.
    """
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        is_own = isinstance(call.func.value, ast.Name) and call.func.value.id in own
        is_plain = is_own and not any(isinstance(x, ast.Starred) for x in call.args)
        return call.args if is_plain else []
    if isinstance(statement, ast.Assign):
        is_first = isinstance(statement.targets[0], (ast.Attribute, ast.Subscript))
    elif isinstance(statement, ast.AugAssign):
        is_first = isinstance(statement.target, ast.Name) and statement.target.id in own
    else:
        is_first = isinstance(statement, ast.Return)
    value: ast.expr | None = getattr(statement, "value", None) if is_first else None
    if isinstance(value, ast.Tuple) and not any(isinstance(x, ast.Starred) for x in value.elts):
        return value.elts
    return [] if value is None else [value]


def has_one_value(statement: ast.stmt) -> bool:
    """Return whether a statement has a value that is no tuple."""
    kinds = ast.Return, ast.Assign, ast.AugAssign
    return isinstance(statement, kinds) and not isinstance(statement.value, ast.Tuple)


def with_fields(node: Node, **fields: Any) -> Node:
    """Return a copy of a node with other values in some fields."""
    return ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), **fields}), node)


def blocks_in(block: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield a block, and those of the branches and loops in it; not those in a try or with statement."""
    yield block
    for statement in block:
        for _, inner in fields_with_blocks(statement):
            yield from blocks_in(inner)


def fields_with_blocks(statement: ast.stmt) -> list[tuple[str, list[ast.stmt]]]:
    """Return the blocks of a branch or a loop, with the names of their fields; of anything else none."""
    if isinstance(statement, (ast.If, ast.For, ast.While)):
        return [("body", statement.body), ("orelse", statement.orelse)]
    return []


def numbers_in(tree: ast.FunctionDef) -> set[str]:
    """Return the variables of a function that stand for numbers, as what is assigned to them tells."""
    found: set[str] = set()
    for _ in range(2):  # what is computed of a number that stands further below
        for x in ast.walk(tree):
            if isinstance(x, ast.Assign) and is_number(x.value, found):
                found.update([name.id for target in x.targets for name in names_under(target)])
            elif isinstance(x, ast.For) and is_number(x.iter, found):
                target = x.target.elts[0] if isinstance(x.target, ast.Tuple) else x.target
                found.update([name.id for name in names_under(target)])
    return found


def is_number(x: ast.AST, numbers: Collection[str]) -> bool:
    """Return whether an expression is a number, a text or None; ``numbers`` are variables that are."""
    if isinstance(x, ast.Name):
        return x.id in numbers
    if isinstance(x, ast.Attribute):
        return x.attr in NUMBERS
    if isinstance(x, ast.Subscript):
        return is_number(x.value, numbers)
    if isinstance(x, ast.Call):
        return isinstance(x.func, (ast.Name, ast.Attribute)) and called_name(x.func) in NUMBERS
    if isinstance(x, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List)):
        parts = [y for y in ast.iter_child_nodes(x) if isinstance(y, ast.expr)]
        return all(is_number(y, numbers) for y in parts)
    return isinstance(x, ast.Constant)


def uses_in(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each variable that something uses or deletes, once for each use."""
    for x in ast.walk(tree):
        if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Store):
            yield x.id
        elif isinstance(x, ast.AugAssign) and isinstance(x.target, ast.Name):
            yield x.target.id


def names_under(tree: ast.AST) -> Iterator[ast.Name]:
    """Yield all variables in a part of a tree, in their order in the text."""
    if isinstance(tree, ast.Name):
        yield tree
    for part in ast.iter_child_nodes(tree):
        yield from names_under(part)


def called_name(function: ast.Name | ast.Attribute) -> str:
    """Return the name by which something is called, without what it is an attribute of."""
    return function.id if isinstance(function, ast.Name) else function.attr


def root_of_path(x: ast.expr) -> str | None:
    """Return ``"x"`` for ``x.part[0].name``; None for anything else, as ``x[f(0)]`` or ``f(x).part``."""
    while isinstance(x, (ast.Attribute, ast.Subscript)):
        if isinstance(x, ast.Subscript) and not all(map(is_plain_index, ast.walk(x.slice))):
            return None
        x = x.value
    return x.id if isinstance(x, ast.Name) else None


def is_plain_index(part: ast.AST) -> bool:
    """Return whether a part of an index neither branches nor calls anything but ``len``."""
    if isinstance(part, ast.Call):
        return isinstance(part.func, ast.Name) and part.func.id == "len"
    return not isinstance(part, BRANCHES)
