"""The kernels of a program as functions of arrays, found by tracing each op once a size.

A kernel is traced on as many rows as it will have. What the op reads beside its operands (parameters,
whatever object they belong to) comes out as constants of the trace; as inputs of the whole program they
have gradients. Tracing also tells the class of each slab: the structure, trailing shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from multifold.backend import Ragged
from multifold.errors import LaunchError, MultifoldError
from multifold.program import (
    Form,
    Kernel,
    Program,
    check_rows,
    follow,
    mixed_rows,
    naming,
    no_rows,
)

Spec = jax.ShapeDtypeStruct


class SlabClass(NamedTuple):
    """What the rows of a slab have in common: the structure, and (trailing shape, dtype) of each leaf."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]


class Argument(NamedTuple):
    """Where one array that a kernel takes comes from.

    Attributes
    ----------
    kind : str
        ``"rows"``, ``"members"``, ``"lengths"``, ``"segments"``, ``"numbers"``, ``"whole"`` or
        ``"shared"``.
    operand : int
        The operand that it is of.
    leaf : int
        Which leaf of the slab or whole value.
    """

    kind: str
    operand: int
    leaf: int = 0


@dataclass
class Kernelized:
    """A kernel traced on a number of rows.

    Attributes
    ----------
    jaxpr : Jaxpr
        Takes constants, then arguments; returns the leaves of the result.
    constants : list of int
        Where its constants are among those of the program.
    arguments : list of Argument
        What it takes.
    specs : list of ShapeDtypeStruct
        Shapes and dtypes of the arguments.
    outputs : list of ShapeDtypeStruct
        Shapes and dtypes of the leaves.
    places : object
        The structure of the result with the number of each leaf in its place.
    """

    jaxpr: Any
    constants: list[int]
    arguments: list[Argument]
    specs: list[Any]
    outputs: list[Any]
    places: Any

    def __call__(self, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Return the leaves of the result."""
        closed = jax.extend.core.ClosedJaxpr(self.jaxpr, list(constants))
        return jax.extend.core.jaxpr_as_fun(closed)(*arguments)


@dataclass
class Traced:
    """All kernels of a program, in each size that they run in.

    Attributes
    ----------
    constants : list of arrays
        What the ops read beside their operands, each array once.
    classes : dict of int to SlabClass
        The class of each slab.
    kernels : dict of (int, int) to Kernelized
        By kernel and rows.
    wholes : dict of int to object
        The structure of each value that is read whole, with shapes and dtypes.
    """

    form: Form
    constants: list[Any] = field(default_factory=list)
    classes: dict[int, SlabClass] = field(default_factory=dict)
    kernels: dict[tuple[int, int], Kernelized] = field(default_factory=dict)
    wholes: dict[int, Any] = field(default_factory=dict)
    guessed: set[int] = field(default_factory=set)

    def separate(self, program: Program) -> tuple[Any, Any]:
        """Return the inputs of a program that may have gradients, and the integers."""
        columns = [
            [
                (column if operand.kind == "float" else None, None if operand.kind == "float" else column)
                for operand, column in zip(kernel.operands, own, strict=True)
            ]
            for kernel, own in zip(program.form.kernels, program.columns, strict=True)
        ]
        floats = [[x for x, _ in own] for own in columns]
        others = [[x for _, x in own] for own in columns]
        split = [partition(xs) for xs in (self.constants, program.blocks, program.shared)]
        inputs = floats, *(some for some, _ in split)
        return inputs, (others, *(rest for _, rest in split), program.launches, program.groups)


def partition(xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return arrays that may have gradients, and the others; None in the places of those."""
    real = [is_real(x) for x in xs]
    return (
        [x if r else None for x, r in zip(xs, real, strict=True)],
        [None if r else x for x, r in zip(xs, real, strict=True)],
    )


def is_real(x: Any) -> bool:
    """Return whether an array, or what describes one, may have a gradient."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def trace_kernels(ops: Sequence[Callable[..., Any]], program: Program) -> Traced:
    """Trace the kernels of a program, each as soon as the classes of the slabs that it reads are known.

    Raises
    ------
    LaunchError
        If an op cannot be traced, if its result has other than one row for each node, if its shape
        depends on the number of rows, or if rows of different classes would meet in a slab.
    """
    return Tracer(ops, program).run()


class Tracer:
    """Kernels in the course of being traced."""

    def __init__(self, ops: Sequence[Callable[..., Any]], program: Program) -> None:
        self.ops = ops
        self.program = program
        self.form = program.form
        self.traced = Traced(program.form)
        self.ids: dict[int, int] = {}
        self.reads: list[set[int]] = [
            {o.index for o in kernel.operands if o.kind in ("rows", "ragged") and o.index >= 0}
            for kernel in self.form.kernels
        ]

    def run(self) -> Traced:
        """Trace all kernels."""
        form, classes = self.form, self.traced.classes
        for x in (*self.program.blocks, *self.program.shared):
            refuse_keys(x)
        for source in form.sources:
            if source.kernel < 0:
                block = self.program.blocks[source.block]
                dtype = jax.dtypes.canonicalize_dtype(block.dtype)
                self.settle(source.slab, SlabClass(jax.tree.structure(0), ((block.shape[1:], dtype),)))
        for phase in form.phases:
            pairs = list(zip(phase.kernels, phase.rows, strict=True))
            while pairs:
                ready = [pair for pair in pairs if self.reads[pair[0]] <= set(classes)]
                if not ready:
                    self.guess([kernel for kernel, _ in pairs])
                    continue
                for kernel, rows in ready:
                    self.trace(kernel, phase.tile if phase.tile is not None else rows)
                pairs = [pair for pair in pairs if pair not in ready]
        return self.traced

    def guess(self, pending: list[int]) -> None:
        """Take row shapes of ragged operands for those of slabs that nothing else tells, for one kernel."""
        for number in pending:
            shapes = {
                operand.index: tuple(operand.row_shape)
                for operand in self.form.kernels[number].operands
                if operand.kind == "ragged" and operand.index >= 0 and operand.row_shape is not None
            }
            if self.reads[number] <= set(self.traced.classes) | set(shapes):
                for slab, shape in shapes.items():
                    one = SlabClass(jax.tree.structure(0), ((shape, jnp.result_type(float)),))
                    self.traced.classes.setdefault(slab, one)
                return
        raise no_rows(self.form.kernels[pending[0]])

    def settle(self, slab: int, found: SlabClass) -> None:
        """Note the class of a slab; refuse a second one."""
        known = self.traced.classes.setdefault(slab, found)
        if known != found:
            raise mixed_rows(self.form, slab, [known.leaves, found.leaves])

    def trace(self, number: int, rows: int) -> None:
        """Trace a kernel on a number of rows."""
        if (number, rows) in self.traced.kernels:
            return
        kernel = self.form.kernels[number]
        arguments, specs, rebuild = self.arguments(number, rows)
        jaxpr, shapes = self.jaxpr(number, specs, rebuild)
        if not kernel.solo:
            self.compare(kernel, shapes, self.jaxpr(number, *self.arguments(number, rows + 1)[1:])[1])
        leaves, structure = jax.tree.flatten(shapes)
        places = jax.tree.unflatten(structure, list(range(len(leaves))))
        constants = [self.constant(x) for x in jaxpr.consts]
        made = Kernelized(jaxpr.jaxpr, constants, arguments, specs, leaves, places)
        self.traced.kernels[number, rows] = made
        for place, (owner, steps) in enumerate(self.form.wholes):
            if owner == number:
                self.traced.wholes[place] = follow(shapes, steps, kernel)
        for source in self.form.sources:
            if source.kernel == number:
                value = follow(shapes, source.steps, kernel)
                found, structure = jax.tree.flatten(value)
                if not found:
                    raise LaunchError(f"{naming(kernel)}, returned None, which has no rows.")
                for x in found:
                    check_rows(kernel, x.shape, rows)
                self.settle(source.slab, SlabClass(structure, tuple((x.shape[1:], x.dtype) for x in found)))

    def compare(self, kernel: Kernel, shapes: Any, other: Any) -> None:
        """Refuse an op whose result has other rows where there are more of them."""
        for x, y in zip(jax.tree.leaves(shapes), jax.tree.leaves(other), strict=False):
            if x.shape[1:] != y.shape[1:]:
                raise LaunchError(
                    f"{naming(kernel)}, returned rows of shape {x.shape[1:]} for {x.shape[0]} nodes, and "
                    f"of shape {y.shape[1:]} for one more.",
                    "rows may not depend on how many there are: each is one node's.",
                )

    def tile_of(self, number: int) -> int | None:
        """Return the tile of the loop that a kernel runs in."""
        return next((phase.tile for phase in self.form.phases if number in phase.kernels), None)

    def constant(self, x: Any) -> int:
        """Return the number of a constant among those of the program."""
        number = self.ids.setdefault(id(x), len(self.traced.constants))
        if number == len(self.traced.constants):
            self.traced.constants.append(x)
        return number

    def jaxpr(self, number: int, specs: list[Any], rebuild: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the trace of an op, and what it returns as shapes."""
        kernel, op = self.form.kernels[number], self.ops[number]

        def call(*flat: Any) -> Any:  # a new function each time: JAX keeps traces by function
            return op(*kernel.nest(rebuild(flat)), **kernel.static)

        try:
            return jax.make_jaxpr(call, return_shape=True)(*specs)
        except MultifoldError:
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(". :")
            hint = "inside a program an op may not look at values; run it with fold.apply instead, "
            hint += "or write it with jax.numpy and jax.lax."
            if "mutate" in str(error):  # as flax.nnx says
                hint = (
                    "inside a program an op may not change its model's state, as nnx.Dropout and BatchNorm "
                )
                hint += "do in training; pass keys as operands, or run it with fold.apply instead."
            raise LaunchError(
                f"{naming(kernel)}, cannot be traced by JAX: {what}. "
                f"Operands: {', '.join(f'{x.shape} {x.dtype}' for x in specs) or 'none'}.",
                hint,
            ) from error

    def arguments(
        self, number: int, rows: int
    ) -> tuple[list[Argument], list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Return what a kernel takes, as shapes, and what makes its operands of it."""
        kernel = self.form.kernels[number]
        found: list[Argument] = []
        specs: list[Any] = []
        makers: list[Callable[[Sequence[Any]], Any]] = []

        def take(kind: str, operand: int, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> slice:
            first = len(specs)
            for leaf, (shape, dtype) in enumerate(shapes):
                found.append(Argument(kind, operand, leaf))
                specs.append(Spec(shape, dtype))
            return slice(first, len(specs))

        for at, operand in enumerate(kernel.operands):
            column = self.program.columns[number][at]
            if operand.kind == "rows":
                one = self.traced.classes[operand.index]
                at_rows = take("rows", at, [((rows, *shape), dtype) for shape, dtype in one.leaves])
                makers.append(partial(unflatten, at=at_rows, structure=one.structure))
            elif operand.kind == "ragged":
                makers.append(self.ragged(kernel, at, rows, take))
            elif operand.kind == "whole":
                leaves, structure = jax.tree.flatten(self.traced.wholes[operand.index])
                at_leaves = take("whole", at, [(x.shape, x.dtype) for x in leaves])
                makers.append(partial(unflatten, at=at_leaves, structure=structure))
            elif operand.kind == "shared":
                x = self.program.shared[operand.index]
                one_array = take("shared", at, [(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))])
                makers.append(itemgetter(one_array.start))
            elif operand.kind == "static":
                makers.append(partial(constantly, value=operand.value))
            else:
                numbers = take("numbers", at, [((rows,), jax.dtypes.canonicalize_dtype(column.dtype))])
                makers.append(itemgetter(numbers.start))
        return found, specs, lambda flat: [make(flat) for make in makers]

    def ragged(
        self, kernel: Kernel, at: int, rows: int, take: Callable[..., slice]
    ) -> Callable[[Sequence[Any]], Any]:
        """Return what makes a ragged operand."""
        operand = kernel.operands[at]
        edges = members(kernel, at, rows, self.tile_rows(kernel, rows))
        one = self.traced.classes.get(operand.index)
        if one is None:
            if operand.row_shape is None:
                raise no_rows(kernel)
            values = jnp.zeros((0, *operand.row_shape))
            at_rest = take("lengths", at, [((rows,), np.int32)])
            at_rest = slice(at_rest.start, take("segments", at, [((0,), np.int32)]).stop)
            return lambda flat: Ragged(values, *flat[at_rest])
        at_values = take("members", at, [((edges, *shape), dtype) for shape, dtype in one.leaves])
        take("lengths", at, [((rows,), np.int32)])
        at_rest = slice(at_values.stop, take("segments", at, [((edges,), np.int32)]).stop)
        return lambda flat: Ragged(one.structure.unflatten(flat[at_values]), *flat[at_rest])

    def tile_rows(self, kernel: Kernel, rows: int) -> int:
        """Return the rows of one launch of a kernel."""
        number = self.form.kernels.index(kernel)
        return self.tile_of(number) or rows


def unflatten(flat: Sequence[Any], at: slice, structure: Any) -> Any:
    """Return an operand of several arrays."""
    return structure.unflatten(flat[at])


def constantly(flat: Sequence[Any], value: Any) -> Any:
    """Return a static operand."""
    return value


def members(kernel: Kernel, at: int, rows: int, tile: int) -> int:
    """Return the members of a ragged operand on a number of rows."""
    return (kernel.operands[at].edges or 0) * (rows // tile)


def refuse_keys(x: Any) -> None:
    """Refuse typed keys of random numbers, whose dtype has no zeros to fill rows with."""
    if jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.extended):
        raise LaunchError(
            f"Expected arrays of numbers in a program. Received one of dtype {x.dtype}.",
            "pass jax.random.key_data(key), and in the op jax.random.wrap_key_data(x).",
        )
