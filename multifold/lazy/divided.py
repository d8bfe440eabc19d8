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
    called_name,
    fields_with_blocks,
    is_number,
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
"""A piece computes so many things at least: to record it costs as much as to record one."""

READERS = NUMBER_MAKERS - {"len"}
"""Functions that read the value of an array."""

WHOLE = {"locals", "vars", "dir", "eval", "exec", "globals", "_getframe", "currentframe"}
"""Names of what sees the variables of the function that calls it: such a function is not divided."""


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
    stirs : bool
        Whether what it computes inside of the piece may change something that others see.
    is_first : bool
        Whether what is computed before may, so that the step must be the first one of a piece.
    """

    statement: ast.Assign
    taken: dict[str, ast.expr]
    computes: int
    stirs: bool
    is_first: bool

    @property
    def stored(self) -> list[str]:
        """The variables that it assigns to."""
        return [x.id for x in names_under(self.statement.targets[0])]

    @property
    def loaded(self) -> list[str]:
        """The variables that it uses, or what is computed before, once for each use."""
        taken = [x.id for expression in self.taken.values() for x in names_under(expression)]
        return [*taken, *[x.id for x in names_under(self.statement.value)]]

    def begins_piece(self, before: Sequence[PieceStep]) -> bool:
        """Return whether it cannot follow the steps ``before`` in a piece, since what is taken comes first.

        That may change what these steps see, or be changed by them.
        """
        if not self.taken or not before:
            return False
        stored = {name for step in before for name in step.stored}
        used = {x.id for expression in self.taken.values() for x in names_under(expression)}
        return self.is_first or any(step.stirs for step in before) or not used.isdisjoint(stored)


class FunctionPiece:
    """Consecutive statements of a block of a function, as a function of their own.

    Parameters
    ----------
    block : list of ast.stmt
        The block.
    begin : int
        The number of the first statement in the block, from 0.
    steps : list of PieceStep
        The statements.

    Attributes
    ----------
    function : function
        The function; `becomes` sets it and what follows.
    given : list of ast.expr
        What it is called with.
    returned : list of str
        The variables that get what it returns.
    """

    def __init__(self, block: list[ast.stmt], begin: int, steps: Sequence[PieceStep]) -> None:
        self.block = block
        self.begin = begin
        self.steps = steps
        self.function: Any = None
        self.given: list[ast.expr] = []
        self.returned: list[str] = []

    def becomes(self, function: FunctionType, given: list[ast.expr], returned: list[str]) -> None:
        """Store its function, what that is called with, and the variables that get what it returns."""
        self.function = function
        self.given = given
        self.returned = returned

    def computes_enough(self) -> bool:
        """Return whether it is worth a call."""
        return sum([step.computes for step in self.steps]) >= LEAST

    def halves(self) -> Iterator[FunctionPiece]:
        """Yield its halves, as pieces; nothing if it has one statement."""
        middle = len(self.steps) // 2
        if middle:
            yield FunctionPiece(self.block, self.begin, self.steps[:middle])
            yield FunctionPiece(self.block, self.begin + middle, self.steps[middle:])

    def call(self, name: str) -> ast.stmt:
        """Return the statement that calls it by a name."""
        targets: list[ast.expr] = [ast.Name(x, ast.Store()) for x in self.returned]
        target = targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
        value = ast.Call(ast.Name(name, ast.Load()), self.given, [])
        return ast.copy_location(ast.Assign([target], value), self.steps[0].statement)


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
        source = None if not WHOLE.isdisjoint(names_of(code)) else source_of(function)
        # What stands in the place of a function has attributes of its own.
        if source is None or has_attributes_of(source.tree, function.__name__):
            return
        self.source, self.tree = source, source.tree
        tree = source.tree
        with_results(tree, code.co_varnames)
        self.numbers = numbers_in(tree)
        self.used = Counter(uses_in(tree))
        self.denied = DENIED | CHANGERS | WHOLE | {"super"}
        # The variables that it assigns; functions inside of it may use and assign some of them at any time.
        self.bound = {*code.co_varnames, *code.co_cellvars}
        self.restless = {
            x.id for x in names_under(tree) if isinstance(x.ctx, ast.Store) and x.id in used_later(code)
        }
        self.numbering = count()
        # Attributes of the model belong into a piece, which gets the model.
        is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
        self.own = code.co_varnames[0] if is_method and code.co_argcount else None
        self.names = names._replace(crooked={function.__name__, self.own or "", *names.crooked})
        self.pieces = [x for block in blocks_in(tree.body) for x in self.pieces_in(block) if self.make(x)]

    def divide(self, pieces: Iterable[FunctionPiece]) -> None:
        """Put both halves in the place of each of some pieces."""
        for piece in pieces:
            at = self.pieces.index(piece)
            self.pieces[at : at + 1] = [x for x in piece.halves() if x.computes_enough() and self.make(x)]
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
            piece = FunctionPiece(block, number - len(steps), steps)
            if piece.computes_enough():
                yield piece
            step = self.step(statement, [])
            steps = [] if step is None else [step]

    def step(self, statement: ast.stmt | None, before: Sequence[PieceStep]) -> PieceStep | None:
        """Return a statement as a part of a piece that has the steps ``before``; None if it can be none."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        if is_number(statement.value, self.numbers) or not self.may_assign(statement.targets[0]):
            return None
        stored = {name for step in before for name in step.stored}
        variables = {*self.bound, *self.code.co_freevars} - stored
        around = self.function.__globals__
        moving = {*self.code.co_freevars}
        taker = Taker(self.names, around, self.own, variables, moving, self.numbering)
        value = taker.visit(copy.deepcopy(statement.value))
        if taker.is_late or not all(map(self.may_hold, ast.walk(value))):
            return None
        computes = [
            x
            for x in ast.walk(value)
            if isinstance(x, (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp))
            and not is_number(x, self.numbers)
        ]
        inside = ast.copy_location(ast.Assign(statement.targets, value), statement)
        return (
            PieceStep(inside, taker.taken, len(computes), taker.stirs, taker.is_first) if computes else None
        )

    def may_assign(self, target: ast.expr) -> bool:
        """Return whether a piece may give back what is assigned to."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(map(self.may_assign, target.elts))
        return isinstance(target, ast.Name) and self.is_variable(target.id)

    def is_variable(self, name: str) -> bool:
        """Return whether a name is one of the function's own variables, or what stands for its result."""
        return (name in self.bound and name not in self.restless) or name.startswith(RESULT)

    def may_hold(self, part: ast.AST) -> bool:
        """Return whether a piece may hold a part of an expression, as far as that tells by itself."""
        if isinstance(part, ast.Name):
            return part.id not in self.denied and part.id not in self.restless
        if isinstance(part, ast.Attribute):
            name = part.attr  # a name that ends with one underscore is that of a change in place
            return name not in self.denied and (not name.endswith("_") or name.endswith("__"))
        if isinstance(part, ast.Call):
            name = called_name(part.func) if isinstance(part.func, (ast.Name, ast.Attribute)) else ""
            return name not in READERS and OPTIONS.isdisjoint([x.arg for x in part.keywords])
        if isinstance(part, ast.keyword):
            return part.arg is not None
        return not isinstance(part, BRANCHES) and not (isinstance(part, ast.Compare) and len(part.ops) > 1)

    def make(self, piece: FunctionPiece) -> bool:
        """Make the function of a piece; return whether that may be straight."""
        given: dict[str, ast.expr] = {}
        stored: set[str] = set()
        for step in piece.steps:
            for x in names_under(step.statement.value):
                is_variable = self.is_variable(x.id) or x.id in self.code.co_freevars
                if is_variable and x.id not in stored:
                    given[x.id] = ast.Name(x.id, ast.Load())
            stored.update(step.stored)
        for step in piece.steps:
            given.update(step.taken)  # in the order in which it is computed
        inside = Counter([name for step in piece.steps for name in step.loaded])
        # What it is given and assigns to may be what it is given the next time.
        returned = sorted([x for x in stored if x in given or self.used[x] > inside[x]])
        if not returned:
            return False
        names: list[ast.expr] = [ast.Name(x, ast.Load()) for x in returned]
        value = names[0] if len(names) == 1 else ast.Tuple(names, ast.Load())
        first = piece.steps[0].statement
        function = self.function
        name = f"{function.__name__}:{first.lineno}"
        body = [*[step.statement for step in piece.steps], ast.Return(value)]
        code = self.source.compiled(ast.copy_location(function_tree(name, [*given], body), first), ())
        code = code.replace(co_qualname=f"{function.__qualname__}:{first.lineno}")
        piece.becomes(FunctionType(code, function.__globals__), [*given.values()], returned)
        return crooked(code) is None and function.__name__ not in names_inside(piece.function)

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


def has_attributes_of(tree: ast.AST, name: str) -> bool:
    """Return whether code names an attribute of a variable."""
    return any(
        isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name) and x.value.id == name
        for x in ast.walk(tree)
    )


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
