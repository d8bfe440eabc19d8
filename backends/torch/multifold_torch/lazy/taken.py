"""Functions taken apart: what their code is, and what they bind.

Each example makes functions anew: ``grad(lambda x: (net(x) * scale).sum())`` is another function each time,
of the same code. Two such functions compute alike if their code is the same and so is what they bind: their
defaults, the variables of functions around them, and of a method its object. So a function is taken apart
into a *plan*, equal for such functions, and its *leaves*, what they bind, and is put together again with
others.

>>> def scaled(scale):
...     return lambda x: x * scale
>>> double, triple = take_apart(scaled(2)), take_apart(scaled(3))
>>> double.plan == triple.plan, double.leaves, triple.leaves
(True, [None, None, 2], [None, None, 3])
>>> Putting([None, None, 5]).together(double.plan)(10)
50
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import optree
from torch import Tensor

from multifold.lazy.current import refusal
from multifold.lazy.seen import NOTHING, read_cell, same_entries

LEAF = "leaf"
"""The plan of what is not taken apart: a tensor, a number, another object."""

FIXED = (ModuleType, type, BuiltinFunctionType)
"""Types of objects that are the same for all examples."""

VALUES = {type(None), bool, int, float, str}
"""Types of values that hold nothing."""

MANY = 4096
"""So many functions without bound values are kept by their code."""

BARE: dict[tuple[int, int], FunctionType] = {}
"""A function for each code and module, by their ids: it holds both, and stands for all others."""


class Closure(NamedTuple):
    """The plan of a function: ``bare`` is one of its code, and the others are plans of what it binds."""

    bare: Any
    defaults: Any
    keywords: Any
    cells: tuple[Any, ...]


class Fixed(NamedTuple):
    """The plan of what never differs, as a class: that itself; `NOTHING` for a variable without value."""

    value: Any


class Same(NamedTuple):
    """The plan of a function that was met before, as one that calls itself: its number among these."""

    number: int


class Method(NamedTuple):
    """The plan of a method: those of its function, and of its object."""

    function: Any
    owner: Any


class TakenTree(NamedTuple):
    """The plan of nested containers: their structure, or the type of a list or tuple, and plans inside."""

    structure: Any
    parts: tuple[Any, ...]


class Made(NamedTuple):
    """The plan of an object that `Maker.made` makes: of what, which is the plan of its arguments."""

    maker: Any
    arguments: Any


class Maker:
    """What stands for a function while a program records: it is taken apart as its ``arguments``."""

    arguments: tuple[Any, ...]

    @staticmethod
    def made(*arguments: Any) -> Any:
        """Return the function that it stands for, from its arguments."""
        raise NotImplementedError


class Taken(NamedTuple):
    """What was taken apart.

    Attributes
    ----------
    plan : object
        What it is but for the leaves; it can be hashed and compared.
    leaves : list
        What is not taken apart, in order.
    functions : list of function
        The ``bare`` function of each function in it, in order.
    """

    plan: Any
    leaves: list[Any]
    functions: list[FunctionType]


def take_apart(x: Any) -> Taken:
    """Return ``x``, and the functions in it, taken apart.

    Raises `RecordError` for a function that assigns to a variable of a function around it.
    """
    taking = Taking()
    return Taken(taking.plan_of(x), taking.leaves, taking.functions)


class Taking:
    """What one `take_apart` has met: leaves, functions, and the numbers of these by ``id``."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.functions: list[FunctionType] = []
        self.numbers: dict[int, int] = {}

    def plan_of(self, x: Any) -> Any:
        """Return the plan of ``x``; append its leaves."""
        kind = type(x)
        if kind in VALUES or isinstance(x, Tensor):
            self.leaves.append(x)
            return LEAF
        if kind is tuple or kind is list:
            return TakenTree(kind, tuple([self.plan_of(part) for part in x]))
        if kind is FunctionType:
            is_compiled = x.__globals__.get("__name__", "").startswith("torch._dynamo")
            return self.closure(getattr(x, "_torchdynamo_orig_callable", x) if is_compiled else x)
        if isinstance(x, FIXED) or x is NOTHING:
            return Fixed(x)
        if kind is MethodType:
            return Method(self.plan_of(x.__func__), self.plan_of(x.__self__))
        if kind is functools.partial:
            return Made(functools.partial, self.plan_of((x.func, x.args, x.keywords)))
        if isinstance(x, Maker):
            return Made(kind, self.plan_of(x.arguments))
        parts, structure = optree.tree_flatten(x, none_is_leaf=True)
        if len(parts) == 1 and parts[0] is x:
            self.leaves.append(x)
            return LEAF
        return TakenTree(structure, tuple([self.plan_of(part) for part in parts]))

    def closure(self, function: FunctionType) -> Any:
        """Return the plan of a function."""
        if id(function) in self.numbers:
            return Same(self.numbers[id(function)])
        self.numbers[id(function)] = len(self.numbers)
        bare = bare_of(function)
        self.functions.append(bare)
        code = function.__code__
        written = outside_written(code)
        if written:
            raise refusal(
                f"{function.__name__} assigns to {', '.join(sorted(written))}, a variable of a function "
                "around it, and is given to a function of torch.func, which runs later than in the loop.",
                "return what it computes: has_aux=True returns more than is differentiated.",
            )
        return Closure(
            bare,
            self.plan_of(function.__defaults__),
            self.plan_of(function.__kwdefaults__),
            tuple([self.plan_of(read_cell(x)) for x in function.__closure__ or ()]),
        )


class Putting:
    """Puts together what was taken apart, from ``leaves``.

    Attributes
    ----------
    containers : list of tuple
        Each list, dict or the like that was made, with its type or structure, and what it held.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self.leaves = iter(leaves)
        self.functions: list[FunctionType] = []
        self.containers: list[tuple[Any, Any, list[Any]]] = []

    def together(self, plan: Any) -> Any:
        """Return what ``plan`` is the plan of."""
        if plan is LEAF:
            return next(self.leaves)
        if isinstance(plan, Closure):
            return self.function(plan)
        if isinstance(plan, Fixed):
            return plan.value
        if isinstance(plan, Same):
            return self.functions[plan.number]
        if isinstance(plan, Method):
            function = self.together(plan.function)
            return MethodType(function, self.together(plan.owner))
        if isinstance(plan, Made):
            arguments = self.together(plan.arguments)
            if plan.maker is functools.partial:
                return functools.partial(arguments[0], *arguments[1], **arguments[2])
            return plan.maker.made(*arguments)
        parts = [self.together(part) for part in plan.parts]
        if plan.structure is tuple:
            return tuple(parts)
        found = [*parts] if plan.structure is list else plan.structure.unflatten(parts)
        self.containers.append((found, plan.structure, parts))
        return found

    def function(self, plan: Closure) -> FunctionType:
        """Return a function of the code of ``plan``, which binds what its parts are put together to."""
        bare = plan.bare
        cells = tuple([CellType() for _ in plan.cells])
        made = FunctionType(bare.__code__, bare.__globals__, bare.__name__, None, cells)
        self.functions.append(made)  # before what it binds, which may be itself
        made.__defaults__ = self.together(plan.defaults)
        made.__kwdefaults__ = self.together(plan.keywords)
        for cell, part in zip(cells, plan.cells, strict=True):
            value = self.together(part)
            if value is not NOTHING:
                cell.cell_contents = value
        return made

    def is_unchanged(self) -> bool:
        """Return whether each container that was made holds what it held when it was made."""
        for x, structure, parts in self.containers:
            now, shape = (x, list) if structure is list else optree.tree_flatten(x, none_is_leaf=True)
            if shape != structure or not same_entries(now, parts):
                return False
        return True


def bare_of(function: FunctionType) -> FunctionType:
    """Return a function of the code and the module of ``function``, the same one for all of these.

    It binds nothing: variables of functions around it have no value.
    """
    key = id(function.__code__), id(function.__globals__)
    found = BARE.get(key)
    if found is None:
        if len(BARE) > MANY:
            BARE.clear()
        code = function.__code__
        cells = tuple([CellType() for _ in code.co_freevars])
        found = FunctionType(code, function.__globals__, function.__name__, None, cells)
        BARE[key] = found
    return found


@functools.lru_cache(maxsize=MANY)
def outside_written(code: CodeType) -> frozenset[str]:
    """Return the variables of functions around ``code`` that it assigns to, itself or by inner functions.

    >>> def counted():
    ...     n = 0
    ...     def count():
    ...         nonlocal n
    ...         n += 1
    ...     return count
    >>> outside_written(counted().__code__), outside_written(counted.__code__)
    (frozenset({'n'}), frozenset())
    """
    if not code.co_freevars:
        return frozenset()
    own = {x.argval for x in dis.get_instructions(code) if x.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = [outside_written(x) for x in code.co_consts if isinstance(x, CodeType)]
    return frozenset(code.co_freevars).intersection(own.union(*inner))
