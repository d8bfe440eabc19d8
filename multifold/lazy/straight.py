"""Straight functions: those that can be recorded whole, as one call, without being told to.

What a straight function does with arrays depends on nothing but the forms of its arguments and on what it
finds around it, and it leaves nothing changed: it reads no values, calls neither itself nor what prints,
draws or counts, writes to local variables alone, and loops over nothing but its first argument, attributes
of it, and constants. Where a framework compiles nothing, it may loop over its other arguments, too: how
many entries these have is part of their form.

>>> import numpy as np
>>> def gate(x, y):
...     return np.tanh(x) * y
>>> def printed(x):
...     print(x.shape)
...     return x
>>> crooked(gate.__code__)
>>> crooked(printed.__code__)
"it names 'print'"

Code tells only a part of that, so a function is tried under a `StraightGuard`, which looks at each
function before it runs.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from multifold._engine.ops.reach import VALUES, globals_of
from multifold.lazy.candidates import names_inside
from multifold.lazy.frames import Steps, where
from multifold.lazy.writes import (
    CALLED,
    CHANGERS,
    OPTIONS,
    SEEDERS,
    arguments_of,
    array_makers,
    changes_contents,
    fresh_names,
    is_changer,
    is_in_place,
    is_written_here,
    names_in,
    written_by,
)

DENIED = SEEDERS | {
    *(
        "print",
        "input",
        "open",
        "exec",
        "eval",
        "compile",
        "setattr",
        "delattr",
        "globals",
        "locals",
        "vars",
    ),
    *("__dict__", "id", "iter", "next", "breakpoint", "warn", "random", "time", "sleep", "perf_counter"),
    *("item", "tolist", "numpy", "__array__", "backward", "grad", "grad_fn", "is_leaf"),
    *("register_hook", "retain_grad", "requires_grad_", "register_forward_hook", "checkpoint"),
    *("executing_eagerly", "executing_eagerly_outside_functions", "inside_function", "get_static_value"),
    *("is_symbolic_tensor", "Tracer", "is_concrete"),
    *("data_ptr", "storage", "untyped_storage", "share_memory_", "synchronize", "empty_cache", "save"),
    *(
        "set_default_dtype",
        "set_default_device",
        "set_num_threads",
        "set_grad_enabled",
        "acquire",
        "release",
    ),
}
"""Names of what reads values, or is seen outside of a call."""

BUILTINS = {
    *("abs", "all", "any", "callable", "divmod", "getattr", "hasattr", "isinstance", "issubclass", "len"),
    *("max", "min", "pow", "repr", "round", "sorted", "sum", "format", "ord", "chr", "__build_class__"),
}
"""Functions of Python that do nothing but return something."""

MADE = (list, dict, set, deque)
"""Containers that a function may make and change."""

PURE = {"math", "cmath", "operator", "_operator", "functools", "collections", "typing", "enum", "abc"}
"""Modules of Python whose functions do nothing but return something."""

FREED = {
    *[f"Weak{kind}Dictionary.__init__.<locals>.remove" for kind in ("Key", "Value")],
    "WeakSet.__init__.<locals>._remove",
}
"""What Python's weak containers call when an object that they refer to is freed."""

LOOPS = {"range", "zip", "enumerate", "reversed", "len"}
"""What a loop may put around what its object has."""

STORES = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
"""Instructions that store into something."""

MOST = 256
"""So many calls a straight function makes at most."""


class Crooked(BaseException):
    """Says why a function is not straight; its text is a phrase.

    ``except Exception`` does not catch it, and a function with a ``try`` of its own is not straight.
    """


@functools.lru_cache(maxsize=4096)
def crooked(code: CodeType, over_arguments: bool = False) -> str | None:
    """Return why code is not that of a straight function, as far as it tells itself; None if it may be.

    ``over_arguments`` says that it may loop over any arguments and variables, and write into arrays that it
    has made.
    """
    if code.co_flags & 0x2A0:  # generators, coroutines, and both
        return "it is a generator or a coroutine"
    wrote = written_by(code)
    denied = sorted(DENIED & names_in(code))
    if denied:
        return f"it names {denied[0]!r}"
    if any(isinstance(x, tuple) and not OPTIONS.isdisjoint(x) for x in code.co_consts):  # names of keywords
        return f"it lets a function change an argument at {where(code, code.co_firstlineno)}"
    store = next((x for x in (*wrote.attributes, *wrote.globals, *wrote.variables)), None)
    if store is not None:
        return f"it stores to {store.name!r} at {store.where}"
    if wrote.imports:
        return f"it imports {wrote.imports[0].name!r}"
    # That ``x += 1`` changes an array in place shows when the function is tried. So each local variable may
    # stand for a number here.
    steps, fresh, names = Steps.of(code), fresh_names(code), frozenset(code.co_varnames)
    if over_arguments:
        fresh = fresh.union(array_makers(code))
    own = code.co_varnames[0] if arguments_of(code) else None
    for number, step in enumerate(steps.steps):
        at = where(code, step.line or code.co_firstlineno)
        if step.name in STORES and changes_contents(steps, number, fresh, names):
            return f"it changes what something holds at {at}"
        if step.name == "GET_ITER" and not is_over_own(steps, number, None if over_arguments else own):
            others = "arguments" if over_arguments else "what its object has"
            return f"it loops over other things than {others} at {at}"
        if over_arguments and step.name == "BUILD_SET":
            return f"it makes a set, whose order is another one each time, at {at}"
        if step.name == "IS_OP" and steps.steps[number - 1].value not in (None, True, False):
            return f"it asks whether two things are one at {at}"
        if "JUMP_BACKWARD" in step.name and not is_for(steps, step):
            return f"it has a while loop at {at}"
    if Steps.of(code).handlers:
        return f"it has a try or with statement at {where(code, code.co_firstlineno)}"
    return None


@functools.lru_cache(maxsize=4096)
def names_changer(code: CodeType) -> bool:
    """Return whether code names a method like ``append`` of what may be no new container of its own.

    It may be another function of that name, as ``torch.add``.
    """
    steps, fresh, names = Steps.of(code), fresh_names(code), frozenset(code.co_varnames)
    return any(
        changes_contents(steps, number, fresh, names)
        for number, step in enumerate(steps.steps)
        if step.name != "BINARY_OP"
    )


def loops(code: CodeType) -> bool:
    """Return whether code, or a function inside of it, has a loop over more than attributes of ``self``.

    Without a first argument of that name each loop counts.

    >>> loops((lambda xs: [x + 1 for x in xs]).__code__), loops((lambda x: x + 1).__code__)
    (True, False)
    """
    steps, own = Steps.of(code), code.co_varnames[0] if arguments_of(code) else None
    begins = [i for i, step in enumerate(steps.steps) if step.name == "GET_ITER"]
    is_own = own == "self" and all(is_over_own(steps, i, own) for i in begins)
    return (bool(begins) and not is_own) or any(loops(x) for x in code.co_consts if type(x) is CodeType)


def is_over_own(steps: Steps, number: int, own: str | None) -> bool:
    """Return whether step ``number`` begins a loop over attributes of ``own``, the first argument.

    Without ``own`` it may be over any argument or variable.
    """
    begin = steps.begin(number - 1, 1)
    if begin is None:
        return False
    named = [x for x in steps.steps[begin:number] if x.name.startswith("LOAD_")]
    locals_ = [x.value for x in named if x.name.startswith("LOAD_FAST")]
    globals_ = [x.value for x in named if x.name.startswith("LOAD_GLOBAL")]
    return LOOPS.issuperset(globals_) and (own is None or {own}.issuperset(locals_))


def is_for(steps: Steps, step: Any) -> bool:
    """Return whether a jump back is that of a ``for`` loop: it leads to where the next item is taken."""
    number = steps.numbers.get(step.value)
    return number is not None and steps.steps[number].name == "FOR_ITER"


def changers_of(objects: Iterable[Any]) -> frozenset[str]:
    """Return the names of attributes of objects that are functions which change a container.

    >>> class Model: pass
    >>> model = Model()
    >>> model.note = [].append
    >>> changers_of([model])
    frozenset({'note'})
    """
    named = [(name, part) for x in objects for name, part in vars(x).items() if isinstance(part, CALLED)]
    return frozenset([name for name, part in named if is_changer(part)])


def adds_in_place(code: CodeType) -> bool:
    """Return whether code has ``x += y`` or the like, which changes a list that it was given."""
    return any(step.name == "BINARY_OP" and is_in_place(step) for step in Steps.of(code).steps)


def is_recursive(function: FunctionType) -> bool:
    """Return whether a function may call itself, also by way of others, as names tell."""
    return function.__name__ in names_inside(function)


class StraightGuard:
    """A context in which a function runs that may not be straight: it raises `Crooked` before that shows.

    It looks at each function of the user before it runs, and at each compiled function that these call.

    Parameters
    ----------
    is_known : callable
        Takes the name of a module; returns whether it is one of the framework, whose functions are left
        alone.
    changers : frozenset of str
        Names of attributes that change a container, see `changers_of`.
    over_arguments : bool
        Whether functions may loop over their arguments and write into arrays that they make, see `crooked`.

    Attributes
    ----------
    codes : dict of int to code
        The code of the functions of the user that have run, by its ``id``.
    around : dict of str to object
        What names of modules and of functions around stand for in these.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        changers: frozenset[str] = frozenset(),
        over_arguments: bool = False,
    ) -> None:
        self.is_known = is_known
        self.over_arguments = over_arguments
        self.changers = changers
        self.codes: dict[int, CodeType] = {}
        self.known: dict[int, Any] = {}
        self.around: dict[str, Any] = {}

    def __enter__(self) -> StraightGuard:
        before: Any = sys.getprofile()
        self.before = before
        if hasattr(before, "disable"):  # that of cProfile is no function
            before.disable()
        sys.setprofile(self.watch)
        return self

    @staticmethod
    def leave() -> None:
        """Leave the guard that is entered in this thread, if a key press has ended one before its end."""
        guard = getattr(sys.getprofile(), "__self__", None)
        if isinstance(guard, StraightGuard):
            guard.__exit__()

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        if hasattr(self.before, "enable"):
            self.before.enable()
        else:
            sys.setprofile(self.before)

    def watch(self, frame: FrameType, event: str, found: Any) -> None:
        """Look at what is about to run; raise `Crooked` if it may be seen outside of a call."""
        code = frame.f_code
        if event == "call":
            if id(code) in self.known:
                return
            module = frame.f_globals.get("__name__") or ""
            # A module that runs is being imported: what the framework imports when it first needs it, since
            # an import of the user's code shows in that code. And Python may free objects at any time.
            is_python = module.startswith("namedtuple_") or code.co_qualname in FREED
            if self.is_known(module) or is_python or code.co_name == "<module>":
                self.known[id(code)] = code
            elif is_written_here(module) or (frame.f_back and id(frame.f_back.f_code) in self.codes):
                # What the framework calls of others is its own business.
                self.known[id(code)] = code
                reason = None if module.partition(".")[0] in PURE else self.reason(frame, module)
                if reason is not None:
                    raise Crooked(reason)
        elif event == "c_call" and id(code) in self.codes and not self.is_harmless(found, code):
            name = getattr(found, "__qualname__", type(found).__name__)
            raise Crooked(f"it calls {name} at {where(code, frame.f_lineno)}")

    def reason(self, frame: FrameType, module: str) -> str | None:
        """Return why a function of the user must not run; if it may, note it and return None."""
        code = frame.f_code
        if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
            return f"it calls {module}.{code.co_qualname}"
        self.codes[id(code)] = code
        self.around |= {name: frame.f_globals.get(name) for name in globals_of(code)}
        self.around |= {name: frame.f_locals.get(name) for name in code.co_freevars}
        names = written_by(code).names
        makers = {frame.f_globals.get(root) for root in array_makers(code).values() if root is not None}
        if not all(isinstance(x, ModuleType) and self.is_known(x.__name__) for x in makers):
            return crooked(code, over_arguments=False)
        changers = [x for x in names if x in self.changers or is_changer(frame.f_globals.get(x))]
        if changers:
            return f"it names {min(changers)!r}, which changes what something holds"
        return crooked(code, self.over_arguments)

    def is_harmless(self, found: Any, code: CodeType) -> bool:
        """Return whether a compiled function that ``code`` calls does nothing but return something.

        It may change a container that the code has made.
        """
        owner = getattr(found, "__self__", None)
        kind = owner if isinstance(owner, type) else type(owner)
        module = owner.__name__ if isinstance(owner, ModuleType) else kind.__module__
        if owner is None:  # a method of a class, which gets its object as an argument, or a function
            kind = getattr(found, "__objclass__", object)
            module = kind.__module__ if kind is not object else found.__module__ or ""
        name = found.__name__
        if self.is_known(module):
            return name not in DENIED
        if name in CHANGERS:
            return issubclass(kind, MADE) and not names_changer(code)
        if isinstance(owner, ModuleType):
            return name in BUILTINS if module == "builtins" else module in PURE
        return issubclass(kind, (*VALUES, *MADE, tuple, frozenset))

    @property
    def names(self) -> frozenset[str]:
        """All names of globals, attributes and methods in the code that has run; see `names_in`."""
        return frozenset[str]().union(*map(names_in, self.codes.values()))
