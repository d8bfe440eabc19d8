"""JAX as a backend of multifold: arrays, tracers, and models that are pytrees.

`backend` is the seam that every fold runs through. `run` computes a program instead, inside of one compiled
function; `exchange` lets the processes of `jax.distributed` agree on its form.
"""

from __future__ import annotations

from multifold_jax.backend import JaxBackend
from multifold_jax.processes import exchange
from multifold_jax.program import run

__all__ = ["JaxBackend", "exchange", "run"]
