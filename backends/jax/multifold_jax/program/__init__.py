"""Runs a program inside `jax.jit`: one compilation serves every structure of its form.

The schedule is data. Rows lie in slabs, one array for each leaf of what is read together; a phase of one
launch reads and writes stretches of them, a loop is a `lax.scan` over tiles with a `lax.switch` over its
kernels.

The gradient is written by hand. JAX's gradient of a scan would fill a whole slab of zeros for every tile,
so its cost would grow with tiles times rows. Here slabs of gradients go backwards through the same tiles,
each tile adds the rows that it has read, and the gradient of a kernel's parameters is computed once, after
the loop, for all its rows. The cost is linear in rows.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.export
import numpy as np

from multifold import load_backend
from multifold.errors import BackendError
from multifold.program import Form, Program, RaggedColumn, Shards, refuse_no_program, resolve_ops
from multifold_jax.program.backward import Backward
from multifold_jax.program.forward import Data, Forward, KernelInputs, separate, together
from multifold_jax.program.kernels import Tracer
from multifold_jax.program.verify import verify
from multifold_jax.varying import all_axes, refuse_unvarying, vary_all


def flatten(program: Program) -> tuple[tuple[Any, ...], Form]:
    """Return the arrays of a program and its form: `jax.jit` compiles once for each form."""
    return program.arrays, program.form


def unflatten(form: Form, arrays: Any) -> Program:
    """Return the program that has this form and these arrays, in the order of `flatten`."""
    return Program(form, *arrays)


def flatten_shards(shards: Shards) -> tuple[tuple[Any, ...], Form]:
    """Return the stacked arrays of programs, JAX's leaves, and the form that these programs share.

    `unflatten` makes a `Program` of them, so that a function under `jax.shard_map` gets the program of its
    shard.
    """
    return shards.arrays, shards.form


jax.tree_util.register_pytree_node(Program, flatten, unflatten)
jax.tree_util.register_pytree_node(Shards, flatten_shards, unflatten)


@dataclass(frozen=True, eq=False)
class FormDigest:
    """The form of a program in an exported function: equal to each form that has the same ``digest``.

    A file of `jax.export` holds no Python objects, and reading it executes none.
    """

    digest: str

    @classmethod
    def of(cls, form: Form | FormDigest) -> FormDigest:
        """Return the digest of a form, a SHA-256 of all its fields that equality compares.

        A digest is returned as it is.
        """
        if isinstance(form, FormDigest):
            return form

        def compared(x: Any) -> list[Any]:
            return [text(getattr(x, f.name)) for f in fields(x) if f.compare and f.name not in nested]

        nested = "kernels", "operands"
        kernels = [(compared(kernel), [*map(compared, kernel.operands)]) for kernel in form.kernels]
        return cls(hashlib.sha256(repr((compared(form), kernels)).encode()).hexdigest())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Form, FormDigest)):
            return NotImplemented
        return self.digest == FormDigest.of(other).digest

    def __hash__(self) -> int:
        return hash(self.digest)


def text(x: Any) -> str:
    """Return ``repr`` of a value, as text that equal values share.

    A scalar of NumPy reads like the number of Python. ``text(("a", np.int64(1)))`` is ``"('a', 1)"``, and
    so is ``text(["a", 1])``.
    """
    if isinstance(x, (tuple, list)):
        return f"({', '.join(map(text, x))})"
    return repr(str(x)) if isinstance(x, str) else repr(x.item() if isinstance(x, np.generic) else x)


for node in (Program, Shards):
    jax.export.register_pytree_node_serialization(
        node,
        serialized_name=f"multifold.{node.__name__}",
        serialize_auxdata=lambda form: FormDigest.of(form).digest.encode(),
        deserialize_auxdata=lambda data: FormDigest(data.decode()),
    )
jax.export.register_namedtuple_serialization(RaggedColumn, serialized_name="multifold.RaggedColumn")


def run(model: Any, program: Any) -> Any:
    """Run a program, the schedule of a whole minibatch as arrays, inside one compiled function.

    Traceable by `jax.jit`, `jax.grad`, `jax.vmap` and the like, with the program as an argument: a pytree
    whose arrays say what is computed, and whose form says what is compiled.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    program : Program
        Made by `multifold.Fold.program` of a fold with ``backend="jax"``.

    Returns
    -------
    The structure that was asked for, with arrays of JAX.

    Raises
    ------
    RecordError
        For anything but a program, as traces.
    LaunchError
        If an op cannot be traced, or returns other than one row for each node.

    Examples
    --------
    >>> import jax, multifold, multifold_jax
    >>> fold = multifold.Fold(backend="jax")
    >>> def power(fold, n):
    ...     x = 1.0
    ...     for _ in range(n):
    ...         x = fold.add("scale", x)
    ...     return x
    >>> def loss(w, program):
    ...     return multifold_jax.run({"scale": lambda x: w * x}, program).sum()
    >>> step = jax.jit(jax.grad(loss))
    >>> for lengths in ([1, 2], [2, 1]):
    ...     program = fold.program([multifold.trace(power, n) for n in lengths])
    ...     print(step(3.0, program))  # compiled once
    7.0
    7.0
    """
    refuse_no_program(program)
    if not program.form.tiled:
        raise BackendError(
            "Expected a tiled program, whose sizes are fixed. Received a ragged one.",
            "make it with a fold for JAX: multifold.Fold(backend='jax').program(...).",
        )
    backend = load_backend("jax")
    # This runs while JAX traces the caller, so once for each form: what it costs is part of compiling.
    tracer = Tracer(backend, resolve_ops(backend, model, program.form), program)
    tracer.trace_all()
    if not all_axes(tracer.constants):  # an op can't be tried on numbers beside what varies over devices
        for kernel in tracer.kernels.values():
            verify(backend, tracer, kernel)
    axes = all_axes(program, model, tracer.constants)
    if axes:
        program = vary_all(program, axes)
        tracer = Tracer(backend, resolve_ops(backend, vary_all(model, axes), program.form), program, axes)
        tracer.trace_all()
        refuse_unvarying(tracer.constants, axes)
    forward = Forward(tracer)

    @jax.custom_vjp
    def execute(reals: Data, others: Data) -> Any:
        with mesh_of(reals):
            return forward.run(together(reals, others))[0]

    def execute_fwd(reals: Data, others: Data) -> Any:
        with mesh_of(reals):
            outputs, state = forward.run(together(reals, others))
        return outputs, (reals, others, state)

    def execute_bwd(kept: Any, cotangents: Any) -> Any:
        reals, others, state = kept
        with mesh_of(reals):
            values = KernelInputs(together(reals, others), *state)
            return Backward(forward, reals, values).run(cotangents), None

    execute.defvjp(execute_fwd, execute_bwd)
    # Only floats may have gradients. `custom_vjp` wants to know which arguments have none at all.
    return program.form.put_together(execute(*separate(program, tracer.constants, axes)))


def mesh_of(inputs: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which new arrays, such as slabs, lie on the mesh of the first input that has one.

    It changes nothing where no input has a mesh, or where a mesh is set already. ``inputs`` is any
    structure of arrays.
    """
    meshes = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(inputs))
    mesh = next((mesh for mesh in meshes if not mesh.empty), None)
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh)
