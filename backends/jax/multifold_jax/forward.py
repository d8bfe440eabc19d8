"""The forward half of a compiled program: phases over slabs of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from multifold.program import Form, Phase, follow
from multifold_jax.kernels import Kernelized, Traced

Slabs = dict[int, list[Any]]
"""The arrays of each slab, one for each leaf of its structure."""


class Data(NamedTuple):
    """The inputs of a program, put together again.

    Attributes
    ----------
    columns : list of lists
        As `Program.columns`.
    constants, blocks, shared : lists of arrays
        What ops read beside their operands, given rows, shared arrays.
    launches, groups : arrays
        As in the program.
    """

    columns: list[list[Any]]
    constants: list[Any]
    blocks: list[Any]
    shared: list[Any]
    launches: Any
    groups: Any


def together(inputs: Any, integers: Any) -> Data:
    """Return what `Traced.separate` took apart."""
    floats, *some = inputs
    others, *rest, launches, groups = integers
    columns = [join(a, b) for a, b in zip(floats, others, strict=True)]
    constants, blocks, shared = (join(a, b) for a, b in zip(some, rest, strict=True))
    return Data(columns, constants, blocks, shared, launches, groups)


def join(some: Sequence[Any], rest: Sequence[Any]) -> list[Any]:
    """Return a list of which each entry is in one of two lists, and None in the other."""
    return [x if y is None else y for x, y in zip(some, rest, strict=True)]


class Write(NamedTuple):
    """A stretch of a slab that a kernel writes, and the leaves of its result that go there."""

    slab: int
    start: int
    leaves: tuple[int, ...]


class Stage(NamedTuple):
    """A phase with everything that is known before it runs.

    Attributes
    ----------
    number : int
        Which phase.
    first : int
        Its first launch.
    begins : tuple of int
        For each kernel its first row here.
    """

    number: int
    first: int
    begins: tuple[int, ...]


class Forward:
    """A program's forward pass, for one form and the traced ops of one model."""

    def __init__(self, traced: Traced, form: Form) -> None:
        self.traced = traced
        self.form = form
        self.widest = max([phase.tile or 0 for phase in form.phases], default=0)
        rows = [0] * form.slabs
        self.starts = []
        for source in form.sources:
            self.starts.append(rows[source.slab])
            rows[source.slab] += source.rows or 0
        self.rows = rows
        self.stages = []
        done, first = [0] * len(form.kernels), 0
        for number, phase in enumerate(form.phases):
            self.stages.append(Stage(number, first, tuple(done[kernel] for kernel in phase.kernels)))
            first += phase.launches or 0
            for kernel, count in zip(phase.kernels, phase.rows, strict=True):
                done[kernel] += count

    def writes(self, number: int, traced: Kernelized) -> list[Write]:
        """Return where the results of a kernel go."""
        kernel = self.form.kernels[number]
        return [
            Write(source.slab, start, tuple(jax.tree.leaves(follow(traced.places, source.steps, kernel))))
            for source, start in zip(self.form.sources, self.starts, strict=True)
            if source.kernel == number
        ]

    # ---- the walk --------------------------------------------------------------------------------

    def run(self, inputs: Any, integers: Any) -> tuple[list[Any], Any]:
        """Return the results, and the slabs and whole values that the backward pass needs."""
        data = together(inputs, integers)
        slabs: Slabs = {}
        for slab, one in self.traced.classes.items():
            rows = self.rows[slab] + self.widest  # the rest takes what idle launches write
            slabs[slab] = [jnp.full((rows, *shape), fill(dtype), dtype) for shape, dtype in one.leaves]
        for source, start in zip(self.form.sources, self.starts, strict=True):
            if source.kernel < 0:
                slabs[source.slab] = [put(slabs[source.slab][0], data.blocks[source.block], start)]
        wholes: dict[int, Any] = {}
        for stage, phase in zip(self.stages, self.form.phases, strict=True):
            if phase.loop:
                self.loop(stage, phase, data, slabs, wholes)
            else:
                self.once(stage, phase, data, slabs, wholes)
        results = [
            wholes[group.whole] if group.whole >= 0 else self.result(group.slab, rows, slabs)
            for group, rows in zip(self.form.groups, data.groups, strict=True)
        ]
        return results, (slabs, wholes)

    def result(self, slab: int, rows: Any, slabs: Slabs) -> Any:
        """Return the rows of one group."""
        return self.traced.classes[slab].structure.unflatten([get(x, rows) for x in slabs[slab]])

    def arguments(
        self,
        number: int,
        traced: Kernelized,
        first: Any,
        rows: int,
        tile: int,
        data: Data,
        slabs: Slabs,
        wholes: dict[int, Any],
    ) -> list[Any]:
        """Return what a kernel takes for its rows from ``first`` on; ``first`` may be traced."""
        kernel = self.form.kernels[number]
        found = []
        for argument in traced.arguments:
            operand = kernel.operands[argument.operand]
            column = data.columns[number][argument.operand]
            edges = operand.edges or 0
            if argument.kind == "rows":
                found.append(get(slabs[operand.index][argument.leaf], cut(column, first, rows)))
            elif argument.kind == "numbers":
                found.append(cut(column, first, rows))
            elif argument.kind == "whole":
                found.append(jax.tree.leaves(wholes[operand.index])[argument.leaf])
            elif argument.kind == "shared":
                found.append(data.shared[operand.index])
            elif argument.kind == "lengths":
                splits = cut(column.splits, first, rows + 1)
                found.append(splits[1:] - splits[:-1])
            else:
                count, begin = edges * (rows // tile), first // tile * edges
                if argument.kind == "members":
                    addresses = cut(column.addresses, begin, count)
                    found.append(get(slabs[operand.index][argument.leaf], addresses))
                else:
                    segments = cut(column.segments, begin, count)
                    found.append(segments + jnp.repeat(tile * jnp.arange(rows // tile), edges))
        return [jnp.asarray(x, spec.dtype) for x, spec in zip(found, traced.specs, strict=True)]

    def once(self, stage: Stage, phase: Phase, data: Data, slabs: Slabs, wholes: dict[int, Any]) -> None:
        """Run a phase of one launch; none where a minibatch has no call of the kernel.

        Rows that only fill a slab may be where a derivative is infinite, which a second derivative meets.
        """
        number, rows, first = phase.kernels[0], phase.rows[0], stage.begins[0]
        traced = self.traced.kernels[number, rows]
        arguments = self.arguments(number, traced, first, rows, rows, data, slabs, wholes)
        leaves = jax.lax.cond(
            data.launches[stage.first, 2] > 0,
            lambda: traced([data.constants[i] for i in traced.constants], arguments),
            lambda: [jnp.zeros(x.shape, x.dtype) for x in traced.outputs],
        )
        for write in self.writes(number, traced):
            slabs[write.slab] = [
                put(slab, leaves[leaf], write.start + first)
                for slab, leaf in zip(slabs[write.slab], write.leaves, strict=True)
            ]
        for place, (owner, steps) in enumerate(self.form.wholes):
            if owner == number:
                places = follow(traced.places, steps, self.form.kernels[number])
                wholes[place] = jax.tree.map(leaves.__getitem__, places)

    def loop(self, stage: Stage, phase: Phase, data: Data, slabs: Slabs, wholes: dict[int, Any]) -> None:
        """Run a loop: a scan over its tiles."""
        tile = phase.tile or 0
        traced = [self.traced.kernels[number, tile] for number in phase.kernels]
        writes = [self.writes(number, one) for number, one in zip(phase.kernels, traced, strict=True)]
        slots = self.slots(writes)
        written = {slab for slab, _ in slots}

        def branch(place: int) -> Any:
            number, one = phase.kernels[place], traced[place]

            def run(first: Any, own: Slabs) -> Any:
                arguments = self.arguments(number, one, first, tile, tile, data, {**slabs, **own}, wholes)
                leaves = one([data.constants[i] for i in one.constants], arguments)
                found = {}
                seen: defaultdict[int, int] = defaultdict(int)
                for write in writes[place]:
                    rows = [leaves[leaf] for leaf in write.leaves]
                    found[write.slab, seen[write.slab]] = write.start + first, rows
                    seen[write.slab] += 1
                return [found[slot] if slot in found else self.nothing(slot[0], tile) for slot in slots]

            return run

        def idle(first: Any, own: Slabs) -> Any:
            return [self.nothing(slab, tile) for slab, _ in slots]

        branches = [*map(branch, range(len(traced))), idle]

        def step(own: Slabs, launch: Any) -> tuple[Slabs, None]:
            results = jax.lax.switch(launch[0], branches, launch[1], own)
            own = dict(own)
            for (slab, _), (start, rows) in zip(slots, results, strict=True):
                own[slab] = [put(x, y, start) for x, y in zip(own[slab], rows, strict=True)]
            return own, None

        launches = data.launches[stage.first : stage.first + (phase.launches or 0)]
        own = {slab: slabs[slab] for slab in sorted(written)}
        slabs.update(jax.lax.scan(step, own, launches)[0])

    def slots(self, writes: Sequence[Sequence[Write]]) -> list[tuple[int, int]]:
        """Return the stretches that any kernel of a loop writes: slab, and which one of that slab."""
        most: dict[int, int] = {}
        for own in writes:
            for slab in {write.slab for write in own}:
                most[slab] = max(most.get(slab, 0), sum(write.slab == slab for write in own))
        return [(slab, i) for slab in sorted(most) for i in range(most[slab])]

    def nothing(self, slab: int, tile: int) -> tuple[Any, list[Any]]:
        """Return rows that no one reads, and where they go."""
        leaves = self.traced.classes[slab].leaves
        rows = [jnp.zeros((tile, *shape), dtype) for shape, dtype in leaves]
        return jnp.asarray(self.rows[slab], jnp.int32), rows


def fill(dtype: Any) -> float | int:
    """Return what slabs hold before they are written: at a half few functions are singular."""
    return 0.5 if jnp.issubdtype(dtype, jnp.inexact) else 0


def get(x: Any, rows: Any) -> Any:
    """Gather rows."""
    return x.at[rows].get(mode="promise_in_bounds")


def put(slab: Any, rows: Any, start: Any) -> Any:
    """Write rows into a stretch of a slab."""
    return jax.lax.dynamic_update_slice_in_dim(slab, jnp.asarray(rows, slab.dtype), start, 0)


def cut(x: Any, first: Any, count: int) -> Any:
    """Return a stretch of rows."""
    if isinstance(first, int):
        return jax.lax.slice_in_dim(jnp.asarray(x), first, first + count)
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), first, count)
