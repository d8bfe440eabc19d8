"""What is taken out of a piece: expressions that are computed where the piece is called.

A piece of a function (`multifold.lazy.divided`) gets arrays. So three things are computed before it, and
variables stand for them: what makes an array of Python's values, what a statement takes from an object or
a container, and calls of functions that are not straight. That changes the order in which things are
computed, so it is done only where nobody can tell: what may change something keeps its place among all that
computes.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from multifold.lazy.statements import called_name, names_under, root_of_path, with_fields
from multifold.lazy.writes import CHANGERS, is_written_here

ARRAY_MAKERS = {
    *("tensor", "as_tensor", "asarray", "array", "from_numpy", "scalar_tensor"),
    *("Tensor", "LongTensor", "IntTensor", "FloatTensor", "DoubleTensor", "BoolTensor"),
}
"""Functions that make an array of Python's values, which may be others in each call."""

WORLDLY = CHANGERS | {
    *("next", "iter", "setattr", "delattr", "exec", "eval", "print", "input", "open", "map", "apply"),
    *("take", "get", "put", "select", "split", "index", "copy", "push", "pull", "read", "write", "set"),
}
"""Functions that change something, or call what they are given; and methods that may, of objects."""

TAKEN = "multifold_taken"
"""How variables begin that stand for what was taken out."""


class ProgramNames(NamedTuple):
    """What the names in a program tell of calls.

    Attributes
    ----------
    users : collection of str
        Names of functions and properties that the user has written, and of attributes that are such, or
        objects of the user's classes: they may do anything.
    crooked : collection of str
        Those among them of functions that are not straight.
    harmless : collection of str
        Names of methods of arrays, and of attributes that are layers of the framework.
    """

    users: Collection[str]
    crooked: Collection[str]
    harmless: Collection[str]

    def is_calm(self, expression: ast.AST, around: dict[str, Any], own: Collection[str]) -> bool:
        """Return whether an expression changes nothing that another one sees, as far as names tell.

        Names in it stand for the variables ``own`` of a function, or for global ones, which are ``around``.
        """
        for x in ast.walk(expression):
            if isinstance(x, ast.Call) and not self.is_harmless(x.func, around, own):
                return False
            if isinstance(x, ast.Attribute) and x.attr in self.users:
                return False
            if isinstance(x, ast.Subscript) and "__getitem__" in self.users:
                return False
            if isinstance(x, (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return False
        return True

    def is_harmless(self, function: ast.expr, around: dict[str, Any], own: Collection[str]) -> bool:
        """Return whether a call of a function changes nothing that another expression sees."""
        if not isinstance(function, (ast.Name, ast.Attribute)):
            return False
        name = called_name(function)
        if name in self.users or name in WORLDLY:
            return False
        root = root_of_path(function)
        known = None if root in own else around.get(root or "", getattr(builtins, root or "", None))
        if isinstance(known, (ModuleType, BuiltinFunctionType, FunctionType, type)):
            return not is_written_here(
                known.__name__ if isinstance(known, ModuleType) else known.__module__ or ""
            )
        return isinstance(function, ast.Attribute) and name in self.harmless


class Taker(ast.NodeTransformer):
    """Takes out of an expression what is to be computed where a piece is called; see the module.

    Parameters
    ----------
    program : ProgramNames
        What the names in the program tell.
    around : dict of str to object
        The global variables.
    own : str or None
        The variable that is the object of a method, of which attributes are not taken out.
    variables : collection of str
        The variables that have their values there already.
    moving : collection of str
        Those of functions around, which others may assign to: they are taken out, too.
    numbers : iterator of int
        Numbers for what is taken out.

    Attributes
    ----------
    taken : dict of str to ast.expr
        What was taken out, by the variable that stands in its place, in the order in which it is computed.
    stirs : bool
        Whether what is left may change something that others see.
    is_first : bool
        Whether what was taken out may do so.
    is_late : bool
        Whether that comes after something that is left, and with which it may not change places.
    """

    def __init__(
        self,
        program: ProgramNames,
        around: dict[str, Any],
        own: str | None,
        variables: Collection[str],
        moving: Collection[str],
        numbers: Iterator[int],
    ) -> None:
        self.program = program
        self.around = around
        self.own = own
        self.variables = variables
        self.moving = moving
        self.numbers = numbers
        self.taken: dict[str, ast.expr] = {}
        self.computes = self.stirs = self.is_first = self.is_late = False

    def take(self, node: ast.expr) -> ast.expr:
        """Take an expression out; return the variable in its place."""
        if not self.program.is_calm(node, self.around, self.variables):
            self.is_first = True
            self.is_late = self.is_late or self.computes
        self.is_late = self.is_late or self.stirs
        name = f"{TAKEN}_{next(self.numbers)}"
        self.taken[name] = node
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Look into an expression, and note if it computes."""
        super().generic_visit(node)
        self.computes = self.computes or isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp))
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Take out what makes an array of Python's values, and calls of functions that are not straight."""
        name = called_name(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
        if name in ARRAY_MAKERS or (name is not None and name in self.program.crooked):
            return self.take(node)
        if isinstance(node.func, ast.Attribute):
            function: Any = with_fields(node.func, value=self.visit(node.func.value))
        else:
            function = self.visit(node.func)
        given = [*map(self.visit, node.args)]
        found = with_fields(node, func=function, args=given, keywords=[*map(self.visit, node.keywords)])
        self.computes = True
        self.stirs = self.stirs or not self.program.is_harmless(node.func, self.around, self.variables)
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Take out a variable of a function around; a global one may be another one later."""
        if node.id in self.moving:
            return self.take(node)
        known = self.around.get(node.id)
        is_data = node.id in self.around and not isinstance(known, (ModuleType, FunctionType, type))
        self.computes = self.computes or (node.id not in self.variables and is_data)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Take out an attribute of a variable that is not the method's own object."""
        root = root_of_path(node)
        if root in self.variables and root != self.own:
            return self.take(node)
        found = with_fields(node, value=self.visit(node.value))
        self.computes = True  # what it is now, it may not be later
        self.stirs = self.stirs or node.attr in self.program.users
        return found

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Take out an entry of a variable, and any part of which variables say where it begins or ends.

        So of ``x[:, 0]`` a piece gets ``x``, and of ``x[i]``, ``x[i : i + 1]`` and ``self.weights[i]`` what
        they are: for another ``i`` that is another array, and no other kind of call.
        """
        root = root_of_path(node)
        varies = any(x.id in self.variables for x in names_under(node.slice))
        is_entry = not any(isinstance(x, (ast.Slice, ast.Tuple)) for x in ast.walk(node.slice))
        if root in self.variables and (varies or (is_entry and root != self.own)):
            return self.take(node)
        found = with_fields(node, value=self.visit(node.value), slice=self.visit(node.slice))
        self.computes = True
        return found
