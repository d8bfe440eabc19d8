"""Reach: the objects that an op consists of, and those that its functions find around them.

An op is a function, a method, a module or a partial of these. A function reads more than its operands: what
it binds, and names of its module that its code has. From there on lead the functions that it calls, the
entries of containers, and the attributes of objects that the same package defines:

>>> class Noise:
...     def __init__(self, seed):
...         self.generators = [np.random.default_rng(seed)]
>>> noise = Noise(0)
>>> def drawn(shape):
...     return noise.generators[0].random(shape)
>>> def op(x):
...     return x + drawn(x.shape)
>>> from multifold._numpy.backend import NumpyBackend
>>> [type(x).__name__ for x, _ in reached(NumpyBackend(), [op])]
['function', 'function', 'Noise', 'list', 'Generator']

Objects of other packages are ends, since a data loader or a logger has locks and threads of its own.
"""

from __future__ import annotations

import dis
import functools
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any

import numpy as np

from multifold._engine.record.population import Population
from multifold.backend import Backend, attribute_of, owner_of

VALUES = (bool, int, float, complex, str, bytes, NoneType)
"""Types of values that never change, and are compared by value."""

CONTAINERS = (list, dict, set, deque, Counter, defaultdict, OrderedDict)
"""Types of containers whose contents an op may change."""

ENDS = (*VALUES, ModuleType, type, CodeType)
"""Types of objects from which nothing is to be reached that an op may change."""

GLOBAL = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME")
"""Python's instructions for the names of a module."""

FOUND = "multifold_found"
"""The attribute of what stands in the place of a function while a program runs: that function."""

FEW = 64
"""A container with more entries is taken for data and not looked into, as each trial would pay for it."""

MANY = 256
"""Objects that are reached at most. Those far away are data, as the trees that a training loop binds."""


def bare(x: Any) -> Any:
    """Return the function in whose place a wrapper stands while a program runs; anything else as it is."""
    return vars(x).get(FOUND, x) if isinstance(x, FunctionType) else x


def makers(op: Any) -> Iterator[Any]:
    """Yield the objects that an op consists of.

    A method: its function, then its object. A partial: what its function consists of, then, likewise, its
    arguments. A population: its modules. Anything else: the op itself.
    """
    if isinstance(op, Population):
        yield from op.modules
        return
    if isinstance(op, functools.partial):
        yield from makers(op.func)
        for part in (*op.args, *op.keywords, *op.keywords.values()):
            yield from makers(part)
        return
    function, owner = attribute_of(op, "__func__", None), owner_of(op, None)
    if function is None or owner is None:
        yield op
    else:  # a method, or what a framework makes of one
        yield function
        yield owner


def owners_of(backend: Backend, model: Any, op: Any) -> list[Any]:
    """Return a list: the model, what the op consists of (`makers`), and what its functions use.

    They use modules and arrays of the framework and random generators, found by `reached`.

    >>> from multifold._numpy.backend import NumpyBackend
    >>> rng = np.random.default_rng(0)
    >>> def noise(x):
    ...     return x + rng.random(x.shape)
    >>> owners_of(NumpyBackend(), None, noise) == [None, noise, rng]
    True
    """
    parts = [*makers(op)]
    functions = [part for part in parts if isinstance(part, FunctionType)]
    if not functions:
        return [model, *parts]
    known = {id(part) for part in parts}
    around = reached(backend, functions, FEW)
    own = [x for x, _ in around if is_generator(x) or backend.owns(x) or backend.hosts(x)]
    return [model, *parts, *[x for x in own if id(x) not in known]]


def is_generator(x: Any) -> bool:
    """Return whether an object is a random generator of NumPy or Python.

    The classes are named here, where the first look at them loads `numpy.random`, not when multifold is
    imported.
    """
    return isinstance(x, (np.random.Generator, np.random.RandomState, random.Random))


def used_by(backend: Backend, op: Any) -> list[Any]:
    """Return the framework's modules that an op calls, found by the names in its code; one may come twice.

    Where the code says ``self.norm`` or ``net.norm``, that is the part ``norm``, and not the whole model.
    The code of functions and methods that it names is read as well, if they are of the same Python module.
    If the op is a module of the framework itself, it is among the result.
    """
    owner = owner_of(op, None)
    used = [x for x in makers(op) if x is not owner]
    todo = [x for x in used if isinstance(x, FunctionType)]
    seen = set[FunctionType]()
    while todo and len(seen) < MANY:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        names = tuple(names_of(function.__code__))
        for holder in (owner, *around(function)):
            held = [attribute_of(holder, name, None) for name in names]
            parts = [x for x in held if x is not None and backend.hosts(x)]
            own = [attribute_of(x, "__func__", x) for x in (holder, *held)]
            todo += [x for x in own if isinstance(x, FunctionType) and x.__module__ == function.__module__]
            used += parts if parts or holder is owner else [holder]
    return [x for x in used if backend.hosts(x) and not isinstance(x, (FunctionType, MethodType))]


def reached(
    backend: Backend, roots: Sequence[Any], most: int = FEW, is_home: Callable[[Any], bool] | None = None
) -> Iterator[tuple[Any, bool]]:
    """Yield pairs: each object that can be reached from ``roots``, and whether it is looked into.

    The roots come first, the nearest next, each object once, at most ``MANY + 1``. What an object holds is
    reached only if it is looked into. Numbers, strings, classes and Python modules are left out.

    Parameters
    ----------
    backend : Backend
        What knows which attributes the framework keeps for itself.
    roots : sequence of object
        Where it begins.
    most : int
        How many entries a container may have, if they are to be reached. A longer one is data.
    is_home : callable, optional
        Takes an object; returns whether it is looked into. Those of the roots' packages always are.
    """
    homes = {package_of(part) for root in roots for part in makers(root)}
    seen = dict[int, Any]()  # kept, since the id of an object that is gone may be another one's
    # A queue, so that the search is breadth first: if `MANY` ends it, what is left out is farthest from the
    # op.
    todo = deque((root, True) for root in roots)
    while todo:
        x, is_root = todo.popleft()
        if isinstance(x, ENDS) or id(x) in seen:
            continue
        seen[id(x)] = x
        is_own = is_root or package_of(x) in homes or (is_home is not None and is_home(x))
        # The class of a SimpleNamespace is from `types`, but its attributes are the user's own.
        inside = parts_of(backend, x, most, is_own or type(x) is SimpleNamespace)
        yield x, inside is not None
        if len(seen) > MANY:
            return
        todo.extend((part, False) for part in inside or ())


def parts_of(backend: Backend, x: Any, most: int, is_own: bool) -> Iterable[Any] | None:
    """Return what an object holds: entries, attributes, or what a function binds; None if nothing counts.

    Of a function that is `around`, of a partial its function and arguments, of a method its object and
    function. A container of more than ``most`` entries counts as nothing, and functions in one are left
    out. The attributes of another object count if ``is_own``: it is a root, or of the package of one.
    """
    if isinstance(x, FunctionType):
        return around(x)
    if type(x) in CONTAINERS or type(x) is tuple:
        if len(x) > most:
            return None
        # Functions in a container are other ops, as in a model {"leaf": leaf, "join": join}. This op does
        # not reach what those reach.
        entries = x.values() if isinstance(x, dict) else x
        return [part for part in entries if not isinstance(part, FunctionType)]
    if isinstance(x, functools.partial):
        return x.func, *x.args, *x.keywords.values()
    owner = owner_of(x, None)
    if owner is not None:
        return owner, attribute_of(x, "__func__", None)
    if is_own and hasattr(x, "__dict__"):
        reserved = backend.reserved(x)
        return [part for name, part in vars(x).items() if name not in reserved]
    return None


def package_of(x: Any) -> str:
    """Return the top package of a function, or of the class of another object.

    >>> package_of(np.ones(2)), package_of(package_of)
    ('numpy', 'multifold')
    """
    return module_of(x if isinstance(x, FunctionType) else type(x)).partition(".")[0]


def module_of(x: Any) -> str:
    """Return the name of the Python module of a function or class; "" where that is not said."""
    found = getattr(x, "__module__", None)
    return found if isinstance(found, str) else ""


def around(function: FunctionType) -> Iterator[Any]:
    """Yield what a function finds around it: what it binds (`bound_by`), then globals that its code names.

    A name without a value yields None. Functions of other Python modules are left out.
    """
    yield from bound_by(function)
    for name in globals_of(function.__code__):
        found = bare(function.__globals__.get(name))
        # A function of another module counts as one of a library: its code is not followed.
        if not isinstance(found, FunctionType) or found.__globals__ is function.__globals__:
            yield found


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that code names, then those of functions inside; some twice."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_of(inner)


# `dis` takes the code apart instruction by instruction, and each trial asks again about the same code.
@functools.lru_cache(maxsize=4096)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals that code, and functions inside of it, use, each once; no attributes.

    >>> globals_of(compile("def f(x): return x.run(size)", "", "exec").co_consts[0])
    ('size',)
    """
    own = [x.argval for x in dis.get_instructions(code) if x.opname in GLOBAL]
    inner = [name for x in code.co_consts if isinstance(x, CodeType) for name in globals_of(x)]
    return tuple(dict.fromkeys([*own, *inner]))


def bound_by(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function binds: its defaults, then the variables of functions around it.

    A variable that has no value yet is left out.
    """
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell: the variable is not assigned yet
            yield cell.cell_contents
