"""Divided functions: straight statements of a function that is not straight itself, recorded whole.

A function that calls itself, loops or reads a value is not straight, but most of its statements may be::

    def node(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor([tree])).tanh()
        left, right = self.node(tree[0]), self.node(tree[1])
        gates = self.gates(torch.cat([left, right], 1))
        return torch.sigmoid(gates) * left

Statements that follow each other and compute become functions of their own, *pieces*, which are found cells
(`multifold.lazy.found`) as any other. While a program records, it runs the rest, which calls them::

    def node(self, tree):
        if isinstance(tree, int):
            return piece_1(self, torch.tensor([tree]))
        left, right = self.node(tree[0]), self.node(tree[1])
        return piece_2(self, left, right)

A piece gets the variables that it uses and gives back those that are used elsewhere. It holds no branch, no
loop and no read, so its statements run all or not at all, and in their order. What makes an array of
Python's values, and what a statement takes from an object or a container, is computed where the piece is
called, so that the piece gets arrays.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from multifold._engine.ops.reach import FOUND
from multifold.lazy.candidates import names_inside, names_of
from multifold.lazy.source import function_tree, source_of
from multifold.lazy.statements import (
    BRANCHES,
    RESULT,
    blocks_in,
    fields_with_blocks,
    is_number,
    is_update,
    name_of_call,
    names_under,
    numbers_in,
    uses_in,
    with_fields,
    with_results,
)
from multifold.lazy.straight import DENIED, crooked
from multifold.lazy.taken_out import ProgramNames, Taker
from multifold.lazy.writes import CHANGERS, NUMBER_MAKERS, OPTIONS

LEAST = 2
"""A smaller piece gains nothing: to record it costs as much as to record one thing that it computes."""

READERS = NUMBER_MAKERS - {"len"}
"""Functions that read the value of an array."""

SEE_CALLERS = {"locals", "vars", "dir", "eval", "exec", "globals", "_getframe", "currentframe"}
"""Names of what sees the variables of its caller: a function that names one of these is not divided."""

DENIED_INSIDE = DENIED | CHANGERS | SEE_CALLERS | {"super"}
"""Names that no piece has."""


class PieceStep(NamedTuple):
    """A statement that may be part of a piece.

    Attributes
    ----------
    statement : ast.Assign
        What it does inside of the piece.
    taken : dict of str to ast.expr
        What is computed where the piece is called, by the variable that stands for it in the statement.
    computes : int
        How many things it computes.
    has_effects : bool
        Whether what it computes inside of the piece may have effects.
    takes_effects : bool
        Whether what is taken out of it may have some, so that it must be the first step of a piece.
    """

    statement: ast.Assign
    taken: dict[str, ast.expr]
    computes: int
    has_effects: bool
    takes_effects: bool

    @property
    def stored(self) -> list[str]:
        """The variables that it assigns to."""
        return [x.id for x in names_under(self.statement.targets[0])]

    @property
    def needed(self) -> set[str]:
        """The variables that what is taken out of it uses."""
        return {x.id for expression in self.taken.values() for x in names_under(expression)}

    @property
    def uses(self) -> list[str]:
        """The variables that it uses, itself or in what is taken out, once for each use."""
        return [name for x in (*self.taken.values(), self.statement.value) for name in uses_in(x)]

    def begins_piece(self, before: Sequence[PieceStep]) -> bool:
        """Return whether it must begin a piece: what is taken out of it comes before the whole piece.

        It could change what the steps ``before`` see, or be changed by them.
        """
        if not self.taken or not before:
            return False
        stored = {name for step in before for name in step.stored}
        has_effects = self.takes_effects or any(step.has_effects for step in before)
        return has_effects or not self.needed.isdisjoint(stored)


class FunctionPiece(NamedTuple):
    """Consecutive statements of a block of a function, as a function of their own.

    Attributes
    ----------
    block : list of ast.stmt
        The block.
    begin : int
        The number of the first statement in the block, from 0.
    steps : list of PieceStep
        The statements.
    function : function
        The function.
    given : list of ast.expr
        What it is called with.
    returned : list of str
        The variables that get what it returns.
    """

    block: list[ast.stmt]
    begin: int
    steps: Sequence[PieceStep]
    function: Any  # a function, which type checkers take for a method
    given: list[ast.expr]
    returned: list[str]

    def call(self, name: str) -> ast.stmt:
        """Return the statement that calls it by a name."""
        value = ast.Call(ast.Name(name, ast.Load()), self.given, [])
        assigned = ast.Assign([one_or_tuple(self.returned, ast.Store())], value)
        return ast.copy_location(assigned, self.steps[0].statement)


class DividedFunction:
    """A function, and the pieces that it was divided into.

    Parameters
    ----------
    function : function
        The function.
    names : ProgramNames
        What the names in the program tell.

    Attributes
    ----------
    pieces : list of FunctionPiece
        The pieces; none if its source is not at hand, or is not what it was compiled from.
    """

    def __init__(self, function: FunctionType, names: ProgramNames) -> None:
        self.function = function
        self.code = code = function.__code__
        self.pieces: list[FunctionPiece] = []
        self.made: FunctionType | None = None
        source = source_of(function) if may_be_divided(code) else None
        if source is None or is_strange(source.tree, function.__name__):
            return
        self.source = source
        self.locals = {*code.co_varnames} - {*code.co_cellvars}
        # Arrays of the framework have ``at``, and no class of the user does.
        self.updates = "at" in names.pure and "at" not in names.users
        self.tree = with_results(source.tree, self.locals, self.updates)
        self.numbers = numbers_in(self.tree)
        self.used = Counter(uses_in(self.tree))
        # The variables that it assigns; functions inside of it may use and assign some of them at any time.
        self.bound = {*code.co_varnames, *code.co_cellvars}
        inside = used_later(code)
        self.assigned_inside = {
            x.id for x in names_under(self.tree) if isinstance(x.ctx, ast.Store) and x.id in inside
        }
        self.numbering = count()
        # Attributes of the model belong into a piece, which gets the model.
        is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
        self.own = code.co_varnames[0] if is_method and code.co_argcount else None
        itself = {function.__name__, *([self.own] if self.own else ())}  # ``self(x)`` may call it, too
        self.names = names._replace(crooked={*itself, *names.crooked})
        self.pieces = [x for block in blocks_in(self.tree.body) for x in self.pieces_in(block)]

    def divide(self, pieces: Iterable[FunctionPiece]) -> None:
        """Put both halves in the place of each of some pieces; nothing in that of a single statement."""
        for piece in pieces:
            at, middle = self.pieces.index(piece), len(piece.steps) // 2
            halves = (0, piece.steps[:middle]), (middle, piece.steps[middle:])
            found = [self.piece(piece.block, piece.begin + i, steps) for i, steps in halves if middle]
            self.pieces[at : at + 1] = [x for x in found if x is not None]
            self.made = None

    def function_now(self, wrapped: Callable[[FunctionType], Any]) -> FunctionType | None:
        """Return what runs in the place of the function; None if that has no pieces, or other code by now.

        ``wrapped`` takes the function of a piece, and returns what is called.
        """
        function = self.function
        if not self.pieces or function.__code__ is not self.code:
            return None
        if self.made is None:
            pieces = {f"multifold_piece_{number}": piece for number, piece in enumerate(self.pieces)}
            around = dict(zip(self.code.co_freevars, function.__closure__ or (), strict=True))
            around |= {name: CellType(wrapped(piece.function)) for name, piece in pieces.items()}
            code = self.source.compiled(self.with_calls(pieces), around)
            code = code.replace(co_qualname=self.code.co_qualname)
            closure = tuple([around[name] for name in code.co_freevars])
            self.made = FunctionType(code, function.__globals__, function.__name__, None, closure)
            setattr(self.made, FOUND, function)
        vars(self.made).update(vars(function))
        for name in ("__qualname__", "__defaults__", "__kwdefaults__"):
            setattr(self.made, name, getattr(function, name))
        return self.made

    def pieces_in(self, block: list[ast.stmt]) -> Iterator[FunctionPiece]:
        """Yield the pieces that the statements of a block make."""
        steps: list[PieceStep] = []
        for number, statement in enumerate([*block, None]):
            step = self.step(statement, steps)
            if step is not None and not step.begins_piece(steps):
                steps.append(step)
                continue
            piece = self.piece(block, number - len(steps), steps)
            if piece is not None:
                yield piece
            step = self.step(statement, []) if steps else step
            steps = [] if step is None else [step]

    def step(self, statement: ast.stmt | None, before: Sequence[PieceStep]) -> PieceStep | None:
        """Return a statement as a part of a piece that has the steps ``before``; None if it can be none."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        if is_number(statement.value, self.numbers) or not self.may_assign(statement.targets[0]):
            return None
        if self.updates and is_update(statement.value, self.locals):
            return None  # what is computed for it is a statement of its own
        stored = {name for step in before for name in step.stored}
        variables = {*self.bound, *self.code.co_freevars} - stored
        around = self.function.__globals__
        taker = Taker(self.names, around, self.own, variables, self.code.co_freevars, self.numbering)
        value = taker.visit(copy.deepcopy(statement.value))
        if taker.is_refused or not all(map(self.may_hold, ast.walk(value))):
            return None
        computes = [
            x
            for x in ast.walk(value)
            if isinstance(x, (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp))
            and not is_number(x, self.numbers)
        ]
        inside = ast.copy_location(ast.Assign(statement.targets, value), statement)
        return (
            PieceStep(inside, taker.taken, len(computes), taker.has_effects, taker.takes_effects)
            if computes
            else None
        )

    def may_assign(self, target: ast.expr) -> bool:
        """Return whether a piece may give back what is assigned to."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(map(self.may_assign, target.elts))
        return isinstance(target, ast.Name) and self.is_variable(target.id)

    def is_variable(self, name: str) -> bool:
        """Return whether a name is one of the function's own variables, or what stands for its result."""
        return (name in self.bound and name not in self.assigned_inside) or name.startswith(RESULT)

    def may_hold(self, part: ast.AST) -> bool:
        """Return whether a piece may hold a part of an expression, as far as that tells by itself."""
        if isinstance(part, ast.Name):
            return part.id not in DENIED_INSIDE and part.id not in self.assigned_inside
        if isinstance(part, ast.Attribute):
            name = part.attr  # a name that ends with one underscore is that of a change in place
            return name not in DENIED_INSIDE and (not name.endswith("_") or name.endswith("__"))
        if isinstance(part, ast.Call):
            return name_of_call(part) not in READERS and OPTIONS.isdisjoint([x.arg for x in part.keywords])
        if isinstance(part, ast.keyword):
            return part.arg is not None
        return not isinstance(part, BRANCHES) and not (isinstance(part, ast.Compare) and len(part.ops) > 1)

    def piece(self, block: list[ast.stmt], begin: int, steps: Sequence[PieceStep]) -> FunctionPiece | None:
        """Return the piece that some steps make; None if they compute too little, or are not straight."""
        if sum([step.computes for step in steps]) < LEAST:
            return None
        given: dict[str, ast.expr] = {}
        stored: set[str] = set()
        for step in steps:
            for name in uses_in(step.statement.value):
                if self.is_variable(name) and name not in stored:
                    given[name] = ast.Name(name, ast.Load())
            stored.update(step.stored)
        for step in steps:
            given.update(step.taken)  # in the order in which it is computed
        inside = Counter([name for step in steps for name in step.uses])
        # In a loop, what it assigns may be what the next call of it is given.
        returned = sorted([x for x in stored if x in given or self.used[x] > inside[x]])
        if not returned:
            return None
        first, function = steps[0].statement, self.function
        name = f"{function.__name__}:{first.lineno}"
        body = [*[step.statement for step in steps], ast.Return(one_or_tuple(returned, ast.Load()))]
        code = self.source.compiled(ast.copy_location(function_tree(name, [*given], body), first), ())
        code = code.replace(co_qualname=f"{function.__qualname__}:{first.lineno}")
        made = FunctionType(code, function.__globals__)
        if crooked(code) is not None or function.__name__ in names_inside(made):
            return None
        return FunctionPiece(block, begin, steps, made, [*given.values()], returned)

    def with_calls(self, pieces: dict[str, FunctionPiece]) -> ast.FunctionDef:
        """Return the function with calls in the place of pieces, by their names there."""
        begins = {(id(piece.block), piece.begin): name for name, piece in pieces.items()}

        def rebuilt(block: list[ast.stmt]) -> list[ast.stmt]:
            found: list[ast.stmt] = []
            number = 0
            while number < len(block):
                name = begins.get((id(block), number))
                if name is None:
                    blocks = {field: rebuilt(x) for field, x in fields_with_blocks(block[number])}
                    found.append(with_fields(block[number], **blocks))
                    number += 1
                else:
                    found.append(pieces[name].call(name))
                    number += len(pieces[name].steps)
            return found

        return with_fields(self.tree, body=rebuilt(self.tree.body))


def one_or_tuple(names: Sequence[str], context: ast.expr_context) -> ast.expr:
    """Return a variable, or the tuple of several."""
    found: list[ast.expr] = [ast.Name(name, context) for name in names]
    return found[0] if len(found) == 1 else ast.Tuple(found, context)


def may_be_divided(code: CodeType) -> bool:
    """Return whether a function does not name what sees its variables."""
    return SEE_CALLERS.isdisjoint(names_of(code))


def is_strange(tree: ast.FunctionDef, name: str) -> bool:
    """Return whether a function does what its pieces would do in another way.

    It assigns inside of an expression, has variables that Python calls otherwise, as ``__x`` in a class, or
    has attributes itself, of which that which stands in its place would have others.
    """
    for x in ast.walk(tree):
        if isinstance(x, ast.NamedExpr):
            return True
        if isinstance(x, ast.Name) and x.id.startswith("__") and not x.id.endswith("__"):
            return True
        if isinstance(x, ast.Attribute):
            owner = x.value
            if name in (getattr(owner, "id", None), getattr(owner, "attr", None)):
                return True
    return False


def used_later(code: CodeType) -> set[str]:
    """Return the variables of a function that functions inside of it use, which may be called at any time.

    Comprehensions are left out: they run where they stand.
    """
    found: set[str] = set()
    for x in code.co_consts:
        if isinstance(x, CodeType):
            runs_there = x.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>")
            found |= used_later(x) if runs_there else {*x.co_freevars}
    return found
