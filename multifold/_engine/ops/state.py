"""State: what an op may change besides its result, read before a launch and put back for each trial.

An op may draw random numbers, move a running mean, or count its calls. A trial
(`multifold._engine.ops.trial`) runs it again, from the state that the launch began with, and leaves
everything as the launch has left it:

>>> class Model:
...     calls = 0
...     def double(self, x):
...         self.calls += 1
...         return 2 * x
>>> from multifold._numpy.backend import NumpyBackend
>>> model = Model()
>>> kept = KeptState(NumpyBackend(), [model])
>>> model.double(1)  # the launch
2
>>> with kept.again():
...     model.calls, model.double(1), model.calls
(0, 2, 1)
>>> model.calls
1

A *slot* is one thing that may change: what a function or an object calls by a name, or the contents of a
container. An object keeps its identity. But where an op writes into an array, as into a buffer, a trial
gets a copy of it, since a recorded backward pass may hold the array itself.
"""

from __future__ import annotations

import copy
import itertools
import operator
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType
from typing import Any

import numpy as np

from multifold._engine.ops.closeness import close, tolerance_of
from multifold._engine.ops.reach import CONTAINERS, VALUES, bare, globals_of, is_generator, reached
from multifold.backend import Backend, StateSlot

MOST = 4096
"""Entries of a container. A longer one is data of the user, which takes long to copy and compare."""

DEPTH = 4
"""How deep nested containers are compared. A tree whose nodes know their parents would never end."""


class KeptState:
    """What ops may change, read and copied when this is made.

    Parameters
    ----------
    backend : Backend
        What knows the framework's random state and modules.
    owners : sequence of object
        The model, and what the op consists of.
    only_random : bool
        Whether only the state of random generators is kept.

    Attributes
    ----------
    backend, owners : Backend, sequence of object
        As given.
    slots : list of StateSlot
        The things that may change; see `slots_of`.
    before : list
        A copy of what each slot held, in their order.
    """

    def __init__(self, backend: Backend, owners: Sequence[Any], *, only_random: bool = False) -> None:
        self.backend = backend
        self.owners = owners
        self.slots = [slot for slot in slots_of(backend, owners) if slot.random or not only_random]
        self.before = [slot.copy(slot.read()) for slot in self.slots]

    @contextmanager
    def again(self, start: Sequence[Any] | None = None) -> Iterator[None]:
        """Return a context that puts the slots back to what they held when this was made, or to ``start``.

        Inside, each slot holds a copy of that. On leaving, each slot gets back the very object that it held
        on entering. ``start`` has a value for each slot, as `read` returns them.
        """
        # No copies: a recorded backward pass may hold these very arrays, so these very arrays come back.
        now = [slot.read() for slot in self.slots]
        thread = threading.get_ident()
        is_inner = is_aside()
        ASIDE.add(thread)
        try:
            self.write(self.before if start is None else start)
            yield
        finally:
            for slot, value in zip(self.slots, now, strict=True):
                slot.write(value)
            if not is_inner:
                ASIDE.discard(thread)

    def write(self, values: Sequence[Any]) -> None:
        """Write a copy of each value to its slot; ``values`` are in the order of the slots.

        So what runs next can't change the values themselves.
        """
        for slot, value in zip(self.slots, values, strict=True):
            slot.write(slot.copy(value))

    def begin_anew(self, numbers: Sequence[int]) -> None:
        """Seed each random generator from ``numbers``, integers >= 0, and its position among the slots.

        Equal numbers lead to equal draws, and no two generators draw alike. Other slots, and generators
        that cannot be seeded, stay as they are.
        """
        for place, slot in enumerate(self.slots):
            if slot.seed is not None:
                slot.seed(int(np.random.SeedSequence([*numbers, place]).generate_state(1)[0]))

    def read(self) -> list[Any]:
        """Return a list of copies of what each slot holds now, in the order of the slots."""
        return [slot.copy(slot.read()) for slot in self.slots]

    def drew(self, start: Sequence[Any]) -> bool:
        """Return whether a random generator has moved since ``start``, a list that `read` returned then."""
        return any(
            slot.random and not self.same(slot.read(), before)
            for slot, before in zip(self.slots, start, strict=True)
        )

    def moved_alike(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Return whether two states, as `read` returns them, have all random generators in the same state.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> kept = KeptState(NumpyBackend(), [])
        >>> def after(draws):
        ...     with kept.again():
        ...         np.random.random(draws)
        ...         return kept.read()
        >>> kept.moved_alike(after(2), after(2)), kept.moved_alike(after(2), after(3))
        (True, False)
        """
        return all(
            self.same(x, y) for slot, x, y in zip(self.slots, one, other, strict=True) if slot.random
        )

    def differs(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Return whether two states, as `read` returns them, differ in anything but random generators."""
        return any(
            not slot.random and not self.same(x, y)
            for slot, x, y in zip(self.slots, one, other, strict=True)
        )

    def same(self, x: Any, y: Any, depth: int = DEPTH) -> bool:
        """Return whether two values are of one type and equal; arrays may differ by rounding.

        Lists, tuples, deques and dicts are compared entry by entry; deeper than ``depth`` levels they count
        as different. Numbers, strings, sets and `random.Random` are compared by value, other objects by
        identity.
        """
        if x is y:
            return True
        if type(x) is not type(y):
            return False
        if isinstance(x, random.Random):
            return bool(x.getstate() == y.getstate())
        if isinstance(x, (dict, list, tuple, deque)):
            # What nests too deeply counts as changed. The trial then looks whether the change has any
            # effect.
            if not depth or len(x) != len(y):
                return False
            if isinstance(x, dict):
                return x.keys() == y.keys() and all(self.same(x[key], y[key], depth - 1) for key in x)
            return all(self.same(one, other, depth - 1) for one, other in zip(x, y, strict=True))
        if self.backend.owns(x) or isinstance(x, np.ndarray):
            hosts = [v if isinstance(v, np.ndarray) else self.backend.to_numpy(v) for v in (x, y)]
            host, other = map(np.atleast_1d, hosts)
            return close(host, other, tolerance_of(x, host))
        # `==` of any other object is the user's code: it may raise, or return an array.
        return bool(x == y) if isinstance(x, (*VALUES, set)) else x is y


ASIDE: set[int] = set()
"""Threads in which state is aside just now: names stand for copies there, which other threads see, too."""


def is_aside() -> bool:
    """Return whether this thread has put state aside, as a trial does: names stand for copies then."""
    return threading.get_ident() in ASIDE


def wait_for_others() -> None:
    """Wait while another thread has put state aside, for a second at most."""
    for _ in range(100):
        if not ASIDE - {threading.get_ident()}:
            return
        time.sleep(0.01)


def still_holds(check: Callable[[], bool]) -> bool:
    """Return ``check()``, which compares state; it is asked again where others have put some aside."""
    if check():
        return True
    wait_for_others()
    return check()


@contextmanager
def aside(backend: Backend, owners: Sequence[Any]) -> Iterator[KeptState]:
    """Return a context after which all is as before: random generators, state of the model, and gradients.

    ``owners`` are the model and the objects whose state may change inside. Inside, hooks and tapes of the
    framework do not see what runs (`Backend.apart`). It yields the state that it puts back.
    """
    kept = KeptState(backend, owners)
    with kept.again(), backend.apart(owners):
        yield kept


def slots_of(backend: Backend, owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield a slot for each thing that ops of these owners may change.

    NumPy's and Python's global random state come first, then what the backend knows (`Backend.slots`), then
    generators, variables, attributes and containers that can be reached from the owners.
    """
    yield StateSlot(numpy_state, set_numpy_state, random=True, seed=np.random.seed, owner=np.random)
    yield StateSlot(python_state, set_python_state, random=True, seed=random.seed, owner=random)
    roots = [*backend.stateful(owners)]
    found = [*reached(backend, roots, MOST)]
    # What `reached` does not look into may be a module of the framework, whose state the backend knows.
    yield from backend.slots([*owners, *[x for x, inside in found if not inside]])
    for x, inside in found:
        if is_generator(x):
            yield from generator_slots(x)
        elif inside:
            yield from own_slots(backend, x, is_model=any(x is owner for owner in owners))


def own_slots(backend: Backend, x: Any, is_model: bool) -> Iterator[StateSlot]:
    """Yield the slots of one object.

    A function has one for each closure variable, one for the globals that its code names and one for its
    attributes; a container has one for its contents; another object has one for its attributes.

    ``is_model`` says that ``x`` is an owner, such as a dictionary of parameters: the arrays in such a
    container are not copied.
    """
    copied = partial(with_copies, backend)
    if isinstance(x, FunctionType):
        for cell in x.__closure__ or ():
            read, write = partial(read_cell, cell), partial(write_cell, cell)
            yield StateSlot(read, write, partial(copy_of, backend), owner=cell)
        for named in (Bindings(x.__globals__, only=frozenset(globals_of(x.__code__))), Bindings(vars(x))):
            yield StateSlot(named.read, named.write, copied, owner=x)
    elif type(x) in CONTAINERS:
        # The arrays of a model that is a dictionary are its parameters, which stay what they are.
        read, write = partial(contents, x), partial(refill, x)
        yield StateSlot(read, write, owner=x) if is_model else StateSlot(read, write, copied, owner=x)
    elif hasattr(x, "__dict__"):
        attributes = Bindings(vars(x), but=backend.reserved(x))
        yield StateSlot(attributes.read, attributes.write, copied, owner=x)


class Bindings:
    """Reads and writes the values of some names in a dictionary, such as an object's attributes.

    Parameters
    ----------
    own : dict
        The attributes of an object, or the variables of a module.
    only : collection of str or None
        Which names; None for all.
    but : collection of str
        Names that are left out.
    """

    def __init__(
        self, own: dict[str, Any], only: Collection[str] | None = None, but: Collection[str] = ()
    ) -> None:
        self.own = own
        self.only = only
        self.but = but

    def read(self) -> dict[str, Any]:
        """Return a new dict, name -> value; names without a value are left out."""
        names = self.own if self.only is None else self.only
        return {name: self.own[name] for name in names if name in self.own and name not in self.but}

    def write(self, values: Mapping[str, Any]) -> None:
        """Give the names these values, and delete each name of `read` that has no value in ``values``.

        A wrapper that stands in a function's place while a program runs is no change: another thread may
        have put it there, or have taken it away.
        """
        for name in self.read().keys() - values.keys():
            del self.own[name]
        for name, value in values.items():
            if bare(self.own.get(name, self)) is not bare(value):
                self.own[name] = value


def contents(x: Any) -> Any:
    """Return the contents of a container as a new dict, a new set, or a new list (of a deque, say)."""
    return dict(x) if isinstance(x, dict) else set(x) if isinstance(x, set) else list(x)


def refill(x: Any, values: Any) -> None:
    """Replace the contents of a container by ``values``, as `contents` returns them.

    The container stays the same object, since others may hold it; equal contents are left alone.
    """
    now = contents(x)
    # Most containers were not changed. Emptying one for a moment would disturb a thread that reads it.
    if len(now) == len(values) and all(map(operator.is_, leaves(now), leaves(values))):
        return
    x.clear()
    (x.extend if isinstance(values, list) else x.update)(values)


def leaves(values: Any) -> Iterator[Any]:
    """Yield the entries of a set or list; of a dictionary the keys, then the values."""
    return itertools.chain(values, values.values()) if isinstance(values, dict) else iter(values)


def with_copies(backend: Backend, values: Any) -> Any:
    """Return a new dict or list in which arrays are copies and all else is the same; a set as it is."""
    if isinstance(values, dict):
        return {name: copy_of(backend, x) for name, x in values.items()}
    return values if isinstance(values, set) else [copy_of(backend, x) for x in values]


def copy_of(backend: Backend, x: Any) -> Any:
    """Return a copy of an array of NumPy or of the backend; any other object as it is."""
    if type(x) is np.ndarray:  # a subclass has attributes that a copy of it may lack
        return x.copy()
    return backend.copy(x) if backend.owns(x) else x


NOTHING = object()
"""What is in a cell of a closure that holds nothing."""


def read_cell(cell: CellType) -> Any:
    """Return what a cell of a closure holds; `NOTHING` if its variable has no value."""
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not assigned yet
        return NOTHING


def write_cell(cell: CellType, value: Any) -> None:
    """Put a value into a cell of a closure; `NOTHING` empties it."""
    if value is NOTHING:
        delattr(cell, "cell_contents")
    else:
        setattr(cell, "cell_contents", value)  # noqa: B010 - a variable of the user


def numpy_state() -> tuple[Any, ...]:
    """Return NumPy's global random state as a tuple; its 624 keys become bytes, quick to compare."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return name, keys.tobytes(), *rest


def set_numpy_state(state: tuple[Any, ...]) -> None:
    """Set NumPy's global random state to what `numpy_state` returned."""
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


def python_state() -> tuple[Any, ...]:
    """Return Python's global random state as a tuple; its 625 numbers become bytes, quick to compare."""
    version, numbers, *rest = random.getstate()
    return version, np.array(numbers, np.uint32).tobytes(), *rest


def set_python_state(state: tuple[Any, ...]) -> None:
    """Set Python's global random state to what `python_state` returned."""
    version, numbers, *rest = state
    random.setstate((version, tuple(np.frombuffer(numbers, np.uint32).tolist()), *rest))


def generator_slots(x: Any) -> Iterator[StateSlot]:
    """Yield one slot, the state of a random generator of NumPy or Python.

    Nothing for `random.SystemRandom`, which has no state, nor for other subclasses of `random.Random`.
    """
    if isinstance(x, np.random.Generator):
        bits = x.bit_generator
        write = partial(setattr, bits, "state")
        yield StateSlot(
            read=lambda: copy.deepcopy(bits.state),
            write=write,
            random=True,
            # A `Generator` has no `seed`, so it takes the state of a new bit generator that was seeded.
            seed=lambda seed: write(type(bits)(seed).state),
            owner=x,
        )
    elif isinstance(x, np.random.RandomState):
        yield StateSlot(lambda: x.get_state(legacy=False), x.set_state, random=True, seed=x.seed, owner=x)
    # Not a subclass: `SystemRandom` has no state to read, and raises.
    elif type(x) is random.Random:
        yield StateSlot(x.getstate, x.setstate, random=True, seed=x.seed, owner=x)
