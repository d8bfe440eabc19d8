"""State: what an op may change besides its result, read before a launch and put back for each trial.

An op may draw random numbers, move a running mean, or count its calls. A trial (`multifold._run.trial`)
runs it again, from the state that the launch began with, and leaves everything as the launch has left it:

>>> class Model:
...     calls = 0
...     def double(self, x):
...         self.calls += 1
...         return 2 * x
>>> from multifold._frameworks.numpy_backend import NumpyBackend
>>> model = Model()
>>> kept = KeptState(NumpyBackend(), [model])
>>> model.double(1)  # the launch
2
>>> with kept.again():
...     model.calls, model.double(1), model.calls
(0, 2, 1)
>>> model.calls
1

A *slot* is one thing that may change. Where an op writes into an object, as into a buffer, a trial gets a
copy of it, since a recorded backward pass may hold the object itself.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np

from multifold._run.closeness import close, tolerance_of
from multifold.backend import Backend, StateSlot

SINGLE = (bool, int, float, complex, str, bytes, NoneType)
"""Types of attributes that are compared and put back as they are."""

MANY = (list, dict, set, tuple, deque)
"""Types of attributes that are copied, with what they hold."""

MOST = 4096
"""Entries of such an attribute. A longer one is data of the user, which takes long to copy and compare."""


DEPTH = 4
"""Containers in containers that are copied. What lies deeper stays: a tree may know its parents."""


class KeptState:
    """What ops may change, as it was when this was made.

    Parameters
    ----------
    backend : Backend
        What knows the framework's random state and modules.
    owners : sequence of object
        The model, and what the op consists of.
    """

    def __init__(self, backend: Backend, owners: Sequence[Any]) -> None:
        self.backend = backend
        self.slots = [*slots_of(backend, owners)]
        self.before = [slot.copy(slot.read()) for slot in self.slots]

    @contextmanager
    def again(self, start: Sequence[Any] | None = None) -> Iterator[None]:
        """Let everything be as it was, or as ``start`` has it; in the end put back what is there now."""
        now = [slot.read() for slot in self.slots]
        try:
            self.write(self.before if start is None else start)
            yield
        finally:
            for slot, value in zip(self.slots, now, strict=True):
                slot.write(value)

    def write(self, values: Sequence[Any]) -> None:
        """Write copies of values to the slots."""
        for slot, value in zip(self.slots, values, strict=True):
            slot.write(slot.copy(value))

    def read(self) -> list[Any]:
        """Return a copy of what is in each slot now."""
        return [slot.copy(slot.read()) for slot in self.slots]

    def drew(self, start: Sequence[Any]) -> bool:
        """Return whether random numbers were drawn since the slots were as ``start`` has it."""
        return any(
            slot.random and not self.same(slot.read(), before)
            for slot, before in zip(self.slots, start, strict=True)
        )

    def moved_alike(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Return whether random numbers have moved on by the same in two states.

        >>> from multifold._frameworks.numpy_backend import NumpyBackend
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
        """Return whether two states differ in anything but random numbers."""
        return any(
            not slot.random and not self.same(x, y)
            for slot, x, y in zip(self.slots, one, other, strict=True)
        )

    def same(self, x: Any, y: Any, depth: int = DEPTH) -> bool:
        """Return whether two values are equal, up to rounding where they are arrays."""
        if x is y:
            return True
        if type(x) is not type(y):
            return False
        if isinstance(x, random.Random):
            return bool(x.getstate() == y.getstate())
        if isinstance(x, (dict, list, tuple, deque)):
            if not depth or len(x) != len(y):
                return False
            if isinstance(x, dict):
                return x.keys() == y.keys() and all(self.same(x[key], y[key], depth - 1) for key in x)
            return all(self.same(one, other, depth - 1) for one, other in zip(x, y, strict=True))
        if self.backend.owns(x) or isinstance(x, np.ndarray):
            hosts = [v if isinstance(v, np.ndarray) else self.backend.to_numpy(v) for v in (x, y)]
            host, other = map(np.atleast_1d, hosts)
            return close(host, other, tolerance_of(x, host))
        return bool(x == y) if isinstance(x, (*SINGLE, set)) else x is y


@contextmanager
def aside(backend: Backend, owners: Sequence[Any]) -> Iterator[None]:
    """Let nothing stay of what runs meanwhile: no gradients, no random state, no state of the model."""
    with KeptState(backend, owners).again(), backend.apart(owners):
        yield


def slots_of(backend: Backend, owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield what ops of some owners may change."""
    yield StateSlot(numpy_state, set_numpy_state, random=True)
    yield StateSlot(random.getstate, random.setstate, random=True)
    yield from backend.slots(owners)
    for owner in {id(x): x for x in backend.stateful(owners)}.values():
        yield from own_slots(backend, owner)


def own_slots(backend: Backend, owner: Any) -> Iterator[StateSlot]:
    """Yield what an object holds that an op may change."""
    if isinstance(owner, FunctionType):
        for cell in owner.__closure__ or ():
            yield StateSlot(partial(content, cell), partial(write_cell, cell), partial(copied, backend))
        return
    if isinstance(owner, Mapping):
        entries: Iterable[Any] = owner.values()
    elif isinstance(owner, (type, ModuleType)) or not hasattr(owner, "__dict__"):
        entries = (owner,)
    else:
        attributes = Attributes(backend, owner)
        yield StateSlot(attributes.read, attributes.write, attributes.copy)
        entries = (owner, *vars(owner).values())
    for entry in entries:
        yield from generator_slots(entry)


class Attributes:
    """The attributes of an object, but for those that its framework keeps for itself."""

    def __init__(self, backend: Backend, owner: Any) -> None:
        self.backend = backend
        self.own = vars(owner)
        self.reserved = backend.reserved(owner)

    def read(self) -> dict[str, Any]:
        """Return them, as they are."""
        reserved = self.reserved
        return {name: value for name, value in self.own.items() if name not in reserved}

    def write(self, values: dict[str, Any]) -> None:
        """Let them be these."""
        for name in self.read().keys() - values.keys():
            del self.own[name]
        for name, value in values.items():
            if self.own.get(name, self) is not value:
                self.own[name] = value

    def copy(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return copies of those that are state, and the others as they are."""
        return {name: copied(self.backend, value) for name, value in values.items()}


def copied(backend: Backend, value: Any, depth: int = DEPTH) -> Any:
    """Return a copy of a value, with all arrays and containers in it; other objects stay what they are."""
    kind = type(value)
    if kind in MANY:
        if not depth or len(value) > MOST:
            return value
        if kind is dict:
            return {key: copied(backend, x, depth - 1) for key, x in value.items()}
        found = [copied(backend, x, depth - 1) for x in value]
        return deque(found, value.maxlen) if kind is deque else kind(found)
    if isinstance(value, np.ndarray):
        return value.copy()
    return backend.copy(value) if backend.owns(value) else value


NOTHING = object()
"""What is in a cell of a closure that holds nothing."""


def content(cell: CellType) -> Any:
    """Return what is in a cell of a closure."""
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return NOTHING


def write_cell(cell: CellType, value: Any) -> None:
    """Let a cell of a closure hold a value, or nothing."""
    if value is NOTHING:
        delattr(cell, "cell_contents")
    else:
        setattr(cell, "cell_contents", value)  # noqa: B010 - it is no attribute of ours


# ---- random numbers ------------------------------------------------------------------------------


def numpy_state() -> tuple[Any, ...]:
    """Return NumPy's global random state."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return name, keys.tobytes(), *rest


def set_numpy_state(state: tuple[Any, ...]) -> None:
    """Let NumPy's global random state be this one."""
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


def generator_slots(x: Any) -> Iterator[StateSlot]:
    """Yield the state of a random generator of NumPy or Python."""
    if isinstance(x, np.random.Generator):
        bits = x.bit_generator
        yield StateSlot(lambda: copy.deepcopy(bits.state), partial(setattr, bits, "state"), random=True)
    elif isinstance(x, np.random.RandomState):
        yield StateSlot(lambda: x.get_state(legacy=False), x.set_state, random=True)
    elif type(x) is random.Random:
        yield StateSlot(x.getstate, x.setstate, random=True)
