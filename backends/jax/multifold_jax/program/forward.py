"""The forward half of a compiled program: phases over slabs of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from multifold.program import Phase, Program
from multifold_jax.program.kernels import Argument, TracedKernel, Tracer, is_real
from multifold_jax.varying import axes_of, vary

Slabs = dict[int, list[Any]]
"""The arrays of each slab, one for each leaf of its structure."""


class Data(NamedTuple):
    """The arrays that a program runs on.

    Attributes
    ----------
    columns : list of lists
        As `Program.columns`.
    constants, given, shared : lists of arrays
        What ops read beside their operands, given rows, shared arrays.
    launches, groups : arrays
        As in the program.
    """

    columns: list[list[Any]]
    constants: list[Any]
    given: list[Any]
    shared: list[Any]
    launches: Any
    groups: Any


def separate(program: Program, constants: list[Any], axes: frozenset[str]) -> tuple[Data, Data]:
    """Return the data of a program twice: the arrays that have a gradient, and the others.

    In each of the two, None stands for the arrays of the other. An array has a gradient if it is of floats
    and varies over all of ``axes``: a constant that does not vary over the axes of the mesh as the program
    does is no parameter.
    """
    columns = [list(own) for own in program.columns]
    given = list(program.given)
    shared = list(program.shared)
    data = Data(columns, constants, given, shared, program.launches, program.groups)

    def real(x: Any) -> bool:
        return is_real(x) and axes <= axes_of(x)

    return (
        jax.tree.map(lambda x: x if real(x) else None, data),
        jax.tree.map(lambda x: None if real(x) else x, data),
    )


def together(reals: Data, others: Data) -> Data:
    """Return the data that `separate` took apart: each array is taken from where it is not None."""
    return jax.tree.map(lambda x, y: y if x is None else x, reals, others, is_leaf=lambda x: x is None)


class KernelInputs(NamedTuple):
    """What kernels read: data, slabs (number -> arrays), and values read whole (number -> value)."""

    data: Data
    slabs: Slabs
    wholes: dict[int, Any]


class Stage(NamedTuple):
    """A phase of the form, with where its launches and the rows of its kernels begin.

    Attributes
    ----------
    phase : Phase
        The phase itself.
    first : int
        Its first launch.
    begins : tuple of int
        For each kernel the first of its rows that this phase computes.
    """

    phase: Phase
    first: int
    begins: tuple[int, ...]

    def launches(self, data: Data) -> Any:
        """Return the rows of ``data.launches`` of this phase.

        Each is (kernel in the phase, first row, rows).
        """
        return data.launches[self.first : self.first + (self.phase.launches or 0)]


class Forward:
    """The forward pass of a program, for one form and the kernels that a `Tracer` has traced."""

    def __init__(self, traced: Tracer) -> None:
        self.traced = traced
        self.form = traced.form
        self.widest = max([phase.tile or 0 for phase in self.form.phases], default=0)
        self.stages = []
        first = 0
        for phase, begins in zip(self.form.phases, self.form.begins, strict=True):
            self.stages.append(Stage(phase, first, begins))
            first += phase.launches or 0

    def kernels(self, phase: Phase) -> list[TracedKernel]:
        """Return the traced kernels of a phase, in the order of ``phase.kernels``.

        Each is traced for the rows of one launch: in a loop a tile, elsewhere all its rows in the phase.
        """
        pairs = zip(phase.kernels, phase.rows, strict=True)
        return [self.traced.kernels[number, phase.tile or rows] for number, rows in pairs]

    def run(self, data: Data) -> tuple[list[Any], tuple[Slabs, dict[int, Any]]]:
        """Return the results, one for each of ``form.groups``, and (slabs, wholes) for the backward pass.

        Makes all slabs, writes the given rows into them, and runs all phases.
        """
        values = KernelInputs(data, {}, {})
        for slab, one in self.traced.classes.known.items():
            # Idle launches write a tile of rows, too: to the end of each slab, where no operand reads.
            rows = self.traced.rows[slab] + self.widest
            values.slabs[slab] = [
                vary(jnp.full((rows, *shape), fill(dtype), dtype), self.traced.axes)
                for shape, dtype in one.leaves
            ]
        for source, start in zip(self.form.sources, self.traced.starts, strict=True):
            if source.kernel < 0:
                (array,) = values.slabs[source.slab]
                values.slabs[source.slab] = [put(array, data.given[source.given], start)]
        for stage in self.stages:
            (self.loop if stage.phase.loop else self.once)(stage, values)
        results = [
            values.wholes[group.whole] if group.whole >= 0 else self.result(group.slab, rows, values.slabs)
            for group, rows in zip(self.form.groups, data.groups, strict=True)
        ]
        return results, (values.slabs, values.wholes)

    def result(self, slab: int, rows: Any, slabs: Slabs) -> Any:
        """Return rows ``rows`` of a slab, in its structure; each leaf has shape ``(len(rows), *s)``."""
        return self.traced.classes[slab].structure.unflatten([get(x, rows) for x in slabs[slab]])

    def once(self, stage: Stage, values: KernelInputs) -> None:
        """Run a phase of one kernel and one launch, and write its rows into ``values``.

        Where the minibatch has no call of the kernel, zeros are written and the op does not run: the rows
        of its operands would only be what fills the slabs. Its op may have an infinite derivative there, as
        ``sqrt`` has at 0, and a second derivative would meet it: infinity times zero is no number.
        """
        (traced,) = self.kernels(stage.phase)
        (first,) = stage.begins
        arguments = arguments_of(traced, first, traced.rows, values)
        leaves = jax.lax.cond(
            values.data.launches[stage.first, 2] > 0,
            lambda: traced([values.data.constants[i] for i in traced.constants], arguments),
            lambda: [vary(jnp.zeros(x.shape, x.dtype), traced.axes) for x in traced.outputs],
        )
        for write in traced.writes:
            values.slabs[write.slab] = [
                put(slab, leaves[leaf], write.start + first)
                for slab, leaf in zip(values.slabs[write.slab], write.leaves, strict=True)
            ]
        for whole, places in traced.wholes.items():
            values.wholes[whole] = jax.tree.map(leaves.__getitem__, places)

    def loop(self, stage: Stage, values: KernelInputs) -> None:
        """Run a phase that is a loop, as a scan over its tiles, and write its rows into ``values.slabs``.

        Each branch of the switch returns the rows for every slot, a pair (slab, turn), that any kernel of
        the loop writes. Where its own kernel writes none, it returns a tile of zeros for the end of the
        slab.
        """
        kernels = self.kernels(stage.phase)
        tile = stage.phase.tile or 0
        slots = sorted({(write.slab, write.turn) for traced in kernels for write in traced.writes})

        def run(traced: TracedKernel, first: Any, own: Slabs) -> Any:
            arguments = arguments_of(traced, first, tile, values._replace(slabs={**values.slabs, **own}))
            leaves = traced([values.data.constants[i] for i in traced.constants], arguments)
            found = {
                (write.slab, write.turn): (
                    write.start + first,
                    # Rows that are promoted in the slab have another dtype in the result.
                    [leaves[i].astype(x.dtype) for i, x in zip(write.leaves, own[write.slab], strict=True)],
                )
                for write in traced.writes
            }
            return [found[slot] if slot in found else self.nothing(slot[0], tile) for slot in slots]

        def idle(first: Any, own: Slabs) -> Any:
            return [self.nothing(slab, tile) for slab, _ in slots]

        def update(own: Slabs, found: Any) -> None:
            for (slab, _), (start, rows) in zip(slots, found, strict=True):
                own[slab] = [put(x, y, start) for x, y in zip(own[slab], rows, strict=True)]

        own = {slab: values.slabs[slab] for slab, _ in slots}
        branches = [*(partial(run, traced) for traced in kernels), idle]
        values.slabs.update(walk(own, stage.launches(values.data), branches, update))

    def nothing(self, slab: int, tile: int) -> tuple[Any, list[Any]]:
        """Return what an idle tile writes to a slab: (row, leaves).

        The row is the one after the last row of the slab, where no operand reads; the leaves are ``tile``
        rows of zeros, one array for each leaf.
        """
        leaves = self.traced.classes[slab].leaves
        rows = [vary(jnp.zeros((tile, *shape), dtype), self.traced.axes) for shape, dtype in leaves]
        return vary(jnp.asarray(self.traced.rows[slab], jnp.int32), self.traced.axes), rows


def walk(
    slabs: Slabs,
    launches: Any,
    branches: Sequence[Any],
    update: Callable[..., None],
    *,
    reverse: bool = False,
) -> Slabs:
    """Return the slabs after a scan over launches, from the last to the first if ``reverse``.

    For each launch (branch, first row, ...) the branch ``branches[branch](first, slabs)`` finds rows, and
    ``update(slabs, found)`` writes them into the dictionary.
    """

    def step(slabs: Slabs, launch: Any) -> tuple[Slabs, None]:
        found = jax.lax.switch(launch[0], branches, launch[1], slabs)
        # New lists: the carry that `scan` has handed over must stay as it is.
        slabs = {slab: list(leaves) for slab, leaves in slabs.items()}
        update(slabs, found)
        return slabs, None

    return jax.lax.scan(step, slabs, launches, reverse=reverse)[0]


def arguments_of(traced: TracedKernel, first: Any, rows: int, values: KernelInputs) -> list[Any]:
    """Return the arrays that a kernel takes for ``rows`` of its rows from ``first`` on.

    There is one for each of ``traced.arguments``, in their order and of their dtypes. ``rows`` are those of
    one tile, or of several tiles at once; ``first`` may be a tracer of JAX.
    """
    data = values.data
    tiles = rows // traced.rows
    found = []
    for argument, spec in zip(traced.arguments, traced.specs, strict=True):
        column = data.columns[traced.number][argument.operand]
        if argument.role in ("rows", "members"):
            array = values.slabs[argument.origin][argument.leaf]
            x = get(array, addresses(traced, argument, first, rows, data))
        elif argument.role == "numbers":
            x = stretch(column, first, rows)
        elif argument.role == "whole":
            x = jax.tree.leaves(values.wholes[argument.origin])[argument.leaf]
        elif argument.role == "shared":
            x = data.shared[argument.origin]
        elif argument.role == "lengths":
            splits = stretch(column.splits, first, rows + 1)
            x = splits[1:] - splits[:-1]
        else:
            begin = first // traced.rows * argument.edges
            # The segments of each tile count its own rows: here they count the rows of all tiles.
            before = jnp.repeat(traced.rows * jnp.arange(tiles), argument.edges)
            x = stretch(column.segments, begin, argument.edges * tiles) + before
        # NumPy counts in 64 bits and JAX by default in 32: give the kernel what it was traced on.
        found.append(jnp.asarray(x, spec.dtype))
    return found


def addresses(traced: TracedKernel, argument: Argument, first: Any, rows: int, data: Data) -> Any:
    """Return the rows of the slab that an argument is gathered from, as integers.

    For the role "members" they are all ragged members of the ``rows`` rows of the kernel from ``first`` on.
    """
    column = data.columns[traced.number][argument.operand]
    if argument.role == "rows":
        return stretch(column, first, rows)
    begin = first // traced.rows * argument.edges
    return stretch(column.addresses, begin, argument.edges * (rows // traced.rows))


def fill(dtype: Any) -> float | int:
    """Return the number that a slab is filled with before its rows are written: 0.5, or 0 for integers.

    Few functions are singular at a half.
    """
    return 0.5 if jnp.issubdtype(dtype, jnp.inexact) else 0


def get(x: Any, rows: Any) -> Any:
    """Return ``x[rows]`` along axis 0; the rows must exist."""
    return x.at[rows].get(mode="promise_in_bounds")


def put(slab: Any, rows: Any, start: Any) -> Any:
    """Return ``slab`` with ``rows``, cast to its dtype, in the place of its rows from ``start`` on."""
    return jax.lax.dynamic_update_slice_in_dim(slab, jnp.asarray(rows, slab.dtype), start, 0)


def stretch(x: Any, first: Any, count: int) -> Any:
    """Return the ``count`` rows of ``x`` from ``first`` on; ``first`` is an int or a tracer."""
    if isinstance(first, int):
        return jax.lax.slice_in_dim(jnp.asarray(x), first, first + count)
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), first, count)
