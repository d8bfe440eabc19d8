"""What examples share while they wait: objects that their code changes, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that waits for a
value lets others go on, which may change what it has left on an object that they share (the model, an
argument of several examples, a variable around a function), and draw the random numbers that it would have
drawn.

The first is an error, if the example that waits finds something changed. Attributes, variables, containers
and arrays are compared, but neither ``__slots__`` nor large arrays of NumPy. What an example changes after
it has waited, and a later one has read already, is not seen.

The second is a warning, if the first examples of a run show it. With a seed each example has random streams
of its own, and draws the same numbers as in a loop that has them, too.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import sysconfig
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from multifold._engine.ops.reach import CONTAINERS, VALUES, globals_of, owners_of, reached
from multifold._engine.ops.state import KeptState, read_cell
from multifold._engine.record.lines import warn_user
from multifold.backend import Backend, owner_of
from multifold.errors import RecordError
from multifold.lazy.current import refusal
from multifold.lazy.seen import entries_of, same_entries

WATCHED, TURNS = 8, 16
"""So many examples of a run, and so many turns of each, are watched for random numbers that they draw: to
ask takes longer than to record some calls."""

Snapshot = list[tuple[list[Any], list[Any]]]
"""Of each shared object what its names stand for, with what containers hold, and what marks its arrays."""


LATE = "one changed it that had waited, after others that come later in the loop"
"""Why a change is refused."""

OWN_COPY = (
    "batched(fn, own=True) gives each example a copy of the model with its parameters. Of what else they "
    "change, give each example its own."
)
OWN_VARIABLE = "make it inside of the function that takes an example, or pass each example its own."
"""What to do about what examples share: an object, or a variable around a function."""

SMALL = 4096
"""Arrays of NumPy of up to so many bytes are compared by their contents."""


class Sharing:
    """What the examples of a run share, and whether one changes it while another waits.

    It also gives each example random streams of its own, if there is a seed.

    Parameters
    ----------
    backend : Backend
        The adapter of the framework, which knows what objects an op may change.
    pending : type
        The class of pending values.
    fn : callable
        The program.
    seed : int or None
        If given, each example has random streams of its own, which begin with the seed and its number.
    """

    def __init__(self, backend: Backend, pending: type, fn: Any, seed: int | None) -> None:
        self.backend = backend
        self.pending = pending
        self.fn = fn
        self.seed = seed
        self.random = KeptState(backend, owners_of(backend, None, fn), only_random=True)
        self.streams: dict[int, list[Any]] = {}
        self.turns: Counter[int] = Counter()
        self.began: list[Any] = []
        self.last_drawn = -1
        self.tables: dict[int, Table] | None = None
        self.arguments: dict[int, Sequence[Any]] = {}
        self.objects: dict[int, dict[int, Any]] = {}
        self.known: dict[int, Any] = {}
        self.now: Snapshot = []
        self.left: Snapshot = []
        self.last_begun = 0

    def take(self, example: int, arguments: Sequence[Any]) -> None:
        """Store the arguments of an example that begins: objects that several examples have are watched."""
        self.arguments[example] = arguments

    def forget(self, example: int) -> None:
        """Drop the arguments of an example that has ended, which changes nothing any more."""
        self.arguments.pop(example, None)
        for key in self.objects.pop(example, ()):
            self.known.pop(key, None)

    def shared_tables(self) -> dict[int, Table]:
        """Return a `Table` for each object that several examples may change, by its ``id``.

        Those of the program are found at the first call; those among arguments once a second example has
        them.
        """
        if self.tables is None:
            owners = owners_of(self.backend, None, self.fn)
            self.tables = self.tables_of(objects_in(self.backend, [*self.backend.stateful(owners)]))
        for example, arguments in self.arguments.items():
            own = self.objects[example] = objects_in(self.backend, arguments)
            several = own.keys() & self.known.keys()
            self.tables |= self.tables_of({key: own[key] for key in several if key not in self.tables})
            self.known |= own
        self.arguments.clear()
        return self.tables

    def tables_of(self, objects: Mapping[int, Any]) -> dict[int, Table]:
        """Return ``id`` -> `Table` for those of ``objects`` that have a ``__dict__`` or are containers.

        ``objects`` is ``id`` -> object.
        """
        found = {key: x for key, x in objects.items() if has_names(x)}
        return {key: Table(self.backend, self.pending, x) for key, x in found.items()}

    def wait(self, example: int) -> tuple[Snapshot, Snapshot]:
        """Begin the wait of an example; return two snapshots of shared objects for `refuse_changes`.

        The second is an empty list, which `look` fills in before the next turn of any example: what this
        example leaves. The first shows what it found when it went on last, or is the second one if it is
        not late.
        """
        self.shared_tables()
        self.left = []
        return self.now if self.is_late(example) else self.left, self.left

    def end(self, example: int) -> None:
        """Raise a `RecordError` if an example has changed a shared object in its last turn, too late.

        Too late means: it has waited, and an example that comes later in the loop has begun meanwhile. Only
        then is a new snapshot stored in ``now``.
        """
        if self.is_late(example):
            came = self.now
            self.look()
            self.refuse(came, self.now, LATE)

    def is_late(self, example: int) -> bool:
        """Return whether an example had more than one turn, and a later example has begun.

        In the loop, the later one would run after it.
        """
        return self.turns[example] > 1 and example < self.last_begun

    def look(self) -> None:
        """Store a snapshot of all shared objects in ``now``, before an example goes on.

        It does nothing as long as no example has waited.
        """
        if self.tables is None:
            return
        self.now = [table.read() for table in self.shared_tables().values()]
        if not self.left:
            self.left.extend(self.now)

    def refuse_changes(self, came: Snapshot, left: Snapshot) -> None:
        """Raise a `RecordError` if shared objects changed around the wait of an example that goes on now.

        ``came`` and ``left`` are what `wait` returned: the states before and after the turn that ended in
        the wait. If they differ, the example itself made a change, too late. If ``left`` differs from
        ``now``, other examples made one while it waited.
        """
        self.refuse(came, left, LATE)
        self.refuse(left, self.now, "others changed it while one waited for a value")

    def refuse(self, before: Snapshot, after: Snapshot, why: str) -> None:
        """Raise a `RecordError` that names the first object which two snapshots show in two states.

        ``before`` and ``after`` have an entry for each shared object, in one order; see `Table.read`.
        ``why`` ends the message: who has changed the object, and when.
        """
        tables = self.shared_tables().values()  # more than before, if examples have begun meanwhile
        for table, then, now in zip(tables, before, after, strict=False):
            if then is not now and not (same_entries(then[0], now[0]) and then[1] == now[1]):
                raise refusal(
                    f"The examples share {table.difference_text(then[0], now[0])}, and {why}.",
                    OWN_VARIABLE if isinstance(table.owner, FunctionType) else OWN_COPY,
                )

    def begin(self, example: int) -> None:
        """Begin a turn of an example: count it, `look`, and with a seed set its own random streams."""
        self.look()
        self.turns[example] += 1
        self.last_begun = max(self.last_begun, example)
        if self.seed is None:
            self.began = self.random.read() if self.watches(example) else []
            return
        self.began = self.random.read()
        if example in self.streams:
            self.random.write(self.streams.pop(example))
        else:
            self.random.begin_anew((self.seed, example))

    def rest(self, example: int) -> None:
        """End a turn of an example; with a seed, keep its random streams and put back the outer ones.

        Without a seed, warn once a run if it drew random numbers after an example that comes later in the
        loop.
        """
        if self.seed is not None:
            self.streams[example] = self.random.read()
            self.random.write(self.began)
        elif self.watches(example) and self.random.drew(self.began):
            if example < self.last_drawn < WATCHED:
                self.last_drawn = WATCHED  # it has warned
                warn_user(
                    "Examples draw random numbers between values that they read. They take turns, so each "
                    "draws others than in the loop. batched(fn, seed=0) gives each example streams of its "
                    "own."
                )
            self.last_drawn = max(self.last_drawn, example)

    def watches(self, example: int) -> bool:
        """Return whether a turn of an example is watched for random numbers that it draws.

        These are the first 16 turns of each of the first 8 examples.
        """
        return example < WATCHED and self.turns[example] <= TURNS


def objects_in(backend: Backend, roots: Sequence[Any]) -> dict[int, Any]:
    """Return ``id`` -> object, for what is reached from ``roots`` and belongs to the user's program.

    Reached are attributes, entries, and what functions find around them. Objects are left out that the
    framework or an installed library made for itself; see `is_of_user`.
    """
    return {id(x): x for x, inside in reached(backend, roots, is_home=is_of_user) if inside}


def is_of_user(x: Any) -> bool:
    """Return whether the class of an object is in a module of the user; see `is_written_here`.

    >>> is_of_user(Counter()), is_of_user(sys)
    (False, False)
    """
    return is_written_here(type(x).__module__)


@functools.lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Return whether a module is the user's: neither multifold's, Python's, nor installed.

    Its file lies outside of the folders of Python and site-packages, or it is ``__main__``.
    """
    if module.partition(".")[0] == "multifold":  # installed so that its code can be changed
        return False
    where = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return module == "__main__" or bool(where and not where.startswith(tuple(installed)))


def has_names(x: Any) -> bool:
    """Return whether an object has a ``__dict__``, or is a container such as a list or dict."""
    return hasattr(x, "__dict__") or type(x) in CONTAINERS


class Table:
    """Reads what the names in one shared object stand for: attributes, variables or entries.

    Parameters
    ----------
    backend : Backend
        The adapter of the framework, which knows the attributes that the framework keeps for itself.
    pending : type
        The class of pending values, each of which has a ``version``.
    owner : object
        The object. A container has no names; it stands for itself.
    """

    def __init__(self, backend: Backend, pending: type, owner: Any) -> None:
        self.backend = backend
        self.pending: Any = pending
        self.owner = owner
        self.variables: dict[str, Any] = {}
        self.cells: Sequence[Any] = ()
        self.keys: tuple[str, ...] = ()
        self.names: list[str] = []
        self.reserved: Collection[str] = ()
        if isinstance(owner, FunctionType):
            self.variables = owner.__globals__
            self.names = [name for name in globals_of(owner.__code__) if name in self.variables]
            self.cells = owner.__closure__ or ()
        elif type(owner) not in CONTAINERS:
            self.reserved = backend.reserved(owner)

    def read(self) -> tuple[list[Any], list[Any]]:
        """Return what the names stand for, with the entries of containers; and its `marks`.

        >>> from types import SimpleNamespace
        >>> from multifold import load_backend
        >>> Table(load_backend("numpy"), Sharing, SimpleNamespace(count=3, names=["a"])).read()
        ([3, ['a'], 'a'], [])
        """
        owner = self.owner
        if type(owner) in CONTAINERS:
            values = [*entries_of(owner)]
            return values, self.marks(values)
        if isinstance(owner, FunctionType):
            values = [*map(self.variables.get, self.names), *map(read_cell, self.cells)]
        else:
            own = vars(owner)
            keys = tuple(own)
            if keys != self.keys:
                self.keys, self.names = keys, [name for name in keys if name not in self.reserved]
            values = [*map(own.get, self.names)]
        held = [entries_of(x) for x in values if type(x) in CONTAINERS]
        if held:
            values = [*values, *itertools.chain.from_iterable(held)]
        return values, self.marks(values)

    def marks(self, values: Sequence[Any]) -> list[Any]:
        """Return what shows whether arrays among ``values`` were changed in place since.

        The list is to be compared with one made later. It has the bytes of NumPy arrays of at most 4096
        bytes, the version of each pending array, and the count of changes of each array of a framework that
        counts them.
        """
        values = [x for x in values if type(x) not in VALUES]
        found: list[Any] = [x.tobytes() for x in values if type(x) is np.ndarray and x.nbytes <= SMALL]
        found += [x.version for x in values if type(x) is self.pending]
        if not self.backend.counts_changes:
            return found
        arrays = [x for x in values if type(x) is not self.pending and self.backend.owns(x)]
        return found + [self.backend.version(x) for x in arrays]

    def difference_text(self, then: Sequence[Any], now: Sequence[Any]) -> str:
        """Return how an error calls the first difference between two lists from `read`.

        ``then`` and ``now`` are the first lists of the two. The text is ``"attribute 'state' of Model"`` or
        ``"the variable 'found' of encode"``, for example, or ``"a list"``.
        """
        if isinstance(self.owner, FunctionType):
            names = [*self.names, *self.owner.__code__.co_freevars]
            kind, whose = "the variable", self.owner.__qualname__
        else:
            names, kind, whose = self.names, "attribute", type(self.owner).__name__
        differing = [name for name, x, y in zip(names, then, now, strict=False) if x is not y]
        within = [name for name, x in zip(names, now, strict=False) if type(x) in CONTAINERS]
        for name in (*differing, *within):
            return f"{kind} {name!r} of {whose}"
        return f"a {whose}"


def in_all_copies(backend: Backend, fn: Any) -> dict[int, Any]:
    """Return the arrays that copies of a model share, by ``id``: parameters, and what can't be copied.

    ``fn`` is a model, or a method of one. Raise a `RecordError` if a copy would have parameters of its own.
    """
    owner = owner_of(fn, fn)
    parts = [x for x, _ in reached(backend, [owner])]
    models = [owner, *[x for x in parts if backend.hosts(x)]]
    shared = {id(x): x for model in models for x in backend.arrays_of(model)}
    for x in parts:
        if backend.owns(x) and id(x) not in shared:
            try:
                copy.deepcopy(x)
            except RuntimeError:  # PyTorch copies no tensor that a gradient flows through
                shared[id(x)] = x
    refuse_unshared(backend, fn, shared)
    return shared


def refuse_unshared(backend: Backend, fn: Any, shared: dict[int, Any]) -> None:
    """Copy a model; raise a `RecordError` if the copy has parameters that ``shared`` lacks.

    Layers of Keras do, for example. ``shared`` has the parameters of ``fn`` by ``id``.
    """
    copied = own_copy(fn, shared)
    owner = owner_of(copied, copied)
    if any(id(x) not in shared for x in backend.arrays_of(owner)):
        raise RecordError(
            f"Copies of a {type(owner).__name__} do not share its parameters, as own=True wants them to.",
            "keep what an example changes in variables of its own function, not on the model.",
        )


def own_copy(fn: Any, shared: dict[int, Any]) -> Any:
    """Return a deep copy of a model, or of a method with its model, that has the ``shared`` arrays.

    ``shared`` is a dictionary of arrays by ``id``. Raise a `RecordError` if the model cannot be copied.
    """
    owner = owner_of(fn, fn)
    try:
        copied = copy.deepcopy(owner, dict(shared))
    except Exception as error:
        raise RecordError(
            f"A {type(owner).__name__} cannot be copied, as own=True wants it to be: {error}",
            "keep what an example changes in variables of its own function, not on the model.",
        ) from error
    return copied if owner is fn else getattr(copied, fn.__name__)
