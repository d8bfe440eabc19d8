"""JAX as a backend of multifold: arrays, tracers, and models that are pytrees.

The one idea: row operations are functions compiled once per shape at module level. Eager JAX pays
for each primitive, and more where `jax.grad` traces it; a compiled call pays once. Nothing here looks at a
value, so all of it also runs on the tracers of ``jax.grad`` and ``jax.jit``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from multifold.backend import Backend, Bidirectional, Cell, Stack, StateSlot, owner_of, promoted
from multifold_jax.cells import unrollable
from multifold_jax.eager import COMPILATIONS
from multifold_jax.kit import JaxKit, device_of
from multifold_jax.trials import advice, draws, is_key, keys_like, modes, slots

FAMILY = frozenset({"jax", "jaxlib", "flax", "equinox"})
"""Packages whose types tell that a model belongs to JAX."""

WIDEST = 64
"""Arrays to concatenate at once: the time XLA takes to compile grows with the square of these."""


@jax.jit
def _concat(*xs: Any) -> Any:
    return jax.lax.concatenate(_alike(xs), 0)


@functools.partial(jax.jit, static_argnums=1)
def _split(x: Any, sizes: tuple[int, ...]) -> Any:
    return jax.lax.split(x, sizes)


@jax.jit
def _gather(x: Any, rows: Any) -> Any:
    return x.at[rows].get(mode="promise_in_bounds")


@functools.partial(jax.jit, donate_argnums=0)
def _put(x: Any, rows: Any, values: Any) -> Any:
    # Given x's memory, XLA writes the rows alone. Else it would copy the whole page first.
    return x.at[rows].set(values, mode="promise_in_bounds")


@final
class JaxBackend(Backend):
    """Batched calls on `jax.Array`, eagerly or inside `jax.jit`, differentiable by `jax.grad`.

    Examples
    --------
    >>> import jax, multifold
    >>> def loss(model):
    ...     fold = multifold.Fold(backend="jax")
    ...     (rows,) = fold.apply(model, [[fold.add("scale", x) for x in (1.0, 2.0, 3.0)]])
    ...     return rows.sum()
    >>> print(jax.grad(lambda w: loss({"scale": lambda x: w * x}))(5.0))
    6.0
    """

    name: ClassVar[str] = "jax"
    kit = JaxKit()
    tiles: ClassVar[bool] = True
    pads: ClassVar[bool] = True
    puts: ClassVar[bool] = True
    writeable: ClassVar[bool] = False

    def owns(self, x: Any) -> bool:
        # __jax_array__ is JAX's protocol for what stands for an array, such as flax.nnx.Param.
        return isinstance(x, jax.Array) or hasattr(type(x), "__jax_array__")

    def signature(self, x: Any) -> Hashable:
        x = _array(x)
        return x.shape[1:], x.dtype, _place(x)

    def rows(self, x: Any) -> int:
        return x.shape[0]

    def constant(self, values: np.ndarray, device: Any) -> jax.Array:
        # Even jnp.array reads in the background, when the memory may be the user's to write again.
        # A shared array is read-only: the core keeps it as it is, so all runs may read it.
        kept = values.copy() if values.flags.writeable else values
        return jax.device_put(kept, device_of(device))

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[jax.Array]:
        # A split would compile anew for each list of sizes; one batched transfer does not.
        return jax.device_put([array.copy() for array in arrays], device_of(device))

    def concat(self, xs: Sequence[Any]) -> jax.Array:
        xs = [*map(_array, xs)]
        while len(xs) > 1:
            xs = [_concat(*xs[i : i + WIDEST]) for i in range(0, len(xs), WIDEST)]
        return xs[0]

    def split(self, x: Any, sizes: Sequence[int]) -> Sequence[jax.Array]:
        return _split(_array(x), tuple(sizes))

    def gather(self, x: Any, rows: jax.Array) -> jax.Array:
        return _gather(_array(x), rows)

    def put(self, x: jax.Array, rows: jax.Array, values: Any) -> jax.Array:
        return _put(x, rows, _array(values))

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands, **static)

    def promoted(self, signatures: Sequence[Hashable]) -> Hashable | None:
        try:
            return promoted(signatures, lambda dtype: jnp.issubdtype(dtype, jnp.inexact), _common)
        except jax.dtypes.TypePromotionError:  # jax_numpy_dtype_promotion="strict" allows none
            return None

    def hosts(self, model: Any) -> bool:
        bases = (base for part in (model, *_leaves(model)) for base in type(part).__mro__)
        return any(base.__module__.partition(".")[0] in FAMILY for base in bases)

    def device(self, model: Any) -> Any:
        # JAX moves what is on the default device to whatever it meets, so that needs no name.
        places = (_place(leaf) for leaf in _leaves(model) if isinstance(leaf, jax.Array))
        place = next((place for place in places if place is not None), None)
        return place if place is not None and len(place.device_set) == 1 else None

    def number_dtype(self, kind: type) -> np.dtype:
        return np.dtype(jnp.result_type(kind))  # 64 bits only with jax_enable_x64

    def cast(self, x: Any, dtype: str) -> jax.Array:
        return _array(x).astype(jax.dtypes.canonicalize_dtype(dtype))  # 64 bits as above

    def lazy_recorder(self, fn: Callable[..., Any]) -> Any:
        from multifold_jax.lazy.recorder import JaxRecorder

        return JaxRecorder(fn)

    def padded_rows(self, rows: int) -> int:
        # The next power of two: an op compiles for few sizes, and at most half of the rows are for nothing.
        return 1 << (rows - 1).bit_length()

    def compilations(self) -> int:
        return COMPILATIONS.count

    def to_numpy(self, x: Any) -> np.ndarray:
        x = _array(x)
        # Without its tangent, a tracer of an eager jax.grad is the concrete array behind it.
        x = jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x
        return np.array(jax.random.key_data(x) if is_key(x) else x)

    def placed(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        return COMPILATIONS.run()

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        return unrollable(cell) or super().cell(cell)

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        return jax.profiler.TraceAnnotation(label)

    def slots(self, owners: Sequence[Any]) -> Iterable[StateSlot]:
        return slots(parts_of(owners))

    def like(self, x: Any, values: np.ndarray) -> jax.Array:
        x = _array(x)
        return keys_like(x, values) if is_key(x) else jax.device_put(values, _place(x))

    def bound_form(self, x: Any) -> Hashable | None:
        of_jax = type(x).__module__.startswith("jax") and hasattr(x, "dtype") and hasattr(x, "shape")
        return (x.shape, str(x.dtype)) if of_jax else None

    def modes(self, owners: Sequence[Any]) -> Hashable:
        return modes(parts_of(owners))

    def advice(self, owners: Sequence[Any], mixes: bool = True) -> str | None:
        return advice(parts_of(owners))

    def abstract(
        self, fn: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any], owners: Sequence[Any]
    ) -> list[Any]:
        found = jax.eval_shape(fn, list(arrays))
        return [jnp.zeros(x.shape, x.dtype) for x in found]

    def draws(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> bool:
        return draws(lambda: fn(*operands, **static))

    def synchronize(self) -> None:
        jax.block_until_ready(jax.live_arrays())  # JAX has no barrier for all devices


def parts_of(owners: Sequence[Any]) -> list[Any]:
    """Return the objects to search for state, as a list.

    These are all of ``owners`` and, for each mapping among them, the objects whose bound methods are its
    values. A value that is no bound method stands for itself.
    """
    entries = [x for owner in owners if isinstance(owner, Mapping) for x in owner.values()]
    return [*owners, *(owner_of(x, x) for x in entries)]


def _common(dtypes: Sequence[Any]) -> Any:
    """Return the dtype that `jnp.promote_types` finds for dtypes, two by two.

    `jnp.concatenate` asks besides whether an array is of a weak type, of which signatures know nothing.
    """
    return functools.reduce(jnp.promote_types, dtypes)


def _alike(xs: Sequence[Any]) -> list[Any]:
    """Return the arrays, in their order, all cast to the dtype that `_common` finds for them.

    An array that has it already is returned as it is.
    """
    dtype = _common([x.dtype for x in xs])
    return [x if x.dtype == dtype else x.astype(dtype) for x in xs]


def _array(x: Any) -> Any:
    """Return ``x`` if it is a `jax.Array`, else ``x.__jax_array__()``, as of a `flax.nnx.Param`."""
    return x if isinstance(x, jax.Array) else x.__jax_array__()


def _place(x: Any) -> Any:
    """Return the sharding that ties an array to devices, or None where JAX may move it.

    Arrays on the default device count as free, so that they share launches with tracers, which do
    not say where they are: a launch has the same rows with and without `jax.grad`.
    """
    if isinstance(x, jax.core.Tracer) or not x.committed:
        return None
    default = jax.config.jax_default_device or jax.local_devices()[0]
    return None if x.sharding.device_set == {default} else x.sharding


def _leaves(model: Any) -> list[Any]:
    """Return the leaves of a pytree and of its ``__dict__``, as a list.

    A dictionary whose keys JAX may be unable to sort is a leaf. The list is empty where JAX cannot flatten
    them for another reason.
    """
    try:
        return jax.tree.leaves([model, getattr(model, "__dict__", None)], is_leaf=_is_unsorted)
    except (TypeError, ValueError):
        return []


def _is_unsorted(x: Any) -> bool:
    """Return whether something is a dictionary whose keys JAX may be unable to sort.

    Where JAX finds that out itself, Python's stack has one level less from then on.
    """
    if not isinstance(x, dict):
        return False
    kinds = {*map(type, x)}
    if kinds <= {str} or kinds <= {int}:
        return False
    try:
        sorted(x)
    except TypeError:
        return True
    return not kinds <= {int, float, bool, bytes, str, tuple}
