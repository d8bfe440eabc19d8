"""Values as keys: what makes two static values, ops or shared arrays the same, and copies of them.

Values are compared by content and with types: ``1``, ``1.0`` and ``True`` differ.
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
"""Callables made anew by each attribute access, whose ``==`` compares what they are bound to."""


class Identity:
    """An object that is equal only to itself; it stays alive, so that its id is not used again."""

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
    kind = type(value)
    if kind in (int, str, bool, bytes, type(None)):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if isinstance(value, (tuple, list, deque)):
        return kind, *map(freeze, value)
    if isinstance(value, bytearray):
        return kind, bytes(value)
    if isinstance(value, Mapping):
        return kind, *[(freeze(key), freeze(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(freeze, value))
    if isinstance(value, slice):
        return kind, freeze((value.start, value.stop, value.step))
    if isinstance(value, np.ma.MaskedArray):
        return kind, freeze(np.asarray(value)), freeze(np.ma.getmaskarray(value))
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return kind, value.dtype, value.shape, value.tobytes()
    if isinstance(value, (float, complex)):  # by its digits, since 0.0 == -0.0; and what a subclass adds
        return kind, complex(value).real.hex(), complex(value).imag.hex(), value
    if kind in BOUND:
        return kind, value
    names = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    # Equinox has partial functions and methods of its own, which are dataclasses.
    if (kind is functools.partial and not vars(value)) or names == {"func", "args", "keywords"}:
        return kind, freeze(value.func), freeze(value.args), freeze(value.keywords)
    if names == {"__func__", "__self__"}:
        return kind, Identity(value.__func__), Identity(value.__self__)
    if is_record(value):
        fields = tuple(getattr(value, f.name) for f in dataclasses.fields(value))
        return kind, freeze(fields)
    if isinstance(value, (Shared, Static, RaggedOperand)) or hasattr(kind, "no_batch"):
        raise RecordError(
            f"Expected a static value, as keyword arguments are. Received a {kind.__name__} in it.",
            "pass nodes, and what is shared or ragged, as positional operands.",
        )
    if callable(value) or hasattr(value, "dtype"):
        return Identity(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return kind, value


def nesting(structure: Any, leaves: int) -> Hashable:
    """Return how operands nest, with the order of the entries of mappings, which an op can see.

    Two structures of optree are equal whatever that order.
    """
    return None if structure is None else freeze(optree.tree_unflatten(structure, [None] * leaves))


def snapshot(value: Any) -> Any:
    """Return a copy of what `freeze` compares by content: no later change reaches a recorded call."""
    kind = type(value)
    if kind in (list, set, tuple):
        return kind(map(snapshot, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    if kind is types.MappingProxyType:
        return kind(snapshot(dict(value)))
    if isinstance(value, (dict, UserDict)):
        kept: Any = copy.copy(value)  # which keeps what a subclass adds, as the default of a defaultdict
        for key, item in value.items():
            kept[key] = snapshot(item)
        return kept
    if isinstance(value, (list, deque)):
        kept = copy.copy(value)
        for place, item in enumerate(value):
            kept[place] = snapshot(item)
        return kept
    if isinstance(value, (set, bytearray)):
        return copy.copy(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(snapshot, value))
    if is_record(value):
        kept = copy.copy(value)
        for entry in dataclasses.fields(value):
            object.__setattr__(kept, entry.name, snapshot(getattr(value, entry.name)))
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
