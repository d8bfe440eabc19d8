"""The backward half of a compiled program: slabs of gradients, through the same phases in reverse.

Its cost is linear in rows. A tile takes the gradients of its results out of the slabs and adds the
gradients of its operands to them. In a loop only that is done tile by tile, and only for slabs that the
loop itself writes: the gradient of a chain's state must reach step 9 before step 8 can go on. All else that
a kernel reads (parameters, numbers, rows of earlier phases) gets its gradient after the loop, for all tiles
of the kernel at once: one product a weight matrix, one scatter an embedding.

It is the trace of one tile that is differentiated, mapped over all tiles. So an op that draws random
numbers draws the numbers of the forward pass, where each tile draws the same.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from multifold_jax.program.forward import (
    Data,
    Forward,
    KernelInputs,
    Slabs,
    Stage,
    addresses,
    arguments_of,
    put,
    stretch,
    walk,
)
from multifold_jax.program.kernels import Argument, TracedKernel, is_real
from multifold_jax.varying import vary


class Backward:
    """The backward pass of a program; `run` fills the attributes and may be called once.

    Attributes
    ----------
    slabs : dict
        The gradients of the rows of all slabs that may have any; None for a leaf of integers.
    wholes : dict
        The gradients of the leaves of values that are read whole.
    gradients : Data
        The gradients of the inputs.
    """

    def __init__(self, forward: Forward, inputs: Data, values: KernelInputs) -> None:
        self.forward = forward
        self.form = forward.form
        self.values = values
        self.data = values.data
        self.slabs: Slabs = {slab: [*map(zeros, leaves)] for slab, leaves in values.slabs.items()}
        self.wholes: dict[int, list[Any]] = {}
        self.gradients = jax.tree.map(jnp.zeros_like, inputs)

    def run(self, cotangents: list[Any]) -> Data:
        """Return the gradients of the inputs, a `Data` like ``inputs``.

        ``cotangents`` has the gradient of each group of results, in the order of ``form.groups`` and in the
        structure of its result.
        """
        for group, rows, given in zip(self.form.groups, self.data.groups, cotangents, strict=True):
            if group.whole >= 0:
                self.add_whole(group.whole, jax.tree.leaves(given))
            else:
                self.slabs[group.slab] = [
                    slab if slab is None else add(slab, rows, x)
                    for slab, x in zip(self.slabs[group.slab], jax.tree.leaves(given), strict=True)
                ]
        for stage in reversed(self.forward.stages):
            kernels = self.forward.kernels(stage.phase)
            written: set[int] = set()
            if stage.phase.loop:
                written = {write.slab for traced in kernels for write in traced.writes}
                self.loop(stage, kernels, written)
            # By now the gradients of all rows that the phase computed are complete: later phases and its
            # own loop have added theirs.
            table = stage.launches(self.data)
            for entry, traced in enumerate(kernels):
                used = jnp.any((table[:, 0] == entry) & (table[:, 2] > 0))
                self.rest(traced, stage.begins[entry], stage.phase.rows[entry], written, used)
        for source, start in zip(self.form.sources, self.forward.traced.starts, strict=True):
            if source.kernel < 0 and self.gradients.given[source.given] is not None:
                rows = stretch(self.slabs[source.slab][0], start, source.rows or 0)
                known = self.gradients.given[source.given]
                self.gradients.given[source.given] = known + rows.astype(known.dtype)
        return self.gradients

    def add_whole(self, whole: int, leaves: list[Any]) -> None:
        """Add ``leaves`` to ``wholes[whole]``, which is made of zeros the first time.

        ``leaves`` are the gradients of the leaves of a value that is read whole, in their order; None for a
        leaf of integers.
        """
        known = self.wholes.setdefault(whole, [*map(zeros, jax.tree.leaves(self.values.wholes[whole]))])
        self.wholes[whole] = [
            a if a is None or b is None else a + b for a, b in zip(known, leaves, strict=True)
        ]

    def cotangents(self, traced: TracedKernel, first: Any, rows: int, slabs: Slabs) -> list[Any]:
        """Return the gradients of the leaves of a kernel's result, for its ``rows`` rows from ``first`` on.

        The list has one entry for each of ``traced.outputs``, in their order; None for a leaf without
        gradient. The gradients are read from ``slabs`` and from ``self.wholes``.
        """
        found: list[Any] = [None] * len(traced.outputs)

        def gather(leaf: int, gradient: Any) -> None:
            if gradient is not None:
                found[leaf] = gradient if found[leaf] is None else found[leaf] + gradient

        for write in traced.writes:
            for slab, leaf in zip(slabs[write.slab], write.leaves, strict=True):
                if slab is not None:
                    gradient = stretch(slab, write.start + first, rows)
                    gather(leaf, gradient.astype(traced.outputs[leaf].dtype))
        for whole, places in traced.wholes.items():
            if whole in self.wholes:
                for leaf, gradient in zip(jax.tree.leaves(places), self.wholes[whole], strict=True):
                    gather(leaf, gradient)
        return found

    def pull(
        self,
        traced: TracedKernel,
        arguments: list[Any],
        wanted: list[int],
        constants: list[int],
        cotangents: list[Any],
        tiles: int = 1,
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of some constants, and those of some arguments, of a kernel: two lists.

        ``constants`` and ``wanted`` are positions in ``traced.constants`` and ``traced.arguments``;
        ``cotangents`` is what `cotangents` returned. ``arguments`` holds the rows of ``tiles`` tiles, one
        after the other.
        """
        # What gets no gradient is closed over, so JAX computes nothing for it.
        fixed = [self.data.constants[i] for i in traced.constants]
        outputs = [i for i, x in enumerate(cotangents) if x is not None]

        def call(some_constants: list[Any], some_arguments: list[Any]) -> list[Any]:
            every = replaced(fixed, constants, some_constants)
            everything = replaced(arguments, wanted, some_arguments)
            leaves = traced(every, everything) if tiles == 1 else mapped(traced, every, everything, tiles)
            return [leaves[i] for i in outputs]

        _, back = jax.vjp(call, [fixed[i] for i in constants], [arguments[i] for i in wanted])
        return back([cotangents[i] for i in outputs])

    def rest(self, traced: TracedKernel, first: int, rows: int, written: set[int], used: Any) -> None:
        """Add the gradients of all that a kernel reads, but for rows of slabs that its loop has written.

        ``first`` and ``rows`` say which rows of the kernel its phase ran, ``written`` are those slabs,
        ``used`` is a traced bool: whether the kernel has any launch. A kernel without launches ran on what
        fills its rows. Its derivative may be infinite there, and infinity times zero is no number, so then
        the gradients are zeros and the kernel is not run.
        """
        cotangents = self.cotangents(traced, first, rows, self.slabs)
        wanted = [i for i in differentiable(traced) if not within(traced.arguments[i], written)]
        constants = [i for i, c in enumerate(traced.constants) if self.gradients.constants[c] is not None]
        if not rows or all(x is None for x in cotangents) or not (wanted or constants):
            return
        arguments = arguments_of(traced, first, rows, self.values)
        read = [self.data.constants[traced.constants[i]] for i in constants], [arguments[i] for i in wanted]
        of_constants, of_arguments = jax.lax.cond(
            used,
            lambda: tuple(self.pull(traced, arguments, wanted, constants, cotangents, rows // traced.rows)),
            lambda: tuple([jnp.zeros_like(x) for x in some] for some in read),
        )
        for i, gradient in zip(constants, of_constants, strict=True):
            self.gradients.constants[traced.constants[i]] += gradient
        for i, gradient in zip(wanted, of_arguments, strict=True):
            self.add_argument(traced, traced.arguments[i], first, rows, gradient)

    def add_argument(
        self, traced: TracedKernel, argument: Argument, first: int, rows: int, gradient: Any
    ) -> None:
        """Add the gradient of an argument to the gradient of what it was read from.

        By the role of the argument, that is a column of numbers, a shared array, a value that is read
        whole, or rows of a slab. ``gradient`` is that of the kernel's ``rows`` rows from ``first`` on.
        """
        if argument.role == "numbers":
            columns = self.gradients.columns[traced.number]
            known = columns[argument.operand]
            columns[argument.operand] = put(known, stretch(known, first, rows) + gradient, first)
        elif argument.role == "shared":
            self.gradients.shared[argument.origin] += gradient
        elif argument.role == "whole":
            values = jax.tree.leaves(self.values.wholes[argument.origin])
            leaves = [gradient if leaf == argument.leaf else zeros(x) for leaf, x in enumerate(values)]
            self.add_whole(argument.origin, leaves)
        else:
            arrays = self.slabs[argument.origin]
            at = addresses(traced, argument, first, rows, self.data)
            arrays[argument.leaf] = add(arrays[argument.leaf], at, gradient)

    def loop(self, stage: Stage, kernels: list[TracedKernel], written: set[int]) -> None:
        """Add the gradients of what a loop reads of slabs ``written``, tile by tile from the last one.

        Each branch of the switch returns as many rows for every slot, a pair (slab, leaf), as the kernel
        returns that reads most of it. The missing ones are zeros for the row after the last one of the
        slab, which no operand reads.
        """
        tile = stage.phase.tile or 0
        axes = self.forward.traced.axes
        wanted = {
            traced.number: [i for i in differentiable(traced) if within(traced.arguments[i], written)]
            for traced in kernels
        }
        own = {slab: self.slabs[slab] for slab in sorted(written)}
        most: Counter[tuple[int, int]] = Counter()
        for traced in kernels:
            counts: Counter[tuple[int, int]] = Counter()
            for i in wanted[traced.number]:
                counts[slot_of(traced.arguments[i])] += traced.specs[i].shape[0]
            most |= counts  # the larger of each
        slots = sorted(most.items())

        def filled(slot: tuple[int, int], count: int, found: list[tuple[Any, Any]]) -> list[Any]:
            slab, leaf = slot
            rest = count - sum(len(at) for at, _ in found)
            # All branches of a switch return arrays of one shape.
            if rest:
                x = own[slab][leaf]
                at = jnp.full((rest,), self.forward.traced.rows[slab], jnp.int32)
                zero = jnp.zeros((rest, *x.shape[1:]), x.dtype)
                found = [*found, (vary(at, axes), vary(zero, axes))]
            return [jnp.concatenate(x) for x in zip(*found, strict=True)]

        def run(traced: TracedKernel, first: Any, gradients: Slabs) -> Any:
            cotangents = self.cotangents(traced, first, tile, gradients)
            arguments = arguments_of(traced, first, tile, self.values)
            some = wanted[traced.number]
            _, found = self.pull(traced, arguments, some, [], cotangents)
            rows: dict[tuple[int, int], list[tuple[Any, Any]]] = {slot: [] for slot, _ in slots}
            for i, gradient in zip(some, found, strict=True):
                argument = traced.arguments[i]
                at = addresses(traced, argument, first, tile, self.data)
                rows[slot_of(argument)].append((at, gradient))
            return [filled(slot, count, rows[slot]) for slot, count in slots]

        def idle(first: Any, gradients: Slabs) -> Any:
            return [filled(slot, count, []) for slot, count in slots]

        def update(gradients: Slabs, found: Any) -> None:
            for ((slab, leaf), _), (at, gradient) in zip(slots, found, strict=True):
                gradients[slab][leaf] = add(gradients[slab][leaf], at, gradient)

        if slots:
            branches = [*(partial(run, traced) for traced in kernels), idle]
            self.slabs.update(walk(own, stage.launches(self.data), branches, update, reverse=True))


def slot_of(argument: Argument) -> tuple[int, int]:
    """Return the pair (slab, leaf) that an argument of the role "rows" or "members" is read from."""
    return argument.origin, argument.leaf


def differentiable(traced: TracedKernel) -> list[int]:
    """Return the positions in ``traced.arguments`` of the arguments of floats; they may have gradients."""
    return [i for i, spec in enumerate(traced.specs) if is_real(spec)]


def within(argument: Argument, written: set[int]) -> bool:
    """Return whether an argument is made of rows of one of the slabs ``written``."""
    return argument.role in ("rows", "members") and argument.origin in written


def replaced(values: list[Any], entries: list[int], by: list[Any]) -> list[Any]:
    """Return a copy of ``values`` in which entry ``entries[i]`` is ``by[i]``."""
    values = list(values)
    for i, x in zip(entries, by, strict=True):
        values[i] = x
    return values


def mapped(traced: TracedKernel, constants: list[Any], arguments: list[Any], tiles: int) -> list[Any]:
    """Return the leaves of a kernel's result for ``tiles`` tiles, each ``(tiles * rows, *s)``.

    ``arguments`` holds the rows of all tiles, one after the other; what is shared or read whole is the same
    for each tile.
    """
    by_tile = [i for i, argument in enumerate(traced.arguments) if argument.role not in ("whole", "shared")]
    mine = []
    for i in by_tile:
        x = arguments[i].reshape(tiles, *traced.specs[i].shape)
        if traced.arguments[i].role == "segments":  # each tile counts its own rows
            x -= traced.rows * jnp.arange(tiles, dtype=x.dtype)[:, None]
        mine.append(x)

    def one(mine: list[Any]) -> list[Any]:
        return traced(constants, replaced(arguments, by_tile, mine))

    try:
        leaves = jax.vmap(one)(mine)
    except NotImplementedError:
        # `jax.pure_callback` without `vmap_method` can't be mapped: go tile by tile.
        leaves = jax.lax.map(one, mine)
    return [x.reshape(-1, *x.shape[2:]) for x in leaves]


def zeros(x: Any) -> Any:
    """Return zeros like an array of floats, the gradient it begins with; None for one of integers."""
    return jnp.zeros_like(x) if is_real(x) else None


def add(slab: Any, rows: Any, gradient: Any) -> Any:
    """Return ``slab`` with ``gradient[i]`` added to its row ``rows[i]``; a row may come several times."""
    return slab.at[rows].add(gradient.astype(slab.dtype), mode="promise_in_bounds")
