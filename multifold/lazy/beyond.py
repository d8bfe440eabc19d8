"""What a cell finds beyond its own names, as far as the code of the program may change it.

A cell runs later than the program. So what it reads besides its arguments must stay what it is until then,
and that is more than its own names, which `multifold.lazy.seen` keeps: functions that it calls find names
of their modules, and its code reads attributes of classes, Python modules and other objects. Nearly all of
that never changes. From the code of the program it is known what it may store, and only that is kept here::

    class Settings:
        factor, size = 1.0, 4

    def scaled(x):  # a cell
        return x * Settings.factor * Settings.size

    def program(x):
        Settings.factor = 2.0
        return scaled(x)

Of what ``scaled`` reads, ``Settings.factor`` is kept, and ``Settings.size`` is not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.ops.reach import (
    CONTAINERS,
    FEW,
    FOUND,
    VALUES,
    bare,
    globals_of,
    names_of,
    reached,
)
from multifold._engine.ops.state import NOTHING, read_cell
from multifold.backend import Backend, attribute_of
from multifold.lazy.current import CELL, Recording, refusal
from multifold.lazy.frames import Steps
from multifold.lazy.seen import entries_of
from multifold.lazy.watched import HOLDERS, SMALL, entries, same
from multifold.lazy.writes import (
    NAMELESS,
    SEEDERS,
    functions_in,
    is_changer,
    is_known_module,
    is_of_user,
    is_setter,
    is_users_class,
    is_written_here,
    named_by,
    names_in,
    written_by,
)

MOST = 1024
"""Objects that are looked into at most."""

NAMING = NAMELESS | {"patch", "monkeypatch", "exec", "sys"}
"""Names in code which may store to any name."""

SETTERS = {"train": "training", "eval": "training"}
"""Methods that set an attribute of another name. What ``requires_grad_`` sets is part of each form."""

CALLED_WITH_OBJECTS = {"forward", "call"}
"""Methods that a framework calls where a module of it is called."""

SETTINGS_OF_OBJECTS = {"setLevel"}
"""Methods that change how an object behaves, whatever attributes of it code names."""


class ProgramStores:
    """What the code of a program may store, outside of its cells: those are looked at when they are tried.

    Parameters
    ----------
    roots : sequence of object
        Functions of the program, and objects whose methods it may call.
    is_known : callable
        Takes the name of a module; returns whether it is one of Python or the framework.
    everything : bool
        Whether it is taken to store to everything.
    settings : collection of str
        Names of functions that change settings of the framework.

    Attributes
    ----------
    names : frozenset of str
        Attributes, globals and variables that it stores to.
    modes : frozenset of str
        Attributes that methods of other names set, which it calls.
    any_name : bool
        Whether it may store to other names, too, as by ``setattr``.
    contents : bool
        Whether it changes what a container or an array holds.
    arrays : bool
        Whether it may change what an array holds.
    variables : bool
        Whether it sets context variables.
    settings : bool
        Whether it changes settings of the framework, or how an object behaves.
    seeds : bool
        Whether it may seed a random generator of the framework.
    """

    def __init__(
        self,
        roots: Sequence[Any],
        is_known: Callable[[str], bool] = lambda _: False,
        *,
        everything: bool = False,
        settings: Collection[str] = (),
    ) -> None:
        begin = {attribute_of(x, "__name__", "") for x in roots} | CALLED_WITH_OBJECTS
        functions = [*functions_in(roots, is_known, is_cell)]
        found = [written_by(x.__code__) for x in functions]
        stores = [(*one.attributes, *one.globals, *one.variables) for one in found]
        called = frozenset[str]().union(*[one.names for one in found])
        self.names = frozenset([store.name for one in stores for store in one])
        # Code that Python makes for a dataclass reads ``__class__``; only to store it counts.
        sets = "__class__" in self.names or not called.isdisjoint({*settings, *SETTINGS_OF_OBJECTS})
        self.settings = everything or sets
        named = [innermost(x) for function in functions for _, x in named_by(function)]
        methods = {attribute_of(x, "__name__", "") for x in named if x is not eval}.union(
            *[methods_named(x.__code__) for x in functions]
        )
        self.modes = frozenset([name for method, name in SETTERS.items() if method in methods])
        makes = any(
            "__init__" in one.names
            for x, one in zip(functions, found, strict=True)
            if x.__name__ != "__init__"
        )
        sets = any(one.stores_dict for one in found) or not (NAMING - {"__dict__"}).isdisjoint(called)
        self.any_name = everything or makes or sets or any(map(is_setter, named))
        self.contents = everything or any(one.contents for one in found) or any(map(is_changer, named))
        self.arrays = everything or any(one.arrays for one in found) or any(map(is_changer, named))
        self.variables = everything or not called.isdisjoint({"set", "reset", "run"})
        # "seed" is a common name for a number, too.
        self.seeds = not names_called(functions, begin).isdisjoint(SEEDERS - {"seed"})
        self.methods: dict[type, list[FunctionType]] = {}
        self.code = [
            *[(x.__globals__, name) for x in functions for name in globals_of(x.__code__)],
            *[(kind, name) for kind in classes_of(roots) for name, x in vars(kind).items() if code_in(x)],
        ]
        self.code_before = [*map(code_named, self.code)]

    def have_code(self) -> bool:
        """Return whether names of modules and classes stand for the functions that they first stood for."""
        return [*map(code_named, self.code)] == self.code_before

    @property
    def is_idle(self) -> bool:
        """Whether the program stores nothing that a cell could find."""
        return not (self.names or self.modes or self.any_name or self.contents or self.variables)

    def may_store(self, name: str) -> bool:
        """Return whether the program may store to an attribute, a global or a variable of this name."""
        return self.any_name or name in self.names or name in self.modes


def every_store() -> ProgramStores:
    """Return stores of a program that may change everything."""
    return ProgramStores([], everything=True)


class BeyondPlace(NamedTuple):
    """Something that a cell reads and the program may change: ``read()`` was ``value``."""

    text: str
    read: Callable[[], Sequence[Any]]
    value: Sequence[Any]


class Beyond:
    """What functions and objects find beyond their own names, as of now.

    Parameters
    ----------
    roots : sequence of object
        The function of a cell, or an object whose methods it may call.
    stores : ProgramStores
        What the program stores: nothing else is kept.
    is_known : callable
        Takes the name of a module; returns whether it is one of Python or the framework, where nothing is
        looked at.
    version_of : callable
        ``version_of(x)`` returns how often an array was changed in place, and None for anything else.
    running : sequence of object
        Models whose own calls run now: what their ``forward`` finds, no cell finds by calling them.

    Attributes
    ----------
    places : list of BeyondPlace
        What is kept.
    """

    def __init__(
        self,
        roots: Sequence[Any],
        stores: ProgramStores,
        is_known: Callable[[str], bool],
        version_of: Callable[[Any], int | None] = lambda x: None,
        running: Sequence[Any] = (),
    ) -> None:
        self.stores = stores
        self.is_known = is_known
        self.version_of = version_of
        self.places: list[BeyondPlace] = []
        self.names = set[str]()
        self.objects: dict[int, Any] = {}
        self.holders: list[Any] = []
        # Attributes of the roots are compared by others.
        self.own = {id(x) for x in roots if not isinstance(x, FunctionType)}
        self.kept = set[tuple[int, str]]()
        self.running = {id(x) for x in running}
        if stores.is_idle:
            return
        todo = [*roots]
        for root in roots:
            if not isinstance(root, FunctionType):
                todo += self.methods_of(type(root))
        named = -1
        while len(self.names) > named:  # what is found may name more attributes of what was found before
            named = len(self.names)
            self.look(todo)
            todo = [part for x in self.holders for part in self.held(x)]

    def methods_of(self, kind: type) -> Sequence[FunctionType]:
        """Return the methods of a class that the user has written, and functions that these may call."""
        found = self.stores.methods.get(kind)
        if found is None:
            found = [*functions_in([kind], self.is_known)]
            self.stores.methods[kind] = found
        return found

    def is_told(self) -> bool:
        """Return whether what code finds has names in it, and lies in this process."""
        return UNTOLD.isdisjoint(self.names) and len(self.objects) <= MOST

    def change(self) -> str | None:
        """Return what is not as it was, as "attribute 'factor' of Settings"; None if all is."""
        for place in self.places:
            if not same(place.read(), place.value):
                return place.text
        return None

    def refuse_changed(self, part: Any) -> None:
        """Raise a `RecordError` if something is not as it was; ``part`` is what finds it."""
        text = self.change()
        if text is not None:
            name = getattr(part, "__qualname__", type(part).__name__)
            raise refusal(
                f"What the cell {name} uses was changed during the run: {text}. Recorded calls run later "
                "than in the loop.",
                "pass what changes as an argument of the cell, and change the rest after the run.",
            )

    def look(self, todo: list[Any]) -> None:
        """Look at objects, and at what leads on from each of them; ``todo`` is empty then."""
        while todo:
            x = todo.pop()
            if isinstance(x, VALUES) or x is NOTHING or id(x) in self.objects or len(self.objects) > MOST:
                continue
            self.objects[id(x)] = x
            if isinstance(x, FunctionType):
                todo += self.found_by(x)
            elif isinstance(x, (MethodType, functools.partial, property, staticmethod, classmethod)):
                todo += parts_of(x)
            elif isinstance(x, ContextVar):
                if self.stores.variables:
                    self.keep(f"the context variable {x.name!r}", partial(value_of, x))
            elif isinstance(x, HOLDERS):
                # Attributes of one of a class of the user may be its entries.
                if self.stores.contents or (type(x) not in CONTAINERS and self.stores.names):
                    read = entries_of if type(x) in CONTAINERS else entries
                    self.keep(f"a {type(x).__name__}", partial(read, x))
                todo += entries_of(x) or entries(x)[:FEW]
            elif isinstance(x, tuple):
                todo += x[:FEW]
            elif isinstance(x, np.ndarray) or self.version_of(x) is not None:
                self.keep_array(x)
            if isinstance(x, (FunctionType, ModuleType, type)) or type(x) not in CONTAINERS:
                self.holders.append(x)
                todo += self.held(x)

    def found_by(self, function: FunctionType) -> Iterator[Any]:
        """Yield what a function that the user has written finds; keep the names that may be stored to."""
        if FOUND in vars(function):
            yield vars(function)[FOUND]
            return
        if not is_written_here(function.__module__ or ""):
            return
        if is_cell(function):  # the wrapper finds what records, and that is no one else's
            yield getattr(function, "__wrapped__", None)
            return
        self.names.update(names_of(function.__code__), names_in(function.__code__))
        own = function.__globals__
        for name in globals_of(function.__code__):
            self.keep_name(own, own, name, f"the variable {name!r}")
        yield from [x for _, x in named_by(function)]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if self.stores.may_store(name):
                self.keep(f"the variable {name!r}", partial(one_in, cell))
        yield from (*(function.__kwdefaults__ or {}).values(), getattr(function, "__wrapped__", None))

    def held(self, x: Any) -> Iterator[Any]:
        """Yield what attributes of an object stand for that the code names; keep those that may be stored.

        Looked at are attributes of the object itself, of its class, and of the bases of that class.
        """
        for owner, text, table in self.tables(x):
            for name in [*self.names]:
                if not isinstance(x, FunctionType) or name in table:
                    self.keep_name(owner, table, name, f"attribute {name!r} of {text}")
                    yield table.get(name, NOTHING)
            if isinstance(table, MappingProxyType):  # of a class
                for name in [name for name, part in table.items() if self.is_called(x, name, part)]:
                    self.keep_name(owner, table, name, f"attribute {name!r} of {text}")
                    yield table[name]

    def is_called(self, x: Any, name: str, part: Any) -> bool:
        """Return whether ``part`` of the class of ``x`` is a method that Python or a framework calls."""
        is_object = not isinstance(x, type) and id(x) not in self.running
        return is_special(name, part) or (is_object and name in CALLED_WITH_OBJECTS)

    def tables(self, x: Any) -> Iterator[tuple[Any, str, Any]]:
        """Yield ``(owner, its name, table)`` for where attributes are: an object, its class and bases."""
        if isinstance(x, (ModuleType, FunctionType)):
            if isinstance(x, FunctionType) or not self.is_known(x.__name__):
                yield x, x.__name__, vars(x)
            return
        kinds = (x if isinstance(x, type) else type(x)).__mro__
        own = [kind for kind in kinds if not self.is_known(kind.__module__) and kind is not object]
        yield from [(kind, kind.__name__, vars(kind)) for kind in own]
        if not isinstance(x, type) and hasattr(x, "__dict__"):
            yield x, type(x).__name__, vars(x)
            if "_modules" in vars(x):  # where a module of PyTorch keeps its parts
                yield x, f"the parts of {type(x).__name__}", vars(x)["_modules"]
        elif own and not isinstance(x, type):
            yield x, type(x).__name__, Slots(x)

    def keep_name(self, owner: Any, table: Any, name: str, text: str) -> None:
        """Keep what a name of ``owner`` stands for in its ``table``, if the program may store to it."""
        if id(owner) not in self.own and self.stores.may_store(name):
            key = id(owner), text
            if key not in self.kept:
                self.kept.add(key)
                # A wrapper of a cell, which each run makes anew, counts as the function.
                self.keep(text, lambda: (bare(table.get(name, NOTHING)),))

    def keep_array(self, x: Any) -> None:
        """Keep how often an array was changed, or what a small array of NumPy holds."""
        if self.stores.contents:
            if not isinstance(x, np.ndarray):
                self.keep("an array", lambda: (self.version_of(x),))
            elif x.nbytes <= SMALL and not x.dtype.hasobject:
                self.keep("an array", lambda: (x.tobytes(),))

    def keep(self, text: str, read: Callable[[], Sequence[Any]]) -> None:
        """Keep what ``read()`` returns."""
        self.places.append(BeyondPlace(text, read, read()))


class Slots:
    """The attributes of an object without a ``__dict__``, as a table of names."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def get(self, name: str, default: Any = None) -> Any:
        """Return what an attribute in a slot stands for; ``default`` for any other."""
        kind = getattr(type(self.owner), name, None)
        return getattr(self.owner, name, default) if isinstance(kind, MemberDescriptorType) else default


def beyond_of(
    recording: Recording, roots: Sequence[Any], version_of: Callable[[Any], int | None] = lambda x: None
) -> Beyond | None:
    """Return the `Beyond` of a cell's function, or of objects that it takes; None if nothing is kept."""
    found = Beyond(roots, stores_of(recording), known_to(recording), version_of, recording.program[:1])
    return found if found.places else None


def stores_of(recording: Recording) -> ProgramStores:
    """Return what the program of a run may store, found out once for arguments of the same classes."""
    if recording.stores is None:
        known = recording.recorder.stores
        recorder, backend = recording.recorder, recording.backend
        objects = one_of_each(objects_from(recorder, backend, recording.program[:1]))
        # Its models may get parts of other classes between two runs.
        key = (*map(type, recording.program[1:]), frozenset(map(kind_of, objects)))
        if not recording.program or key not in known or not known[key].have_code():
            settings = () if recorder.keys_have_settings else recorder.settings
            roots = [*roots_of(recording), *objects]
            known[key] = ProgramStores(roots, known_to(recording), settings=settings)
        recording.note_stores(known[key])
    stores: ProgramStores = recording.stores
    return stores


def methods_named(code: CodeType) -> frozenset[str]:
    """Return the names of attributes and methods in code, and in that of the functions inside of it.

    Where code asks for attributes by texts, these count as well.

    >>> sorted(methods_named((lambda model: eval("model.train") and model.eval).__code__))
    ['eval']
    >>> sorted(methods_named((lambda text: eval(text)).__code__))
    []
    """
    own = [step.value for step in Steps.of(code).steps if step.name in ("LOAD_ATTR", "LOAD_METHOD")]
    if not {"getattr", "methodcaller"}.isdisjoint(code.co_names):
        texts = [x for part in code.co_consts for x in (part if isinstance(part, tuple) else (part,))]
        own += [x for x in texts if isinstance(x, str)]
    inner = [methods_named(x) for x in code.co_consts if isinstance(x, CodeType)]
    return frozenset(own).union(*inner)


def refuse_reseeded(recording: Recording, name: str, hint: str) -> None:
    """Raise `RecordError` for a call that draws, in a program whose code seeds generators, as names tell.

    It is asked where ``batched`` has no ``seed=``. The call would draw when it is launched, with what the
    code has seeded last. ``name`` is that of the call.
    """
    if stores_of(recording).seeds:
        raise refusal(
            f"{name} draws random numbers, and the program seeds what it draws from. Recorded calls run "
            "later than in the loop, so it would draw others than the seed says.",
            hint,
        )


def names_called(functions: Sequence[FunctionType], begin: set[str]) -> set[str]:
    """Return the names ``begin``, of functions that run, and those in the code of what they may call.

    These are ``functions`` whose names are among them. Others, as ``__init__``, which never counts, and
    ``fit`` of a model whose ``loss`` is the program, are reached, but no code that runs has their names.

    >>> def loss():
    ...     return dropped()
    >>> def dropped():
    ...     return dropout()
    >>> def fit():
    ...     return manual_seed(0), loss()
    >>> sorted(names_called([loss, dropped, fit], {"loss"}))
    ['dropout', 'dropped', 'loss']
    """
    names = set(begin)
    waiting = [*functions]
    while True:
        runs = [x for x in waiting if x.__name__ in names or is_special(x.__name__, x)]
        if not runs:
            return names
        waiting = [x for x in waiting if x not in runs]
        for x in runs:
            around = [read_cell(cell) for cell in x.__closure__ or ()]
            names |= written_by(x.__code__).names
            names |= {part.__name__ for part in around if isinstance(part, FunctionType)}


def known_to(recording: Recording) -> Callable[[str], bool]:
    """Return what tells whether a module is of Python, NumPy, multifold or the framework, by its name."""
    return partial(is_known_module, recording.recorder.inner)


def roots_of(recording: Recording) -> list[Any]:
    """Return the program of a run, with an object of each class that its arguments have.

    A `multifold.pending` block has no function of its own. There each function of the user that runs now
    gives one, made of its code.
    """
    if recording.program:
        fn, *arguments = recording.program
        parts = objects_from(recording.recorder, recording.backend, arguments)
        return [fn, *one_of_each(parts), *parts[:FEW]]
    found = list[Any]()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_written_here(frame.f_globals.get("__name__", "")):
            code = frame.f_code
            cells = tuple([CellType() for _ in code.co_freevars])
            found.append(FunctionType(code, frame.f_globals, code.co_name, None, cells))
        frame = frame.f_back
    return found


CODE = (FunctionType, MethodType, functools.partial)
"""Types of objects that are code themselves."""


def objects_from(recorder: Any, backend: Backend, roots: Sequence[Any]) -> list[Any]:
    """Return what is reached from ``roots``, with the modules in models, and what these hold."""
    parts = [x for root in roots for x, _ in reached(backend, [root], is_home=is_of_user)]
    modules = [part for x in parts for part in recorder.modules_in(x)]
    held = [x for module in modules for x in held_by(backend, module)]
    if held:
        parts += [x for x, _ in reached(backend, held, is_home=is_of_user)]
    return [*{id(x): x for x in (*parts, *modules)}.values()]


def one_of_each(objects: Sequence[Any]) -> list[Any]:
    """Return those of some objects that are code, and of the others one of each class, for its methods."""
    return [*{id(x) if code_in(x) else type(x): x for x in objects}.values()]


def code_in(x: Any) -> list[Any]:
    """Return the functions and classes that an object is, binds, or has as one of a few entries."""
    if isinstance(x, (FunctionType, type)):
        return [uncovered(x)]
    if isinstance(x, (MethodType, staticmethod, classmethod)):
        return code_in(x.__func__)
    if isinstance(x, functools.partial):
        return [y for part in (x.func, *x.args, *x.keywords.values()) for y in code_in(part)]
    if type(x) in (*CONTAINERS, tuple) and len(x) <= FEW:
        entries = x.values() if isinstance(x, dict) else x
        return [y for part in entries if isinstance(part, (*CODE, type)) for y in code_in(part)]
    return []


def uncovered(x: Any) -> Any:
    """Return the function in whose place a wrapper records, of a found cell or a named one."""
    function = bare(x)
    return getattr(function, "__wrapped__", function) if is_cell(function) else function


UNTOLD = {
    *("getattr", "__getattribute__", "attrgetter", "methodcaller", "eval", "exec", "vars", "globals"),
    *("import_module", "environ", "getenv"),
}
"""Names of what finds things whose names the code does not have, or that lie outside of the process."""


def classes_of(objects: Iterable[Any]) -> list[type]:
    """Return the classes of some objects, with their bases, that the user has written."""
    kinds = [x if isinstance(x, type) else type(x) for x in objects]
    found = dict.fromkeys([base for kind in kinds for base in kind.__mro__])
    return [*filter(is_users_class, found)]


def code_named(place: tuple[Any, str]) -> list[Any]:
    """Return the functions and classes that a name stands for in a dictionary or a class."""
    owner, name = place
    return code_in((vars(owner) if isinstance(owner, type) else owner).get(name))


def held_by(backend: Backend, module: Any) -> list[Any]:
    """Return what attributes of a module hold that may be code, or have some; not its parts and weights."""
    reserved = backend.reserved(module)
    own = getattr(module, "__dict__", {})
    return [x for name, x in own.items() if type(x) not in VALUES and name not in reserved]


def kind_of(x: Any) -> Any:
    """Return what tells the code of an object of `one_of_each` from that of another one."""
    codes = [part.__code__ if isinstance(part, FunctionType) else part for part in code_in(x)]
    return (type(x), *codes) if codes else type(x)


def innermost(x: Any) -> Any:
    """Return the function that a `functools.partial` calls in the end; anything else as it is."""
    while isinstance(x, functools.partial):
        x = x.func
    return x


def is_cell(x: Any) -> bool:
    """Return whether a function, a class or an object of one was made a cell."""
    return CELL in getattr(x, "__dict__", ()) or CELL in vars(type(x))


def parts_of(x: Any) -> list[Any]:
    """Return the functions and objects that a method, a partial or a property is made of."""
    if isinstance(x, MethodType):
        return [x.__func__, x.__self__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    return [x.fget, x.fset] if isinstance(x, property) else [x.__func__]


def is_special(name: str, x: Any) -> bool:
    """Return whether a class has a method here that Python calls, as ``__add__``, but no ``__init__``."""
    return name.startswith("__") and isinstance(x, FunctionType) and name != "__init__"


def one_in(cell: CellType) -> Sequence[Any]:
    """Return what a variable of a function around stands for, alone."""
    return (read_cell(cell),)


def value_of(variable: ContextVar[Any]) -> Sequence[Any]:
    """Return what a context variable stands for, alone."""
    return (variable.get(NOTHING),)
