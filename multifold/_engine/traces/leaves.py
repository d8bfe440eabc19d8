r"""Leaf values as bytes: arrays of one row, and the numbers and arrays inside ragged operands and groups.

A leaf value is written as a *form*, a short text that says class, dtype and shape, and as bytes. Few forms
serve all leaves of a data set. A file keeps each form once, and the bytes of a trace one after the other.

Examples
--------
>>> write_leaf(np.float32([[0.5, 2.0]]))
('["array",["dtype","<f4"],1,2]', b'\x00\x00\x00?\x00\x00\x00@')
>>> LeafForm('["array",["dtype","<f4"],1,2]').read(b"\x00\x00\x00?\x00\x00\x00@")
array([[0.5, 2. ]], dtype=float32)
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from multifold._engine.record.texts import NoText, build_array, decode, encode_dtype, shown_value, text

NUMBERS = {"int": np.dtype("<i8"), "float": np.dtype("<f8"), "bool": np.dtype("?")}
"""The dtypes in which the bytes of Python's numbers are kept."""


class LeafForm:
    """The class, dtype and shape of a leaf value, which is an array or a number, apart from its bytes.

    Made of a text that `form_of` returned. ``tag`` is "array", "scalar" (one of NumPy), "int", "float" or
    "bool"; ``size`` is the number of bytes.
    """

    def __init__(self, one: str) -> None:
        self.tag, *rest = json.loads(one)
        self.dtype = decode(rest[0]) if rest else NUMBERS[self.tag]
        self.shape = rest[1:]
        self.size = prod(self.shape) * self.dtype.itemsize

    def read(self, data: memoryview) -> Any:
        """Return the number, scalar or array of this form whose bytes are ``data``; an array is a copy.

        Raises `ValueError` if ``data`` has another length than ``size``.
        """
        array = build_array(self.dtype, *self.shape, data)
        if self.tag == "array":
            return array
        # An array without axes becomes the scalar of NumPy or the number of Python that it was.
        return array[()] if self.tag == "scalar" else array.item()


@lru_cache(maxsize=4096)
def form_of(cls: Any, dtype: np.dtype | None, shape: tuple[int, ...]) -> str:
    """Return the text of which a `LeafForm` is made, for values of a class, dtype and shape.

    ``dtype`` is None for Python's int, float and bool.

    >>> form_of(int, None, ()), form_of(np.ndarray, np.dtype("f4"), (1, 2))
    ('["int"]', '["array",["dtype","<f4"],1,2]')
    """
    if dtype is None:
        return text([cls.__name__])
    kind = "array" if issubclass(cls, np.ndarray) else "scalar"
    return text([kind, encode_dtype(dtype), *shape])


def write_leaf(x: Any) -> tuple[str, bytes]:
    r"""Return the text of the form of a leaf value (`form_of`), and its bytes.

    ``x`` is a number of Python, or a scalar or array of NumPy; else `NoText` is raised. An `np.memmap` is
    written like an array in memory, since a trace keeps a copy of it in memory.

    >>> write_leaf(np.array([1], "i1"))
    ('["array",["dtype","|i1"],1]', b'\x01')
    """
    cls: Any = type(x)
    if cls in (int, float, bool):
        return form_of(cls, None, ()), np.array(x, NUMBERS[cls.__name__]).tobytes()
    # Any other subclass of an array would come back as a plain array.
    if cls in (np.ndarray, np.memmap) or (isinstance(x, np.generic) and cls is x.dtype.type):
        return form_of(cls, x.dtype, x.shape), x.tobytes()
    raise NoText(shown_value(x), "pass NumPy arrays and plain numbers: np.asarray(x), int(x) or float(x).")
