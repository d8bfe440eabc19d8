"""Values as text: how a file keeps ops and static values, without pickle and without running code.

Text is JSON. A number, a string, None or a bool stands for itself; every other value is a list of a tag
and its parts, so ``(1, [2.5])`` becomes ``["tuple",1,["list",2.5]]``. The tags are a closed table: reading
a text makes plain data, NumPy arrays, and whatever `look_up` finds by a name of the form
``module:qualname`` in modules that are imported already. It imports no module and calls no function that
the text names.

A type that is not in the table is refused when it is written (`NoText`). Types are compared exactly: a
subclass of dict may keep more than its entries, and a text would lose that.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import math
import re
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum, EnumMeta
from functools import partial
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

WORD = range(-(2**63), 2**63)
"""Integers that stand for themselves; many readers of JSON take no wider ones."""

Special = Callable[[Any], list[Any] | None]
Build = Callable[..., Any]
Find = Callable[[str], Any]


class NoText(TypeError):
    """The error for a value that cannot be written as text: ``what`` it is, and the ``hint`` what to do."""

    def __init__(self, what: str, hint: str) -> None:
        self.what = what
        self.hint = hint
        super().__init__(what)


def look_up(name: str, ops: Mapping[str, Any] | None = None) -> Any:
    """Return what ``"module:qualname"`` names: the entry in ``ops``, or an object of an imported module.

    Attributes are read from the dictionaries of modules and classes, so no ``__getattr__`` and no property
    runs, and a module that loads itself when it is first used stays as it is.

    Raises
    ------
    LookupError
        If there is nothing of that name.

    Examples
    --------
    >>> look_up("math:sqrt"), look_up("train:leaf", {"train:leaf": len})
    (<built-in function sqrt>, <built-in function len>)
    """
    if ops is not None and name in ops:
        return ops[name]
    module, _, path = name.partition(":")
    first, *rest = path.split(".")
    found = names_in(sys.modules[module])[first]
    for step in rest:
        try:
            found = inspect.getattr_static(found, step)
        except AttributeError:
            raise LookupError(name) from None
        # `getattr_static` returns a static method in its wrapper.
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


def names_in(module: Any) -> dict[str, Any]:
    """Return the dictionary of a module, name -> object, {} if it has none; a lazy module is not loaded."""
    try:
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return names


def name_of(value: Any) -> str:
    """Return ``"module:qualname"``, by which `look_up` finds this very object again.

    Raises
    ------
    NoText
        If no name leads to the object, as for a lambda or a bound method.

    Examples
    --------
    >>> name_of(np.add), name_of(NoText), name_of(len)
    ('numpy:add', 'multifold._engine.record.texts:NoText', 'builtins:len')
    """
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):
        module = getattr(value, "__module__", None)
        if isinstance(module, str) and finds(f"{module}:{name}", value):
            return f"{module}:{name}"
        # What a framework defines in C, as torch.relu or np.add in older NumPy, does not know its module.
        last = name.rpartition(".")[2]
        found = [x for x in list(sys.modules) if names_in(sys.modules[x]).get(last) is value]
        # The shortest name is the most public one: ``torch:relu``, not
        # ``torch._C._VariableFunctions:relu``.
        if found:
            return f"{min(found, key=len)}:{last}"
    raise NoText(
        shown_value(value), "define it by `def` at the top of a module, or record the name of an op."
    )


def finds(name: str, value: Any) -> bool:
    """Return whether ``look_up(name)`` returns this very object; False if it finds nothing."""
    try:
        return look_up(name) is value
    except LookupError:
        return False


def shown_value(value: Any) -> str:
    """Return words for a value that has no text: "the lambda f", "an object of type m.C"."""
    name = getattr(value, "__qualname__", None)
    if getattr(value, "__self__", None) is not None and not inspect.ismodule(value.__self__):
        return f"the bound method {name}"
    if name is not None and "<lambda>" in name:
        return f"the lambda {name}"
    if name is not None and "<locals>" in name:
        return f"the local {type(value).__name__} {name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value!r}, which its module does not hold under its name"
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


Parts = Callable[[Any], list[Any]]

PARTS: dict[type, tuple[str, Parts]] = {
    tuple: ("tuple", list),
    list: ("list", list),
    set: ("set", list),
    frozenset: ("frozenset", list),
    dict: ("dict", lambda x: [part for pair in x.items() for part in pair]),
    OrderedDict: ("OrderedDict", lambda x: [part for pair in x.items() for part in pair]),
    slice: ("slice", lambda x: [x.start, x.stop, x.step]),
    range: ("range", lambda x: [x.start, x.stop, x.step]),
    complex: ("complex", lambda x: [x.real, x.imag]),
    EllipsisType: ("Ellipsis", lambda x: []),
    np.ndarray: ("array", lambda x: [x.dtype, *x.shape, x.tobytes()]),
    partial: ("partial", lambda x: [x.func, x.args, x.keywords]),
}
"""The type of a value -> its tag, and how it is taken apart."""


def text(code: Any) -> str:
    """Return the code that `encode` made as one string of JSON, without spaces."""
    return json.dumps(code, separators=(",", ":"), allow_nan=False)


def encode(value: Any, special: Special = lambda x: None) -> Any:
    """Return a value as lists, strings and numbers that JSON can hold; `decode` makes it of them again.

    ``special(value)`` is asked first, for objects of the caller: what it returns is the code, unless that
    is None.

    Raises
    ------
    NoText
        If the value, or one inside it, cannot be written.

    Examples
    --------
    >>> encode({"a": (1, -0.0)}), encode(float("inf"))
    (['dict', 'a', ['tuple', 1, -0.0]], ['float', 'AAAAAAAA8H8='])
    >>> encode(np.float32(0.5))
    ['scalar', ['dtype', '<f4'], ['bytes', 'AAAAPw==']]
    """
    code = special(value)
    if code is not None:
        return code
    cls = type(value)
    if cls in (NoneType, bool):
        return value
    if cls is str:
        # Python knows of each string whether it is ASCII, so most are never searched.
        return value if value.isascii() or not HALVES.search(value) else ["str", to_base64(utf8(value))]
    if cls is int:
        # Python refuses to print more than 4,300 decimal digits, but prints any number of hexadecimal ones.
        return value if value in WORD else ["int", hex(value)]
    if cls is float:
        return value if math.isfinite(value) else ["float", to_base64(struct.pack("<d", value))]
    if cls is bytes:
        return ["bytes", to_base64(value)]
    if isinstance(value, np.dtype):
        return encode_dtype(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.hasobject:
        raise NoText(
            f"an array of dtype {value.dtype}", "pass an array of numbers, or a tuple of plain data."
        )
    # An op can see the order in which numbers lie in memory, so the axes are written as they lie, with the
    # permutation that `decode` undoes.
    if cls is np.ndarray and not value.flags.c_contiguous:
        axes = np.argsort([-stride for stride in value.strides], kind="stable")
        lying = encode(np.ascontiguousarray(value.transpose(axes)))
        return ["transpose", lying, *np.argsort(axes).tolist()]
    # A `functools.partial` may have attributes, which its parts leave out.
    if cls in PARTS and not getattr(value, "__dict__", None):
        tag, parts = PARTS[cls]
        codes = [encode(part, special) for part in parts(value)]
        # A set of strings has another order in each process. Sorted, equal sets have equal texts.
        return [tag, *(sorted(codes, key=text) if cls in (set, frozenset) else codes)]
    if isinstance(value, np.generic) and cls is value.dtype.type:
        return ["scalar", encode_dtype(value.dtype), encode(value.tobytes())]
    if isinstance(value, tuple) and hasattr(cls, "_fields") and not getattr(value, "__dict__", None):
        return ["namedtuple", ["name", name_of(cls)], *[encode(part, special) for part in value]]
    # A union of flags, `Color.RED | Color.BLUE`, is an Enum, but no member that could be found by its name.
    if isinstance(value, Enum) and cls.__members__.get(value.name) is value:
        return ["enum", ["name", name_of(cls)], value.name]
    if callable(value):
        return ["name", name_of(value)]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        # An attribute that is no field would be lost.
        if getattr(value, "__dict__", {}).keys() <= {*names}:
            values = [encode(getattr(value, name), special) for name in names]
            return ["dataclass", ["name", name_of(cls)], ["tuple", *names], *values]
    raise NoText(
        shown_value(value), "pass plain data: numbers, tuples, dictionaries, dataclasses, NumPy arrays."
    )


def encode_dtype(dtype: np.dtype) -> list[Any]:
    """Return ``["dtype", x]`` of a dtype: ``x`` is its short form, as "<f4", its fields, or its class.

    The class is that of a dtype which a package adds to NumPy, as ml_dtypes.bfloat16.

    Raises
    ------
    NoText
        If the dtype has metadata, is aligned as C's structs, or is equal to none that these describe.
    """
    short: Any = dtype.str
    if dtype.names is not None and dtype.fields is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        formats = [field[0] for field in fields]
        offsets = [field[1] for field in fields]
        short = {
            "names": list(dtype.names),
            "formats": formats,
            "offsets": offsets,
            "itemsize": dtype.itemsize,
        }
    # Metadata and alignment are neither in the short form nor in the fields, and ``==`` does not compare
    # them.
    if not dtype.metadata and not dtype.isalignedstruct:
        if np.dtype(short) == dtype:
            return ["dtype", encode(short)]
        if np.dtype(dtype.type) == dtype:  # as ml_dtypes.bfloat16, whose short form is that of two bytes
            return ["dtype", ["name", name_of(dtype.type)]]
    raise NoText(f"the dtype {dtype!r}", "use a dtype of numbers, without metadata.")


HALVES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs: JSON would join two of them to one character."""


def utf8(value: str) -> bytes:
    """Return the bytes of a string in UTF-8; halves of surrogate pairs, which UTF-8 refuses, pass."""
    return value.encode("utf-8", "surrogatepass")


def to_base64(value: bytes) -> str:
    """Return bytes as a string of base64, since JSON has no bytes; `from_base64` undoes it."""
    return base64.b64encode(value).decode()


def decode(code: Any, find: Find = look_up, special: Mapping[str, Build] | None = None) -> Any:
    """Return the value that `encode` wrote.

    Parameters
    ----------
    code
        What `encode` returned, or `json.loads` of its text.
    find
        ``find("module:qualname")`` returns the object of that name.
    special
        A tag besides those of `BUILD` -> the function that makes a value from the decoded parts.

    Raises
    ------
    LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
        `DAMAGE`, if it is nothing that `encode` writes.

    Examples
    --------
    >>> decode(["dict", "a", ["tuple", 1, ["name", "math:sqrt"]]])
    {'a': (1, <built-in function sqrt>)}
    """
    if not isinstance(code, list):
        if isinstance(code, dict):
            raise TypeError("a mapping of JSON stands for nothing")
        return code
    tag, *parts = code
    # What a name leads to is up to the reader, who may pass ops that stand in for those of the file.
    if tag == "name":
        return find(*parts)
    build = special[tag] if special is not None and tag in special else BUILD[tag]
    return build(*[decode(part, find, special) for part in parts])


def from_base64(value: str) -> bytes:
    """Return the bytes of a string that `to_base64` wrote; raise `ValueError` if it is no base64."""
    # Without `validate`, characters that are no base64 would be skipped, and damage would go unnoticed.
    return base64.b64decode(value, validate=True)


def pairs(*parts: Any) -> Any:
    """Yield ``(key, value)`` from keys and values in turn: ("a", 1) and ("b", 2) for "a", 1, "b", 2."""
    return zip(parts[::2], parts[1::2], strict=True)


def build_dtype(short: Any) -> Any:
    """Return the dtype of a short form, as "<f4", of a dictionary of fields, or of a scalar's class.

    Raises
    ------
    TypeError
        For anything else.
    """
    if not isinstance(short, (str, dict)) and not (
        isinstance(short, type) and issubclass(short, np.generic)
    ):
        raise TypeError(f"no dtype: {short!r}")
    return np.dtype(short)  # type: ignore[arg-type]  # NumPy lists the texts that it knows


def build_array(dtype: np.dtype, *rest: Any) -> np.ndarray:
    """Return a new array: ``rest`` are the lengths of its axes and, last, its bytes in the order of C.

    Raises
    ------
    ValueError
        If there are other than so many bytes, or the dtype holds objects.
    """
    *shape, data = rest
    if dtype.hasobject or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {shape} and dtype {dtype} has other than {len(data)} bytes")
    # A view of `bytes` is read-only, and an op may write to its own copy of a static array.
    return np.ndarray(shape, dtype, data).copy()


def build_namedtuple(cls: Any, *parts: Any) -> Any:
    """Return a named tuple of class ``cls`` with these entries; the class is not called.

    Raises
    ------
    TypeError
        If ``cls`` is no tuple, or has another number of fields.
    """
    if not issubclass(cls, tuple) or len(cls._fields) != len(parts):
        raise TypeError(f"no named tuple: {cls!r}")
    return tuple.__new__(cls, parts)


def build_dataclass(cls: Any, names: tuple[str, ...], *values: Any) -> Any:
    """Return an object of a dataclass whose fields ``names`` have ``values``; no code of it runs.

    Raises
    ------
    TypeError
        If ``cls`` is no dataclass, or has other fields.
    """
    if names != tuple(field.name for field in dataclasses.fields(cls)):
        raise TypeError(f"{cls!r} has other fields than {names}")
    # The class is not called: its `__post_init__` is code that a text must not run. It may be frozen, too.
    made = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def build_enum(cls: Any, name: str) -> Any:
    """Return the member of an enumeration that has this name; the class is not called.

    Raises
    ------
    TypeError, KeyError
        If ``cls`` is no enumeration; if it has no such member.
    """
    if not isinstance(cls, EnumMeta):
        raise TypeError(f"no enumeration: {cls!r}")
    # The member is looked up by its name: ``cls(value)`` may run a `_missing_` of the user.
    return cls.__members__[name]


BUILD: dict[str, Build] = {
    "str": lambda x: from_base64(x).decode("utf-8", "surrogatepass"),
    "int": lambda x: int(x, 16),
    "float": lambda x: struct.unpack("<d", from_base64(x))[0],
    "bytes": from_base64,
    "tuple": lambda *x: x,
    "list": lambda *x: list(x),
    "set": lambda *x: set(x),
    "frozenset": lambda *x: frozenset(x),
    "dict": lambda *x: dict(pairs(*x)),
    "OrderedDict": lambda *x: OrderedDict(pairs(*x)),
    "slice": slice,
    "range": range,
    "complex": complex,
    "Ellipsis": lambda: ...,
    "dtype": build_dtype,
    "array": build_array,
    "transpose": lambda array, *axes: array.transpose(axes),
    "scalar": lambda dtype, data: build_array(dtype, data)[()],
    "partial": lambda func, args, keywords: partial(func, *args, **keywords),
    "namedtuple": build_namedtuple,
    "dataclass": build_dataclass,
    "enum": build_enum,
}
"""The tag of a value -> the function that makes the value from its parts."""
