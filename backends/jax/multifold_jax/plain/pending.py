"""Pending arrays of JAX: what a program holds in the place of an array that is not computed yet.

JAX lets no other class answer its functions, so ``jnp.tanh(x)`` of a pending array is an error, whose hint
names cells. Operators, indexing and the methods of arrays are recorded. Conditions, numbers and NumPy are
reads. Arrays of JAX never change, so nothing here does.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from multifold.plain_values import METHODS, PendingNumbers, method
from multifold.recording import recording_of, refusal


class JaxForm:
    """What is known of a pending array: its shape and dtype; `form_of` makes one for all of a form."""

    __slots__ = ("__weakref__", "dtype", "new", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype
        self.new = PendingJax

    def spec(self) -> jax.ShapeDtypeStruct:
        """Return what stands for an array of this form where shapes are asked for."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


FORMS: weakref.WeakValueDictionary[Any, JaxForm] = weakref.WeakValueDictionary()


def form_of(x: Any) -> JaxForm:
    """Return the form of an array, or of what has a shape and a dtype."""
    key = tuple(x.shape), x.dtype
    found = FORMS.get(key)
    if found is None:
        found = FORMS[key] = JaxForm(*key)
    return found


class PendingJax(PendingNumbers):
    """An array whose values are not computed yet; `multifold._compiled._glue.GlueBase` names its slots."""

    __slots__ = ("__weakref__", "base", "form", "host", "node", "place", "seen", "value", "version")

    form: JaxForm
    host: Any
    node: Any
    place: Any
    value: Any
    version: int

    # ---- recorded ------------------------------------------------------------------------------------

    @property
    def T(self) -> Any:  # noqa: N802 - as JAX calls it
        """The array with its axes in the other order."""
        return meet(jnp.transpose, self)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self.form.shape:
            form = form_of(jax.ShapeDtypeStruct(self.form.shape[1:], self.form.dtype))
            recording = recording_of()
            return recording.values.entry(recording, self, index, form)
        return meet(operator.getitem, self, index)

    def __getattr__(self, name: str) -> Any:
        if name in RECORDED:
            return lambda *args, **kwargs: meet(RECORDED[name], self, *args, **kwargs)
        if name in ("item", "tolist"):
            return getattr(self._read(), name)
        if hasattr(jax.Array, name):
            raise refusal(IN_A_FUNCTION, CELLS)
        raise AttributeError(f"'jax.Array' object has no attribute {name!r}")

    # ---- the object ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<pending array {self.form.shape} {self.form.dtype}, {self.node!r}>"

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse("pickled")


class SettledJax(PendingJax):
    """An array that was pending, after its run: it stands for its value."""

    __slots__ = ()

    def __jax_array__(self) -> Any:
        return self.value

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def _read(self) -> Any:
        return np.asarray(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.value

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)


def settle(x: PendingJax, value: Any) -> None:
    """Let a pending array stand for its value from now on."""
    x.__class__ = SettledJax
    x.value = value
    x.node = x.host = x.place = None


def value_of(x: Any) -> Any:
    """Return the value of a settled array; anything else as it is."""
    return x.value if type(x) is SettledJax else x


def meet(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a function that has met a pending array; do it at once with what was one."""
    if any(type(x) is SettledJax for x in args):
        return func(*map(value_of, args), **kwargs)
    recording = recording_of()
    return recording.values.meet(recording, func, args, kwargs)


def refuse(what: str) -> NoReturn:
    """Raise the error of what a pending array cannot do."""
    raise refusal(
        f"An array that is not computed yet cannot be {what}.",
        "return it from the program, or put what does that into a cell.",
    )


IN_A_FUNCTION = "A function of JAX has met an array that is not computed yet, and cannot be recorded."
CELLS = "make a cell of the function of yours that calls it: multifold.op, or batched(fn, ops=[...])."

RECORDED = {name: method(jax.Array, name) for name in METHODS.split()}
"""Methods of arrays that are recorded, by name."""

OPERATORS = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]


def forward(func: Any) -> Callable[..., Any]:
    """Return an operator that is recorded, of one operand or two."""
    return lambda x, *others: meet(func, x, *others)


def backward(func: Any) -> Callable[..., Any]:
    """Return an operator that is recorded, of what stands on the right."""
    return lambda x, y: meet(func, y, x)


for name in OPERATORS:
    setattr(PendingJax, f"__{name}__", forward(getattr(operator, f"__{name}__")))
    setattr(PendingJax, f"__r{name}__", backward(getattr(operator, f"__{name}__")))
for name in (*COMPARISONS, "neg", "pos", "abs", "invert"):
    setattr(PendingJax, f"__{name}__", forward(getattr(operator, name)))
