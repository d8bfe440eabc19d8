"""Whether the rows of a kernel stay apart, found out while JAX traces the program that it is part of.

Then nothing has a value: neither rows nor parameters. But an op that mixes its rows does so whatever the
values are. So the kernel runs on drawn numbers, on three rows and on fewer, beside the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import numpy as np

from multifold.backend import Backend
from multifold.program import verify_rows

DRAWS = ("random_bits", "random_fold_in", "threefry", "rng_bit_generator", "rng_uniform")
"""Primitives of JAX that make random numbers."""


def draws(fn: Callable[[], Any]) -> bool:
    """Return whether a function draws random numbers."""
    try:
        text = str(jax.make_jaxpr(fn)())
    except Exception:  # noqa: BLE001 - what it raises is no answer
        return False
    return any(word in text for word in DRAWS)


def verify(backend: Backend, tracer: Any, number: int) -> None:
    """Refuse a kernel whose rows broadcasting mixes.

    Its ragged operands keep their members whatever the number of rows is: such a kernel is compared by
    shapes only.
    """
    kernel = tracer.form.kernels[number]
    arguments, specs, _ = tracer.arguments(number, 3)
    if kernel.solo or any(operand.role == "ragged" for operand in kernel.operands):
        return
    batched = [argument.role in ("rows", "numbers") for argument in arguments]
    ranks = {len(spec.shape) for spec, own in zip(specs, batched, strict=True) if own}
    if 1 not in ranks or len(ranks) == 1:
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
    traced = {rows: tracer.jaxpr(number, *tracer.arguments(number, rows)[1:]) for rows in (1, 2, 3)}
    if any(word in str(closed) for closed, _ in traced.values() for word in DRAWS):
        return

    def op(*arrays: Any) -> Any:
        closed, shapes = traced[next(len(x) for x, own in zip(arrays, batched, strict=True) if own)]
        concrete = jax.extend.core.ClosedJaxpr(closed.jaxpr, list(map(constant, closed.consts)))
        leaves = jax.jit(jax.extend.core.jaxpr_as_fun(concrete))(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    with jax.ensure_compile_time_eval():
        described = [(own, spec.shape, spec.dtype) for own, spec in zip(batched, specs, strict=True)]
        verify_rows(backend, kernel, op, described, list, tracer.ops[number])
