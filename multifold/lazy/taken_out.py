"""What is taken out of a piece: expressions that are computed where the piece is called.

A piece of a function (`multifold.lazy.divided`) gets arrays. So these are computed before it, and
variables stand for them: what makes an array of Python's values, what a statement takes from an object or
a container, calls of functions that are not straight, and variables of functions around. What it takes from
the object of its own method, as ``self.gates``, stays. That changes the order in which things are computed,
so it is done only where nobody can tell: what may have effects keeps its place among all that computes.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from multifold.lazy.statements import BRANCHES, name_of_call, names_under, with_fields
from multifold.lazy.writes import CHANGERS, is_written_here

ARRAY_MAKERS = {
    *("tensor", "as_tensor", "asarray", "array", "from_numpy", "scalar_tensor"),
    *("Tensor", "LongTensor", "IntTensor", "FloatTensor", "DoubleTensor", "BoolTensor"),
}
"""Functions that make an array of Python's values, which may be others in each call."""

WITH_EFFECTS = CHANGERS | {
    *("next", "iter", "setattr", "delattr", "exec", "eval", "print", "input", "open", "map", "apply"),
    *("take", "get", "put", "select", "split", "index", "copy", "push", "pull", "read", "write", "set"),
}
"""Functions that change something, or call what they are given; and methods that may, of objects."""

OPERATORS = {
    f"__{name}__" for name in ("add", "radd", "iadd", "sub", "rsub", "mul", "rmul", "matmul", "neg")
}
OPERATORS |= {
    f"__{name}__" for name in ("truediv", "rtruediv", "pow", "rmatmul", "lt", "gt", "le", "ge", "abs")
}
"""Methods of the user's classes by which an operator may have effects."""

LOOKUPS = {"__getitem__", "__getattr__", "__getattribute__", "__len__"}
"""Methods of the user's classes by which it may have effects to take something from an object."""

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
    pure : collection of str
        Names of methods of arrays, and of attributes that are layers: they have no effects.
    stored : collection of str
        Names of attributes that functions of the program store to, besides those that make an object.
    """

    users: Collection[str]
    crooked: Collection[str]
    pure: Collection[str]
    stored: Collection[str]

    def is_without_effects(self, expression: ast.AST, around: dict[str, Any], own: Collection[str]) -> bool:
        """Return whether nobody can tell when an expression is computed that is taken out, as names tell.

        It calls nothing, but for the function that makes an array, and ``len``. See `is_pure`.
        """
        for x in ast.walk(expression):
            if isinstance(x, ast.Call):
                is_maker = (
                    x is expression and name_of_call(x) in ARRAY_MAKERS and self.is_pure(x, around, own)
                )
                if not is_maker and not (isinstance(x.func, ast.Name) and x.func.id == "len"):
                    return False
            if isinstance(x, ast.Attribute) and x.attr in self.users:
                return False
            if isinstance(x, (ast.Attribute, ast.Subscript)) and not LOOKUPS.isdisjoint(self.users):
                return False
        return True

    def is_pure(self, call: ast.Call, around: dict[str, Any], own: Collection[str]) -> bool:
        """Return whether what a call calls has no effects, as names tell.

        A name stands for one of the variables ``own`` of a function, or for a global one: ``around``.
        """
        name = name_of_call(call)
        if name is None or name in self.users or name in WITH_EFFECTS:
            return False
        root = root_of_path(call.func)
        known = None if root in own else around.get(root or "", getattr(builtins, root or "", None))
        if isinstance(known, (ModuleType, BuiltinFunctionType, FunctionType, type)):
            module = known.__name__ if isinstance(known, ModuleType) else known.__module__ or ""
            return not is_written_here(module)
        return isinstance(call.func, ast.Attribute) and name in self.pure


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
        The variables that have their values where the piece is called.
    outer : collection of str
        Those among them of functions around, which others may assign to.
    numbers : iterator of int
        Numbers for what is taken out.

    Attributes
    ----------
    taken : dict of str to ast.expr
        What was taken out, by the variable that stands in its place, in the order in which it is computed.
    has_effects : bool
        Whether what is left in the piece may have effects.
    takes_effects : bool
        Whether what was taken out may have some.
    is_refused : bool
        Whether something taken out would come before something with which it may not change places.
    """

    def __init__(
        self,
        program: ProgramNames,
        around: dict[str, Any],
        own: str | None,
        variables: Collection[str],
        outer: Collection[str],
        numbers: Iterator[int],
    ) -> None:
        self.program = program
        self.around = around
        self.own = own
        self.variables = variables
        self.outer = outer
        self.numbers = numbers
        self.taken: dict[str, ast.expr] = {}
        self.computes = self.has_effects = self.takes_effects = self.is_refused = False

    def take(self, node: ast.expr) -> ast.expr:
        """Take an expression out; return the variable in its place."""
        if not self.program.is_without_effects(node, self.around, self.variables):
            self.takes_effects = True
            self.is_refused = self.is_refused or self.computes
        self.is_refused = self.is_refused or self.has_effects
        name = f"{TAKEN}_{next(self.numbers)}"
        self.taken[name] = node
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Look into an expression, and note if it computes."""
        super().generic_visit(node)
        if isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp)):
            self.computes = True
            self.has_effects = self.has_effects or not OPERATORS.isdisjoint(self.program.users)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Take out what makes an array of Python's values, and calls of functions that are not straight."""
        name = name_of_call(node)
        if name in ARRAY_MAKERS or (name is not None and name in self.program.crooked):
            return self.take(node)
        if isinstance(node.func, ast.Attribute):
            # It is looked up before the arguments are computed, which may store another one there.
            self.computes = self.computes or node.func.attr in self.program.stored
            function: Any = with_fields(node.func, value=self.visit(node.func.value))
        else:
            function = self.visit(node.func)
        given = [*map(self.visit, node.args)]
        found = with_fields(node, func=function, args=given, keywords=[*map(self.visit, node.keywords)])
        self.computes = True
        self.has_effects = self.has_effects or not self.program.is_pure(node, self.around, self.variables)
        return found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Take out a variable of a function around; a global one may be another one later."""
        if node.id in self.outer:
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
        self.has_effects = self.has_effects or node.attr in self.program.users
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
