"""The types that flow between blocks, what two of them have in common, and the short ways to write one.

A type that is not known is None, as is a size or a dtype that is not known; both print as ``?``. Types are
compared by `meet` alone: it returns the type that says what both say, or raises `Disjoint`.

Examples
--------
>>> print(as_type((16, ["int32"])))
(float32[16], int32[])
>>> print(meet(SequenceType(None), SequenceType(TensorType((None, 3), None))))
sequence of ?[?, 3]
>>> print(canonical(SequenceType(TupleType(PyObjectType(), PyObjectType()))))
object
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifold.errors import RecordError
from multifold.operands import name_of_dtype

GENERAL = {"float": "f", "int": "iu", "bool": "b"}
"""Dtypes of Python numbers: each backend has its own default for them. The letters are NumPy's kinds."""


class BlockError(RecordError, TypeError):
    """Raised where blocks do not fit together, or a block is given what it cannot take."""


class Disjoint(Exception):
    """Raised by `meet` for two types that no value has both of."""


class ResultType:
    """Base of the types of what flows between blocks."""

    __slots__ = ()


Known = ResultType | None
"""A type, or None where it is open."""


@dataclass(frozen=True)
class PyObjectType(ResultType):
    """The type of any Python object, such as an example."""

    def __str__(self) -> str:
        return "object"


@dataclass(frozen=True)
class VoidType(ResultType):
    """The type of None: what `Void` returns, and what a block gets that needs no input."""

    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True)
class TensorType(ResultType):
    """The type of a row of an array: its shape and dtype, either of which may be open.

    Attributes
    ----------
    shape : tuple of int or None, or None
        Of one row, without the axis of rows; ``()`` for a number. None where a size, or all, is open.
    dtype : str or None
        NumPy's name; or ``"float"``, ``"int"`` and ``"bool"`` for the default of each backend.
    """

    shape: tuple[int | None, ...] | None
    dtype: str | None = "float32"

    def __post_init__(self) -> None:
        sizes = self.shape
        if sizes is not None:
            wrong = not isinstance(sizes, (tuple, list)) or any(
                x is not None and (isinstance(x, bool) or not isinstance(x, (int, np.integer)) or x < 0)
                for x in sizes
            )
            if wrong:
                raise BlockError(
                    f"Expected the shape of a tensor to be a tuple of sizes. Received {sizes!r}.",
                    "(16,) is a row of 16 numbers, () is a number.",
                )
            object.__setattr__(self, "shape", tuple(sizes))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def ndim(self) -> int | None:
        """The number of axes of a row; None where that is open."""
        return None if self.shape is None else len(self.shape)

    def __str__(self) -> str:
        sizes = "..." if self.shape is None else ", ".join("?" if x is None else str(x) for x in self.shape)
        return f"{self.dtype or '?'}[{sizes}]"


@dataclass(frozen=True, init=False)
class TupleType(ResultType):
    """A tuple of values, each of the type at its position in ``items``."""

    items: tuple[Known, ...]

    def __init__(self, *item_types: Any) -> None:
        if len(item_types) == 1 and isinstance(item_types[0], (tuple, list)):
            (item_types,) = item_types  # the predecessor takes them in one as well
        object.__setattr__(self, "items", tuple(map(as_type, item_types)))

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Known]:
        return iter(self.items)

    def __getitem__(self, key: Any) -> Known:
        found = self.items[key]
        return TupleType(*found) if isinstance(found, tuple) else found

    def __str__(self) -> str:
        return f"({', '.join(map(shown, self.items))}{',' * (len(self.items) == 1)})"


@dataclass(frozen=True)
class SequenceType(ResultType):
    """A list of any number of values of one type."""

    element_type: Known

    def __post_init__(self) -> None:
        object.__setattr__(self, "element_type", as_type(self.element_type))

    def __str__(self) -> str:
        return f"sequence of {shown(self.element_type)}"


@dataclass(frozen=True)
class BroadcastSequenceType(ResultType):
    """An endless sequence of one value: what `Broadcast` returns."""

    element_type: Known

    def __post_init__(self) -> None:
        object.__setattr__(self, "element_type", as_type(self.element_type))

    def __str__(self) -> str:
        return f"endless {shown(self.element_type)}"


OBJECT = PyObjectType()
VOID = VoidType()


def shown(kind: Known) -> str:
    """Return the text of a type in messages: ``"?"`` for None, an open one."""
    return "?" if kind is None else str(kind)


def dtype_name(dtype: Any) -> str | None:
    """Return the name of a dtype of NumPy or of a framework; None for None.

    Raises `BlockError` for anything else.
    """
    try:
        return None if dtype is None else name_of_dtype(dtype)
    except RecordError as error:
        raise BlockError(error.message, error.hint) from None


def as_type(like: Any) -> Known:
    """Return a type from a short way to write it.

    Parameters
    ----------
    like : ResultType, int, list, tuple, str or None
        ``16`` is a row of 16 float32, ``[2, 3]`` and ``[2, 3, "int32"]`` are tensors, ``"int32"`` and
        ``[]`` are numbers, a tuple is one of types, and None is open.

    Raises
    ------
    BlockError
        For anything else.
    """
    if like is None or isinstance(like, ResultType):
        return like
    if isinstance(like, tuple):
        return TupleType(*like)
    if isinstance(like, (int, np.integer)) and not isinstance(like, bool):
        return TensorType((int(like),))
    if isinstance(like, list):
        dtype = like[-1] if like and isinstance(like[-1], str) else None
        return TensorType(tuple(like if dtype is None else like[:-1]), dtype or "float32")
    if isinstance(like, (str, np.dtype)):
        return TensorType((), dtype_name(like))
    raise BlockError(
        f"Expected a type. Received {like!r}.",
        "16 is a row of 16 float32, [2, 3, 'int32'] a tensor, and a tuple one of types.",
    )


def canonical(kind: Known) -> Known:
    """Return a type with `OBJECT` in place of each tuple or sequence that holds Python objects alone."""
    if isinstance(kind, TupleType):
        items = [canonical(item) for item in kind.items]
        return OBJECT if items and all(item == OBJECT for item in items) else TupleType(*items)
    if isinstance(kind, SequenceType):
        element = canonical(kind.element_type)
        return OBJECT if element == OBJECT else SequenceType(element)
    return kind


def meet(a: Known, b: Known) -> Known:
    """Return the type that says what both say: ``?[?, 3]`` and ``float32[2, ?]`` give ``float32[2, 3]``.

    Raises
    ------
    Disjoint
        If no value has both types.
    """
    if a is None or b is None:
        return b if a is None else a
    if isinstance(b, PyObjectType):
        a, b = b, a
    if isinstance(a, PyObjectType):
        # A tuple or a sequence of Python objects is a Python object itself, so each item must be one.
        inner = (
            b.items if isinstance(b, TupleType) else [b.element_type] if isinstance(b, SequenceType) else ()
        )
        if not inner and not isinstance(b, PyObjectType):
            raise Disjoint
        for item in inner:
            meet(a, item)
        return a
    if type(a) is not type(b):
        raise Disjoint
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return TensorType(meet_shapes(a.shape, b.shape), meet_dtypes(a.dtype, b.dtype))
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        if len(a.items) != len(b.items):
            raise Disjoint
        return TupleType(*map(meet, a.items, b.items))
    if isinstance(a, (SequenceType, BroadcastSequenceType)):
        return type(a)(meet(a.element_type, b.element_type))  # type: ignore[attr-defined]
    return a


def meet_shapes(
    a: tuple[int | None, ...] | None, b: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """Return the shape that says what both say, open sizes filled in; raise `Disjoint` if they differ."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b) or any(x != y for x, y in zip(a, b, strict=True) if None not in (x, y)):
        raise Disjoint
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def meet_dtypes(a: str | None, b: str | None) -> str | None:
    """Return the dtype that says what both say: ``"float"`` and ``"float32"`` give ``"float32"``.

    Raises `Disjoint` if they differ.
    """
    if a is None or b is None or a == b:
        return b if a is None else a
    for general, exact in ((a, b), (b, a)):
        if general in GENERAL and exact not in GENERAL and kind_of(exact) in GENERAL[general]:
            return exact
    raise Disjoint


def kind_of(dtype: str) -> str:
    """Return NumPy's letter for a dtype.

    ``"f"`` for ``"float"`` and ``"bfloat16"``, or ``"i"`` for ``"int64"``.
    """
    if dtype in GENERAL:
        return GENERAL[dtype][0]
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind
