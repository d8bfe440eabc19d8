"""How values are taken apart and put together again: the one table of what an op can see of a value.

`multifold._engine.record.freezing` makes keys and copies of values by it. What decides is what an op can
see: the type, the contents in their order, and the attributes. A dictionary has its keys and entries in
turn:

>>> way = way_of({})
>>> fixed, inner, attributes = take_apart(way, {"a": 1, "b": [2]})
>>> fixed, inner, attributes
(None, ['a', 1, 'b', [2]], {})
>>> way.make({}, fixed, ["a", 1, "b", [2, 9]])
{'a': 1, 'b': [2, 9]}

A value of a class that is not in the table goes the way of the nearest class that it is derived from, and
its attributes are seen, too. Of all other objects the class decides. One with an ``__eq__`` says that its
objects stand for what they hold: they are copied. Of classes that are written in C, or that say how they
are pickled, only hashable objects are: a date or a path, but no queue. Any other class says that each of
its objects is only itself. That will do for a function, a lock or ``object()``. But an object with
attributes could change after a call was recorded with it, and a copy would not be it, so it is refused.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import inspect
import io
import types
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, MappingView, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from multifold.errors import RecordError, type_of
from multifold.operands import RaggedOperand, Shared, Static

BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
"""Bound methods: ``model.leaf`` is a new object each time, but ``model.leaf == model.leaf``."""


class Identity:
    """A key for one object: ``Identity(x) == Identity(y)`` only if ``x is y``.

    It keeps the object alive, since Python gives the id of an object that is gone to a new one.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


Taken = tuple[Hashable, Sequence[Any]]
"""What ``==`` compares as it is, as the dtype of an array; and the inner values, as a list's entries."""

Attributes = dict[tuple[bool, str], Any]
"""An object's attributes: ``(True, name)`` for one in its ``__dict__``, ``(False, name)`` for a slot."""


class Way(NamedTuple):
    """How values of one sort are taken apart, and put together again.

    Attributes
    ----------
    take : callable
        ``take(value)`` returns what `Taken` says, without the attributes that a subclass may add.
    make : callable
        ``make(value, fixed, inner)`` returns a new value like ``value``, of other inner values.
    changes : bool
        Whether such a value itself may change, and not only what is inside of it.
    unordered : bool
        Whether the inner values have no order.
    """

    take: Callable[[Any], Taken]
    make: Callable[[Any, Any, list[Any]], Any]
    changes: bool = True
    unordered: bool = False


def take_apart(way: Way, value: Any) -> tuple[Hashable, Sequence[Any], Attributes]:
    """Return ``(fixed, inner, attributes)`` of a value whose `Way`, by `way_of`, is ``way``.

    ``fixed`` is compared by ``==``, ``inner`` are the values inside, and attributes are `Attributes`: none
    for objects of the classes in `BARE`, of NumPy's classes, and of those that are compared as they are.

    >>> take_apart(WAYS[dict], {"a": 1, "b": [2]})
    (None, ['a', 1, 'b', [2]], {})
    >>> take_apart(WAYS[int], 7)
    ((7,), (), {})
    """
    cls = type(value)
    # NumPy's own subclasses keep notes in attributes that an op does not compute with. The `_mmap` of a
    # memmap is even refused as a static value, though a copy of the array's numbers will do.
    bare = cls in BARE or way in (AS_IT_IS, METHOD) or cls.__module__.partition(".")[0] == "numpy"
    return *way.take(value), {} if bare else attributes_of(value, way)


def attributes_of(value: Any, way: Way) -> Attributes:
    """Return the attributes of an object: ``(True, name)`` -> value for one in its ``__dict__``.

    The key is ``(False, name)`` for one in a slot. Left out are the values of cached properties, slots that
    were never assigned, and, if ``way`` is `REDUCED`, the slots of the class that defines ``__reduce__``
    and of its bases.
    """
    cls = type(value)
    found = Attributes()
    for name, x in getattr(value, "__dict__", {}).items():
        # What a cached property holds follows from the other attributes.
        if not isinstance(getattr(cls, name, None), functools.cached_property):
            found[True, name] = x
    for base in cls.__mro__:
        if way is REDUCED and "__reduce__" in vars(base):
            break  # it says itself what its slots mean: those of a path hold what it computed once
        if "__slots__" in vars(base):
            for name, x in vars(base).items():
                # A slot that was never assigned raises AttributeError, so it has no value to compare.
                if isinstance(x, types.MemberDescriptorType) and hasattr(value, name):
                    found[False, name] = getattr(value, name)
    return found


def base_of(cls: type) -> type:
    """Return the first class written in C in the MRO of ``cls``: `object` for most classes of users.

    Examples
    --------
    >>> from collections import Counter, UserDict, namedtuple
    >>> base_of(Counter), base_of(namedtuple("Pair", "a b")), base_of(UserDict)
    (<class 'dict'>, <class 'tuple'>, <class 'object'>)
    """
    for base in cls.__mro__:
        has = vars(base)
        # The `__new__` of a class written in C is a built-in function that is bound to this very class.
        in_c = getattr(has.get("__new__"), "__self__", None) is base
        # A `class` statement directly below `object` adds one of these two names; C code need not.
        first = base.__base__ is object and "__dict__" not in has and "__slots__" not in has
        if in_c or first or not base.__flags__ & ON_THE_HEAP:
            return base
    return object


ON_THE_HEAP = 1 << 9
"""The flag of classes that a ``class`` statement made, and of some that are written in C."""


def new(value: Any, *arguments: Any, **words: Any) -> Any:
    """Return a new object of the class of ``value``, made by the ``__new__`` of its base in C (`base_of`).

    ``arguments`` and ``words`` are passed to that. No ``__new__`` or ``__init__`` of the user is called:
    those may take other arguments than the contents, as a subclass of tuple with ``__new__(cls, n)``.
    """
    cls: Any = type(value)
    return base_of(cls).__new__(cls, *arguments, **words)


def container_maker(fill: Callable[[Any, list[Any]], object]) -> Callable[[Any, Any, list[Any]], Any]:
    """Return a `Way.make` that makes an empty container and calls ``fill(container, inner)`` to fill it."""

    def make(value: Any, fixed: Any, inner: list[Any]) -> Any:
        made = new(value)
        fill(made, inner)
        return made

    return make


def mapping_way(cls: Any) -> Way:
    """Return the `Way` of dict or OrderedDict: ``inner`` is key, entry, key, entry, ... in order."""

    # A subclass may override `items` or `__setitem__`, so both are those of the class in the table.
    def fill(made: Any, inner: list[Any]) -> None:
        for key, x in zip(inner[::2], inner[1::2], strict=True):
            cls.__setitem__(made, key, x)

    return Way(lambda x: (None, [*chain.from_iterable(cls.items(x))]), container_maker(fill))


def scalar_way(cls: Any) -> Way:
    """Return the `Way` of int, str or bytes and their subclasses: ``fixed`` is ``(plain value,)``."""
    # `int.__getnewargs__(x)` returns the plain int inside of an object of a subclass, as ``(7,)``.
    return Way(
        lambda x: (cls.__getnewargs__(x), ()), lambda value, fixed, inner: new(value, *fixed), changes=False
    )


def take_array(x: np.ndarray) -> Taken:
    """Return ``((dtype, shape, whether it is in Fortran's order, bytes), ())`` of an array.

    An array of objects, or of texts of any length, has no bytes. It is ``((dtype, shape, order),
    entries)``, a list in the order of ``ravel``.
    """
    # A subclass may change what `ravel` does: that of an `np.matrix` has two axes.
    plain = np.asarray(x)
    # An op can see whether an array lies in the order of Fortran, though `tobytes` does not show it.
    fixed = x.dtype, x.shape, x.flags.fnc
    if x.dtype.hasobject:
        return fixed, plain.ravel().tolist()
    return (*fixed, plain.tobytes()), ()


def make_array(value: np.ndarray, fixed: Any, inner: list[Any]) -> Any:
    if not value.dtype.hasobject:
        return value.copy(order="K")
    made = np.empty_like(value)
    # `np.array(inner)` would make a second axis of entries that are lists, so they are filled in one by
    # one.
    entries = np.empty(len(inner), value.dtype)
    for i, x in enumerate(inner):
        entries[i] = x
    np.asarray(made)[...] = entries.reshape(value.shape)
    return made


def take_reduced(x: Any) -> Taken:
    """Return the `Taken` of a value that pickle makes by a call: ``None, [function, arguments, state]``.

    ``Decimal("1.0")`` is ``None, [Decimal, ("1.0",), None]``. A value that cannot be pickled, or that is
    pickled by its name, as ``...``, or with entries, is ``value, ()``: it is compared as it is.
    """
    try:
        # Pickle asks the functions that packages have registered for classes first, and so does this.
        reduced = copyreg.dispatch_table.get(type(x), lambda x: x.__reduce_ex__(4))(x)
    except TypeError:
        reduced = ""
    if isinstance(reduced, str) or any(reduced[3:]):
        return x, ()
    function, arguments, state = (*reduced, None)[:3]
    return None, [function, arguments, state]


def make_reduced(value: Any, fixed: Any, inner: list[Any]) -> Any:
    if not inner:
        return value
    function, arguments, state = inner
    made = function(*arguments)
    # A state without a `__setstate__` is the attributes, and `snapshot` copies these by itself.
    if state is not None and hasattr(made, "__setstate__"):
        made.__setstate__(state)
    return made


AS_IT_IS = Way(lambda x: (x, ()), lambda value, fixed, inner: value, changes=False)
METHOD = Way(
    lambda x: ((Identity(x.__func__), Identity(x.__self__)), ()),
    lambda value, fixed, inner: value,
    changes=False,
)
REDUCED = Way(take_reduced, make_reduced)
ATTRIBUTES = Way(lambda x: (None, ()), lambda value, fixed, inner: new(value))
RANGE = Way(
    lambda x: (None, (x.start, x.stop, x.step)),
    lambda value, fixed, inner: type(value)(*inner),
    changes=False,
)

WAYS: dict[type, Way] = {
    **{cls: scalar_way(cls) for cls in (int, str, bytes)},
    float: Way(
        lambda x: (float.hex(x), ()),  # tells 0.0 from -0.0, which are equal
        lambda value, fixed, inner: new(value, float.fromhex(fixed)),
        changes=False,
    ),
    complex: Way(
        lambda x: (tuple(map(float.hex, (x.real, x.imag))), ()),
        lambda value, fixed, inner: new(value, *map(float.fromhex, fixed)),
        changes=False,
    ),
    tuple: Way(
        lambda x: (None, tuple(tuple.__iter__(x))),
        lambda value, fixed, inner: new(value, inner),
        changes=False,
    ),
    list: Way(lambda x: (None, [*list.__iter__(x)]), container_maker(list.extend)),
    set: Way(lambda x: (None, [*set.__iter__(x)]), container_maker(set.update), unordered=True),
    frozenset: Way(
        lambda x: (None, [*frozenset.__iter__(x)]),
        lambda value, fixed, inner: new(value, inner),
        changes=False,
        unordered=True,
    ),
    dict: mapping_way(dict),
    OrderedDict: mapping_way(OrderedDict),
    slice: RANGE,
    range: RANGE,
    functools.partial: Way(
        lambda x: (None, [x.func, x.args, x.keywords]),
        lambda value, fixed, inner: new(value, inner[0], *inner[1], **inner[2]),
    ),
    np.ndarray: Way(take_array, make_array),
    np.void: Way(
        lambda x: take_array(np.asarray(x)),
        lambda value, fixed, inner: make_array(np.asarray(value), fixed, inner)[()],
    ),
    np.generic: Way(
        lambda x: take_array(np.asarray(x)),
        lambda value, fixed, inner: new(value, base_of(type(value))(value)),
        changes=False,
    ),
}
"""The ways of values that Python and NumPy define, and of objects of classes derived from theirs."""

BARE = frozenset(WAYS) - {functools.partial}
"""Classes whose objects have no attributes; those of subclasses may have."""

ITSELF = (types.FunctionType, type, types.ModuleType, enum.Enum)
"""Classes of objects of which there is one for each meaning."""


@functools.cache
def more_than_entries() -> dict[type, str]:
    """Return the classes that hold more than their entries, as a mask or a default factory -> a hint.

    `numpy.ma` is loaded by the first look at it, which would be a tenth of the time to import multifold.
    """
    return {defaultdict: "pass dict(x).", np.ma.MaskedArray: "pass its data and its mask."}


def way_of(value: Any) -> Way | None:
    """Return the `Way` of a value, None if the value is compared by identity, as a function or a lock.

    Raises
    ------
    RecordError
        If the value has attributes or contents that may change and cannot be copied, as an iterator or a
        queue; if it is a node, is marked as an operand, or is an awaitable.
    """
    cls = type(value)
    way = WAYS.get(cls)
    if way is not None:
        return way
    # This comes before the bases: a member of an `IntEnum` is an int as well, but an op may ask whether it
    # `is` Color.RED.
    if isinstance(value, ITSELF):
        return None
    for base in cls.__mro__:
        if base in more_than_entries():
            raise refused(value, "which holds more than its entries", more_than_entries()[base])
        if base in WAYS:
            return WAYS[base]
    if callable(value):
        return way_of_callable(cls)
    if isinstance(value, (Shared, Static, RaggedOperand)) or hasattr(cls, "no_batch"):
        raise RecordError(
            f"Expected a static value, as keyword arguments are. Received a {cls.__name__} in it.",
            "pass nodes, and what is shared or ragged, as positional operands.",
        )
    if hasattr(cls, "__array__") or (hasattr(cls, "dtype") and hasattr(cls, "shape")):
        return None  # an array of a framework, which its gradient belongs to
    refuse_awaitable(value)
    # An open file iterates over its lines, too, but who passes one means that file.
    if isinstance(value, (Iterator, AsyncIterator, MappingView)) and not isinstance(value, io.IOBase):
        raise refused(value, "which others may change or use up", "pass tuple(x).")
    return way_of_object(value)


def way_of_callable(cls: type) -> Way | None:
    """Return the `Way` of a callable of class ``cls``, which is not in `WAYS`.

    For bound methods, `BOUND`, it is `AS_IT_IS`. A dataclass whose fields are ``func``, ``args`` and
    ``keywords``, as of a `functools.partial`, has `ATTRIBUTES`, and one with ``__func__`` and ``__self__``
    has `METHOD`. It is None for all others, which are compared by identity.
    """
    if cls in BOUND:
        return AS_IT_IS
    names = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    # Libraries of modules have partial functions and bound methods of their own: dataclasses whose fields
    # have the names of Python's own. A new one is made for each access, so they are compared by fields.
    if names == {"func", "args", "keywords"}:
        return ATTRIBUTES
    return METHOD if names == {"__func__", "__self__"} else None


def way_of_object(value: Any) -> Way | None:
    """Return the `Way` of an object that no other rule knows; None if it is compared by identity.

    A dataclass, or a class with an ``__eq__``, has `ATTRIBUTES`; it has `REDUCED` if it is derived from one
    written in C or says how it is pickled. Of others it is None for classes in C, for objects without
    attributes, and for those that guard them by ``__setattr__`` and ``__delattr__``.

    Raises
    ------
    RecordError
        For memory of others, for an unhashable object with `REDUCED` that is of no dataclass, and for one
        with attributes and no ``__eq__``.
    """
    cls: Any = type(value)
    in_python = base_of(cls) is object
    if not in_python and is_memory(value):
        raise refused(value, "memory that others may change", "pass bytes(x), or tuple(x).")
    if dataclasses.is_dataclass(cls) or cls.__eq__ is not object.__eq__:
        says_itself = (
            cls.__reduce__ is not object.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__
        )
        if in_python and not says_itself:
            return ATTRIBUTES
        if not dataclasses.is_dataclass(cls) and not is_hashable(value):
            raise refused(
                value,
                "whose contents may change",
                "pass a tuple, a list or a dictionary of what the op needs, or an object of a dataclass.",
            )
        return REDUCED
    # A class with ways of its own to set and to delete attributes guards them: the modules and random
    # generators of TensorFlow do, and JAX's `PartitionSpec`, whose attributes cannot be set.
    guarded = cls.__setattr__ is not object.__setattr__ and cls.__delattr__ is not object.__delattr__
    if not in_python or guarded or not attributes_of(value, ATTRIBUTES):
        return None  # or a lock, a random generator, a device
    raise refused(
        value,
        "which has attributes and no __eq__ that compares them",
        "make its class a dataclass, or pass the attributes that the op needs. What an op is to see "
        "as it is at the run belongs to the model, or to the object of a bound method.",
    )


def is_hashable(value: Any) -> bool:
    """Return whether ``hash(value)`` works, by which an object says that its contents do not change."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_memory(value: Any) -> bool:
    """Return whether an object has the buffer protocol: others may read, and perhaps write, its memory."""
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def refused(value: Any, why: str, hint: str) -> RecordError:
    """Return, but do not raise, the `RecordError` for a static value, with this hint.

    ``why`` follows the value's class in the message: "which others may change".
    """
    return RecordError(
        "Expected a static value that can be copied and compared by its contents. Received a "
        f"{type(value).__qualname__}, {why}.",
        hint,
    )


def refuse_awaitable(x: Any) -> None:
    """Raise `RecordError` if ``x`` is awaitable, as a coroutine: the caller has forgotten an ``await``."""
    if inspect.isawaitable(x):
        raise RecordError(
            f"Expected a node, an array or a number. Received {type_of(x)}.",
            "`await` it first, inside of an `async def`.",
        )
