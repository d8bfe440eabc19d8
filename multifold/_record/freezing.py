"""Values as keys, and copies of them that no later change reaches.

Two calls share a launch only if their static values, ops and shared arrays are the same. `freeze` makes a
key of a value: keys are compared by content and with types, so ``1``, ``1.0`` and ``True`` differ. The
caller may change a list after he has recorded a call with it, so the graph keeps a `snapshot`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections import UserDict, deque
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import optree

from multifold.errors import RecordError
from multifold.operands import RaggedOperand, Shared, Static

BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
"""Bound methods: ``model.leaf`` is a new object each time, but ``model.leaf == model.leaf``."""


class Identity:
    """An object that is equal only to itself.

    It keeps the object alive, since Python gives the id of an object that is gone to a new one.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def freeze(value: Any) -> Hashable:
    """Return a hashable key that is equal for values that are equal in value and type.

    Containers are compared by their contents, mappings with the order of their entries, which an op can
    see, NumPy arrays by dtype, shape and bytes, dataclasses by their fields, callables and arrays of
    frameworks by identity.

    Examples
    --------
    >>> freeze([1, 2]) == freeze([1, 2]), freeze(1) == freeze(True), freeze(0.0) == freeze(-0.0)
    (True, False, False)
    """
    cls = type(value)
    if cls in (int, str, bool, bytes, type(None)):
        return cls, value
    if cls is float:
        return cls, value.hex()
    if isinstance(value, (tuple, list, deque)):
        return cls, *map(freeze, value)
    if isinstance(value, bytearray):
        return cls, bytes(value)
    if isinstance(value, Mapping):
        return cls, *[(freeze(key), freeze(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return cls, frozenset(map(freeze, value))
    if isinstance(value, slice):
        return cls, freeze((value.start, value.stop, value.step))
    if isinstance(value, np.ma.MaskedArray):
        return cls, freeze(np.asarray(value)), freeze(np.ma.getmaskarray(value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return cls, value.dtype, value.shape, value.tobytes()
    if isinstance(value, (float, complex)):
        # The digits tell 0.0 from -0.0, which are equal; the value itself tells what a subclass adds.
        return cls, complex(value).real.hex(), complex(value).imag.hex(), value
    if cls in BOUND:
        return cls, value
    names = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    # Libraries of modules have partial functions and bound methods of their own: dataclasses whose fields
    # have the names of Python's own. A new one is made for each access, so they are compared by fields.
    if (cls is functools.partial and not vars(value)) or names == {"func", "args", "keywords"}:
        return cls, freeze(value.func), freeze(value.args), freeze(value.keywords)
    if names == {"__func__", "__self__"}:
        return cls, Identity(value.__func__), Identity(value.__self__)
    if is_record(value):
        fields = tuple(getattr(value, f.name) for f in dataclasses.fields(value))
        return cls, freeze(fields)
    if isinstance(value, (Shared, Static, RaggedOperand)) or hasattr(cls, "no_batch"):
        raise RecordError(
            f"Expected a static value, as keyword arguments are. Received a {cls.__name__} in it.",
            "pass nodes, and what is shared or ragged, as positional operands.",
        )
    if callable(value) or hasattr(value, "dtype"):
        return Identity(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return cls, value


def nesting(structure: Any, leaves: int) -> Hashable:
    """Return how operands nest, as a key.

    An op can see the order of a dictionary's entries, but optree's structures of ``{"a": 1, "b": 2}`` and
    ``{"b": 2, "a": 1}`` are equal. The frozen dictionaries are not.
    """
    return None if structure is None else freeze(optree.tree_unflatten(structure, [None] * leaves))


def snapshot(value: Any) -> Any:
    """Return a copy of what `freeze` compares by content: no later change reaches a recorded call."""
    cls = type(value)
    if cls in (list, set, tuple):
        return cls(map(snapshot, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    if cls is types.MappingProxyType:
        return cls(snapshot(dict(value)))
    if isinstance(value, (dict, UserDict, list, deque)):
        kept: Any = copy.copy(value)  # keeps what a subclass adds, such as the default of a defaultdict
        pairs = value.items() if isinstance(value, (dict, UserDict)) else enumerate(value)
        for key, item in pairs:
            kept[key] = snapshot(item)
        return kept
    if isinstance(value, (set, bytearray)):
        return copy.copy(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(snapshot, value))
    if is_record(value):
        kept = copy.copy(value)
        for field in dataclasses.fields(value):  # of a frozen one, too
            object.__setattr__(kept, field.name, snapshot(getattr(value, field.name)))
        return kept
    return value


def is_record(value: Any) -> bool:
    """Return whether a value is a dataclass that is compared by its fields."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not callable(value)


def may_change(array: np.ndarray) -> bool:
    """Return whether an array, or an object whose memory it shares, can be written to.

    Examples
    --------
    >>> table = np.zeros(3)
    >>> view = table[:2]
    >>> view.setflags(write=False)
    >>> may_change(view), may_change(np.frombuffer(b"abc", np.uint8))
    (True, False)
    """
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        writeable = owner.flags.writeable if isinstance(owner, np.ndarray) else not owner.readonly
        if writeable:
            return True
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if owner is None:
        return False
    try:
        return not memoryview(owner).readonly  # bytes, or a file that is mapped into memory
    except TypeError:
        return True


def read_only_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array that no op can write to, so that all runs may share it."""
    kept = array.copy()
    kept.setflags(write=False)
    return kept


def same(array: np.ndarray, copied: np.ndarray) -> bool:
    """Return whether an array is still what was copied; NaN is itself. Objects are not looked into."""
    if array.dtype.names:
        return all(same(array[name], copied[name]) for name in array.dtype.names)
    return (
        array.dtype.hasobject
        or np.array_equal(array, copied)
        or (array.dtype.kind in "fcmM" and np.array_equal(array, copied, equal_nan=True))
    )
