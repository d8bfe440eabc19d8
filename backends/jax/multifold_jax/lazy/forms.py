"""Forms of pending arrays of JAX: shape, dtype, and whether that dtype is *weak*, as that of a number is.

``jnp.where(x > 0, 1.0, 0.0)`` is an array of weak float32: times an array of bfloat16 it is one of
bfloat16, where an array of float32 would make it float32. So calls are told apart by that, and a function
gets its operands as it would get them in the loop, however they were brought together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src.lax.lax import _convert_element_type as convert

from multifold.lazy.forms import PendingForm, PendingForms


class JaxForm(PendingForm):
    """The form of a pending array of JAX; ``weak`` says whether its dtype is weak."""

    __slots__ = ("weak",)

    def __init__(self, new: Callable[[], Any], shape: Any, dtype: Any, weak: bool) -> None:
        super().__init__(new, shape, dtype)
        self.weak = weak


class JaxForms(PendingForms):
    """The forms of pending arrays of a class, by shape, dtype, and whether that is weak."""

    def __init__(self, pending: type) -> None:
        super().__init__(partial(JaxForm, pending))

    def of(self, x: Any) -> Any:
        return self.get(tuple(x.shape), x.dtype, is_weak(x))

    def entry(self, form: Any) -> Any:
        return self.get(form.shape[1:], form.dtype, form.weak)

    def number(self, dtype: Any) -> Any:
        return self.get((), dtype, True)


def is_weak(x: Any) -> bool:
    """Return whether the dtype of an array, a tracer or a `jax.ShapeDtypeStruct` is weak."""
    found = getattr(x, "weak_type", None)
    return bool(getattr(getattr(x, "aval", None), "weak_type", False) if found is None else found)


def with_weak(x: Any, weak: bool) -> Any:
    """Return an array whose dtype is weak, or strong if ``weak`` is false."""
    return x if is_weak(x) is weak else convert(x, weak_type=weak)
