"""Whether the rows of a kernel stay apart, found out while JAX traces the program that it is part of.

Then nothing has a value: neither rows nor parameters. But an op that mixes its rows does so whatever the
values are. So the kernel runs on drawn numbers, beside the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import jax
import jax.extend.core
import numpy as np

from multifold.backend import Backend
from multifold.program import RowsSpec, verify_rows

DRAWS = ("random_bits", "random_split", "random_fold_in", "threefry", "rng_bit_generator", "rng_uniform")
"""Primitives of JAX that make random numbers."""


def draws(fn: Callable[[], Any]) -> bool:
    """Return whether a function draws random numbers."""
    try:
        text = str(jax.make_jaxpr(fn)())
    except Exception:  # noqa: BLE001 - what it raises is no answer
        return False
    return any(word in text for word in DRAWS)


def verify(backend: Backend, tracer: Any, number: int) -> None:
    """Refuse a kernel that mixes its rows."""
    kernel = tracer.form.kernels[number]
    if kernel.solo:
        return
    standing: dict[int, Any] = {}  # what a parameter that has no value is replaced by
    rng = np.random.default_rng(1)

    def constant(x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer):
            return x
        if id(x) not in standing:
            whole = not np.issubdtype(x.dtype, np.floating) and x.dtype != jax.numpy.bfloat16
            values = np.zeros(x.shape) if whole else rng.uniform(0.5, 1.5, x.shape)
            standing[id(x)] = jax.numpy.asarray(values, x.dtype)
        return standing[id(x)]

    # Traced before anything is evaluated: an op that draws by a key would leave no trace of it otherwise.
    arguments, specs, rebuild = tracer.arguments(number, 3)
    closed, shapes = tracer.jaxpr(number, specs, rebuild)
    keys = any(jax.numpy.issubdtype(spec.dtype, jax.dtypes.prng_key) for spec in specs)
    if keys or any(word in str(closed) for word in DRAWS):
        return

    def op(*operands: Any) -> Any:
        concrete = jax.extend.core.ClosedJaxpr(closed.jaxpr, list(map(constant, closed.consts)))
        leaves = jax.jit(jax.extend.core.jaxpr_as_fun(concrete))(*jax.tree.leaves(operands))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    with jax.ensure_compile_time_eval():
        verify_rows(backend, kernel, op, described(arguments, specs), tracer.ops[number])


def described(arguments: Sequence[Any], specs: Sequence[Any]) -> list[RowsSpec]:
    """Return the operands that a kernel takes, from the arrays that they are made of."""
    found = []
    pairs = zip(arguments, specs, strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].operand):
        own = [(argument.role, (tuple(spec.shape), np.dtype(spec.dtype))) for argument, spec in group]
        role = own[-1][0]
        if role == "segments":
            *members, (_, (_, index)), (_, (shape, _)) = own
            found.append(RowsSpec([spec for _, spec in members], True, shape[0], index))
        else:
            found.append(RowsSpec([spec for _, spec in own], role in ("rows", "numbers")))
    return found
