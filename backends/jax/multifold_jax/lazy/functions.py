"""Functions of JAX while programs record: a call that meets a pending array is recorded.

JAX asks no other class to answer its functions. So while a program records, something else stands under
their public names, as ``jnp.tanh``, and under the names by which the program's own modules know a function
of JAX, or one that `jax.jit` has made. It records calls that meet pending arrays, and leaves all others to
the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp

from multifold.lazy.cells import Cells, NamePlace, replaced
from multifold.lazy.current import CURRENT
from multifold.lazy.operators import record
from multifold.lazy.patches import Replacements
from multifold.lazy.writes import functions_in, is_known_module, is_written_here, named_by
from multifold_jax.lazy.pending import PendingJax

MODULES = (jnp, jnp.linalg, jnp.fft, jax.nn, jax.lax, jax.random, jax.scipy.special)
"""Where the functions have their names."""

JITTED = type(jax.jit(abs))
KINDS = (FunctionType, JITTED, jnp.ufunc, jax.custom_jvp, jax.custom_vjp)
"""The types of functions."""

TAKE_FUNCTIONS = frozenset(
    {"scan", "cond", "switch", "while_loop", "fori_loop", "map", "associative_scan", "custom_root"}
    | {"custom_linear_solve", "vectorize", "apply_along_axis", "apply_over_axes", "piecewise", "reduce"}
    | {"reduce_window", "frompyfunc", "fromfunction", "platform_dependent", "composite"}
)
"""Those of them that call other functions, which they trace: they belong in cells."""

TRANSFORMS = frozenset(
    {"vmap", "pmap", "jit", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vjp", "jvp"}
    | {"linearize", "checkpoint", "remat", "eval_shape", "make_jaxpr", "closure_convert"}
    | {"pure_callback", "io_callback"}
)
"""What calls functions with tracers."""

BY_VALUES = frozenset(
    {"nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "union1d", "intersect1d"}
    | {"setdiff1d", "setxor1d"}
)
"""Those whose results have shapes that values decide."""

UNLIKE_CELLS = TAKE_FUNCTIONS | TRANSFORMS | BY_VALUES | {"at", "r_", "c_"}
"""Names in programs whose straight functions are not looked for: what they name refuses pending arrays."""

OF_FORMS: dict[Any, Callable[..., Any]] = {
    jnp.shape: lambda x: x.shape,
    jnp.ndim: lambda x: x.ndim,
    jnp.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    jnp.iscomplexobj: lambda x: jnp.issubdtype(x.dtype, jnp.complexfloating),
    jnp.isrealobj: lambda x: not jnp.issubdtype(x.dtype, jnp.complexfloating),
    jnp.isscalar: lambda x: x.ndim == 0,
    jnp.result_type: lambda *xs: jnp.result_type(*[getattr(x, "dtype", x) for x in xs]),
}
"""Functions that ask for no values, and what answers them for pending arrays."""


class SeenFunction:
    """Stands for a function of JAX while programs record; else it does what the function does.

    Attributes
    ----------
    recorded : function
        Does that where a program records. What `jax.jit` has made may be a found cell by it.
    """

    def __init__(self, func: Any) -> None:
        self.__wrapped__ = func
        self.__name__ = self.__qualname__ = getattr(func, "__name__", type(func).__name__)

        # Its module stays this one, whose names no cell is compiled with.
        @functools.wraps(func, assigned=("__name__", "__qualname__", "__doc__"), updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            recording = CURRENT.recording
            if type(func) is not JITTED or recording is None:
                return record(func, *args, **kwargs)
            if has_pending(args) or has_pending(kwargs):
                return recording.recorder.dispatch(recording, func, args, kwargs)
            return func(*args, **kwargs)

        self.recorded = recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None:
            return self.__wrapped__(*args, **kwargs)
        if recording.found is not None and self.recorded in recording.found.cells:
            return recording.recorder.found_call(recording, self.recorded, args, kwargs)
        return self.recorded(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def has_pending(x: Any) -> bool:
    """Return whether a pending array is in an argument, at any depth of tuples, lists and dicts."""
    if isinstance(x, (tuple, list)):
        return any(map(has_pending, x))
    return any(map(has_pending, x.values())) if isinstance(x, dict) else type(x) is PendingJax


def is_of_jax(x: Any) -> bool:
    """Return whether JAX has defined a function."""
    return (getattr(x, "__module__", None) or "").partition(".")[0] == "jax"


def is_function(x: Any) -> bool:
    """Return whether ``x`` is a function of JAX that is recorded, or one that `jax.jit` has made."""
    if not is_of_jax(x):
        return type(x) is JITTED
    return isinstance(x, KINDS) and getattr(x, "__name__", "") not in TAKE_FUNCTIONS | TRANSFORMS


def has_transformed(roots: Sequence[Any], inner: tuple[str, ...]) -> bool:
    """Return whether a program calls what a transform has made of a function, or a method that is jitted.

    Nothing can stand in the place of these. ``roots`` are the program, and objects whose methods it may
    call; ``inner`` how names of modules begin that are looked at no further.
    """
    named = [x for f in functions_in(roots, partial(is_known_module, inner)) for _, x in named_by(f)]
    objects = [x for x in roots if is_written_here(type(x).__module__)]
    owners = [*objects, *{kind for x in objects for kind in type(x).__mro__}]
    owned = [x for owner in owners for x in getattr(owner, "__dict__", {}).values()]
    return any(map(is_transformed, named)) or any(is_transformed(x) or type(x) is JITTED for x in owned)


def is_transformed(x: Any) -> bool:
    """Return whether ``x`` is what a transform, as `jax.grad`, has made of a function of the user."""
    if isinstance(x, (jax.custom_jvp, jax.custom_vjp)):
        return not is_of_jax(x)
    return (
        isinstance(x, FunctionType)
        and not is_of_jax(x)
        and x.__globals__.get("__name__", "").startswith("jax.")
    )


def public() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Yield the places of `Replacements` for all functions in `MODULES`."""
    for module in MODULES:
        for name, x in vars(module).items():
            if name[0] != "_" and is_function(x):
                yield module, name, SeenFunction


FUNCTIONS = Replacements(*public())
"""What stands under the public names."""


@functools.lru_cache(maxsize=1024)
def seen(func: Any) -> SeenFunction:
    """Return what stands for a function of JAX: always the same."""
    return SeenFunction(func)


PLACES: dict[Any, dict[tuple[int, str], NamePlace]] = {}
"""Where modules of users have functions of JAX: function -> ``id`` of a table, name -> place."""


def imported_by(roots: Iterable[Any], is_known: Callable[[str], bool]) -> list[Any]:
    """Return the functions of JAX that names in modules of a program stand for; note them in `PLACES`.

    ``roots`` are the program, and objects whose methods it may call.
    """
    found: dict[int, Any] = {}
    for function in functions_in([*roots], is_known):
        table = function.__globals__
        if not is_written_here(table.get("__name__") or ""):
            continue
        for name, x in named_by(function):
            if type(x) in KINDS and is_function(x) and table.get(name) is x:
                found[id(x)] = x
                place = NamePlace(partial(table.get, name), partial(table.__setitem__, name), x)
                PLACES.setdefault(x, {}).setdefault((id(table), name), place)
    return [*found.values()]


IMPORTED = Cells(lambda func: replaced([*PLACES[func].values()], seen(func)))
"""What stands under the names that modules of users have for functions of JAX."""
