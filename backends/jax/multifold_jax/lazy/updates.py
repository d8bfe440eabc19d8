"""Updates of arrays at an index, as ``x.at[i].set(y)``, while programs record.

The array, the index or the operand may be pending: then the method is recorded. So the methods of
``x.at[i]`` are replaced while programs record, and ``x.at`` of a pending array is of JAX's own class. A
number as the index is an operand: ``x.at[0].set(y)`` and ``x.at[1].set(y)`` are calls of one kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from multifold.lazy.current import CURRENT
from multifold.lazy.finding import NumberOperand
from multifold.lazy.operators import record


def classes() -> tuple[type, type]:
    """Return the classes of ``x.at`` and of ``x.at[i]``, which have no public names."""
    found: list[type] = []

    def look(x: Any) -> Any:
        found.extend([type(x.at), type(x.at[0])])
        return x

    jax.eval_shape(look, jax.ShapeDtypeStruct((1,), "float32"))
    return found[0], found[1]


AT, REFERENCE = classes()

METHODS = ("get", "set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")
"""All but ``apply``, which takes a function."""


@functools.lru_cache
def updating(method: Any) -> Callable[..., Any]:
    """Return a function that takes an array, an index and what ``method`` of ``x.at[i]`` takes."""

    @functools.wraps(method)
    def updated(x: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
        return method(x.at[index], *args, **kwargs)

    return updated


def stand_in(method: Any) -> Any:
    """Return what stands for a method of ``x.at[i]`` while programs record."""

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if CURRENT.recording is None:
            return method(self, *args, **kwargs)
        index = NumberOperand(self.index) if type(self.index) is int else self.index
        return record(updating(method), self.array, index, *args, **kwargs)

    return recorded


def updates() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Yield the places of `multifold.lazy.patches.Replacements` for the methods."""
    for name in METHODS:
        yield REFERENCE, name, stand_in
