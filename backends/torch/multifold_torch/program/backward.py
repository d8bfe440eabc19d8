"""The backward half of a program: slabs of gradients, through the graphs of its tiles in reverse.

Each tile kept the graph of its forward pass, so nothing is computed again, and the masks of dropout are
those that were drawn. A tile takes the gradients of its results out of the slabs, and adds the gradients of
its operands to them. What its op has read besides gets the sum over all tiles.

A tile without a call may have run on rows that were not computed yet, where a derivative may be infinite,
and zero times that is no number. So its part in a sum is zero whatever it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch.autograd.function import once_differentiable

from multifold_torch.program.forward import Place, Tile, TileRunner

Result = tuple[Place, Any]
"""Where a result of a program was read from, and the rows of the slab; None for a whole value."""


@final
class TileGradients:
    """The backward pass of one run of a program.

    Attributes
    ----------
    inputs : list of tensors
        What has a gradient: given rows, and what ops have read besides their operands.
    """

    def __init__(self, runner: TileRunner, results: Sequence[Result]) -> None:
        self.runner = runner
        self.of_results = results
        sources = runner.form.sources
        self.given = {
            entry: runner.data.given[source.given]
            for entry, source in enumerate(sources)
            if source.kernel < 0 and runner.data.given[source.given].requires_grad
        }
        outside = {id(x): x for tile in runner.tiles for x in tile.outside}
        self.outside = list(outside.values())
        self.inputs = [*self.given.values(), *self.outside]

    def run(self, gradients: Sequence[torch.Tensor | None], keep: bool) -> list[torch.Tensor | None]:
        """Return the gradient of each of ``inputs``, or None, from the gradients of the results.

        With ``keep`` the graphs of the tiles stay for another backward pass.
        """
        runner = self.runner
        slabs: dict[Place, torch.Tensor] = {}
        sums: dict[int, torch.Tensor] = {}
        for (place, rows), gradient in zip(self.of_results, gradients, strict=True):
            if gradient is not None:
                self.add(slabs, place, rows, gradient)
        tiles = runner.tiles[::-1]
        own: dict[int, torch.Tensor] = {}
        for number, tile in enumerate(tiles):
            self.tile(tile, slabs, own, keep)
            if [x.span.real for x in tiles[number + 1 : number + 2]] == [tile.span.real]:
                continue  # the next tile is real if this one is, and so is the sum of both
            for key, gradient in own.items():
                gradient = kept(runner.data.real[tile.span.real], gradient)
                sums[key] = sums[key] + gradient if key in sums else gradient
            own = {}
        found: list[torch.Tensor | None] = []
        for entry, given in self.given.items():
            slab = slabs.get(("slab", runner.form.sources[entry].slab, 0))
            begin = runner.starts[entry]
            found.append(None if slab is None else slab[begin : begin + len(given)].to(given.dtype))
        return [*found, *(sums.get(id(x)) for x in self.outside)]

    def tile(
        self, tile: Tile, slabs: dict[Place, torch.Tensor], sums: dict[int, torch.Tensor], keep: bool
    ) -> None:
        """Add the gradients of what a tile has read to ``slabs``, and of what it read outside to ``sums``.

        ``slabs`` is place -> gradient, ``sums`` is ``id`` of a tensor -> gradient.
        """
        results = [x for x in tile.results if x.place in slabs]
        if not results:
            return
        gradients = []
        for value, place, first in results:
            own = slabs[place] if first is None else slabs[place][first : first + len(value)]
            # A copy: the gradient of an operand may be the tensor that autograd is given here.
            gradients.append(own.to(value.dtype, copy=True))
        leaves = [*(read.leaf for read in tile.reads), *tile.outside]
        found = torch.autograd.grad(
            [x.value for x in results], leaves, gradients, retain_graph=keep, allow_unused=True
        )
        # `found` goes on with the gradients of `tile.outside`, which come below.
        for (_, place, sinks), gradient in zip(tile.reads, found, strict=False):
            if gradient is not None and sinks is None:
                self.add(slabs, place, None, kept(self.runner.data.real[tile.span.real], gradient))
            elif gradient is not None:
                self.add(slabs, place, sinks, gradient)
        for x, gradient in zip(tile.outside, found[len(tile.reads) :], strict=True):
            if gradient is not None:
                # Not in place: gradients of autograd may share their memory.
                sums[id(x)] = sums[id(x)] + gradient if id(x) in sums else gradient

    def add(
        self, slabs: dict[Place, torch.Tensor], place: Place, rows: Any, gradient: torch.Tensor
    ) -> None:
        """Add ``gradient`` to rows ``rows`` of ``slabs[place]``, or to all of it if they are None.

        The slab is made of zeros the first time. A row may come several times.
        """
        if place not in slabs:
            slabs[place] = torch.zeros_like(self.runner.arrays[place])
        if rows is None:
            slabs[place].add_(gradient)
        else:
            slabs[place].index_add_(0, rows, gradient.to(slabs[place].dtype))


def kept(real: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return ``gradient`` if ``real``, a bool tensor, is true, or if it is sparse; else zeros like it."""
    if gradient.layout is not torch.strided:
        return gradient  # of an embedding: sparse, and its derivative is one everywhere
    return torch.where(real, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))


class TiledFunction(torch.autograd.Function):
    """The results of a program, as one function of autograd of all that has a gradient."""

    @staticmethod
    def forward(
        context: Any, gradients: TileGradients, results: Sequence[torch.Tensor], *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return ``results``, detached: they are computed already."""
        context.gradients = gradients
        # The gradient of a result that the loss does not use is None then, and no tile runs for its zeros.
        context.set_materialize_grads(False)
        graded = gradients.runner.graded
        found = tuple(x.detach() for x in results)
        pairs = zip(found, gradients.of_results, strict=True)
        context.mark_non_differentiable(*[x for x, (place, _) in pairs if place not in graded])
        return found

    @staticmethod
    @once_differentiable
    def backward(context: Any, *of_results: torch.Tensor | None) -> tuple[Any, ...]:
        """Return two None, for the first arguments, and the gradients of the inputs."""
        gradients = context.gradients
        keep = gradients.runner.witness.shares or keeps_graph()
        with without_tensor_hooks(gradients.inputs):
            return None, None, *gradients.run(of_results, keep)


@contextlib.contextmanager
def without_tensor_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Return a context in which these tensors have no hooks of autograd.

    A hook is meant for the whole gradient, and not for the part that one tile gives.
    """
    kept = [(x._backward_hooks, dict(x._backward_hooks)) for x in tensors if x._backward_hooks]
    for hooks, _ in kept:
        hooks.clear()  # autograd holds this very dictionary
    try:
        yield
    finally:
        for hooks, own in kept:
            hooks.update(own)


def keeps_graph() -> bool:
    """Return whether the backward pass that runs now was told ``retain_graph=True``.

    A version of PyTorch that does not tell gives False.
    """
    tells = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return tells is not None and tells()
