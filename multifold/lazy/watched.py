"""What examples of a program may change for each other, looked at now and compared later.

From the code of a program it is known which attributes, variables and containers it may write
(`multifold.lazy.writes`). `Watched` finds these on what the examples share: the model, what functions find
around them, classes, Python modules, and arguments that several examples have.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import threading
from array import array
from collections import Counter, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.ops.reach import CONTAINERS, FEW, VALUES, bare, module_of, package_of
from multifold._engine.ops.state import NOTHING, read_cell
from multifold.backend import Backend
from multifold.lazy.frames import where
from multifold.lazy.writes import (
    LOCKS,
    NAMELESS,
    OF_PROCESS,
    SEEDERS,
    CodeWrites,
    NameStore,
    Settings,
    is_changer,
    is_setter,
    is_written_here,
    named_by,
    written_by,
)

HOLDERS: tuple[Any, ...] = (list, dict, set, deque, bytearray, array, UserDict, UserList)
"""Types of containers, and bases of those of the user."""

MODES = {"train", "eval"}
"""Methods of a framework's models that change their modes."""

FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod)
"""Types of what classes have for functions."""

LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)
"""Types whose ``repr`` says whether they are held."""

SMALL = 65536
"""Arrays of NumPy of up to so many bytes are compared by their contents, which takes microseconds."""

MOST = 4096
"""Containers of up to so many entries are compared entry by entry."""

OWN_COPY = (
    "batched(fn, own=True) gives each example a copy of the model with its parameters. Of what else they "
    "change, give each example its own."
)
OWN_VARIABLE = "make it inside of the function that takes an example, or pass each example its own."
"""What to do about what examples share: an object, or a variable around a function."""

Resources = Mapping[type, frozenset[str]]
"""Types of objects of a framework that cannot be asked for what they hold, and methods that change it."""

Reading = Sequence[Any]
"""What was found in one place: objects, compared by identity, and values, compared as such."""


class WatchedPlace(NamedTuple):
    """Something that the code of an example may write, and others see.

    Attributes
    ----------
    text : str
        What it is, as "attribute 'state' of Model".
    where : str
        A line that writes it, as "model.py:12"; "" if that is not known.
    hint : str
        What to do about it.
    read : callable
        Returns the `Reading` of now.
    parts : sequence of (str, str)
        Of several names of one object the text and line of each, in the order of what `read` returns.
    """

    text: str
    where: str
    hint: str
    read: Callable[[], Reading]
    parts: Sequence[tuple[str, str]] = ()

    def changed(self, before: Reading, after: Reading) -> WatchedPlace | None:
        """Return the place, or of several names the first, in which two readings differ; None for none."""
        if before is after or same(before, after):
            return None
        for (text, line), x, y in zip(self.parts, before, after, strict=bool(self.parts)):
            if not equal(x, y):
                return WatchedPlace(text, line, self.hint, self.read)
        return self

    @property
    def is_iterator(self) -> bool:
        """Whether it is an iterator, which cannot be asked how far it has come: no two readings agree."""
        return self.text.endswith(", an iterator")

    def described(self) -> str:
        """Return the text with the line, as "attribute 'state' of Model, which model.py:12 changes"."""
        return f"{self.text}, which {self.where} changes" if self.where else self.text


class Watched:
    """The places that the code of a program may write and that its examples share.

    Parameters
    ----------
    backend : Backend
        The adapter of the framework, which knows the attributes that the framework keeps for itself, and
        how often its arrays were changed.
    recorder : LazyRecorder
        Has the class of pending values, each of which has a ``version``, and tells that of others. Its
        ``resources`` say which objects of the framework cannot be asked for what they hold.
    functions : sequence of function
        The functions of the program.
    settings : dict
        Settings of the framework, besides `OF_PROCESS`; see `multifold.lazy.writes`.

    Attributes
    ----------
    places : list of WatchedPlace
        What is looked at.
    fills : bool
        Whether there are containers that change as they are read: those with defaults, and with iterators.
    """

    def __init__(
        self,
        backend: Backend,
        recorder: Any,
        functions: Sequence[FunctionType],
        settings: Settings,
    ) -> None:
        self.backend = backend
        self.pending: Any = recorder.pending
        self.version_of: Callable[[Any], int] = recorder.version_of
        self.resources: Resources = recorder.resources
        self.named = [(function, [*named_by(function)]) for function in functions]
        self.places: list[WatchedPlace] = []
        self.seen: dict[tuple[int, str], Any] = {}
        written = [written_by(x.__code__) for x in functions]
        self.stores = [store for one in written for store in one.attributes]
        self.names = frozenset(store.name for store in self.stores)
        self.lines = {store.name: store.where for store in self.stores}
        self.contents = next((one.contents for one in written if one.contents), None) or self.by_alias()
        self.called = frozenset[str]().union(*[one.names for one in written])
        self.seeds = not SEEDERS.isdisjoint(self.called)
        self.any_name = not NAMELESS.isdisjoint(self.called) or any(
            is_setter(x) for _, named in self.named for _, x in named
        )
        self.fills = False
        self.locks = not LOCKS.isdisjoint(self.called)
        for function, one in zip(functions, written, strict=True):
            self.add_variables(function, one)
            self.add_paths(function, one)
        self.stores_names = bool(self.places)
        known = {**OF_PROCESS, **settings}
        for probe, name in {known[name]: name for name in self.called if name in known}.items():
            self.add(f"the setting that {name} changes", "", OWN_VARIABLE, partial(one_of, probe))

    @property
    def writes(self) -> bool:
        """Whether the code of the program may change what it has not made itself."""
        return self.stores_names or bool(self.names or self.contents or self.any_name or self.fills)

    def by_alias(self) -> str | None:
        """Return the line of a function that finds one of `CHANGERS` by another name; None if none does."""
        for function, named in self.named:
            if any(is_changer(x) for _, x in named):
                code = function.__code__
                return where(code, code.co_firstlineno)
        return None

    def add(self, text: str, where: str, hint: str, read: Callable[[], Reading]) -> None:
        """Look at one more place; see `WatchedPlace`."""
        self.places.append(WatchedPlace(text, where, hint, read))

    def is_new(self, x: Any, name: str = "") -> bool:
        """Return whether an object, or one name of it, is met for the first time, and keep it."""
        key = id(x), name
        if key in self.seen:
            return False
        self.seen[key] = x
        return True

    def add_variables(self, function: FunctionType, written: CodeWrites) -> None:
        """Look at the globals, and the variables of functions around, that a function writes."""
        for store in written.globals:
            if self.is_new(function.__globals__, store.name):
                text = f"the variable {store.name!r} of {function.__module__}"
                self.add_name(function.__globals__, store, text, OWN_VARIABLE)
        if "globals" in written.names and self.is_new(function.__globals__, "*"):
            own = function.__globals__
            line = where(function.__code__, function.__code__.co_firstlineno)
            self.add(
                f"a variable of {function.__module__}", line, OWN_VARIABLE, lambda: (*own, *own.values())
            )
        stores = {store.name: store.where for store in written.variables}
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            if name in stores and self.is_new(cell):
                text = f"the variable {name!r} of {function.__qualname__}"
                self.add(text, stores[name], OWN_VARIABLE, partial(self.reading_of, cell))

    def add_paths(self, function: FunctionType, written: CodeWrites) -> None:
        """Look at what a function stores to by a path of names, as ``settings.model.scale = 2``."""
        paths = [store for store in written.attributes if store.root and "." in store.root]
        known = dict(named_by(function)) if paths else {}
        for store in paths:
            first, *names = str(store.root).split(".")
            x = known.get(first, NOTHING)
            for name in names:
                x = plain_attribute(x, name)
            if not isinstance(x, VALUES) and x is not NOTHING:
                self.add_object(x, store.root, f"the variable {store.root!r} of {function.__qualname__}")

    def add_name(self, table: Any, store: NameStore, text: str, hint: str) -> None:
        """Look at what a name stands for in a table of names, as those of a module, or of an object."""
        self.add(text, store.where, hint, lambda: self.reading(table.get(store.name, NOTHING)))

    def add_objects(self, objects: Iterable[Any]) -> None:
        """Look at what code may write on some objects that examples share: attributes, or contents."""
        objects = [*objects]
        for owner in objects:
            for x, text in self.parts_of(owner):
                if not isinstance(x, (*VALUES, FunctionType, ModuleType)):
                    self.add_object(x, None, text)
        for x in objects:
            self.add_object(x, None, f"a {type(x).__name__}")
            for kind in type(x).__mro__[:-1]:
                self.add_object(kind, kind.__name__, "")

    def add_named(self) -> None:
        """Look at what code may write on what the functions of the program find around them."""
        for function, named in self.named:
            for name, x in named:
                if not isinstance(x, VALUES) and x is not NOTHING:
                    self.add_object(x, name, f"the variable {name!r} of {function.__qualname__}")

    def parts_of(self, owner: Any) -> Iterable[tuple[Any, str]]:
        """Yield ``(object, text)`` for what the attributes of an object stand for.

        Those that the framework keeps for itself, as parameters, are left out.
        """
        if hasattr(owner, "__dict__") and not isinstance(owner, (FunctionType, ModuleType, type)):
            reserved = self.backend.reserved(owner)
            for name, x in vars(owner).items():
                if name not in reserved:
                    yield x, f"attribute {name!r} of {type(owner).__name__}"

    def add_object(self, x: Any, root: str | None, text: str) -> None:
        """Look at what code may write on one object, which is called ``text``.

        ``root`` is the name by which functions find it, or None for one that is found by others: then code
        may give it any attribute.
        """
        if not self.is_new(x):
            return
        if self.is_changeable(x):
            line = self.contents
            if not line and self.stores and type(x) not in CONTAINERS and isinstance(x, HOLDERS):
                line = self.stores[0].where  # its attributes may be entries
            fills = isinstance(x, HOLDERS) and changes_as_read(x)
            self.fills |= fills
            if line or fills:
                hint = OWN_VARIABLE if root else OWN_COPY
                self.add(text, line or "", hint, lambda: self.reading(x))
            if isinstance(x, HOLDERS) and hasattr(x, "__dict__"):  # of a class of the user
                self.add_attributes(x, root)
        elif package_of(x).startswith("multifold"):
            return
        elif isinstance(x, LOCK_TYPES):
            if self.locks:
                self.add(text, "", OWN_VARIABLE, lambda: (repr(x),))
        elif isinstance(x, (partial, tuple)):
            parts = x if isinstance(x, tuple) else (x.func, *x.args, *x.keywords.values())
            for part in parts[:FEW]:
                if not isinstance(part, (*VALUES, FunctionType, ModuleType)):
                    self.add_object(part, root, text)
        elif is_iterator(x):  # how far it has come cannot be asked
            self.add(f"{text}, an iterator", "", OWN_VARIABLE, lambda: (object(),))
        elif self.is_resource(x):  # no more can what it holds
            self.add(f"{text}, a {type(x).__name__}", "", OWN_VARIABLE, lambda: (object(),))
        else:
            self.add_own(x, root)

    def add_own(self, x: Any, root: str | None) -> None:
        """Look at the attributes of an object that is no container, and at those of its classes."""
        if hasattr(type(x), "__slots__"):
            self.add_slots(x)
        if hasattr(x, "__dict__"):
            self.add_attributes(x, root)
            for kind in type(x).__mro__:
                if is_written_here(module_of(kind)):
                    self.add_object(kind, kind.__name__, "")
            if not isinstance(x, type) and self.backend.hosts(x):
                self.add_modes(x)

    def add_slots(self, x: Any) -> None:
        """Look at the attributes in slots that code may give an object of a class of the user."""
        for store in self.stores:
            kind = inspect.getattr_static(type(x), store.name, None)
            if isinstance(kind, MemberDescriptorType) and self.is_new(x, store.name):
                text = f"attribute {store.name!r} of {type(x).__name__}"
                self.add_name(Attributes(x), store, text, OWN_COPY)

    def is_changeable(self, x: Any) -> bool:
        """Return whether something is a container, or an array, pending or computed."""
        return isinstance(x, (*HOLDERS, np.ndarray)) or self.backend.owns(x)

    def is_resource(self, x: Any) -> bool:
        """Return whether something is one of the framework's ``resources``, which code may change."""
        return any(isinstance(x, kind) and names & self.called for kind, names in self.resources.items())

    def add_attributes(self, x: Any, root: str | None) -> None:
        """Look at the attributes that code may give an object, class, function or Python module."""
        is_object = not isinstance(x, (FunctionType, ModuleType, type))
        tables = self.tables_of(x) if is_object else [vars(x)]
        reserved = self.backend.reserved(x) if is_object else ()
        whose = type(x).__name__ if is_object else getattr(x, "__qualname__", x.__name__)
        names, parts = list[str](), list[tuple[str, str]]()
        for store in self.stores:
            is_meant = store.root == root if root else is_object
            if (
                (is_meant or any(store.name in table for table in tables))
                and store.name not in reserved
                and self.is_new(x, store.name)
            ):
                text = f"attribute {store.name!r} of {whose}"
                if isinstance(x, (type, ModuleType)) or store.name == "__class__":
                    self.add_name(Attributes(x), store, text, OWN_COPY)
                else:
                    names.append(store.name)
                    parts.append((text, store.where))
        if names:
            read = partial(self.readings, tables, names)
            self.places.append(WatchedPlace(*parts[0], OWN_COPY, read, parts))
        if (is_object and self.is_foreign(x)) or (self.any_name and (is_object or isinstance(x, type))):
            self.add(f"an attribute of {whose}", "", OWN_COPY, lambda: all_attributes(x))
        for name in frozenset[str]().union(*[table.keys() & self.called for table in tables]):
            part = next(table[name] for table in tables if name in table)
            is_watched = self.is_changeable(part) or is_iterator(part) or self.is_resource(part)
            if is_watched or is_written_here(module_of(kind_of(part))):
                self.add_object(part, None, f"attribute {name!r} of {whose}")

    def tables_of(self, x: Any) -> list[dict[str, Any]]:
        """Return the attributes of an object by name, then those that the framework keeps for it elsewhere.

        A module of PyTorch has its buffers in a dictionary of its own, for instance.
        """
        own: dict[str, Any] = vars(x)
        return [own, *[own[name] for name in self.backend.reserved(x) if type(own.get(name)) is dict]]

    def is_foreign(self, x: Any) -> bool:
        """Return whether the code that may change an object is not looked at, as that of a logger."""
        package = package_of(x)
        return not (self.backend.hosts(x) or is_written_here(module_of(type(x))) or package == "builtins")

    def add_modes(self, x: Any) -> None:
        """Look at the modes of a model of the framework, as those of training, if code may change them.

        The framework's own methods do, which are no code of the program.
        """
        if not MODES.isdisjoint(self.called):
            text = f"the mode of {type(x).__name__}"
            self.add(text, "", OWN_COPY, lambda: (self.backend.modes([x]),))

    def reading(self, x: Any) -> Reading:
        """Return what stands in a place: the object, what it holds as a container, and marks of changes.

        The marks are the version of each pending value in it, the bytes of small arrays of NumPy, and the
        count of changes of each array of a framework that counts them.
        """
        if type(x) in VALUES:
            return (x,)
        found = [x, *entries(x)] if isinstance(x, HOLDERS) else [x]
        marks: list[Any] = []
        for y in found:
            kind = type(y)
            if kind in VALUES:
                continue
            if kind is self.pending:
                marks.append(y.version)
            elif isinstance(y, np.ndarray):
                marks.append(y.tobytes() if y.nbytes <= SMALL else None)
            elif self.backend.counts_changes and self.backend.owns(y):
                marks.append(self.version_of(y))
            elif self.backend.owns(y) and hasattr(y, "assign"):  # a variable
                marks.append(self.value_of(y) if math.prod(y.shape) <= MOST else None)
            elif is_iterator(y):
                marks.append(object())
        return found + marks

    def readings(self, tables: Sequence[dict[str, Any]], names: Sequence[str]) -> Reading:
        """Return what stands for each of some names in the first table that has it; see `reading`.

        An entry with marks is a tuple. Most names are of other objects, and stand for nothing here.
        """
        found: list[Any] = [NOTHING] * len(names)
        for i, name in enumerate(names):
            for table in tables:
                if name in table:
                    own = self.reading(table[name])
                    found[i] = own[0] if len(own) == 1 else tuple(own)
                    break
        return found

    def value_of(self, variable: Any) -> bytes | None:
        """Return the bytes of a variable; None inside of a graph, where it has no value yet."""
        try:
            return self.backend.to_numpy(variable).tobytes()
        except (AttributeError, NotImplementedError):
            return None

    def reading_of(self, cell: CellType) -> Reading:
        """Return the `reading` of a variable of a function around."""
        return self.reading(read_cell(cell))

    def read(self) -> list[Reading]:
        """Return the reading of each place, in their order."""
        return [place.read() for place in self.places]

    def changed(self, before: Sequence[Reading], after: Sequence[Reading]) -> WatchedPlace | None:
        """Return the first place in which two results of `read` differ; None if there is none.

        There may be more places in the later one.
        """
        for place, then, now in zip(self.places, before, after, strict=False):
            found = place.changed(then, now)
            if found is not None:
                return found
        return None


def is_iterator(x: Any) -> bool:
    """Return whether something is an iterator, or the bound method of one that gives its next entry."""
    if isinstance(x, MethodWrapperType) and x.__name__ == "__next__":
        return True
    return isinstance(x, Iterator)


def changes_as_read(x: Any) -> bool:
    """Return whether a container may change where code reads it: it makes defaults, or has iterators."""
    if hasattr(type(x), "__missing__") and type(x) is not Counter:  # which keeps nothing of it
        return True
    return len(x) <= FEW and any(map(is_iterator, entries(x)))


class Attributes:
    """The attributes of a class or a Python module, or the class of an object, as a table of names."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def get(self, name: str, default: Any) -> Any:
        """Return what an attribute stands for; of a class its own, and none of its bases."""
        if isinstance(self.owner, type):
            return bare(vars(self.owner).get(name, default))
        return bare(getattr(self.owner, name, default))


def all_attributes(x: Any) -> Reading:
    """Return the names of all attributes of an object or class, and what they stand for."""
    own = vars(x)
    return *own, *own.values()


def kind_of(x: Any) -> Any:
    """Return a class itself, the class of an object, and None for functions and modules."""
    if isinstance(x, (FunctionType, ModuleType, *VALUES)):
        return None
    return x if isinstance(x, type) else type(x)


def plain_attribute(x: Any, name: str) -> Any:
    """Return an attribute of an object, without calling a property of its class; NOTHING if it has none."""
    kind = inspect.getattr_static(type(x), name, None)
    if x is NOTHING or isinstance(kind, (property, functools.cached_property)):
        return NOTHING
    return getattr(x, name, NOTHING)


def entries(x: Any) -> Sequence[Any]:
    """Return what a container holds: of a dictionary the keys, then the values.

    Of one with more than 4096 entries it is their number, and the first and last 64 of them.
    """
    if isinstance(x, (UserDict, UserList)):
        x = x.data
    if type(x) in CONTAINERS:
        found = [*x, *x.values()] if isinstance(x, dict) else [*x]
    else:  # a class may give them in another way, and count that
        kind = next(kind for kind in HOLDERS if isinstance(x, kind))
        found = [*kind.__iter__(x), *(dict.values(x) if isinstance(x, dict) else ())]
    if len(found) <= MOST:
        return found
    return [len(found), *found[:FEW], *found[-FEW:]]


def one_of(probe: Callable[[], Any]) -> Reading:
    """Return the reading of a setting: what ``probe()`` returns, alone."""
    return (probe(),)


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two sequences, as readings of one place, agree: in objects, and in values."""
    if len(some) != len(others):
        return False
    return all(map(operator.is_, some, others)) or all(map(equal, some, others))


def equal(x: Any, y: Any) -> bool:
    """Return whether two entries of readings agree: one object, or equal values; tuples entry by entry.

    What stands for a function while a program runs, also in a method, agrees with it.
    """
    if x is y:
        return True
    kind = type(x)
    if kind is not type(y):
        return False
    if kind in FUNCTIONS:
        if getattr(x, "__self__", None) is not getattr(y, "__self__", None):
            return False
        return bare(getattr(x, "__func__", x)) is bare(getattr(y, "__func__", y))
    return same(x, y) if kind is tuple else kind in VALUES and bool(x == y)
