"""Runs a program inside `jax.jit`: one compilation serves every structure of its form.

The schedule is data. Rows lie in slabs, one array for each leaf of what is read together; a phase of one
launch reads and writes stretches of them, a loop is a `lax.scan` over tiles with a `lax.switch` over its
kernels. The gradient is our own, since that of a scan would fill a whole slab of zeros for every tile:
slabs of gradients go backwards through the same tiles, each read adds its rows to them, and what a
kernel's parameters get is computed once for all its rows behind the loop.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from multifold.backend import Backend
from multifold.errors import BackendError
from multifold.program import Form, Program, resolve_ops
from multifold_jax.backward import Backward
from multifold_jax.forward import Forward
from multifold_jax.kernels import trace_kernels


def flatten(program: Program) -> tuple[tuple[Any, ...], Form]:
    """Return the arrays of a program, and its form: what `jax.jit` compiles for."""
    return program.arrays, program.form


def unflatten(form: Form, arrays: Any) -> Program:
    """Return a program of a form."""
    return Program(form, *arrays)


jax.tree_util.register_pytree_node(Program, flatten, unflatten)


def run_program(backend: Backend, model: Any, program: Program) -> Any:
    """Run a program; see `multifold_jax.run`."""
    if not program.form.tiled:
        raise BackendError(
            "Expected a tiled program, whose sizes are fixed. Received a ragged one.",
            "make it with a fold for JAX: multifold.Fold(backend='jax').program(...).",
        )
    ops = resolve_ops(backend, model, program.form)
    traced = trace_kernels(ops, program)
    forward = Forward(traced, program.form)

    @jax.custom_vjp
    def execute(inputs: Any, integers: Any) -> Any:
        with mesh_of(inputs):
            return forward.run(inputs, integers)[0]

    def execute_fwd(inputs: Any, integers: Any) -> Any:
        with mesh_of(inputs):
            outputs, state = forward.run(inputs, integers)
        return outputs, (inputs, integers, state)

    def execute_bwd(kept: Any, cotangents: Any) -> Any:
        with mesh_of(kept[0]):
            return Backward(forward, *kept).run(cotangents), None

    execute.defvjp(execute_fwd, execute_bwd)
    inputs, integers = traced.separate(program)
    return program.form.put_together(execute(inputs, integers))


def mesh_of(inputs: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which new arrays, as slabs are, lie on the mesh that the inputs are on."""
    meshes = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(inputs))
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)
