"""Trials: what an op may change in JAX, which is the state of modules of flax.nnx and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from multifold.backend import StateSlot

DRAWS = ("random_bits", "random_split", "random_fold_in", "threefry", "rng_bit_generator", "rng_uniform")
"""Primitives of JAX that make random numbers."""


def slots(parts: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield two `StateSlot` for each `flax.nnx.Module` in ``parts``, none if Flax is not imported.

    One is of its counts of random draws, one of its other state, such as running means.
    """
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for module in parts:
        if isinstance(module, nnx.Module):
            for kind, random in ((nnx.RngCount, True), (nnx.Not(nnx.RngState), False)):
                read, write = partial(state_of, module, kind), partial(update, module, kind)
                yield StateSlot(read, write, random=random)


def state_of(module: Any, kind: Any) -> list[Any]:
    """Return the arrays of a module's state that the filter ``kind``, as `nnx.RngCount`, lets through."""
    nnx: Any = sys.modules["flax.nnx"]
    return jax.tree.leaves(nnx.state(module, kind))


def update(module: Any, kind: Any, leaves: Sequence[Any]) -> None:
    """Write ``leaves``, in the order of `state_of`, into the state that ``kind`` lets through."""
    nnx: Any = sys.modules["flax.nnx"]
    state = nnx.state(module, kind)
    nnx.update(module, jax.tree.unflatten(jax.tree.structure(state), leaves))


def modes(parts: Sequence[Any]) -> Any:
    """Return, as text, what `train` and `eval` have set in modules of flax.nnx; None without modules."""
    nnx: Any = sys.modules.get("flax.nnx")
    modules = [] if nnx is None else [x for x in parts if isinstance(x, nnx.Module)]
    names = ("deterministic", "use_running_average")
    told = [[getattr(x, name, None) for name in names] for m in modules for _, x in nnx.iter_modules(m)]
    return str(told) if told else None


def is_key(x: Any) -> bool:
    """Return whether an array holds keys of `jax.random`."""
    return bool(jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key))


def keys_like(x: Any, values: np.ndarray) -> Any:
    """Return keys of the kind of ``x`` from their numbers, as `jax.random.key_data` returns them."""
    return jax.random.wrap_key_data(jax.numpy.asarray(values), impl=jax.random.key_impl(x))


def advice(parts: Sequence[Any]) -> str | None:
    """Return a hint for mixed rows if any of ``parts`` is a layer of Equinox, else None.

    Such a layer takes one row, not the rows of a launch.
    """
    for part in parts:
        for base in type(part).__mro__:
            if base.__module__.startswith("equinox."):
                return (
                    f"a layer of Equinox takes one row: jax.vmap(layer) takes a row for each node. "
                    f"{type(part).__name__} has got all rows of its launch at once."
                )
    return None


def draws(fn: Callable[[], Any]) -> bool:
    """Return whether ``fn()`` draws random numbers of JAX.

    The function is traced and not run; if it cannot be traced, the answer is False.
    """
    try:
        text = str(jax.make_jaxpr(fn)())
    except Exception:  # noqa: BLE001 - what it raises is no answer
        return False
    return draws_in(text)


def draws_in(text: str) -> bool:
    """Return whether ``text``, a jaxpr as JAX prints it, has a primitive that draws random numbers."""
    return any(word in text for word in DRAWS)
