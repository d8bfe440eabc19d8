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
    """Yield the counts of draws and the other state, as running means, of modules among some objects."""
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for module in parts:
        if isinstance(module, nnx.Module):
            for kind, random in ((nnx.RngCount, True), (nnx.Not(nnx.RngState), False)):
                read, write = partial(state_of, module, kind), partial(update, module, kind)
                yield StateSlot(read, write, random=random)


def state_of(module: Any, kind: Any) -> list[Any]:
    """Return the arrays of one kind of state of a module."""
    nnx: Any = sys.modules["flax.nnx"]
    return jax.tree.leaves(nnx.state(module, kind))


def update(module: Any, kind: Any, leaves: Sequence[Any]) -> None:
    """Let one kind of state of a module have these arrays."""
    nnx: Any = sys.modules["flax.nnx"]
    state = nnx.state(module, kind)
    nnx.update(module, jax.tree.unflatten(jax.tree.structure(state), leaves))


def modes(parts: Sequence[Any]) -> Any:
    """Return what modules of flax.nnx were told by `train` and `eval`; None if there are none."""
    nnx: Any = sys.modules.get("flax.nnx")
    modules = [] if nnx is None else [x for x in parts if isinstance(x, nnx.Module)]
    names = ("deterministic", "use_running_average")
    told = [[getattr(x, name, None) for name in names] for m in modules for _, x in nnx.iter_modules(m)]
    return str(told) if told else None


def is_key(x: Any) -> bool:
    """Return whether an array holds keys of `jax.random`."""
    return bool(jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key))


def keys_like(x: Any, values: np.ndarray) -> Any:
    """Return keys of the data that `jax.random.key_data` has of them."""
    return jax.random.wrap_key_data(jax.numpy.asarray(values), impl=jax.random.key_impl(x))


def advice(parts: Sequence[Any]) -> str | None:
    """Return what to do where layers of Equinox mix rows: each of them takes a single one."""
    for part in parts:
        for base in type(part).__mro__:
            if base.__module__.startswith("equinox."):
                return (
                    f"a layer of Equinox takes one row: jax.vmap(layer) takes a row for each node. "
                    f"{type(part).__name__} has got all rows of its launch at once."
                )
    return None


def draws(fn: Callable[[], Any]) -> bool:
    """Return whether a function draws random numbers."""
    try:
        text = str(jax.make_jaxpr(fn)())
    except Exception:  # noqa: BLE001 - what it raises is no answer
        return False
    return draws_in(text)


def draws_in(text: str) -> bool:
    """Return whether a traced function, as JAX prints it, draws random numbers."""
    return any(word in text for word in DRAWS)
