"""Whether the rows of a kernel stay apart, found out while JAX traces the program that it is part of.

Then nothing has a value: neither rows nor parameters. But an op that mixes its rows does so whatever the
values are. So the kernel runs on drawn numbers, beside the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import jax
import jax.extend.core
import numpy as np

from multifold.backend import Backend
from multifold.program import RowsSpec, verify_rows
from multifold_jax.program.kernels import TracedKernel, Tracer
from multifold_jax.trials import draws_in


def verify(backend: Backend, tracer: Tracer, traced: TracedKernel) -> None:
    """Raise `LaunchError` if a kernel, in the size that a phase runs it in, lets one row change another.

    It runs on drawn numbers, which also replace parameters that are traced. A solo kernel, one that takes
    keys, or one that draws random numbers is not tried.
    """
    kernel = tracer.form.kernels[traced.number]
    text = str(traced.jaxpr)
    keys = any(jax.numpy.issubdtype(spec.dtype, jax.dtypes.prng_key) for spec in traced.specs)
    if kernel.solo or keys or draws_in(text):
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

    def op(*operands: Any) -> tuple[Any, ...]:
        constants = [constant(tracer.constants[i]) for i in traced.constants]
        return tuple(jax.jit(traced.__call__)(constants, jax.tree.leaves(operands)))

    # A step may be guarded against transfers, which the drawn numbers are.
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        operands = described(traced.arguments, traced.specs)
        verify_rows(backend, kernel, op, operands, traced.rows, tracer.ops[traced.number])


def described(arguments: Sequence[Any], specs: Sequence[Any]) -> list[RowsSpec]:
    """Return the operands of a kernel, one `RowsSpec` each, from the arrays they are made of.

    ``specs`` has the shapes and dtypes of ``arguments``, in their order.
    """
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
