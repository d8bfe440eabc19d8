"""What the code of a program may write outside of its own names, told from its bytecode.

Most programs write nothing but their local variables, so nothing has to be looked at while their examples
take turns. For others it is known what to look at:

>>> def program(x):
...     found = []
...     found.append(x)
...     stats["count"] += 1
...     model.last = x
>>> wrote = written_by(program.__code__)
>>> [(x.name, x.root) for x in wrote.attributes], bool(wrote.contents)
([('last', 'model')], True)

Here ``found`` is a list of its own. What compiled code writes is not seen, but for `Settings` that are
known.
"""

from __future__ import annotations

import decimal
import functools
import importlib.util
import itertools
import locale
import operator
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from multifold._engine.ops.reach import FEW, FOUND, VALUES, globals_of, module_of
from multifold._engine.ops.state import NOTHING, read_cell
from multifold.lazy.frames import ATTRIBUTES, CALLS, NAMES, Steps, where

CHANGERS = {
    *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove"),
    *("clear", "add", "discard", "update", "setdefault", "sort", "reverse", "rotate", "subtract"),
    *("move_to_end", "intersection_update", "difference_update", "symmetric_difference_update"),
    *("fill", "put", "itemset", "resize", "partition"),
    *("copyto", "place", "putmask", "put_along_axis", "fill_diagonal", "at", "shuffle"),
    *(
        "heappush",
        "heappop",
        "heapify",
        "heapreplace",
        "heappushpop",
        "insort",
        "insort_left",
        "insort_right",
    ),
    *("assign", "assign_add", "assign_sub", "scatter_add", "scatter_update", "scatter_nd_update"),
    *("setitem", "delitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iconcat", "ior", "iand", "ixor", "ilshift", "irshift"),
    *("__setitem__", "__delitem__", "__iadd__", "exec"),
}
"""Methods and functions that change what a container holds, or an array."""

OF_CONTAINERS = {
    *("append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove"),
    *("clear", "discard", "update", "setdefault", "move_to_end", "reverse", "rotate"),
}
"""Methods of `CHANGERS` that no array has."""

READERS = {"items", "keys", "values", "get", "copy"}
"""Methods of a dictionary that change nothing in it."""

OPTIONS = {"out", "inplace"}
"""Keywords that let a function change one of its arguments."""

MAKERS = {"list", "dict", "set", "deque", "Counter", "defaultdict", "OrderedDict", "sorted", "bytearray"}
"""Functions whose result is a new container."""

NUMBER_MAKERS = {"len", "int", "float", "round", "ord", "bool"}
"""Functions whose result is a number."""

STDLIB = sys.stdlib_module_names - {"__main__"}
"""Packages of Python itself."""

BUILDS = ("BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_CONST_KEY_MAP", "LIST_EXTEND", "DICT_UPDATE")
"""Instructions after which there is a new container on the stack."""

LOCKS = {"acquire", "release"}
SEEDERS = {
    *("seed", "set_seed", "manual_seed", "manual_seed_all", "set_random_seed"),
    *("set_state", "setstate", "set_rng_state", "set_rng_state_all", "set_global_generator"),
    "seed_everything",
}
"""Methods that change a lock, and those that set a random generator."""

NAMELESS = {"setattr", "delattr", "vars", "globals", "__dict__", "__setattr__"}
"""What writes to attributes that the code does not name."""

BY_TEXT = {"getattr", "hasattr", "attrgetter", "methodcaller", "vars", "__dict__"}
"""What finds attributes whose names are texts in the code."""

COMPILED = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
"""Types of functions and methods that are compiled."""

Settings = Mapping[str, Callable[[], Any]]
"""Name of a function that changes a setting of the process or framework -> what returns the setting."""


def decimal_settings() -> tuple[Any, ...]:
    """Return how Python's decimal numbers are computed: what the context says, but for its flags."""
    now = decimal.getcontext()
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, (*now.traps.values(),)


def patches_begun() -> tuple[Any, ...]:
    """Return the patches of `unittest.mock` whose ``start()`` was called, and ``stop()`` not yet."""
    mock = sys.modules.get("unittest.mock")
    return tuple(getattr(getattr(mock, "_patch", None), "_active_patches", ()))


OF_PROCESS: Settings = {
    "chdir": os.getcwd,
    "environ": lambda: tuple(os.environ.items()),
    "putenv": lambda: tuple(os.environ.items()),
    "simplefilter": lambda: tuple(warnings.filters),
    "filterwarnings": lambda: tuple(warnings.filters),
    "resetwarnings": lambda: tuple(warnings.filters),
    "setrecursionlimit": sys.getrecursionlimit,
    "setlocale": lambda: locale.setlocale(locale.LC_ALL),
    **dict.fromkeys(("getcontext", "setcontext"), decimal_settings),
    **dict.fromkeys(("patch", "start"), patches_begun),
}
"""Settings of the process, by names of the code that changes them."""


class NameStore(NamedTuple):
    """A name that some code stores into.

    Attributes
    ----------
    name : str
        The name of an attribute, a global, or a variable of a function around.
    root : str or None
        The name of the object whose attribute it is, if the code says that in names, as "model.layer".
    where : str
        The line, as "model.py:12".
    """

    name: str
    root: str | None
    where: str


class Import(NamedTuple):
    """What an ``import`` inside of a function binds: a module, or ``part`` of it.

    Attributes
    ----------
    name : str
        The variable that stands for it.
    module : str
        The name of the module, after as many dots as `importlib.import_module` takes.
    part : str or None
        The name after ``from ... import``; None for the module itself.
    """

    name: str
    module: str
    part: str | None

    def found(self, package: str | None) -> Any:
        """Return what was imported, for a function in ``package``; NOTHING if that was not done yet."""
        name = self.module
        if name.startswith("."):
            name = importlib.util.resolve_name(name, package) if package else ""
        module = sys.modules.get(name, NOTHING)
        return module if self.part is None else getattr(module, self.part, NOTHING)


class CodeWrites(NamedTuple):
    """What one code object, and those inside of it, may write outside of local variables.

    Attributes
    ----------
    attributes, globals, variables : tuple of NameStore
        Attributes of objects, names of the module, and variables of functions around.
    contents : str or None
        A line that changes what a container or an array holds that is not new in the code; None if none
        does.
    arrays : bool
        Whether such a line may change an array: it does more than call methods that only containers have.
    names : frozenset of str
        All names of globals, attributes and methods in the code.
    stores_dict : bool
        Whether it does more with a ``__dict__`` than read it.
    imports : tuple of Import
        What the code imports where it runs.
    """

    attributes: tuple[NameStore, ...]
    globals: tuple[NameStore, ...]
    variables: tuple[NameStore, ...]
    contents: str | None
    arrays: bool
    names: frozenset[str]
    stores_dict: bool
    imports: tuple[Import, ...]


@functools.lru_cache(maxsize=4096)
def written_by(code: CodeType) -> CodeWrites:
    """Return what a code object may write, with the functions inside of it.

    Attributes that ``__init__`` gives its own object are left out, for the object is new.
    """
    steps = Steps.of(code)
    own = code.co_varnames[0] if code.co_name == "__init__" and code.co_argcount else None
    attributes, names_of_module, variables = list[NameStore](), list[NameStore](), list[NameStore]()
    contents, arrays = None, False
    fresh, numbers = fresh_names(code), number_names(code)
    for number, step in enumerate(steps.steps):
        at = where(code, step.line or code.co_firstlineno)
        if step.name in ("STORE_ATTR", "DELETE_ATTR"):
            root = root_of(steps, number - 1)
            if root is None or root != own:
                attributes.append(NameStore(step.value, root, at))
        elif step.name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            names_of_module.append(NameStore(step.value, None, at))
        elif step.name in ("STORE_DEREF", "DELETE_DEREF") and step.value in code.co_freevars:
            variables.append(NameStore(step.value, None, at))
        elif changes_contents(steps, number, fresh, numbers):
            contents = contents or at
            arrays = arrays or step.name not in ATTRIBUTES or step.value not in OF_CONTAINERS
    if any(isinstance(x, tuple) and not OPTIONS.isdisjoint(x) for x in code.co_consts):  # names of keywords
        contents, arrays = contents or where(code, code.co_firstlineno), True
    inner = [written_by(x) for x in code.co_consts if isinstance(x, CodeType)]
    return CodeWrites(
        (*attributes, *[x for one in inner for x in one.attributes]),
        (*names_of_module, *[x for one in inner for x in one.globals]),
        # What a function inside stores into a variable of this one is no one else's.
        (*variables, *[x for one in inner for x in one.variables if x.name in code.co_freevars]),
        next((x for x in (contents, *[one.contents for one in inner]) if x), None),
        arrays or any(one.arrays for one in inner),
        frozenset(code.co_names).union(*[one.names for one in inner]),
        not only_reads_dict(steps) or any(one.stores_dict for one in inner),
        (*imports_of(steps), *[x for one in inner for x in one.imports]),
    )


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Return the names of globals, attributes and methods in code, also those that it asks for by texts.

    >>> sorted(names_in((lambda x: getattr(x, "factor", 1.0)).__code__))
    ['factor', 'getattr']
    """
    names = written_by(code).names
    if names.isdisjoint(BY_TEXT):
        return names
    inner = [names_in(x) for x in code.co_consts if isinstance(x, CodeType)]
    return names.union([x for x in code.co_consts if isinstance(x, str)], *inner)


def only_reads_dict(steps: Steps) -> bool:
    """Return whether code does no more with a ``__dict__`` than give its entries as keywords or read them.

    >>> [only_reads_dict(Steps.of(f.__code__)) for f in (
    ...     lambda x: dict(**x.__dict__), lambda x: x.__dict__.items(), lambda x: x.__dict__.update(y=1))]
    [True, True, False]
    """
    after = [y for x, y in itertools.pairwise(steps.steps) if x.value == "__dict__"]
    reads = [x.name == "DICT_MERGE" or (x.name in ATTRIBUTES and x.value in READERS) for x in after]
    return all(reads)


def imports_of(steps: Steps) -> Iterator[Import]:
    """Yield what some code imports, each with the variable that it is stored in."""
    module = ""
    for number, step in enumerate(steps.steps):
        after = next((x.value for x in steps.steps[number + 1 :] if x.name.startswith("STORE_")), "")
        if step.name == "IMPORT_NAME":
            level = steps.steps[number - 2].value
            module = "." * (level if isinstance(level, int) else 0) + step.value
            yield Import(after, module, None)
            yield Import(after, module.partition(".")[0], None)
        elif step.name == "IMPORT_FROM":
            yield Import(after, module, step.value)


def root_of(steps: Steps, number: int) -> str | None:
    """Return the name of what step ``number`` leaves on the stack, as "x" or "x.part", or None."""
    parts = list[str]()
    step = steps.steps[number]
    while step.name == "LOAD_ATTR" and number:
        parts.append(step.value)
        number -= 1
        step = steps.steps[number]
    if not step.name.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")):
        return None
    return ".".join([step.value, *parts[::-1]])


def changes_contents(steps: Steps, number: int, fresh: frozenset[str], numbers: frozenset[str]) -> bool:
    """Return whether a step changes what a container or an array holds, but for those named in ``fresh``.

    ``numbers`` are the names that always stand for numbers. Such steps are ``x[i] = v``, ``x += v`` where
    ``x`` may be an array, ``x.append(v)``, and ``x.add_(v)``.
    """
    step = steps.steps[number]
    if step.name in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
        last: int | None = number - 1
        if steps.steps[number - 1].name == "SWAP":  # of x[i] += v: x and i were copied for x[i]
            copied = steps.begin(number - 3, 1)
            last = None if copied is None or steps.steps[copied].name != "COPY" else copied - 1
        index = None if last is None else steps.begin(last, 1)
        begin = None if index is None else steps.begin(index - 1, 1)
        return begin is None or root_of(steps, begin) not in fresh
    if step.name in ("LOAD_METHOD", "LOAD_ATTR"):
        is_changer = step.value in CHANGERS or (step.value.endswith("_") and not step.value.endswith("__"))
        is_entry = step.value == "at" and is_indexed(steps, number)
        return is_changer and not is_entry and root_of(steps, number - 1) not in fresh
    if step.name in ("LOAD_GLOBAL", "LOAD_NAME"):
        return step.value in CHANGERS
    if step.name == "BINARY_OP" and step.value is not None and is_in_place(step):
        if steps.steps[number - 1].name != "LOAD_CONST":
            return True
        target = steps.steps[number + 1]  # a number, as in n += 1, is no array
        return target.name == "STORE_FAST" and target.value not in numbers
    return False


ENTRIES = {"BINARY_SUBSCR": 1, "BINARY_SLICE": 2}
"""Python's instructions for ``x[i]`` and ``x[i:j]``, and how many values are the index."""


def is_indexed(steps: Steps, number: int) -> bool:
    """Return whether an entry is taken of what step ``number`` loads, as of ``at`` in ``x.at[i]``.

    So it is in JAX; ``at`` of a function of NumPy is called, and changes an array.

    >>> functions = lambda x: x.at[0].set(1), lambda x: np.add.at(x, 0, 1), lambda x: x.at[0].add(1)
    >>> [bool(written_by(function.__code__).contents) for function in functions]
    [False, True, True]
    """
    return any(
        step.name in ENTRIES and steps.begin(i - 1, ENTRIES[step.name]) == number + 1
        for i, step in enumerate(steps.steps[number + 2 :], number + 2)
    )


def is_in_place(step: Any) -> bool:
    """Return whether a ``BINARY_OP`` is one of ``+=`` and its like."""
    return isinstance(step.value, int) and step.value >= FIRST_IN_PLACE


FIRST_IN_PLACE = 13
"""Python numbers the operators: 0 to 12 are ``+`` to ``^``, and 13 to 25 the same in place."""


@functools.lru_cache(maxsize=4096)
def fresh_names(code: CodeType) -> frozenset[str]:
    """Return the local variables of code that always stand for containers which it has made itself.

    Arguments are none of these, nor what is stored from anywhere else.

    >>> def program(xs):
    ...     first, second = [], []
    ...     third, fourth = xs, {}
    ...     fifth = xs or []
    >>> sorted(fresh_names(program.__code__))
    ['first', 'fourth', 'second']
    """
    own = Steps.of(code)
    steps = own.steps
    found, other = set[str](), {*code.co_varnames[: arguments_of(code)]}
    stores = 0  # so many variables were stored just before, as in ``a, b = [], []``
    for number, (before, step) in enumerate(itertools.pairwise(steps), 1):
        if step.name == "STORE_FAST":
            made = steps[max(0, number - 1 - 2 * stores) : number - stores]
            is_new = before.name in BUILDS or is_maker(own, number - 1)
            is_one_of_several = stores > 0 and all(x.name in BUILDS and x.value == 0 for x in made)
            is_new = (is_new or is_one_of_several) and not step.is_target  # as in fifth = xs or []
            (found if is_new else other).add(step.value)
            stores += 1
        else:
            stores = 0
            if step.name.startswith("STORE_FAST_"):  # of Python 3.13, of two variables
                other.update(step.value)
    return frozenset(found - other)


ARRAY_MAKERS = {
    *("zeros", "ones", "empty", "full", "zeros_like", "ones_like", "empty_like", "full_like", "Tensor"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"),
}
"""Functions of frameworks and methods of arrays that make a new array."""


@functools.lru_cache(maxsize=4096)
def array_makers(code: CodeType) -> dict[str, str | None]:
    """Return the local variables of code that always stand for arrays which it has made itself.

    Of each what the name of the framework was, if a function of it made the array; None for a method.

    >>> def program(x, n):
    ...     first = Variable(torch.zeros(n, 2).type_as(x))
    ...     second = x.new_zeros(n)
    ...     third = torch.relu(x)
    >>> array_makers(program.__code__)
    {'first': 'torch', 'second': None}
    """
    steps = Steps.of(code)
    found, other = dict[str, str | None](), {*code.co_varnames[: arguments_of(code)]}
    for number, step in enumerate(steps.steps):
        if step.name == "STORE_FAST":
            begin = None if step.is_target else steps.begin(number - 1, 1)
            loads = [] if begin is None else [x for x in steps.steps[begin:number] if x.name != "PUSH_NULL"]
            loads = loads[1:] if loads and loads[0].value == "Variable" else loads
            is_made = len(loads) > 2 and loads[1].value in ARRAY_MAKERS and loads[-1].name in CALLS
            root = loads[0].value if is_made and loads[0].name in NAMES else None
            # A method of the user may be called ``zeros``; only arrays have one called ``new_zeros``.
            if is_made and loads[1].name in ATTRIBUTES and (root or loads[1].value.startswith("new_")):
                found[step.value] = root
            else:
                other.add(step.value)
        elif step.name.startswith("STORE_FAST_"):  # of Python 3.13, of two variables
            other.update(step.value)
    return {name: root for name, root in found.items() if name not in other}


@functools.lru_cache(maxsize=4096)
def number_names(code: CodeType) -> frozenset[str]:
    """Return the local variables of code that stand for constants, numbers, or what an operator has made.

    >>> def program(x, y):
    ...     n = 0
    ...     n += 1
    ...     x += 1
    ...     z = y or 0
    ...     z += 1
    >>> sorted(number_names(program.__code__))
    ['n']
    """
    steps = Steps.of(code)
    found, other = set[str](), {*code.co_varnames[: arguments_of(code)]}
    for number, step in enumerate(steps.steps):
        if step.name == "STORE_FAST":
            is_number = steps.steps[number - 1].name in ("LOAD_CONST", "BINARY_OP")
            is_number = is_number or is_maker(steps, number - 1, NUMBER_MAKERS)
            is_number = is_number and not step.is_target  # as in z = y or 0
            (found if is_number else other).add(step.value)
    return frozenset(found - other)


def arguments_of(code: CodeType) -> int:
    """Return how many of the local variables of code are arguments: those come first."""
    stars = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
    return code.co_argcount + code.co_kwonlyargcount + stars


def is_maker(steps: Steps, number: int, makers: Set[str] = MAKERS) -> bool:
    """Return whether step ``number`` calls a function in ``makers``, or makes a list, set or dictionary.

    >>> def program(xs):
    ...     first = [x for x in xs]
    ...     second = dict(xs)
    ...     third = dict(xs).get(0)
    ...     fourth, fifth, sixth = xs[0], [x for x in xs], xs[1]
    >>> sorted(fresh_names(program.__code__))
    ['first', 'second']
    """
    place = steps.called_by(number) if steps.steps[number].name in CALLS else None
    loads = [] if place is None else [x for x in steps.steps[slice(*place)] if x.name != "PUSH_NULL"]
    if any(x.name == "MAKE_FUNCTION" for x in loads):  # of a comprehension
        return makers is MAKERS
    return len(loads) == 1 and loads[0].name in NAMES and loads[0].value in makers


ENDS = (ModuleType, *VALUES)
"""Types of what leads to no function."""

PLAIN_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
"""Types of containers whose functions count."""


def functions_in(
    roots: Sequence[Any],
    is_known: Callable[[str], bool],
    is_end: Callable[[Any], bool] = lambda x: False,
    *,
    tables: bool = True,
) -> Iterator[FunctionType]:
    """Yield the functions of the user that code which begins at ``roots`` may call, as far as names tell.

    From a function lead what it binds, the names of its module in its code, and attributes of Python
    modules that it names. Of an object lead the methods of its class. Each comes once. Those of an object
    whose class the user has not written come, too, but nothing leads on from them.

    Parameters
    ----------
    roots : sequence of object
        Functions, methods, and objects whose methods may be called.
    is_known : callable
        Takes the name of a module; returns whether it is one of Python or the framework, whose functions
        are left out.
    is_end : callable
        Takes a function or an object; returns whether it is left out, with what leads on from it. The
        default leaves out none.
    tables : bool
        Whether functions count that are found in containers only, as in a dictionary of functions.
    """
    seen = set[int]()
    kinds = set[tuple[int, bool]]()
    todo = [*roots]
    while todo:
        x = todo.pop()
        kind = type(x)
        if kind in VALUES or id(x) in seen:
            continue
        if isinstance(x, types.MethodType):
            todo += (x.__func__, x.__self__)
        elif isinstance(x, functools.partial):
            todo += (x.func, *x.args, *x.keywords.values())
        elif isinstance(x, property):
            todo += (x.fget, x.fset)
        elif isinstance(x, (staticmethod, classmethod)):
            todo.append(x.__func__)
        elif isinstance(x, (functools.cached_property, functools.partialmethod)):
            todo.append(x.func)
        elif isinstance(x, CACHED):
            todo.append(x.__wrapped__)
        elif isinstance(x, ENDS) or is_end(x):
            continue
        elif kind in PLAIN_CONTAINERS:
            seen.add(id(x))
            todo += entries_in(x) if tables else []
        elif isinstance(x, FunctionType):
            seen.add(id(x))
            if FOUND in vars(x):
                todo.append(vars(x)[FOUND])
            elif is_written_here(module_of(x)):
                yield x
                todo += [part for _, part in named_by(x)]
            elif hasattr(x, "registry"):  # of functools.singledispatch
                todo += x.registry.values()
        else:
            seen.add(id(x))
            is_class = isinstance(x, type)
            if is_class and is_users_class(kind):
                todo.append(kind)
            if not is_class:  # an object may hold functions
                held = getattr(x, "__dict__", None)
                values = [*held.values()] if isinstance(held, dict) else []
                tables_held = [part for part in values if tables and type(part) in PLAIN_CONTAINERS]
                todo += [part for part in values if isinstance(part, HELD)]
                todo += [entry for part in tables_held for entry in entries_in(part)]
                todo += entries_in(x) if tables and isinstance(x, tuple(PLAIN_CONTAINERS)) else []
            own = x if is_class else kind
            if (id(own), is_class) in kinds:
                continue
            for kind in own.__mro__:
                is_users = is_users_class(kind)
                is_met = (id(kind), is_class) in kinds
                kinds.add((id(kind), is_class))
                if is_met or (not is_users and is_known(module_of(kind))):
                    continue
                # An object of the user may be a descriptor, or a decorator, and be called.
                own_parts = [part for part in vars(kind).values() if type(part) not in VALUES]
                parts = [part for part in own_parts if is_code(part) or may_lead_on(part)]
                if is_users:
                    todo += parts
                elif not is_class:
                    yield from [part for part in parts if isinstance(part, FunctionType)]


def entries_in(x: Any) -> list[Any]:
    """Return the entries of a container, if they are few, that may be or hold code."""
    if len(x) > FEW:
        return []
    return [part for part in (x.values() if isinstance(x, dict) else x) if may_lead_on(part)]


def may_lead_on(x: Any) -> bool:
    """Return whether an entry of a container, or an attribute of a class, may be or hold code."""
    if isinstance(x, type):
        return is_users_class(x)
    return callable(x) or isinstance(x, tuple(PLAIN_CONTAINERS)) or is_of_user(x)


HELD = (FunctionType, types.MethodType, functools.partial)
"""Types of functions that objects hold."""


@functools.lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Return whether a module is the user's: neither multifold's, Python's, nor installed.

    Its file lies outside of the folders of Python and site-packages, or it has none, as ``__main__`` in a
    notebook, or what `exec` runs.
    """
    top = module.partition(".")[0]
    if (
        f"{module}.".startswith(("multifold.", "multifold_")) or top in STDLIB
    ):  # the former may be installed so that its code can be changed
        return False
    where = getattr(sys.modules.get(module), "__file__", None)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return module == "__main__" or where is None or not where.startswith(tuple(installed))


def is_known_module(inner: tuple[str, ...], module: str) -> bool:
    """Return whether a module is of Python, NumPy, or in ``inner``: multifold and the framework."""
    return f"{module}.".startswith((*inner, "numpy.")) or module.partition(".")[0] in STDLIB


def is_code(x: Any) -> bool:
    """Return whether an attribute of a class is a function, a property, or what is made of one."""
    return isinstance(x, (FunctionType, property, staticmethod, classmethod, *MADE_OF_ONE))


CACHED = type(functools.lru_cache(len))
"""The type of functions whose results are kept."""

MADE_OF_ONE = (functools.cached_property, functools.partialmethod, functools.partial, CACHED)
"""Types of what stands in a class for a function."""


def is_of_user(x: Any) -> bool:
    """Return whether the class of an object is in a module of the user; see `is_written_here`.

    >>> is_of_user([]), is_of_user(decimal.Decimal(1))
    (False, False)
    """
    return is_users_class(type(x))


def is_users_class(kind: type) -> bool:
    """Return whether a class is in a module of the user; see `is_written_here`."""
    return is_written_here(module_of(kind))


def named_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield ``(name, object)`` for each name in the code of a function, and for what it binds.

    Of a Python module that it names, what can be called comes, too, if its code has the name.
    """
    names = written_by(function.__code__).names
    for name in globals_of(function.__code__):
        found = function.__globals__.get(name, NOTHING)
        yield name, found
        if isinstance(found, ModuleType):
            yield from called_in(found, names)
    for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
        yield name, read_cell(cell)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield function.__name__, default
    for one in written_by(function.__code__).imports:
        found = one.found(function.__globals__.get("__package__"))
        yield one.name, found
        if isinstance(found, ModuleType):
            yield from called_in(found, names)


def called_in(module: ModuleType, names: frozenset[str]) -> list[tuple[str, Any]]:
    """Return ``(name, object)`` for what ``names`` can call of a module, and of modules inside of it."""
    named = [(x, vars(module)[x]) for x in names if x in vars(module)]
    inner = [
        x for _, x in named if isinstance(x, ModuleType) and x.__name__.startswith(f"{module.__name__}.")
    ]
    found = [pair for pair in named if callable(pair[1])]
    return found + [pair for x in inner for pair in called_in(x, names)]


CALLED = (functools.partial, operator.methodcaller, *COMPILED)
"""Types of what `is_changer` may be true of."""


def is_changer(x: Any) -> bool:
    """Return whether an object is a function or method of `CHANGERS` that has another name in the code.

    >>> import operator
    >>> [is_changer(x) for x in (operator.setitem, [].append, operator.methodcaller("append", 1), len)]
    [True, True, True, False]
    """
    if isinstance(x, functools.partial):
        return is_changer(x.func)
    if isinstance(x, operator.methodcaller):
        return x.__reduce__()[1][0] in CHANGERS
    return isinstance(x, COMPILED) and x.__name__ in CHANGERS


def is_setter(x: Any) -> bool:
    """Return whether an object is ``setattr``, or a method of an object like it, by whatever name."""
    return isinstance(x, COMPILED) and x.__name__ in NAMELESS
