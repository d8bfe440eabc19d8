"""Keyword arguments of a call: static values, which an array is not unless the caller says so.

A keyword belongs to the signature, so calls share a launch only where it is equal. For ``by=3`` the caller
means that. An array that differs from call to call would give each call a launch of its own, and NumPy's
would be copied when the call is recorded: the model runs, slowly or on old values, and nothing says so.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import numpy as np

from multifold._engine.record.node import Node
from multifold._engine.record.signature import op_name
from multifold.errors import RecordError, type_of
from multifold.operands import Static

# float is left out: ``==`` says that 0.0 is -0.0, and `freeze` tells them apart.
CONSTANT = frozenset({int, bool, str, bytes, NoneType, type, FunctionType, BuiltinFunctionType})
"""Types of keyword arguments that ``==`` compares as `freeze` does; the quick path relies on it."""


def keyword_value(name: str, x: Any, op: Any) -> Any:
    """Return the value of keyword ``name`` in a call of ``op``: ``x``, or what ``static(x)`` marks.

    Raises
    ------
    RecordError
        If ``x`` is an array, or a list, tuple or dict that holds one, and is not marked by ``static``.
    """
    if type(x) is Static:
        return x.value
    if type(x) not in CONSTANT and holds_array(x):
        what = "an array" if not isinstance(x, (list, tuple, dict)) else f"{type_of(x)} of arrays"
        raise RecordError(
            "Expected a static value, as keyword arguments are. "
            f"Received {what} in keyword '{name}' of op '{op_name(op)}'.",
            "pass it positionally: as a row of shape (1, *s), or as multifold.shared(x) if all calls read "
            f"it. `{name}=multifold.static(x)` says that it is a constant, compared by its contents.",
        )
    return x


def holds_array(x: Any) -> bool:
    """Return whether ``x`` is an array of any framework, or a list, tuple or dict with one at any depth.

    A scalar of NumPy, a `Node` and a `TensorSpec` are no arrays.
    """
    if isinstance(x, (list, tuple)):
        return any(map(holds_array, x))
    if isinstance(x, dict):
        return any(map(holds_array, x.values()))
    cls = type(x)
    # A scalar of NumPy has `__array__`, but is a number. A node has it to refuse what NumPy asks, and
    # `way_of` refuses a node as a static value by name.
    if hasattr(cls, "__array__"):
        return not issubclass(cls, (np.generic, Node))
    # MXNet's arrays and TensorFlow's sparse ones. A `TensorSpec` has a shape and a dtype only.
    has_values = hasattr(cls, "__getitem__") or hasattr(cls, "values")
    return has_values and hasattr(cls, "shape") and hasattr(cls, "dtype")
