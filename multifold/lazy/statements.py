r"""Statements of functions as syntax trees: what they assign, use and compute.

>>> tree = ast.parse("def f(x, n):\n    return g(x), n").body[0]
>>> print(ast.unparse(with_results(tree, {"x", "n"})))
def f(x, n):
    multifold_result_0 = g(x)
    return (multifold_result_0, n)
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from typing import Any, TypeGuard, TypeVar

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


def with_results(tree: ast.FunctionDef, own: Collection[str], updates: bool = False) -> ast.FunctionDef:
    """Return a function whose statements first compute, and then do something with the result.

    ``return f(x), y`` becomes ``result = f(x)`` and ``return result, y``; and likewise what is assigned to
    an attribute or entry, added to a variable, or appended to a list that is one. ``own`` are variables
    that nothing but the function itself can change. With ``updates``, ``x.at[i].set(f(x))`` becomes
    ``result = f(x)`` and ``x.at[i].set(result)``, if ``x`` and ``i`` are such variables (`is_update`).
    """
    numbers = count()

    def divided(block: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in block:
            blocks = {field: divided(inner) for field, inner in fields_with_blocks(statement)}
            found += with_result(with_fields(statement, **blocks), own, numbers, updates)
        return found

    return with_fields(tree, body=divided(tree.body))


def with_result(
    statement: ast.stmt, own: Collection[str], numbers: Iterator[int], updates: bool
) -> list[ast.stmt]:
    """Return one statement as those that compute, and the one that does something with the results."""
    if isinstance(statement, ast.AnnAssign) and statement.simple and statement.value is not None:
        return [ast.copy_location(ast.Assign([statement.target], statement.value), statement)]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append":
        target: ast.expr = call.func.value
        if not (isinstance(target, ast.Name) and target.id in own):
            return [statement]
        found, args = computed(call.args, own, numbers)
        return [*found, with_fields(statement, value=with_fields(call, args=args))]
    if updates and isinstance(statement, ast.Assign) and is_update(statement.value, own):
        update: ast.Call = statement.value
        found, args = computed(update.args, own, numbers)
        return [*found, with_fields(statement, value=with_fields(update, args=args))]
    if isinstance(statement, ast.Assign):
        computes_first = isinstance(statement.targets[0], (ast.Attribute, ast.Subscript))
    elif isinstance(statement, ast.AugAssign):
        computes_first = isinstance(statement.target, ast.Name) and statement.target.id in own
    else:
        computes_first = isinstance(statement, ast.Return)
    value: ast.expr | None = getattr(statement, "value", None) if computes_first else None
    if value is None:
        return [statement]
    if isinstance(value, ast.Tuple):
        found, entries = computed(value.elts, own, numbers)
        return [*found, with_fields(statement, value=with_fields(value, elts=entries))]
    found, entries = computed([value], own, numbers)
    return [*found, with_fields(statement, value=entries[0])]


def is_update(value: ast.expr, own: Collection[str]) -> TypeGuard[ast.Call]:
    """Return whether an expression is ``x.at[i].set(y)`` or the like, and ``y`` may be computed before.

    It may where ``x`` and ``i`` are variables of ``own``, or constants, which ``y`` does not assign to.
    """
    function = value.func if isinstance(value, ast.Call) else None
    entry = function.value if isinstance(function, ast.Attribute) else None
    at = entry.value if isinstance(entry, ast.Subscript) else None
    if not (isinstance(at, ast.Attribute) and at.attr == "at" and isinstance(at.value, ast.Name)):
        return False
    if any(isinstance(x, ast.NamedExpr) for x in ast.walk(value)):
        return False
    parts = [at.value, *ast.walk(entry.slice)]  # type: ignore[union-attr]
    return all(x.id in own if isinstance(x, ast.Name) else isinstance(x, INDICES) for x in parts)


INDICES = (ast.Constant, ast.Slice, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
"""Parts of an index that compute it of numbers."""


def computed(
    parts: Sequence[ast.expr], own: Collection[str], numbers: Iterator[int]
) -> tuple[list[ast.stmt], list[ast.expr]]:
    """Return statements that compute expressions, one after another, and variables for what they compute.

    What is a variable of ``own`` already, and what comes after all that computes, stays as it is.
    """
    if any(isinstance(x, ast.Starred) for x in parts):
        return [], [*parts]
    computes = [any(isinstance(x, (ast.Call, ast.BinOp)) for x in ast.walk(part)) for part in parts]
    found: list[ast.stmt] = []
    results: list[ast.expr] = []
    for number, x in enumerate(parts):
        is_fixed = isinstance(x, ast.Constant) or (isinstance(x, ast.Name) and x.id in own)
        if is_fixed or not any(computes[number:]):
            results.append(x)
            continue
        name = f"{RESULT}_{next(numbers)}"
        found.append(ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], x), x))
        results.append(ast.copy_location(ast.Name(name, ast.Load()), x))
    return found, results


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
        return name_of_call(x) in NUMBERS
    if isinstance(x, (ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List)):
        parts = [y for y in ast.iter_child_nodes(x) if isinstance(y, ast.expr)]
        return all(is_number(y, numbers) for y in parts)
    return isinstance(x, ast.Constant)


def uses_in(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each variable that something uses or deletes, once for each use."""
    yield from [x.id for x in names_under(tree) if not isinstance(x.ctx, ast.Store)]
    for x in ast.walk(tree):
        if isinstance(x, ast.AugAssign) and isinstance(x.target, ast.Name):
            yield x.target.id


def names_under(tree: ast.AST) -> Iterator[ast.Name]:
    """Yield all variables in a part of a tree, used or assigned, in their order in the text."""
    if isinstance(tree, ast.Name):
        yield tree
    for part in ast.iter_child_nodes(tree):
        yield from names_under(part)


def name_of_call(call: ast.Call) -> str | None:
    """Return the name by which something is called, ``"g"`` for ``f.x.g(y)``; None if it has none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None
