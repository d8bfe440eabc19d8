"""Functions of JAX while programs record: a call that meets a pending array is recorded.

JAX has no hook by which another class can answer its functions. So while a program records, a stand-in is
under their public names, as ``jnp.tanh``, and under the names by which the program's own modules know a
function of JAX, or one that `jax.jit` has made. It records calls that meet pending arrays, and leaves all
others to the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp

from multifold.lazy.cells import Cells, NamePlace, replaced
from multifold.lazy.current import CURRENT
from multifold.lazy.operators import record
from multifold.lazy.patches import Replacements
from multifold.lazy.writes import functions_in, is_written_here, named_by
from multifold_jax.lazy.updates import updates

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
"""Functions among these that trace other functions, which they get: calls of them belong in cells."""

TRANSFORMS = frozenset(
    {"vmap", "pmap", "jit", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vjp", "jvp"}
    | {"linearize", "checkpoint", "remat", "eval_shape", "make_jaxpr", "closure_convert"}
    | {"pure_callback", "io_callback"}
)
"""Functions of JAX that return a new function, or call one back: they are not recorded, either."""

BY_VALUES = frozenset(
    {"nonzero", "flatnonzero", "argwhere", "unique", "extract", "compress", "union1d", "intersect1d"}
    | {"setdiff1d", "setxor1d"}
)
"""Functions whose results have shapes that values decide."""

UNFIT = TAKE_FUNCTIONS | TRANSFORMS | BY_VALUES
"""A program that may call one of these functions has no found cells: they refuse pending arrays."""

UNFIT_NAMES = frozenset({"r_", "c_"})
"""Attributes that refuse them, too."""

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


class StandIn:
    """Stands for a function of JAX while programs record; elsewhere it does what the function does.

    Attributes
    ----------
    recorded : function
        Records a call, if it meets a pending array. For a function that `jax.jit` has made, this is what
        `multifold.lazy.found.FoundCells` has.
    """

    def __init__(self, func: Any) -> None:
        self.__wrapped__ = func
        self.__name__ = self.__qualname__ = getattr(func, "__name__", type(func).__name__)

        # Its module stays this one, whose names no cell is compiled with.
        @functools.wraps(func, assigned=("__name__", "__qualname__", "__doc__"), updated=())
        def recorded(*args: Any, **kwargs: Any) -> Any:
            return record(func, *args, **kwargs)

        self.recorded = recorded

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None:
            return self.__wrapped__(*args, **kwargs)
        if recording.found is not None:
            return recording.recorder.found_call(recording, self.recorded, args, kwargs)
        return self.recorded(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)


def is_of_jax(x: Any) -> bool:
    """Return whether JAX has defined a function."""
    return (getattr(x, "__module__", None) or "").partition(".")[0] == "jax"


def is_function(x: Any) -> bool:
    """Return whether ``x`` is a function of JAX that is recorded, or one that `jax.jit` has made."""
    if type(x) not in KINDS:
        return False
    if not is_of_jax(x):
        return type(x) is JITTED
    return getattr(x, "__name__", "") not in TAKE_FUNCTIONS | TRANSFORMS


def is_unfit(x: Any) -> bool:
    """Return whether ``x`` is a function of JAX, or made by one, that no stand-in can record.

    Those of `UNFIT` are, and what a transform, as `jax.grad`, has made of a function of the user.
    """
    if type(x) is StandIn or (type(x) in KINDS and is_of_jax(x)):
        return getattr(x, "__name__", "") in UNFIT
    is_made = type(x) is FunctionType and x.__globals__.get("__name__", "").startswith("jax.")
    return is_made or isinstance(x, (jax.custom_jvp, jax.custom_vjp))


def calls_unfit(roots: Sequence[Any], names: Collection[str], is_known: Callable[[str], bool]) -> bool:
    """Return whether a program calls what no stand-in can record, or a method that is jitted.

    Parameters
    ----------
    roots : sequence of object
        The program, and an object of each class that it reaches.
    names : collection of str
        The names in the code that it may run.
    is_known : callable
        Takes the name of a module, and returns whether it is of Python or the framework.
    """
    named = [pair for function in functions_in(roots, is_known) for pair in named_by(function)]
    met = [*roots, *[x for name, x in named if name in names]]
    kinds = [x if isinstance(x, type) else type(x) for x in met]
    classes = {base for kind in kinds for base in kind.__mro__ if is_written_here(base.__module__)}
    objects = [x for x in met if type(x) in classes]
    owned = [pair for x in (*objects, *classes) for pair in getattr(x, "__dict__", {}).items()]
    return any(is_unfit(x) for name, x in named if name in names) or any(
        is_unfit(x) or type(getattr(x, "__func__", x)) is JITTED for name, x in owned if name in names
    )


def public() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Yield the places of `Replacements` for all functions in `MODULES`."""
    for module in MODULES:
        for name, x in vars(module).items():
            if name[0] != "_" and is_function(x):
                yield module, name, StandIn


FUNCTIONS = Replacements(*public(), *updates())
"""What stands under the public names, and for methods of ``x.at[i]``."""


@functools.lru_cache(maxsize=1024)
def stand_in_of(func: Any) -> StandIn:
    """Return what stands for a function, for all programs; the same for as long as few others come."""
    return StandIn(func)


class ImportedName:
    """A name of a function of JAX, or of one that is jitted, in a module of the user.

    Two are equal if they are the same name of one module, and stood for the same function.
    """

    def __init__(self, table: dict[str, Any], name: str, func: Any) -> None:
        self.place = NamePlace(partial(table.get, name), partial(table.__setitem__, name), func)
        self.func = func
        self.key = id(table), name, id(func)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImportedName) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def imported_by(program: Any, is_known: Callable[[str], bool]) -> list[ImportedName]:
    """Return the names of functions of JAX, and of jitted ones, in modules of the user for a program.

    ``is_known`` takes the name of a module, and returns whether it is of Python or the framework.
    """
    found = set[ImportedName]()
    for function in functions_in([program], is_known):
        table = function.__globals__
        if is_written_here(table.get("__name__") or ""):
            own = [(name, x) for name, x in named_by(function) if table.get(name) is x]
            found.update([ImportedName(table, name, x) for name, x in own if is_function(x)])
    return [*found]


IMPORTED = Cells(lambda name: replaced([name.place], stand_in_of(name.func)))
"""What stands under such names."""
