"""Values as keys, and copies of them that no later change reaches.

Two calls share a launch only if their static values, ops and shared values are the same, and the caller may
change a list after he has recorded a call with it. So a graph keeps two things of such a value: a key that
it compares (`freeze`), and a copy that it hands to the op (`snapshot`). Both take the value apart by the
same row of one table (`multifold._engine.record.anatomy`), so a key leaves nothing out that a copy has.

There are three sorts of values, and all others are refused when they are recorded:

- What has contents is copied, and compared by type and contents: numbers, text, tuples, lists,
  dictionaries, sets, NumPy arrays, dataclasses, `functools.partial`, hashable objects such as dates and
  paths, and objects of Python classes with an ``__eq__`` of their own.
- What is meant as that one object is kept as it is, and compared by identity: functions, classes, modules,
  other callables, members of an `enum.Enum`, arrays of frameworks, locks, random generators, objects
  without attributes such as ``object()``, and those that guard their attributes, as a module of TensorFlow.
- Iterators, views of dictionaries, memory of others, other containers, as `collections.deque`, whatever
  contains itself, and objects that have attributes but no ``__eq__`` are refused.

What a function closes over cannot be seen from outside. A lambda is equal only to itself, and a list that
it reads is not copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from types import BuiltinFunctionType, ModuleType, NoneType
from typing import Any

import numpy as np
import optree

from multifold._engine.compiled.forms import ATOMS
from multifold._engine.record.anatomy import Identity, take_apart, way_of
from multifold.errors import RecordError
from multifold.operands import RaggedOperand, Shared, Static


def freeze(value: Any) -> Hashable:
    """Return a hashable key that is equal for values between which an op sees no difference.

    Raises
    ------
    RecordError
        For a value that can neither be compared by its contents nor be meant as that one object.

    Examples
    --------
    >>> freeze([1, 2]) == freeze([1, 2]), freeze(1) == freeze(True), freeze(0.0) == freeze(-0.0)
    (True, False, False)
    """
    cls = type(value)
    if cls in ATOMS:
        return cls, value
    # Hexadecimal digits tell 0.0 from -0.0, and make NaN equal to itself.
    if cls is float:
        return cls, value.hex()
    # A function such as `torch.relu` is pickled by its name, but its class cannot be pickled at all. So a
    # word stands for the class in the key, which goes into the pickle of a trace.
    if cls is BuiltinFunctionType and isinstance(value.__self__, (ModuleType, type, NoneType)):
        return "builtin function", value
    way = way_of(value)
    if way is None:
        return Identity(value)
    fixed, inner, attributes = take_apart(way, value)
    frozen = map(freeze, inner)
    contents = frozenset(frozen) if way.unordered else tuple(frozen)
    if not attributes:
        return cls, fixed, contents
    return cls, fixed, contents, tuple(attributes), tuple(map(freeze, attributes.values()))


def snapshot(value: Any) -> Any:
    """Return a copy of a value that no later change of it reaches; the value itself if it cannot change.

    Raises
    ------
    RecordError
        For a value that `freeze` refuses.

    Examples
    --------
    >>> sizes = [1, [2]]
    >>> kept = snapshot(sizes)
    >>> sizes[1].append(3)
    >>> kept
    [1, [2]]
    """
    if type(value) in ATOMS or type(value) is float:
        return value
    way = way_of(value)
    if way is None:
        return value
    fixed, inner, attributes = take_apart(way, value)
    copies = list(map(snapshot, inner))
    # A tuple of numbers is its own copy, a tuple that holds a list is not.
    if not (way.changes or attributes) and all(a is b for a, b in zip(copies, inner, strict=True)):
        return value
    made = way.make(value, fixed, copies)
    for (in_dict, name), x in attributes.items():
        if in_dict:
            vars(made)[name] = snapshot(x)
        else:
            # A frozen dataclass with slots refuses `setattr`, but not that of `object`.
            object.__setattr__(made, name, snapshot(x))
    return made


def contains_itself(value: Any) -> bool:
    """Return whether a value is to be found inside of itself, as after ``x = []; x.append(x)``.

    A stack of iterators takes the place of recursion, which has just failed when this is called.
    """
    # `visited` keeps each value alive, since Python gives the id of an object that is gone to a new one.
    visited = {id(value): value}
    outer = {id(value)}
    path: list[tuple[int, Iterator[Any]]] = [(id(value), iter(inside(value)))]
    while path:
        number, pending = path[-1]
        for x in pending:
            if id(x) in outer:
                return True
            if id(x) not in visited:
                visited[id(x)] = x
                outer.add(id(x))
                path.append((id(x), iter(inside(x))))
                break
        else:
            path.pop()
            outer.discard(number)
    return False


def refuse_itself(value: Any, what: str) -> None:
    """Raise `RecordError` if a value contains itself; ``what`` says where it is, as "the outputs".

    Call it where the value has led to a `RecursionError`.
    """
    if contains_itself(value):
        raise RecordError(
            f"Expected values of finite depth in {what}. Received one that contains itself.",
            "pass the parts of it that are needed.",
        ) from None


def inside(value: Any) -> Sequence[Any]:
    """Return what is directly inside of a value: its entries and attributes, or what a marker marks.

    The markers are `shared`, `static` and `ragged`. It is empty if nothing is inside, or if `way_of`
    refuses the value.
    """
    if isinstance(value, (Shared, Static)):
        return [value.value]
    if isinstance(value, RaggedOperand):
        return value.items
    way = None
    if type(value) not in ATOMS and type(value) is not float:
        with contextlib.suppress(RecordError):
            way = way_of(value)
    if way is None:
        return ()
    _, inner, attributes = take_apart(way, value)
    return [*inner, *attributes.values()]


def nesting(structure: Any, leaves: int) -> Hashable:
    """Return a key of how operands nest, None for ``structure=None``: ``f(a, b)`` and ``f([a, b])`` differ.

    ``structure`` is an optree ``PyTreeSpec`` with ``leaves`` leaves. optree's structures of ``{"a": 1, "b":
    2}`` and ``{"b": 2, "a": 1}`` are equal, but an op can see the order of the entries, and the keys
    differ.
    """
    return None if structure is None else freeze(optree.tree_unflatten(structure, [None] * leaves))


def may_change(array: np.ndarray) -> bool:
    """Return whether the memory of an array can be written to, through whatever view of it.

    An array that is read-only may be a view of one that is not, and a file may be mapped into memory
    twice. Only the memory of a `bytes` object never changes.

    Examples
    --------
    >>> may_change(np.zeros(3)), may_change(np.broadcast_to(np.zeros(1), 3))
    (True, True)
    >>> may_change(np.frombuffer(b"abc", np.uint8))
    False
    """
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return not isinstance(owner, bytes)


def read_only_copy(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array that refuses to be written to, so that all runs may share it."""
    kept: np.ndarray = snapshot(array)
    kept.setflags(write=False)
    return kept


def same(array: np.ndarray, copied: np.ndarray) -> bool:
    """Return whether an array of numbers equals its copy, of the same shape and dtype; NaN equals NaN."""
    # `equal_nan` calls `isnan`, which fails for text and for dtypes with fields; and ints have no NaN.
    if array.dtype.names:
        return all(same(array[name], copied[name]) for name in array.dtype.names)
    return np.array_equal(array, copied) or (
        array.dtype.kind in "fcmM" and np.array_equal(array, copied, equal_nan=True)
    )


def is_copy(copied: np.ndarray, array: np.ndarray) -> bool:
    """Return whether two arrays have the same bits, shape, dtype and class: 0.0 is not -0.0.

    It is False for arrays that are not contiguous in the order of C, whatever they hold.

    Examples
    --------
    >>> zeros = np.zeros(3)
    >>> is_copy(zeros.copy(), zeros), is_copy(-zeros, zeros)
    (True, False)
    """
    # The bytes of any other layout do not lie one after the other. Such an array is copied once more, which
    # does no harm.
    if not (array.flags.c_contiguous and copied.flags.c_contiguous):
        return False
    alike = (array.shape, array.dtype, type(array)) == (copied.shape, copied.dtype, type(copied))
    return alike and np.array_equal(array.reshape(-1).view(np.uint8), copied.reshape(-1).view(np.uint8))
