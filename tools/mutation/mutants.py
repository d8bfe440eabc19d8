"""The mutants of a module: each is its syntax tree with one small mistake in it.

A mutant is named by its function and by the statement before and after the change, not by a line number,
so that the list of equivalent ones (`equivalent.toml`) outlives edits elsewhere. What no test could
or should notice is left alone: annotations, docstrings, decorators, imports, the ``strict=True`` of `zip`,
``typing.cast`` and unions of types.

Examples
--------
>>> for mutant in mutants(ast.parse("def first(x): return x[0] if x < 3 else None")):
...     print(mutant.after)
return None
return x[0] if x <= 3 else None
return x[0] if not x < 3 else None
return x[0] if x < 4 else None
return x[0] if x < 2 else None
return x[1] if x < 3 else None
"""

from __future__ import annotations

import ast
import builtins
import copy
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
OF_TYPES = {"cast", "TypeVar", "ParamSpec", "NewType"}
"""Functions whose arguments only a checker of types reads."""

Place = tuple[ast.AST, str, int | None]
"""A node of the tree: its parent, the parent's field, and the position where the field is a list."""


@dataclass(frozen=True)
class Spot:
    """What stands around a place."""

    function: str
    """Names of classes and functions, with dots."""
    statement: ast.stmt
    called: bool
    """Whether a call runs it, rather than the import of its module."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: where it is and how the statement reads before and after."""

    function: str
    before: str
    after: str
    line: int
    """Line of the statement."""
    lines: tuple[int, int]
    """First and last line of what changes: the tests that reach them may notice."""
    called: bool
    """Whether a call runs what changes, rather than the import of the module."""
    copy: int = 0
    """How many mutants of the function read alike and stand further up."""

    def key(self) -> str:
        """Return a text that stays the same while the function does."""
        return f"{self.function}: {self.before} => {self.after} [{self.copy}]"

    def rank(self, seed: int) -> str:
        """Return what a sample is sorted by: an edit changes the ranks of its own function only."""
        return hashlib.sha256(f"{seed} {self.key()}".encode()).hexdigest()


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """Walk the mutants of a tree."""
    seen: dict[str, int] = {}
    for spot, place, new in changes(tree):
        statement = spot.statement
        node, before = get(place), headline(statement)
        put(place, new)
        after = headline(new if node is statement else statement)
        put(place, node)
        mutant = Mutant(spot.function, before, after, statement.lineno, span(node), spot.called)
        mutant = replace(mutant, copy=seen.setdefault(mutant.key(), 0))
        seen[replace(mutant, copy=0).key()] += 1
        yield mutant


def mutated(tree: ast.Module, number: int) -> ast.Module:
    """Put the mistake of one mutant, counted from 0 in the order of `mutants`, into a tree."""
    _, place, new = next(itertools.islice(changes(tree), number, None))
    put(place, new)
    return ast.fix_missing_locations(tree)


def changes(tree: ast.Module) -> Iterator[tuple[Spot, Place, ast.AST]]:
    """Walk what may be put where."""
    for spot, place in places(tree):
        node = get(place)
        for new in variants(node, place):
            yield spot, place, ast.copy_location(new, node)


def get(place: Place) -> ast.AST:
    """Return the node at a place."""
    parent, field, position = place
    value = getattr(parent, field)
    return value if position is None else value[position]


def put(place: Place, node: ast.AST) -> None:
    """Replace the node at a place."""
    parent, field, position = place
    if position is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[position] = node


def span(node: ast.AST) -> tuple[int, int]:
    """Return the lines of a node; of a statement that holds others, those of its first line."""
    if isinstance(node, ast.stmt) and hasattr(node, "body"):
        return node.lineno, node.lineno
    return node.lineno, node.end_lineno or node.lineno


def headline(statement: ast.stmt) -> str:
    """Return a statement as text, without the statements inside it."""
    bare = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "decorator_list", "cases"):
        if isinstance(getattr(bare, field, None), list):
            setattr(bare, field, [])
    return ast.unparse(bare)


# ---- where ---------------------------------------------------------------------------------------


def places(tree: ast.Module) -> Iterator[tuple[Spot, Place]]:
    """Walk the places of all nodes that may change."""
    for child, place in children(tree):
        yield from below(child, place, Spot("", tree.body[0], False))


def below(node: ast.AST, place: Place, spot: Spot) -> Iterator[tuple[Spot, Place]]:
    """Walk the places of a node and of what is inside it, but for what is left alone."""
    if left_alone(node, place, spot):
        return
    if isinstance(node, ast.stmt):
        spot = replace(spot, statement=node)
    if isinstance(node, ast.expr | ast.stmt):
        yield spot, place
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        spot = replace(spot, function=f"{spot.function}.{node.name}".lstrip("."))
    for child, inner in children(node):
        is_body = inner[1] == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from below(child, inner, replace(spot, called=spot.called or is_body))


def children(node: ast.AST) -> Iterator[tuple[ast.AST, Place]]:
    """Walk the nodes of a node's fields."""
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield value, (node, field, None)
        elif isinstance(value, list):
            for position, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield child, (node, field, position)


def left_alone(node: ast.AST, place: Place, spot: Spot) -> bool:
    """Return whether a node holds nothing that a test is there for."""
    parent, field, _ = place
    if field in ("annotation", "returns", "decorator_list", "bases"):
        return True
    assigned = node.targets[0] if isinstance(node, ast.Assign) else None
    if name_of(assigned) in ("__all__", "__slots__", "__match_args__"):
        return True
    match node:
        case ast.Import() | ast.ImportFrom() | ast.keyword(arg="strict"):
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring, or the dots of a protocol
            return True
        case ast.Constant():  # a piece of a text, which changes as a whole
            return isinstance(parent, ast.JoinedStr)
        case ast.Call(func=called):
            return name_of(called) in OF_TYPES
        case ast.BinOp(op=ast.BitOr()):
            return not spot.called or is_type(node)
        case ast.If(test=test):
            return name_of(test) == "TYPE_CHECKING"
    return False


def is_type(node: ast.BinOp) -> bool:
    """Return whether ``a | b`` is a union of types: ``int | Node``."""
    return any(name_of(x)[:1].isupper() or hasattr(builtins, name_of(x)) for x in (node.left, node.right))


def name_of(node: ast.AST | None) -> str:
    """Return the last name of ``a.b.name``, or an empty text for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# ---- what ----------------------------------------------------------------------------------------


def variants(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """Walk what may stand in the place of a node."""
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Return(value=ast.expr() as value) if not is_constant(value, None):
            yield ast.Return(ast.Constant(None))
        case ast.Compare(ops=[first, *others]):
            yield with_fields(node, ops=[COMPARISONS[type(first)](), *others])
        case ast.BoolOp(op=op):
            yield with_fields(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield with_fields(node, op=ARITHMETIC[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Call():
            yield from calls(node)
        case ast.Slice():
            yield from (
                with_fields(node, **{x: None}) for x in ("lower", "upper", "step") if getattr(node, x)
            )
        case ast.Name(id=name) if name in NAMES:
            yield with_fields(node, id=NAMES[name])
        case ast.Constant(value=value):
            yield from (ast.Constant(x) for x in constants(value))
        case ast.JoinedStr():
            yield ast.Constant("")
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield with_fields(node, op=ARITHMETIC[type(node.op)]())
    parent, field, _ = place
    if field in ("test", "ifs") and not isinstance(parent, ast.Assert) and not turns_itself(node):
        yield ast.UnaryOp(ast.Not(), node)


def turns_itself(condition: ast.AST) -> bool:
    """Return whether a variant of a condition is its opposite already."""
    turned = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
    of_one = isinstance(condition, ast.Compare) and len(condition.ops) == 1
    return isinstance(condition, ast.UnaryOp) or (of_one and isinstance(condition.ops[0], turned))


def calls(node: ast.Call) -> Iterator[ast.AST]:
    """Walk a call without its last argument, and without each of its keywords."""
    if len(node.args) > 1:
        yield with_fields(node, args=node.args[:-1])
    for keyword in node.keywords:
        if keyword.arg not in (None, "strict"):
            yield with_fields(node, keywords=[x for x in node.keywords if x is not keyword])


def constants(value: object) -> Iterator[object]:
    """Walk what may stand for a constant: the other truth value, its neighbours, no text."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        if value > 1:
            yield value - 1
    elif isinstance(value, str) and value:
        yield ""


def with_fields(node: ast.AST, **fields: object) -> ast.AST:
    """Return a copy of a node with other fields; what is inside stays shared."""
    new = copy.copy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return new


def is_constant(node: ast.AST, value: object) -> bool:
    """Return whether a node is a constant of this value."""
    return isinstance(node, ast.Constant) and node.value is value
