"""Pending arrays of JAX: what a program holds in the place of an array that is not computed yet.

JAX lets no other class answer its functions, so ``jnp.tanh(x)`` of a pending array is an error, whose hint
names cells. Operators, indexing and the methods of arrays are recorded. Conditions, numbers and NumPy are
reads. To ``isinstance`` in a program a pending array is one of JAX.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import jax
import jax.numpy as jnp

from multifold.lazy.current import recording_of, refusal
from multifold.lazy.operators import (
    OperatorRecorder,
    PendingOperators,
    SettledOperators,
    asking_package,
    record,
)
from multifold.lazy.pending_array import METHODS, method
from multifold_jax.lazy.updates import AT


class PendingJax(PendingOperators):
    """Stands for an array that is not computed yet; operators, indexing and methods are recorded."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return jax.Array if is_asked_by_program(sys._getframe(1)) else type(self)

    @property
    def weak_type(self) -> Any:
        """Whether the dtype is weak, as that of a number of Python is."""
        return self.form.weak  # type: ignore[attr-defined]

    @property
    def T(self) -> Any:  # noqa: N802 - as JAX calls it
        """The transposed array, as a new pending array: the call of `jnp.transpose` is recorded."""
        return record(jnp.transpose, self)

    @property
    def at(self) -> Any:
        """What is indexed to update the array, as in ``x.at[i].set(y)``: a call that is recorded."""
        return AT(self)

    def _beyond(self, index: int) -> Any:
        # Such an index is no error in JAX, which takes the entry next to it.
        return record(operator.getitem, self, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # JAX, as in `jnp.array([x[0]])`, would take the value for a constant, whose gradient is zero.
        if jnp.issubdtype(self.dtype, jnp.inexact) and recording_of().recorder.is_within_transform():
            refuse_jax(sys._getframe(1))
        return PendingOperators.__array__(self, dtype, copy)

    # JAX puts a text of it into its errors alone, which the program may catch.
    def __format__(self, spec: str) -> str:
        refuse_jax(sys._getframe(1))
        return PendingOperators.__format__(self, spec)

    def __repr__(self) -> str:
        refuse_jax(sys._getframe(1))
        return PendingOperators.__repr__(self)

    def __getattr__(self, name: str) -> Any:
        if name in RECORDED:
            return lambda *args, **kwargs: record(RECORDED[name], self, *args, **kwargs)
        if name in ("item", "tolist"):
            return getattr(self._read(), name)
        if name == "__dict__":  # it has none, whatever the class of its value has
            raise AttributeError(f"'jax.Array' object has no attribute {name!r}")
        if hasattr(jax.Array, name) or (
            name == "__jax_array__" and sys._getframe(1).f_code.co_name == ARRAYLIKE
        ):
            raise refusal(IN_A_FUNCTION, OperatorRecorder.cells)
        raise AttributeError(f"'jax.Array' object has no attribute {name!r}")


class SettledJax(SettledOperators, PendingJax):
    """A pending array after its run: it stands for its value, an array of JAX."""

    __slots__ = ()

    __array__ = PendingOperators.__array__
    __format__ = PendingOperators.__format__

    def __jax_array__(self) -> Any:
        return self.value

    @property
    def weak_type(self) -> Any:
        return self.value.weak_type

    @property
    def T(self) -> Any:  # noqa: N802 - as JAX calls it
        """The transposed value, an array of JAX."""
        return self.value.T

    @property
    def at(self) -> Any:
        """What is indexed to update the value."""
        return self.value.at


def is_asked_by_program(frame: Any) -> bool:
    """Return whether a frame is one of a program; JAX itself must not take a pending array for its own."""
    return asking_package(frame) not in INNER


def refuse_jax(frame: Any) -> None:
    """Raise a `RecordError` if a frame is one of JAX, which asks for what it cannot use."""
    if asking_package(frame) in JAX:
        raise refusal(IN_A_FUNCTION, OperatorRecorder.cells)


JAX = ("jax", "jaxlib")
INNER = (*JAX, "multifold", "multifold_jax")
"""Packages whose code knows what a pending array is, or must not take one for an array."""

ARRAYLIKE = "_arraylike"
"""The function of JAX that tells arrays from all else. For the latter its callers raise a TypeError, which
the program may catch."""

IN_A_FUNCTION = "A function of JAX has met an array that is not computed yet, and cannot be recorded."

RECORDED = {name: method(jax.Array, name) for name in METHODS.split()}
"""Methods of arrays that are recorded, by name."""
