"""The backward half of a compiled program: slabs of gradients, through the same phases in reverse.

Linear in rows: a tile cuts the gradients of its results out of the slabs and adds those of its operands to
them. In a loop only that is done tile by tile, and only for slabs that the loop itself writes. All else
that a kernel reads (parameters, numbers, rows of earlier phases) gets its gradient behind the loop, for
all tiles of the kernel at once: one product a weight matrix, one scatter an embedding. It is the trace of
one tile that is differentiated, mapped over them, so that an op which draws random numbers draws those
of the forward pass.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from multifold.program import Phase, follow
from multifold_jax.forward import Forward, Slabs, Stage, cut, together
from multifold_jax.kernels import Argument, Kernelized, is_real


class Backward:
    """A program's backward pass.

    Attributes
    ----------
    slabs : dict
        The gradients of the rows of all slabs that may have any; None for a leaf of integers.
    wholes : dict
        The gradients of the leaves of values that are read whole.
    """

    def __init__(self, forward: Forward, inputs: Any, integers: Any, state: Any) -> None:
        self.forward = forward
        self.form = forward.form
        self.inputs = inputs
        self.data = together(inputs, integers)
        self.values, self.whole_values = state
        self.slabs: Slabs = {
            slab: [jnp.zeros_like(x) if is_real(x) else None for x in leaves]
            for slab, leaves in self.values.items()
        }
        self.wholes: dict[int, list[Any]] = {}
        self.gradients = jax.tree.map(jnp.zeros_like, inputs)

    def run(self, cotangents: list[Any]) -> Any:
        """Return the gradients of the inputs."""
        for group, rows, given in zip(self.form.groups, self.data.groups, cotangents, strict=True):
            if group.whole >= 0:
                self.add_whole(group.whole, jax.tree.leaves(given))
            else:
                self.slabs[group.slab] = [
                    slab if slab is None else add(slab, rows, x)
                    for slab, x in zip(self.slabs[group.slab], jax.tree.leaves(given), strict=True)
                ]
        stages = zip(self.forward.stages, self.form.phases, strict=True)
        for stage, phase in reversed(list(stages)):
            written: set[int] = set()
            if phase.loop:
                written = self.loop(stage, phase)
            for place, (number, rows) in enumerate(zip(phase.kernels, phase.rows, strict=True)):
                used = self.used(stage, phase, place)
                self.behind(number, stage.begins[place], rows, phase.tile or rows, written, used)
        for source, start in zip(self.form.sources, self.forward.starts, strict=True):
            slab = self.slabs[source.slab][0] if source.kernel < 0 else None
            if slab is not None and self.inputs[2][source.block] is not None:
                self.gradients[2][source.block] = cut(slab, start, source.rows or 0)
        return self.gradients

    def add_whole(self, place: int, leaves: list[Any]) -> None:
        """Add to the gradients of a value that is read whole."""
        values = jax.tree.leaves(self.whole_values[place])
        known = self.wholes.setdefault(place, [zeros(x) for x in values])
        self.wholes[place] = [
            a if a is None or b is None else a + b for a, b in zip(known, leaves, strict=True)
        ]

    # ---- one kernel ------------------------------------------------------------------------------

    def cotangents(self, number: int, traced: Kernelized, first: Any, rows: int, slabs: Slabs) -> list[Any]:
        """Return the gradients of the leaves of a kernel's result, for its rows from ``first`` on."""
        found: list[Any] = [None] * len(traced.outputs)

        def gather(leaf: int, gradient: Any) -> None:
            if gradient is not None:
                found[leaf] = gradient if found[leaf] is None else found[leaf] + gradient

        for write in self.forward.writes(number, traced):
            for slab, leaf in zip(slabs[write.slab], write.leaves, strict=True):
                if slab is not None:
                    gather(leaf, cut(slab, write.start + first, rows))
        for place, (owner, steps) in enumerate(self.form.wholes):
            if owner == number and place in self.wholes:
                leaves = jax.tree.leaves(follow(traced.places, steps, self.form.kernels[number]))
                for leaf, gradient in zip(leaves, self.wholes[place], strict=True):
                    gather(leaf, gradient)
        return found

    def pull(
        self,
        traced: Kernelized,
        arguments: list[Any],
        wanted: list[int],
        constants: list[int],
        cotangents: list[Any],
        tiles: int = 1,
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of some constants and arguments of a kernel, for one tile or several."""
        fixed = [self.data.constants[i] for i in traced.constants]
        outputs = [i for i, x in enumerate(cotangents) if x is not None]

        def call(some_constants: list[Any], some_arguments: list[Any]) -> list[Any]:
            every, everything = list(fixed), list(arguments)
            for i, x in zip(constants, some_constants, strict=True):
                every[i] = x
            for i, x in zip(wanted, some_arguments, strict=True):
                everything[i] = x
            leaves = traced(every, everything) if tiles == 1 else mapped(traced, every, everything, tiles)
            return [leaves[i] for i in outputs]

        _, back = jax.vjp(call, [fixed[i] for i in constants], [arguments[i] for i in wanted])
        return back([cotangents[i] for i in outputs])

    # ---- phases ----------------------------------------------------------------------------------

    def used(self, stage: Stage, phase: Phase, place: int) -> Any:
        """Return whether a kernel of a phase has any launch in this minibatch."""
        table = self.data.launches[stage.first : stage.first + (phase.launches or 0)]
        return jnp.any((table[:, 0] == place) & (table[:, 2] > 0))

    def behind(self, number: int, first: int, rows: int, tile: int, written: set[int], used: Any) -> None:
        """Add the gradients of what a kernel reads, but for slabs that its loop has written.

        A kernel without any launch ran on what fills its rows, where its derivative may be infinite, and
        zero times that is no number: so then it is not asked.
        """
        forward, data = self.forward, self.data
        traced, kernel = forward.traced.kernels[number, tile], self.form.kernels[number]
        cotangents = self.cotangents(number, traced, first, rows, self.slabs)
        if not rows or all(x is None for x in cotangents):
            return
        arguments = forward.arguments(
            number, traced, first, rows, tile, data, self.values, self.whole_values
        )
        wanted = [
            i
            for i, (argument, x) in enumerate(zip(traced.arguments, traced.specs, strict=True))
            if is_real(x) and not self.within(number, argument, written)
        ]
        constants = [i for i, c in enumerate(traced.constants) if self.inputs[1][c] is not None]
        if not wanted and not constants:
            return
        read = [data.constants[traced.constants[i]] for i in constants], [arguments[i] for i in wanted]
        of_constants, of_arguments = jax.lax.cond(
            used,
            lambda: tuple(self.pull(traced, arguments, wanted, constants, cotangents, rows // tile)),
            lambda: tuple([jnp.zeros_like(x) for x in some] for some in read),
        )
        for i, gradient in zip(constants, of_constants, strict=True):
            place = traced.constants[i]
            self.gradients[1][place] = self.gradients[1][place] + gradient
        for i, gradient in zip(wanted, of_arguments, strict=True):
            argument = traced.arguments[i]
            operand = kernel.operands[argument.operand]
            column = data.columns[number][argument.operand]
            if argument.kind == "numbers":
                known = self.gradients[0][number][argument.operand]
                old = cut(known, first, rows)
                self.gradients[0][number][argument.operand] = jax.lax.dynamic_update_slice_in_dim(
                    known, old + gradient, first, 0
                )
            elif argument.kind == "shared":
                self.gradients[3][operand.index] = self.gradients[3][operand.index] + gradient
            elif argument.kind == "whole":
                leaves = jax.tree.leaves(self.whole_values[operand.index])
                some = [gradient if at == argument.leaf else zeros(x) for at, x in enumerate(leaves)]
                self.add_whole(operand.index, some)
            else:
                at = self.addresses(number, argument, first, rows, tile, column)
                leaves = self.slabs[operand.index]
                leaves[argument.leaf] = add(leaves[argument.leaf], at, gradient)

    def addresses(
        self, number: int, argument: Argument, first: Any, rows: int, tile: int, column: Any
    ) -> Any:
        """Return the rows of the slab that an argument was gathered from."""
        if argument.kind == "rows":
            return cut(column, first, rows)
        edges = self.form.kernels[number].operands[argument.operand].edges or 0
        return cut(column.addresses, first // tile * edges, edges * (rows // tile))

    def within(self, number: int, argument: Argument, written: set[int]) -> bool:
        """Return whether an argument is read from a slab that the loop writes."""
        operand = self.form.kernels[number].operands[argument.operand]
        return argument.kind in ("rows", "members") and operand.index in written

    def loop(self, stage: Stage, phase: Phase) -> set[int]:
        """Add the gradients of rows of slabs that a loop writes, tile by tile; return those slabs."""
        forward, data, tile = self.forward, self.data, phase.tile or 0
        traced = [forward.traced.kernels[number, tile] for number in phase.kernels]
        written = {
            write.slab
            for number, one in zip(phase.kernels, traced, strict=True)
            for write in forward.writes(number, one)
        }
        wanted = [
            [
                i
                for i, (argument, x) in enumerate(zip(one.arguments, one.specs, strict=True))
                if is_real(x) and self.within(number, argument, written)
            ]
            for number, one in zip(phase.kernels, traced, strict=True)
        ]
        slots = self.slots(phase, traced, wanted)
        own = {slab: self.slabs[slab] for slab in sorted(written)}

        def spare(slot: tuple[int, int], count: int) -> tuple[Any, Any]:
            slab, leaf = slot
            x = own[slab][leaf]
            return jnp.full((count,), forward.rows[slab], jnp.int32), jnp.zeros(
                (count, *x.shape[1:]), x.dtype
            )

        def branch(place: int) -> Any:
            number, one, some = phase.kernels[place], traced[place], wanted[place]

            def run(first: Any, gradients: Slabs) -> Any:
                cotangents = self.cotangents(number, one, first, tile, gradients)
                arguments = forward.arguments(
                    number, one, first, tile, tile, data, self.values, self.whole_values
                )
                _, found = self.pull(one, arguments, some, [], cotangents)
                rows: dict[tuple[int, int], list[tuple[Any, Any]]] = {slot: [] for slot in slots}
                for i, gradient in zip(some, found, strict=True):
                    argument = one.arguments[i]
                    slab = self.form.kernels[number].operands[argument.operand].index
                    column = data.columns[number][argument.operand]
                    at = self.addresses(number, argument, first, tile, tile, column)
                    rows[slab, argument.leaf].append((at, gradient))
                results = []
                for slot, count in slots.items():
                    rest = count - sum(len(at) for at, _ in rows[slot])
                    pieces = [*rows[slot], *([spare(slot, rest)] if rest else [])]
                    results.append([jnp.concatenate(x) for x in zip(*pieces, strict=True)])
                return results

            return run

        def idle(first: Any, gradients: Slabs) -> Any:
            return [list(spare(slot, count)) for slot, count in slots.items()]

        branches = [*map(branch, range(len(traced))), idle]

        def step(gradients: Slabs, launch: Any) -> tuple[Slabs, None]:
            results = jax.lax.switch(launch[0], branches, launch[1], gradients)
            gradients = {slab: list(leaves) for slab, leaves in gradients.items()}
            for (slab, leaf), (at, gradient) in zip(slots, results, strict=True):
                gradients[slab][leaf] = add(gradients[slab][leaf], at, gradient)
            return gradients, None

        if slots:
            launches = data.launches[stage.first : stage.first + (phase.launches or 0)]
            self.slabs.update(jax.lax.scan(step, own, launches, reverse=True)[0])
        return written

    def slots(
        self, phase: Phase, traced: list[Kernelized], wanted: list[list[int]]
    ) -> dict[tuple[int, int], int]:
        """Return (slab, leaf) that any kernel of a loop reads, and the most rows that one of them reads."""
        most: dict[tuple[int, int], int] = {}
        for number, one, some in zip(phase.kernels, traced, wanted, strict=True):
            counts: dict[tuple[int, int], int] = {}
            for i in some:
                argument = one.arguments[i]
                slot = self.form.kernels[number].operands[argument.operand].index, argument.leaf
                counts[slot] = counts.get(slot, 0) + one.specs[i].shape[0]
            for slot, count in counts.items():
                most[slot] = max(most.get(slot, 0), count)
        return dict(sorted(most.items()))


def mapped(traced: Kernelized, constants: list[Any], arguments: list[Any], tiles: int) -> list[Any]:
    """Return the leaves of a kernel's result for several tiles, whose arguments lie behind each other."""
    by_tile = [i for i, argument in enumerate(traced.arguments) if argument.kind not in ("whole", "shared")]
    pieces = []
    for i in by_tile:
        piece = arguments[i].reshape(tiles, *traced.specs[i].shape)
        if traced.arguments[i].kind == "segments":  # each tile counts its own
            piece -= traced.outputs[0].shape[0] * jnp.arange(tiles, dtype=piece.dtype)[:, None]
        pieces.append(piece)

    def one(mine: list[Any]) -> list[Any]:
        everything = list(arguments)
        for i, x in zip(by_tile, mine, strict=True):
            everything[i] = x
        return traced(constants, everything)

    try:
        leaves = jax.vmap(one)(pieces)
    except NotImplementedError:  # some callbacks can't be mapped: then tile by tile
        leaves = jax.lax.map(one, pieces)
    return [x.reshape(-1, *x.shape[2:]) for x in leaves]


def zeros(x: Any) -> Any:
    """Return the gradient of a value that was not read; None for integers."""
    return jnp.zeros_like(x) if is_real(x) else None


def add(slab: Any, rows: Any, gradient: Any) -> Any:
    """Add gradients to the rows that were read."""
    return slab.at[rows].add(gradient.astype(slab.dtype), mode="promise_in_bounds")
