"""The kernels of a program as functions of arrays, found by tracing each op once a size.

A kernel is traced on as many rows as it will have. What the op reads beside its operands (parameters,
whatever object they belong to) comes out as constants of the trace. As inputs of the whole program they
have gradients. Tracing also tells the class of each slab: the structure, trailing shapes and dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, MultifoldError
from multifold.program import (
    Kernel,
    KernelOperand,
    MissingRows,
    Program,
    SlabClass,
    SlabClasses,
    Source,
    check_rows,
    follow,
    hint_of,
    naming,
    received,
)
from multifold_jax.varying import vary

Spec = jax.ShapeDtypeStruct

Made = tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], Any]]
"""Role and shape of each array that an operand is made of, and the function that makes it of them."""

VALUES = (
    "inside a program an op may not look at values; run it with fold.apply instead, or write it with "
    "jax.numpy and jax.lax."
)

STATE = (
    "inside a program an op may not change its model's state, as nnx.Dropout and BatchNorm do in training; "
    "pass keys as operands, or run it with fold.apply instead."
)


class Argument(NamedTuple):
    """Where one of the arrays that a kernel takes comes from; an operand may be made of several.

    Attributes
    ----------
    role : str
        ``"rows"``, ``"members"``, ``"lengths"``, ``"segments"``, ``"numbers"``, ``"whole"`` or
        ``"shared"``.
    operand : int
        Number of the operand that the array is a part of.
    leaf : int
        Which leaf of the slab or whole value.
    origin, edges : int
        The slab, whole value or shared array, `KernelOperand.index`, and the members of a tile.
    """

    role: str
    operand: int
    leaf: int
    origin: int
    edges: int


class Write(NamedTuple):
    """A stretch of consecutive rows of a slab that a kernel writes.

    Attributes
    ----------
    slab, start : int
        The slab, and where the rows of the kernel begin in it.
    turn : int
        How many stretches of this slab the kernel writes before this one.
    leaves : tuple of int
        The leaves of the result that go there.
    """

    slab: int
    start: int
    turn: int
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class TracedKernel:
    """A kernel, one type of call, traced by JAX on a fixed number of rows.

    Attributes
    ----------
    number, rows : int
        The kernel, and the number of rows.
    jaxpr : Jaxpr
        Takes constants, then arguments; returns the leaves of the result.
    constants : list of int
        Which constants of the program it takes.
    arguments : list of Argument
        What else it takes.
    specs, outputs : lists of ShapeDtypeStruct
        Shapes and dtypes of the arguments, and of the leaves of the result.
    writes : list of Write
        Where the leaves go that are read by rows.
    wholes : dict of int to object
        For each value that is read whole, its structure with the number of each leaf in its place.
    axes : frozenset of str
        The axes of a mesh that its arguments and its result vary over.
    """

    number: int
    rows: int
    jaxpr: Any
    constants: list[int]
    arguments: list[Argument]
    specs: list[Any]
    outputs: list[Any]
    writes: list[Write]
    wholes: dict[int, Any]
    axes: frozenset[str]

    def __call__(self, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Run the kernel; return the leaves of its result, one for each of ``outputs``.

        ``constants`` are arrays in the order of ``self.constants``, ``arguments`` arrays in that of
        ``self.arguments``.
        """
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, list(constants))
        return [vary(x, self.axes) for x in jax.extend.core.jaxpr_as_fun(closed)(*arguments)]


def is_real(x: Any) -> bool:
    """Return whether an array, or its description, is of floats or complex numbers.

    It may have a gradient.
    """
    return jnp.issubdtype(x.dtype, jnp.inexact)


class Tracer:
    """Traces the kernels of a program, each in every size that it runs in.

    Attributes
    ----------
    constants : list of arrays
        What the ops read beside their operands, each array once.
    classes : SlabClasses
        The class of each slab.
    kernels : dict of (int, int) to TracedKernel
        By kernel and rows.
    wholes : dict of int to object
        The structure of each value that is read whole, with shapes and dtypes.
    starts, rows : lists of int
        Where each source begins in its slab, and how many rows each slab has.
    axes : frozenset of str
        The axes of a mesh that the program varies over; see `multifold_jax.varying`.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Sequence[Callable[..., Any]],
        program: Program,
        axes: frozenset[str] = frozenset(),
    ) -> None:
        self.backend = backend
        self.ops = ops
        self.axes = axes
        self.program = program
        self.form = program.form
        self.constants: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.classes = SlabClasses(program.form)
        self.kernels: dict[tuple[int, int], TracedKernel] = {}
        self.wholes: dict[int, Any] = {}
        self.starts, self.rows = self.form.stretches

    def trace_all(self) -> None:
        """Trace all kernels, each as soon as the classes of the slabs that it reads are known.

        Raises
        ------
        LaunchError
            If an op cannot be traced, if its result has other than one row for each node, if its shape
            depends on the number of rows, or if rows of different classes would meet in a slab.
        """
        for x in (*self.program.given, *self.program.shared):
            refuse_keys(x)
        for source in self.form.sources:
            if source.kernel < 0:
                rows = self.program.given[source.given]
                (dtype,) = source.dtypes or (jax.dtypes.canonicalize_dtype(rows.dtype),)
                leaves, structure = jax.tree.flatten(Spec(rows.shape, dtype))
                self.classes.declare(source.slab, SlabClass.of(structure, leaves))
        for phase in self.form.phases:
            counts = dict(zip(phase.kernels, phase.rows, strict=True))
            for number in self.classes.in_order(phase.kernels, plain):
                self.trace(number, phase.tile if phase.tile is not None else counts[number])

    def trace(self, number: int, rows: int) -> None:
        """Trace kernel ``number`` on ``rows`` rows and keep it in ``kernels[number, rows]``, once.

        This also declares the slabs and the values read whole that it writes. Raises as `trace_all` does.
        """
        if (number, rows) in self.kernels:
            return
        kernel = self.form.kernels[number]
        arguments, specs, rebuild = self.arguments(number, rows)
        jaxpr, shapes = self.jaxpr(number, specs, rebuild)
        # An op that returns rows of shape (n,) for n nodes mixes rows. Only a second trace, on one row
        # more, tells it from an op whose rows have n numbers by chance.
        if not kernel.solo:
            refuse_dependent_rows(
                kernel, shapes, self.jaxpr(number, *self.arguments(number, rows + 1)[1:])[1]
            )
        leaves, structure = jax.tree.flatten(shapes)
        places = jax.tree.unflatten(structure, list(range(len(leaves))))
        wholes = {}
        for whole, steps in self.form.wholes_of(number):
            self.wholes[whole] = follow(shapes, steps, kernel)
            wholes[whole] = follow(places, steps, kernel)
        writes = []
        turns = Counter[int]()
        for entry, source in self.form.sources_of(number):
            self.settle(kernel, source, shapes, rows)
            own = tuple(jax.tree.leaves(follow(places, source.steps, kernel)))
            writes.append(Write(source.slab, self.starts[entry], turns[source.slab], own))
            turns[source.slab] += 1
        constants = [self.constant(x) for x in jaxpr.consts]
        self.kernels[number, rows] = TracedKernel(
            number, rows, jaxpr.jaxpr, constants, arguments, specs, leaves, writes, wholes, self.axes
        )

    def settle(self, kernel: Kernel, source: Source, shapes: Any, rows: int) -> None:
        """Declare the class (structure, shapes, dtypes) of the slab that ``source`` writes.

        It is read off ``shapes``, the op's result as shapes. Raises `LaunchError` where that has other than
        ``rows`` rows, or another class than before.
        """
        found, structure = jax.tree.flatten(follow(shapes, source.steps, kernel))
        if not found:
            raise LaunchError(f"{naming(kernel)}, returned None, which has no rows.")
        for x in found:
            check_rows(kernel, x.shape, rows)
        if source.dtypes:
            found = [Spec(x.shape, dtype) for x, dtype in zip(found, source.dtypes, strict=True)]
        self.classes.declare(source.slab, SlabClass.of(structure, found))

    def constant(self, x: Any) -> int:
        """Return the position of an array in ``self.constants``, where it is appended if it is new."""
        # By identity: two ops that read one embedding have one constant, and so one gradient of it. The
        # list keeps the arrays alive, so no id is used twice.
        number = self.numbers.setdefault(id(x), len(self.constants))
        if number == len(self.constants):
            self.constants.append(x)
        return number

    def jaxpr(self, number: int, specs: list[Any], rebuild: Callable[[Sequence[Any]], Any]) -> Any:
        """Trace the op of kernel ``number``; return its closed jaxpr, and its result as shapes and dtypes.

        ``specs`` are the shapes of the arrays it takes, ``rebuild`` makes the list of its operands of these
        arrays. Raises `LaunchError` if JAX cannot trace it.
        """
        kernel = self.form.kernels[number]
        op = self.ops[number]

        def call(*flat: Any) -> Any:  # a new function each time: JAX keeps traces by function
            return op(*received(self.backend, kernel, rebuild(flat)), **kernel.static)

        try:
            return jax.make_jaxpr(call, return_shape=True)(*self.samples(specs))
        except MultifoldError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(". :")
            hint = None
            if "mutate" in str(error):  # as flax.nnx says
                hint = STATE
            elif isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)):
                hint = VALUES
            raise LaunchError(
                f"{naming(kernel)}, cannot be traced by JAX: {what}. "
                f"Operands: {', '.join(f'{x.shape} {x.dtype}' for x in specs) or 'none'}.",
                hint_of(kernel, error, hint),
            ) from error

    def samples(self, specs: list[Any]) -> list[Any]:
        """Return what an op is traced on: ``specs``, or zeros like them if ``self.axes`` has any axis.

        The zeros vary over these axes of the mesh.
        """
        return [vary(jnp.zeros(x.shape, x.dtype), self.axes) for x in specs] if self.axes else specs

    def arguments(
        self, number: int, rows: int
    ) -> tuple[list[Argument], list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Return (arguments, specs, function) for kernel ``number`` on ``rows`` rows.

        ``specs`` are the shapes and dtypes of the arguments; the function makes the list of operands, in
        their order, of a list of such arrays.
        """
        kernel = self.form.kernels[number]
        found: list[Argument] = []
        specs: list[Any] = []
        makers: list[tuple[slice, Callable[[Sequence[Any]], Any]]] = []
        pairs = zip(kernel.operands, self.program.columns[number], strict=True)
        for at, (operand, column) in enumerate(pairs):
            arrays, make = self.operand(kernel, operand, column, rows)
            makers.append((slice(len(specs), len(specs) + len(arrays)), make))
            for leaf, (role, spec) in enumerate(arrays):
                found.append(Argument(role, at, leaf, operand.index, operand.edges or 0))
                specs.append(spec)
        return found, specs, lambda flat: [make(flat[own]) for own, make in makers]

    def operand(self, kernel: Kernel, operand: KernelOperand, column: Any, rows: int) -> Made:
        """Return the arrays that an operand is made of, pairs (role, shape), and what makes it of them.

        The second is a function of the list of arrays. ``column`` is the operand's entry in
        ``program.columns``. A static operand is made of no arrays.
        """
        if operand.role == "rows":
            structure, leaves = self.classes[operand.index]
            return [("rows", Spec((rows, *shape), dtype)) for shape, dtype in leaves], structure.unflatten
        if operand.role == "ragged":
            return self.ragged(kernel, operand, rows)
        if operand.role == "whole":
            arrays, structure = jax.tree.flatten(self.wholes[operand.index])
            return [("whole", Spec(x.shape, x.dtype)) for x in arrays], structure.unflatten
        if operand.role == "shared":
            x = self.program.shared[operand.index]
            return [("shared", Spec(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)))], itemgetter(0)
        if operand.role == "static":
            return [], lambda arrays: operand.value
        return [("numbers", Spec((rows,), jax.dtypes.canonicalize_dtype(column.dtype)))], itemgetter(0)

    def ragged(self, kernel: Kernel, operand: KernelOperand, rows: int) -> Made:
        """Return what `operand` returns, for a ragged operand.

        Its arrays are the leaves of its members, then lengths, then segments. An operand that reads no rows
        in any program of the form has no members, and its values have no rows.
        """
        edges = operand.edges or 0
        rest = [("lengths", Spec((rows,), np.int32)), ("segments", Spec((edges,), np.int32))]
        if operand.reads:
            structure, leaves = self.classes[operand.index]
            members = [("members", Spec((edges, *shape), dtype)) for shape, dtype in leaves]
            return [*members, *rest], lambda arrays: Ragged(structure.unflatten(arrays[:-2]), *arrays[-2:])
        values = operand.missing.made(lambda shape, dtype: jnp.zeros((0, *shape), dtype_of(dtype)))
        return rest, lambda arrays: Ragged(values, *arrays)


def plain(missing: MissingRows) -> SlabClass:
    """Return the class (structure, shapes, dtypes) of rows that no call of the form makes."""
    made = missing.made(lambda shape, dtype: Spec((0, *shape), dtype_of(dtype)))
    arrays, structure = jax.tree.flatten(made)
    return SlabClass.of(structure, arrays)


def dtype_of(name: str) -> np.dtype:
    """Return the dtype of a name, as ``"float32"``; ``"float"`` and ``"int"`` follow ``jax_enable_x64``."""
    number = {"float": float, "int": int}.get(name)
    return jax.dtypes.canonicalize_dtype(name if number is None else jnp.result_type(number))


def refuse_dependent_rows(kernel: Kernel, shapes: Any, other: Any) -> None:
    """Raise `LaunchError` if an op's result depends on how many rows it has.

    ``shapes`` is its result as shapes, ``other`` that for one row more; they may differ along axis 0 alone.
    """
    for x, y in zip(jax.tree.leaves(shapes), jax.tree.leaves(other), strict=False):
        if x.shape[1:] != y.shape[1:]:
            raise LaunchError(
                f"{naming(kernel)}, returned rows of shape {x.shape[1:]} for {x.shape[0]} nodes, and "
                f"of shape {y.shape[1:]} for one more.",
                "rows may not depend on how many there are: each is one node's. Of a number operand, an "
                "array of shape (n,), s[:, None] makes a column.",
            )


def refuse_keys(x: Any) -> None:
    """Raise `LaunchError` for typed keys of `jax.random`, whose dtype has no zeros to fill rows with."""
    if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended):
        raise LaunchError(
            f"Expected arrays of numbers in a program. Received one of dtype {x.dtype}.",
            "pass jax.random.key_data(key), and in the op jax.random.wrap_key_data(x).",
        )
